//! [`Supervisor`]: the thread that answers stopped calls.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use event::monotonic_now;
use output_gate::{DataSend, Listener, StoppedCall};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use syscall_table::{Rule, find};

use super::outbox::Outbox;
use super::target::{
    DescriptorInfo, FileId, OpenFile, SendTarget, TargetState, is_unlocked_reader,
};
use crate::speculation::SyncProgress;

/// A stopped call that waits.
#[derive(Clone, Copy, Debug)]
struct WaitingCall {
    call: StoppedCall,
    /// The sync that must be durable.
    sync: u64,
    /// The turn of the sends in the outbox up to this one must have come.
    behind: u64,
    /// The socket or pipe on which the call acts: sends to it must have left the outbox.
    on: Option<FileId>,
    /// The call returns `EAGAIN` if that file is full, as it does not block.
    fails_if_full: bool,
    /// It must wait until the service has stopped to replace syncs, too.
    ends_speculation: bool,
    /// Nanoseconds of the monotonic clock.
    since: u64,
}

impl WaitingCall {
    /// Returns the call as if it could overtake data that was sent before.
    fn on_none(self) -> WaitingCall {
        WaitingCall { on: None, ..self }
    }
}

/// `MSG_DONTWAIT`.
const MSG_DONTWAIT: u64 = 0x40;

/// Treatment of a call that sends data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendAnswer {
    /// The call was answered.
    Done,
    /// The kernel executes it, at once or when its sync is durable.
    Kernel,
}

#[derive(Debug)]
pub(super) struct Supervisor {
    progress: Arc<SyncProgress>,
    outbox: Outbox,
    waiting: Vec<WaitingCall>,
}

impl Supervisor {
    pub(super) fn new(progress: Arc<SyncProgress>, outbox: Outbox) -> Supervisor {
        Supervisor { progress, outbox, waiting: Vec::new() }
    }

    /// Answers calls until no process has the filter any more, and the outbox is empty.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn run(&mut self, listener: &Listener) -> io::Result<()> {
        // Without it (before Linux 6.6) only the exchange is slower.
        listener.set_synchronous();
        let mut has_processes = true;
        while has_processes || !self.outbox.is_empty() {
            // A call that waits and data in the outbox need a wake-up by the service.
            let is_waiting = !self.waiting.is_empty() || !self.outbox.is_empty();
            if is_waiting {
                self.progress.parker.prepare();
                self.advance(listener)?;
            }
            let events = self.wait_for_events(listener, has_processes, is_waiting);
            if is_waiting {
                self.progress.parker.unpark();
            }
            let events = events?;
            if events.contains(PollFlags::IN)
                && let Some(call) = listener.receive()?
            {
                self.decide(listener, call)?;
            } else if events.contains(PollFlags::HUP) {
                has_processes = false;
                self.waiting.clear();
                self.progress.counters.waiting.store(0, Ordering::SeqCst);
            }
        }
        Ok(())
    }

    /// Waits for a call, for the service and for full targets. Returns the listener's events.
    fn wait_for_events(
        &self,
        listener: &Listener,
        has_processes: bool,
        is_waiting: bool,
    ) -> io::Result<PollFlags> {
        if !has_processes && self.outbox.is_empty() {
            return Ok(PollFlags::empty());
        }
        let wanted = if has_processes { PollFlags::IN } else { PollFlags::empty() };
        let mut ends = Vec::new();
        ends.extend(is_waiting.then(|| PollFd::new(&self.progress.parker, PollFlags::IN)));
        ends.extend(self.outbox.full_targets());
        ends.extend(has_processes.then(|| PollFd::new(listener, wanted)));
        match poll(&mut ends, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let last = ends.last().filter(|_| has_processes);
        Ok(last.map_or(PollFlags::empty(), PollFd::revents))
    }

    /// Publishes that the supervision has ended.
    pub(super) fn end(&self) {
        self.progress.set_over();
    }

    /// Sends what is durable, and answers the calls that can go on.
    fn advance(&mut self, listener: &Listener) -> io::Result<()> {
        // The service publishes the last durable sync before a failure.
        let has_failed = self.has_failed();
        self.release();
        if has_failed {
            let durable = self.progress.durable.load(Ordering::SeqCst);
            self.outbox.fail(durable, &self.progress.counters.outbox);
            self.progress.publish_buffered(self.outbox.len());
        }
        self.answer_ready(listener)
    }

    fn release(&mut self) {
        let durable = self.progress.durable.load(Ordering::SeqCst);
        self.outbox.release(durable, &self.progress.counters.outbox);
        // The data was sent before the library can see that it has left the outbox.
        self.progress.publish_buffered(self.outbox.len());
    }

    /// Lets a call go that depends on nothing pending, copies its data, or queues it.
    fn decide(&mut self, listener: &Listener, call: StoppedCall) -> io::Result<()> {
        let shares = find(call.number).is_some_and(|row| row.shares_memory(&call.arguments));
        let ends_speculation = shares && !maps_read_only(&call);
        if ends_speculation {
            self.progress.end();
        }
        let sync = self.progress.acknowledged();
        let (behind, since) = (self.outbox.last(), monotonic_now());
        let (on, fails_if_full) = (None, false);
        let mut waiter =
            WaitingCall { call, sync, behind, on, fails_if_full, ends_speculation, since };
        if self.outbox.is_enabled()
            && !ends_speculation
            && !self.has_failed()
            && (!self.outbox.is_empty() || !self.is_ready(&waiter))
            && self.buffer(listener, &call, sync)? == SendAnswer::Done
        {
            return Ok(());
        }
        if !self.outbox.is_empty()
            && let Some(acted) = ActedFile::of(&call)
            && let Some(file) = OpenFile::of(call.thread, acted.descriptor)
        {
            let is_non_blocking = file.is_non_blocking || acted.flags & MSG_DONTWAIT != 0;
            waiter.on = Some(file.id);
            waiter.fails_if_full = acted.can_block && is_non_blocking;
        }
        if !self.has_failed() && (self.is_ready(&waiter) || is_hidden_close(&call)) {
            self.progress.counters.stopped.fetch_add(1, Ordering::Relaxed);
            return listener.allow(call.id);
        }
        self.progress.want(sync);
        self.waiting.push(waiter);
        self.progress.counters.waiting.store(self.waiting.len() as u64, Ordering::SeqCst);
        Ok(())
    }

    /// Copies the data of a call to the outbox, if it only sends data that fits.
    fn buffer(
        &mut self,
        listener: &Listener,
        call: &StoppedCall,
        sync: u64,
    ) -> io::Result<SendAnswer> {
        let Some(send) = DataSend::of(call).filter(|send| send.len > 0) else {
            return Ok(SendAnswer::Kernel);
        };
        let Some(target) = SendTarget::of(call.thread, &send) else {
            return Ok(SendAnswer::Kernel);
        };
        if self.outbox.state_of(&target) == TargetState::Full {
            // The target may have got room meanwhile, which the program may know.
            self.release();
        }
        let has_sends = self.outbox.has_sends_to(target.id, u64::MAX);
        let is_pending = self.progress.durable.load(Ordering::SeqCst) < sync;
        match self.outbox.state_of(&target) {
            TargetState::Broken => return Ok(SendAnswer::Kernel),
            TargetState::Full if !has_sends => return Ok(SendAnswer::Kernel),
            // The kernel would say so, as data that the program has sent before is not sent.
            TargetState::Full if target.is_non_blocking => {
                listener.fail(call.id, Errno::AGAIN.raw_os_error())?;
                return Ok(SendAnswer::Done);
            }
            TargetState::Full | TargetState::Writable => {}
        }
        if !is_pending && !has_sends && self.outbox.has_tried(u64::MAX) {
            return Ok(SendAnswer::Kernel);
        }
        if !self.outbox.has_capacity_for(target.id, send.len) {
            self.progress.counters.outbox.overflows.fetch_add(1, Ordering::Relaxed);
            return Ok(SendAnswer::Kernel);
        }
        let Some(bytes) = send.copy() else { return Ok(SendAnswer::Kernel) };
        // Only then were memory and descriptor those of the caller.
        if !listener.is_valid(call.id) {
            return Ok(SendAnswer::Done);
        }
        self.progress.want(sync);
        self.outbox.push(target, bytes, sync);
        // The program must not see its call return before the library can see the send.
        self.progress.publish_buffered(self.outbox.len());
        if listener.complete(call.id, send.len as i64)? {
            self.outbox.count_last(&self.progress.counters.outbox);
        } else {
            self.outbox.pop();
            self.progress.publish_buffered(self.outbox.len());
        }
        Ok(SendAnswer::Done)
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
        has_ended
            && self.progress.durable.load(Ordering::SeqCst) >= sync
            && self.outbox.has_tried(waiter.behind)
            && waiter.on.is_none_or(|on| !self.outbox.has_sends_to(on, waiter.behind))
    }

    /// Answers the calls whose sync is durable, or all of them once a sync failed.
    fn answer_ready(&mut self, listener: &Listener) -> io::Result<()> {
        let counters = &self.progress.counters;
        let has_failed = self.has_failed();
        let mut result = Ok(());
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain(|waiter| {
            if has_failed {
                counters.failed.fetch_add(1, Ordering::Relaxed);
                result = fail(listener, &waiter.call);
                return result.is_err();
            }
            if result.is_err() {
                return true;
            }
            if !self.is_ready(waiter) {
                let is_full = waiter.fails_if_full && self.is_ready(&waiter.on_none());
                if is_full {
                    result = listener.fail(waiter.call.id, Errno::AGAIN.raw_os_error());
                }
                return !is_full;
            }
            let waited = monotonic_now().saturating_sub(waiter.since);
            counters.waited.fetch_add(1, Ordering::Relaxed);
            counters.wait_total.fetch_add(waited, Ordering::Relaxed);
            counters.wait_max.fetch_max(waited, Ordering::Relaxed);
            result = listener.allow(waiter.call.id);
            false
        });
        counters.waiting.store(waiting.len() as u64, Ordering::SeqCst);
        self.waiting = waiting;
        result
    }
}

/// The open file on which a call acts after data that was sent before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ActedFile {
    descriptor: i32,
    /// The call sends more data, and returns `EAGAIN` if the file is non-blocking.
    can_block: bool,
    /// Flags of `send(2)`.
    flags: u64,
}

impl ActedFile {
    /// Returns the file of a call that sends data, or ends it. A close does not follow the data: the
    /// outbox keeps its own copy of the descriptor.
    fn of(call: &StoppedCall) -> Option<ActedFile> {
        let [first, second, third, fourth, ..] = call.arguments;
        let (descriptor, can_block, flags) = match find(call.number)?.name {
            "write" | "writev" | "sendfile" => (first, true, 0),
            "sendto" | "sendmmsg" => (first, true, fourth),
            "sendmsg" => (first, true, third),
            "tee" => (second, true, 0),
            "splice" => (third, true, 0),
            "shutdown" | "ioctl" | "connect" => (first, false, 0),
            _ => return None,
        };
        Some(ActedFile { descriptor: descriptor as u32 as i32, can_block, flags })
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

/// Returns whether a call closes a file that was only read, so that the close shows others no more
/// than the reads.
fn is_hidden_close(call: &StoppedCall) -> bool {
    let [descriptor, ..] = call.arguments;
    let is_close = find(call.number).is_some_and(|row| row.name == "close");
    is_close && is_unlocked_reader(call.thread, descriptor as u32 as i32)
}

/// Whether a call maps a file that is open for reading only.
fn maps_read_only(call: &StoppedCall) -> bool {
    let [_, _, _, _, descriptor, _] = call.arguments;
    let is_mapping = find(call.number).is_some_and(|row| row.name == "mmap");
    let info = || DescriptorInfo::read(call.thread, descriptor as u32 as i32);
    is_mapping && info().is_some_and(|info| info.is_reader())
}
