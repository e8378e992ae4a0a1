//! Derives the identity of a drive, as reported to its host, from its configuration.

use media::MediaConfig;
use nvme::{IdentifyController, MediaTiming, ProtectionInfo, VendorExtensions, feature};
use time::Nanos;

use crate::admin::{AtomicUnit, ControllerIdentity, NamespaceIdentity, OptionalCommands};
use crate::controller::Personality;
use crate::host_interface::cmb::DeviceCmb;
use crate::host_interface::device_memory::DeviceMemory;
use crate::{ArbitrationConfig, DriveConfig};

/// No limit on the number of open chunks.
const NO_LIMIT: (u32, u32) = (0, 0);

pub(crate) fn controller_identity(
    config: &DriveConfig,
    personality: &Personality,
    memory: &DeviceMemory,
) -> ControllerIdentity {
    let nanos = |n: Nanos| u32::try_from(n.0).unwrap_or(u32::MAX);
    let (mut oob, mut optimal, mut geometry) = (0, 1, None);
    let mut timing = MediaTiming::default();
    let (mut unit_blocks, mut atomic) = (1, AtomicUnit::SECTOR);
    let (sectors, sector_bytes) = match personality {
        Personality::Null(d) => (d.sectors, d.sector_bytes),
        Personality::Pcm(d) => (d.sectors, d.pcm.config().sector_bytes),
        Personality::Block(d) => {
            unit_blocks = d.unit_blocks();
            optimal = d.array.nand.config().write_unit() * unit_blocks;
            if d.spaces.first.config().atomic_writes {
                atomic = atomic_unit(d.spaces.first.geometry().ws_opt, unit_blocks);
            }
            if config.protection.is_some() {
                oob = ProtectionInfo::BYTES as u16;
            }
            (d.capacity_blocks(), config.lba_bytes())
        }
        Personality::OpenChannel(d) => {
            optimal = d.geometry.ws_opt;
            oob = d.geometry.oob_bytes as u16;
            geometry = Some(d.geometry);
            (d.geometry.total_sectors(), d.geometry.sector_bytes)
        }
    };
    if let MediaConfig::Nand(nand) = &config.media {
        let types = nand.cell.bits() as usize;
        let programs = if nand.one_shot { 1 } else { types };
        let (reads, programs) = (&nand.timing.read[..types], &nand.timing.program[..programs]);
        let mean = |times: &[Nanos]| {
            nanos(Nanos(times.iter().map(|t| t.0).sum::<u64>() / times.len() as u64))
        };
        let max = |times: &[Nanos]| nanos(times.iter().copied().max().unwrap_or_default());
        timing = MediaTiming {
            read_typical: mean(reads),
            read_max: max(reads),
            write_typical: mean(programs),
            write_max: max(programs),
            reset_typical: nanos(nand.timing.erase),
            reset_max: nanos(nand.timing.erase),
        };
    }
    let log2 = |burst: u16| if burst == u16::MAX { 7 } else { burst.max(1).ilog2().min(6) as u8 };
    let arbitration = match config.controller.arbitration {
        ArbitrationConfig::RoundRobin { burst } => {
            feature::Arbitration { burst_log2: log2(burst), low: 1, medium: 1, high: 1 }
        }
        ArbitrationConfig::Weighted { burst, high, medium, low } => {
            feature::Arbitration { burst_log2: log2(burst), low, medium, high }
        }
    };
    let names = matches!(personality, Personality::Block(drive)
        if drive.spaces.first.config().addressing.is_named());
    let has_one_app =
        matches!(personality, Personality::Block(drive) if !drive.spaces.are_several());
    let flushes_to_host = config.media.data().flushes_to_host();
    ControllerIdentity {
        name: config.name.clone(),
        personality: config.personality,
        namespace: NamespaceIdentity {
            nsid: 1,
            generation: 0,
            sectors,
            sector_bytes,
            oob_bytes: oob,
            protection: config.protection,
            optimal_sectors: optimal,
            unit_sectors: unit_blocks,
            atomic,
            write_protected: false,
            block_commands: block_commands(personality),
            first_sector: 0,
        },
        max_transfer_bytes: 0,
        volatile_cache: match personality {
            // The page cache of the machine that runs the drive is a volatile cache, too.
            Personality::Block(d) => d.has_volatile_cache() || flushes_to_host,
            Personality::Pcm(_) => flushes_to_host,
            _ => false,
        },
        geometry,
        timing,
        max_open_chunks: NO_LIMIT,
        io_queues: config.controller.max_io_queues,
        queue_depth: config.controller.queue_depth,
        extensions: vendor_extensions(personality),
        protected_cmb: memory.cmb.as_ref().is_some_and(DeviceCmb::is_protected),
        optional: OptionalCommands {
            doorbell_buffer: config.controller.doorbell_buffer,
            get_lba_status: matches!(personality, Personality::Block(_)),
            lba_status: matches!(personality, Personality::Block(_) | Personality::Pcm(_)),
            keep_alive: config.controller.registers.is_some(),
            format: has_one_app && !names,
            namespaces: matches!(personality, Personality::Block(_)) && config.rules.is_none(),
            sanitize: has_one_app && !names,
            rules: config.rules.is_some(),
            names,
            namespace_notices: true,
        },
        arbitration,
    }
}

/// Returns the writes that a drive with atomic writes keeps whole. Where blocks are smaller than the
/// unit of the map, a write is divided at units: those that it covers in part are read first.
fn atomic_unit(write_unit: u32, unit_blocks: u32) -> AtomicUnit {
    match unit_blocks {
        1 => AtomicUnit { sectors: write_unit, boundary: 0 },
        blocks => AtomicUnit { sectors: blocks, boundary: blocks },
    }
}

/// Returns the optional commands that check, mark and copy blocks, as bits of ONCS: those of a drive
/// that manages its own flash.
fn block_commands(personality: &Personality) -> u16 {
    let Personality::Block(drive) = personality else { return 0 };
    let commands = IdentifyController::ONCS_COMPARE
        | IdentifyController::ONCS_VERIFY
        | IdentifyController::ONCS_COPY;
    match drive.can_mark_blocks() {
        true => commands | IdentifyController::ONCS_WRITE_UNCORRECTABLE,
        false => commands,
    }
}

/// Returns the vendor extensions of an open-channel drive.
fn vendor_extensions(personality: &Personality) -> VendorExtensions {
    let Personality::OpenChannel(drive) = personality else { return VendorExtensions::default() };
    let nand = drive.array.nand.config();
    let mut flags = VendorExtensions::PLANE_MODES
        | VendorExtensions::NOTIFICATIONS
        | VendorExtensions::COPY_METADATA;
    if drive.array.can_suspend_on_hint() {
        flags |= VendorExtensions::SUSPEND;
    }
    if nand.errors.read_retries > 0 {
        flags |= VendorExtensions::LIMITED_RETRY;
    }
    if drive.device_l2p.is_some() {
        flags |= VendorExtensions::DEVICE_L2P;
    }
    VendorExtensions {
        planes: u16::try_from(nand.geometry.planes).unwrap_or(u16::MAX).into(),
        read_retries: nand.errors.read_retries.into(),
        l2p_entries: drive.device_l2p.as_ref().map_or(0, |m| m.entries().into()).into(),
        ..VendorExtensions::with_flags(flags)
    }
}
