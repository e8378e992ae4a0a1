//! The story of one request: its critical path through host, controller, FTL and flash.

use std::collections::VecDeque;

use clock::Nanos;
use tracepoint::{Admission, ArrayOp};

use super::flight::{AdmissionChange, Command, Critical, FtlRequest, Part, Stay};
use super::path::Path;
use super::timeline::Timeline;
use super::wait::WaitKind;

/// Busy times of the flash.
#[derive(Debug, Default)]
pub(super) struct Flash {
    pub(super) pus: Vec<Timeline>,
    pub(super) channels: Vec<Timeline>,
}

/// The timeline of a resource; made when it is first used.
pub(super) fn timeline(all: &mut Vec<Timeline>, index: u32) -> &mut Timeline {
    let index = index as usize;
    if all.len() <= index {
        all.resize_with(index + 1, Timeline::default);
    }
    &mut all[index]
}

/// Changes of admission of one FTL, in order.
pub(super) type Admissions = VecDeque<AdmissionChange>;

impl Flash {
    /// Lays the waits for the array of a parallel unit up to `to`. The part's own use of it is `own`.
    fn wait_for_pu(&self, path: &mut Path, part: &Part, to: Nanos, own: WaitKind, idle: WaitKind) {
        let Some(pu) = self.pus.get(part.pu as usize) else {
            return path.until_on(to, idle, Some(part.pu));
        };
        pu.cut(path.at(), to, |busy, _, end| {
            let kind = match busy {
                Some(busy) if busy.part == part.serial => own,
                Some(busy) => busy.kind,
                None => idle,
            };
            path.until_on(end, kind, Some(part.pu));
        });
    }

    /// Lays the waits for the channel and the part's own transfers up to `to`.
    fn wait_for_channel(&self, path: &mut Path, part: &Part, to: Nanos) {
        let idle = WaitKind::Unexplained;
        let Some(channel) = self.channels.get(part.channel as usize) else {
            return path.until_on(to, idle, Some(part.pu));
        };
        channel.cut(path.at(), to, |busy, _, end| {
            let kind = match busy {
                Some(busy) if busy.part == part.serial => WaitKind::Transfer,
                Some(busy) => busy.kind,
                None => idle,
            };
            path.until_on(end, kind, Some(part.pu));
        });
    }

    fn part(&self, path: &mut Path, part: &Part) {
        let own = WaitKind::Array(part.op);
        let begins = part.array_begins.unwrap_or(part.ended);
        let ends = part.array_ends.unwrap_or(part.ended);
        let coming = WaitKind::ProgramDataComing;
        match part.op {
            ArrayOp::Read => {
                self.wait_for_pu(path, part, begins, own, coming);
                path.until_on(ends, own, Some(part.pu));
                self.wait_for_channel(path, part, part.ended);
            }
            ArrayOp::Program | ArrayOp::Erase => {
                if let Some(staging) = part.staging {
                    self.wait_for_pu(path, part, staging, own, coming);
                    self.wait_for_channel(path, part, part.staged.unwrap_or(begins));
                }
                self.wait_for_pu(path, part, begins, own, coming);
                // Reads of others while it is suspended, and the time to suspend and to resume.
                let pu = self.pus.get(part.pu as usize);
                if let Some(pu) = pu {
                    pu.cut(path.at(), ends, |busy, _, end| {
                        let runs = busy.is_some_and(|busy| busy.part == part.serial);
                        let kind = if runs { own } else { WaitKind::Suspended };
                        path.until_on(end, kind, Some(part.pu));
                    });
                }
                path.until_on(part.ended, own, Some(part.pu));
            }
        }
    }

    fn critical(&self, path: &mut Path, critical: &Critical, before: WaitKind) {
        match critical {
            Critical::Part(part) => {
                path.until(part.queued, before);
                self.part(path, part);
            }
            Critical::Command(command) => {
                path.until(command.submitted, before);
                self.command(path, command, None);
            }
        }
    }

    /// Lays a request's time at an FTL.
    pub(super) fn ftl(&self, path: &mut Path, request: &FtlRequest, admissions: &Admissions) {
        if let Some((admitted, durable)) = request.admitted {
            // Of the time without room in the write buffer the last stretch is that of the program whose
            // end made some.
            let full = last_state(admissions, admitted) == Some(Admission::BufferFull);
            if let (true, Some(made_room)) = (full, &request.made_room) {
                admission(path, admissions, made_room.began().min(admitted));
                self.critical(path, made_room, WaitKind::WriteBufferFull);
            }
            admission(path, admissions, admitted);
            if durable && let Some(critical) = &request.critical {
                self.critical(path, critical, WaitKind::Placement);
            }
        } else if let Some(critical) = &request.critical {
            let before = match request.is_flush {
                true => WaitKind::Placement,
                false => WaitKind::MapPage,
            };
            self.critical(path, critical, before);
        } else if request.waited_for_map {
            path.until(request.ended, WaitKind::MapPage);
        }
        let rest = match request.is_flush || request.admitted.is_some() {
            true => WaitKind::Durability,
            false => WaitKind::Unexplained,
        };
        path.until(request.ended, rest);
    }

    /// Lays a command's time, from its submission to its completion entry. `admissions` are those of
    /// the drive's own FTL, if it has one.
    pub(super) fn command(
        &self,
        path: &mut Path,
        command: &Command,
        admissions: Option<&Admissions>,
    ) {
        path.until(command.fetched, WaitKind::SubmissionQueue);
        let (before, rest): (Vec<&Stay>, Vec<&Stay>) =
            command.stays.iter().partition(|stay| stay.end <= command.started);
        stations(path, &before);
        path.until(command.started, WaitKind::SubmissionQueue);
        let (inside, after): (Vec<&Stay>, Vec<&Stay>) =
            rest.into_iter().partition(|stay| stay.end <= command.ended);
        match (&command.ftl, &command.part) {
            (Some(request), part) => {
                let by_part = !request.is_queued && !request.is_flush;
                let mut request = request.clone();
                if let (true, Some(part)) = (by_part, part) {
                    request.critical = Some(Critical::Part(*part));
                }
                request.ended = command.ended;
                let none = Admissions::new();
                self.ftl(path, &request, admissions.unwrap_or(&none));
            }
            (None, Some(part)) => {
                path.until(part.queued, WaitKind::MapPage);
                self.part(path, part);
            }
            (None, None) => last_chain(path, &inside),
        }
        path.until(command.ended, WaitKind::Unexplained);
        stations(path, &after);
        path.until(command.posted, WaitKind::CompletionQueue);
    }
}

/// Lays stays at stations, one after the other.
fn stations(path: &mut Path, stays: &[&Stay]) {
    for stay in stays {
        path.until(stay.start, WaitKind::StationBusy(stay.station));
        path.until(stay.end, WaitKind::Station(stay.station));
    }
}

/// Lays the chain of stays that ends last: those of a command's sectors overlap.
fn last_chain(path: &mut Path, stays: &[&Stay]) {
    let mut chain = Vec::new();
    let mut end = Nanos::MAX;
    while let Some(last) =
        stays.iter().filter(|stay| stay.end <= end && stay.start < end).max_by_key(|stay| stay.end)
    {
        chain.push(*last);
        end = last.start;
    }
    chain.reverse();
    stations(path, &chain);
}

/// The state of admission just before `at`.
fn last_state(admissions: &Admissions, at: Nanos) -> Option<Admission> {
    let before = admissions.partition_point(|change| change.at < at);
    before.checked_sub(1).map(|last| admissions[last].state)
}

/// Lays what kept a write from being admitted until `admitted`.
fn admission(path: &mut Path, admissions: &Admissions, admitted: Nanos) {
    let kind = |state: Admission| match state {
        Admission::BufferFull => WaitKind::WriteBufferFull,
        Admission::GcLimiter => WaitKind::GcLimiter,
        Admission::MapPage => WaitKind::MapPage,
        // Open, and others were before it: it is admitted at the same instant.
        Admission::Open => WaitKind::WriteBufferFull,
    };
    let first = admissions.partition_point(|change| change.at <= path.at());
    let mut state = first.checked_sub(1).map(|before| admissions[before].state);
    for change in admissions.range(first..) {
        if change.at >= admitted {
            break;
        }
        path.until(change.at, state.map_or(WaitKind::Unexplained, kind));
        state = Some(change.state);
    }
    path.until(admitted, state.map_or(WaitKind::Unexplained, kind));
}
