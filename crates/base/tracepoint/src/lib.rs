//! Static tracepoints: the path of a request, from the job to the flash and back.
//!
//! Every layer emits [`Event`]s through [`trace`]. A recording ([`Recorder`]) belongs to the thread
//! that started it, and collects the events of that thread in order, so that a run in virtual time
//! has one deterministic sequence. If no thread of the process records, a tracepoint costs one load
//! and an untaken branch.
//!
//! A layer knows the time when it is polled. A tracepoint in a function without a time argument
//! uses the time of the last [`set_time`] or [`trace_at`] of its thread.

#![forbid(unsafe_code)]

mod event;

use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering};

use time::Nanos;

pub use event::{Admission, ArrayOp, Cause, Event, PuOpStep, Record, RequestOp, StageKind};

/// Number of recordings in the process.
static ACTIVE_RECORDINGS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    static LOG: RefCell<Option<ThreadLog>> = const { RefCell::new(None) };
}

#[derive(Debug, Default)]
struct ThreadLog {
    now: Nanos,
    drive: u16,
    path: u16,
    target: u16,
    records: Vec<Record>,
    clock: Option<fn() -> Nanos>,
}

/// The origin of a thread's events: what [`set_path`] and [`set_target`] set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventOrigin {
    /// The drive.
    pub drive: u16,
    /// The path to it.
    pub path: u16,
    /// The target in the host.
    pub target: u16,
}

/// Whether any thread records. Guards work that only a tracepoint needs.
#[inline(always)]
pub fn is_on() -> bool {
    ACTIVE_RECORDINGS.load(Ordering::Relaxed) != 0
}

/// Emits an event at the time `at`.
#[inline(always)]
pub fn trace_at(at: Nanos, event: impl FnOnce() -> Event) {
    if is_on() {
        record(Some(at), event());
    }
}

/// Emits an event at the thread's present time.
#[inline(always)]
pub fn trace(event: impl FnOnce() -> Event) {
    if is_on() {
        record(None, event());
    }
}

/// Sets the thread's present time.
#[inline(always)]
pub fn set_time(now: Nanos) {
    if is_on() {
        with_log(|log| log.now = now);
    }
}

/// Sets the drive whose controller emits the later events of the thread.
#[inline(always)]
pub fn set_drive(drive: u16) {
    set_path(drive, 0);
}

/// Sets the path whose host side emits the later events of the thread, and the drive below it.
#[inline(always)]
pub fn set_path(drive: u16, path: u16) {
    if is_on() {
        with_log(|log| (log.drive, log.path, log.target) = (drive, path, 0));
    }
}

/// Sets the host-side target that later events of the thread refer to; 0 for none.
#[inline(always)]
pub fn set_target(target: u16) {
    if is_on() {
        with_log(|log| log.target = target);
    }
}

/// Returns the origin of the thread's events.
pub fn origin() -> EventOrigin {
    let mut origin = EventOrigin::default();
    with_log(|log| {
        origin = EventOrigin { drive: log.drive, path: log.path, target: log.target };
    });
    origin
}

/// Sets the origin of later events of the thread, which may run the code of several in turn.
pub fn set_origin(origin: EventOrigin) {
    let EventOrigin { drive, path, target } = origin;
    with_log(|log| (log.drive, log.path, log.target) = (drive, path, target));
}

/// Sets the clock of the thread's recording, for software whose calls take time. A tracepoint in a
/// function without a time argument then uses the clock's time, if it is later than the thread's.
pub fn set_clock(clock: fn() -> Nanos) {
    with_log(|log| log.clock = Some(clock));
}

#[cold]
fn record(at: Option<Nanos>, event: Event) {
    with_log(|log| {
        log.now = match (at, log.clock) {
            (Some(at), _) => at,
            (None, Some(clock)) => log.now.max(clock()),
            (None, None) => log.now,
        };
        let ThreadLog { now, drive, path, target, .. } = *log;
        log.records.push(Record { at: now, drive, path, target, event });
    });
}

#[cold]
fn with_log(change: impl FnOnce(&mut ThreadLog)) {
    LOG.with(|log| {
        if let Some(log) = log.borrow_mut().as_mut() {
            change(log);
        }
    });
}

/// A recording of the thread that created it; it ends when it is dropped.
#[derive(Debug)]
pub struct Recorder {
    /// Makes the type `!Send`: recordings belong to their thread.
    not_send: std::marker::PhantomData<*const ()>,
}

impl Recorder {
    /// Starts a recording. Returns `None` if the thread is already recording.
    pub fn start() -> Option<Recorder> {
        LOG.with(|log| {
            let mut log = log.borrow_mut();
            if log.is_some() {
                return None;
            }
            *log = Some(ThreadLog::default());
            ACTIVE_RECORDINGS.fetch_add(1, Ordering::Relaxed);
            Some(Recorder { not_send: std::marker::PhantomData })
        })
    }

    /// Appends the events since the last call to `into`.
    pub fn drain_into(&mut self, into: &mut Vec<Record>) {
        with_log(|log| into.append(&mut log.records));
    }

    /// Returns the number of events not yet drained.
    pub fn pending(&self) -> usize {
        LOG.with(|log| log.borrow().as_ref().map_or(0, |log| log.records.len()))
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        LOG.with(|log| log.borrow_mut().take());
        ACTIVE_RECORDINGS.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gc(line: u32) -> Event {
        Event::GcEnds { line }
    }

    #[test]
    fn a_recording_has_the_events_of_its_thread_in_order_and_with_their_time() {
        trace(|| gc(9));
        let mut recorder = Recorder::start().unwrap();
        assert!(Recorder::start().is_none(), "one at a time");
        std::thread::spawn(|| trace(|| gc(8))).join().unwrap();
        set_path(3, 6);
        trace_at(Nanos(5), || gc(1));
        set_target(4);
        trace(|| gc(2));
        set_drive(3);
        set_time(Nanos(7));
        trace(|| gc(3));
        assert_eq!(recorder.pending(), 3);
        let mut records = Vec::new();
        recorder.drain_into(&mut records);
        let at = |at, path, target, line| {
            let event = gc(line);
            Record { at: Nanos(at), drive: 3, path, target, event }
        };
        assert_eq!(records, [at(5, 6, 0, 1), at(5, 6, 4, 2), at(7, 0, 0, 3)]);
        assert_eq!(recorder.pending(), 0);
        set_path(3, 6);
        set_target(4);
        assert_eq!(origin(), EventOrigin { drive: 3, path: 6, target: 4 });
        set_origin(EventOrigin { drive: 1, path: 2, target: 0 });
        set_time(Nanos(8));
        set_clock(|| Nanos(9));
        trace(|| gc(4));
        trace_at(Nanos(8), || gc(5));
        records.clear();
        recorder.drain_into(&mut records);
        let found: Vec<_> = records.iter().map(|r| (r.at.0, r.drive, r.path, r.target)).collect();
        assert_eq!(found, [(9, 1, 2, 0), (8, 1, 2, 0)]);
        drop(recorder);
        let again = Recorder::start().unwrap();
        assert_eq!(again.pending(), 0, "a new recording is empty");
    }
}
