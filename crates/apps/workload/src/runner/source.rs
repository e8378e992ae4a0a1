//! [`RequestSource`]: the next request of a job, and the earliest time for it.
//!
//! A generated job has a mix of directions, rates, flushes and think time. A replay has the lines
//! of a trace.

use block::Limits;
use rng::Rng;
use time::Nanos;

use crate::device::DeviceSpace;
use crate::error::RunError;
use crate::io_range::IoRange;
use crate::job::{Direction, JobSpec, Rate};
use crate::runner::chunk_states::ChunkStates;
use crate::runner::key_source::KeySource;
use crate::runner::pattern::{GivenRanks, Pattern};
use crate::runner::unit_source::{UnitSource, UnitSourceError};
use crate::trace::{Due, TraceAction, TraceError, TraceOp, TraceReader};

/// Default maximum of outstanding requests of a timed replay.
const TIMED_DEPTH: u32 = 1024;

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IoKind {
    Transfer(Direction),
    Flush,
}

/// A request to issue, in sectors of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NextIo {
    pub(crate) kind: IoKind,
    pub(crate) lba: u64,
    pub(crate) sectors: u32,
}

/// Answer of [`RequestSource::next`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum IssueDecision {
    /// Issue this request now.
    Now(NextIo),
    /// Call again at this instant.
    WaitUntil(Nanos),
    /// Call again when a request of the job has completed.
    WaitForCompletion,
    /// The source has no more requests.
    End,
}

/// Source of requests.
#[derive(Debug)]
pub(crate) enum RequestSource {
    Generated(Box<GeneratedIo>),
    Replay(Box<TraceReplay>),
    Keys(Box<KeySource>),
    Units(Box<UnitSource>),
}

/// Error of [`RequestSource::next`].
#[derive(Debug)]
pub(crate) enum SourceError {
    Trace(TraceError),
    Units(UnitSourceError),
}

impl SourceError {
    /// Returns the error of the run.
    #[cold]
    pub(crate) fn of_job(self, job: &str) -> RunError {
        let job = job.to_owned();
        match self {
            SourceError::Trace(source) => RunError::Trace { job, source },
            SourceError::Units(source) => RunError::Units { job, source },
        }
    }
}

/// Requests of a generated job.
#[derive(Debug)]
pub(crate) struct GeneratedIo {
    pattern: Pattern,
    mix: RwMix,
    /// First sector of the region.
    first: u64,
    sector_shift: u32,
    /// Maximum number of bytes to issue.
    bytes_max: u64,
    ios_max: u64,
    issued: [u64; 3],
    issued_bytes: u64,
    issued_ios: u64,
    fsync: u64,
    writes_since_flush: u64,
    /// Direction already drawn for a request that is not yet due.
    drawn_direction: Option<Direction>,
    rate_control: Option<Box<RateControl>>,
    rng: Rng,
}

/// Choice of the direction of the next request.
#[derive(Debug)]
enum RwMix {
    Single(Direction),
    /// A random number below this share of 2^32 is a read.
    ReadShare(u64),
}

/// Time at which each direction may issue next.
#[derive(Debug)]
pub(super) struct RateControl {
    rates: [Option<f64>; 3],
    poisson: bool,
    pub(super) start: Nanos,
    /// Poisson process: time of the next event per direction.
    next: [Nanos; 3],
}

impl RateControl {
    pub(super) fn new(spec: &JobSpec) -> Option<Box<RateControl>> {
        let rates = std::array::from_fn(|d| {
            let smallest = spec.pattern.block_sizes[d].iter().map(|(b, _)| *b).min().unwrap_or(1);
            match spec.pace.rate[d] {
                Rate::Unlimited => None,
                Rate::Bytes(bytes) => Some(bytes as f64),
                Rate::Iops(ios) => Some(ios as f64 * smallest as f64),
            }
        });
        let paced = Direction::ALL
            .iter()
            .any(|d| spec.pattern.access.uses(*d) && rates[*d as usize].is_some());
        paced.then(|| {
            Box::new(RateControl {
                rates,
                poisson: spec.pace.rate_poisson,
                start: Nanos::ZERO,
                next: [Nanos::ZERO; 3],
            })
        })
    }

    /// Returns the time at which a request in `direction` is due after `issued` bytes.
    pub(super) fn due_time(&self, direction: Direction, issued: u64) -> Nanos {
        match self.rates[direction as usize] {
            None => Nanos::ZERO,
            Some(_) if self.poisson => self.next[direction as usize].max(self.start),
            Some(rate) => self.start + Nanos((issued as f64 / rate * 1e9) as u64),
        }
    }

    pub(super) fn on_issue(&mut self, direction: Direction, bytes: u64, rng: &mut Rng) {
        if let (Some(rate), true) = (self.rates[direction as usize], self.poisson) {
            let gap = Nanos(rng.exponential(bytes as f64 / rate * 1e9) as u64);
            let next = &mut self.next[direction as usize];
            *next = (*next).max(self.start) + gap;
        }
    }
}

impl GeneratedIo {
    /// Returns the source of `spec` on `area` of a device. `sector_bytes` must be a power of two.
    pub(crate) fn new(
        spec: &JobSpec,
        area: IoRange,
        sector_bytes: u32,
        rng: Rng,
    ) -> Result<GeneratedIo, String> {
        let pattern = Pattern::new(spec, area.bytes, rng.fork(1))?;
        let smallest = crate::parse::options::used_directions(&spec.pattern.access)
            .flat_map(|d| spec.pattern.block_sizes[d as usize].iter().map(|(b, _)| *b))
            .min()
            .unwrap_or(1);
        let whole = area.bytes - area.bytes % smallest;
        let mut limit = spec.range.io_size.map_or(whole, |s| s.resolve(area.bytes));
        if spec.pattern.access.is_trim_write() {
            // Every block is transferred twice.
            limit = limit.saturating_mul(2);
        }
        if spec.schedule.time_based {
            limit = u64::MAX;
        }
        let uses = spec.pattern.access.uses;
        let mix = if uses == [true, true, false] {
            RwMix::ReadShare((spec.pattern.read_percent / 100.0 * 4_294_967_296.0) as u64)
        } else if uses[2] {
            // Each write of a trimwrite job follows its trim.
            RwMix::Single(Direction::Trim)
        } else {
            RwMix::Single(if uses[0] { Direction::Read } else { Direction::Write })
        };
        Ok(GeneratedIo {
            pattern,
            mix,
            first: area.offset / u64::from(sector_bytes),
            sector_shift: sector_bytes.ilog2(),
            bytes_max: limit,
            ios_max: spec.range.number_ios.unwrap_or(u64::MAX),
            issued: [0; 3],
            issued_bytes: 0,
            issued_ios: 0,
            fsync: spec.integrity.fsync,
            writes_since_flush: 0,
            drawn_direction: None,
            rate_control: RateControl::new(spec),
            rng: rng.fork(2),
        })
    }

    /// Returns the next request, or the time at which to call again.
    #[inline]
    pub(super) fn next(&mut self, now: Nanos) -> IssueDecision {
        if self.fsync > 0 && self.writes_since_flush >= self.fsync {
            self.writes_since_flush = 0;
            return IssueDecision::Now(NextIo { kind: IoKind::Flush, lba: 0, sectors: 0 });
        }
        if self.issued_bytes >= self.bytes_max || self.issued_ios >= self.ios_max {
            return IssueDecision::End;
        }
        let mut direction = match (self.drawn_direction, &self.mix) {
            (Some(drawn), _) => drawn,
            (None, RwMix::Single(only)) => *only,
            (None, RwMix::ReadShare(below)) => {
                let read = self.rng.next_u64() >> 32 < *below;
                if read { Direction::Read } else { Direction::Write }
            }
        };
        if let Some(pace) = &self.rate_control {
            let due = |d: Direction| pace.due_time(d, self.issued[d as usize]);
            let mut at = due(direction);
            if at > now && matches!(self.mix, RwMix::ReadShare(1..4_294_967_296)) {
                // As in fio, a mixed job that is ahead in one direction continues in the other.
                let other = [Direction::Write, Direction::Read][direction as usize];
                if due(other) < at {
                    (direction, at) = (other, due(other));
                }
            }
            if at > now {
                self.drawn_direction = Some(direction);
                return IssueDecision::WaitUntil(at);
            }
        }
        self.drawn_direction = None;
        let block = self.pattern.next(direction);
        let wanted = NextIo {
            kind: IoKind::Transfer(direction),
            lba: self.first + (block.offset >> self.sector_shift),
            sectors: (block.bytes >> self.sector_shift) as u32,
        };
        self.on_issue(direction, block.bytes);
        IssueDecision::Now(wanted)
    }

    #[inline]
    fn on_issue(&mut self, direction: Direction, bytes: u64) {
        self.issued[direction as usize] += bytes;
        self.issued_bytes += bytes;
        self.issued_ios += 1;
        self.writes_since_flush += u64::from(direction == Direction::Write);
        if let Some(pace) = &mut self.rate_control {
            pace.on_issue(direction, bytes, &mut self.rng);
        }
    }

    /// Accesses the blocks of `ranks` before its own.
    pub(super) fn access_first(&mut self, ranks: GivenRanks) {
        self.pattern.access_first(ranks);
    }

    /// Limits the bytes to issue.
    pub(super) fn limit_bytes(&mut self, most: u64) {
        self.bytes_max = self.bytes_max.min(most);
    }

    /// Starts the limits of rates at the start of the job.
    pub(super) fn start(&mut self, now: Nanos) {
        if let Some(pace) = &mut self.rate_control {
            pace.start = now;
        }
    }

    /// Returns the issued share of the bytes or requests, from 0 to 1.
    pub(super) fn progress(&self) -> f64 {
        let bytes = self.issued_bytes as f64 / (self.bytes_max as f64).max(1.0);
        bytes.max(self.issued_ios as f64 / self.ios_max as f64).min(1.0)
    }

    /// Counts the write that follows a trim of a trimwrite job.
    pub(crate) fn write_after_trim(&mut self, sectors: u32) {
        self.on_issue(Direction::Write, u64::from(sectors) << self.sector_shift);
    }
}

/// Requests of a trace.
#[derive(Debug)]
pub(crate) struct TraceReplay {
    pub(crate) reader: TraceReader,
    peeked: Option<TraceOp>,
    /// Whether the replay follows the times and waits of the trace.
    is_timed: bool,
    start: Nanos,
    /// End of the last wait of a trace without times.
    wait_end: Nanos,
    /// Time at which the last returned request was due by the trace; `None` if the trace has no
    /// times.
    pub(crate) due: Option<Nanos>,
}

impl TraceReplay {
    pub(crate) fn new(reader: TraceReader, is_timed: bool) -> TraceReplay {
        let (start, wait_end) = (Nanos::ZERO, Nanos::ZERO);
        TraceReplay { reader, peeked: None, is_timed, start, wait_end, due: None }
    }

    /// Returns the default maximum of outstanding requests. A timed replay needs as many as are due
    /// together; all others use fio's default of 1.
    pub(crate) fn default_depth(&self) -> u32 {
        if self.is_timed && self.reader.is_timed() { TIMED_DEPTH } else { 1 }
    }

    fn next(&mut self, now: Nanos) -> Result<IssueDecision, crate::trace::TraceError> {
        let mut op = match self.peeked.take() {
            Some(op) => op,
            None => match self.reader.next_op()? {
                Some(op) => op,
                None => return Ok(IssueDecision::End),
            },
        };
        self.due = None;
        match op.at {
            _ if !self.is_timed => {}
            Due::At(time) => {
                let due = self.start + time;
                if due > now {
                    self.peeked = Some(op);
                    return Ok(IssueDecision::WaitUntil(due));
                }
                self.due = Some(due);
            }
            Due::After(wait) => {
                if wait > Nanos::ZERO {
                    // A wait starts at the end of the previous wait. It has no effect if it ended
                    // before now.
                    self.wait_end = now.max(self.wait_end + wait);
                    op.at = Due::After(Nanos::ZERO);
                }
                if self.wait_end > now {
                    self.peeked = Some(op);
                    return Ok(IssueDecision::WaitUntil(self.wait_end));
                }
            }
        }
        let kind = match op.action {
            TraceAction::Access(direction) => IoKind::Transfer(direction),
            TraceAction::Flush => IoKind::Flush,
        };
        Ok(IssueDecision::Now(NextIo { kind, lba: op.lba, sectors: op.sectors }))
    }
}

impl RequestSource {
    /// Returns the source of clone `clone` of `spec` on `area` of a device; it draws from `rng`.
    pub(crate) fn new(
        spec: &JobSpec,
        clone: u32,
        area: IoRange,
        device: DeviceSpace<'_>,
        rng: &Rng,
    ) -> Result<RequestSource, RunError> {
        let job = || spec.name.clone();
        let limits = device.sectors;
        if let (Some(own), Some(units)) = (&spec.units, device.units) {
            let source = UnitSource::new(spec, own, units, rng);
            let source = source.map_err(|what| RunError::DeviceMismatch { job: job(), what })?;
            return Ok(RequestSource::Units(Box::new(source)));
        }
        if let Some(keys) = &spec.keys {
            let source = KeySource::new(spec, keys, clone, area, rng);
            let source = source.map_err(|what| RunError::DeviceMismatch { job: job(), what })?;
            return Ok(RequestSource::Keys(Box::new(source)));
        }
        match &spec.replay {
            Some(replay) => {
                let reader = TraceReader::open(replay, limits.sector_bytes, limits.sectors);
                let reader = reader.map_err(|source| RunError::Trace { job: job(), source })?;
                Ok(RequestSource::Replay(Box::new(TraceReplay::new(reader, !replay.no_stall))))
            }
            None => {
                let generated = GeneratedIo::new(spec, area, limits.sector_bytes, rng.clone());
                let generated =
                    generated.map_err(|what| RunError::DeviceMismatch { job: job(), what })?;
                Ok(RequestSource::Generated(Box::new(generated)))
            }
        }
    }

    /// Restarts the source for another loop. As in fio, only the count of writes until a flush
    /// continues.
    pub(crate) fn restart(
        &mut self,
        spec: &JobSpec,
        area: IoRange,
        limits: &Limits,
        rng: &Rng,
    ) -> Result<(), RunError> {
        let before = match self {
            RequestSource::Generated(g) => g.writes_since_flush,
            RequestSource::Replay(_) => 0,
            RequestSource::Units(u) => {
                return u.restart(spec, rng).map_err(|what| {
                    let job = spec.name.clone();
                    RunError::DeviceMismatch { job, what }
                });
            }
            RequestSource::Keys(k) => {
                return k.restart(spec, area, rng).map_err(|what| {
                    let job = spec.name.clone();
                    RunError::DeviceMismatch { job, what }
                });
            }
        };
        *self =
            RequestSource::new(spec, 0, area, DeviceSpace { sectors: limits, units: None }, rng)?;
        if let RequestSource::Generated(g) = self {
            g.writes_since_flush = before;
        }
        Ok(())
    }

    /// Starts the source at the start of the job.
    pub(crate) fn start(&mut self, now: Nanos) {
        match self {
            RequestSource::Generated(g) => g.start(now),
            RequestSource::Replay(r) => (r.start, r.wait_end) = (now, now),
            RequestSource::Keys(k) => k.start(now),
            RequestSource::Units(u) => u.start(now),
        }
    }

    /// Returns the next request, or the time at which to call again.
    #[inline]
    pub(crate) fn next(
        &mut self,
        now: Nanos,
        chunks: &mut Option<Box<ChunkStates>>,
    ) -> Result<IssueDecision, SourceError> {
        match self {
            RequestSource::Generated(g) => Ok(g.next(now)),
            RequestSource::Replay(r) => r.next(now).map_err(SourceError::Trace),
            RequestSource::Keys(k) => Ok(k.next(now)),
            RequestSource::Units(u) => match chunks {
                Some(chunks) => u.next(now, chunks).map_err(SourceError::Units),
                None => Err(SourceError::Units(UnitSourceError::NoChunks)),
            },
        }
    }

    /// Returns the issued share of the bytes or requests, from 0 to 1.
    pub(crate) fn progress(&self) -> f64 {
        match self {
            RequestSource::Generated(g) => g.progress(),
            RequestSource::Replay(r) => r.reader.progress(),
            RequestSource::Keys(k) => k.progress(),
            RequestSource::Units(u) => u.progress(),
        }
    }
}
