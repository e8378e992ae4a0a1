//! Random drives: their media, and their configuration.

use controller::{
    ArbitrationConfig, ControllerConfig, DriveConfig, PuScheduling, SuspendConfig, TransferConfig,
    WriteBuffer,
};
use ftl::{
    CapacityPlan, FlashGeometry, FtlConfig, GcReadPriority, LineMetadata, P2lLocation,
    RateLimiterKind, VictimPolicyKind,
};
use media::{CellType, DataStore, ErrorModel, NandConfig, NandGeometry, NandTiming};
use rng::Rng;
use time::Nanos;

fn random_nand(rng: &mut Rng, failing: bool, data: DataStore) -> NandConfig {
    let cell = [CellType::Slc, CellType::Slc, CellType::Mlc, CellType::Tlc][rng.below(4) as usize];
    let one_shot = cell != CellType::Slc && rng.chance(0.3);
    let pages = cell.bits() * (4 + rng.below(6) as u32);
    let pair_distance = match cell {
        CellType::Slc => 0,
        _ if one_shot => 0,
        _ => 1 + rng.below(3) as u32,
    };
    let sector_bytes = 512;
    let micros = |rng: &mut Rng, n: u64| Nanos(1_000 + rng.below(n * 1_000));
    let (read, program) = (micros(rng, 60), micros(rng, 700));
    NandConfig {
        geometry: NandGeometry {
            channels: 1 + rng.below(3) as u32,
            pus: 1 + rng.below(3) as u32,
            planes: 1 + rng.below(2) as u32,
            chunks: 14 + rng.below(16) as u32,
            pages,
            page_bytes: sector_bytes << rng.below(3),
            sector_bytes,
            oob_bytes: 16,
        },
        cell,
        one_shot,
        paired_page_distance: pair_distance,
        timing: NandTiming {
            read: [read, read * 2, read * 3, read * 4],
            program: [program, program * 3, program * 5, program * 7],
            erase: micros(rng, 3_000),
            channel_bytes_per_sec: rng.below(3) * 37_000_000,
        },
        errors: ErrorModel {
            factory_bad: if failing { 0.02 } else { 0.0 },
            program_fail: if failing { 0.003 } else { 0.0 },
            erase_fail: if failing { 0.01 } else { 0.0 },
            ..ErrorModel::default()
        },
        data,
        seed: rng.next_u64(),
    }
}

/// Returns a random drive.
pub(super) fn random_config(rng: &mut Rng, failing: bool, data: DataStore) -> DriveConfig {
    let nand = random_nand(rng, failing, data);
    let policies =
        [VictimPolicyKind::Greedy, VictimPolicyKind::CostBenefit, VictimPolicyKind::Fifo];
    let suspend = SuspendConfig {
        suspend: Nanos(rng.below(20_000)),
        resume: Nanos(rng.below(20_000)),
        max_per_operation: rng.below(4) as u32,
    };
    let bytes = rng.below(64) * 512;
    DriveConfig {
        pu_scheduling: match rng.below(3) {
            0 => PuScheduling::Fifo,
            1 => PuScheduling::ReadPriority { suspend: None },
            _ => PuScheduling::ReadPriority { suspend: Some(suspend) },
        },
        page_register: rng.chance(0.5),
        cache_program: rng.chance(0.5),
        write_buffer: match rng.below(4) {
            0 => WriteBuffer::None,
            1 | 2 => WriteBuffer::Volatile { bytes },
            _ => WriteBuffer::PowerLossProtected { bytes },
        },
        controller: ControllerConfig {
            fetch_latency: Nanos(rng.below(2) * rng.below(1_000)),
            completion_latency: Nanos(rng.below(2) * rng.below(1_000)),
            dma_bytes_per_sec: rng.below(2) * 900_000_000,
            arbitration: ArbitrationConfig::RoundRobin { burst: 1 + rng.below(9) as u16 },
            ..ControllerConfig::default()
        },
        ftl: FtlConfig {
            over_provisioning: 0.07 + rng.f64() * 0.5,
            active_pus: rng.below(u64::from(nand.geometry.total_pus()) + 1) as u32,
            victim_policy: policies[rng.below(3) as usize],
            hot_cold: rng.chance(0.5),
            hot_stream: false,
            gc_low_watermark_lines: 1 + rng.below(2) as u32,
            gc_high_watermark_lines: 1 + rng.below(3) as u32,
            write_buffer_sectors: 0,
            checkpoint_sectors: [0, 1, 200, 1_000][rng.below(4) as usize],
            gc_queue_depth_units: rng.below(20) as u32,
            // A map of this size is entirely in memory, but its pages are read from the media after
            // a power cut.
            map_cache_sectors: if nand.seed % 3 == 1 { 1 << 20 } else { 0 },
            instance_id: 0,
            dynamic_wear_leveling: false,
            line_metadata: if nand.seed % 8 == 7 { LineMetadata::Off } else { LineMetadata::Auto },
            p2l_location: reverse_map(&nand),
            static_wear_leveling: nand.seed as u32 % 3,
            rate_limiter: if nand.seed % 5 < 2 {
                RateLimiterKind::PID
            } else {
                RateLimiterKind::Proportional
            },
            gc_read_priority: [GcReadPriority::Off, GcReadPriority::PerPu, GcReadPriority::Global]
                [(nand.seed % 3) as usize],
            vector_copy: false,
            atomic_writes: false,
            owner_bytes: 0,
            addressing: ftl::SectorAddressing::Logical,
        },
        transfers: random_transfers(nand.seed),
        ..crate::common::drive(nand)
    }
}

/// Chooses the media as P2L location in two of three cases, if lines certainly have space for
/// metadata.
fn reverse_map(nand: &NandConfig) -> P2lLocation {
    let (shape, total) =
        (FlashGeometry::from_geometry(&nand.host_geometry()), nand.host_geometry().total_chunks());
    let fits = |active_pus| {
        let media = P2lLocation::Media;
        let config = FtlConfig { active_pus, p2l_location: media, ..FtlConfig::default() };
        CapacityPlan::new(&shape, &config, total as u32, total as u32).is_ok()
    };
    let wanted = nand.seed % 8 != 7 && !nand.seed.is_multiple_of(3);
    if wanted && (0..=shape.pus).all(fits) { P2lLocation::Media } else { P2lLocation::Memory }
}

/// Draws the transfer options from a separate generator, so that existing seeds keep their meaning.
fn random_transfers(seed: u64) -> TransferConfig {
    let mut rng = Rng::new(seed);
    let cache_read = rng.chance(0.5);
    let read_register = cache_read && rng.chance(0.5);
    TransferConfig { cache_read, dedicated_read_register: read_register, by_page: rng.chance(0.5) }
}
