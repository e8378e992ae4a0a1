//! [`SimOutcome`]: the results of a run of one scenario.

use std::sync::Arc;

use block::notify::NotifyStats;
use controller::{AhciStats, Controller, DriveStats, FaultRecord, SataDriveStats};
use ftl::FtlStats;
use kv::KvStats;
use media::MediaStats;
use pblk::TargetRuleStats;
use report::explain::Names;
use scenario::{Capacity, Scenario};
use serde_json::Value;
use stack::steady_state::SteadyResult;
use stack::{CoreQueues, EmulatedDevice, ShardCounts, StateUse, target_layers};
use time::Nanos;
use workload::{IoCpuCosts, RunResult};
use write_log::WriteLogStats;

use super::{BlockLayerCounts, Explanation, FtlTimeSeries, MachineOutcome, Note, SimProfile};
use crate::output::parameters::parameters;
use crate::sim_run::{SimRun, drive_ftl_snapshot};

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
    /// The paths, in the order of [`Scenario::paths`]; without named paths, one for each drive.
    pub paths: Vec<PathOutcome>,
    /// Whether the scenario names targets, sets or paths.
    pub is_composed: bool,
    /// About the run itself.
    pub diagnostics: RunDiagnostics,
}

/// Information about the run itself, not about the drives.
#[derive(Clone, Debug, Default)]
pub struct RunDiagnostics {
    /// How drives came to their states, by name; empty unless states are kept.
    pub states: Vec<(String, StateUse)>,
    /// Where the processor time went, if that was requested.
    pub profile: Option<SimProfile>,
    /// The time of the host's processors, on a modeled machine.
    pub machine: Option<MachineOutcome>,
    /// Number of polls of paths and devices while the jobs ran. A run of one path on one NVMe drive
    /// may be simulated without these polls; then it is 0.
    pub polls: u64,
}

/// Results of one path.
#[derive(Clone, Debug, Default)]
pub struct PathOutcome {
    /// Name of the path; that of its drive in a scenario without named paths.
    pub name: String,
    /// Indices of its drives, in the order of the members of a set.
    pub drives: Vec<usize>,
    /// Measurements of the path's jobs; without jobs for a path that has none.
    pub run: RunResult,
    /// Counters of the FTL during the run: in the host, or in a drive that only this path uses.
    pub ftl: Option<FtlStats>,
    /// Counters of the FTL before the run: preconditioning.
    pub ftl_before: Option<FtlStats>,
    /// State of the FTL over time; `None` without an FTL, and in real time.
    pub ftl_time_series: Option<FtlTimeSeries>,
    /// Number of free lines at the end.
    pub free_lines: Option<f64>,
    /// Capacity through the FTL of a path that has a drive alone.
    pub capacity: Option<Capacity>,
    /// Counters of the block layer; `None` without one.
    pub block_layer: Option<BlockLayerCounts>,
    /// Counters of the notification of completions; `None` if they arrive without delay.
    pub notify: Option<NotifyStats>,
    /// Counters of the log since it was opened; `None` without one.
    pub log: Option<WriteLogStats>,
    /// Counters of the parts of its targets.
    pub targets: TargetCounts,
    /// Counters of a key-value target since it was opened, and its contents; `None` for a path to
    /// blocks.
    pub keys: Option<KvStats>,
    /// Explanation of the requests' latencies, if requested.
    pub explanation: Option<Explanation>,
    /// Result of preconditioning until steady state; `None` unless requested (`until`).
    pub steady: Option<SteadyResult>,
}

/// Counters of the targets of a path during the run.
#[derive(Clone, Debug, Default)]
pub struct TargetCounts {
    /// Counters of each shard of the target; empty without shards.
    pub shards: Vec<ShardCounts>,
    /// Counters of the rules of each target that has some.
    pub rules: Vec<TargetRuleStats>,
}

/// Results of one drive.
#[derive(Clone, Debug, Default)]
pub struct DriveOutcome {
    /// Name of the drive.
    pub name: String,
    /// Counters of the drive during the run, including its media.
    pub drive: DriveStats,
    /// Counters of the media before the run: initialization, recovery and preconditioning.
    pub media_before: Option<MediaStats>,
    /// Counters and free lines of the drive's FTL during the run, if no path has it alone.
    pub shared_ftl: Option<(FtlStats, f64)>,
    /// Number of channels, and of parallel units per channel; `None` for media without them.
    pub geometry: Option<(u32, u32)>,
    /// Counters of a SATA drive and of its controller.
    pub sata: Option<SataOutcome>,
    /// Faults, each at its time since the start of the jobs.
    pub faults: Vec<FaultRecord>,
}

/// Results of a SATA drive at a port of the AHCI controller.
#[derive(Clone, Debug, Default)]
pub struct SataOutcome {
    /// Its port.
    pub port: usize,
    /// Counters of the drive.
    pub drive: SataDriveStats,
    /// Transfer time of the uplink that all drives of the controller share.
    pub uplink_busy: Nanos,
    /// Number of times that the controller raised its interrupt line.
    pub interrupts: u64,
}

impl SataOutcome {
    fn new(stats: &AhciStats, port: usize) -> SataOutcome {
        let drive = stats.drives.get(port).copied().unwrap_or_default();
        let AhciStats { uplink_busy, interrupts, .. } = *stats;
        SataOutcome { port, drive, uplink_busy, interrupts }
    }
}

impl DriveOutcome {
    /// Returns the outcome of drive `index` of a run whose jobs started at `started`.
    pub(super) fn from_run(run: &SimRun, index: usize, started: Nanos) -> DriveOutcome {
        let lane = &run.drives[index];
        let device = run.device_of(index);
        let shape = match device.nvme().map(|drive| &drive.config().media) {
            Some(media::MediaConfig::Nand(n)) => Some((n.geometry.channels, n.geometry.pus)),
            Some(media::MediaConfig::Pcm(p)) => Some((p.channels, p.pus)),
            Some(media::MediaConfig::Null { .. }) | None => None,
        };
        let sata = match (device, lane.port) {
            (EmulatedDevice::Ahci(ahci), Some(port)) => Some(SataOutcome::new(&ahci.stats(), port)),
            _ => None,
        };
        let mut drive = device.stats(&lane.name);
        if let (Some(media), Some(before)) = (&mut drive.media, &lane.media_before) {
            *media = media.since(before);
        }
        let shared_ftl = match (run.path_of(index), drive_ftl_snapshot(device)) {
            (None, Some((after, lines))) => {
                Some((lane.ftl_before.map_or(after, |before| after.since(&before)), lines))
            }
            _ => None,
        };
        let mut faults = device.nvme().map(Controller::faults).unwrap_or_default();
        faults.iter_mut().for_each(|fault| fault.at = fault.at.since(started));
        DriveOutcome {
            name: lane.name.clone(),
            faults,
            drive,
            media_before: lane.media_before,
            shared_ftl,
            geometry: shape,
            sata,
        }
    }

    /// Returns the names for the indices in the explanation of a path over the drive.
    pub fn names<'a>(&self, explanation: &'a Explanation) -> Names<'a> {
        Names {
            jobs: &explanation.jobs,
            pus_per_channel: self.geometry.map_or(0, |(_, pus)| pus),
            sector_bytes: explanation.sector_bytes,
        }
    }
}

impl PathOutcome {
    /// Returns the counters of path `index` of a run at `now`, without the results of its jobs.
    pub(super) fn counters(
        run: &mut SimRun,
        index: usize,
        over_time: Option<FtlTimeSeries>,
        now: Nanos,
    ) -> PathOutcome {
        let (ftl, free_lines) = run.ftl_snapshot(index).unzip();
        let path = &mut run.paths[index];
        let layer = path.device().and_then(CoreQueues::block_layer);
        let layer =
            layer.map(|layer| BlockLayerCounts::from_layer(layer.counters(), layer.kind(), now));
        let shards = path.device_mut().map(target_layers::shard_counts).unwrap_or_default();
        let before = path.shards_before.iter();
        let shards = shards.iter().zip(before).map(|(now, before)| now.since(before)).collect();
        let rules = path.device_mut().map(target_layers::rule_stats).unwrap_or_default();
        let before = path.rules_before.iter();
        let rules = rules.iter().zip(before).map(|(now, before)| now.since(before)).collect();
        let ftl_before = path.ftl_before;
        let ftl = match (ftl, ftl_before) {
            (Some(after), Some(before)) => Some(after.since(&before)),
            (after, _) => after,
        };
        PathOutcome {
            name: path.name.clone(),
            drives: path.drives.clone(),
            run: RunResult::default(),
            ftl,
            ftl_before,
            ftl_time_series: over_time,
            free_lines,
            capacity: None,
            block_layer: layer,
            notify: path.device_mut().and_then(CoreQueues::notify_stats),
            log: path.device_mut().and_then(stack::log_stats),
            targets: TargetCounts { shards, rules },
            keys: path.keys().map(|kv| kv.stats()),
            explanation: None,
            steady: path.steady.take(),
        }
    }

    /// Returns the drive of a path over one drive.
    pub fn drive<'a>(&self, outcome: &'a SimOutcome) -> Option<&'a DriveOutcome> {
        match self.drives[..] {
            [drive] => outcome.drives.get(drive),
            _ => None,
        }
    }

    /// Returns the utilization of the busiest parallel unit or channel of its drives over
    /// `elapsed`, from 0 to 1; `None` for media without them.
    pub fn utilization_max(&self, outcome: &SimOutcome, elapsed: Nanos) -> Option<f64> {
        let drives = self.drives.iter().filter_map(|drive| outcome.drives.get(*drive));
        drives.filter_map(|drive| drive.utilization_max(elapsed)).reduce(f64::max)
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
        drives: Vec<DriveOutcome>,
        mut paths: Vec<PathOutcome>,
        elapsed: Nanos,
        costs: IoCpuCosts,
        ignored: Vec<String>,
    ) -> SimOutcome {
        for path in &mut paths {
            if let [drive] = path.drives[..] {
                path.capacity = scenario.drives[drive].capacity;
            }
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
            paths,
            is_composed: !scenario.composition.is_empty(),
            ..SimOutcome::default()
        }
    }

    /// Returns the outcome as it is without [`SimOptions::slowest`](super::SimOptions::slowest).
    #[must_use]
    pub fn without_explanations(&self) -> SimOutcome {
        let mut outcome = self.clone();
        outcome.paths.iter_mut().for_each(|path| path.explanation = None);
        outcome
    }

    /// Returns descriptions of failed requests and of sectors with wrong data.
    pub fn failures(&self) -> Vec<String> {
        let mut all = Vec::new();
        for path in &self.paths {
            for (job, failure) in path.run.failures() {
                all.push(format!("{}: job {job}: {failure}", path.name));
            }
        }
        all
    }
}
