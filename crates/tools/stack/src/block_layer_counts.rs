//! [`BlockLayerCounts`]: the counters of a drive's block layer.

use block::{BlockLayer, DiskStat, DispatchStats, StagingStats, SubmitterStats};
use scenario::format::count;
use serde_json::{Value, json};
use time::Nanos;

/// Counters of a drive's block layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockLayerCounts {
    /// Queue model, `"sq"` or `"mq"`.
    pub kind: &'static str,
    /// Counters of the device, as in `/sys/block/*/stat`.
    pub stat: DiskStat,
    /// Counters of each submitting core.
    pub cores: Vec<CoreCounts>,
    /// Counters of each staging queue.
    pub staging: Vec<StagingCounts>,
    /// Counters of each dispatch queue and its hardware queue.
    pub dispatch: Vec<DispatchCounts>,
}

/// Counters of one core.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields of block::SubmitterStats")]
pub struct CoreCounts {
    pub stat: DiskStat,
    pub depth: Vec<u64>,
    pub sleeps: u64,
    pub splits: u64,
    pub answered: u64,
    pub spurious: u64,
}

/// Counters of one staging queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields of block::StagingStats")]
pub struct StagingCounts {
    pub inserted: u64,
    pub bypassed: u64,
    pub merged: u64,
    pub peak: u64,
}

/// Counters of one dispatch queue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields of block::DispatchStats")]
pub struct DispatchCounts {
    pub issued: u64,
    pub completed: u64,
    pub rounds: u64,
    pub no_tag: u64,
    pub busy: u64,
    pub requeued: u64,
    pub timeouts: u64,
    pub resets: u64,
    pub spurious: u64,
    pub steered: u64,
    pub orphans: u64,
    pub flushes_joined: u64,
    pub depth: Vec<u64>,
}

/// Returns the counts of a histogram up to the last one that is not zero.
fn depths(histogram: &block::DepthHistogram) -> Vec<u64> {
    let counts = histogram.get();
    let used = counts.iter().rposition(|n| *n > 0).map_or(0, |last| last + 1);
    counts[..used].to_vec()
}

impl CoreCounts {
    fn from_stats(s: &SubmitterStats, now: Nanos, sector_bytes: u32) -> CoreCounts {
        CoreCounts {
            stat: s.stat(now, sector_bytes),
            depth: depths(&s.depth),
            sleeps: s.sleeps.get(),
            splits: s.splits.get(),
            answered: s.completed_early.get(),
            spurious: s.spurious.get(),
        }
    }
}

impl StagingCounts {
    fn from_stats(s: &StagingStats) -> StagingCounts {
        StagingCounts {
            inserted: s.inserted.get(),
            bypassed: s.bypassed.get(),
            merged: s.merged.get(),
            peak: s.peak.get(),
        }
    }
}

impl DispatchCounts {
    fn from_stats(s: &DispatchStats) -> DispatchCounts {
        DispatchCounts {
            issued: s.issued.get(),
            completed: s.completed.get(),
            rounds: s.issue_batches.get(),
            no_tag: s.no_tag.get(),
            busy: s.busy.get(),
            requeued: s.requeued.get(),
            timeouts: s.timeouts.get(),
            resets: s.resets.get(),
            spurious: s.spurious.get(),
            steered: s.steered.get(),
            orphans: s.orphans.get(),
            flushes_joined: s.flushes_joined.get(),
            depth: depths(&s.depth),
        }
    }
}

impl BlockLayerCounts {
    /// Returns the counters of `layer`, an `sq` or `mq`, up to `now`.
    pub fn from_layer(layer: &BlockLayer, kind: &'static str, now: Nanos) -> BlockLayerCounts {
        let sector_bytes = layer.limits().sector_bytes;
        let core =
            |s: &std::sync::Arc<SubmitterStats>| CoreCounts::from_stats(s, now, sector_bytes);
        BlockLayerCounts {
            kind,
            stat: layer.stat(now),
            cores: layer.submitters().iter().map(core).collect(),
            staging: layer.staging().iter().map(|s| StagingCounts::from_stats(s)).collect(),
            dispatch: layer.dispatch().iter().map(|s| DispatchCounts::from_stats(s)).collect(),
        }
    }

    /// Returns the number of requests that were merged into another request's command.
    pub fn merges(&self) -> u64 {
        let stat = &self.stat;
        [stat.reads(), stat.writes(), stat.discards(), stat.flushes()]
            .iter()
            .map(|kind| kind.merges)
            .sum()
    }

    fn sum_over_queues(&self, of: impl Fn(&DispatchCounts) -> u64) -> u64 {
        self.dispatch.iter().map(of).sum()
    }

    /// Returns a summary in one line.
    pub fn summary_line(&self) -> String {
        let s = |n: usize| if n == 1 { "" } else { "s" };
        let sleeps: u64 = self.cores.iter().map(|c| c.sleeps).sum();
        let (cores, staging, dispatch) =
            (self.cores.len(), self.staging.len(), self.dispatch.len());
        format!(
            "block layer {}: {cores} core{}, {staging} staging queue{}, {dispatch} hardware queue{}; \
             {} commands, {} requests merged, {} staged at most, {} waits for a tag, {sleeps} \
             refused for want of room, {} requeued, {} timeouts",
            self.kind,
            s(cores),
            s(staging),
            s(dispatch),
            count(self.sum_over_queues(|d| d.issued)),
            count(self.merges()),
            count(self.staging.iter().map(|q| q.peak).max().unwrap_or(0)),
            count(self.sum_over_queues(|d| d.no_tag)),
            count(self.sum_over_queues(|d| d.requeued)),
            count(self.sum_over_queues(|d| d.timeouts)),
        )
    }

    /// Returns all counters as JSON.
    pub fn to_json(&self) -> Value {
        let core = |c: &CoreCounts| {
            json!({
                "stat": c.stat.to_string(),
                "depth": c.depth,
                "sleeps": c.sleeps,
                "splits": c.splits,
                "answered": c.answered,
                "strays": c.spurious,
            })
        };
        let staging = |q: &StagingCounts| {
            json!({
                "inserted": q.inserted,
                "bypassed": q.bypassed,
                "merged": q.merged,
                "peak": q.peak,
            })
        };
        let dispatch = |q: &DispatchCounts| {
            json!({
                "issued": q.issued,
                "ended": q.completed,
                "rounds": q.rounds,
                "no_tag": q.no_tag,
                "busy": q.busy,
                "requeued": q.requeued,
                "timeouts": q.timeouts,
                "resets": q.resets,
                "strays": q.spurious,
                "steered": q.steered,
                "orphans": q.orphans,
                "flushes_joined": q.flushes_joined,
                "depth": q.depth,
            })
        };
        json!({
            "kind": self.kind,
            "stat": self.stat.to_string(),
            "merges": self.merges(),
            "cores": self.cores.iter().map(core).collect::<Vec<_>>(),
            "staging_queues": self.staging.iter().map(staging).collect::<Vec<_>>(),
            "dispatch_queues": self.dispatch.iter().map(dispatch).collect::<Vec<_>>(),
        })
    }
}
