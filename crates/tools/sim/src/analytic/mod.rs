//! [`ClosedFormLimits`]: closed forms of a drive's maximum rates, and of the resource that limits
//! each.
//!
//! | limit | minimum over these resources |
//! |---|---|
//! | random reads | PUs / (tR + transfer), or / max(tR, transfer) with cache read, channels × bandwidth / size, DMA / size, 1 / fetch |
//! | sequential reads | as random reads, for complete multi-plane pages |
//! | programs | PUs × planes × page / tPROG, channels × bandwidth, DMA; PUs are the active ones |
//! | sustained random writes | PUs × planes × page / (WA·tPROG + (W−1)·(R·tR + transfer) + WA·tBERS/N), channels / (WA+W−1), DMA |
//!
//! tR and tPROG are averages over page types, and N is the number of programs per chunk. W counts
//! the sectors that hosts write and GC relocates, per host sector; WA adds metadata. Both come from
//! [`steady_state`]. R is the number of page reads of GC per page that it relocates. A victim has
//! valid sectors in almost every page, so R is about 1/u, where u = 1 − 1/W is the valid share of a
//! victim. The transfer term applies only without cache read.
//!
//! `tests/suite/closed_forms.rs` tests the simulated drive against these forms. [`summary`] prints them
//! for `sluice drive show`.

pub mod greedy;
mod other_summaries;
#[cfg(test)]
mod preset_tests;
mod settings;
pub mod steady_state;
pub mod summary;
#[cfg(test)]
mod tests;

use std::fmt;

use controller::{DriveConfig, PersonalityKind, WriteBuffer};
use ftl::{FtlConfig, VictimPolicyKind};
use media::{MediaConfig, NandConfig};
use scenario::{Capacity, DriveSpec, HostTarget};
use time::Nanos;

use steady_state::SteadyState;

/// A resource that can limit a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// The flash arrays.
    ParallelUnits,
    /// The flash arrays that are written at the same time.
    ActiveUnits,
    /// The channels.
    Channels,
    /// The path between host memory and drive.
    Dma,
    /// The controller, which fetches one command at a time.
    Fetch,
    /// The bandwidth of the null personality.
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

/// A maximum rate of requests of one size, and the resources that limit it.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    /// Size of a request in bytes.
    pub request_bytes: u64,
    /// Every limiting resource with its maximum rate in requests per second, in ascending order;
    /// never empty.
    pub bounds: Vec<(Resource, f64)>,
}

impl Limit {
    /// Returns the limit, or `None` if no resource is limiting.
    fn new(request_bytes: u64, bounds: Vec<(Resource, Option<f64>)>) -> Option<Limit> {
        let mut bounds: Vec<(Resource, f64)> =
            bounds.into_iter().filter_map(|(r, rate)| Some((r, rate?))).collect();
        bounds.sort_by(|a, b| a.1.total_cmp(&b.1));
        (!bounds.is_empty()).then_some(Limit { request_bytes, bounds })
    }

    /// Returns the maximum rate in requests per second.
    pub fn iops(&self) -> f64 {
        self.bounds[0].1
    }

    /// Returns the maximum rate in bytes per second.
    pub fn bytes_per_sec(&self) -> f64 {
        self.iops() * self.request_bytes as f64
    }

    /// Returns the limiting resource.
    pub fn bound(&self) -> Resource {
        self.bounds[0].0
    }
}

/// Write amplification in steady state, and the resulting rate.
#[derive(Clone, Debug, PartialEq)]
pub struct SustainedRate {
    /// Over-provisioning by the geometry, physical/logical − 1.
    pub over_provisioning: f64,
    /// Effective spare space: sectors that hold data over sectors that can be mapped, minus 1.
    pub effective_spare: f64,
    /// Mean number of free lines.
    pub free_lines: f64,
    /// Sectors written by hosts and relocated by GC, per host sector.
    pub data_write_amplification: f64,
    /// Sectors programmed per host sector, including metadata.
    pub write_amplification: f64,
    /// Minimum number of outstanding sectors for the rate. It applies if a write completes only on
    /// the media and units are padded for waiting requests. `None` with a write buffer, or with
    /// units of one sector.
    pub outstanding_min: Option<u64>,
    /// Victim policy that the rate applies to.
    pub policy: VictimPolicyKind,
    /// Rate of host writes of one sector.
    pub limit: Option<Limit>,
}

/// Maximum rates and idle latencies of a drive.
#[derive(Clone, Debug, PartialEq)]
pub struct ClosedFormLimits {
    /// Random reads of one sector.
    pub random_read: Option<Limit>,
    /// Reads of complete multi-plane pages.
    pub sequential_read: Option<Limit>,
    /// Programs: writes to an empty drive.
    pub program: Option<Limit>,
    /// Random writes in steady state; `None` without an FTL.
    pub sustained: Option<SustainedRate>,
    /// Latency of a one-sector read of an idle drive, without host costs.
    pub read_latency: Nanos,
    /// Latency of a write to an idle drive, without host costs: one sector, or one write unit of an
    /// open-channel drive.
    pub write_latency: Nanos,
    /// Size of that write in bytes.
    pub write_latency_bytes: u64,
}

/// Returns the rate of `servers` that each take `time` per request; `None` if `time` is zero.
fn server_rate(servers: u32, time: Nanos) -> Option<f64> {
    (time > Nanos::ZERO).then(|| f64::from(servers) / time.as_secs_f64())
}

/// Returns the rate of requests of `bytes` each over `lanes` of `bytes_per_sec`; `None` if the
/// lanes are unlimited.
fn link_rate(lanes: u32, bytes_per_sec: u64, bytes: f64) -> Option<f64> {
    (bytes_per_sec > 0 && bytes > 0.0).then(|| f64::from(lanes) * bytes_per_sec as f64 / bytes)
}

fn mean(times: &[Nanos]) -> Nanos {
    let sum: u64 = times.iter().map(|t| t.0).fold(0, u64::saturating_add);
    Nanos(sum / times.len().max(1) as u64)
}

/// Returns the mean tR over the page types of the cell.
pub fn mean_read(nand: &NandConfig) -> Nanos {
    mean(&nand.timing.read[..nand.cell.bits() as usize])
}

/// Returns the mean time of one program operation: over page types, or of a complete word line with
/// one-shot programming.
pub fn mean_program(nand: &NandConfig) -> Nanos {
    if nand.one_shot {
        nand.timing.program[0]
    } else {
        mean(&nand.timing.program[..nand.cell.bits() as usize])
    }
}

impl ClosedFormLimits {
    /// Returns the limits of a drive as a scenario configures it.
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

/// Returns the controller's limits for requests of `bytes` at `dma` bytes per second.
fn controller_bounds(config: &DriveConfig, dma: u64, bytes: u64) -> Vec<(Resource, Option<f64>)> {
    let c = &config.controller;
    vec![
        (Resource::Dma, link_rate(1, dma, bytes as f64)),
        (Resource::Fetch, server_rate(1, c.fetch_latency)),
    ]
}

/// Returns the latency that the controller adds to a request of `bytes` at `dma` bytes per second
/// on an idle drive.
fn controller_latency(config: &DriveConfig, dma: u64, bytes: u64) -> Nanos {
    let c = &config.controller;
    c.fetch_latency + Nanos::transfer(bytes, dma) + c.completion_latency
}

/// Returns the resource for the arrays, given `active` of `pus` units.
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
    // An FTL writes only to its active units, which are spread over the channels.
    let active = plan.capacity.map_or(pus, |c| c.written_pus(pus));
    let programs = Limit::new(unit, {
        // The host chooses the number of commands per unit, so the fetch of a command is not a
        // limit.
        let mut bounds = vec![(Resource::Dma, link_rate(1, into, unit as f64))];
        bounds.push((array_resource(active, pus), server_rate(active, program + exposed)));
        let channels = active.min(g.channels);
        bounds.push((Resource::Channels, link_rate(channels, channel, unit as f64)));
        bounds
    });
    let ftl = match &plan.target {
        HostTarget::Pblk(_) | HostTarget::Rrpc(_) | HostTarget::Rules(_) | HostTarget::Named(_) => {
            plan.target.ftl()
        }
        HostTarget::None => (config.personality == PersonalityKind::Block).then_some(&config.ftl),
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

/// Returns the number of multi-plane pages that GC reads per page of sectors that it relocates,
/// with `sectors` per page. GC reads the victim's pages that have a valid sector; a share `u` of
/// its sectors is valid.
fn reads_per_relocated_page(moved: f64, sectors: u32) -> f64 {
    let valid = 1.0 - 1.0 / moved;
    if valid <= 0.0 {
        return 0.0;
    }
    (1.0 - (1.0 - valid).powi(sectors as i32)) / valid
}

/// Returns the rate of random one-sector writes in steady state.
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
    // Time in seconds of one parallel unit per host write unit.
    let read = mean_read(nand).as_secs_f64() * f64::from(nand.pages_per_program());
    let scattered = reads_per_relocated_page(moved, g.sectors_per_stripe());
    let channel = nand.timing.channel_bytes_per_sec;
    // Without cache read the array waits until its data has been transferred.
    let leaving = match plan.config.transfers.cache_read {
        true => 0.0,
        false => Nanos::transfer((unit * sector) as u64, channel).as_secs_f64(),
    };
    let time = wa * (mean_program(nand) + exposed).as_secs_f64()
        + (moved - 1.0) * (scattered * read + leaving)
        + wa * nand.timing.erase.as_secs_f64() / programs_per_chunk;
    let array = (time > 0.0).then(|| f64::from(g.total_pus()) * unit / time);
    // Each relocated sector is read and programmed once more over the channel, and over the DMA
    // path if the FTL is on the host.
    let crossings = wa + moved - 1.0;
    let controller = &plan.config.controller;
    let dma = controller.write_bytes_per_sec();
    // If data to the host has a path of its own, relocated data uses it.
    let over_dma = match (&plan.target, controller.dma_to_device_bytes_per_sec) {
        (HostTarget::None, _) => 1.0,
        (_, 0) => crossings,
        _ => wa,
    };
    let mut bounds = vec![
        (Resource::ParallelUnits, array),
        (Resource::Channels, link_rate(g.channels, channel, sector * crossings)),
        (Resource::Dma, link_rate(1, dma, sector * over_dma)),
    ];
    if plan.target != HostTarget::None && controller.dma_to_device_bytes_per_sec > 0 {
        let out = link_rate(1, controller.dma_bytes_per_sec, sector * (moved - 1.0));
        bounds.push((Resource::Dma, out));
    }
    if plan.target == HostTarget::None {
        bounds.push((Resource::Fetch, server_rate(1, plan.config.controller.fetch_latency)));
    }
    let written = capacity.written_pus(g.total_pus());
    if written < g.total_pus() {
        // Each open line executes the programs of its stream. With a separate GC stream, the host's
        // line executes 1 of the WA programs, and GC's line WA − 1.
        let share = if ftl.hot_cold { 1f64.max(wa - 1.0) } else { wa };
        let program = (mean_program(nand) + exposed).as_secs_f64();
        let active = f64::from(written) * unit;
        bounds.push((Resource::ActiveUnits, (program > 0.0).then(|| active / (share * program))));
    }
    // One unit that requests wait for, and the units that must be programmed before it is readable.
    let geometry = nand.host_geometry();
    let in_hand = u64::from(geometry.mw_cunits + nand.write_unit());
    let buffered = plan.target != HostTarget::None || plan.config.write_buffer != WriteBuffer::None;
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
