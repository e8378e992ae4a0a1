//! Values between the engine and the drive: inputs, facts, actions and verdicts.

use std::ops::Range;

use crate::ids::{AppId, ContextId, RuleLine, TableId};
use crate::instruction::ADDRESS_NAME_MAX;
use crate::program::InputOp;

/// The header of a command, or of a moved sector.
///
/// The application is not part of it: it is a property of the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleInput {
    /// The operation.
    pub op: InputOp,
    /// The first logical block.
    pub lba: u64,
    /// Number of sectors.
    pub sectors: u64,
    /// First argument; of a moved sector its old name.
    pub arg0: u64,
    /// Second argument; of a moved sector its new name.
    pub arg1: u64,
    /// The tag in the sector's out-of-band bytes.
    pub tag: u64,
    /// Bytes of the host's buffer for results.
    pub buffer_bytes: u64,
}

impl RuleInput {
    /// Creates a command for sectors, without arguments.
    pub const fn new(op: InputOp, lba: u64, sectors: u64) -> RuleInput {
        RuleInput { op, lba, sectors, arg0: 0, arg1: 0, tag: 0, buffer_bytes: 0 }
    }
}

/// Numbers of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineFacts {
    /// Sectors that the line has.
    pub sectors: u64,
    /// Sectors with valid data.
    pub valid: u64,
    /// Lines that were closed since this one.
    pub age: u64,
    /// Erase cycles.
    pub erases: u64,
}

/// Facts that the drive knows. `app` is always the application of the rule that asks, or
/// [`AppId::GLOBAL`] for global rules: then a fact is that of the whole drive.
pub trait DriveFacts {
    /// Returns whether no command of the application is outstanding.
    fn is_idle(&self, app: AppId) -> bool;
    /// Returns the number of free lines.
    fn free_lines(&self, app: AppId) -> u64;
    /// Returns the erase cycles of the least worn line.
    fn wear_min(&self, app: AppId) -> u64;
    /// Returns the erase cycles of the most worn line.
    fn wear_max(&self, app: AppId) -> u64;
    /// Returns the number of lines that can be collected.
    fn lines(&self, app: AppId) -> u64;
    /// Returns the line with an index below [`lines`](DriveFacts::lines).
    fn line_at(&self, app: AppId, index: u64) -> RuleLine;
    /// Returns the numbers of a line that [`line_at`](DriveFacts::line_at) returned.
    fn line_facts(&self, app: AppId, line: RuleLine) -> LineFacts;
}

/// A stream of an application: data that is placed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PlacementStream {
    /// Data that the host writes.
    Host = 0,
    /// Data that collection moves.
    Gc = 1,
    /// Data that is overwritten often.
    Hot = 2,
    /// Data that is overwritten seldom.
    Cold = 3,
}

impl PlacementStream {
    /// All streams with their names in the language.
    pub const ALL: [(PlacementStream, &str); 4] = [
        (PlacementStream::Host, "host"),
        (PlacementStream::Gc, "gc"),
        (PlacementStream::Hot, "hot"),
        (PlacementStream::Cold, "cold"),
    ];

    /// Returns the stream of a code, whose upper bits do not matter.
    #[inline]
    pub(crate) fn from_code(code: u64) -> PlacementStream {
        match code & 3 {
            0 => PlacementStream::Host,
            1 => PlacementStream::Gc,
            2 => PlacementStream::Hot,
            _ => PlacementStream::Cold,
        }
    }
}

/// The status of a completed input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RuleStatus {
    /// Success.
    Ok = 0,
    /// The key is not there.
    NotFound = 1,
    /// The input is invalid.
    Invalid = 2,
    /// The input is not permitted.
    Denied = 3,
    /// Retry later.
    Busy = 4,
    /// The data that the rule read is not what it expects.
    Corrupt = 5,
    /// A rule used an index past the end of a table, a field or the fetched bytes.
    IndexOutOfRange = 16,
    /// A set or a map has no space for the key.
    TableFull = 17,
    /// The rule may not match the input again.
    HopLimit = 18,
    /// The host's buffer is too small; the value is the number of bytes that were returned.
    OutputFull = 19,
    /// The address cannot be used for the operation, or is no address.
    BadAddress = 20,
}

impl RuleStatus {
    /// Statuses with a smaller code are those that rules can name.
    pub const USER_COUNT: u64 = 6;

    /// Statuses that rules can name, with their names in the language.
    pub const NAMED: [(RuleStatus, &str); RuleStatus::USER_COUNT as usize] = [
        (RuleStatus::Ok, "ok"),
        (RuleStatus::NotFound, "not_found"),
        (RuleStatus::Invalid, "invalid"),
        (RuleStatus::Denied, "denied"),
        (RuleStatus::Busy, "busy"),
        (RuleStatus::Corrupt, "corrupt"),
    ];

    pub(super) fn from_code(code: u64) -> RuleStatus {
        RuleStatus::NAMED.get(code as usize).map_or(RuleStatus::Invalid, |(status, _)| *status)
    }
}

/// Where data is that a rule decided to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleAddress {
    /// Where the drive's map has this logical block.
    Mapped {
        /// The logical block.
        lba: u64,
    },
    /// The sector with this physical name, which the host sent. The drive checks the application and
    /// the tag in its out-of-band bytes before it returns data.
    Named {
        /// The name.
        name: u64,
    },
}

/// An address in a register: its kind in the upper two bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PackedAddress(pub(super) u64);

impl PackedAddress {
    const NEXT: u64 = 1;
    const NAMED: u64 = 2;

    #[inline]
    pub(super) fn mapped(lba: u64) -> PackedAddress {
        PackedAddress(lba & ADDRESS_NAME_MAX)
    }

    #[inline]
    pub(super) fn next(stream: u64) -> PackedAddress {
        PackedAddress(PackedAddress::NEXT << 62 | stream)
    }

    #[inline]
    pub(super) fn named(name: u64) -> Option<PackedAddress> {
        (name <= ADDRESS_NAME_MAX).then_some(PackedAddress(PackedAddress::NAMED << 62 | name))
    }

    /// Returns the stream, if it is the next address of one.
    #[inline]
    pub(super) fn stream(self) -> Option<PlacementStream> {
        (self.0 >> 62 == PackedAddress::NEXT).then(|| PlacementStream::from_code(self.0))
    }

    /// Returns where it can be read.
    #[inline]
    pub(super) fn source(self) -> Option<RuleAddress> {
        let payload = self.0 & ADDRESS_NAME_MAX;
        match self.0 >> 62 {
            0 => Some(RuleAddress::Mapped { lba: payload }),
            PackedAddress::NAMED => Some(RuleAddress::Named { name: payload }),
            _ => None,
        }
    }
}

/// A change of a durable table. Changes are idempotent: [`RuleEngine::restore`] applies them in
/// order.
///
/// [`RuleEngine::restore`]: crate::RuleEngine::restore
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableChange {
    /// The table.
    pub table: TableId,
    /// Index or key.
    pub key: u64,
    /// The new element or value, or 0 for a key of a set; `None` for a removed key.
    pub value: Option<u64>,
}

/// An action of the drive for an input; the drive then resumes the rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleAction {
    /// Read a sector of the application, and resume with its bytes
    /// ([`RuleEngine::resume_with`](crate::RuleEngine::resume_with)).
    Fetch {
        /// The logical block.
        lba: u64,
    },
    /// Copy fetched bytes ([`RuleEngine::fetched`](crate::RuleEngine::fetched)) to the host's buffer.
    Emit {
        /// First byte in the host's buffer.
        offset: u64,
        /// The fetched bytes.
        bytes: Range<usize>,
    },
    /// Move the valid data of a line.
    MoveValid {
        /// The line.
        line: RuleLine,
        /// Its new stream.
        stream: PlacementStream,
        /// Write units that may be read or programmed at a time; 0 is one. `None` if the drive decides.
        units: Option<u64>,
    },
    /// Erase a line without valid data. The drive refuses other lines.
    Erase {
        /// The line.
        line: RuleLine,
    },
    /// Post an event to the host.
    Post {
        /// The event's kind.
        kind: u16,
        /// Its values.
        values: [u64; 3],
    },
    /// Record a change of a durable table.
    Journal(TableChange),
    /// Do other work: the rule has used its share of operations.
    Pause,
}

/// The end of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleVerdict {
    /// Place the written data.
    Place {
        /// The stream.
        stream: PlacementStream,
        /// The logical block from which on the sectors are mapped; `None` if they are not mapped.
        mapped: Option<u64>,
        /// The tag for their out-of-band bytes.
        tag: u64,
    },
    /// Read the data and complete the command with it; of a trim, free the sector with the name.
    Read {
        /// Where it is.
        address: RuleAddress,
        /// The tag that the out-of-band bytes of a named sector must have.
        tag: u64,
    },
    /// Complete the command.
    Complete {
        /// The status.
        status: RuleStatus,
        /// The value for the host.
        value: u64,
    },
    /// Execute a trim or a flush as without rules: no rule decided about it.
    PassThrough,
    /// No rule matched the command: it goes to the controller.
    Miss,
    /// The rules for an input that is no command are finished.
    Finished,
}

/// The next step of an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleStep {
    /// The drive executes the action and resumes the context.
    Do(ContextId, RuleAction),
    /// The input is finished, and its context is free.
    Done(RuleVerdict),
}
