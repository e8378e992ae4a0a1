//! [`Limits`]: what a drive can do at most, in closed form, and which resource says so.
//!
//! | limit | resources, the least of which it is |
//! |---|---|
//! | random reads | PUs / (tR + transfer), or / max(tR, transfer) with cache read, channels × bandwidth / size, DMA / size, 1 / fetch |
//! | sequential reads | the same for whole multi-plane pages |
//! | programs | PUs × planes × page / tPROG, channels × bandwidth, DMA; PUs are the active ones |
//! | sustained random writes | PUs × planes × page / (WA·tPROG + (W−1)·(R·tR + transfer) + WA·tBERS/N), channels / (WA+W−1), DMA |
//!
//! with tR and tPROG averaged over page types, N programs per chunk, W what users write and garbage
//! collection moves, and WA with metadata, from [`steady`]. R is how often garbage collection reads a page
//! per page that it moves: victims have valid sectors in almost every page, so that R is about 1/u, where
//! u = 1 − 1/W of a victim is valid. The transfer is without cache read only. These are the forms that the simulated drive is tested against
//! (`tests/closed_forms.rs`).
//!
//! | file | noun |
//! |---|---|
//! | [`greedy`] | write amplification under uniform random writes |
//! | [`steady`] | which spare space that is for, and what metadata adds |
//! | [`sheet`], `settings` | what `sluice drive show` prints |

pub mod greedy;
mod settings;
pub mod steady_state;
pub mod summary;
#[cfg(test)]
mod tests;

use std::fmt;

use clock::Nanos;
use drive::{DriveConfig, PersonalityKind, WriteBuffer};
use ftl::{FtlConfig, VictimPolicyKind};
use media::{MediaConfig, NandConfig};

use crate::scenario::{Capacity, DriveSpec, Target};
use steady_state::SteadyState;

/// What can bind a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// The flash arrays.
    ParallelUnits,
    /// The flash arrays that are written at a time.
    ActiveUnits,
    /// The channels.
    Channels,
    /// The path between host memory and drive.
    Dma,
    /// The controller, which fetches one command at a time.
    Fetch,
    /// The null personality's bandwidth.
    NullBandwidth,
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Resource::ParallelUnits => "parallel units",
            Resource::ActiveUnits => "active parallel units",
            Resource::Channels => "channels",
            Resource::Dma => "DMA",
            Resource::Fetch => "command fetch",
            Resource::NullBandwidth => "null bandwidth",
        })
    }
}

/// A highest rate: requests of one size, and what binds them.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    /// Bytes of a request.
    pub request_bytes: u64,
    /// Every resource that binds, with the requests per second it allows; least first, never empty.
    pub bounds: Vec<(Resource, f64)>,
}

impl Limit {
    /// `None` if nothing binds.
    fn new(request_bytes: u64, bounds: Vec<(Resource, Option<f64>)>) -> Option<Limit> {
        let mut bounds: Vec<(Resource, f64)> =
            bounds.into_iter().filter_map(|(r, rate)| Some((r, rate?))).collect();
        bounds.sort_by(|a, b| a.1.total_cmp(&b.1));
        (!bounds.is_empty()).then_some(Limit { request_bytes, bounds })
    }

    /// Requests per second.
    pub fn iops(&self) -> f64 {
        self.bounds[0].1
    }

    /// Bytes per second.
    pub fn bytes_per_sec(&self) -> f64 {
        self.iops() * self.request_bytes as f64
    }

    /// What binds.
    pub fn bound(&self) -> Resource {
        self.bounds[0].0
    }
}

/// Write amplification in steady state, and what it leaves.
#[derive(Clone, Debug, PartialEq)]
pub struct SustainedRate {
    /// Physical/logical − 1, as it comes out of the geometry.
    pub over_provisioning: f64,
    /// The spare space that counts: sectors that hold data over those that can be mapped, minus 1.
    pub effective_spare: f64,
    /// Lines that are free on average.
    pub free_lines: f64,
    /// Sectors written by users and moved by garbage collection, per sector that the user writes.
    pub data_write_amplification: f64,
    /// Sectors programmed per sector that the user writes, metadata included.
    pub write_amplification: f64,
    /// Sectors that must be outstanding for it, where a write completes on the media only and units are
    /// padded for requests that wait; `None` with a write buffer, or with units of a sector.
    pub outstanding_min: Option<u64>,
    /// The victim policy that it holds for.
    pub policy: VictimPolicyKind,
    /// User writes of one sector.
    pub limit: Option<Limit>,
}

/// What a drive can do at most.
#[derive(Clone, Debug, PartialEq)]
pub struct ClosedFormLimits {
    /// Random reads of one sector.
    pub random_read: Option<Limit>,
    /// Reads of whole multi-plane pages.
    pub sequential_read: Option<Limit>,
    /// Programs: writes to a fresh drive.
    pub program: Option<Limit>,
    /// Random writes in steady state; `None` without a translation layer.
    pub sustained: Option<SustainedRate>,
    /// A read of one sector from an idle drive, host costs not counted.
    pub read_latency: Nanos,
    /// A write to an idle drive: of one sector where the drive takes it, of a write unit where it is
    /// open-channel. Host costs not counted.
    pub write_latency: Nanos,
    /// Bytes of that write.
    pub write_latency_bytes: u64,
}

/// Requests per second of `servers` that each take `time`; `None` if they take none.
fn server_rate(servers: u32, time: Nanos) -> Option<f64> {
    (time > Nanos::ZERO).then(|| f64::from(servers) / time.as_secs_f64())
}

/// Requests per second of `bytes` each over `lanes` of `bytes_per_sec`; `None` if without limit.
fn link_rate(lanes: u32, bytes_per_sec: u64, bytes: f64) -> Option<f64> {
    (bytes_per_sec > 0 && bytes > 0.0).then(|| f64::from(lanes) * bytes_per_sec as f64 / bytes)
}

fn mean(times: &[Nanos]) -> Nanos {
    let sum: u64 = times.iter().map(|t| t.0).fold(0, u64::saturating_add);
    Nanos(sum / times.len().max(1) as u64)
}

/// Mean tR over the page types of the cell.
pub fn mean_read(nand: &NandConfig) -> Nanos {
    mean(&nand.timing.read[..nand.cell.bits() as usize])
}

/// Mean time of one program operation: over page types, or of a whole word line where it is
/// programmed in one shot.
pub fn mean_program(nand: &NandConfig) -> Nanos {
    if nand.one_shot {
        nand.timing.program[0]
    } else {
        mean(&nand.timing.program[..nand.cell.bits() as usize])
    }
}

impl ClosedFormLimits {
    /// The limits of a drive as a scenario sets it up.
    pub fn from_spec(plan: &DriveSpec) -> ClosedFormLimits {
        let config = &plan.config;
        let (out, into) =
            (config.controller.dma_bytes_per_sec, config.controller.write_bytes_per_sec());
        match &config.media {
            MediaConfig::Nand(nand) => nand_limits(plan, config, nand),
            MediaConfig::Pcm(pcm) => {
                let bytes = u64::from(pcm.sector_bytes);
                let transfer = Nanos::transfer(bytes, pcm.channel_bytes_per_sec);
                let rate = |time: Nanos, dma: u64| {
                    let mut bounds = controller_bounds(config, dma, bytes);
                    bounds.push((
                        Resource::ParallelUnits,
                        server_rate(pcm.channels * pcm.pus, time + transfer),
                    ));
                    bounds.push((
                        Resource::Channels,
                        link_rate(pcm.channels, pcm.channel_bytes_per_sec, bytes as f64),
                    ));
                    Limit::new(bytes, bounds)
                };
                let own = |dma| controller_latency(config, dma, bytes);
                ClosedFormLimits {
                    random_read: rate(pcm.read, out),
                    sequential_read: rate(pcm.read, out),
                    program: rate(pcm.write, into),
                    sustained: None,
                    read_latency: own(out) + pcm.read + transfer,
                    write_latency: own(into) + pcm.write + transfer,
                    write_latency_bytes: bytes,
                }
            }
            MediaConfig::Null { sector_bytes, .. } => {
                let bytes = u64::from(*sector_bytes);
                let limit = |dma| {
                    let mut bounds = controller_bounds(config, dma, bytes);
                    bounds.push((
                        Resource::NullBandwidth,
                        link_rate(1, config.null.bytes_per_sec, bytes as f64),
                    ));
                    Limit::new(bytes, bounds)
                };
                let latency = |dma| {
                    controller_latency(config, dma, bytes)
                        + config.null.latency
                        + Nanos::transfer(bytes, config.null.bytes_per_sec)
                };
                ClosedFormLimits {
                    random_read: limit(out),
                    sequential_read: limit(out),
                    program: limit(into),
                    sustained: None,
                    read_latency: latency(out),
                    write_latency: latency(into),
                    write_latency_bytes: bytes,
                }
            }
        }
    }
}

/// What the controller allows for requests of `bytes` at `dma` bytes per second.
fn controller_bounds(config: &DriveConfig, dma: u64, bytes: u64) -> Vec<(Resource, Option<f64>)> {
    let c = &config.controller;
    vec![
        (Resource::Dma, link_rate(1, dma, bytes as f64)),
        (Resource::Fetch, server_rate(1, c.fetch_latency)),
    ]
}

/// What the controller adds to a request of `bytes` at `dma` bytes per second on an idle drive.
fn controller_latency(config: &DriveConfig, dma: u64, bytes: u64) -> Nanos {
    let c = &config.controller;
    c.fetch_latency + Nanos::transfer(bytes, dma) + c.completion_latency
}

/// What to call the arrays that `active` of `pus` units are.
fn array_resource(active: u32, pus: u32) -> Resource {
    if active < pus { Resource::ActiveUnits } else { Resource::ParallelUnits }
}

fn nand_limits(plan: &DriveSpec, config: &DriveConfig, nand: &NandConfig) -> ClosedFormLimits {
    let g = &nand.geometry;
    let (pus, channel) = (g.total_pus(), nand.timing.channel_bytes_per_sec);
    let sector = u64::from(g.sector_bytes);
    let stripe = u64::from(g.sectors_per_stripe()) * sector;
    let unit = u64::from(nand.write_unit()) * sector;
    let (read, program) = (mean_read(nand), mean_program(nand));
    let (out, into) =
        (config.controller.dma_bytes_per_sec, config.controller.write_bytes_per_sec());

    let reads = |bytes: u64| {
        let mut bounds = controller_bounds(config, out, bytes);
        let transfer = Nanos::transfer(bytes, channel);
        let time = if config.transfers.cache_read { read.max(transfer) } else { read + transfer };
        bounds.push((Resource::ParallelUnits, server_rate(pus, time)));
        bounds.push((Resource::Channels, link_rate(g.channels, channel, bytes as f64)));
        Limit::new(bytes, bounds)
    };
    // Without cache programming the array waits for the transfer.
    let exposed = if config.cache_program { Nanos::ZERO } else { Nanos::transfer(unit, channel) };
    // A translation layer writes to its active units only; they are spread over the channels.
    let active = plan.capacity.map_or(pus, |c| c.written_pus(pus));
    let programs = Limit::new(unit, {
        // How many commands a unit takes is the host's choice: the fetch of one does not bind.
        let mut bounds = vec![(Resource::Dma, link_rate(1, into, unit as f64))];
        bounds.push((array_resource(active, pus), server_rate(active, program + exposed)));
        let channels = active.min(g.channels);
        bounds.push((Resource::Channels, link_rate(channels, channel, unit as f64)));
        bounds
    });
    let ftl = match &plan.target {
        Target::Pblk(ftl) | Target::Rrpc(ftl) => Some(ftl),
        Target::Named(_) => None,
        Target::None => (config.personality == PersonalityKind::Block).then_some(&config.ftl),
    };
    let sustained = match (ftl, &plan.capacity) {
        (Some(ftl), Some(capacity)) => sustained(plan, nand, ftl, capacity, exposed),
        _ => None,
    };
    let buffered = config.write_buffer != WriteBuffer::None;
    let (write_bytes, array) = match config.personality {
        PersonalityKind::Block if buffered => (sector, Nanos::ZERO),
        PersonalityKind::Block => (sector, Nanos::transfer(unit, channel) + program),
        _ => (unit, Nanos::transfer(unit, channel) + program),
    };
    ClosedFormLimits {
        random_read: reads(sector),
        sequential_read: reads(stripe),
        program: programs,
        sustained,
        read_latency: controller_latency(config, out, sector)
            + read
            + Nanos::transfer(sector, channel),
        write_latency: controller_latency(config, into, write_bytes) + array,
        write_latency_bytes: write_bytes,
    }
}

/// Multi-plane pages that garbage collection reads per page's worth of sectors that it moves, with
/// `sectors` to a page: those of a victim that hold a valid sector, of which a share `u` is valid.
fn reads_per_relocated_page(moved: f64, sectors: u32) -> f64 {
    let valid = 1.0 - 1.0 / moved;
    if valid <= 0.0 {
        return 0.0;
    }
    (1.0 - (1.0 - valid).powi(sectors as i32)) / valid
}

/// Random writes of one sector in steady state.
fn sustained(
    plan: &DriveSpec,
    nand: &NandConfig,
    ftl: &FtlConfig,
    capacity: &Capacity,
    exposed: Nanos,
) -> Option<SustainedRate> {
    let over_provisioning = capacity.over_provisioning();
    let state = SteadyState::new(ftl, capacity, nand.write_unit())?;
    let SteadyState {
        effective_spare,
        free_lines,
        data_write_amplification: moved,
        write_amplification: wa,
    } = state;
    let g = &nand.geometry;
    let sector = f64::from(g.sector_bytes);
    let unit = f64::from(nand.write_unit());
    let programs_per_chunk = f64::from(g.sectors_per_chunk()) / unit;
    // Seconds of one parallel unit per write unit of the user.
    let read = mean_read(nand).as_secs_f64() * f64::from(nand.pages_per_program());
    let scattered = reads_per_relocated_page(moved, g.sectors_per_stripe());
    let channel = nand.timing.channel_bytes_per_sec;
    // Without cache read the array waits until what it has read has left.
    let leaving = match plan.config.transfers.cache_read {
        true => 0.0,
        false => Nanos::transfer((unit * sector) as u64, channel).as_secs_f64(),
    };
    let time = wa * (mean_program(nand) + exposed).as_secs_f64()
        + (moved - 1.0) * (scattered * read + leaving)
        + wa * nand.timing.erase.as_secs_f64() / programs_per_chunk;
    let array = (time > 0.0).then(|| f64::from(g.total_pus()) * unit / time);
    // Every sector moved is read and programmed once more over the channel; with the layer on the
    // host, over the DMA path too.
    let crossings = wa + moved - 1.0;
    let controller = &plan.config.controller;
    let dma = controller.write_bytes_per_sec();
    // Where data out have a path of their own, what is moved comes over that.
    let over_dma = match (&plan.target, controller.dma_to_device_bytes_per_sec) {
        (Target::None, _) => 1.0,
        (_, 0) => crossings,
        _ => wa,
    };
    let mut bounds = vec![
        (Resource::ParallelUnits, array),
        (Resource::Channels, link_rate(g.channels, channel, sector * crossings)),
        (Resource::Dma, link_rate(1, dma, sector * over_dma)),
    ];
    if plan.target != Target::None && controller.dma_to_device_bytes_per_sec > 0 {
        let out = link_rate(1, controller.dma_bytes_per_sec, sector * (moved - 1.0));
        bounds.push((Resource::Dma, out));
    }
    if plan.target == Target::None {
        bounds.push((Resource::Fetch, server_rate(1, plan.config.controller.fetch_latency)));
    }
    let written = capacity.written_pus(g.total_pus());
    if written < g.total_pus() {
        // Each open line takes the programs of its stream. With hot and cold apart the users' line
        // takes 1 and garbage collection's takes WA − 1 of the WA programs.
        let share = if ftl.hot_cold { 1f64.max(wa - 1.0) } else { wa };
        let program = (mean_program(nand) + exposed).as_secs_f64();
        let active = f64::from(written) * unit;
        bounds.push((Resource::ActiveUnits, (program > 0.0).then(|| active / (share * program))));
    }
    // A unit that requests wait for, and the units that must be programmed before it can be read.
    let geometry = nand.host_geometry();
    let in_hand = u64::from(geometry.mw_cunits + nand.write_unit());
    let buffered = plan.target != Target::None || plan.config.write_buffer != WriteBuffer::None;
    let waits = !buffered && in_hand > 1;
    Some(SustainedRate {
        over_provisioning,
        effective_spare,
        free_lines,
        data_write_amplification: moved,
        write_amplification: wa,
        outstanding_min: waits.then(|| u64::from(written) * in_hand),
        policy: ftl.victim_policy,
        limit: Limit::new(u64::from(g.sector_bytes), bounds),
    })
}
