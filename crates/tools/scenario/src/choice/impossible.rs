//! [`Impossible`]: the rules of what combines, each with its reason and what to change.

use block::BlockError;
use block::notify::CompletionMethod;
use controller::PersonalityKind;
use lnvm::TargetKind;

use crate::host::QueueModelKind;
use crate::{DriveKind, DriveSpec};

/// The name of the block layer in [`Impossible::NoLogicalBlocks`].
pub const BLOCK_LAYER: &str = "a block layer";

/// The name of a front end that submits block requests in [`Impossible::NoLogicalBlocks`].
pub const BLOCK_REQUESTS: &str = "block requests";

/// The name of a simulation in [`Impossible::RealDevice`].
pub const SIMULATION: &str = "`sluice sim`";

/// The reason why choices do not combine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Impossible {
    /// A target on a drive that does not expose its flash.
    #[error("{target} manages the flash itself, but this drive does not expose it")]
    FlashNotExposed {
        /// The target.
        target: String,
    },
    /// `rrpc` on a drive without a map of the host's addresses.
    #[error("rrpc recovers from the drive's own map, but this drive keeps none")]
    NoDeviceMap,
    /// A front end or a block layer on a drive that has chunks, and no target.
    #[error(
        "drive {drive} is open-channel and has no [target], so that there are no logical blocks for {user}"
    )]
    NoLogicalBlocks {
        /// Name of the drive.
        drive: String,
        /// The front end or the block layer.
        user: &'static str,
    },
    /// A front end or a block layer on a drive whose sectors have names.
    #[error(
        "the sectors of drive {drive} have names, so that there are no logical blocks for {user}"
    )]
    NamedSectors {
        /// Name of the drive.
        drive: String,
        /// The front end or the block layer.
        user: &'static str,
    },
    /// Block requests on a target that has no logical blocks.
    #[error("target {target} is a {kind}, which has no logical blocks")]
    NoBlocksOnTarget {
        /// Name of the target.
        target: String,
        /// Its kind.
        kind: TargetKind,
    },
    /// A second path or set over a device that has one owner.
    #[error("{device} belongs to {owner}: two owners would write what the other does not know")]
    SecondOwner {
        /// The device.
        device: String,
        /// The path or set that owns it.
        owner: String,
    },
    /// Queue pairs of a path on which something else of the host is between clients and drive.
    #[error(
        "path {path} has {between} on the host, and clients of a socket get queue pairs of the drive itself"
    )]
    NoQueuePairs {
        /// Name of the path.
        path: String,
        /// The set, target or block layer.
        between: String,
    },
    /// A key of the block layer without a block layer.
    #[error("`path.{key}` is about the block layer, and `raw` has none")]
    NoBlockLayer {
        /// The key.
        key: &'static str,
    },
    /// A policy that compares submitters which have staging queues of their own.
    #[error(transparent)]
    SeparateStaging(#[from] SeparateStaging),
    /// A context besides the submitters that fetches completions, where each hardware queue has one
    /// owner.
    #[error(
        "`{completion}` has an interrupt context beside the submitters, but a hardware queue of `{model}` \
         belongs to those who submit to it, without a lock"
    )]
    NoSecondContext {
        /// The method of completion.
        completion: &'static str,
        /// The queue model.
        model: &'static str,
    },
    /// A method of completion on a device without hardware queues of block requests.
    #[error("{device} works by vector commands, and who submits them fetches their completions")]
    NoCompletionMethod {
        /// The drive or target.
        device: String,
    },
    /// A change at an instant of virtual time, of a drive in real time.
    #[error(
        "line {line} is for an instant of virtual time, and a drive in real time has none: \
         its clients start when they like"
    )]
    VirtualTime {
        /// Line of the scenario.
        line: usize,
    },
    /// A program on a modeled core, with a drive in real time.
    #[error("{user} is for programs on modeled cores, and a drive in real time has real programs")]
    ModeledProgram {
        /// The process, or the path on which programs go on.
        user: String,
    },
    /// Several hardware queues over one write context.
    #[error(
        "{target} on drive {drive} has {contexts} write context{}, so that {queues} hardware queues would \
         write through the same one", if *contexts == 1 { "" } else { "s" }
    )]
    SharedWriteContext {
        /// The target.
        target: String,
        /// Name of the drive.
        drive: String,
        /// Number of its write contexts.
        contexts: u32,
        /// Number of hardware queues.
        queues: u16,
    },
    /// Several submitters' queues over an AHCI port.
    #[error(
        "drive {drive} is at an AHCI port, which has one command list, so that {users} would share it"
    )]
    OneCommandList {
        /// Name of the drive.
        drive: String,
        /// The queues or the owners.
        users: String,
    },
    /// Members of a set, each with memory that no other device of the set reaches.
    #[error(
        "drive {drive} transfers data from memory that is mapped for its controller alone, and so does {other}: \
         one payload does not reach both"
    )]
    SeparateMemory {
        /// Name of the drive.
        drive: String,
        /// Name of the other member.
        other: String,
    },
    /// More drives than an AHCI controller has ports.
    #[error("drive {drive} has no port: an AHCI controller has 32, one for each drive")]
    NoPort {
        /// Name of the drive.
        drive: String,
    },
    /// A key of an NVMe drive for a drive of another kind.
    #[error("`drive.{key}` describes an emulated NVMe drive, and this drive has kind = \"{kind}\"")]
    NotNvme {
        /// The key.
        key: &'static str,
        /// The kind of the drive.
        kind: &'static str,
    },
    /// A device of this machine in virtual time.
    #[error(
        "{user} runs in virtual time, and drive {drive} (kind = \"{kind}\") is a device of this machine, \
         which takes its own"
    )]
    RealDevice {
        /// The program or the setting that runs in virtual time.
        user: &'static str,
        /// Name of the drive.
        drive: String,
        /// Its kind.
        kind: &'static str,
    },
    /// A persistent memory region in memory of this machine, in virtual time.
    #[error(
        "{user} runs in virtual time, and the persistent memory region of drive {drive} is a file on \
         persistent memory of this machine"
    )]
    RealMemory {
        /// The program that runs in virtual time.
        user: &'static str,
        /// Name of the drive.
        drive: String,
    },
    /// A log over a device that has no persistent memory region of its own.
    #[error("{device} has no persistent memory region for a log")]
    NoRegionForLog {
        /// The drive, target or set.
        device: String,
    },
    /// A log of a size that is not possible.
    #[error("a log of {bytes} bytes on {device}")]
    LogSize {
        /// The drive or target.
        device: String,
        /// Size in bytes.
        bytes: u64,
        /// Allowed sizes.
        allowed: String,
    },
    /// NVMe commands for a drive of another kind.
    #[error("{user} needs the NVMe queues of a drive, and drive {drive} has kind = \"{kind}\"")]
    NoNvmeQueues {
        /// The program that needs them.
        user: &'static str,
        /// Name of the drive.
        drive: String,
        /// Its kind.
        kind: &'static str,
    },
}

/// [`BlockError::SeparateStaging`], as a value that can be compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", BlockError::SeparateStaging { what, queues: *queues })]
pub struct SeparateStaging {
    /// The scheduler or the limits.
    pub what: &'static str,
    /// Number of staging queues.
    pub queues: usize,
}

impl Impossible {
    /// Returns what to change.
    pub fn help(&self) -> String {
        match self {
            Impossible::FlashNotExposed { .. } => {
                "set personality = \"open-channel\" in the drive, or target.kind = \"none\"".into()
            }
            Impossible::NoDeviceMap => {
                "set device_l2p = true in the drive, or target.kind = \"pblk\"".into()
            }
            Impossible::NoLogicalBlocks { user, .. } if *user == BLOCK_REQUESTS => {
                "give the scenario a [target], the drive personality = \"block\", or `sluice sim` jobs \
                 on parallel units (`pus`)"
                    .into()
            }
            Impossible::NoLogicalBlocks { .. } => {
                "give the scenario a [target], or the drive personality = \"block\"".into()
            }
            Impossible::NamedSectors { .. } => {
                "name a rule program without names; named commands are those of the library, C and Python"
                    .into()
            }
            Impossible::NoBlocksOnTarget { kind: TargetKind::Kv, .. } => {
                "give it a pblk or an rrpc, or jobs on keys over a path without a block layer"
                    .into()
            }
            Impossible::NoBlocksOnTarget { .. } => {
                "give it a pblk or an rrpc, or jobs on parallel units (`pus`) over a path without a block \
                 layer"
                    .into()
            }
            Impossible::SecondOwner { .. } => {
                "send both by one path, or give each parallel units of its own".into()
            }
            Impossible::NoQueuePairs { .. } => {
                "export it over `nbd`, or a path over a drive without a target and a block layer"
                    .into()
            }
            Impossible::NoBlockLayer { .. } => {
                "set queue_model = \"sq\" or \"mq\", or remove the key".into()
            }
            Impossible::SeparateStaging(_) => {
                "set staging = \"global\", or queue_model = \"sq\"".into()
            }
            Impossible::NoSecondContext { .. } => {
                "set queue_model = \"sq\", or completion = \"interrupt\"".into()
            }
            Impossible::NoCompletionMethod { .. } => {
                "remove `completion` and `poll_interval`".into()
            }
            Impossible::OneCommandList { .. } => {
                "allowed: 1 queue of one path or set; `cores` may be more".into()
            }
            Impossible::SeparateMemory { .. } => "a set has at most one drive with kind = \"pci\", or drives \
                 with kind = \"ahci\"; drives of other kinds use the memory of these"
                .into(),
            Impossible::NoPort { .. } => "allowed: 1 to 32 drives with kind = \"ahci\"".into(),
            Impossible::NotNvme { key, .. } => {
                format!("remove `{key}`, or set kind = \"nvme\"")
            }
            Impossible::RealDevice { .. } => "use an emulated drive (kind = \"nvme\" or \"ahci\"); \
                 real devices are for `sluice serve`, `sluice exec`, `sluice::open` and the C library"
                .into(),
            Impossible::RealMemory { .. } => {
                "set `size` instead of `dax` in `pmr`".into()
            }
            Impossible::NoRegionForLog { .. } => "name a drive or target of an emulated NVMe drive with \
                 `pmr`"
                .into(),
            Impossible::LogSize { allowed, .. } => format!("allowed: {allowed}"),
            Impossible::NoNvmeQueues { .. } => "name a drive with kind = \"nvme\"".into(),
            Impossible::VirtualTime { .. } => "remove [[at]] and [[fault]], or run `sluice sim`; \
                 `sluice admin set` and `sluice admin fault` are for a drive that is served"
                .into(),
            Impossible::ModeledProgram { .. } => {
                "remove [[process]] and completion = \"speculate\", or run `sluice sim`".into()
            }
            Impossible::SharedWriteContext { contexts, .. } => format!(
                "allowed: 1 to {contexts}; a `pblk` on a whole drive has as many as target.shards"
            ),
        }
    }

    /// Checks that a drive exposes its flash to `target`.
    ///
    /// # Errors
    /// [`Impossible::FlashNotExposed`].
    pub fn check_flash(
        personality: PersonalityKind,
        target: impl FnOnce() -> String,
    ) -> Result<(), Impossible> {
        match personality {
            PersonalityKind::OpenChannel => Ok(()),
            _ => Err(Impossible::FlashNotExposed { target: target() }),
        }
    }

    /// Checks that a drive is an emulated NVMe drive, whose queues `user` needs.
    ///
    /// # Errors
    /// [`Impossible::NoNvmeQueues`].
    pub fn check_nvme(plan: &DriveSpec, user: &'static str) -> Result<(), Impossible> {
        match plan.kind {
            DriveKind::Nvme => Ok(()),
            _ => {
                let (drive, kind) = (plan.config.name.clone(), plan.kind.word());
                Err(Impossible::NoNvmeQueues { user, drive, kind })
            }
        }
    }

    /// Checks that a payload can be in the memory of both drives, which are members of a set. A controller
    /// of this machine, and the emulated one of all SATA drives, have memory of their own, which other
    /// devices can use.
    ///
    /// # Errors
    /// [`Impossible::SeparateMemory`].
    pub fn check_memory(plan: &DriveSpec, other: &DriveSpec) -> Result<(), Impossible> {
        match (&plan.kind, &other.kind) {
            (DriveKind::Pci(_), DriveKind::Pci(_) | DriveKind::Ahci(_))
            | (DriveKind::Ahci(_), DriveKind::Pci(_)) => {
                let (drive, other) = (plan.config.name.clone(), other.config.name.clone());
                Err(Impossible::SeparateMemory { drive, other })
            }
            _ => Ok(()),
        }
    }

    /// Checks that there are logical blocks for `user` on a drive.
    ///
    /// # Errors
    /// [`Impossible::NoLogicalBlocks`].
    pub fn check_logical_blocks(
        personality: PersonalityKind,
        has_target: bool,
        drive: &str,
        user: &'static str,
    ) -> Result<(), Impossible> {
        match personality {
            PersonalityKind::OpenChannel if !has_target => {
                Err(Impossible::NoLogicalBlocks { drive: drive.to_owned(), user })
            }
            _ => Ok(()),
        }
    }

    /// Checks that a target of this kind has logical blocks. The kind may be unknown until the
    /// target is opened.
    ///
    /// # Errors
    /// [`Impossible::NoBlocksOnTarget`].
    pub fn check_blocks(target: &str, kind: Option<TargetKind>) -> Result<(), Impossible> {
        match kind {
            Some(kind) if !kind.is_block() => {
                Err(Impossible::NoBlocksOnTarget { target: target.to_owned(), kind })
            }
            _ => Ok(()),
        }
    }

    /// Checks that the context of an interrupt can fetch what submitters wait for.
    ///
    /// # Errors
    /// [`Impossible::NoSecondContext`].
    pub fn check_completion(
        method: CompletionMethod,
        model: QueueModelKind,
    ) -> Result<(), Impossible> {
        let completion = method.word();
        match (method.needs_handler(), model) {
            (false, _) | (true, QueueModelKind::Sq) => Ok(()),
            (true, model) => Err(Impossible::NoSecondContext { completion, model: model.word() }),
        }
    }

    /// Checks that a policy that compares submitters finds all of them in one staging queue.
    ///
    /// # Errors
    /// [`Impossible::SeparateStaging`].
    pub fn check_staging(policy: Option<&'static str>, queues: u16) -> Result<(), Impossible> {
        match policy {
            Some(what) if queues > 1 => Err(SeparateStaging { what, queues: queues.into() }.into()),
            _ => Ok(()),
        }
    }
}
