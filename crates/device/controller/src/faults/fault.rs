//! [`Fault`]: a failure of a drive.

use media::{Operation, PuId};
use nvme::{SanitizeAction, SanitizeCommand};
use time::Nanos;

/// A failure of a drive, to be injected with
/// [`Controller::inject_fault`](crate::Controller::inject_fault).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// The drive loses power, powers up at once and recovers. Commands in flight end with
    /// [`Status::POWER_LOSS`](nvme::Status::POWER_LOSS).
    PowerCut {
        /// Media operations that still complete before the cut; 0 for a cut at once.
        after_ops: u64,
    },
    /// The die of a parallel unit fails, with all its chunks.
    DieFailure {
        /// Flat index of the parallel unit.
        pu: PuId,
    },
    /// A chunk goes offline.
    ChunkOffline {
        /// Flat index of the parallel unit.
        pu: PuId,
        /// Index in the parallel unit.
        chunk: u32,
    },
    /// Operations of a kind fail.
    OperationFailure {
        /// The kind.
        operation: Operation,
        /// The operations.
        scope: FaultScope,
    },
    /// Reads of a sector fail until its chunk is erased.
    Uncorrectable {
        /// The sector.
        sector: FaultSector,
    },
    /// Array operations of a parallel unit take longer.
    SlowDie {
        /// Flat index of the parallel unit.
        pu: PuId,
        /// Factor of the times, above 1.
        factor: f64,
        /// Length; `None` for all the time from now on.
        duration: Option<Nanos>,
    },
    /// The drive fetches no commands of an I/O queue.
    StalledQueue {
        /// Identifier of the submission queue.
        queue: u16,
        /// Length.
        duration: Nanos,
    },
    /// The next completion of an I/O queue is not posted.
    LostCompletion {
        /// Identifier of the submission queue.
        queue: u16,
    },
    /// An administrator formats the drive ([NVMe1.4 §5.23]). Commands end with
    /// [`Status::FORMAT_IN_PROGRESS`](nvme::Status::FORMAT_IN_PROGRESS) meanwhile, and all sectors
    /// read as zeros afterwards.
    Format {
        /// Whether the flash is erased (user data erase).
        erase: bool,
    },
    /// An administrator sanitizes the drive ([NVMe1.4 §5.24]). Commands end with
    /// [`Status::SANITIZE_IN_PROGRESS`](nvme::Status::SANITIZE_IN_PROGRESS) meanwhile, also after a
    /// power cut, and all sectors read as zeros afterwards.
    Sanitize {
        /// How the data is removed.
        action: SanitizeMethod,
    },
    /// Stored data or protection information of a sector changes. Without protection information, reads
    /// return the wrong data and succeed.
    CorruptedData {
        /// The sector.
        sector: FaultSector,
        /// The bytes that change.
        part: CorruptedPart,
    },
    /// The controller fails: CSTS.CFS is set, and no command is executed or completed until a host
    /// resets the controller by its registers.
    ControllerFatal,
}

/// How an administrator has data removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SanitizeMethod {
    /// The flash is erased.
    BlockErase,
    /// The flash is overwritten with zeros, in one pass, and erased.
    Overwrite,
}

impl SanitizeMethod {
    /// Names of all methods, as in scenarios.
    pub const NAMES: [&'static str; 2] = ["block-erase", "overwrite"];

    /// Returns the name, as in scenarios.
    pub fn name(self) -> &'static str {
        SanitizeMethod::NAMES[self as usize]
    }

    /// Returns the method with a name.
    pub fn from_name(name: &str) -> Option<SanitizeMethod> {
        [SanitizeMethod::BlockErase, SanitizeMethod::Overwrite]
            .into_iter()
            .find(|method| method.name() == name)
    }

    /// Returns the command that an administrator would send.
    pub(crate) fn command(self) -> SanitizeCommand {
        let action = match self {
            SanitizeMethod::BlockErase => SanitizeAction::BlockErase,
            SanitizeMethod::Overwrite => SanitizeAction::Overwrite,
        };
        SanitizeCommand { allows_exit: true, ..SanitizeCommand::new(action) }
    }
}

/// The operations that fail.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FaultScope {
    /// The next one at an address: the read of a sector, the program of the write unit with this
    /// sector, or the erase of its chunk.
    Next(FaultSector),
    /// Operations at any address, at random.
    Rate {
        /// Probability of a failure, above 0 and at most 1.
        rate: f64,
        /// Length.
        duration: Nanos,
    },
}

/// The stored bytes of a sector that a fault changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CorruptedPart {
    /// The data.
    #[default]
    Data,
    /// The guard of each logical block.
    Guard,
    /// The reference tag of each logical block, as after a write to a wrong address.
    ReferenceTag,
}

/// The address of a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultSector {
    /// Logical address, of a drive with its own FTL.
    Lba {
        /// Namespace identifier.
        namespace: u32,
        /// Logical block of the namespace.
        lba: u64,
    },
    /// Location in the flash.
    Flash {
        /// Flat index of the parallel unit.
        pu: PuId,
        /// Index in the parallel unit.
        chunk: u32,
        /// Index in the chunk.
        sector: u32,
    },
}

impl FaultSector {
    /// Returns the address of a logical block of namespace 1.
    pub const fn lba(lba: u64) -> FaultSector {
        FaultSector::Lba { namespace: 1, lba }
    }
}

impl Fault {
    /// Names of all kinds.
    pub const KINDS: [&'static str; 14] = [
        "power-cut",
        "die-failure",
        "chunk-offline",
        "program-failure",
        "erase-failure",
        "read-failure",
        "uncorrectable",
        "slow-die",
        "stalled-queue",
        "lost-completion",
        "corrupted-data",
        "format",
        "sanitize",
        "controller-fatal",
    ];

    /// Returns the name of the kind, as in scenarios.
    pub fn kind(&self) -> &'static str {
        match self {
            Fault::PowerCut { .. } => "power-cut",
            Fault::DieFailure { .. } => "die-failure",
            Fault::ChunkOffline { .. } => "chunk-offline",
            Fault::OperationFailure { operation: Operation::Program, .. } => "program-failure",
            Fault::OperationFailure { operation: Operation::Erase, .. } => "erase-failure",
            Fault::OperationFailure { operation: Operation::Read, .. } => "read-failure",
            Fault::Uncorrectable { .. } => "uncorrectable",
            Fault::SlowDie { .. } => "slow-die",
            Fault::StalledQueue { .. } => "stalled-queue",
            Fault::LostCompletion { .. } => "lost-completion",
            Fault::CorruptedData { .. } => "corrupted-data",
            Fault::Format { .. } => "format",
            Fault::Sanitize { .. } => "sanitize",
            Fault::ControllerFatal => "controller-fatal",
        }
    }

    /// Returns the time for which the fault lasts, if it ends by itself.
    pub fn duration(&self) -> Option<Nanos> {
        match *self {
            Fault::OperationFailure { scope: FaultScope::Rate { duration, .. }, .. }
            | Fault::StalledQueue { duration, .. } => Some(duration),
            Fault::SlowDie { duration, .. } => duration,
            _ => None,
        }
    }
}
