//! Trace: what happened to each request in the block layer, and when.
//!
//! The events and their letters are blktrace's. Each submitter writes into a buffer of its own
//! (blktrace's per-CPU relay), so tracing shares nothing between cores. [`blktrace`] writes the
//! buffers as files that blkparse and btt read, and reads such files.

pub mod blktrace;

use clock::Nanos;
use nvme::Status;

use crate::{Op, Submitter};

/// What happened to a request, in the order in which it happens. The letters are blktrace's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Q: the caller submitted it.
    Queued,
    /// G: it got a place in the layer.
    GotRequest,
    /// S: there was no place; the caller was told to wait.
    Sleep,
    /// P: the first request of a batch was held back for others to merge with.
    Plug,
    /// U: a batch was let go; `sectors` is how many requests it had.
    Unplug,
    /// M: it was merged onto the end of another.
    BackMerge,
    /// F: it was merged before another.
    FrontMerge,
    /// X: it was split; `lba` and `sectors` are the piece's.
    Split,
    /// I: it was put into a staging queue.
    Inserted,
    /// D: it was given to the hardware.
    Issued,
    /// R: it went back from the hardware to the staging queue.
    Requeued,
    /// C: it completed.
    Completed,
}

impl Action {
    /// blktrace's letter.
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

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    /// When.
    pub at: Nanos,
    /// What.
    pub action: Action,
    /// To which kind of request.
    pub op: Op,
    /// With force unit access.
    pub fua: bool,
    /// First sector.
    pub lba: u64,
    /// Sectors.
    pub sectors: u32,
    /// Whose request.
    pub submitter: Submitter,
    /// The core that did it: that of the submitter in whose buffer the event is.
    pub core: u16,
    /// The hardware queue; `u16::MAX` before there is one.
    pub queue: u16,
    /// How it ended, for [`Action::Completed`].
    pub status: Status,
}

/// The events of one core, in order, up to a limit.
#[derive(Debug)]
pub struct Tracer {
    events: Vec<TraceEvent>,
    limit: usize,
    dropped: u64,
}

impl Tracer {
    /// Room for `limit` events.
    pub fn new(limit: usize) -> Tracer {
        Tracer { events: Vec::with_capacity(limit), limit, dropped: 0 }
    }

    /// Notes an event; when there is no room it is counted instead.
    #[inline]
    pub fn record(&mut self, event: TraceEvent) {
        if self.events.len() == self.limit {
            self.dropped += 1;
        } else {
            self.events.push(event);
        }
    }

    /// The events so far.
    pub fn events(&self) -> &[TraceEvent] {
        &self.events
    }

    /// Events for which there was no room.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Forgets the events, to make room; the memory stays as it is.
    pub fn clear(&mut self) {
        self.events.clear();
    }

    /// Takes the events out, to make room.
    pub fn drain(&mut self) -> Vec<TraceEvent> {
        std::mem::replace(&mut self.events, Vec::with_capacity(self.limit))
    }
}

/// The events of several cores as one sequence: by time; at one time, what must come first first
/// ([`Action`]'s order), but never against the order of their core.
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
