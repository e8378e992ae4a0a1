//! [`RuleCommand`]: a command for the rules of a drive, with a vendor-specific opcode
//! (`docs/format/rule-program.md`). The drive gives it to its rules as an input.
//!
//! Invariant: a command that returns no data has no buffer.

use zerocopy::little_endian::U32;

use crate::opcode::io;
use crate::{MAX_BLOCKS, Sqe, Status};

/// The operation of a command for rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RuleCommandKind {
    /// A scan of a range. Returns data.
    Scan,
    /// A lookup of a key. Returns data.
    Get,
    /// An acknowledgment.
    Ack,
    /// An operation that programs define. Returns data.
    User0,
    /// An operation that programs define. Returns data.
    User1,
    /// An operation that programs define.
    User2,
    /// An operation that programs define.
    User3,
}

impl RuleCommandKind {
    /// All operations with their opcodes. Bits 1:0 of an opcode have the direction of the data
    /// [NVMe1.4 fig. 106].
    pub const ALL: [(RuleCommandKind, u8); 7] = [
        (RuleCommandKind::Scan, io::RULE_SCAN),
        (RuleCommandKind::Get, io::RULE_GET),
        (RuleCommandKind::Ack, io::RULE_ACK),
        (RuleCommandKind::User0, io::RULE_USER0),
        (RuleCommandKind::User1, io::RULE_USER1),
        (RuleCommandKind::User2, io::RULE_USER2),
        (RuleCommandKind::User3, io::RULE_USER3),
    ];

    /// Returns the operation with a name of the language of rules, such as `scan`.
    pub fn from_name(name: &str) -> Option<RuleCommandKind> {
        RuleCommandKind::ALL.iter().map(|(kind, _)| *kind).find(|kind| kind.name() == name)
    }

    /// Returns the name of the operation in the language of rules.
    pub fn name(self) -> &'static str {
        match self {
            RuleCommandKind::Scan => "scan",
            RuleCommandKind::Get => "get",
            RuleCommandKind::Ack => "ack",
            RuleCommandKind::User0 => "user0",
            RuleCommandKind::User1 => "user1",
            RuleCommandKind::User2 => "user2",
            RuleCommandKind::User3 => "user3",
        }
    }

    /// Returns the operation of an opcode.
    pub fn from_opcode(opcode: u8) -> Option<RuleCommandKind> {
        RuleCommandKind::ALL.iter().find(|(_, code)| *code == opcode).map(|(kind, _)| *kind)
    }

    /// Returns the opcode.
    pub fn opcode(self) -> u8 {
        RuleCommandKind::ALL.iter().find(|(kind, _)| *kind == self).map_or(0, |(_, code)| *code)
    }

    /// Whether the drive returns data to a buffer of the host.
    pub fn returns_data(self) -> bool {
        self.opcode() & 3 == 2
    }
}

/// A command for the rules of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleCommand {
    /// The operation.
    pub kind: RuleCommandKind,
    /// First logical block, `header.lba`.
    pub slba: u64,
    /// Number of logical blocks, `header.sectors`, 1 to [`MAX_BLOCKS`].
    pub nlb: u32,
    /// First argument, `header.arg0`.
    pub arg0: u64,
    /// Second argument, `header.arg1`.
    pub arg1: u64,
    /// Bytes of the host's buffer, `header.buffer`, at most [`RULE_BUFFER_BYTES_MAX`]; 0 for no buffer.
    pub buffer_bytes: u32,
}

/// Bytes of the host's buffer of a command for rules at most.
pub const RULE_BUFFER_BYTES_MAX: u32 = 1 << 24;

/// Reserved bits of CDW12.
const RESERVED: u32 = 0xffff << 16;

impl RuleCommand {
    /// Creates a command for a range of blocks, without arguments and without a buffer.
    pub const fn new(kind: RuleCommandKind, slba: u64, nlb: u32) -> RuleCommand {
        RuleCommand { kind, slba, nlb, arg0: 0, arg1: 0, buffer_bytes: 0 }
    }

    /// Parses an entry with an opcode of [`RuleCommandKind`].
    ///
    /// # Errors
    /// [`Status::INVALID_OPCODE`]; [`Status::INVALID_FIELD`] for reserved bits, for a buffer that is too
    /// large, and for a buffer of a command that returns no data.
    pub(super) fn parse(sqe: &Sqe) -> Result<RuleCommand, Status> {
        let kind = RuleCommandKind::from_opcode(sqe.opcode).ok_or(Status::INVALID_OPCODE)?;
        let (cdw12, buffer_bytes) = (sqe.cdw12.get(), sqe.cdw13.get());
        let buffer_max = if kind.returns_data() { RULE_BUFFER_BYTES_MAX } else { 0 };
        if cdw12 & RESERVED != 0 || buffer_bytes > buffer_max {
            return Err(Status::INVALID_FIELD);
        }
        Ok(RuleCommand {
            kind,
            slba: sqe.slba(),
            nlb: (cdw12 & 0xffff) + 1,
            arg0: word(sqe.cdw14, sqe.cdw15),
            arg1: word(sqe.cdw2, sqe.cdw3),
            buffer_bytes,
        })
    }

    /// Returns the entry, without data pointer and command identifier. The number of blocks must be in
    /// its range, as for the constructors of [`Sqe`].
    pub fn to_sqe(self, nsid: u32) -> Sqe {
        debug_assert!((1..=MAX_BLOCKS).contains(&self.nlb), "{} blocks", self.nlb);
        let mut sqe = Sqe::new(self.kind.opcode(), nsid);
        sqe.set_slba(self.slba);
        sqe.cdw12 = (self.nlb.wrapping_sub(1) & 0xffff).into();
        sqe.cdw13 = self.buffer_bytes.into();
        (sqe.cdw14, sqe.cdw15) = words(self.arg0);
        (sqe.cdw2, sqe.cdw3) = words(self.arg1);
        sqe
    }
}

/// Returns the value of two dwords.
pub(super) fn word(low: U32, high: U32) -> u64 {
    u64::from(low.get()) | u64::from(high.get()) << 32
}

/// Returns the dwords of a value, the low one first.
pub(super) fn words(value: u64) -> (U32, U32) {
    ((value as u32).into(), ((value >> 32) as u32).into())
}

/// The result of a completed command for rules: dwords 0 and 1 of its completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleReply {
    /// The value of the rule. Of a command with a buffer, values above `u32::MAX` are `u32::MAX`.
    pub value: u64,
    /// Bytes that the drive wrote to the host's buffer, from its begin on.
    pub bytes: u32,
}

impl RuleReply {
    /// Encodes the result: of a command with a buffer the value is in dword 0 and the bytes are in dword
    /// 1, of one without a buffer the value is in both.
    pub fn to_result(self, has_buffer: bool) -> u64 {
        match has_buffer {
            true => self.value.min(u32::MAX.into()) | u64::from(self.bytes) << 32,
            false => self.value,
        }
    }

    /// Decodes the result of a command with or without a buffer.
    pub fn from_result(result: u64, has_buffer: bool) -> RuleReply {
        match has_buffer {
            true => RuleReply { value: result & 0xffff_ffff, bytes: (result >> 32) as u32 },
            false => RuleReply { value: result, bytes: 0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::IoCommand;

    #[test]
    fn fields_are_where_the_format_puts_them() {
        let command = RuleCommand {
            kind: RuleCommandKind::Get,
            slba: 0x1122_3344_5566_7788,
            nlb: MAX_BLOCKS,
            arg0: 0xa0a1_a2a3_a4a5_a6a7,
            arg1: 0xb0b1_b2b3_b4b5_b6b7,
            buffer_bytes: RULE_BUFFER_BYTES_MAX,
        };
        let sqe = command.to_sqe(1);
        assert_eq!(IoCommand::parse(&sqe), Ok(IoCommand::Rule(command)));
        let words =
            [sqe.cdw2, sqe.cdw3, sqe.cdw10, sqe.cdw11, sqe.cdw12, sqe.cdw13].map(|w| w.get());
        let expected =
            [0xb4b5_b6b7, 0xb0b1_b2b3, 0x5566_7788, 0x1122_3344, 0xffff, RULE_BUFFER_BYTES_MAX];
        assert_eq!(words, expected);
        assert_eq!((sqe.cdw14.get(), sqe.cdw15.get()), (0xa4a5_a6a7, 0xa0a1_a2a3));
        let with = |change: fn(&mut Sqe)| {
            let mut sqe = sqe;
            change(&mut sqe);
            IoCommand::parse(&sqe)
        };
        assert_eq!(with(|sqe| sqe.cdw12 = (1 << 16).into()), Err(Status::INVALID_FIELD));
        let large = |sqe: &mut Sqe| sqe.cdw13 = (RULE_BUFFER_BYTES_MAX + 1).into();
        assert_eq!(with(large), Err(Status::INVALID_FIELD));
        assert_eq!(with(|sqe| sqe.opcode = io::RULE_ACK), Err(Status::INVALID_FIELD));
        for (kind, opcode) in RuleCommandKind::ALL {
            assert!(opcode >= 0xc0 && matches!(opcode & 3, 0 | 2), "{opcode:#x}");
            assert_eq!(kind.opcode(), opcode);
            let returns = matches!(
                kind,
                RuleCommandKind::Ack | RuleCommandKind::User2 | RuleCommandKind::User3
            );
            assert_eq!(kind.returns_data(), !returns);
        }
    }

    #[test]
    fn replies_have_the_value_and_the_bytes() {
        let reply = RuleReply { value: 7, bytes: 4096 };
        assert_eq!(RuleReply::from_result(reply.to_result(true), true), reply);
        let large = RuleReply { value: u64::MAX - 1, bytes: 0 };
        assert_eq!(RuleReply::from_result(large.to_result(false), false), large);
        let limited = RuleReply { value: u32::MAX.into(), bytes: 0 };
        assert_eq!(RuleReply::from_result(large.to_result(true), true), limited);
    }
}
