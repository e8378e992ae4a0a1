//! [`DriveConfig`]: the description of a drive, as plain values that [`DriveConfig::check`]
//! validates.

use std::path::PathBuf;

use ftl::{FtlConfig, LineMetadata};
use media::MediaConfig;
use nvme::ProtectionType;
use serde::{Deserialize, Serialize};
use time::Nanos;
use transport::RegionCosts;

use crate::DriveRulesConfig;
use crate::admin::latency_monitor;
use crate::namespaces::layout::NamespaceLayout;
use crate::personality::protection;

/// The interface that a drive exposes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PersonalityKind {
    /// Null personality: completes commands at once or after a fixed latency, without media.
    Null,
    /// Block personality: the drive manages its own flash and exposes sectors.
    Block,
    /// Open-channel personality: physical page addresses; the host manages the flash (\[OC20\],
    /// [LightNVM17 §3]).
    OpenChannel,
}

/// The order in which a parallel unit executes its waiting operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PuScheduling {
    /// In order of arrival.
    Fifo,
    /// Reads before programs and erases; optionally, a read suspends a running program or erase.
    ReadPriority {
        /// Costs and limit of program and erase suspension; `None` disables it.
        suspend: Option<SuspendConfig>,
    },
}

/// The costs of suspending a program or erase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuspendConfig {
    /// Time from the suspend request until the array can read.
    pub suspend: Nanos,
    /// Time that the suspended operation loses when it resumes.
    pub resume: Nanos,
    /// Maximum number of suspensions of one operation; after that it runs to completion.
    pub max_per_operation: u32,
}

/// The arbitration among submission queues [NVMe1.4 §4.13].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArbitrationConfig {
    /// Round robin: every queue in turn, up to `burst` commands each.
    RoundRobin {
        /// Maximum number of commands fetched from one queue in a row.
        burst: u16,
    },
    /// Weighted round robin: urgent queues first, then high, medium and low priority by weight.
    Weighted {
        /// Maximum number of commands fetched from one queue in a row.
        burst: u16,
        /// Weight of high-priority queues, in commands per round.
        high: u16,
        /// Weight of medium-priority queues, in commands per round.
        medium: u16,
        /// Weight of low-priority queues, in commands per round.
        low: u16,
    },
}

/// The costs and limits of the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerConfig {
    /// Time to fetch and decode one command; the controller fetches commands one at a time.
    pub fetch_latency: Nanos,
    /// Time from the end of a command's execution to its completion queue entry.
    pub completion_latency: Nanos,
    /// DMA bandwidth between host memory and the drive in bytes per second, shared by both
    /// directions; 0 for no limit.
    pub dma_bytes_per_sec: u64,
    /// DMA bandwidth from host memory to the drive in bytes per second, if that direction has its
    /// own path. 0 if both directions share one path. Otherwise `dma_bytes_per_sec` limits only the
    /// direction from the drive to the host.
    pub dma_to_device_bytes_per_sec: u64,
    /// Maximum number of I/O queue pairs that a host may create.
    pub max_io_queues: u16,
    /// Maximum number of entries per queue.
    pub queue_depth: u16,
    /// The arbitration among submission queues.
    pub arbitration: ArbitrationConfig,
    /// The controller memory buffer, if the drive has one.
    pub cmb: Option<CmbConfig>,
    /// Whether the drive supports Doorbell Buffer Config, as emulated controllers do.
    pub doorbell_buffer: bool,
    /// Background scrub of a drive that manages its own flash; `None` disables it.
    pub scrub: Option<MediaScrubConfig>,
    /// Thresholds of the latency monitor, if it is enabled at power-on: four increasing multiples of
    /// 5 ms, up to 1280 ms.
    pub latency_monitor: Option<[Nanos; 4]>,
    /// The namespaces that the drive has when it is new. Several need a drive that manages its own
    /// flash.
    pub namespaces: NamespaceLayout,
    /// The registers by which hosts in this process initialize the drive; `None` if they connect
    /// directly.
    pub registers: Option<RegisterConfig>,
}

/// Controller registers, CAP to ACQ [NVMe1.4 §3.1].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisterConfig {
    /// Time from CC.EN = 1 to CSTS.RDY = 1. Above `timeout`, hosts give up.
    pub ready_time: Nanos,
    /// Time that the drive reports for becoming ready and for stopping, CAP.TO: in steps of 500 ms,
    /// rounded up, up to 127.5 s.
    pub timeout: Nanos,
}

impl RegisterConfig {
    /// The unit of CAP.TO.
    const TIMEOUT_UNIT: Nanos = Nanos::from_millis(500);
    /// The largest value of CAP.TO.
    pub const TIMEOUT_MAX: Nanos = Nanos::from_millis(500 * 255);

    /// Returns CAP.TO.
    pub(crate) fn timeout_500ms(&self) -> u8 {
        self.timeout.0.div_ceil(RegisterConfig::TIMEOUT_UNIT.0).min(255) as u8
    }
}

impl Default for RegisterConfig {
    fn default() -> RegisterConfig {
        RegisterConfig { ready_time: Nanos::ZERO, timeout: Nanos::from_millis(10_000) }
    }
}

/// Configuration of the background scrub, which refreshes aged data that hosts do not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MediaScrubConfig {
    /// Maximum number of sectors read and relocated per second; 0 disables the scrub.
    pub sectors_per_sec: u32,
    /// Minimum time between the starts of two passes over all data.
    pub pass_interval_min: Nanos,
}

/// A controller memory buffer ([NVMe1.4 §4.7], [LightNVM17 §2.2, §2.3]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmbConfig {
    /// Size in bytes: a multiple of 4 KiB that the CMBSZ register can represent.
    pub bytes: u64,
    /// Whether the contents survive a power loss (capacitors).
    pub protected: bool,
}

/// A persistent memory region [NVMe1.4 §4.8].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PmrConfig {
    /// The memory.
    pub store: PmrStore,
    /// The time that accesses take on the host.
    pub costs: RegionCosts,
}

/// The memory of a persistent memory region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PmrStore {
    /// Emulated memory, beside the image if the drive has one.
    Emulated {
        /// Size in bytes: a multiple of 4 KiB, up to [`PmrConfig::BYTES_MAX`].
        bytes: u64,
    },
    /// A file on persistent memory of this machine, whose size is that of the region.
    Dax {
        /// Path of the file.
        path: PathBuf,
    },
}

impl PmrConfig {
    /// Maximum size in bytes: that of the base address register of the region.
    pub const BYTES_MAX: u64 = 64 << 30;

    /// Returns whether a region can have this size in bytes.
    pub fn is_size(bytes: u64) -> bool {
        bytes > 0 && bytes <= PmrConfig::BYTES_MAX && bytes.is_multiple_of(mem::PAGE_BYTES as u64)
    }
}

impl ControllerConfig {
    /// Returns whether the latency monitor can have these thresholds.
    pub fn is_latency_monitor(thresholds: &[Nanos; 4]) -> bool {
        latency_monitor::is_possible(thresholds)
    }

    /// Returns the DMA bandwidth of write data in bytes per second; 0 for no limit.
    pub fn write_bytes_per_sec(&self) -> u64 {
        match self.dma_to_device_bytes_per_sec {
            0 => self.dma_bytes_per_sec,
            own => own,
        }
    }
}

impl Default for ControllerConfig {
    fn default() -> ControllerConfig {
        ControllerConfig {
            fetch_latency: Nanos(0),
            completion_latency: Nanos(0),
            dma_bytes_per_sec: 0,
            dma_to_device_bytes_per_sec: 0,
            max_io_queues: 128,
            queue_depth: 4096,
            arbitration: ArbitrationConfig::RoundRobin { burst: 8 },
            cmb: None,
            doorbell_buffer: false,
            scrub: None,
            latency_monitor: None,
            namespaces: NamespaceLayout::default(),
            registers: None,
        }
    }
}

/// The optional features of the open-channel personality.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenChannelConfig {
    /// Costs of suspending a program or erase when a read's hint asks for it. With `None`, the
    /// drive suspends only if its [`PuScheduling`] does so for every read.
    pub suspend_on_hint: Option<SuspendConfig>,
    /// Whether the drive keeps a logical-to-physical map of its own [Thesis15 ch. 6 §4.3].
    pub device_l2p: bool,
}

/// Maximum size of a controller memory buffer in bytes.
const CMB_BYTES_MAX: u64 = 64 << 30;

/// The write buffer of the block personality.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WriteBuffer {
    /// No write buffer: writes complete when they are on the media.
    None,
    /// Writes complete when they are in the buffer; a power cut loses the buffer.
    Volatile {
        /// Capacity in bytes.
        bytes: u64,
    },
    /// Writes complete when they are in the buffer, which survives a power cut (capacitors).
    PowerLossProtected {
        /// Capacity in bytes.
        bytes: u64,
    },
}

/// Timing of the null personality; [Thesis15 ch. 6 §5] measures such a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NullConfig {
    /// Latency of every command.
    pub latency: Nanos,
    /// Bandwidth of all commands together in bytes per second; 0 for no limit.
    pub bytes_per_sec: u64,
}

/// How data move between the registers of a parallel unit and its channel, beyond `cache_program`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferConfig {
    /// Cache read: data that was read moves to the cache register, and the array may read again
    /// while the channel drains that register. A parallel unit has one cache register per plane
    /// beside its page register; programs use the cache register as well.
    pub cache_read: bool,
    /// Whether read data leaves from a register that programs do not use, as in an MLC die with a
    /// third latch per cell. Program data may then be transferred, and programs may run, at the
    /// same time. Requires `cache_read`.
    pub dedicated_read_register: bool,
    /// Whether all transfers use the channel one page at a time, so that other parallel units may
    /// transfer in between; each plane has registers of its own. Otherwise read data is transferred
    /// in one piece, and program data by pages, or by sectors if reads have priority.
    pub by_page: bool,
}

/// The complete description of a drive.
#[derive(Clone, Debug, PartialEq)]
pub struct DriveConfig {
    /// Name of the drive in results; also its serial number.
    pub name: String,
    /// The interface that the drive exposes.
    pub personality: PersonalityKind,
    /// The emulated media.
    pub media: MediaConfig,
    /// The costs and limits of the controller.
    pub controller: ControllerConfig,
    /// The order in which a parallel unit executes its waiting operations.
    pub pu_scheduling: PuScheduling,
    /// Whether a read of a page in the page register of the parallel unit skips the array read.
    pub page_register: bool,
    /// Whether program data may be transferred while the array is still busy.
    pub cache_program: bool,
    /// How data move between registers and channels.
    pub transfers: TransferConfig,
    /// The write buffer of the block personality.
    pub write_buffer: WriteBuffer,
    /// The FTL of the block personality.
    pub ftl: FtlConfig,
    /// Timing of the null personality.
    pub null: NullConfig,
    /// The optional features of the open-channel personality.
    pub open_channel: OpenChannelConfig,
    /// Size of a logical block in bytes, if it is smaller than the unit that the drive maps; `None`
    /// if they are equal. Requires a drive that manages its own flash, or null media.
    pub lba_bytes: Option<u32>,
    /// End-to-end protection information of each logical block: type 1, or none. Requires a drive that
    /// manages its own NAND flash and stores data.
    pub protection: Option<ProtectionType>,
    /// The persistent memory region, if the drive has one.
    pub pmr: Option<PmrConfig>,
    /// The rules that decide about commands and garbage collection, if the drive has any. Requires a
    /// drive that manages its own NAND flash, with its original namespace and blocks of a sector.
    pub rules: Option<DriveRulesConfig>,
}

/// Smallest logical block in bytes.
const LBA_BYTES_MIN: u32 = 512;

impl DriveConfig {
    /// Returns the size of the unit that the drive maps, reads and writes, in bytes: a sector of its
    /// media.
    pub fn sector_bytes(&self) -> u32 {
        match &self.media {
            MediaConfig::Nand(nand) => nand.geometry.sector_bytes,
            MediaConfig::Pcm(pcm) => pcm.sector_bytes,
            MediaConfig::Null { sector_bytes, .. } => *sector_bytes,
        }
    }

    /// Returns the size of a logical block in bytes, as hosts address the drive.
    pub fn lba_bytes(&self) -> u32 {
        self.lba_bytes.unwrap_or(self.sector_bytes())
    }

    /// Returns the default FTL configuration of a drive.
    ///
    /// Lines have no metadata. Line metadata would save a host commands when it opens the drive.
    /// The drive itself scans its out-of-band bytes without commands at power-on, so metadata would
    /// only cost capacity and bandwidth. A drive whose `p2l` table is on the media enables line
    /// metadata.
    pub fn default_ftl() -> FtlConfig {
        FtlConfig { line_metadata: LineMetadata::Off, ..FtlConfig::default() }
    }

    /// Checks the settings against each other.
    ///
    /// # Errors
    /// Returns the first inconsistency as [`DriveError::Config`](crate::DriveError::Config).
    pub fn check(&self) -> Result<(), crate::DriveError> {
        let contradiction = |what: &str, allowed: &str| {
            Err(crate::DriveError::Config { what: what.into(), allowed: allowed.into() })
        };
        let manages = matches!(self.media, MediaConfig::Nand(_))
            && self.personality == PersonalityKind::Block;
        if self.controller.scrub.is_some() && !manages {
            return contradiction(
                "a patrol in the controller, but the drive does not manage its flash",
                "personality = \"block\" over NAND, or the patrol of the host's target",
            );
        }
        if !self.controller.namespaces.is_default() && !manages {
            return contradiction(
                "several namespaces on a drive that does not manage its flash",
                "personality = \"block\" over NAND",
            );
        }
        match (&self.media, self.personality) {
            (MediaConfig::Nand(_), PersonalityKind::Null)
            | (MediaConfig::Pcm(_), PersonalityKind::Null) => {
                return contradiction("personality \"null\" has no media", "media = \"null\"");
            }
            (MediaConfig::Null { .. }, PersonalityKind::Block | PersonalityKind::OpenChannel) => {
                return contradiction(
                    "null media can only be exposed as they are",
                    "personality = \"null\"",
                );
            }
            (MediaConfig::Pcm(_), PersonalityKind::OpenChannel) => {
                return contradiction(
                    "phase-change memory has no chunks to manage",
                    "personality = \"block\"",
                );
            }
            (MediaConfig::Nand(nand), personality) => {
                nand.check()?;
                if nand.write_unit() > 64 {
                    return contradiction(
                        &format!("a write unit of {} sectors", nand.write_unit()),
                        "one program operation writes at most 64 sectors, as many as a vector \
                         command has addresses",
                    );
                }
                let needs_oob = personality == PersonalityKind::Block
                    && nand.data != media::DataStore::None
                    && (nand.geometry.oob_bytes as usize) < ftl::Oob::BYTES;
                if needs_oob {
                    return contradiction(
                        &format!("oob_bytes is {}", nand.geometry.oob_bytes),
                        "a drive that manages its flash and keeps data needs 16 out-of-band bytes \
                         per sector",
                    );
                }
            }
            (MediaConfig::Pcm(pcm), _) => pcm.check()?,
            (MediaConfig::Null { bytes, sector_bytes }, _) => {
                if !sector_bytes.is_power_of_two() || !(512..=65536).contains(sector_bytes) {
                    return contradiction(
                        &format!("sector_bytes is {sector_bytes}"),
                        "it must be a power of two from 512 to 65536",
                    );
                }
                if *bytes < u64::from(*sector_bytes) {
                    return contradiction("a drive without a sector", "bytes >= sector_bytes");
                }
            }
        }
        if self.controller.max_io_queues == 0
            || self.controller.max_io_queues >= transport::MAX_QUEUES
        {
            return contradiction(
                &format!("io_queues is {}", self.controller.max_io_queues),
                "it must be from 1 to 1024",
            );
        }
        if self.controller.queue_depth < 2 {
            return contradiction("a queue of fewer than 2 entries", "queue_depth >= 2");
        }
        if self.transfers.dedicated_read_register && !self.transfers.cache_read {
            return contradiction("a register for reads that no read uses", "cache_read = true");
        }
        if let Some(cmb) = self.controller.cmb
            && (nvme::CmbSize::from_size_bytes(cmb.bytes).is_none() || cmb.bytes > CMB_BYTES_MAX)
        {
            return contradiction(
                &format!("a controller memory buffer of {} bytes", cmb.bytes),
                "a multiple of 4 KiB up to 64 GiB, from 4 GiB on of 64 KiB",
            );
        }
        if let Some(thresholds) = &self.controller.latency_monitor
            && !latency_monitor::is_possible(thresholds)
        {
            return contradiction(
                "a latency monitor with other thresholds than it can have",
                "four increasing multiples of 5 ms, up to 1280 ms",
            );
        }
        if let Some(registers) = &self.controller.registers
            && let Some(allowed) = registers.problem()
        {
            return contradiction("registers with a time that CAP.TO cannot represent", allowed);
        }
        if let Some(PmrConfig { store: PmrStore::Emulated { bytes }, .. }) = self.pmr
            && !PmrConfig::is_size(bytes)
        {
            return contradiction(
                &format!("a persistent memory region of {bytes} bytes"),
                "a multiple of 4 KiB, from 4 KiB to 64 GiB",
            );
        }
        self.check_host_flush()?;
        self.check_lba_bytes()?;
        self.check_protection()?;
        self.check_rules(manages)?;
        self.check_open_channel()
    }

    fn check_lba_bytes(&self) -> Result<(), crate::DriveError> {
        let Some(lba_bytes) = self.lba_bytes else { return Ok(()) };
        let unit = self.sector_bytes();
        let contradiction = |allowed: String| {
            let what = format!("lba_bytes is {lba_bytes}");
            Err(crate::DriveError::Config { what, allowed })
        };
        if !lba_bytes.is_power_of_two() || !(LBA_BYTES_MIN..=unit).contains(&lba_bytes) {
            return contradiction(format!(
                "it must be a power of two from {LBA_BYTES_MIN} to the sector of the media ({unit})"
            ));
        }
        match (&self.media, self.personality) {
            _ if lba_bytes == unit => Ok(()),
            (_, PersonalityKind::OpenChannel) => contradiction(format!(
                "the host of an open-channel drive addresses physical sectors of {unit} bytes; a \
                 smaller block requires personality = \"block\""
            )),
            (MediaConfig::Pcm(_), _) => contradiction(format!(
                "phase-change memory is written in place in sectors of {unit} bytes; set \
                 sector_bytes instead"
            )),
            (MediaConfig::Nand(_) | MediaConfig::Null { .. }, _) => Ok(()),
        }
    }

    /// Returns the number of out-of-band bytes per sector that a drive with protection information
    /// needs: those of its FTL, and 8 per logical block.
    pub fn protected_oob_bytes(&self) -> u32 {
        let blocks = self.sector_bytes() / self.lba_bytes().max(1);
        (ftl::Oob::BYTES + protection::info_bytes(blocks)) as u32
    }

    fn check_protection(&self) -> Result<(), crate::DriveError> {
        let Some(kind) = self.protection else { return Ok(()) };
        let contradiction = |what: String, allowed: String| {
            Err(crate::DriveError::Config {
                what: format!("protection information, but {what}"),
                allowed,
            })
        };
        let nand = match &self.media {
            _ if kind != ProtectionType::Type1 => {
                return contradiction(format!("of {kind:?}"), "type 1".into());
            }
            MediaConfig::Nand(nand) if self.personality == PersonalityKind::Block => nand,
            MediaConfig::Nand(_) => {
                return contradiction(
                    "the host manages the out-of-band bytes of an open-channel drive".into(),
                    "personality = \"block\"".into(),
                );
            }
            MediaConfig::Pcm(_) | MediaConfig::Null { .. } => {
                return contradiction(
                    "the media have no out-of-band bytes".into(),
                    "NAND media, or no protection".into(),
                );
            }
        };
        if nand.data == media::DataStore::None {
            return contradiction(
                "the drive stores no data to protect".into(),
                "data = \"memory\" or \"file\"".into(),
            );
        }
        let (has, needs) = (nand.geometry.oob_bytes, self.protected_oob_bytes());
        if has < needs {
            return contradiction(
                format!("oob_bytes is {has}"),
                format!(
                    "oob_bytes of {needs} and more: 16 of each sector for the FTL, and 8 for each \
                     logical block"
                ),
            );
        }
        Ok(())
    }

    /// Checks that rules decide about everything that the drive does. `manages` tells whether the drive
    /// manages its flash. The program is verified when the drive is powered on.
    fn check_rules(&self, manages: bool) -> Result<(), crate::DriveError> {
        let Some(rules) = &self.rules else { return Ok(()) };
        let contradiction = |what: &str, allowed: &str| {
            Err(crate::DriveError::Config { what: what.into(), allowed: allowed.into() })
        };
        if !manages {
            return contradiction(
                "rules of a drive that does not manage its flash",
                "personality = \"rules\" over NAND",
            );
        }
        if !(1..=DriveRulesConfig::ENGINES_MAX).contains(&rules.engines) {
            return contradiction(&format!("{} engines of rules", rules.engines), "1 to 64");
        }
        if !self.controller.namespaces.is_default() {
            return contradiction(
                "several namespaces of a drive whose application has all of it",
                "one namespace",
            );
        }
        if self.lba_bytes.is_some_and(|bytes| bytes != self.sector_bytes()) {
            return contradiction(
                "rules for blocks that are smaller than the sectors of the map",
                "lba_bytes equal to sector_bytes",
            );
        }
        Ok(())
    }

    /// Checks that a flush to the host's stable storage covers everything that the drive keeps.
    fn check_host_flush(&self) -> Result<(), crate::DriveError> {
        if !self.media.data().flushes_to_host() {
            return Ok(());
        }
        let contradiction = |what: &str, allowed: &str| {
            Err(crate::DriveError::Config { what: what.into(), allowed: allowed.into() })
        };
        if self.open_channel.device_l2p {
            return contradiction(
                "flushes to the host's device with a device L2P, whose file is not part of them",
                "flush = \"process\", or a drive without device_l2p",
            );
        }
        if self.controller.cmb.is_some_and(|cmb| cmb.protected) {
            return contradiction(
                "flushes to the host's device with a persistent controller memory buffer, which \
                 hosts write without commands",
                "flush = \"process\", or cmb_persistent = false",
            );
        }
        if matches!(self.pmr, Some(PmrConfig { store: PmrStore::Emulated { .. }, .. })) {
            return contradiction(
                "flushes to the host's device with a persistent memory region, which hosts write \
                 without commands",
                "flush = \"process\", or a region in a DAX file",
            );
        }
        if let MediaConfig::Pcm(pcm) = &self.media
            && pcm.sector_bytes as usize > mem::PAGE_BYTES
        {
            return contradiction(
                "flushes to the host's device of phase-change memory whose sectors are larger than \
                 a page: a crash of the host would tear a sector that is overwritten in place",
                "sector_bytes of at most 4096, or flush = \"process\"",
            );
        }
        Ok(())
    }

    fn check_open_channel(&self) -> Result<(), crate::DriveError> {
        let asked = self.open_channel != OpenChannelConfig::default();
        let contradiction = |what: &str, allowed: &str| {
            Err(crate::DriveError::Config { what: what.into(), allowed: allowed.into() })
        };
        if asked && self.personality != PersonalityKind::OpenChannel {
            return contradiction(
                "hints and a dual map are for drives whose host manages the flash",
                "personality = \"open-channel\"",
            );
        }
        if let (true, MediaConfig::Nand(nand)) = (self.open_channel.device_l2p, &self.media) {
            if nand.data == media::DataStore::None {
                return contradiction(
                    "a dual map of a medium that keeps nothing",
                    "data = \"memory\" or \"file\"",
                );
            }
            if (nand.geometry.oob_bytes as usize) < ftl::Oob::BYTES {
                return contradiction(
                    &format!("a dual map with oob_bytes = {}", nand.geometry.oob_bytes),
                    "it reads logical addresses from 16 out-of-band bytes per sector",
                );
            }
        }
        Ok(())
    }
}
