//! [`WindowRecorder`]: computes windows from events.
//!
//! A window starts when an I/O on the volume returns, and ends at the first call of the same thread
//! that its rule stops at. The window of a read also ends at the first access to its data, by any
//! thread of the process.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use syscall_table::{CallTransfer, Effect, Object};

use crate::event::{EventKind, ProfileEvent};
use crate::report::{ProgramWindows, SpeculationProfile};
use crate::windows::{OpenWindows, SpeculatedIo, StopRule};

/// Counts from here on are invalid: a day of instructions of one core is less.
const COUNT_MAX: u64 = 1 << 48;
/// Processes, threads and programs whose state is kept. Further ones are counted as invalid events.
const STATES_MAX: usize = 1 << 20;

/// Error numbers of calls that were not made: `ENOSYS`, and a call that a signal has interrupted and
/// that is made once more.
const NOT_MADE: [i64; 3] = [-38, -512, -513];

#[derive(Debug, Default)]
struct ThreadWindows {
    count: u64,
    open: [OpenWindows; 2],
}

#[derive(Debug)]
struct FollowedProcess {
    program: String,
    is_alive: bool,
    has_ended: bool,
    base: u64,
    threads: BTreeMap<u32, ThreadWindows>,
}

/// Computes windows from events, in the order in which the ring has them.
#[derive(Debug, Default)]
pub struct WindowRecorder {
    processes: HashMap<u32, FollowedProcess>,
    programs: BTreeMap<String, ProgramWindows>,
    unknown_calls: BTreeMap<String, u64>,
    not_followed: BTreeMap<(String, &'static str), u64>,
    process_count: u64,
    killed: u64,
    call_count: u64,
    invalid: u64,
}

impl WindowRecorder {
    /// Returns a recorder without events.
    pub fn new() -> WindowRecorder {
        WindowRecorder::default()
    }

    /// Returns the processes that have started and not ended, as far as events tell.
    pub fn live_processes(&self) -> impl Iterator<Item = u32> {
        self.processes.iter().filter(|(_, of)| of.is_alive).map(|(process, _)| *process)
    }

    /// Returns whether a program has started.
    pub fn has_started(&self) -> bool {
        self.process_count > 0
    }

    /// A process does not exist any more. Its last event may not have told that it ends.
    pub fn process_gone(&mut self, process: u32) {
        let Some(mut of) = self.processes.remove(&process) else { return };
        let program = self.programs.entry(of.program.clone()).or_default();
        for thread in of.threads.values_mut() {
            for (open, stats) in thread.open.iter_mut().zip(&mut program.stats) {
                open.abandon(stats);
            }
        }
        if !of.has_ended {
            self.killed += 1;
            let counted: u64 = of.threads.values().map(|thread| thread.count).sum();
            program.instructions += counted.saturating_sub(of.base);
        }
    }

    /// Takes an event. Invalid events change nothing and are counted.
    pub fn record(&mut self, event: &ProfileEvent) {
        if event.count >= COUNT_MAX || self.processes.len() >= STATES_MAX {
            self.invalid += 1;
            return;
        }
        match &event.kind {
            EventKind::Start => self.start(event.process, event.name.clone(), 0),
            EventKind::Fork { parent, base } => {
                let program = self.processes.get(parent).map(|of| of.program.clone());
                let program = program.unwrap_or_else(|| "?".to_owned());
                self.start(event.process, program, (*base).min(COUNT_MAX));
            }
            _ => self.record_of_process(event),
        }
    }

    fn start(&mut self, process: u32, program: String, base: u64) {
        let is_new = !self.processes.contains_key(&process);
        self.process_gone_if_ended(process);
        self.process_count += u64::from(is_new);
        let of = self.programs.entry(program.clone()).or_default();
        of.processes += 1;
        let threads = BTreeMap::new();
        let state = FollowedProcess { program, is_alive: true, has_ended: false, base, threads };
        self.processes.insert(process, state);
    }

    /// Another program starts in a process, or another process with its number.
    fn process_gone_if_ended(&mut self, process: u32) {
        if self.processes.contains_key(&process) {
            self.process_gone(process);
        }
    }

    fn record_of_process(&mut self, event: &ProfileEvent) {
        let Some(process) = self.processes.get_mut(&event.process) else {
            self.invalid += 1;
            return;
        };
        if process.threads.len() >= STATES_MAX {
            self.invalid += 1;
            return;
        }
        // The process goes on if its `execve` has failed.
        process.is_alive |= matches!(event.kind, EventKind::Call { .. });
        let program = self.programs.entry(process.program.clone()).or_default();
        let thread = process.threads.entry(event.thread).or_default();
        // Another thread may end the window of a read meanwhile.
        let count = event.count.max(thread.count);
        thread.count = count;
        let ThreadWindows { open: [paper, sluice], .. } = thread;
        let [paper_stats, sluice_stats] = &mut program.stats;
        match &event.kind {
            EventKind::Start | EventKind::Fork { .. } => {}
            EventKind::LastCall { number, arguments } => {
                let call = syscall_table::find(*number);
                let name = call.map_or("unknown", |call| call.name);
                let effect = call.map(|call| call.effect(Object::None, arguments, event.process));
                self.call_count += 1;
                // The thread ends, also if the call itself is pure.
                if effect.is_none_or(Effect::waits) || name == "exit" {
                    paper.close(paper_stats, count, name);
                    sluice.close(sluice_stats, count, name);
                }
            }
            EventKind::Call { number, object, result, arguments, watch } => {
                if NOT_MADE.contains(result) {
                    return;
                }
                self.call_count += 1;
                let call = syscall_table::find(*number);
                let effect = call
                    .map_or(Effect::Unknown, |call| call.effect(*object, arguments, event.process));
                let stops_paper = call.is_none_or(|call| call.stops_paper_rule(effect));
                let unnamed;
                let name = match call {
                    Some(call) => call.name,
                    None => {
                        unnamed = format!("call {number}");
                        &unnamed
                    }
                };
                if effect == Effect::Unknown {
                    count_reason(&mut self.unknown_calls, name);
                }
                if stops_paper {
                    paper.close(paper_stats, count, name);
                }
                if effect.waits() {
                    sluice.close(sluice_stats, count, name);
                }
                let transfer = call.map_or(CallTransfer::None, |call| call.transfer());
                if *object != Object::Volume || *result < 0 {
                    return;
                }
                let (kind, bytes) = match transfer {
                    CallTransfer::None => return,
                    CallTransfer::Read | CallTransfer::ReadVector => (SpeculatedIo::Read, *result),
                    CallTransfer::Write | CallTransfer::WriteVector => {
                        (SpeculatedIo::Write, *result)
                    }
                    CallTransfer::Sync => (SpeculatedIo::Sync, 0),
                };
                let io = &mut program.io[kind as usize];
                io.calls += 1;
                io.bytes = io.bytes.saturating_add(bytes.unsigned_abs());
                for open in [paper, sluice] {
                    match kind {
                        SpeculatedIo::Read if *watch != 0 => open.open_read(*watch, count),
                        SpeculatedIo::Read => {}
                        SpeculatedIo::Write => open.open_write(count),
                        SpeculatedIo::Sync => open.open_sync(count),
                    }
                }
            }
            EventKind::Use { watch, by_call } => {
                let call = by_call.and_then(syscall_table::find);
                let reason =
                    call.map_or("buffer".to_owned(), |call| format!("buffer ({})", call.name));
                paper.close_read(paper_stats, *watch, count, by_call_reason(call, &reason));
                sluice.close_read(sluice_stats, *watch, count, &reason);
            }
            EventKind::Overwritten { watch, is_limit } => {
                let reason = if *is_limit { "limit" } else { "overwritten" };
                paper.close_read(paper_stats, *watch, count, reason);
                sluice.close_read(sluice_stats, *watch, count, reason);
            }
            EventKind::SharedStore { object } => {
                paper.close(paper_stats, count, "shared memory");
                // Processes that share anonymous memory descend from one that is followed.
                if object.is_outside() {
                    sluice.close(sluice_stats, count, "shared memory");
                }
            }
            EventKind::End { instructions } => {
                program.instructions += (*instructions).min(COUNT_MAX);
                process.has_ended = true;
                process.is_alive = false;
            }
            EventKind::NotFollowed(why) => {
                process.is_alive = false;
                process.has_ended = true;
                let reason = (event.name.clone(), why.reason());
                if self.not_followed.len() < 1000 {
                    *self.not_followed.entry(reason).or_default() += 1;
                }
            }
        }
    }

    /// Returns the results. Processes that still exist count as killed.
    pub fn finish(mut self, elapsed: Duration) -> SpeculationProfile {
        let all: HashSet<u32> = self.processes.keys().copied().collect();
        for process in all {
            self.process_gone(process);
        }
        let not_followed = self.not_followed.into_iter();
        SpeculationProfile {
            elapsed,
            processes: self.process_count,
            killed_processes: self.killed,
            calls: self.call_count,
            invalid_events: self.invalid,
            lost_events: 0,
            unknown_calls: self.unknown_calls,
            not_followed: not_followed.map(|((name, why), times)| (name, why, times)).collect(),
            programs: self.programs,
        }
    }
}

/// A write that takes the data stops the rule of the paper by itself.
fn by_call_reason<'a>(
    call: Option<&'static syscall_table::SystemCall>,
    otherwise: &'a str,
) -> &'a str {
    call.map_or(otherwise, |call| call.name)
}

fn count_reason(into: &mut BTreeMap<String, u64>, name: &str) {
    // Numbers of unknown calls are the program's choice: 512 names and no more.
    if into.len() < syscall_table::CALLS_MAX || into.contains_key(name) {
        *into.entry(name.to_owned()).or_default() += 1;
    }
}

impl StopRule {
    pub(crate) fn index(self) -> usize {
        self as usize
    }
}
