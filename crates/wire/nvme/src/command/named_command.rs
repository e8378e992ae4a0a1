//! [`NamedCommand`]: a command on a sector that has a name instead of a logical block, with a
//! vendor-specific opcode (`docs/format/rule-program.md`).

use super::rule_command::{word, words};
use crate::opcode::io;
use crate::{Sqe, Status};

/// The operation of a command on a sector with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NamedOp {
    /// Writes a sector. The completion has its name in dwords 0 and 1.
    Write,
    /// Reads a sector.
    Read,
    /// Frees a sector.
    Free,
}

impl NamedOp {
    /// All operations with their opcodes. Bits 1:0 of an opcode have the direction of the data
    /// [NVMe1.4 fig. 106].
    const ALL: [(NamedOp, u8); 3] = [
        (NamedOp::Write, io::NAMED_WRITE),
        (NamedOp::Read, io::NAMED_READ),
        (NamedOp::Free, io::NAMED_FREE),
    ];

    /// Returns the operation of an opcode.
    pub fn from_opcode(opcode: u8) -> Option<NamedOp> {
        NamedOp::ALL.iter().find(|(_, code)| *code == opcode).map(|(op, _)| *op)
    }

    /// Returns the opcode.
    pub fn opcode(self) -> u8 {
        NamedOp::ALL.iter().find(|(op, _)| *op == self).map_or(0, |(_, code)| *code)
    }

    /// Whether the command has the data of a sector.
    pub fn has_data(self) -> bool {
        self != NamedOp::Free
    }
}

/// A command on one sector with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedCommand {
    /// The operation.
    pub op: NamedOp,
    /// First argument, `header.arg0` of rules: the host's tag of a write, else the name.
    pub arg0: u64,
    /// Second argument, `header.arg1` of rules: the host's tag of a read.
    pub arg1: u64,
}

impl NamedCommand {
    /// Creates a write of a sector with this tag of the host.
    pub const fn write(tag: u64) -> NamedCommand {
        NamedCommand { op: NamedOp::Write, arg0: tag, arg1: 0 }
    }

    /// Creates a read of the sector with a name, which must have this tag.
    pub const fn read(name: u64, tag: u64) -> NamedCommand {
        NamedCommand { op: NamedOp::Read, arg0: name, arg1: tag }
    }

    /// Creates a command that frees the sector with a name.
    pub const fn free(name: u64) -> NamedCommand {
        NamedCommand { op: NamedOp::Free, arg0: name, arg1: 0 }
    }

    /// Parses an entry with an opcode of [`NamedOp`].
    ///
    /// # Errors
    /// [`Status::INVALID_OPCODE`]; [`Status::INVALID_FIELD`] for reserved dwords that are not 0.
    pub(super) fn parse(sqe: &Sqe) -> Result<NamedCommand, Status> {
        let op = NamedOp::from_opcode(sqe.opcode).ok_or(Status::INVALID_OPCODE)?;
        let reserved = [sqe.cdw10, sqe.cdw11, sqe.cdw12, sqe.cdw13];
        if reserved.iter().any(|dword| dword.get() != 0) {
            return Err(Status::INVALID_FIELD);
        }
        let (arg0, arg1) = (word(sqe.cdw14, sqe.cdw15), word(sqe.cdw2, sqe.cdw3));
        Ok(NamedCommand { op, arg0, arg1 })
    }

    /// Returns the entry, without data pointer and command identifier.
    pub fn to_sqe(self, nsid: u32) -> Sqe {
        let mut sqe = Sqe::new(self.op.opcode(), nsid);
        (sqe.cdw14, sqe.cdw15) = words(self.arg0);
        (sqe.cdw2, sqe.cdw3) = words(self.arg1);
        sqe
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::IoCommand;

    #[test]
    fn entries_and_commands_are_inverse() {
        for command in [
            NamedCommand::write(u64::MAX - 1),
            NamedCommand::read(1 << 40 | 7, 1 << 63),
            NamedCommand::free(9),
        ] {
            let mut sqe = command.to_sqe(1);
            assert_eq!(IoCommand::parse(&sqe), Ok(IoCommand::Named(command)));
            assert_eq!(sqe.opcode & 3, [1, 2, 0][command.op as usize], "direction of the data");
            sqe.cdw12 = 1.into();
            assert_eq!(IoCommand::parse(&sqe), Err(Status::INVALID_FIELD));
        }
    }
}
