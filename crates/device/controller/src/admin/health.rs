//! The health of a drive: the inputs of its health log, and the cloud health log.

use ftl::Ftl;
use media::Nand;
use nvme::CloudHealthLog;

use crate::WriteBuffer;
use crate::admin::HealthCounters;
use crate::controller::{Controller, Personality};

/// The value of a capacitor that the drive does not have.
const NO_CAPACITOR: u16 = 0xffff;

/// Returns the counters that the health logs report.
pub(crate) fn health_counters(controller: &Controller) -> HealthCounters {
    let powered =
        controller.time.now.since(controller.time.powered_at.unwrap_or(controller.time.now));
    let mut health = HealthCounters {
        bytes_read: controller.stats.bytes_read,
        bytes_written: controller.stats.bytes_written,
        reads: controller.stats.reads,
        writes: controller.stats.writes,
        powered,
        busy: controller.time.busy(),
        power_cycles: 1,
        spare_percent: 100,
        ..HealthCounters::default()
    };
    let Some(nand) = controller.array().map(|array| &array.nand) else { return health };
    let (stats, config) = (nand.stats(), nand.config());
    let rated = match config.errors.endurance {
        0 => config.cell.rated_cycles(),
        n => n,
    };
    let used = stats.wear.mean * 100.0 / f64::from(rated);
    health.used_percent = used.min(255.0) as u8;
    health.media_errors = stats.uncorrectable_reads;
    health.power_cuts = stats.power_cuts;
    health.power_cycles += stats.power_cuts;
    if let Personality::Block(drive) = &controller.personality {
        health.spare_percent = drive.spare_percent();
        health.read_only = drive.is_read_only();
        health.media_errors += drive.protection.as_ref().map_or(0, |p| p.errors.total());
    } else {
        // All chunks are the host's: there is no spare space of the drive's own.
        let chunks = config.host_geometry().total_chunks().max(1);
        health.spare_percent = (100 - u64::from(stats.offline_chunks) * 100 / chunks) as u8;
    }
    health.cloud = Some(cloud_health(controller, nand, health.spare_percent));
    health
}

/// Returns the cloud health log. What is not modeled is 0: parity over dies, the
/// link, temperature, the wear of the journal's chunks, an estimate of the endurance.
fn cloud_health(controller: &Controller, nand: &Nand, spare_percent: u8) -> CloudHealthLog {
    let (stats, config) = (nand.stats(), nand.config());
    let wide = |n: u64| u128::from(n).into();
    let sector = u64::from(config.geometry.sector_bytes);
    let unit = u64::from(config.write_unit()) * sector;
    let mut log = CloudHealthLog::new();
    log.media_bytes_written = wide(stats.programs * unit);
    log.media_bytes_read = wide(stats.reads * sector);
    log.bad_system_blocks = CloudHealthLog::bad_blocks(0, 100);
    log.uncorrectable_reads = stats.uncorrectable_reads.into();
    log.soft_ecc_errors = stats.retried_reads.into();
    log.erases_max = stats.wear.max.into();
    log.erases_min = stats.wear.min.into();
    log.incomplete_shutdowns = (stats.power_cuts.min(u32::MAX.into()) as u32).into();
    log.capacitor_health = NO_CAPACITOR.into();
    let mut failed = u64::from(stats.offline_chunks);
    if let Personality::Block(drive) = &controller.personality {
        failed = drive.failed_chunks().into();
        let lines: u32 = drive.spaces.all().map(|ftl| ftl.capacity_plan().lines).sum();
        let free: f64 = drive.spaces.all().map(Ftl::free_lines).sum();
        let share = free / f64::from(lines.max(1));
        log.free_blocks = (share * 100.0).clamp(0.0, 100.0) as u8;
        log.refreshes.copy_from_slice(&drive.spaces.stats().refreshed_lines.to_le_bytes()[..7]);
        log.mapped = drive.mapped_blocks().into();
        let errors = drive.protection.as_ref().map_or(0, |p| p.errors.total());
        log.end_to_end_detected = u32::try_from(errors).unwrap_or(u32::MAX).into();
        if let WriteBuffer::PowerLossProtected { .. } = controller.config.write_buffer {
            log.capacitor_health = 100.into();
            log.protected_power_losses = wide(stats.power_cuts);
        }
    }
    log.bad_user_blocks = CloudHealthLog::bad_blocks(failed, spare_percent);
    log
}
