//! [`summary`]: the output of `sluice drive show`.

use std::fmt::Write as _;

use controller::{DriveConfig, PersonalityKind, PuScheduling, WriteBuffer};
use ftl::{FtlConfig, LineMetadata, VictimPolicyKind};
use media::{CellType, DataStore, MediaConfig, NandConfig};
use nvme::PpaFormat;
use scenario::format::{bytes_binary, bytes_decimal, count, duration, rate};
use scenario::{Capacity, DriveKind, DriveSpec, HostTarget};

use super::other_summaries::{real_summary, sata_summary};
use super::{ClosedFormLimits, Limit, mean_program, mean_read, settings};

/// Host memory that a simulated drive needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Mapping tables and chunk state, in bytes.
    pub tables: u64,
    /// Sector data in memory if all sectors have been written, in bytes.
    pub data: u64,
}

/// Table bytes per physical sector: four of the L2P map, four of the P2L map, and half a byte of
/// state.
const TABLE_BYTES_PER_SECTOR: f64 = 8.5;

impl Memory {
    /// Returns the memory for a drive.
    pub fn from_spec(plan: &DriveSpec) -> Memory {
        let (sectors, sector_bytes, data) = match &plan.config.media {
            MediaConfig::Nand(nand) => {
                let g = &nand.geometry;
                let sectors = g.total_bytes() / u64::from(g.sector_bytes);
                (sectors, u64::from(g.sector_bytes) + u64::from(g.oob_bytes), Some(&nand.data))
            }
            MediaConfig::Pcm(pcm) => {
                let sector = u64::from(pcm.sector_bytes);
                (pcm.bytes / sector, sector, Some(&pcm.data))
            }
            MediaConfig::Null { .. } => (0, 0, None),
        };
        let tables = match plan.capacity {
            Some(_) => (sectors as f64 * TABLE_BYTES_PER_SECTOR) as u64,
            None => 0,
        };
        let data = match data {
            Some(DataStore::Memory | DataStore::Preallocated(_)) => sectors * sector_bytes,
            _ => 0,
        };
        Memory { tables, data }
    }
}

/// Returns all properties of a drive, for a terminal.
pub fn summary(plan: &DriveSpec) -> String {
    let mut out = String::new();
    let config = &plan.config;
    match &plan.kind {
        DriveKind::Nvme => {}
        DriveKind::Ahci(sata) => return sata_summary(&config.name, sata),
        real => return real_summary(&config.name, real),
    }
    let mut heading = format!("drive \"{}\"", config.name);
    if let Some(preset) = &plan.preset {
        let _ = write!(heading, ", preset {preset}");
    }
    out.push_str(&heading);
    out.push('\n');
    line(&mut out, "personality", &personality(config, &plan.target));
    match &config.media {
        MediaConfig::Nand(nand) => nand_lines(&mut out, plan, nand),
        MediaConfig::Pcm(pcm) => {
            section(&mut out, "medium");
            line(&mut out, "kind", "phase-change memory, in place, no erase");
            line(&mut out, "shape", &format!("{} channels × {} PUs", pcm.channels, pcm.pus));
            line(&mut out, "capacity", &bytes_in_both_units(pcm.bytes));
            line(&mut out, "sector", &format!("{} bytes", count(pcm.sector_bytes.into())));
            line(
                &mut out,
                "read, write",
                &format!("{}, {}", duration(pcm.read.0), duration(pcm.write.0)),
            );
            line(&mut out, "channel", &bandwidth(pcm.channel_bytes_per_sec));
            line(&mut out, "data", &data(&pcm.data));
        }
        MediaConfig::Null { bytes, sector_bytes } => {
            section(&mut out, "medium");
            line(&mut out, "kind", "none");
            line(&mut out, "capacity", &bytes_in_both_units(*bytes));
            line(&mut out, "sector", &format!("{} bytes", count((*sector_bytes).into())));
            line(&mut out, "latency", &duration(config.null.latency.0));
            line(&mut out, "bandwidth", &bandwidth(config.null.bytes_per_sec));
        }
    }
    if let Some(lba_bytes) = config.lba_bytes {
        section(&mut out, "logical blocks");
        line(&mut out, "block", &format!("{} bytes", count(lba_bytes.into())));
        if plan.capacity.is_some() {
            let unit = format!("{} bytes", count(config.sector_bytes().into()));
            line(&mut out, "read, modified, written", &unit);
        }
    }
    if config.protection.is_some() {
        section(&mut out, "protection information");
        line(&mut out, "type", "1: guard and reference tag");
    }
    controller_lines(&mut out, config);
    limit_lines(&mut out, plan);
    let memory = Memory::from_spec(plan);
    section(&mut out, "memory needed on this machine");
    line(&mut out, "tables", &bytes_binary(memory.tables));
    line(&mut out, "data, when full", &bytes_binary(memory.data));
    out
}

pub(super) fn section(out: &mut String, name: &str) {
    let _ = write!(out, "\n{name}\n");
}

pub(super) fn line(out: &mut String, name: &str, value: &str) {
    let _ = writeln!(out, "  {name:<24}{value}");
}

pub(super) fn bytes_in_both_units(bytes: u64) -> String {
    format!("{} = {}", bytes_binary(bytes), bytes_decimal(bytes))
}

pub(super) fn bandwidth(bytes_per_sec: u64) -> String {
    if bytes_per_sec == 0 { "no limit".into() } else { rate(bytes_per_sec as f64) }
}

fn data(data: &DataStore) -> String {
    match data {
        DataStore::Memory => "kept in memory, sparse".into(),
        DataStore::Preallocated(bytes) => {
            format!("kept in memory, {} of it allocated at the start", bytes_binary(*bytes))
        }
        DataStore::File(path) => format!("kept in the image {}", path.display()),
        DataStore::DurableFile(path) => {
            format!("kept in the image {}, and flushed to its device", path.display())
        }
        DataStore::Overlay(path) => {
            format!("kept in memory, over the image {}", path.display())
        }
        DataStore::None => "not kept: reads return a pattern of the address".into(),
    }
}

fn personality(config: &DriveConfig, target: &HostTarget) -> String {
    let who = match (config.personality, target) {
        (PersonalityKind::Null, _) => {
            return "null: every command completes, nothing is kept".into();
        }
        (PersonalityKind::Block, _) if config.rules.is_some() => {
            return "rules: rules decide, and the drive manages its flash".into();
        }
        (PersonalityKind::Block, _) => "the drive manages its flash",
        (PersonalityKind::OpenChannel, HostTarget::Pblk(_)) => "pblk on the host manages the flash",
        (PersonalityKind::OpenChannel, HostTarget::Rules(_)) => {
            "rules on the host decide, and pblk manages the flash"
        }
        (PersonalityKind::OpenChannel, HostTarget::Rrpc(_)) => {
            "rrpc on the host manages the flash, the drive keeps the map"
        }
        (PersonalityKind::OpenChannel, HostTarget::Named(named)) => {
            return format!("open-channel: target {} of its partition table", named.name);
        }
        (PersonalityKind::OpenChannel, HostTarget::None) => {
            "nobody manages the flash yet: raw PPAs"
        }
    };
    let what = if config.personality == PersonalityKind::Block { "block" } else { "open-channel" };
    format!("{what}: {who}")
}

fn nand_lines(out: &mut String, plan: &DriveSpec, nand: &NandConfig) {
    let g = &nand.geometry;
    section(out, "geometry");
    line(
        out,
        "parallel units",
        &format!("{} channels × {} PUs = {}", g.channels, g.pus, count(g.total_pus().into())),
    );
    line(
        out,
        "parallel unit",
        &format!("{} planes, {} chunks of {} pages", g.planes, g.chunks, g.pages),
    );
    line(
        out,
        "page",
        &format!(
            "{} per plane, {} per program (ws_opt = {} sectors)",
            bytes_binary(g.page_bytes.into()),
            bytes_binary(u64::from(nand.write_unit()) * u64::from(g.sector_bytes)),
            nand.write_unit()
        ),
    );
    line(
        out,
        "sector",
        &format!("{} bytes + {} out-of-band", count(g.sector_bytes.into()), g.oob_bytes),
    );
    let cell = match nand.cell {
        CellType::Slc => "SLC",
        CellType::Mlc => "MLC",
        CellType::Tlc => "TLC",
        CellType::Qlc => "QLC",
    };
    let how = if nand.one_shot {
        "word lines programmed in one shot".to_owned()
    } else if nand.paired_page_distance == 0 {
        "pages readable at once".to_owned()
    } else {
        format!(
            "a page is readable {} {} later (mw_cunits = {} sectors)",
            nand.paired_page_distance,
            if nand.paired_page_distance == 1 { "page" } else { "pages" },
            nand.mw_cunits()
        )
    };
    line(out, "cell", &format!("{cell}: {how}"));
    if let Ok(format) = PpaFormat::from_geometry(&nand.host_geometry()) {
        line(out, "PPA format (bits)", &format.to_string());
    }
    line(out, "data", &data(&nand.data));
    capacity_lines(out, plan, g.total_bytes());
    let t = &nand.timing;
    let bits = nand.cell.bits() as usize;
    section(out, "timing");
    line(out, "tR", &by_page_type(&t.read[..bits], mean_read(nand).0));
    let program = if nand.one_shot { &t.program[..1] } else { &t.program[..bits] };
    line(out, "tPROG", &by_page_type(program, mean_program(nand).0));
    line(out, "tBERS", &duration(t.erase.0));
    line(
        out,
        "channel",
        &if t.channel_bytes_per_sec == 0 {
            "transfers take no time".to_owned()
        } else {
            let sector = time::Nanos::transfer(g.sector_bytes.into(), t.channel_bytes_per_sec);
            format!("{}, {} per sector", rate(t.channel_bytes_per_sec as f64), duration(sector.0))
        },
    );
    let policy = match plan.config.pu_scheduling {
        PuScheduling::Fifo => "in order of arrival".to_owned(),
        PuScheduling::ReadPriority { suspend: None } => "reads first".to_owned(),
        PuScheduling::ReadPriority { suspend: Some(s) } => format!(
            "reads first; programs and erases suspended in {}, resumed in {}, at most {} times",
            duration(s.suspend.0),
            duration(s.resume.0),
            s.max_per_operation
        ),
    };
    line(out, "PU queue", &policy);
    settings::transfers(out, &plan.config);
    settings::errors(out, nand);
    line(out, "seed", &nand.seed.to_string());
}

fn by_page_type(times: &[time::Nanos], mean: u64) -> String {
    if times.windows(2).all(|w| w[0] == w[1]) {
        return duration(mean);
    }
    let each: Vec<String> = times.iter().map(|t| duration(t.0)).collect();
    format!("{} by page type, mean {}", each.join(" / "), duration(mean))
}

fn capacity_lines(out: &mut String, plan: &DriveSpec, raw: u64) {
    section(out, "capacity");
    line(out, "raw", &bytes_in_both_units(raw));
    let ftl = plan.target.ftl().unwrap_or(&plan.config.ftl);
    let Some(capacity) = &plan.capacity else {
        return;
    };
    line(out, "logical", &bytes_in_both_units(capacity.logical_bytes()));
    line(
        out,
        "over-provisioning",
        &format!(
            "{:.2} % (physical/logical − 1; lines held back not counted as physical)",
            capacity.over_provisioning() * 100.0
        ),
    );
    line(out, "lines", &lines(capacity, ftl));
    line(out, "line metadata", &line_metadata(capacity, ftl, &plan.target));
    settings::ftl_lines(out, plan, ftl, capacity);
}

fn line_metadata(capacity: &Capacity, ftl: &FtlConfig, target: &HostTarget) -> String {
    match (capacity.line_metadata_units, ftl.line_metadata) {
        (0, _) if matches!(target, HostTarget::Rrpc(_)) => "none: the drive keeps the map".into(),
        (0, LineMetadata::Off) => "none".into(),
        (0, _) => "none: it would take more than one part in 32 of a line".into(),
        (units, _) => format!("{units} write units of each line"),
    }
}

fn lines(capacity: &Capacity, ftl: &FtlConfig) -> String {
    let policy = match ftl.victim_policy {
        VictimPolicyKind::Greedy => "greedy",
        VictimPolicyKind::CostBenefit => "cost-benefit",
        VictimPolicyKind::Fifo => "first in, first out",
        VictimPolicyKind::CostWear => "cost of valid sectors and wear",
    };
    let shards = match capacity.shards {
        1 => String::new(),
        n => format!(" in {n} shards"),
    };
    format!(
        "{} of {} over {} PUs{shards}, {} held back; {} chunks for the journal; victims: {policy}",
        count(capacity.lines),
        bytes_binary(capacity.line_sectors * u64::from(capacity.sector_bytes)),
        capacity.active_pus,
        capacity.reserved_lines,
        capacity.journal_chunks
    )
}

fn controller_lines(out: &mut String, config: &DriveConfig) {
    let c = &config.controller;
    section(out, "controller");
    line(
        out,
        "fetch, complete",
        &format!("{}, {}", duration(c.fetch_latency.0), duration(c.completion_latency.0)),
    );
    let dma = bandwidth(c.dma_bytes_per_sec);
    let dma = match c.dma_to_device_bytes_per_sec {
        0 => dma,
        own => format!("{dma} out, {} in", bandwidth(own)),
    };
    line(out, "DMA", &dma);
    line(out, "queues", &format!("{} of {} entries at most", c.max_io_queues, c.queue_depth));
    if config.personality == PersonalityKind::Block {
        let buffer = match config.write_buffer {
            WriteBuffer::None => "none: a write completes when it is on the media".to_owned(),
            WriteBuffer::Volatile { bytes } => {
                format!("{}, lost when power is cut", bytes_binary(bytes))
            }
            WriteBuffer::PowerLossProtected { bytes } => {
                format!("{}, power-loss protected", bytes_binary(bytes))
            }
        };
        line(out, "write buffer", &buffer);
    }
    settings::interface(out, config);
}

fn limit_lines(out: &mut String, plan: &DriveSpec) {
    let limits = ClosedFormLimits::from_spec(plan);
    section(out, "limits (closed forms)");
    limit_line(out, "random reads", limits.random_read.as_ref());
    limit_line(out, "sequential reads", limits.sequential_read.as_ref());
    limit_line(out, "writes, fresh", limits.program.as_ref());
    if let Some(sustained) = &limits.sustained {
        limit_line(out, "random writes, steady", sustained.limit.as_ref());
        line(
            out,
            "write amplification",
            &format!(
                "{:.2} under uniform random writes at {:.2} % effective spare space",
                sustained.write_amplification,
                sustained.effective_spare * 100.0
            ),
        );
        let free = format!(
            "{:.1} of {} lines are free on average, the others hold data; nominally {:.2} %",
            sustained.free_lines,
            plan.capacity.map_or(0, |c| c.lines),
            sustained.over_provisioning * 100.0
        );
        line(out, "effective spare space", &free);
        if let Some(outstanding) = sustained.outstanding_min {
            let least = format!(
                "at least {} sectors: without a write buffer units wait to be full",
                count(outstanding)
            );
            line(out, "writes outstanding", &least);
        }
    }
    line(out, "read of a sector, QD 1", &duration(limits.read_latency.0));
    line(
        out,
        "write, QD 1",
        &format!(
            "{} for {}",
            duration(limits.write_latency.0),
            bytes_binary(limits.write_latency_bytes)
        ),
    );
}

fn limit_line(out: &mut String, name: &str, limit: Option<&Limit>) {
    let Some(limit) = limit else {
        return line(out, name, "no limit");
    };
    let mut text = format!(
        "{:>11}  {:>9} IOPS of {:<7} bound by {}",
        rate(limit.bytes_per_sec()),
        count(limit.iops().round() as u64),
        bytes_binary(limit.request_bytes),
        limit.bound()
    );
    if let Some((next, iops)) = limit.bounds.get(1) {
        let _ = write!(text, " (next: {next}, {})", rate(iops * limit.request_bytes as f64));
    }
    line(out, name, &text);
}
