//! [`FaultError`]: why a drive cannot have a fault, and the checks that need no drive.

use media::{DataStore, MediaConfig, NandLayout, Operation, PuId};

use crate::faults::{CorruptedPart, Fault, FaultScope, FaultSector};
use crate::{DriveConfig, NAMESPACES_MAX, PersonalityKind};

/// Maximum factor of a slow die.
const FACTOR_MAX: f64 = 1e6;

/// The reason for which a drive cannot have a fault. Nothing has changed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FaultError {
    /// A number past the end.
    #[error("`{key}` {value} does not exist: there are {limit}, from 0 on")]
    OutOfRange {
        /// The key.
        key: &'static str,
        /// The number.
        value: u64,
        /// The number of objects.
        limit: u64,
    },
    /// A value that is not allowed.
    #[error("`{key}` is {value}, but it is {allowed}")]
    Value {
        /// The key.
        key: &'static str,
        /// The value.
        value: f64,
        /// The allowed values.
        allowed: &'static str,
    },
    /// A fault of flash, on a drive without flash.
    #[error("the drive has no flash for {kind}")]
    NoFlash {
        /// The kind of fault.
        kind: &'static str,
    },
    /// A logical address, on a drive without its own FTL.
    #[error("the drive has no FTL of its own: name the sector by `pu`, `chunk` and `sector`")]
    NoFtl,
    /// A logical address for an operation that has none.
    #[error("{kind} has no `lba`: name the location by `pu`, `chunk` and `sector`")]
    NoLba {
        /// The kind of fault.
        kind: &'static str,
    },
    /// A logical address in a namespace that does not exist.
    #[error("the drive has no namespace {nsid}")]
    NoNamespace {
        /// Namespace identifier.
        nsid: u32,
    },
    /// A format or Sanitize of a drive whose host manages the flash.
    #[error("the drive has no FTL of its own to {kind}: its host resets its chunks")]
    NoFormat {
        /// The kind of fault.
        kind: &'static str,
    },
    /// A format or Sanitize that the drive refuses at this time.
    #[error("{kind}: the drive refuses it with \"{status}\"")]
    Refused {
        /// The kind of fault.
        kind: &'static str,
        /// The status that a command would end with.
        status: nvme::Status,
    },
    /// Corrupted data of a medium that stores none.
    #[error("the drive stores no data that could be wrong: set data = \"memory\"")]
    NoData,
    /// Corrupted protection information of a drive without it.
    #[error("the drive has no protection information: set protection = \"type1\"")]
    NoProtection,
    /// A power cut after which the map cannot be recovered.
    #[error("the drive cannot recover after a power cut without data: set data = \"memory\"")]
    NoRecovery,
    /// A power cut of a drive with a controller memory buffer.
    #[error(
        "the queues of its hosts in the controller memory buffer would not survive a power cut"
    )]
    MemoryBuffer,
    /// A die or chunk that is gone already.
    #[error("{what} is offline already")]
    AlreadyOffline {
        /// The die or chunk.
        what: String,
    },
    /// A sector whose data is not on the media.
    #[error("the sector {why}: there is nothing on the media that could fail")]
    NotOnMedia {
        /// The reason.
        why: &'static str,
    },
    /// A fault like one that has not ended or occurred.
    #[error("{kind}: one like it is in force already")]
    InForce {
        /// The kind of fault.
        kind: &'static str,
    },
    /// No host has the queue.
    #[error("no host has an I/O queue {queue}")]
    NoQueue {
        /// Identifier of the queue.
        queue: u16,
    },
    /// A fault that only a host with registers can end, on a drive without registers.
    #[error(
        "no host could reset the controller: set controller.registers = true, so that hosts \
         initialize the drive by its registers"
    )]
    NoRegisters,
    /// The drive has too many faults.
    #[error("a drive has at most {limit} faults")]
    TooMany {
        /// The maximum.
        limit: usize,
    },
}

impl DriveConfig {
    /// Checks what can be known of a fault before the drive is powered on.
    ///
    /// # Errors
    /// The reason for which the drive cannot have the fault.
    pub fn check_fault(&self, fault: &Fault) -> Result<(), FaultError> {
        let kind = fault.kind();
        match *fault {
            Fault::PowerCut { after_ops } => self.check_power_cut(after_ops, kind),
            Fault::DieFailure { pu } => check_pu(&self.layout(kind)?, pu),
            Fault::ChunkOffline { pu, chunk } => {
                self.check_sector(FaultSector::Flash { pu, chunk, sector: 0 }, kind)
            }
            Fault::OperationFailure { operation, scope: FaultScope::Next(sector) } => {
                match (operation, sector) {
                    (Operation::Program | Operation::Erase, FaultSector::Lba { .. }) => {
                        self.layout(kind)?;
                        Err(FaultError::NoLba { kind })
                    }
                    _ => self.check_sector(sector, kind),
                }
            }
            Fault::OperationFailure { scope: FaultScope::Rate { rate, duration }, .. } => {
                self.layout(kind)?;
                check_duration(duration)?;
                match rate > 0.0 && rate <= 1.0 {
                    true => Ok(()),
                    false => Err(FaultError::Value {
                        key: "rate",
                        value: rate,
                        allowed: "a share above 0 and at most 1",
                    }),
                }
            }
            Fault::Uncorrectable { sector } => self.check_sector(sector, kind),
            Fault::CorruptedData { sector, part } => {
                self.check_sector(sector, kind)?;
                if part != CorruptedPart::Data && self.protection.is_none() {
                    return Err(FaultError::NoProtection);
                }
                match &self.media {
                    MediaConfig::Nand(nand) if nand.data == DataStore::None => {
                        Err(FaultError::NoData)
                    }
                    _ => Ok(()),
                }
            }
            Fault::SlowDie { pu, factor, duration } => {
                check_pu(&self.layout(kind)?, pu)?;
                duration.map_or(Ok(()), check_duration)?;
                match factor > 1.0 && factor <= FACTOR_MAX {
                    true => Ok(()),
                    false => Err(FaultError::Value {
                        key: "factor",
                        value: factor,
                        allowed: "above 1 and at most 1e6",
                    }),
                }
            }
            Fault::StalledQueue { queue, duration } => {
                check_duration(duration)?;
                check_queue(queue)
            }
            Fault::LostCompletion { queue } => check_queue(queue),
            Fault::Format { .. } | Fault::Sanitize { .. } => {
                self.layout(kind)?;
                match self.personality {
                    PersonalityKind::OpenChannel => Err(FaultError::NoFormat { kind }),
                    _ => Ok(()),
                }
            }
            Fault::ControllerFatal => match self.controller.registers {
                Some(_) => Ok(()),
                None => Err(FaultError::NoRegisters),
            },
        }
    }

    fn check_power_cut(&self, after_ops: u64, kind: &'static str) -> Result<(), FaultError> {
        if self.controller.cmb.is_some() {
            return Err(FaultError::MemoryBuffer);
        }
        if after_ops > 0 {
            self.layout(kind)?;
        }
        match &self.media {
            MediaConfig::Nand(nand)
                if nand.data == DataStore::None
                    && self.personality != PersonalityKind::OpenChannel =>
            {
                Err(FaultError::NoRecovery)
            }
            _ => Ok(()),
        }
    }

    fn layout(&self, kind: &'static str) -> Result<NandLayout, FaultError> {
        match &self.media {
            MediaConfig::Nand(nand) => Ok(NandLayout::new(nand)),
            MediaConfig::Pcm(_) | MediaConfig::Null { .. } => Err(FaultError::NoFlash { kind }),
        }
    }

    fn check_sector(&self, sector: FaultSector, kind: &'static str) -> Result<(), FaultError> {
        let layout = self.layout(kind)?;
        match sector {
            FaultSector::Lba { .. } if self.personality == PersonalityKind::OpenChannel => {
                Err(FaultError::NoFtl)
            }
            // Hosts may create other namespaces than the configuration has.
            FaultSector::Lba { namespace, .. } => {
                match (1..=NAMESPACES_MAX as u32).contains(&namespace) {
                    true => Ok(()),
                    false => Err(FaultError::NoNamespace { nsid: namespace }),
                }
            }
            FaultSector::Flash { pu, chunk, sector } => {
                check_pu(&layout, pu)?;
                check_below("chunk", chunk, layout.chunks_per_pu())?;
                check_below("sector", sector, layout.sectors_per_chunk())
            }
        }
    }
}

fn check_pu(layout: &NandLayout, pu: PuId) -> Result<(), FaultError> {
    check_below("pu", pu.get(), layout.pu_count())
}

fn check_below(key: &'static str, value: u32, limit: u32) -> Result<(), FaultError> {
    match value < limit {
        true => Ok(()),
        false => Err(FaultError::OutOfRange { key, value: value.into(), limit: limit.into() }),
    }
}

fn check_queue(queue: u16) -> Result<(), FaultError> {
    match queue > 0 {
        true => Ok(()),
        false => Err(FaultError::NoQueue { queue }),
    }
}

fn check_duration(duration: time::Nanos) -> Result<(), FaultError> {
    match duration.0 > 0 {
        true => Ok(()),
        false => {
            Err(FaultError::Value { key: "duration", value: 0.0, allowed: "a time above zero" })
        }
    }
}
