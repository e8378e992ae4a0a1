//! [`BlockTracks`]: the block layer's events as tracks of a [`TraceFile`], beside the drive's.
//!
//! A process for the block layer, a track per submitter. On it each request of a caller is a span
//! from Q to C with its operation's name, and in it `staged` (Q to D) and `device` (D to C); what
//! was requeued is staged again. M and F, S, X and R are instants. Counters of the process: requests
//! that are staged, and commands that are in flight.
//!
//! Events have no names for requests, so spans are found by place, as btt does: a command (D)
//! carries the oldest waiting requests of its submitter and operation which, one after the other,
//! cover its sectors, and a completion (C) or requeue (R) is of the oldest command with its sectors;
//! a completion without a command is of requests that wait. Memory grows with the requests that are open, not with the run.

use std::collections::{BTreeMap, VecDeque};
use std::io::Write;

use block::trace::{Action, TraceEvent};
use block::{Op, Submitter};

use super::{TraceFile, Track};

/// Whose requests, and of which kind.
type Source = (u16, u8);

/// The category of the spans: those of one request nest by it and by their number.
const CATEGORY: &str = "request";
const STAGED: &str = "staged";
const DEVICE: &str = "device";

/// Draws events of the block layer.
#[derive(Debug)]
pub struct BlockTracks {
    process: u32,
    /// Requests by number.
    open: BTreeMap<u64, CallerRequest>,
    /// What waits for a command, oldest first, by its first sector: requests, or what of them is not
    /// in a command. The number of each, and the sector after it.
    queued_parts: BTreeMap<(Source, u64), VecDeque<(u64, u64)>>,
    /// Commands at the device, oldest first, by their place.
    issued_commands: BTreeMap<(Source, u64, u32), VecDeque<Command>>,
    next: u64,
    in_flight: u64,
    staged: u64,
    unmatched: u64,
}

/// A caller's request.
#[derive(Debug)]
struct CallerRequest {
    name: &'static str,
    track: Track,
    /// Sectors that are not complete.
    remaining_sectors: u64,
    /// In how many commands parts of it are.
    commands: u32,
    staged: bool,
}

/// What a command carries, in the order of the sectors.
type Command = Vec<RequestFragment>;

/// A request, or a part of one, in a command.
#[derive(Debug)]
struct RequestFragment {
    id: u64,
    lba: u64,
    sectors: u64,
}

impl BlockTracks {
    /// Tracks of `process`, whose name becomes `name`, with a track for each of `submitters`.
    pub fn new<W: Write>(
        file: &mut TraceFile<W>,
        process: u32,
        name: &str,
        submitters: &[(Submitter, &str)],
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
        for (submitter, name) in submitters {
            file.name_track(track(process, *submitter), name);
        }
        tracks
    }

    /// Draws events, which are in order ([`block::trace::merge_by_time`]) and none of which is earlier
    /// than those drawn before.
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

    /// Requests that have not completed; their spans are open.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// Events for which nothing was found that they carry on: what was before was not noted, for want
    /// of room in a tracer, or the block layer itself asked for it (a flush behind a write).
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
        let place = [("lba", event.lba), ("sectors", event.sectors.into())];
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

    /// Takes from what waits what covers the event's sectors, and says whether it covers all.
    fn take_fragments(&mut self, event: &TraceEvent) -> (Command, bool) {
        let source = source(event);
        let end = event.lba.saturating_add(event.sectors.into());
        let (mut command, mut lba) = (Command::new(), event.lba);
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

    /// A command comes back, carried out or not.
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
            // It ended without having been at the device: it was refused, or another flush stood
            // for it.
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
        // Backwards, so that the oldest of those that begin at one place waits first again.
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
        // No part of it is at the device: it is complete, or waits for the rest to go.
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

/// Takes the oldest of what is at `key`; what is empty is removed.
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
