//! [`BlockTracks`]: draws the block layer's events as tracks of a [`TraceFile`], beside those of
//! the drive.
//!
//! The block layer is a process with a track per submitter. On it, each request of a caller is a
//! span from Q to C with the name of its operation. Nested spans are `staged` (Q to D) and `device`
//! (D to C); a requeued request is staged again. M and F, S, X and R are instants. The process has
//! counters of staged requests and of in-flight commands.
//!
//! Events do not identify requests, so spans are matched by address, as btt does. A command (D)
//! carries the oldest waiting requests of its submitter and operation which, one after the other,
//! cover its sectors. A completion (C) or requeue (R) belongs to the oldest command with its
//! sectors. A completion without a command belongs to waiting requests. Memory grows with the
//! number of open requests, not with the run.

use std::collections::{BTreeMap, VecDeque};
use std::io::Write;

use block::trace::{Action, TraceEvent};
use block::{Op, Submitter};

use super::{Argument, TraceFile, Track};

/// Submitter and operation of requests.
type Source = (u16, u8);

/// Category of the spans; the spans of one request nest by category and id.
const CATEGORY: &str = "request";
const STAGED: &str = "staged";
const DEVICE: &str = "device";

/// Draws events of the block layer.
#[derive(Debug)]
pub struct BlockTracks {
    process: u32,
    /// Requests by id.
    open: BTreeMap<u64, CallerRequest>,
    /// Extents that wait for a command, oldest first, by their first sector. An extent is a request
    /// or the part of one that is not yet in a command; the entry has its request's id and its end
    /// sector.
    queued_parts: BTreeMap<(Source, u64), VecDeque<(u64, u64)>>,
    /// Commands at the device, oldest first, by their extent.
    issued_commands: BTreeMap<(Source, u64, u32), VecDeque<TracedCommand>>,
    next: u64,
    in_flight: u64,
    staged: u64,
    unmatched: u64,
}

/// A request of a caller.
#[derive(Debug)]
struct CallerRequest {
    name: &'static str,
    track: Track,
    /// Number of sectors that are not complete.
    remaining_sectors: u64,
    /// Number of commands that carry fragments of it.
    commands: u32,
    staged: bool,
}

/// Content of a command, in the order of the sectors.
type TracedCommand = Vec<RequestFragment>;

/// A request or a fragment of one in a command.
#[derive(Debug)]
struct RequestFragment {
    id: u64,
    lba: u64,
    sectors: u64,
}

/// A submitter and the name of its track.
#[derive(Clone, Copy, Debug)]
pub struct NamedSubmitter<'a> {
    /// The submitter.
    pub submitter: Submitter,
    /// The name of its track.
    pub name: &'a str,
}

impl BlockTracks {
    /// Names `process` and creates a track for each of `submitters` in it.
    pub fn new<W: Write>(
        file: &mut TraceFile<W>,
        process: u32,
        name: &str,
        submitters: &[NamedSubmitter<'_>],
    ) -> BlockTracks {
        file.name_process(process, name);
        let tracks = BlockTracks {
            process,
            open: BTreeMap::new(),
            queued_parts: BTreeMap::new(),
            issued_commands: BTreeMap::new(),
            next: 0,
            in_flight: 0,
            staged: 0,
            unmatched: 0,
        };
        for NamedSubmitter { submitter, name } in submitters {
            file.name_track(track(process, *submitter), name);
        }
        tracks
    }

    /// Draws events. They must be in order ([`block::trace::merge_by_time`]), and none may be
    /// earlier than those drawn before.
    pub fn draw<W: Write>(&mut self, file: &mut TraceFile<W>, events: &[TraceEvent]) {
        for event in events {
            let before = (self.staged, self.in_flight);
            match event.action {
                Action::Queued => self.on_queued(file, event),
                Action::Issued => self.on_issued(file, event),
                Action::Requeued | Action::Completed => self.on_command_complete(file, event),
                Action::BackMerge | Action::FrontMerge | Action::Sleep | Action::Split => {
                    self.instant(file, event);
                }
                Action::GotRequest | Action::Inserted | Action::Plug | Action::Unplug => {}
            }
            if self.staged != before.0 {
                file.counter(self.process, "staged", event.at, self.staged as f64);
            }
            if self.in_flight != before.1 {
                file.counter(self.process, "in flight", event.at, self.in_flight as f64);
            }
        }
    }

    /// Returns the number of requests that have not completed; their spans are open.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// Returns the number of events without a matching earlier event. The earlier event was lost
    /// because a tracer's buffer was full, or the block layer created the request itself (a flush
    /// behind a write).
    pub fn unmatched(&self) -> u64 {
        self.unmatched
    }

    fn instant<W: Write>(&self, file: &mut TraceFile<W>, event: &TraceEvent) {
        let name = match event.action {
            Action::BackMerge => "merge behind",
            Action::FrontMerge => "merge before",
            Action::Sleep => "no place",
            Action::Split => "split",
            _ => "requeue",
        };
        file.instant(track(self.process, event.submitter), name, event.at);
    }

    fn on_queued<W: Write>(&mut self, file: &mut TraceFile<W>, event: &TraceEvent) {
        let (id, track, at) = (self.next, track(self.process, event.submitter), event.at);
        self.next += 1;
        let name = op_name(event.op);
        let place =
            [Argument::number("lba", event.lba), Argument::number("sectors", event.sectors.into())];
        file.begin_async_with(track, CATEGORY, name, id, at, &place);
        file.begin_async(track, CATEGORY, STAGED, id, at);
        let end = event.lba.saturating_add(event.sectors.into());
        let left = end - event.lba;
        self.open.insert(
            id,
            CallerRequest { name, track, remaining_sectors: left, commands: 0, staged: true },
        );
        self.queued_parts.entry((source(event), event.lba)).or_default().push_back((id, end));
        self.staged += 1;
    }

    fn on_issued<W: Write>(&mut self, file: &mut TraceFile<W>, event: &TraceEvent) {
        let (command, all) = self.take_fragments(event);
        self.unmatched += u64::from(!all);
        for RequestFragment { id, .. } in &command {
            let Some(request) = self.open.get_mut(id) else { continue };
            request.commands += 1;
            if std::mem::take(&mut request.staged) {
                self.staged -= 1;
                file.end_async(request.track, CATEGORY, STAGED, *id, event.at);
                file.begin_async(request.track, CATEGORY, DEVICE, *id, event.at);
            }
        }
        self.in_flight += 1;
        self.issued_commands.entry(command_key(event)).or_default().push_back(command);
    }

    /// Removes the waiting fragments that cover the event's sectors; returns them, and whether they
    /// cover all sectors.
    fn take_fragments(&mut self, event: &TraceEvent) -> (TracedCommand, bool) {
        let source = source(event);
        let end = event.lba.saturating_add(event.sectors.into());
        let (mut command, mut lba) = (TracedCommand::new(), event.lba);
        while lba < end || command.is_empty() {
            let Some((id, request_end)) = pop(&mut self.queued_parts, &(source, lba)) else {
                break;
            };
            let sectors = request_end.min(end) - lba;
            command.push(RequestFragment { id, lba, sectors });
            lba += sectors;
            if lba < request_end {
                self.queued_parts.entry((source, lba)).or_default().push_front((id, request_end));
            }
            if sectors == 0 {
                break;
            }
        }
        let all = lba == end && !command.is_empty();
        (command, all)
    }

    /// Processes the completion or requeue of a command.
    fn on_command_complete<W: Write>(&mut self, file: &mut TraceFile<W>, event: &TraceEvent) {
        let again = event.action == Action::Requeued;
        if again {
            self.instant(file, event);
        } else if !event.status.is_success() {
            file.instant(track(self.process, event.submitter), "failed", event.at);
        }
        let command = match pop(&mut self.issued_commands, &command_key(event)) {
            Some(command) => {
                self.in_flight -= 1;
                command
            }
            // The request completed without having been at the device: it was rejected, or another
            // flush replaced it.
            None if !again => {
                let (command, all) = self.take_fragments(event);
                self.unmatched += u64::from(!all);
                for part in &command {
                    self.open.entry(part.id).and_modify(|r| r.commands += 1);
                }
                command
            }
            None => {
                self.unmatched += 1;
                return;
            }
        };
        // In reverse, so that the oldest of the fragments with equal first sectors becomes the
        // first again.
        for part in command.into_iter().rev() {
            self.on_fragment_complete(file, event, part, again);
        }
    }

    fn on_fragment_complete<W: Write>(
        &mut self,
        file: &mut TraceFile<W>,
        event: &TraceEvent,
        RequestFragment { id, lba, sectors }: RequestFragment,
        again: bool,
    ) {
        let Some(request) = self.open.get_mut(&id) else { return };
        request.commands -= 1;
        if again {
            let part = (id, lba + sectors);
            self.queued_parts.entry((source(event), lba)).or_default().push_front(part);
        } else {
            request.remaining_sectors -= sectors;
        }
        let done = request.remaining_sectors == 0 && request.commands == 0 && !again;
        if !done && (request.commands > 0 || request.staged) {
            return;
        }
        // No fragment is at the device: the request is complete, or its remaining fragments wait.
        let (name, track) = (request.name, request.track);
        let stage = if request.staged { STAGED } else { DEVICE };
        file.end_async(track, CATEGORY, stage, id, event.at);
        self.staged -= u64::from(request.staged);
        if done {
            file.end_async(track, CATEGORY, name, id, event.at);
            self.open.remove(&id);
        } else {
            request.staged = true;
            self.staged += 1;
            file.begin_async(track, CATEGORY, STAGED, id, event.at);
        }
    }
}

fn track(process: u32, submitter: Submitter) -> Track {
    Track { process, thread: 1 + u32::from(submitter.0) }
}

fn command_key(event: &TraceEvent) -> (Source, u64, u32) {
    (source(event), event.lba, event.sectors)
}

/// Removes and returns the oldest entry at `key`; removes the queue if it becomes empty.
fn pop<K: Ord, V>(map: &mut BTreeMap<K, VecDeque<V>>, key: &K) -> Option<V> {
    let at_key = map.get_mut(key)?;
    let first = at_key.pop_front();
    if at_key.is_empty() {
        map.remove(key);
    }
    first
}

fn source(event: &TraceEvent) -> Source {
    let op = match event.op {
        Op::Read => 0,
        Op::Write => 1,
        Op::Flush => 2,
        Op::Discard => 3,
        Op::WriteZeroes => 4,
        Op::Extents => 5,
    };
    (event.submitter.0, op)
}

fn op_name(op: Op) -> &'static str {
    match op {
        Op::Read => "read",
        Op::Write => "write",
        Op::Flush => "flush",
        Op::Discard => "discard",
        Op::WriteZeroes => "write zeroes",
        Op::Extents => "extents",
    }
}
