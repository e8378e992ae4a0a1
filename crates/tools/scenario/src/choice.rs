//! [`Choice`]: one choice at every interface of the stack, and the rules of what combines.
//!
//! A scenario is read by the same rules: each of them is a method of [`Impossible`], and the reader
//! adds the place of the key. [`Choice::all`] is the matrix that `sluice matrix` prints.

// guarantee: B-18

use block::BlockError;
use block::notify::CompletionMethod;
use block::sched::SchedulerConfig;
use controller::PersonalityKind;
use lnvm::TargetKind;

use super::host::QueueModelKind;
use super::{DriveKind, DriveSpec};

/// The words of a choice's values, in the order of the matrix.
macro_rules! choices {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $name {
            $($(#[$doc])* $variant),+
        }

        impl $name {
            /// All values, in the order of the matrix.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            /// Returns the word for the value.
            pub fn word(self) -> &'static str {
                match self {
                    $($name::$variant => $word),+
                }
            }
        }
    };
}

choices! {
    /// The program that submits to the stack.
    FrontEnd {
        /// `sluice sim`: jobs in virtual time.
        Simulation = "sim",
        /// `sluice serve`: clients of the NBD servers, one server per core.
        Server = "serve",
        /// `sluice::open`, the C library and `sluice exec`: an application's queues.
        Application = "open",
    }
}

choices! {
    /// The drive.
    DriveChoice {
        /// Manages its flash.
        Block = "block",
        /// Without flash.
        Null = "null",
        /// Open-channel.
        OpenChannel = "open-channel",
        /// Open-channel, with a map of the host's logical addresses.
        OpenChannelWithMap = "open-channel, device_l2p",
        /// A SATA drive at an AHCI controller.
        Ahci = "ahci",
        /// A file of this machine.
        File = "file",
        /// A controller that the kernel drives.
        Kernel = "kernel",
        /// A controller that this process drives.
        Pci = "pci",
    }
}

choices! {
    /// The target on the host.
    TargetChoice {
        /// None.
        None = "none",
        /// `pblk` in one shard.
        Pblk = "pblk",
        /// `pblk` in two shards.
        Shards = "pblk, 2 shards",
        /// `rrpc`.
        Rrpc = "rrpc",
    }
}

choices! {
    /// The block layer.
    BlockChoice {
        /// None.
        Raw = "raw",
        /// One staging queue and one hardware queue.
        SingleQueue = "sq",
        /// A staging queue per core.
        MultiQueue = "mq",
        /// `mq` with one staging queue for all cores.
        OneStaging = "mq, one staging queue",
    }
}

choices! {
    /// The scheduler of the staging queues.
    SchedulerChoice {
        /// First in, first out.
        None = "none",
        /// Deadlines.
        Deadline = "deadline",
        /// Targets for latencies.
        Kyber = "kyber",
        /// Weights.
        Fair = "fair",
        /// Priorities.
        Priority = "priority",
    }
}

/// One choice at every interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The program that submits.
    pub front: FrontEnd,
    /// The drive.
    pub drive: DriveChoice,
    /// The target on the host.
    pub target: TargetChoice,
    /// The block layer.
    pub block: BlockChoice,
    /// The scheduler of the block layer.
    pub scheduler: SchedulerChoice,
    /// The contexts that notice completions and finish requests.
    pub completion: CompletionMethod,
}

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
        "line {line} changes settings at an instant of virtual time, and a drive in real time has none: \
         its clients start when they like"
    )]
    VirtualTime {
        /// Line of the scenario.
        line: usize,
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
            Impossible::NoNvmeQueues { .. } => "name a drive with kind = \"nvme\"".into(),
            Impossible::VirtualTime { .. } => "remove [[at]], or run `sluice sim`".into(),
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

/// The name of the block layer in [`Impossible::NoLogicalBlocks`].
pub const BLOCK_LAYER: &str = "a block layer";

/// The name of a front end that submits block requests in [`Impossible::NoLogicalBlocks`].
pub const BLOCK_REQUESTS: &str = "block requests";

/// The name of a simulation in [`Impossible::RealDevice`].
pub const SIMULATION: &str = "`sluice sim`";

impl Choice {
    /// Number of cores that submit in the matrix.
    pub const CORES: u16 = 2;

    /// Returns every combination, in the order of the matrix.
    pub fn all() -> impl Iterator<Item = Choice> {
        let drives = |front| DriveChoice::ALL.iter().map(move |drive| (front, *drive));
        let targets =
            |(front, drive)| TargetChoice::ALL.iter().map(move |target| (front, drive, *target));
        let blocks = |(front, drive, target)| {
            BlockChoice::ALL.iter().map(move |block| (front, drive, target, *block))
        };
        let schedulers = |(front, drive, target, block)| {
            SchedulerChoice::ALL
                .iter()
                .map(move |scheduler| (front, drive, target, block, *scheduler))
        };
        let methods = |(front, drive, target, block, scheduler)| {
            CompletionMethod::ALL.iter().map(move |method| {
                let completion = *method;
                Choice { front, drive, target, block, scheduler, completion }
            })
        };
        FrontEnd::ALL
            .iter()
            .flat_map(move |front| drives(*front))
            .flat_map(targets)
            .flat_map(blocks)
            .flat_map(schedulers)
            .flat_map(methods)
    }

    fn personality(&self) -> PersonalityKind {
        match self.drive {
            DriveChoice::Block => PersonalityKind::Block,
            DriveChoice::Null | DriveChoice::Ahci => PersonalityKind::Null,
            DriveChoice::File | DriveChoice::Kernel | DriveChoice::Pci => PersonalityKind::Null,
            DriveChoice::OpenChannel | DriveChoice::OpenChannelWithMap => {
                PersonalityKind::OpenChannel
            }
        }
    }

    /// Returns the queue model.
    pub fn queue_model(&self) -> QueueModelKind {
        match self.block {
            BlockChoice::Raw => QueueModelKind::Raw,
            BlockChoice::SingleQueue => QueueModelKind::Sq,
            BlockChoice::MultiQueue | BlockChoice::OneStaging => QueueModelKind::Mq,
        }
    }

    /// Checks whether the choices combine.
    ///
    /// # Errors
    /// [`Impossible`].
    pub fn check(&self) -> Result<(), Impossible> {
        let layered = self.block != BlockChoice::Raw;
        Impossible::check_completion(self.completion, self.queue_model())?;
        if !layered && self.scheduler != SchedulerChoice::None {
            return Err(Impossible::NoBlockLayer { key: "scheduler" });
        }
        let scheduler = self.scheduler.word().parse::<SchedulerConfig>().unwrap_or_default();
        let staging = if self.block == BlockChoice::MultiQueue { Choice::CORES } else { 1 };
        Impossible::check_staging(scheduler.per_submitter_policy(), staging)?;
        let has_target = self.target != TargetChoice::None;
        if has_target {
            Impossible::check_flash(self.personality(), || self.target_label().into())?;
        }
        if self.target == TargetChoice::Rrpc && self.drive != DriveChoice::OpenChannelWithMap {
            return Err(Impossible::NoDeviceMap);
        }
        let works_by_vectors = self.personality() == PersonalityKind::OpenChannel && !has_target;
        if works_by_vectors && !layered && self.completion != CompletionMethod::Poll {
            return Err(Impossible::NoCompletionMethod { device: "drive0".into() });
        }
        let is_real =
            matches!(self.drive, DriveChoice::File | DriveChoice::Kernel | DriveChoice::Pci);
        if is_real && self.front == FrontEnd::Simulation {
            let (user, drive, kind) = (SIMULATION, "drive0".to_owned(), self.drive.word());
            return Err(Impossible::RealDevice { user, drive, kind });
        }
        let user = match self.front {
            _ if layered => BLOCK_LAYER,
            FrontEnd::Simulation | FrontEnd::Server => BLOCK_REQUESTS,
            // An application speaks vector commands as well.
            FrontEnd::Application => return Ok(()),
        };
        Impossible::check_logical_blocks(self.personality(), has_target, "drive0", user)
    }

    /// Returns whether the choice runs only on a machine with a controller of this kind.
    pub fn needs_hardware(&self) -> bool {
        matches!(self.drive, DriveChoice::Kernel | DriveChoice::Pci) && self.check().is_ok()
    }

    /// Returns the target's name in messages.
    fn target_label(&self) -> &'static str {
        match self.target {
            TargetChoice::None => "nobody on the host",
            TargetChoice::Pblk | TargetChoice::Shards => "pblk",
            TargetChoice::Rrpc => "rrpc",
        }
    }

    /// Returns a scenario with these choices, on a small drive without jobs. A file is `disk.img`
    /// beside the scenario. A choice that needs hardware names a device that no machine has.
    pub fn scenario(&self) -> String {
        self.scenario_on(match self.drive {
            DriveChoice::Pci => "7ffffff0:01:00.0",
            _ => "/dev/ng4095n1",
        })
    }

    /// Returns the scenario of [`Choice::scenario`] on a device of this machine: the path of the
    /// kernel's character device, or the PCI address of the controller. Other drives ignore it.
    pub fn scenario_on(&self, device: &str) -> String {
        let drive = match self.drive {
            DriveChoice::Null => "personality = \"null\"\ncapacity = \"32M\"\n".to_owned(),
            DriveChoice::Ahci => "kind = \"ahci\"\ncapacity = \"32M\"\n".to_owned(),
            DriveChoice::Kernel => format!("kind = \"kernel\"\npath = \"{device}\"\n"),
            DriveChoice::Pci => format!("kind = \"pci\"\naddress = \"{device}\"\n"),
            DriveChoice::File => {
                "kind = \"file\"\npath = \"disk.img\"\ndirect = false\n".to_owned()
            }
            DriveChoice::Block => SMALL_DRIVE.to_owned(),
            DriveChoice::OpenChannel => format!("{SMALL_DRIVE}personality = \"open-channel\"\n"),
            DriveChoice::OpenChannelWithMap => {
                format!("{SMALL_DRIVE}personality = \"open-channel\"\ndevice_l2p = true\n")
            }
        };
        let target = match self.target {
            TargetChoice::None => "",
            TargetChoice::Pblk => "[target]\nkind = \"pblk\"\n",
            TargetChoice::Shards => "[target]\nkind = \"pblk\"\nshards = 2\n",
            TargetChoice::Rrpc => "[target]\nkind = \"rrpc\"\n",
        };
        let block = match self.block {
            BlockChoice::Raw => "queue_model = \"raw\"\n".to_owned(),
            BlockChoice::SingleQueue => {
                format!("queue_model = \"sq\"\ncores = {}\n", Choice::CORES)
            }
            BlockChoice::MultiQueue => format!("queue_model = \"mq\"\ncores = {}\n", Choice::CORES),
            BlockChoice::OneStaging => {
                format!("queue_model = \"mq\"\nstaging = \"global\"\ncores = {}\n", Choice::CORES)
            }
        };
        let scheduler = match self.scheduler {
            SchedulerChoice::None => String::new(),
            other => format!("scheduler = \"{}\"\n", other.word()),
        };
        let completion = match self.completion {
            CompletionMethod::Poll => String::new(),
            other => format!("completion = \"{}\"\n", other.word()),
        };
        format!("[drive]\n{drive}{target}[path]\n{block}{scheduler}{completion}")
    }
}

/// A drive of 48 MiB with paired pages.
const SMALL_DRIVE: &str = "preset = \"femu-default\"\ncell = \"mlc\"\npaired_page_distance = 2\n\
    geometry = { channels = 2, pus = 4, chunks = 48, pages = 32 }\n";

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::Scenario;

    /// The rules of the reader are those of the matrix, with the same reasons. The reader does not
    /// know the front end.
    #[test]
    fn a_scenario_is_refused_for_the_reason_of_the_matrix() {
        let (mut allowed, mut refused) = (0, 0);
        for choice in Choice::all() {
            let parsed = Scenario::parse(Path::new("m.toml"), &choice.scenario());
            let front_only = match &choice.check() {
                Err(Impossible::NoLogicalBlocks { user, .. }) => *user != BLOCK_LAYER,
                Err(Impossible::RealDevice { .. }) => true,
                _ => false,
            };
            match (choice.check(), parsed) {
                (Ok(()), Ok(_)) => allowed += 1,
                (Err(_), Ok(_)) if front_only => refused += 1,
                (Err(reason), Err(error)) => {
                    refused += 1;
                    let (error, reason) = (error.to_string(), (reason.to_string(), reason.help()));
                    assert!(error.contains(&reason.0), "{choice:?}: {error}, not {reason:?}");
                    assert!(error.contains(&reason.1), "{choice:?}: {error}, not {reason:?}");
                }
                (verdict, parsed) => panic!("{choice:?}: {verdict:?}, but {parsed:?}"),
            }
        }
        assert_eq!(allowed + refused, 3 * 8 * 4 * 4 * 5 * 5);
        assert!(allowed > 900, "{allowed}");
    }

    /// The page of `sluice matrix` shows schedulers and methods of completion side by side.
    #[test]
    fn schedulers_and_methods_of_completion_are_refused_independently() {
        for choice in Choice::all() {
            let with_scheduler = Choice { completion: CompletionMethod::Poll, ..choice };
            let with_method = Choice { scheduler: SchedulerChoice::None, ..choice };
            let both = with_scheduler.check().is_ok() && with_method.check().is_ok();
            assert_eq!(choice.check().is_ok(), both, "{choice:?}");
        }
    }

    #[test]
    fn every_value_has_its_own_word() {
        let mut words: Vec<String> = Choice::all()
            .map(|c| {
                let Choice { front, drive, target, block, scheduler, completion } = c;
                let below = [target.word(), block.word(), scheduler.word(), completion.word()];
                [front.word(), drive.word()].join("|") + &below.join("|")
            })
            .collect();
        let count = words.len();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), count);
    }
}
