//! [`Instruction`]: one step of a rule. The machine has [`REGISTERS`] registers; the verification
//! gives each a type at every instruction.
//!
//! Jumps go forward. The only step backward is [`RuleOp::LoopEnd`], whose loop has a constant bound.

/// Number of registers.
pub const REGISTERS: usize = 64;
/// Maximum number of loops around an instruction.
pub const LOOP_DEPTH_MAX: usize = 4;
/// Maximum payload of an address: the upper two bits say its kind.
pub const ADDRESS_NAME_MAX: u64 = (1 << 62) - 1;

/// Registers that have the header of the input when a rule begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum HeaderRegister {
    /// The operation ([`InputOp`](crate::InputOp)); only [`RuleOp::SetOp`] changes it.
    Op = 0,
    /// The first logical block.
    Lba = 1,
    /// The number of sectors; cannot be changed.
    Sectors = 2,
    /// The first argument.
    Arg0 = 3,
    /// The second argument.
    Arg1 = 4,
    /// The out-of-band tag.
    Tag = 5,
    /// Bytes of the host's buffer; cannot be changed.
    Buffer = 6,
}

impl HeaderRegister {
    /// Number of header registers.
    pub const COUNT: usize = HeaderRegister::ALL.len();
    /// All header registers, in the order of their numbers.
    pub const ALL: [HeaderRegister; 7] = [
        HeaderRegister::Op,
        HeaderRegister::Lba,
        HeaderRegister::Sectors,
        HeaderRegister::Arg0,
        HeaderRegister::Arg1,
        HeaderRegister::Tag,
        HeaderRegister::Buffer,
    ];
    /// Registers that rules may change: the logical block, both arguments, and the tag.
    pub const WRITABLE: u64 = 1 << 1 | 1 << 3 | 1 << 4 | 1 << 5;
}

/// An instruction, as it is encoded: 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// The operation.
    pub op: RuleOp,
    /// Register of the result.
    pub d: u8,
    /// First operand.
    pub a: u8,
    /// Second operand.
    pub b: u8,
    /// Third operand, or the depth of a loop.
    pub c: u8,
    /// Operations that it costs; set by the verification, and 0 in encoded programs.
    pub(crate) cost: u16,
    /// Constant: a value, a target, a table, or what the operation says.
    pub imm: u64,
}

impl Instruction {
    /// Creates an instruction without operands.
    pub const fn new(op: RuleOp) -> Instruction {
        Instruction { op, d: 0, a: 0, b: 0, c: 0, cost: 0, imm: 0 }
    }

    /// Returns it with a register for the result.
    pub const fn to(mut self, d: u8) -> Instruction {
        self.d = d;
        self
    }

    /// Returns it with a first operand.
    pub const fn a(mut self, a: u8) -> Instruction {
        self.a = a;
        self
    }

    /// Returns it with a second operand.
    pub const fn b(mut self, b: u8) -> Instruction {
        self.b = b;
        self
    }

    /// Returns it with a third operand.
    pub const fn c(mut self, c: u8) -> Instruction {
        self.c = c;
        self
    }

    /// Returns it with a constant.
    pub const fn imm(mut self, imm: u64) -> Instruction {
        self.imm = imm;
        self
    }

    /// Returns it with two constants: the lower 32 bits, and the upper.
    pub const fn pair(self, low: u32, high: u32) -> Instruction {
        self.imm(low as u64 | (high as u64) << 32)
    }

    /// Returns the lower 32 bits of the constant.
    #[inline]
    pub const fn low(&self) -> u32 {
        self.imm as u32
    }

    /// Returns the upper 32 bits of the constant.
    #[inline]
    pub const fn high(&self) -> u32 {
        (self.imm >> 32) as u32
    }
}

/// Defines the operations with their codes.
macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident = $code:literal,)*) => {
        /// An operation. Integers have 64 bits without a sign and wrap.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum RuleOp {
            $($(#[$doc])* $name = $code,)*
        }

        impl RuleOp {
            /// All operations.
            pub const ALL: &[RuleOp] = &[$(RuleOp::$name),*];

            /// Returns the operation of a code.
            pub const fn from_code(code: u8) -> Option<RuleOp> {
                match code {
                    $($code => Some(RuleOp::$name),)*
                    _ => None,
                }
            }
        }
    };
}

operations! {
    /// `d = imm`.
    Const = 0,
    /// `d = imm != 0`, as a truth value.
    ConstBool = 1,
    /// `d = a` of integers.
    MoveInt = 2,
    /// `d = a` of truth values.
    MoveBool = 3,
    /// `d = a` of addresses.
    MoveAddress = 4,
    /// `d = a` of lines.
    MoveLine = 5,
    /// `d = a + b`.
    Add = 8,
    /// `d = a - b`.
    Sub = 9,
    /// `d = a * b`.
    Mul = 10,
    /// `d = a / b`; 0 if `b` is 0.
    Div = 11,
    /// `d = a % b`; 0 if `b` is 0.
    Rem = 12,
    /// `d = a & b`.
    And = 13,
    /// `d = a | b`.
    Or = 14,
    /// `d = a ^ b`.
    Xor = 15,
    /// `d = a << (b & 63)`.
    Shl = 16,
    /// `d = a >> (b & 63)`.
    Shr = 17,
    /// `d` = the smaller of `a` and `b`.
    Min = 18,
    /// `d` = the larger of `a` and `b`.
    Max = 19,
    /// `d = a == b`.
    Eq = 24,
    /// `d = a != b`.
    Ne = 25,
    /// `d = a < b`.
    Lt = 26,
    /// `d = a <= b`.
    Le = 27,
    /// `d = a < b`, both with a sign.
    LtSigned = 28,
    /// `d = !a` of truth values.
    Not = 29,
    /// `d` = whether the integer `a` is *none*: all bits set.
    IsNoneInt = 30,
    /// `d` = whether the line `a` is *none*.
    IsNoneLine = 31,
    /// `d` = whether the drive is idle.
    Idle = 32,
    /// `d` = number of free lines.
    FreeLines = 33,
    /// `d` = erase cycles of the least worn line.
    WearMin = 34,
    /// `d` = erase cycles of the most worn line.
    WearMax = 35,
    /// `d` = number of lines that can be collected.
    Lines = 36,
    /// `d` = the line with index `a` among these; *none* past the end.
    LineAt = 37,
    /// `d` = *none*, a line.
    NoLine = 38,
    /// `d` = a number of line `a`; `imm`: 0 sectors, 1 valid, 2 age, 3 erases. Faults for *none*.
    LineFact = 39,
    /// `d` = element or value `a` of table `imm`; an absent key of a map has 0. Faults past the end.
    TableLoad = 40,
    /// `d` = whether set or map `imm` has key `a`.
    TableContains = 41,
    /// `d` = number of keys that set or map `imm` can still take.
    TableFree = 42,
    /// `d` = where logical block `a` is. Faults past the end.
    MapLoad = 43,
    /// `d` = the next address of stream `imm`.
    NextAddress = 44,
    /// `d` = the address with the name `a`. Faults above [`ADDRESS_NAME_MAX`].
    NamedAddress = 45,
    /// `d` = element `b` of field `imm` (layout in the lower 32 bits) of record `a` of the fetched
    /// bytes. Faults past their end.
    FieldLoad = 46,
    /// `d` = index of the last element that is at most `b` among the first `a` elements of a field
    /// (`imm` as for `FieldLoad`) of record `c`; *none* if there is none. `a` is limited to the length
    /// of the field. The elements must be in ascending order; in any other order the result is any
    /// index below the limit, or *none*.
    SearchLast = 47,
    /// Continues at instruction `imm` of the rule's part.
    Jump = 48,
    /// Continues at instruction `imm` if `a` is false.
    JumpIfNot = 49,
    /// Runs the instructions up to its `LoopEnd` with `d` = 0, 1, … below the smaller of `a` and the
    /// lower 32 bits of `imm`. The upper 32 bits are the instruction after `LoopEnd`; `c` is the number
    /// of loops around it.
    Loop = 50,
    /// Ends the body of the loop that begins at instruction `imm`; `c` as that of the loop.
    LoopEnd = 51,
    /// Ends a condition with the truth value `a`.
    Match = 52,
    /// Stores the lower bits of `b` as element or value `a` of table `imm`. Faults past the end, and
    /// for a new key in a full map.
    TableStore = 56,
    /// Adds key `a` to set `imm`. Faults if it is full.
    TableInsert = 57,
    /// Removes key `a` from set or map `imm`.
    TableRemove = 58,
    /// Maps the input's sectors from logical block `a` on to address `b`, when the input is placed.
    /// Faults past the end.
    MapStore = 59,
    /// Changes the input's operation to `imm`.
    SetOp = 60,
    /// Fetches the sector of logical block `a`.
    Fetch = 64,
    /// Returns record `a` of layout `imm` of the fetched bytes to the host.
    Emit = 65,
    /// Moves the valid data of line `a` to stream `imm`. Ends the rule if `a` is *none*.
    MoveValid = 66,
    /// Erases line `a`. Ends the rule if `a` is *none*.
    Erase = 67,
    /// Posts an event of kind `imm` with the values `a`, `b` and `c` to the host.
    Post = 68,
    /// As [`MoveValid`](RuleOp::MoveValid), with at most `b` write units in flight.
    MoveValidUpTo = 69,
    /// Ends the input: it is placed at, or read from, address `a`.
    Submit = 72,
    /// Ends the input with status `imm` and value `a`.
    Complete = 73,
    /// Goes on with the next rule.
    Continue = 74,
    /// Matches the changed input from the first rule on.
    Again = 75,
    /// Ends a rule that no command triggered.
    End = 76,
}

/// The type of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RegisterType {
    Int = 0,
    Bool = 1,
    Address = 2,
    Line = 3,
}

impl RuleOp {
    /// Returns the type of the result.
    pub(crate) const fn result(self) -> Option<RegisterType> {
        use RuleOp::*;
        match self {
            Const | MoveInt | Add | Sub | Mul | Div | Rem | And | Or | Xor | Shl | Shr | Min
            | Max | FreeLines | WearMin | WearMax | Lines | LineFact | TableLoad | TableFree
            | FieldLoad | SearchLast | Loop => Some(RegisterType::Int),
            ConstBool | MoveBool | Eq | Ne | Lt | Le | LtSigned | Not | IsNoneInt | IsNoneLine
            | Idle | TableContains => Some(RegisterType::Bool),
            MoveAddress | MapLoad | NextAddress | NamedAddress => Some(RegisterType::Address),
            MoveLine | LineAt | NoLine => Some(RegisterType::Line),
            Jump | JumpIfNot | LoopEnd | Match | TableStore | TableInsert | TableRemove
            | MapStore | SetOp | Fetch | Emit | MoveValid | MoveValidUpTo | Erase | Post
            | Submit | Complete | Continue | Again | End => None,
        }
    }

    /// Returns the types of the operands `a`, `b` and `c`.
    pub(crate) const fn operands(self) -> [Option<RegisterType>; 3] {
        use RegisterType::{Address, Bool, Int, Line};
        use RuleOp::*;
        match self {
            Const | ConstBool | Idle | FreeLines | WearMin | WearMax | Lines | NoLine
            | TableFree | NextAddress | Jump | LoopEnd | SetOp | Continue | Again | End => {
                [None, None, None]
            }
            MoveInt | IsNoneInt | LineAt | TableLoad | TableContains | MapLoad | NamedAddress
            | Loop | TableInsert | TableRemove | Fetch | Emit | Complete => [Some(Int), None, None],
            MoveBool | Not | JumpIfNot | Match => [Some(Bool), None, None],
            MoveAddress | Submit => [Some(Address), None, None],
            MoveLine | IsNoneLine | LineFact | MoveValid | Erase => [Some(Line), None, None],
            Add | Sub | Mul | Div | Rem | And | Or | Xor | Shl | Shr | Min | Max | Eq | Ne | Lt
            | Le | LtSigned | FieldLoad | TableStore => [Some(Int), Some(Int), None],
            MapStore => [Some(Int), Some(Address), None],
            MoveValidUpTo => [Some(Line), Some(Int), None],
            SearchLast | Post => [Some(Int), Some(Int), Some(Int)],
        }
    }

    /// Returns whether it changes state, acts or ends an action: conditions must not have it.
    pub(crate) const fn is_effect(self) -> bool {
        self as u8 >= RuleOp::TableStore as u8
    }

    /// Returns whether no instruction follows it.
    pub(crate) const fn is_terminal(self) -> bool {
        use RuleOp::*;
        matches!(self, Match | Submit | Complete | Continue | Again | End)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_format() {
        for op in RuleOp::ALL {
            assert_eq!(RuleOp::from_code(*op as u8), Some(*op));
        }
        let known = (0..=255).filter(|code| RuleOp::from_code(*code).is_some()).count();
        assert_eq!((known, RuleOp::ALL.len()), (63, 63));
    }

    #[test]
    fn an_instruction_has_16_bytes() {
        assert_eq!(size_of::<Instruction>(), 16);
    }
}
