//! Traces: what happens to each request in the block layer, and when.
//!
//! The events and their letters are those of blktrace. Each submitter writes into its own buffer
//! (blktrace's per-CPU relay), so cores share nothing for tracing. [`blktrace`] writes the buffers
//! as files that blkparse and btt read, and reads such files.

pub mod blktrace;

use nvme::Status;
use time::Nanos;

use crate::{Native, Op, Platform, Submitter};

/// An event in the life of a request, in the order of occurrence. The letters are those of
/// blktrace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Q: the caller submitted the request.
    Queued,
    /// G: the request got an entry in the block layer.
    GotRequest,
    /// S: no entry was free; the caller got [`QueueFull`](crate::QueueFull).
    Sleep,
    /// P: the first request of a batch was plugged, to wait for others to merge with.
    Plug,
    /// U: a batch was unplugged; `sectors` is its number of requests.
    Unplug,
    /// M: the request was merged after the end of another.
    BackMerge,
    /// F: the request was merged before the start of another.
    FrontMerge,
    /// X: the request was split; `lba` and `sectors` are those of the fragment.
    Split,
    /// I: the request was inserted into a staging queue.
    Inserted,
    /// D: the request was issued to the hardware.
    Issued,
    /// R: the request was requeued from the hardware to the staging queue.
    Requeued,
    /// C: the request completed.
    Completed,
}

impl Action {
    /// Returns the letter that blktrace uses.
    pub const fn letter(self) -> char {
        match self {
            Action::Queued => 'Q',
            Action::GotRequest => 'G',
            Action::Sleep => 'S',
            Action::Plug => 'P',
            Action::Unplug => 'U',
            Action::BackMerge => 'M',
            Action::FrontMerge => 'F',
            Action::Split => 'X',
            Action::Inserted => 'I',
            Action::Issued => 'D',
            Action::Requeued => 'R',
            Action::Completed => 'C',
        }
    }
}

/// A trace event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    /// Time of the event.
    pub at: Nanos,
    /// The event.
    pub action: Action,
    /// The operation of the request.
    pub op: Op,
    /// Whether the request has force unit access.
    pub fua: bool,
    /// First sector of the request.
    pub lba: u64,
    /// Number of sectors.
    pub sectors: u32,
    /// The submitter of the request.
    pub submitter: Submitter,
    /// The core that caused the event: the submitter whose buffer has the event.
    pub core: u16,
    /// The hardware queue; `u16::MAX` if none is chosen yet.
    pub queue: u16,
    /// The status, for [`Action::Completed`].
    pub status: Status,
}

/// A trace buffer with the events of one core, in order, up to a limit.
#[derive(Debug)]
pub struct Tracer {
    events: Vec<TraceEvent>,
    limit: usize,
    dropped: u64,
    /// Returns the time of an event, from that of the call in which it occurs.
    clock: fn(Nanos) -> Nanos,
}

impl Tracer {
    /// Creates a buffer for `limit` events.
    pub fn new(limit: usize) -> Tracer {
        Tracer::on_platform::<Native>(limit)
    }

    /// Creates a buffer for `limit` events of software on a platform.
    pub(crate) fn on_platform<P: Platform>(limit: usize) -> Tracer {
        Tracer { events: Vec::with_capacity(limit), limit, dropped: 0, clock: P::event_time }
    }

    /// Records an event. If the buffer is full, the event is dropped and counted.
    #[inline]
    pub fn record(&mut self, event: TraceEvent) {
        if self.events.len() == self.limit {
            self.dropped += 1;
        } else {
            self.events.push(TraceEvent { at: (self.clock)(event.at), ..event });
        }
    }

    /// Returns the recorded events.
    pub fn events(&self) -> &[TraceEvent] {
        &self.events
    }

    /// Returns the number of events dropped because the buffer was full.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Removes all events and keeps the memory.
    pub fn clear(&mut self) {
        self.events.clear();
    }

    /// Removes and returns all events.
    pub fn drain(&mut self) -> Vec<TraceEvent> {
        std::mem::replace(&mut self.events, Vec::with_capacity(self.limit))
    }
}

/// Merges the events of several cores into one sequence, ordered by time. Events of one time are in
/// [`Action`]'s order, but never against the order of their core.
pub fn merge_by_time(cores: &[&[TraceEvent]]) -> Vec<TraceEvent> {
    let mut rest = cores.to_vec();
    let mut events = Vec::with_capacity(cores.iter().map(|c| c.len()).sum());
    loop {
        let heads = rest.iter_mut().filter(|core| !core.is_empty());
        let Some(core) = heads.min_by_key(|core| (core[0].at, core[0].action)) else {
            return events;
        };
        events.push(core[0]);
        *core = &core[1..];
    }
}
