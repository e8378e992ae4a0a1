//! The encoded program (`docs/format/rule-program.md`).
//!
//! Decoding checks the form only: magic number, version, checksum, limits, codes and names.
//! [`verify`](crate::verify()) checks the meaning.

use collections::{HeaderError, PutBytes, Reader, Seal, SealedHeader};

use crate::ids::AppId;
use crate::instruction::{Instruction, RuleOp};
use crate::program::{
    AppDeclaration, CodeRange, IntWidth, OpMask, ProgramLimits, RecordField, RecordLayout,
    RuleDeclaration, RuleLocation, RuleProgram, RuleTrigger, TableDeclaration, TableKind,
};

/// The version of the format.
pub const VERSION: u32 = 1;
/// Bytes of the header.
const HEADER_BYTES: usize = 48;
/// The flag of the header of a program whose applications have a field for their quota.
const HAS_QUOTAS: u32 = 1;

const HEADER: SealedHeader = SealedHeader {
    magic: *b"SLUICRUL",
    version: VERSION,
    version_bytes: 4,
    seal: Seal::of_all_bytes(12),
};

/// Bytes that are not an encoded program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramDecodeError {
    /// The bytes do not begin with the magic number.
    #[error("not a rule program: the magic number is missing")]
    Magic,
    /// Another version.
    #[error("rule program of version {0}; this drive has version {VERSION}: encode it again")]
    Version(u32),
    /// The bytes end early.
    #[error("the rule program is cut short: upload all of it")]
    Truncated,
    /// The checksum does not match.
    #[error(
        "the rule program has checksum {found:#010x}, its bytes have {computed:#010x}: upload it again"
    )]
    Checksum {
        /// The stored checksum.
        found: u32,
        /// The checksum of the bytes.
        computed: u32,
    },
    /// The length in the header is not that of the bytes.
    #[error("the rule program says that it has {said} bytes, and has {found}")]
    Length {
        /// Bytes by the header.
        said: u64,
        /// Bytes.
        found: u64,
    },
    /// More of something than any program may have.
    #[error("the rule program has {count} {part}, more than {limit}")]
    Limit {
        /// The part.
        part: &'static str,
        /// Its number.
        count: u64,
        /// The limit.
        limit: u64,
    },
    /// A name has no characters, too many, or others than letters, digits and `_`.
    #[error("a name of the rule program is not an identifier")]
    Name,
    /// A code or a reserved byte has an unknown value.
    #[error("the rule program has an unknown code in {0}")]
    Code(&'static str),
}

type Decoded<T> = Result<T, ProgramDecodeError>;

fn count(part: &'static str, count: u32, limit: usize) -> Decoded<usize> {
    let (count, limit) = (u64::from(count), limit as u64);
    if count > limit {
        return Err(ProgramDecodeError::Limit { part, count, limit });
    }
    Ok(count as usize)
}

fn whole<T>(field: Option<T>) -> Decoded<T> {
    field.ok_or(ProgramDecodeError::Truncated)
}

fn name(reader: &mut Reader<'_>) -> Decoded<String> {
    let len = whole(reader.u8())?;
    let bytes = whole(reader.bytes(len.into()))?;
    let is_identifier = !bytes.is_empty()
        && bytes.len() <= ProgramLimits::MAX.name_bytes
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    if !is_identifier {
        return Err(ProgramDecodeError::Name);
    }
    Ok(String::from_utf8_lossy(bytes).into_owned())
}

fn put_name(bytes: &mut Vec<u8>, name: &str) {
    let len = name.len().min(ProgramLimits::MAX.name_bytes);
    bytes.put_u8(len as u8).put(&name.as_bytes()[..len]);
}

impl RuleProgram {
    /// Decodes a program.
    ///
    /// # Errors
    /// [`ProgramDecodeError`] if the bytes do not have the form of a program.
    pub fn decode(bytes: &[u8]) -> Result<RuleProgram, ProgramDecodeError> {
        HEADER.check_seal_first(bytes).map_err(|error| match error {
            HeaderError::Magic => ProgramDecodeError::Magic,
            HeaderError::Truncated => ProgramDecodeError::Truncated,
            HeaderError::Version(version) => ProgramDecodeError::Version(version),
            HeaderError::Seal(seal) => {
                ProgramDecodeError::Checksum { found: seal.found, computed: seal.computed }
            }
        })?;
        let mut r = Reader::new(bytes);
        whole(r.bytes(16))?;
        let (said, found) = (whole(r.u64())?, bytes.len() as u64);
        if said != found {
            return Err(ProgramDecodeError::Length { said, found });
        }
        let max = ProgramLimits::MAX;
        let apps = count("applications", whole(r.u32())?, max.apps)?;
        let layouts = count("record layouts", whole(r.u32())?, max.layouts)?;
        let tables = count("tables", whole(r.u32())?, max.tables)?;
        let rules = count("rules", whole(r.u32())?, max.rules)?;
        let instructions = count("instructions", whole(r.u32())?, max.instructions)?;
        let flags = whole(r.u32())?;
        let has_quotas = flags == HAS_QUOTAS;
        if flags != 0 && !has_quotas {
            return Err(ProgramDecodeError::Code("the header"));
        }
        let r = &mut r;
        let program = RuleProgram {
            apps: (0..apps).map(|_| app(r, has_quotas)).collect::<Decoded<_>>()?,
            layouts: (0..layouts).map(|_| layout(r)).collect::<Decoded<_>>()?,
            tables: (0..tables).map(|_| table(r)).collect::<Decoded<_>>()?,
            rules: (0..rules).map(|_| rule(r)).collect::<Decoded<_>>()?,
            code: (0..instructions).map(|_| instruction(r)).collect::<Decoded<_>>()?,
        };
        let rest = r.rest().len() as u64;
        if rest != 0 {
            return Err(ProgramDecodeError::Length { said: said - rest, found });
        }
        // A program has one encoded form.
        if has_quotas && !program.has_thin_apps() {
            return Err(ProgramDecodeError::Code("the header"));
        }
        Ok(program)
    }

    /// Encodes the program. Names are cut to the limit.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES];
        let has_quotas = self.has_thin_apps();
        for app in &self.apps {
            put_name(&mut bytes, &app.name);
            bytes.put_u32(app.first_unit).put_u32(app.last_unit).put_u32(app.spare_ppm);
            bytes.put_u64(app.sectors);
            if has_quotas {
                bytes.put_u32(app.quota_ppm);
            }
        }
        for layout in &self.layouts {
            put_name(&mut bytes, &layout.name);
            bytes.put_u32(layout.bytes).put_u32(layout.fields.len() as u32);
            for field in &layout.fields {
                put_name(&mut bytes, &field.name);
                bytes.put_u32(field.offset).put_u8(field.width as u8).put_u32(field.count);
            }
        }
        for table in &self.tables {
            put_name(&mut bytes, &table.name);
            let (kind, width, value) = match table.kind {
                TableKind::Address => (0, IntWidth::U64, IntWidth::U64),
                TableKind::Array(width) => (1, width, width),
                TableKind::Set(width) => (2, width, width),
                TableKind::Map { key, value } => (3, key, value),
            };
            bytes.put_u8(table.app.get()).put_u8(kind).put_u8(width as u8).put_u8(value as u8);
            bytes.put_u64(table.capacity).put_flag(table.is_durable);
        }
        for rule in &self.rules {
            put_name(&mut bytes, &rule.name);
            let (trigger, period_ns) = match rule.trigger {
                RuleTrigger::Command => (0, 0),
                RuleTrigger::Background => (1, 0),
                RuleTrigger::Every { period_ns } => (2, period_ns),
                RuleTrigger::Moved => (3, 0),
            };
            bytes.put_u8(rule.app.get()).put_u8(trigger).put_u64(period_ns).put_u16(rule.ops.0);
            bytes.put_u32(rule.priority).put_u8(rule.hops);
            bytes.put_u32(rule.location.line).put_u32(rule.location.column);
            for range in [rule.condition, rule.action] {
                bytes.put_u32(range.start).put_u32(range.len);
            }
        }
        for i in &self.code {
            bytes.put(&[i.op as u8, i.d, i.a, i.b, i.c, 0, 0, 0]).put_u64(i.imm);
        }
        let mut header = Vec::with_capacity(HEADER_BYTES - 16);
        header.put_u64(bytes.len() as u64);
        for count in [
            self.apps.len(),
            self.layouts.len(),
            self.tables.len(),
            self.rules.len(),
            self.code.len(),
        ] {
            header.put_u32(count as u32);
        }
        header.put_u32(if has_quotas { HAS_QUOTAS } else { 0 });
        bytes[16..16 + header.len()].copy_from_slice(&header);
        HEADER.begin(&mut bytes);
        HEADER.seal.store(&mut bytes);
        bytes
    }
}

fn app(r: &mut Reader<'_>, has_quota: bool) -> Decoded<AppDeclaration> {
    let mut app = AppDeclaration {
        name: name(r)?,
        first_unit: whole(r.u32())?,
        last_unit: whole(r.u32())?,
        spare_ppm: whole(r.u32())?,
        quota_ppm: 0,
        sectors: whole(r.u64())?,
    };
    if has_quota {
        app.quota_ppm = whole(r.u32())?;
    }
    Ok(app)
}

fn width(r: &mut Reader<'_>) -> Decoded<IntWidth> {
    IntWidth::from_code(whole(r.u8())?).ok_or(ProgramDecodeError::Code("a width"))
}

fn layout(r: &mut Reader<'_>) -> Decoded<RecordLayout> {
    let (name_of_layout, bytes) = (name(r)?, whole(r.u32())?);
    let fields = count("fields of a record", whole(r.u32())?, ProgramLimits::MAX.fields)?;
    let mut field = || -> Decoded<RecordField> {
        Ok(RecordField {
            name: name(r)?,
            offset: whole(r.u32())?,
            width: width(r)?,
            count: whole(r.u32())?,
        })
    };
    let fields = (0..fields).map(|_| field()).collect::<Decoded<_>>()?;
    Ok(RecordLayout { name: name_of_layout, bytes, fields })
}

fn table(r: &mut Reader<'_>) -> Decoded<TableDeclaration> {
    let (name, app) = (name(r)?, AppId::new(whole(r.u8())?));
    let (kind, first, second) = (whole(r.u8())?, width(r)?, width(r)?);
    let kind = match (kind, first == second) {
        (0, true) if first == IntWidth::U64 => TableKind::Address,
        (1, true) => TableKind::Array(first),
        (2, true) => TableKind::Set(first),
        (3, _) => TableKind::Map { key: first, value: second },
        _ => return Err(ProgramDecodeError::Code("the kind of a table")),
    };
    let (capacity, durable) = (whole(r.u64())?, whole(r.u8())?);
    if durable > 1 {
        return Err(ProgramDecodeError::Code("the kind of a table"));
    }
    Ok(TableDeclaration { name, app, kind, capacity, is_durable: durable == 1 })
}

fn rule(r: &mut Reader<'_>) -> Decoded<RuleDeclaration> {
    let (name, app) = (name(r)?, AppId::new(whole(r.u8())?));
    let (trigger, period_ns) = (whole(r.u8())?, whole(r.u64())?);
    let trigger = match (trigger, period_ns) {
        (0, 0) => RuleTrigger::Command,
        (1, 0) => RuleTrigger::Background,
        (2, period_ns) => RuleTrigger::Every { period_ns },
        (3, 0) => RuleTrigger::Moved,
        _ => return Err(ProgramDecodeError::Code("the trigger of a rule")),
    };
    let range = |r: &mut Reader<'_>| Ok(CodeRange { start: whole(r.u32())?, len: whole(r.u32())? });
    Ok(RuleDeclaration {
        name,
        app,
        trigger,
        ops: OpMask(whole(r.u16())?),
        priority: whole(r.u32())?,
        hops: whole(r.u8())?,
        location: RuleLocation { line: whole(r.u32())?, column: whole(r.u32())? },
        condition: range(r)?,
        action: range(r)?,
    })
}

fn instruction(r: &mut Reader<'_>) -> Decoded<Instruction> {
    let [code, d, a, b, c, x, y, z] = whole(r.array())?;
    let op = RuleOp::from_code(code).filter(|_| [x, y, z] == [0; 3]);
    let op = op.ok_or(ProgramDecodeError::Code("an instruction"))?;
    Ok(Instruction { op, d, a, b, c, cost: 0, imm: whole(r.u64())? })
}
