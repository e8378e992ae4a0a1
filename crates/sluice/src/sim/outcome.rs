//! [`Outcome`]: what a run of one scenario found.

use std::sync::Arc;

use clock::Nanos;
use drive::DriveStats;
use ftl::FtlStats;
use workload::{HostCosts, HostError, RunResult};

use super::{Lane, LayerCounts};
use crate::scenario::{Capacity, Scenario};
use crate::stack::steady::SteadyResult;
use crate::stack::{ShardCounts, StackDevice};

/// What a run of one scenario found.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The scenario's title.
    pub title: String,
    /// Its text.
    pub text: Arc<str>,
    /// What everything random came from.
    pub seed: u64,
    /// Virtual time that the jobs took.
    pub elapsed: Nanos,
    /// What the host's CPU was charged per I/O.
    pub costs: HostCosts,
    /// Job options that were given and have no meaning here.
    pub ignored: Vec<String>,
    /// Events that a trace was asked for and has no room for.
    pub untraced: u64,
    /// The drives, in the scenario's order.
    pub drives: Vec<DriveOutcome>,
}

/// What happened on one drive.
#[derive(Clone, Debug)]
pub struct DriveOutcome {
    /// The drive.
    pub name: String,
    /// What its jobs measured; no jobs for a drive without any.
    pub run: RunResult,
    /// What the drive did during the run.
    pub drive: DriveStats,
    /// What the translation layer did during the run, on whichever side it ran.
    pub ftl: Option<FtlStats>,
    /// Free lines at the end.
    pub free_lines: Option<f64>,
    /// Channels and parallel units per channel; `None` for media without.
    pub shape: Option<(u32, u32)>,
    /// What the drive holds through its translation layer.
    pub capacity: Option<Capacity>,
    /// What the block layer did; `None` without one.
    pub layer: Option<LayerCounts>,
    /// What each shard of its target did; none without shards.
    pub shards: Vec<ShardCounts>,
    /// Whether preconditioning has come to steady state; `None` unless it was to (`until`).
    pub steady: Option<SteadyResult>,
}

impl DriveOutcome {
    pub(super) fn of(lane: Lane, now: Nanos, elapsed: Nanos) -> Result<DriveOutcome, HostError> {
        let layer = lane.device().and_then(StackDevice::cores);
        let layer = layer.map(|cores| LayerCounts::of(cores.layer(), cores.kind(), now));
        let (ftl, free_lines) = lane.ftl_view().unzip();
        let shards = lane.device().map(StackDevice::shard_counts).unwrap_or_default();
        let before = lane.shards_before.iter();
        let shards = shards.iter().zip(before).map(|(now, before)| now.since(before)).collect();
        let ftl = match (ftl, lane.ftl_before) {
            (Some(after), Some(before)) => Some(after.since(&before)),
            (after, _) => after,
        };
        let shape = match &lane.drive.config().media {
            media::MediaConfig::Nand(n) => Some((n.geometry.channels, n.geometry.pus)),
            media::MediaConfig::Pcm(p) => Some((p.channels, p.pus)),
            media::MediaConfig::Null { .. } => None,
        };
        let run = match lane.host {
            Some(host) => host.finish()?,
            None => RunResult { seed: 0, elapsed, jobs: Vec::new() },
        };
        let drive = lane.drive.stats();
        Ok(DriveOutcome {
            name: lane.name,
            run,
            drive,
            ftl,
            free_lines,
            shape,
            capacity: None,
            layer,
            shards,
            steady: lane.steady,
        })
    }
}

impl Outcome {
    pub(super) fn new(
        scenario: &Scenario,
        mut drives: Vec<DriveOutcome>,
        elapsed: Nanos,
        costs: HostCosts,
        ignored: Vec<String>,
    ) -> Outcome {
        for (drive, plan) in drives.iter_mut().zip(&scenario.drives) {
            drive.capacity = plan.capacity;
        }
        Outcome {
            title: scenario.title.clone(),
            text: scenario.text.clone(),
            seed: scenario.seed,
            elapsed,
            costs,
            ignored,
            untraced: 0,
            drives,
        }
    }

    /// Requests that failed and sectors that came back wrong, in words.
    pub fn failures(&self) -> Vec<String> {
        let mut all = Vec::new();
        for drive in &self.drives {
            for (job, failure) in drive.run.failures() {
                all.push(format!("{}: job {job}: {failure}", drive.name));
            }
        }
        all
    }
}
