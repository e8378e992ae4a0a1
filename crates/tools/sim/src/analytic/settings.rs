//! The settings in a drive's [summary](super::summary): media errors, FTL settings and host
//! interface. It lists every key of `[drive]` and `[target]` that changes the behavior of a drive,
//! whether set or default.

use controller::{ArbitrationConfig, DriveConfig, PersonalityKind, PmrStore, WriteBuffer};
use ftl::{FtlConfig, GcReadPriority, P2lLocation, RateLimiterKind};
use lnvm::ScrubConfig;
use media::{CellType, ErrorModel, NandConfig};
use scenario::format::{bytes_binary, count, duration, rate};
use scenario::{Capacity, DriveSpec, HostTarget};
use time::Nanos;

use super::summary::{line, section};

fn yes_no(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}

/// Formats a time, or says that the event never happens.
fn after(time: Nanos) -> String {
    if time == Nanos::ZERO { "never".into() } else { format!("after {}", duration(time.0)) }
}

/// Writes the settings of `[drive.errors]`.
pub(super) fn errors(out: &mut String, nand: &NandConfig) {
    let ErrorModel {
        factory_bad,
        program_fail,
        erase_fail,
        die_fail,
        rber,
        rber_growth,
        ecc_bits,
        endurance,
        read_retries,
        retry_error_fraction: retry_leaves,
        retention,
        disturb_reads,
    } = nand.errors;
    section(out, "errors");
    line(out, "bad from the factory", &format!("{} % of chunks", factory_bad * 100.0));
    let failures = format!("{program_fail} per page, {erase_fail} per chunk");
    line(out, "program, erase failures", &failures);
    if die_fail > 0.0 {
        line(out, "die failures", &format!("{die_fail} per program or erase"));
    }
    let rated = match (endurance, nand.cell) {
        (0, CellType::Slc) => "the usual of SLC".to_owned(),
        (0, CellType::Mlc) => "the usual of MLC".to_owned(),
        (0, CellType::Tlc) => "the usual of TLC".to_owned(),
        (0, CellType::Qlc) => "the usual of QLC".to_owned(),
        (cycles, _) => count(cycles.into()),
    };
    line(out, "endurance", &format!("{rated} program/erase cycles"));
    if rber == 0.0 {
        return line(out, "bit errors", "none");
    }
    let grown = format!("{rber} when new, {rber_growth} times that at the rated cycles");
    line(out, "bit errors", &grown);
    line(out, "corrected", &format!("{ecc_bits} bits per sector"));
    let retries = match read_retries {
        0 => "none".to_owned(),
        n => format!("{n} at most, each leaves {} % of the errors", retry_leaves * 100.0),
    };
    line(out, "read retries", &retries);
    let reads = match disturb_reads {
        0 => "never".to_owned(),
        n => format!("after {} sectors read", count(n.into())),
    };
    let doubled = format!("{} (retention), {reads} (read disturb)", after(retention));
    line(out, "errors double", &doubled);
}

/// Writes the settings of `[drive.ftl]` or `[target]`, except those of the capacity.
pub(super) fn ftl_lines(out: &mut String, plan: &DriveSpec, ftl: &FtlConfig, capacity: &Capacity) {
    let sector = u64::from(capacity.sector_bytes);
    let bytes = |sectors: u64| bytes_binary(sectors * sector);
    section(out, "translation layer");
    let separate = if ftl.hot_cold { "lines of its own" } else { "the lines of users' data" };
    line(out, "moved data goes to", separate);
    let collects = format!(
        "with less than {} free, users wait at {}; {} in flight",
        bytes(capacity.high_watermark_sectors),
        bytes(capacity.low_watermark_sectors),
        match ftl.gc_queue_depth_units {
            0 => "two write units per PU".to_owned(),
            1 => "1 write unit".to_owned(),
            n => format!("{n} write units"),
        },
    );
    line(out, "garbage collection", &collects);
    let limiter = match ftl.rate_limiter {
        RateLimiterKind::Proportional => "share of the free space in between".to_owned(),
        RateLimiterKind::Pid { kp, ki, kd } => format!("PID, gains {kp}, {ki}, {kd}"),
    };
    line(out, "rate limiter", &limiter);
    let yields = match ftl.gc_read_priority {
        GcReadPriority::Off => "no reads",
        GcReadPriority::PerPu => "reads that wait for the PU it wants",
        GcReadPriority::Global => "any read",
    };
    line(out, "collection yields to", yields);
    let own = match (&plan.target, plan.config.write_buffer) {
        (
            HostTarget::None,
            WriteBuffer::Volatile { bytes } | WriteBuffer::PowerLossProtected { bytes },
        ) => bytes,
        _ => 0,
    };
    let needs = capacity.write_buffer_sectors * sector;
    let buffer = match own.max(u64::from(ftl.write_buffer_sectors) * sector) >= needs {
        true => bytes_binary(own.max(needs)),
        false => format!("{}, which is what the geometry needs", bytes_binary(needs)),
    };
    line(out, "write buffer", &buffer);
    let checkpoint = match ftl.checkpoint_sectors {
        0 => format!("every {} of users' data", bytes(capacity.checkpoint_sectors)),
        sectors => format!("every {} written or moved", bytes(sectors.into())),
    };
    line(out, "checkpoints of the map", &checkpoint);
    let map = match ftl.map_cache_sectors {
        0 => "all in memory".to_owned(),
        sectors => format!("{} in memory, the rest on the media", bytes(sectors.into())),
    };
    let reverse = match ftl.p2l_location {
        P2lLocation::Memory => "memory",
        P2lLocation::Media => "the metadata of lines",
    };
    line(out, "map", &format!("{map}; reverse map in {reverse}"));
    let static_wear = match ftl.static_wear_leveling {
        0 => "never".to_owned(),
        n => format!("from {} erases behind", count(n.into())),
    };
    let wear = format!(
        "least worn chunks first: {}; cold data moved: {static_wear}",
        yes_no(ftl.dynamic_wear_leveling)
    );
    line(out, "wear levelling", &wear);
    if let Some(ScrubConfig { sectors_per_sec, cold_after, repeat_after, .. }) = plan.scrub {
        let patrol = format!(
            "{}, chunks {} old, every {}",
            rate(f64::from(sectors_per_sec) * sector as f64),
            duration(cold_after.0),
            duration(repeat_after.0)
        );
        line(out, "patrol", &patrol);
    } else if let (Some(patrol), HostTarget::None) = (plan.config.controller.scrub, &plan.target) {
        let patrol = format!(
            "{}, everything every {}",
            rate(f64::from(patrol.sectors_per_sec) * sector as f64),
            duration(patrol.pass_interval_min.0)
        );
        line(out, "patrol", &patrol);
    } else {
        line(out, "patrol", "none");
    }
}

/// Writes the settings of parallel units and channels, except their timing.
pub(super) fn transfers(out: &mut String, config: &DriveConfig) {
    let t = &config.transfers;
    let what = format!(
        "page register: {}, cache program: {}, cache read: {}, read register: {}, by page: {}",
        yes_no(config.page_register),
        yes_no(config.cache_program),
        yes_no(t.cache_read),
        yes_no(t.dedicated_read_register),
        yes_no(t.by_page)
    );
    line(out, "PU registers", &what);
}

/// Writes the features of the host interface beyond plain commands.
pub(super) fn interface(out: &mut String, config: &DriveConfig) {
    let c = &config.controller;
    let arbitration = match c.arbitration {
        ArbitrationConfig::RoundRobin { burst } => format!("round robin, bursts of {burst}"),
        ArbitrationConfig::Weighted { burst, high, medium, low } => {
            format!("weighted {high} / {medium} / {low}, bursts of {burst}")
        }
    };
    line(out, "arbitration", &arbitration);
    let cmb = match c.cmb {
        None => "none".to_owned(),
        Some(cmb) if cmb.protected => {
            format!("{}, survives the loss of power", bytes_binary(cmb.bytes))
        }
        Some(cmb) => bytes_binary(cmb.bytes),
    };
    line(out, "memory buffer (CMB)", &cmb);
    if let Some(pmr) = &config.pmr {
        let memory = match &pmr.store {
            PmrStore::Emulated { bytes } => bytes_binary(*bytes),
            PmrStore::Dax { path } => path.display().to_string(),
        };
        let (store, persist) = (duration(pmr.costs.store.0), duration(pmr.costs.persist.0));
        let shown = format!("{memory}, {store} per cache line stored, {persist} per persist");
        line(out, "memory region (PMR)", &shown);
    }
    line(out, "doorbells in memory", yes_no(c.doorbell_buffer));
    if let Some(registers) = c.registers {
        let shown = format!(
            "ready after {}, within {} at most",
            duration(registers.ready_time.0),
            duration(registers.timeout.0)
        );
        line(out, "registers", &shown);
    }
    if let Some(thresholds) = c.latency_monitor {
        let shown = thresholds.map(|t| duration(t.0)).join(", ");
        line(out, "latency monitor", &format!("counts from {shown} on"));
    }
    if config.personality == PersonalityKind::OpenChannel {
        let hint = match config.open_channel.suspend_on_hint {
            None => "no".to_owned(),
            Some(s) => format!(
                "in {}, resumed in {}, at most {} times",
                duration(s.suspend.0),
                duration(s.resume.0),
                s.max_per_operation
            ),
        };
        line(out, "suspends on a hint", &hint);
        line(out, "map of its own", yes_no(config.open_channel.device_l2p));
    }
}
