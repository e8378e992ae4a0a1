//! Sectors with names: commands on them, the moves that the FTL reports, and the events that rules post.
//!
//! # Path of a write, a read and a move
//!
//! The rules of the application see a write with the host's tag, and place it with a tag: the FTL writes
//! the sector, and the completion of the command has its name. The rules see a read with a name and a tag,
//! and choose a name and a tag: the FTL reads that sector, if its tag is the same. When collection has
//! moved a sector, the rules for moved sectors run. If they end well, their durable tables are recorded,
//! and the FTL learns that it may erase the old sector once the record is durable. Otherwise they run again
//! after a command that a rule has completed, a change of a table or an installation. Until then, writes
//! fail that would need the space of such sectors.

use std::collections::VecDeque;

use ftl::{FoundName, FtlFacts, MovedSector, SectorNameError};
use nvme::{FoundNameEntry, NamedOp, RuleEvent, RuleEventLog, Status};
use rules::{AppId, InputOp, RuleFeature, RuleInput, RuleStatus, RuleVerdict, VerifiedProgram};
use time::Nanos;

use super::stations::EngineWork;
use super::{DriveRules, admin, durable, needs_names};
use crate::controller::{Controller, Personality};
use crate::faults::injection;

/// Events at most of an application that wait for its host. Later ones are lost, and counted.
const POSTED_EVENTS_MAX: usize = 4096;

/// Moved sectors of an application, and events for its host.
#[derive(Debug, Default)]
pub(crate) struct AppEvents {
    /// Moved sectors whose rules are to run.
    ready: VecDeque<MovedSector>,
    /// Moved sectors whose rules have ended with an error.
    failed: VecDeque<MovedSector>,
    posted: VecDeque<RuleEvent>,
    /// Whether an event has been posted since the host was told.
    has_posted: bool,
    /// Events that the host did not take in time.
    lost: u64,
    /// Valid sectors that the recovery has found, until the host has read them.
    found: Vec<FoundName>,
}

impl AppEvents {
    fn post(&mut self, kind: u16, values: [u64; 3]) {
        match self.posted.len() < POSTED_EVENTS_MAX {
            true => self.posted.push_back(RuleEvent::new(kind, values)),
            false => self.lost += 1,
        }
        self.has_posted = true;
    }

    /// Returns the log page of posted events.
    pub(super) fn posted_log(&self) -> RuleEventLog {
        let events = self.posted.iter().take(RuleEventLog::ENTRIES).copied().collect();
        RuleEventLog { lost: self.lost, events }
    }

    /// Removes the events of the log page, which the host has read. Returns whether there are more.
    pub(super) fn remove_posted(&mut self) -> bool {
        self.posted.drain(..self.posted.len().min(RuleEventLog::ENTRIES));
        !self.posted.is_empty()
    }

    /// Returns the number of the names that were found.
    pub(super) fn found(&self) -> usize {
        self.found.len()
    }

    /// Returns an entry of the log page of the names that were found; the end mark behind the last.
    pub(super) fn found_entry(&self, at: usize) -> FoundNameEntry {
        let found = self.found.get(at).map(|found| (found.name.0, found.tag));
        let (name, tag) = found.unwrap_or((FoundNameEntry::END, 0));
        FoundNameEntry { name: name.into(), tag: tag.into() }
    }

    /// Removes the names that were found, which the host has read.
    pub(super) fn remove_found(&mut self) {
        self.found = Vec::new();
    }
}

/// Moved sectors and events of all applications.
#[derive(Debug)]
pub(crate) struct RuleEvents {
    pub(super) apps: Vec<AppEvents>,
    /// Whether the sectors of the drive have names.
    pub(super) is_named: bool,
    /// Whether the program posts events.
    has_posts: bool,
    /// Whether there are events that hosts have not been told, or moved sectors whose rules are to run.
    is_pending: bool,
    /// Whether rules for moved sectors have ended with an error.
    has_failed: bool,
}

impl RuleEvents {
    pub(super) fn new(verified: &VerifiedProgram, apps: usize) -> RuleEvents {
        let apps = (0..apps).map(|_| AppEvents::default()).collect();
        RuleEvents {
            apps,
            is_named: needs_names(verified),
            has_posts: posts(verified),
            is_pending: false,
            has_failed: false,
        }
    }

    /// Has a new program decide about the moved sectors.
    pub(super) fn replace(&mut self, verified: &VerifiedProgram) {
        self.has_posts = posts(verified);
        self.retry();
    }

    /// Whether there may be events for hosts.
    pub(crate) fn are_used(&self) -> bool {
        self.is_named || self.has_posts
    }

    pub(super) fn post(&mut self, app: AppId, kind: u16, values: [u64; 3]) {
        if let Some(app) = self.apps.get_mut(app.index()) {
            app.post(kind, values);
            self.is_pending = true;
        }
    }

    /// Has the rules run again that have ended with an error: their tables may have space now.
    #[inline]
    pub(crate) fn retry(&mut self) {
        if std::mem::take(&mut self.has_failed) {
            self.is_pending = true;
            self.apps.iter_mut().for_each(|app| app.ready.append(&mut app.failed));
        }
    }

    #[inline]
    pub(super) fn is_pending(&self) -> bool {
        self.is_pending
    }

    /// Loses what a power cut loses. The FTL reports moves again whose old sectors are not erased.
    pub(super) fn power_cut(&mut self) {
        self.apps.fill_with(AppEvents::default);
        (self.is_pending, self.has_failed) = (false, false);
    }
}

/// Whether a program posts events.
fn posts(verified: &VerifiedProgram) -> bool {
    verified.needs().iter().any(|need| need.feature == RuleFeature::Post)
}

/// Returns the operation of an input.
pub(super) fn input_op(op: NamedOp) -> InputOp {
    match op {
        NamedOp::Write => InputOp::Write,
        NamedOp::Read => InputOp::Read,
        NamedOp::Free => InputOp::Trim,
    }
}

/// Returns the status of a command whose name is refused.
pub(in crate::personality) fn name_status(error: SectorNameError) -> Status {
    use SectorNameError::{ForeignTag, Logical, NeverWritten, NotMoved, NotValid, PastEnd, Stale};
    let status = match error {
        Logical => return Status::INVALID_OPCODE,
        PastEnd { .. } => Status::LBA_OUT_OF_RANGE,
        NeverWritten | Stale | NotValid | NotMoved => Status::RULE_NOT_FOUND,
        ForeignTag => Status::APPLICATION_TAG_CHECK,
    };
    status.do_not_retry()
}

/// Takes the moved sectors that the FTLs report, and does what [`follow_rules`] does.
#[cold]
pub(crate) fn follow_ftl(controller: &mut Controller, now: Nanos) {
    let Personality::Block(drive) = &mut controller.personality else { return };
    let Some(rules) = &mut controller.commands.rules else { return };
    for app in drive.spaces.apps() {
        // Applications with names share no space.
        let space = drive.spaces.space_of(app);
        let ftl = drive.spaces.of_mut(space).0;
        while let Some(moved) = ftl.pop_moved() {
            rules.events.apps[app.index()].ready.push_back(moved);
            rules.events.is_pending = true;
        }
        while let Some(name) = ftl.pop_lost_name() {
            rules.events.post(app, RuleEvent::LOST, [name.0, 0, 0]);
        }
    }
    if rules.events.is_pending {
        follow_rules(controller, now);
    }
}

/// Runs the rules for moved sectors, and tells the hosts of events.
#[cold]
pub(crate) fn follow_rules(controller: &mut Controller, now: Nanos) {
    let Personality::Block(drive) = &controller.personality else { return };
    for app in drive.spaces.apps() {
        run_moved(controller, now, app);
    }
    let Some(rules) = &mut controller.commands.rules else { return };
    rules.events.is_pending = false;
    let events = (0..).map(AppId::from_index).zip(&mut rules.events.apps);
    let posted =
        events.filter_map(|(app, events)| std::mem::take(&mut events.has_posted).then_some(app));
    for app in posted.collect::<Vec<_>>() {
        admin::report_posted(controller, app);
    }
}

/// Runs the rules of an application for moved sectors. Those that end well are confirmed.
fn run_moved(controller: &mut Controller, now: Nanos, app: AppId) {
    let outstanding = controller.commands.outstanding();
    while let Personality::Block(drive) = &mut controller.personality
        && let Some(rules) = &mut controller.commands.rules
        && let Some(moved) = rules.events.apps[app.index()].ready.pop_front()
    {
        let facts = FtlFacts::new(
            drive.spaces.of(drive.spaces.space_of(app)),
            rules.is_idle(outstanding, 0),
        );
        let verdict = rules.run_moved(app, moved, &facts);
        if !is_accepted(verdict) {
            rules.events.apps[app.index()].failed.push_back(moved);
            rules.events.has_failed = true;
        }
        let time = rules.time_of(rules.engine.ended_ops());
        if time > Nanos::ZERO && !controller.zero_latency {
            // The engine is in use; what the rules decide has effect at once.
            rules.stations.enqueue(now, time, EngineWork::Nothing);
            injection::update_interrupt(controller);
        }
        if !is_accepted(verdict) {
            continue;
        }
        durable::record(controller);
        let Personality::Block(drive) = &mut controller.personality else { return };
        // The FTL has reported the move, and keeps it until then.
        let space = drive.spaces.space_of(app);
        let confirmed = drive.spaces.of_mut(space).0.confirm_move(moved.old);
        debug_assert_eq!(confirmed, Ok(()));
        drive.kick = true;
    }
    if let Personality::Block(drive) = &mut controller.personality
        && let Some(rules) = &controller.commands.rules
        && !rules.events.apps[app.index()].failed.is_empty()
    {
        let space = drive.spaces.space_of(app);
        drive.spaces.of_mut(space).0.set_moves_stuck();
        drive.kick = true;
    }
}

/// Whether rules have taken note of a moved sector.
fn is_accepted(verdict: RuleVerdict) -> bool {
    matches!(verdict, RuleVerdict::Finished | RuleVerdict::Complete { status: RuleStatus::Ok, .. })
}

/// Takes the names that the recovery of a drive has found.
pub(crate) fn restore(controller: &mut Controller) {
    let Personality::Block(drive) = &mut controller.personality else { return };
    let Some(rules) = &mut controller.commands.rules else { return };
    for (events, ftl) in rules.events.apps.iter_mut().zip(drive.spaces.all_mut()) {
        events.found = ftl.take_found_names();
    }
}

impl DriveRules {
    /// Runs the rules for a moved sector.
    fn run_moved(&mut self, app: AppId, moved: MovedSector, facts: &FtlFacts<'_>) -> RuleVerdict {
        let MovedSector { old, new, tag } = moved;
        let input =
            RuleInput { arg0: old.0, arg1: new.0, tag, ..RuleInput::new(InputOp::Read, 0, 1) };
        match self.engine.begin_moved(app, &input, facts) {
            Some(step) => self.run(app, step, facts, &mut None),
            None => unreachable!("a context is free for inputs that fetch nothing"),
        }
    }
}
