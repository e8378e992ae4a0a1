//! The critical path of one request through host, controller, FTL and flash.

use std::collections::VecDeque;

use time::Nanos;
use tracepoint::{Admission, ArrayOp};

use super::in_flight::{
    AdmissionChange, Critical, FtlRequest, StationVisit, TracedCommand, TracedPuOp,
};
use super::path::WaitPath;
use super::timeline::BusyTimeline;
use super::wait::WaitKind;

/// Busy times of the flash resources.
#[derive(Debug, Default)]
pub(super) struct FlashTimelines {
    pub(super) pus: Vec<BusyTimeline>,
    pub(super) channels: Vec<BusyTimeline>,
}

/// Returns the timeline of a resource, and creates it at its first use.
pub(super) fn timeline(all: &mut Vec<BusyTimeline>, index: u32) -> &mut BusyTimeline {
    let index = index as usize;
    if all.len() <= index {
        all.resize_with(index + 1, BusyTimeline::default);
    }
    &mut all[index]
}

/// Changes of the admission state of one FTL, in order.
pub(super) type Admissions = VecDeque<AdmissionChange>;

impl FlashTimelines {
    /// Adds the waits for the array of a parallel unit until `to`. The operation's own use of it is
    /// `own`.
    fn wait_for_pu(
        &self,
        path: &mut WaitPath,
        part: &TracedPuOp,
        to: Nanos,
        own: WaitKind,
        idle: WaitKind,
    ) {
        let Some(pu) = self.pus.get(part.pu as usize) else {
            return path.add_wait_on_pu(to, idle, Some(part.pu));
        };
        pu.for_each_interval(path.position(), to, |busy, _, end| {
            let kind = match busy {
                Some(busy) if busy.pu_op == part.serial => own,
                Some(busy) => busy.kind,
                None => idle,
            };
            path.add_wait_on_pu(end, kind, Some(part.pu));
        });
    }

    /// Adds the waits for the channel, and the operation's own transfers, until `to`.
    fn wait_for_channel(&self, path: &mut WaitPath, part: &TracedPuOp, to: Nanos) {
        let idle = WaitKind::Unexplained;
        let Some(channel) = self.channels.get(part.channel as usize) else {
            return path.add_wait_on_pu(to, idle, Some(part.pu));
        };
        channel.for_each_interval(path.position(), to, |busy, _, end| {
            let kind = match busy {
                Some(busy) if busy.pu_op == part.serial => WaitKind::Transfer,
                Some(busy) => busy.kind,
                None => idle,
            };
            path.add_wait_on_pu(end, kind, Some(part.pu));
        });
    }

    fn pu_op(&self, path: &mut WaitPath, part: &TracedPuOp) {
        let own = WaitKind::Array(part.op);
        let begins = part.array_begins.unwrap_or(part.ended);
        let ends = part.array_ends.unwrap_or(part.ended);
        let coming = WaitKind::ProgramDataInTransfer;
        match part.op {
            ArrayOp::Read => {
                self.wait_for_pu(path, part, begins, own, coming);
                path.add_wait_on_pu(ends, own, Some(part.pu));
                self.wait_for_channel(path, part, part.ended);
            }
            ArrayOp::Program | ArrayOp::Erase => {
                if let Some(staging) = part.staging {
                    self.wait_for_pu(path, part, staging, own, coming);
                    self.wait_for_channel(path, part, part.staged.unwrap_or(begins));
                }
                self.wait_for_pu(path, part, begins, own, coming);
                // Reads of other requests during a suspension, and the times to suspend and to
                // resume.
                let pu = self.pus.get(part.pu as usize);
                if let Some(pu) = pu {
                    pu.for_each_interval(path.position(), ends, |busy, _, end| {
                        let runs = busy.is_some_and(|busy| busy.pu_op == part.serial);
                        let kind = if runs { own } else { WaitKind::Suspended };
                        path.add_wait_on_pu(end, kind, Some(part.pu));
                    });
                }
                path.add_wait_on_pu(part.ended, own, Some(part.pu));
            }
        }
    }

    fn critical(&self, path: &mut WaitPath, critical: &Critical, before: WaitKind) {
        match critical {
            Critical::PuOp(part) => {
                path.add_wait(part.queued, before);
                self.pu_op(path, part);
            }
            Critical::Command(command) => {
                path.add_wait(command.submitted, before);
                self.command(path, command, None);
            }
        }
    }

    /// Adds the time of a request at an FTL.
    pub(super) fn ftl(&self, path: &mut WaitPath, request: &FtlRequest, admissions: &Admissions) {
        if let Some((admitted, durable)) = request.admitted {
            // The last part of the time with a full write buffer is that of the program that freed
            // a slot.
            let full = last_state(admissions, admitted) == Some(Admission::BufferFull);
            if let (true, Some(made_room)) = (full, &request.slot_freed_by) {
                admission(path, admissions, made_room.queued_at().min(admitted));
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
            path.add_wait(request.ended, WaitKind::MapPage);
        }
        let rest = match request.is_flush || request.admitted.is_some() {
            true => WaitKind::Durability,
            false => WaitKind::Unexplained,
        };
        path.add_wait(request.ended, rest);
    }

    /// Adds the time of a command, from its submission to its completion entry. `admissions` are
    /// those of the drive's own FTL, if it has one.
    pub(super) fn command(
        &self,
        path: &mut WaitPath,
        command: &TracedCommand,
        admissions: Option<&Admissions>,
    ) {
        path.add_wait(command.fetched, WaitKind::SubmissionQueue);
        let (before, rest): (Vec<&StationVisit>, Vec<&StationVisit>) =
            command.visits.iter().partition(|stay| stay.end <= command.started);
        add_visits(path, &before);
        path.add_wait(command.started, WaitKind::SubmissionQueue);
        let (inside, after): (Vec<&StationVisit>, Vec<&StationVisit>) =
            rest.into_iter().partition(|stay| stay.end <= command.ended);
        match (&command.ftl, &command.last_pu_op) {
            (Some(request), part) => {
                let by_part = request.queued.is_none() && !request.is_flush;
                if let Some(queued) = request.queued {
                    // A unit that the command changes in part is read before it is written.
                    if let Some(part) = part {
                        path.add_wait(part.queued, WaitKind::UnitChange);
                        self.pu_op(path, part);
                    }
                    path.add_wait(queued, WaitKind::UnitChange);
                }
                let mut request = request.clone();
                if let (true, Some(part)) = (by_part, part) {
                    request.critical = Some(Critical::PuOp(*part));
                }
                request.ended = command.ended;
                let none = Admissions::new();
                self.ftl(path, &request, admissions.unwrap_or(&none));
            }
            (None, Some(part)) => {
                path.add_wait(part.queued, WaitKind::MapPage);
                self.pu_op(path, part);
            }
            (None, None) => add_last_chain(path, &inside),
        }
        path.add_wait(command.ended, WaitKind::Unexplained);
        add_visits(path, &after);
        path.add_wait(command.posted, WaitKind::CompletionQueue);
    }
}

/// Adds visits of stations, one after the other.
fn add_visits(path: &mut WaitPath, stays: &[&StationVisit]) {
    for stay in stays {
        path.add_wait(stay.start, WaitKind::StationBusy(stay.station));
        path.add_wait(stay.end, WaitKind::Station(stay.station));
    }
}

/// Adds the chain of visits that ends last; the visits of a command's sectors overlap.
fn add_last_chain(path: &mut WaitPath, stays: &[&StationVisit]) {
    let mut chain = Vec::new();
    let mut end = Nanos::MAX;
    while let Some(last) =
        stays.iter().filter(|stay| stay.end <= end && stay.start < end).max_by_key(|stay| stay.end)
    {
        chain.push(*last);
        end = last.start;
    }
    chain.reverse();
    add_visits(path, &chain);
}

/// Returns the admission state just before `at`.
fn last_state(admissions: &Admissions, at: Nanos) -> Option<Admission> {
    let before = admissions.partition_point(|change| change.at < at);
    before.checked_sub(1).map(|last| admissions[last].state)
}

/// Adds the waits of a write until it was admitted at `admitted`.
fn admission(path: &mut WaitPath, admissions: &Admissions, admitted: Nanos) {
    let kind = |state: Admission| match state {
        Admission::BufferFull => WaitKind::WriteBufferFull,
        Admission::GcLimiter => WaitKind::GcLimiter,
        Admission::MapPage => WaitKind::MapPage,
        // Admission was open, but earlier requests were queued: the write is admitted at the same
        // instant.
        Admission::Open => WaitKind::WriteBufferFull,
    };
    let first = admissions.partition_point(|change| change.at <= path.position());
    let mut state = first.checked_sub(1).map(|before| admissions[before].state);
    for change in admissions.range(first..) {
        if change.at >= admitted {
            break;
        }
        path.add_wait(change.at, state.map_or(WaitKind::Unexplained, kind));
        state = Some(change.state);
    }
    path.add_wait(admitted, state.map_or(WaitKind::Unexplained, kind));
}
