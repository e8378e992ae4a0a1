//! [`RuleProgram`]: declarations and code, decoded but not verified.

use std::fmt;

use crate::ids::AppId;
use crate::instruction::Instruction;

/// Limits of every program, whatever its sender is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramLimits {
    /// Applications.
    pub apps: usize,
    /// Record layouts.
    pub layouts: usize,
    /// Fields of a record layout.
    pub fields: usize,
    /// Bytes of a record.
    pub record_bytes: u32,
    /// Tables.
    pub tables: usize,
    /// Rules.
    pub rules: usize,
    /// Instructions of all rules.
    pub instructions: usize,
    /// Bytes of a name.
    pub name_bytes: usize,
    /// Hops of a command.
    pub hops: u8,
    /// Priorities of applications are below it, priorities of global rules are not.
    pub global_priority: u32,
}

impl ProgramLimits {
    /// The limits.
    pub const MAX: ProgramLimits = ProgramLimits {
        apps: 32,
        layouts: 64,
        fields: 64,
        record_bytes: 1 << 16,
        tables: 64,
        rules: 1024,
        instructions: 1 << 16,
        name_bytes: 32,
        hops: 64,
        global_priority: 1 << 16,
    };
}

/// A program: applications, record layouts, tables, rules, and the code of the rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleProgram {
    /// Applications; [`AppId`] is the index.
    pub apps: Vec<AppDeclaration>,
    /// Record layouts; [`LayoutId`](crate::LayoutId) is the index.
    pub layouts: Vec<RecordLayout>,
    /// Tables; [`TableId`](crate::TableId) is the index.
    pub tables: Vec<TableDeclaration>,
    /// Rules; [`RuleId`](crate::RuleId) is the index.
    pub rules: Vec<RuleDeclaration>,
    /// Instructions of all rules.
    pub code: Vec<Instruction>,
}

impl RuleProgram {
    /// Whether applications share parallel units.
    pub fn has_thin_apps(&self) -> bool {
        self.apps.iter().any(AppDeclaration::is_thin)
    }

    /// Returns the bytes of the image of the durable tables, without those of addresses.
    pub fn durable_bytes(&self) -> u64 {
        crate::engine::durable_bytes(&self.tables)
    }
}

/// An application and its space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppDeclaration {
    /// Name: letters, digits and `_`.
    pub name: String,
    /// First parallel unit.
    pub first_unit: u32,
    /// Last parallel unit.
    pub last_unit: u32,
    /// Spare space, in millionths of the logical space.
    pub spare_ppm: u32,
    /// The part of the logical space of its units, in millionths, if other applications have these units, too;
    /// 0 for an application on units of its own.
    pub quota_ppm: u32,
    /// Logical sectors.
    pub sectors: u64,
}

impl AppDeclaration {
    /// Millionths of a whole.
    pub const WHOLE_PPM: u32 = 1_000_000;
    /// Minimum quota, in millionths: each application has a sector.
    pub const QUOTA_PPM_MIN: u32 = 1_000;

    /// Whether the application has a quota of units that others have, too.
    pub fn is_thin(&self) -> bool {
        self.quota_ppm != 0
    }

    /// Returns the application's part of a number of sectors of its units.
    pub fn quota_of(&self, sectors: u64) -> u64 {
        if self.is_thin() { quota_sectors(sectors, self.quota_ppm) } else { sectors }
    }
}

/// Returns the part that a quota in millionths is of a number of sectors. It is rounded down, so that quotas
/// of 1 together never exceed the number.
pub fn quota_sectors(sectors: u64, quota_ppm: u32) -> u64 {
    let part = u128::from(sectors) * u128::from(quota_ppm.min(AppDeclaration::WHOLE_PPM));
    (part / u128::from(AppDeclaration::WHOLE_PPM)) as u64
}

/// Fields of a record in fetched bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordLayout {
    /// Name.
    pub name: String,
    /// Bytes of a record.
    pub bytes: u32,
    /// Fields.
    pub fields: Vec<RecordField>,
}

/// A field: integers in little-endian order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordField {
    /// Name.
    pub name: String,
    /// First byte.
    pub offset: u32,
    /// Width of an element.
    pub width: IntWidth,
    /// Number of elements.
    pub count: u32,
}

/// The width of a stored integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum IntWidth {
    /// 8 bits.
    U8 = 0,
    /// 16 bits.
    U16 = 1,
    /// 32 bits.
    U32 = 2,
    /// 64 bits.
    U64 = 3,
}

impl IntWidth {
    /// Returns the number of bytes.
    #[inline]
    pub const fn bytes(self) -> u64 {
        1 << self as u8
    }

    /// Returns the largest value.
    #[inline]
    pub const fn max(self) -> u64 {
        u64::MAX >> (64 - 8 * self.bytes())
    }

    /// Returns the width of a code.
    pub const fn from_code(code: u8) -> Option<IntWidth> {
        match code {
            0 => Some(IntWidth::U8),
            1 => Some(IntWidth::U16),
            2 => Some(IntWidth::U32),
            3 => Some(IntWidth::U64),
            _ => None,
        }
    }
}

/// The kind of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableKind {
    /// Addresses of logical sectors: the map of the drive's translation layer. It takes no memory of
    /// the engine.
    Address,
    /// Integers by index.
    Array(IntWidth),
    /// A set of integers.
    Set(IntWidth),
    /// Integers by key.
    Map {
        /// Width of a key.
        key: IntWidth,
        /// Width of a value.
        value: IntWidth,
    },
}

impl fmt::Display for TableKind {
    /// Writes the kind as the language has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = |width: IntWidth| 8 * width.bytes();
        match self {
            TableKind::Address => f.write_str("addr"),
            TableKind::Array(width) => write!(f, "u{}", bits(*width)),
            TableKind::Set(width) => write!(f, "set<u{}>", bits(*width)),
            TableKind::Map { key, value } => write!(f, "map<u{},u{}>", bits(*key), bits(*value)),
        }
    }
}

/// A table of an application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableDeclaration {
    /// Name.
    pub name: String,
    /// The application.
    pub app: AppId,
    /// The kind.
    pub kind: TableKind,
    /// Elements, or keys at most.
    pub capacity: u64,
    /// Whether changes are reported, so that the drive can journal them.
    pub is_durable: bool,
}

/// An operation of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum InputOp {
    /// Read.
    Read = 0,
    /// Write.
    Write = 1,
    /// Deallocate.
    Trim = 2,
    /// Flush.
    Flush = 3,
    /// A scan of a range.
    Scan = 4,
    /// A lookup of a key.
    Get = 5,
    /// An acknowledgment of a posted event.
    Ack = 6,
    /// An operation that programs define.
    User0 = 8,
    /// An operation that programs define.
    User1 = 9,
    /// An operation that programs define.
    User2 = 10,
    /// An operation that programs define.
    User3 = 11,
}

impl InputOp {
    /// Number of codes.
    pub const CODES: usize = 16;
    /// All operations with their names in the language.
    pub const ALL: [(InputOp, &str); 11] = [
        (InputOp::Read, "read"),
        (InputOp::Write, "write"),
        (InputOp::Trim, "trim"),
        (InputOp::Flush, "flush"),
        (InputOp::Scan, "scan"),
        (InputOp::Get, "get"),
        (InputOp::Ack, "ack"),
        (InputOp::User0, "user0"),
        (InputOp::User1, "user1"),
        (InputOp::User2, "user2"),
        (InputOp::User3, "user3"),
    ];

    /// Returns the operation of a code.
    pub fn from_code(code: u64) -> Option<InputOp> {
        InputOp::ALL.iter().map(|(op, _)| *op).find(|op| *op as u64 == code)
    }

    /// Returns the operation's name in the language.
    pub fn name(self) -> &'static str {
        InputOp::ALL.iter().find(|(op, _)| *op == self).map_or("", |(_, name)| name)
    }

    /// Returns whether the drive executes it when no rule decides about it: it places nothing.
    #[inline]
    pub const fn passes_through(self) -> bool {
        matches!(self, InputOp::Trim | InputOp::Flush)
    }
}

/// A set of operations: bit `n` is the operation with code `n`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpMask(pub u16);

impl OpMask {
    /// No operation.
    pub const NONE: OpMask = OpMask(0);

    /// Returns the set of all operations.
    pub fn all() -> OpMask {
        InputOp::ALL.iter().fold(OpMask::NONE, |mask, (op, _)| mask.with(*op))
    }

    /// Returns the set with one more.
    pub const fn with(self, op: InputOp) -> OpMask {
        OpMask(self.0 | 1 << op as u8)
    }

    /// Returns whether an operation is in the set.
    pub const fn has(self, op: InputOp) -> bool {
        self.0 >> op as u8 & 1 == 1
    }
}

/// The event that makes the engine try a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleTrigger {
    /// A command of the application.
    Command,
    /// The drive polls the application's background rules.
    Background,
    /// A period has passed.
    Every {
        /// The period in nanoseconds.
        period_ns: u64,
    },
    /// The drive moved a sector of the application.
    Moved,
}

/// A line and a column of a source, both from 1; 0 if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleLocation {
    /// Line.
    pub line: u32,
    /// Column in characters.
    pub column: u32,
}

/// Instructions of a part of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CodeRange {
    /// First instruction.
    pub start: u32,
    /// Number of instructions.
    pub len: u32,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleDeclaration {
    /// Name.
    pub name: String,
    /// The application, or [`AppId::GLOBAL`].
    pub app: AppId,
    /// The event that makes the engine try it.
    pub trigger: RuleTrigger,
    /// Operations of commands; empty for other triggers.
    pub ops: OpMask,
    /// Rules with larger priorities come first.
    pub priority: u32,
    /// The rule matches an input again at most so many times.
    pub hops: u8,
    /// Where it begins in its source.
    pub location: RuleLocation,
    /// The condition; it always applies if it is empty.
    pub condition: CodeRange,
    /// State changes and actions.
    pub action: CodeRange,
}
