//! [`DriveConfig`]: what describes a drive. Plain values; [`DriveConfig::check`] says what cannot be.

use clock::Nanos;
use ftl::{FtlConfig, LineMetadata};
use media::MediaConfig;

/// What the drive exposes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PersonalityKind {
    /// Acknowledges at once, or after a fixed latency; has no media.
    Null,
    /// A block device: the drive manages its flash.
    Block,
    /// Physical page addresses: the host manages the flash (OC; LightNVM paper section 3).
    OpenChannel,
}

/// How a parallel unit chooses among the operations that wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PuScheduling {
    /// In order of arrival.
    Fifo,
    /// Reads before programs and erases; optionally a read suspends a running program or erase.
    ReadPriority {
        /// Whether and at what cost running programs and erases are suspended.
        suspend: Option<SuspendConfig>,
    },
}

/// Program and erase suspend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SuspendConfig {
    /// Time from the request until the array can read.
    pub suspend: Nanos,
    /// Time that the interrupted operation loses when it resumes.
    pub resume: Nanos,
    /// Suspensions of one operation at most, after which it runs to its end.
    pub max_per_operation: u32,
}

/// Which submission queue is served next (NVMe section 4.13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arbitration {
    /// Every queue in turn, up to `burst` commands each.
    RoundRobin {
        /// Commands taken from one queue in a row.
        burst: u16,
    },
    /// Urgent queues first, then high, medium and low by weight.
    Weighted {
        /// Commands taken from one queue in a row.
        burst: u16,
        /// Turns of high-priority queues per round.
        high: u16,
        /// Turns of medium-priority queues per round.
        medium: u16,
        /// Turns of low-priority queues per round.
        low: u16,
    },
}

/// The controller's own costs and limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerConfig {
    /// Time to fetch and decode a command; commands are fetched one at a time.
    pub fetch_latency: Nanos,
    /// Time from the end of a command to its completion entry.
    pub completion_latency: Nanos,
    /// Bytes per second between host memory and the drive, shared by both directions; 0 for no
    /// limit.
    pub dma_bytes_per_sec: u64,
    /// Bytes per second from host memory to the drive, if that is a path of its own and the other
    /// is for data out only; 0 if they are one.
    pub dma_to_device_bytes_per_sec: u64,
    /// I/O queue pairs that a host may create.
    pub max_io_queues: u16,
    /// Entries per queue at most.
    pub queue_depth: u16,
    /// Which submission queue is served next.
    pub arbitration: Arbitration,
    /// Memory of the drive that hosts reach into.
    pub cmb: Option<CmbConfig>,
    /// Whether it offers doorbells in memory (Doorbell Buffer Config), as emulators of controllers do.
    pub doorbell_buffer: bool,
    /// Reads of its own, by which a drive that manages its flash finds data that has aged.
    pub scrub: Option<MediaScrubConfig>,
}

/// How a drive that manages its flash looks after data that nobody reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaScrubConfig {
    /// Sectors read per second at most, and moved; 0 for none.
    pub sectors_per_sec: u32,
    /// From the beginning of a round over all data to the next one's at least.
    pub pass_interval_min: Nanos,
}

/// A controller memory buffer (NVMe section 4.7; LightNVM paper sections 2.2 and 2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmbConfig {
    /// Bytes: a multiple of 4 KiB that the CMBSZ register can tell.
    pub bytes: u64,
    /// Whether what is in it survives the loss of power (capacitors).
    pub protected: bool,
}

impl ControllerConfig {
    /// Bytes per second that data of writes come in at; 0 for no limit.
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
            arbitration: Arbitration::RoundRobin { burst: 8 },
            cmb: None,
            doorbell_buffer: false,
            scrub: None,
        }
    }
}

/// What the open-channel personality offers besides its commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenChannelConfig {
    /// What suspending a program or an erase costs when only a read's hint asks for it; `None` if
    /// the drive cannot, unless its [`PuScheduling`] suspends anyway.
    pub suspend_on_hint: Option<SuspendConfig>,
    /// Whether the drive keeps a map of its own from logical to physical addresses (thesis chapter
    /// 6, section 4.3).
    pub device_l2p: bool,
}

/// Bytes of a controller memory buffer at most.
const CMB_BYTES_MAX: u64 = 64 << 30;

/// The drive-side write buffer of the block personality.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteBuffer {
    /// Writes complete when they are on the media.
    None,
    /// Writes complete when they are in the buffer, which a power cut empties.
    Volatile {
        /// Bytes.
        bytes: u64,
    },
    /// Writes complete when they are in the buffer, which survives a power cut (capacitors).
    PowerLossProtected {
        /// Bytes.
        bytes: u64,
    },
}

/// The null personality's timing: thesis chapter 6 section 5 measures such a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NullConfig {
    /// Time of every command.
    pub latency: Nanos,
    /// Bytes per second, all commands together; 0 for no limit.
    pub bytes_per_sec: u64,
}

/// How data go between a parallel unit's registers and its channel, beyond `cache_program`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferConfig {
    /// Cache read: what has been read moves to the cache register, and the array may read again while
    /// the channel empties that. A unit has one cache register per plane beside its page register;
    /// programs use it too.
    pub cache_read: bool,
    /// Whether what has been read leaves from a register that programs do not use, as where an MLC
    /// die has a third latch per cell: data of programs may come, and programs run, meanwhile. Only
    /// with `cache_read`.
    pub dedicated_read_register: bool,
    /// Whether everything goes over the channel a page at a time, and others on the channel in
    /// between: each plane has registers of its own. Else what has been read goes in one piece, and
    /// data of programs by pages, or by sectors where reads go first.
    pub by_page: bool,
}

/// A drive.
#[derive(Clone, Debug, PartialEq)]
pub struct DriveConfig {
    /// What it is called in results; also its serial number.
    pub name: String,
    /// What it exposes.
    pub personality: PersonalityKind,
    /// What stores the bits.
    pub media: MediaConfig,
    /// The controller.
    pub controller: ControllerConfig,
    /// How parallel units choose.
    pub pu_scheduling: PuScheduling,
    /// Whether a read of a page in the PU's page register skips the array.
    pub page_register: bool,
    /// Whether the data of a program may be transferred while the array is still busy.
    pub cache_program: bool,
    /// How data go between registers and channels.
    pub transfers: TransferConfig,
    /// The write buffer of the block personality.
    pub write_buffer: WriteBuffer,
    /// The flash translation layer of the block personality.
    pub ftl: FtlConfig,
    /// Timing of the null personality.
    pub null: NullConfig,
    /// What the open-channel personality offers.
    pub open_channel: OpenChannelConfig,
}

impl DriveConfig {
    /// What a drive's own layer usually chooses. Its lines have no metadata: they would save a host
    /// commands when it opens the drive, but a drive reads its own out-of-band bytes at once when it
    /// gets power, and metadata would only take its capacity and bandwidth. A drive whose
    /// `reverse_map` is to be on the media turns it on.
    pub fn default_ftl() -> FtlConfig {
        FtlConfig { line_metadata: LineMetadata::Off, ..FtlConfig::default() }
    }

    /// Checks what the parts of a configuration demand of each other.
    ///
    /// # Errors
    /// The first contradiction.
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
        if self.controller.max_io_queues == 0 || self.controller.max_io_queues >= ring::MAX_QUEUES {
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
        self.check_open_channel()
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
