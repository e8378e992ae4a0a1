//! [`BlockLayerSpec`]: the keys of `[path]` that configure the block layer.
//!
//! [SYSTOR13 §3.2] describes the staging queues between the cores and the hardware queues, and the
//! schedulers that order them. A key without effect is refused, never ignored.

use block::sched::{DirectionThrottle, GroupThrottle, RateLimit, Scheduling, ThrottleConfig};
use block::sched::{SchedError, SchedulerConfig};
use block::{BlockLayerConfig, Group, QueueModel, QueueTopology, StagingScope, Timeouts};
use time::Nanos;

use super::scheduler_keys;
use crate::QueueModelKind;
use crate::choice::Impossible;
use crate::error::{ProblemKind, ScenarioError};
use crate::ranges::TIMEOUT;
use crate::section::{Keyword, Result, Section, Value};
use crate::source::SourceSpan;

/// Maximum number of cores: each needs a queue and a job.
const CORES_MAX: u16 = 1024;
/// Maximum index of a group of jobs.
const GROUP_MAX: u16 = 1023;
/// Maximum number of requests of one core.
const DEPTH_MAX: u32 = 1 << 16;
/// Maximum number of outstanding requests of all cores, multiplied by the hardware queues from
/// which a core may receive completions. Each needs 24 to 36 bytes.
const REQUESTS_TOTAL_MAX: u64 = 1 << 26;
/// Default burst of a limit: the time for which unused capacity accumulates.
const BURST: Nanos = Nanos::from_millis(100);
/// Maximum burst.
const BURST_MAX: Nanos = Nanos::from_secs(3600);

/// Configuration of the block layer between the jobs and the drive's queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockLayerSpec {
    /// Queue model.
    pub layout: QueueModel,
    /// Topology of the submitting cores.
    pub topology: QueueTopology,
    /// Number of hardware queues; `None` for one per core, as far as the drive grants them.
    pub queues: Option<u16>,
    /// Scheduler of the staging queues.
    pub scheduler: SchedulerConfig,
    /// Limits of groups of jobs.
    pub limits: Vec<(Group, GroupThrottle)>,
    /// Whether contiguous requests are merged into one command.
    pub merge: bool,
    /// Maximum number of outstanding requests of one core.
    pub queue_depth: u32,
    /// Timeouts of commands.
    pub timeouts: Timeouts,
}

impl BlockLayerSpec {
    /// Returns the number of submitting cores, at least 1.
    pub fn cores(&self) -> u16 {
        self.topology.sockets * self.topology.cores
    }

    /// Returns the number of hardware queues on a drive that grants `granted` queues.
    pub fn hardware_queues(&self, granted: u16) -> u16 {
        match self.layout {
            QueueModel::SingleQueue => 1,
            QueueModel::MultiQueue { .. } => {
                self.queues.unwrap_or_else(|| self.cores().min(granted))
            }
        }
    }

    /// Returns the block layer's configuration for a device with this sector size.
    pub fn config(&self, sector_bytes: u32) -> BlockLayerConfig {
        let limits = (!self.limits.is_empty())
            .then(|| ThrottleConfig { sector_bytes, groups: self.limits.clone() });
        BlockLayerConfig {
            queue_model: self.layout,
            topology: self.topology,
            scheduler: Scheduling { scheduler: self.scheduler.clone(), limits },
            merge: self.merge,
            queue_depth: self.queue_depth,
            timeouts: self.timeouts,
        }
    }

    /// Returns the queue model, `"sq"` or `"mq"`.
    pub fn name(&self) -> &'static str {
        match self.layout {
            QueueModel::SingleQueue => "sq",
            QueueModel::MultiQueue { .. } => "mq",
        }
    }

    /// Reads the keys of the block layer from `[path]`.
    pub(crate) fn read(
        s: &mut Section<'_>,
        block: QueueModelKind,
    ) -> Result<Option<BlockLayerSpec>> {
        let mut draft = BlockLayerBuilder::default();
        draft.read(s)?;
        match block {
            QueueModelKind::Raw => draft.refuse_all().map(|()| None),
            QueueModelKind::Sq => {
                let help = "set queue_model = \"mq\", or remove the key";
                for key in ["queues", "staging", "sockets"] {
                    if let Some(place) = draft.span(key) {
                        let message = format!("`sq` has one queue for everybody: no `{key}`");
                        return Err(conflict(place, message, help));
                    }
                }
                draft.finish(QueueModel::SingleQueue).map(Some)
            }
            QueueModelKind::Mq => {
                let layout = QueueModel::MultiQueue { staging: draft.staging };
                draft.finish(layout).map(Some)
            }
        }
    }
}

/// Returns the error of settings that exclude each other.
pub(crate) fn conflict(
    place: &SourceSpan,
    message: impl Into<String>,
    help: impl Into<String>,
) -> ScenarioError {
    place.error(ProblemKind::Conflict { message: message.into(), help: help.into() })
}

/// Converts the error of a scheduler or limit to an error at its value.
pub(crate) fn check_scheduler(
    place: &SourceSpan,
    verdict: std::result::Result<(), SchedError>,
) -> Result<()> {
    verdict.map_err(|e| conflict(place, e.to_string(), "see docs/scenario.md, `[path]`"))
}

/// Builder of the block layer's configuration, with the spans of its keys.
struct BlockLayerBuilder {
    staging: StagingScope,
    cores: u16,
    sockets: u16,
    queues: Option<u16>,
    scheduler: SchedulerConfig,
    limits: Vec<(Group, GroupThrottle)>,
    merge: bool,
    queue_depth: u32,
    timeouts: Timeouts,
    /// Spans of the keys that are set, in the order of reading.
    spans: Vec<(&'static str, SourceSpan)>,
}

impl Default for BlockLayerBuilder {
    fn default() -> BlockLayerBuilder {
        let BlockLayerConfig { merge, queue_depth, timeouts, .. } = BlockLayerConfig::default();
        BlockLayerBuilder {
            staging: StagingScope::Core,
            cores: 1,
            sockets: 1,
            queues: None,
            scheduler: SchedulerConfig::None,
            limits: Vec::new(),
            merge,
            queue_depth,
            timeouts,
            spans: Vec::new(),
        }
    }
}

impl BlockLayerBuilder {
    fn set<T>(
        &mut self,
        s: &mut Section<'_>,
        key: &'static str,
        read: impl FnOnce(&Value<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        let Some(value) = s.get(key) else { return Ok(None) };
        self.spans.push((key, value.source_span()));
        read(&value).map(Some)
    }

    fn read(&mut self, s: &mut Section<'_>) -> Result<()> {
        let many = |v: &Value<'_>| match v.u16_from(1) {
            Ok(n) if n <= CORES_MAX => Ok(n),
            Err(e) if v.u64().is_err() => Err(e),
            _ => Err(v.refuse(format!("whole numbers from 1 to {CORES_MAX}"))),
        };
        let time = |v: &Value<'_>| match v.duration()? {
            Nanos::ZERO => Err(v.refuse("durations longer than 0")),
            _ => v.duration_in(&TIMEOUT),
        };
        if let Some(cores) = self.set(s, "cores", many)? {
            self.cores = cores;
        }
        if let Some(sockets) = self.set(s, "sockets", many)? {
            self.sockets = sockets;
        }
        self.queues = self.set(s, "queues", many)?;
        let staging = [
            Keyword("core", StagingScope::Core),
            Keyword("socket", StagingScope::Socket),
            Keyword("global", StagingScope::Device),
        ];
        if let Some(staging) = self.set(s, "staging", |v| v.choice(&staging))? {
            self.staging = staging;
        }
        if let Some(scheduler) = self.set(s, "scheduler", scheduler_keys::read)? {
            self.scheduler = scheduler;
        }
        if let Some(limits) = self.set(s, "limit", read_limits)? {
            self.limits = limits;
        }
        if let Some(merge) = self.set(s, "merge", |v| v.boolean())? {
            self.merge = merge;
        }
        let depth = |v: &Value<'_>| match v.u32()? {
            n @ 1..=DEPTH_MAX => Ok(n),
            _ => Err(v.refuse(format!("whole numbers from 1 to {DEPTH_MAX}"))),
        };
        if let Some(depth) = self.set(s, "queue_depth", depth)? {
            self.queue_depth = depth;
        }
        if let Some(timeout) = self.set(s, "timeout", time)? {
            self.timeouts.command = timeout;
        }
        if let Some(timeout) = self.set(s, "abort_timeout", time)? {
            self.timeouts.abort = timeout;
        }
        if let Some(retries) = self.set(s, "retries", |v| v.u16_from(0))? {
            self.timeouts.retries = retries;
        }
        Ok(())
    }

    fn span(&self, key: &str) -> Option<&SourceSpan> {
        self.spans.iter().find(|(k, _)| *k == key).map(|(_, place)| place)
    }

    /// Refuses every key that is set.
    fn refuse_all(&self) -> Result<()> {
        match self.spans.first() {
            Some((key, place)) => Err(place.error(Impossible::NoBlockLayer { key }.into())),
            None => Ok(()),
        }
    }

    fn finish(self, layout: QueueModel) -> Result<BlockLayerSpec> {
        let (cores, sockets) = (self.cores, self.sockets);
        let per_socket = layout == QueueModel::MultiQueue { staging: StagingScope::Socket };
        if let (Some(place), false) = (self.span("sockets"), per_socket) {
            let message = "sockets change nothing unless each has a staging queue";
            return Err(conflict(place, message, "set staging = \"socket\", or remove the key"));
        }
        if let Some(place) = self.span("sockets")
            && !cores.is_multiple_of(sockets)
        {
            let message = format!("{cores} cores cannot be dealt evenly to {sockets} sockets");
            return Err(conflict(place, message, "make `cores` a multiple of `sockets`"));
        }
        if let (Some(queues), Some(place)) = (self.queues, self.span("queues"))
            && queues > cores
        {
            let message = format!(
                "a core uses one hardware queue: {cores} {} cannot use {queues}",
                if cores == 1 { "core" } else { "cores" }
            );
            return Err(conflict(place, message, "make it at most `cores`"));
        }
        if let (SchedulerConfig::Fair(fair), Some(place)) =
            (&self.scheduler, self.span("scheduler"))
            && fair.by == block::sched::FairBy::Submitter
            && fair.weights.len() > usize::from(cores)
        {
            let message = format!("{} weights for {cores} cores", fair.weights.len());
            return Err(conflict(place, message, "give as many weights as `cores`, or fewer"));
        }
        let staging = match layout {
            QueueModel::SingleQueue | QueueModel::MultiQueue { staging: StagingScope::Device } => 1,
            QueueModel::MultiQueue { staging: StagingScope::Socket } => sockets,
            QueueModel::MultiQueue { staging: StagingScope::Core } => cores,
        };
        let hears_from = match layout {
            QueueModel::SingleQueue | QueueModel::MultiQueue { staging: StagingScope::Core } => 1,
            QueueModel::MultiQueue { .. } => self.queues.unwrap_or(cores),
        };
        let places = u64::from(cores) * u64::from(hears_from) * u64::from(self.queue_depth);
        if let Some(place) = self.span("queue_depth").or(self.span("cores"))
            && places > REQUESTS_TOTAL_MAX
        {
            let message = format!(
                "{cores} cores with {} requests each would need places for {places}, more than \
                 {REQUESTS_TOTAL_MAX}",
                self.queue_depth
            );
            let help = "make `queue_depth`, `cores` or `queues` smaller, or set staging = \"core\"";
            return Err(conflict(place, message, help));
        }
        let plan = BlockLayerSpec {
            layout,
            topology: QueueTopology { sockets, cores: cores / sockets },
            queues: self.queues,
            scheduler: self.scheduler.clone(),
            limits: self.limits.clone(),
            merge: self.merge,
            queue_depth: self.queue_depth,
            timeouts: self.timeouts,
        };
        let policy = plan.config(block_sector()).scheduler.per_submitter_policy();
        let key = if policy == Some("limits") { "limit" } else { "scheduler" };
        if let (Err(why), Some(place)) =
            (Impossible::check_staging(policy, staging), self.span(key))
        {
            return Err(place.error(why.into()));
        }
        Ok(plan)
    }
}

/// Returns a sector size for checks that do not depend on it.
pub(crate) const fn block_sector() -> u32 {
    512
}

/// Reads `[[path.limit]]`.
fn read_limits(value: &Value<'_>) -> Result<Vec<(Group, GroupThrottle)>> {
    let mut groups: Vec<(Group, GroupThrottle)> = Vec::new();
    for mut s in value.sections("path.limit")? {
        let Some(at) = s.get("group") else {
            return Err(
                s.missing("group", "the `group` of the jobs that it is for; 0 for all others")
            );
        };
        let group = read_group(&at)?;
        let mut burst = BURST;
        s.set("burst", &mut burst, |v| match v.duration()? {
            time if time > Nanos::ZERO && time <= BURST_MAX => Ok(time),
            _ => Err(v.refuse("durations longer than 0, up to an hour")),
        })?;
        let mut limits = GroupThrottle::default();
        for (key, bytes) in
            [("read_iops", false), ("write_iops", false), ("read_bw", true), ("write_bw", true)]
        {
            let Some(v) = s.get(key) else { continue };
            let per_sec = if bytes { v.bandwidth()? } else { v.u64()? };
            let saved = u128::from(per_sec) * u128::from(burst.0) / 1_000_000_000;
            let rate =
                RateLimit { per_sec, burst: u64::try_from(saved).unwrap_or(u64::MAX).max(1) };
            let DirectionThrottle { operations, bytes } =
                if key.starts_with("read") { &mut limits.read } else { &mut limits.write };
            *(if key.ends_with("bw") { bytes } else { operations }) = Some(rate);
            let config =
                ThrottleConfig { sector_bytes: block_sector(), groups: vec![(group, limits)] };
            check_scheduler(&v.source_span(), config.validate())?;
        }
        // A misspelled key is the better message.
        let missing = s.missing("read_iops", "allowed: read_iops, write_iops, read_bw, write_bw");
        s.finish()?;
        if limits == GroupThrottle::default() {
            return Err(missing);
        }
        if groups.iter().any(|(other, _)| *other == group) {
            return check_scheduler(
                &at.source_span(),
                Err(SchedError::TwoLimits { group: group.0 }),
            )
            .map(|()| groups);
        }
        groups.push((group, limits));
    }
    Ok(groups)
}

/// Reads the index of a group of jobs.
pub(crate) fn read_group(value: &Value<'_>) -> Result<Group> {
    let refused = || value.refuse(format!("whole numbers from 0 to {GROUP_MAX}"));
    match u16::try_from(value.u64()?) {
        Ok(group) if group <= GROUP_MAX => Ok(Group(group)),
        _ => Err(refused()),
    }
}
