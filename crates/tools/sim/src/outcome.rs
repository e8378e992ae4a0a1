//! [`SimOutcome`]: the results of a run of one scenario.

use std::sync::Arc;

use controller::DriveStats;
use ftl::FtlStats;
use media::MediaStats;
use report::explain::Names;
use scenario::{Capacity, Scenario};
use serde_json::Value;
use stack::steady_state::SteadyResult;
use stack::{CoreQueues, ShardCounts, target_layers};
use time::Nanos;
use workload::{IoCpuCosts, RunResult};

use super::{BlockLayerCounts, DriveRun, Explanation, FtlTimeSeries, Note, SimError};
use crate::output::parameters::parameters;

/// Results of a run of one scenario.
#[derive(Clone, Debug, Default)]
pub struct SimOutcome {
    /// Title of the scenario.
    pub title: String,
    /// The question that the scenario answers; may be empty.
    pub question: String,
    /// Parameters of the scenario, with defaults and presets resolved.
    pub parameters: Value,
    /// Text of the scenario.
    pub text: Arc<str>,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Virtual time that the jobs took.
    pub elapsed: Nanos,
    /// CPU time that the host was charged per I/O.
    pub costs: IoCpuCosts,
    /// Job options in the scenario that have no effect.
    pub ignored: Vec<String>,
    /// Whether the run was interrupted; the results cover the time until then.
    pub partial: bool,
    /// Caveats on the results.
    pub notes: Vec<Note>,
    /// Number of events that a trace lost because a buffer was full.
    pub untraced_events: u64,
    /// The drives, in the order of the scenario.
    pub drives: Vec<DriveOutcome>,
}

/// Results of one drive.
#[derive(Clone, Debug, Default)]
pub struct DriveOutcome {
    /// Name of the drive.
    pub name: String,
    /// Measurements of the drive's jobs; without jobs for a drive that has none.
    pub run: RunResult,
    /// Counters of the drive during the run, including its media.
    pub drive: DriveStats,
    /// Counters of the media before the run: initialization, recovery and preconditioning.
    pub media_before: Option<MediaStats>,
    /// Counters of the FTL during the run, in the drive or in the host.
    pub ftl: Option<FtlStats>,
    /// Counters of the FTL before the run: preconditioning.
    pub ftl_before: Option<FtlStats>,
    /// State of the FTL over time; `None` without an FTL, and in real time.
    pub ftl_time_series: Option<FtlTimeSeries>,
    /// Number of free lines at the end.
    pub free_lines: Option<f64>,
    /// Number of channels, and of parallel units per channel; `None` for media without them.
    pub geometry: Option<(u32, u32)>,
    /// Capacity of the drive through its FTL.
    pub capacity: Option<Capacity>,
    /// Counters of the block layer; `None` without one.
    pub block_layer: Option<BlockLayerCounts>,
    /// Counters of each shard of the target; empty without shards.
    pub shards: Vec<ShardCounts>,
    /// Explanation of the requests' latencies, if requested.
    pub explanation: Option<Explanation>,
    /// Result of preconditioning until steady state; `None` unless requested (`until`).
    pub steady: Option<SteadyResult>,
}

impl DriveOutcome {
    /// Returns the names for the indices in an explanation of the drive.
    pub fn names<'a>(&self, explanation: &'a Explanation) -> Names<'a> {
        Names {
            jobs: &explanation.jobs,
            pus_per_channel: self.geometry.map_or(0, |(_, pus)| pus),
            sector_bytes: explanation.sector_bytes,
        }
    }

    /// Returns the outcome of a drive. If its image persists, all data is on the image then.
    pub(super) fn from_run(
        mut lane: DriveRun,
        over_time: Option<FtlTimeSeries>,
        now: Nanos,
        elapsed: Nanos,
    ) -> Result<DriveOutcome, SimError> {
        let layer = lane.device().and_then(CoreQueues::block_layer);
        let layer =
            layer.map(|layer| BlockLayerCounts::from_layer(layer.counters(), layer.kind(), now));
        let (ftl, free_lines) = lane.ftl_snapshot().unzip();
        let shards = lane.device_mut().map(target_layers::shard_counts).unwrap_or_default();
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
            // Drop the host's side: it must not refer to the drive any more.
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
    /// Returns the utilization of the busiest parallel unit or channel over `elapsed`, from 0 to 1;
    /// `None` for media without them.
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

    /// Returns the outcome as it is without [`SimOptions::slowest`](super::SimOptions::slowest).
    #[must_use]
    pub fn without_explanations(&self) -> SimOutcome {
        let mut outcome = self.clone();
        outcome.drives.iter_mut().for_each(|drive| drive.explanation = None);
        outcome
    }

    /// Returns descriptions of failed requests and of sectors with wrong data.
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
