//! [`Choice`]: one choice at every interface of the stack, and the rules of what combines.
//!
//! A scenario is read by the same rules: each of them is a method of [`Impossible`], and the reader
//! adds the place of the key. [`Choice::all`] is the matrix that `sluice matrix` prints.

// guarantee: B-18

mod impossible;

use block::notify::CompletionMethod;
use block::sched::SchedulerConfig;
use controller::PersonalityKind;
pub use impossible::{BLOCK_LAYER, BLOCK_REQUESTS, Impossible, SIMULATION, SeparateStaging};
use lnvm::TargetKind;

use super::host::QueueModelKind;

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
        /// pblk with rules.
        Rules = "rules",
        /// The key-value target.
        Kv = "kv",
        /// Parallel units with vector commands.
        Ppa = "ppa",
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
        if self.kind_without_blocks().is_some() {
            // A [[target]] is read before the paths over it.
            Impossible::check_flash(self.personality(), || format!("target {TARGET}"))?;
        }
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
        if let Some(kind) = self.kind_without_blocks() {
            let target = TARGET.to_owned();
            return match self.front {
                _ if layered => Err(Impossible::NoBlocksOnTarget { target, kind }),
                _ if self.completion != CompletionMethod::Poll => {
                    Err(Impossible::NoCompletionMethod { device: target })
                }
                FrontEnd::Simulation => Ok(()),
                FrontEnd::Server | FrontEnd::Application => {
                    Err(Impossible::NoBlocksOnTarget { target, kind })
                }
            };
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

    /// Returns the kind of a target without logical blocks.
    pub fn kind_without_blocks(&self) -> Option<TargetKind> {
        match self.target {
            TargetChoice::Kv => Some(TargetKind::Kv),
            TargetChoice::Ppa => Some(TargetKind::Ppa),
            _ => None,
        }
    }

    /// Returns the target's name in messages.
    fn target_label(&self) -> &'static str {
        match self.target {
            TargetChoice::None => "nobody on the host",
            TargetChoice::Pblk | TargetChoice::Shards => "pblk",
            TargetChoice::Rrpc => "rrpc",
            TargetChoice::Rules => "rules",
            TargetChoice::Kv | TargetChoice::Ppa => TARGET,
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
            TargetChoice::Rules => "[target]\nkind = \"rules\"\ntemplate = \"throughput\"\n",
            TargetChoice::Kv => "[[target]]\nname = \"named\"\nkind = \"kv\"\npus = \"0-7\"\n",
            TargetChoice::Ppa => "[[target]]\nname = \"named\"\nkind = \"ppa\"\npus = \"0-7\"\n",
        };
        let path = match self.kind_without_blocks() {
            Some(_) => format!("[[path]]\nname = \"path\"\nover = \"{TARGET}\"\n"),
            None => "[path]\n".to_owned(),
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
        format!("[drive]\n{drive}{target}{path}{block}{scheduler}{completion}")
    }
}

/// The name of a target without logical blocks in the matrix.
const TARGET: &str = "named";

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
                Err(Impossible::NoBlocksOnTarget { .. }) => choice.block == BlockChoice::Raw,
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
        assert_eq!(allowed + refused, 3 * 8 * 7 * 4 * 5 * 5);
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
