//! [`Supervisor`]: the thread that answers stopped calls.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use event::monotonic_now;
use output_gate::{Listener, StoppedCall};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use syscall_table::{Rule, find};

use crate::speculation::SyncProgress;

/// A stopped call that waits.
#[derive(Clone, Copy, Debug)]
struct WaitingCall {
    call: StoppedCall,
    /// The sync that must be durable.
    sync: u64,
    /// It must wait until the service has stopped to replace syncs, too.
    ends_speculation: bool,
    /// Nanoseconds of the monotonic clock.
    since: u64,
}

#[derive(Debug)]
pub(super) struct Supervisor {
    progress: Arc<SyncProgress>,
}

impl Supervisor {
    pub(super) fn new(progress: Arc<SyncProgress>) -> Supervisor {
        Supervisor { progress }
    }

    /// Answers calls until no process has the filter any more.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn run(&self, listener: &Listener) -> io::Result<()> {
        // Without it (before Linux 6.6) only the exchange is slower.
        listener.set_synchronous();
        let mut waiting: Vec<WaitingCall> = Vec::new();
        loop {
            // A call that waits needs a wake-up by the service.
            let is_waiting = !waiting.is_empty();
            if is_waiting {
                self.progress.parker.prepare();
                self.answer_ready(listener, &mut waiting)?;
            }
            let mut ends = [
                PollFd::new(listener, PollFlags::IN),
                PollFd::new(&self.progress.parker, PollFlags::IN),
            ];
            let count = if is_waiting { 2 } else { 1 };
            match poll(&mut ends[..count], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let events = ends[0].revents();
            if is_waiting {
                self.progress.parker.unpark();
            }
            if events.contains(PollFlags::IN)
                && let Some(call) = listener.receive()?
            {
                self.decide(listener, call, &mut waiting)?;
            } else if events.contains(PollFlags::HUP) {
                return Ok(());
            }
        }
    }

    /// Publishes that the supervision has ended.
    pub(super) fn end(&self) {
        self.progress.set_over();
    }

    /// Lets a call go that depends on nothing pending, or queues it.
    fn decide(
        &self,
        listener: &Listener,
        call: StoppedCall,
        waiting: &mut Vec<WaitingCall>,
    ) -> io::Result<()> {
        let shares = find(call.number).is_some_and(|row| row.shares_memory(&call.arguments));
        let ends_speculation = shares && !(is_mapping(&call) && maps_read_only(&call));
        if ends_speculation {
            self.progress.end();
        }
        let sync = self.progress.acknowledged();
        let waiter = WaitingCall { call, sync, ends_speculation, since: monotonic_now() };
        if self.is_ready(&waiter) && !self.has_failed() {
            self.progress.counters.stopped.fetch_add(1, Ordering::Relaxed);
            return listener.allow(call.id);
        }
        waiting.push(waiter);
        self.progress.counters.waiting.store(waiting.len() as u64, Ordering::SeqCst);
        Ok(())
    }

    fn has_failed(&self) -> bool {
        self.progress.has_failed.load(Ordering::SeqCst)
    }

    /// Returns whether nothing that a call depends on is pending.
    fn is_ready(&self, waiter: &WaitingCall) -> bool {
        let has_ended = !waiter.ends_speculation || self.progress.has_ended.load(Ordering::SeqCst);
        // Syncs may have been acknowledged before the service saw the end.
        let sync = match waiter.ends_speculation {
            true => self.progress.acknowledged(),
            false => waiter.sync,
        };
        has_ended && self.progress.durable.load(Ordering::SeqCst) >= sync
    }

    /// Answers the calls whose sync is durable, or all of them once a sync failed.
    fn answer_ready(&self, listener: &Listener, waiting: &mut Vec<WaitingCall>) -> io::Result<()> {
        let counters = &self.progress.counters;
        let has_failed = self.has_failed();
        let mut result = Ok(());
        waiting.retain(|waiter| {
            if has_failed {
                counters.failed.fetch_add(1, Ordering::Relaxed);
                result = fail(listener, &waiter.call);
                return result.is_err();
            }
            if !self.is_ready(waiter) || result.is_err() {
                return true;
            }
            let waited = monotonic_now().saturating_sub(waiter.since);
            counters.waited.fetch_add(1, Ordering::Relaxed);
            counters.wait_total.fetch_add(waited, Ordering::Relaxed);
            counters.wait_max.fetch_max(waited, Ordering::Relaxed);
            result = listener.allow(waiter.call.id);
            false
        });
        counters.waiting.store(waiting.len() as u64, Ordering::SeqCst);
        result
    }
}

/// Has a call fail that depends on a sync that failed. A process cannot go on after an exit that
/// fails, and its status must not be seen, so it is killed. A handler of `SIGBUS` may end its own
/// process by another signal.
fn fail(listener: &Listener, call: &StoppedCall) -> io::Result<()> {
    if is_signal_to_itself(call) {
        return listener.allow(call.id);
    }
    let is_exit = find(call.number).is_some_and(|row| matches!(row.name, "exit" | "exit_group"));
    if is_exit && listener.is_valid(call.id) {
        let process = i32::try_from(call.thread).ok().and_then(Pid::from_raw);
        // The call is still stopped, so the number is the thread's. It may end meanwhile.
        let _ = process.map(|process| kill_process(process, Signal::KILL));
        return Ok(());
    }
    listener.fail(call.id, Errno::IO.raw_os_error())
}

/// Returns whether a call sends a signal to the process that makes it.
fn is_signal_to_itself(call: &StoppedCall) -> bool {
    let [to, ..] = call.arguments;
    let is_signal = find(call.number).is_some_and(|row| matches!(row.rule, Rule::Signal(_)));
    let own = process_of(call.thread);
    is_signal && own.is_some() && own == process_of(to as u32)
}

/// Returns the process of a thread; `None` if it has ended.
fn process_of(thread: u32) -> Option<u32> {
    let text = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok())
}

fn is_mapping(call: &StoppedCall) -> bool {
    find(call.number).is_some_and(|row| row.name == "mmap")
}

/// Returns whether a mapping's file is open for reading only: no later protection makes the mapping
/// writable.
fn maps_read_only(call: &StoppedCall) -> bool {
    /// `O_ACCMODE`; 0 is `O_RDONLY`.
    const ACCESS: u32 = 0o3;
    let [_, _, _, _, descriptor, _] = call.arguments;
    let path = format!("/proc/{}/fdinfo/{}", call.thread, descriptor as u32);
    let Ok(text) = fs::read_to_string(path) else { return false };
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|octal| u32::from_str_radix(octal.trim(), 8).ok());
    flags.is_some_and(|flags| flags & ACCESS == 0)
}
