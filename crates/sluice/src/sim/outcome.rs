//! [`Outcome`]: what a run of one scenario found.

use std::sync::Arc;

use clock::Nanos;
use drive::DriveStats;
use ftl::FtlStats;
use media::MediaStats;
use serde_json::Value;
use workload::{IoCpuCosts, RunResult};

use super::parameters::parameters;
use super::{BlockLayerCounts, DriveRun, Explanation, FtlTimeSeries, Note, SimError};
use crate::explain::Names;
use crate::scenario::{Capacity, Scenario};
use crate::stack::steady_state::SteadyResult;
use crate::stack::{ShardCounts, StackDevice};

/// What a run of one scenario found.
#[derive(Clone, Debug, Default)]
pub struct SimOutcome {
    /// The scenario's title.
    pub title: String,
    /// The question that the scenario is to answer; may be empty.
    pub question: String,
    /// What the scenario comes to, defaults and presets resolved.
    pub parameters: Value,
    /// Its text.
    pub text: Arc<str>,
    /// What everything random came from.
    pub seed: u64,
    /// Virtual time that the jobs took.
    pub elapsed: Nanos,
    /// What the host's CPU was charged per I/O.
    pub costs: IoCpuCosts,
    /// Job options that were given and have no meaning here.
    pub ignored: Vec<String>,
    /// Whether the run was interrupted: results are those up to there.
    pub partial: bool,
    /// What must be known of the results.
    pub notes: Vec<Note>,
    /// Events that a trace was asked for and has no room for.
    pub untraced_events: u64,
    /// The drives, in the scenario's order.
    pub drives: Vec<DriveOutcome>,
}

/// What happened on one drive.
#[derive(Clone, Debug, Default)]
pub struct DriveOutcome {
    /// The drive.
    pub name: String,
    /// What its jobs measured; no jobs for a drive without any.
    pub run: RunResult,
    /// What the drive did during the run, its media included.
    pub drive: DriveStats,
    /// What its media did before: bring-up, recovery and preconditioning.
    pub media_before: Option<MediaStats>,
    /// What the translation layer did during the run, on whichever side it ran.
    pub ftl: Option<FtlStats>,
    /// What it did before: preconditioning.
    pub ftl_before: Option<FtlStats>,
    /// The translation layer over time; `None` without one, and in real time.
    pub ftl_time_series: Option<FtlTimeSeries>,
    /// Free lines at the end.
    pub free_lines: Option<f64>,
    /// Channels and parallel units per channel; `None` for media without.
    pub geometry: Option<(u32, u32)>,
    /// What the drive holds through its translation layer.
    pub capacity: Option<Capacity>,
    /// What the block layer did; `None` without one.
    pub block_layer: Option<BlockLayerCounts>,
    /// What each shard of its target did; none without shards.
    pub shards: Vec<ShardCounts>,
    /// Why its requests took as long as they did, if that was asked.
    pub explanation: Option<Explanation>,
    /// Whether preconditioning has come to steady state; `None` unless it was to (`until`).
    pub steady: Option<SteadyResult>,
}

impl DriveOutcome {
    /// The names for what an explanation of the drive refers to by number.
    pub fn names<'a>(&self, explanation: &'a Explanation) -> Names<'a> {
        Names {
            jobs: &explanation.jobs,
            pus_per_channel: self.geometry.map_or(0, |(_, pus)| pus),
            sector_bytes: explanation.sector_bytes,
        }
    }

    /// The outcome of a drive. A drive that is kept has everything on its image then.
    pub(super) fn from_run(
        mut lane: DriveRun,
        over_time: Option<FtlTimeSeries>,
        now: Nanos,
        elapsed: Nanos,
    ) -> Result<DriveOutcome, SimError> {
        let layer = lane.device().and_then(StackDevice::block_layer);
        let layer =
            layer.map(|cores| BlockLayerCounts::from_layer(cores.block_layer(), cores.kind(), now));
        let (ftl, free_lines) = lane.ftl_snapshot().unzip();
        let shards = lane.device().map(StackDevice::shard_counts).unwrap_or_default();
        let before = lane.shards_before.iter();
        let shards = shards.iter().zip(before).map(|(now, before)| now.since(before)).collect();
        let (ftl_before, media_before) = (lane.ftl_before, lane.media_before);
        let ftl = match (ftl, ftl_before) {
            (Some(after), Some(before)) => Some(after.since(&before)),
            (after, _) => after,
        };
        let shape = match &lane.drive.config().media {
            media::MediaConfig::Nand(n) => Some((n.geometry.channels, n.geometry.pus)),
            media::MediaConfig::Pcm(p) => Some((p.channels, p.pus)),
            media::MediaConfig::Null { .. } => None,
        };
        let mut drive = lane.drive.stats();
        if let (Some(media), Some(before)) = (&mut drive.media, &media_before) {
            *media = media.since(before);
        }
        if lane.persist_image {
            lane.flush(now);
        }
        let run = match lane.host {
            Some(host) => host.finish()?,
            None => RunResult { elapsed, ..RunResult::default() },
        };
        if lane.persist_image {
            // The host's side is gone: it may not point into the drive any more.
            drop(lane.idle);
            let drive = lane.name.clone();
            lane.drive.shut_down().map_err(|source| SimError::Image { drive, source })?;
        }
        Ok(DriveOutcome {
            name: lane.name,
            run,
            drive,
            media_before,
            ftl,
            ftl_before,
            ftl_time_series: over_time,
            free_lines,
            geometry: shape,
            capacity: None,
            block_layer: layer,
            shards,
            explanation: None,
            steady: lane.steady,
        })
    }
}

impl DriveOutcome {
    /// Share of `elapsed` that its busiest parallel unit or channel was busy; `None` for media without.
    pub fn utilization_max(&self, elapsed: Nanos) -> Option<f64> {
        let pus = self.drive.pus.iter().map(|p| p.read + p.program + p.erase);
        let most = pus.chain(self.drive.channels.iter().copied()).max()?;
        Some(most.0 as f64 / elapsed.0.max(1) as f64)
    }
}

impl SimOutcome {
    pub(super) fn new(
        scenario: &Scenario,
        mut drives: Vec<DriveOutcome>,
        elapsed: Nanos,
        costs: IoCpuCosts,
        ignored: Vec<String>,
    ) -> SimOutcome {
        for (drive, plan) in drives.iter_mut().zip(&scenario.drives) {
            drive.capacity = plan.capacity;
        }
        SimOutcome {
            title: scenario.title.clone(),
            question: scenario.question.clone(),
            parameters: parameters(scenario),
            text: scenario.text.clone(),
            seed: scenario.seed,
            elapsed,
            costs,
            ignored,
            drives,
            ..SimOutcome::default()
        }
    }

    /// The outcome as it is without [`SimOptions::slowest`](super::SimOptions::slowest).
    #[must_use]
    pub fn without_explanations(&self) -> SimOutcome {
        let mut outcome = self.clone();
        outcome.drives.iter_mut().for_each(|drive| drive.explanation = None);
        outcome
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
