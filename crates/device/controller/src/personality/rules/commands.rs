//! Commands of a drive with rules: the input of each, and the verdict.

use ftl::{FtlFacts, HostStream, rule_status};
use nvme::{DsmRange, IoCommand, NamedCommand, NamedOp, RuleCommand, Status};
use rules::{
    AppId, DriveFacts, InputOp, PlacementStream, RuleAddress, RuleInput, RuleStatus, RuleStep,
    RuleVerdict,
};
use time::Nanos;
use tracepoint::{Event, StageKind};

use super::background;
use super::durable;
use super::fetches::WaitingInput;
use super::misses::{MissEnd, MissedInput, ParkedCommand, ParkedKey, UNMATCHED};
use super::stations::EngineWork;
use super::{DriveRules, EngineStage, admin, named, output, sectors};
use crate::command::table::{Command, range_blocks};
use crate::controller::{Controller, Personality};
use crate::faults::injection;
use crate::personality::spaces::{ONLY_APP, ONLY_SPACE, thin};

/// The result of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InputEnd {
    /// It is executed at this block; a write in this stream.
    At(u64, HostStream),
    /// It is executed as without rules.
    Unchanged,
    /// It ends with this status.
    Done(Status),
}

/// The reason for which a command is not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InputStop {
    /// A rule ends it with this status.
    End(Status),
    /// No rule matches this input.
    Miss(MissedInput),
    /// Its rules wait for a sector.
    Fetch,
    /// An input waits until the engine has a context for it.
    Wait,
    /// A rule makes the command a read.
    Read,
}

/// How the first of the inputs of a command that are decided enters the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InputEntry {
    /// As a new input.
    New,
    /// As a new input, for which there is a context.
    Admitted,
    /// Its rules have the sector that they waited for.
    Resumed,
}

/// The decision of the engines about a command, and the time that it took them.
#[derive(Clone, Copy, Debug)]
struct CommandDecision {
    time: Nanos,
    work: EngineWork,
}

/// Starts a command of a drive with rules, as they decide.
#[inline(never)]
pub(crate) fn start(controller: &mut Controller, now: Nanos, id: u32) {
    if controller.commands.rules.as_ref().is_some_and(|rules| rules.background.is_asleep()) {
        wake(controller, now);
    }
    if !starts_unchanged(controller, id) {
        if controller.commands.checks_namespaces && controller.has_several_apps() {
            return start_of_app(controller, now, id);
        }
        if !match_command(controller, now, id, 0) {
            return;
        }
    }
    let Personality::Block(drive) = &mut controller.personality else { return };
    let cache_enabled = controller.admin.cache_enabled();
    drive.start(now, id, ONLY_SPACE, &mut controller.commands, cache_enabled);
}

/// Starts a command of a drive with several applications, as the rules of its own decide.
#[inline(never)]
fn start_of_app(controller: &mut Controller, now: Nanos, id: u32) {
    if match_command_of_app(controller, now, id, 0) {
        execute(controller, now, EngineWork::Start(id));
    }
}

/// Has the background rules tried when the drive is idle again.
#[cold]
fn wake(controller: &mut Controller, now: Nanos) {
    if let Some(rules) = &mut controller.commands.rules {
        rules.background.wake(now);
    }
    injection::update_interrupt(controller);
}

/// Decides about a read or a write of a drive with one application, if that takes no time and no
/// execution of a rule. Returns whether the command starts at its own block; else nothing is decided.
#[inline(always)]
fn starts_unchanged(controller: &mut Controller, id: u32) -> bool {
    let Personality::Block(drive) = &controller.personality else { return false };
    let Some((rules, command)) = controller.commands.rules_and_command(id) else { return false };
    let (op, lba, blocks) = match command.io {
        IoCommand::Read { slba, nlb, .. } => (InputOp::Read, slba, nlb),
        IoCommand::Write { slba, nlb, .. } => (InputOp::Write, slba, nlb),
        _ => return false,
    };
    let blocks = u64::from(blocks);
    let is_inside = lba.checked_add(blocks).is_some_and(|end| end <= drive.blocks_in(ONLY_SPACE));
    is_inside
        && rules.decides_directly
        && rules.engine.decide_unchanged(ONLY_APP, &RuleInput::new(op, lba, blocks))
}

/// Has the engine match the inputs of a command from `first` on. Returns whether the command starts now.
#[inline(never)]
fn match_command(controller: &mut Controller, now: Nanos, id: u32, first: u32) -> bool {
    let input = WaitingInput { id, at: first };
    let decision = decide::<false>(controller, input, InputEntry::New);
    decision.is_some_and(|decision| enter_engine(controller, now, id, decision))
}

/// As [`match_command`], for any drive.
#[inline(never)]
fn match_command_of_app(controller: &mut Controller, now: Nanos, id: u32, first: u32) -> bool {
    let input = WaitingInput { id, at: first };
    let decision = decide_again(controller, input, InputEntry::New);
    decision.is_some_and(|decision| enter_engine(controller, now, id, decision))
}

/// Has the engine match the inputs of a command from `input` on, and starts the command if that takes
/// no time.
pub(super) fn enter_decided(
    controller: &mut Controller,
    now: Nanos,
    input: WaitingInput,
    entry: InputEntry,
) {
    let Some(decision) = decide_again(controller, input, entry) else { return };
    if enter_engine(controller, now, input.id, decision) {
        execute(controller, now, EngineWork::Start(input.id));
    }
}

/// Has the rules decide about the inputs of a command from `first` on, and changes the blocks that it
/// addresses as they say. `SEVERAL` tells whether the drive may have several applications.
#[inline(always)]
fn decide<const SEVERAL: bool>(
    controller: &mut Controller,
    first: WaitingInput,
    entry: InputEntry,
) -> Option<CommandDecision> {
    let WaitingInput { id, at: first } = first;
    let Personality::Block(drive) = &controller.personality else { return None };
    let outstanding = controller.commands.outstanding();
    let (rules, command) = controller.commands.rules_and_command(id)?;
    let (program, is_idle) = (rules.program, rules.is_idle(outstanding, 1));
    let space = if SEVERAL { command.space } else { ONLY_SPACE };
    let facts = FtlFacts::new(drive.spaces.of(space), is_idle);
    let blocks = if SEVERAL { drive.blocks_of(command.app) } else { drive.blocks_in(space) };
    let (capacity, time) = (blocks, Nanos::ZERO);
    let mut inputs =
        CommandInputs::<'_, '_, SEVERAL> { rules, facts: &facts, id, entry, capacity, time };
    let decided = inputs.decide(command, first as usize);
    let time = inputs.time;
    let has_effects = inputs.rules.durable.has_changes() || inputs.rules.events.is_pending();
    let work = match decided {
        Ok(()) => EngineWork::Start(id),
        Err(InputStop::End(status)) => EngineWork::end(id, status),
        Err(InputStop::Miss(missed)) => {
            inputs.rules.misses.enter(id, missed, program);
            EngineWork::Miss(id)
        }
        Err(InputStop::Fetch) => EngineWork::Fetch(id),
        Err(InputStop::Wait) => EngineWork::Wait(id),
        Err(InputStop::Read) => {
            output::leave_out_cmb(controller, id);
            EngineWork::Start(id)
        }
    };
    if has_effects {
        finish_effects(controller);
    }
    Some(CommandDecision { time, work })
}

/// Records the changes of durable tables, and follows the events of the rules of a command.
#[cold]
fn finish_effects(controller: &mut Controller) {
    durable::record(controller);
    if controller.commands.rules.as_ref().is_some_and(|rules| rules.events.is_pending()) {
        named::follow_rules(controller, controller.time.now);
    }
}

/// As [`decide`], for commands that were decided about before.
#[inline(never)]
fn decide_again(
    controller: &mut Controller,
    first: WaitingInput,
    entry: InputEntry,
) -> Option<CommandDecision> {
    decide::<true>(controller, first, entry)
}

/// Executes what was decided about a command, once the engine has taken its time; but a command that
/// starts now is left to the caller. Returns whether it starts now.
#[inline(always)]
fn enter_engine(
    controller: &mut Controller,
    now: Nanos,
    id: u32,
    decision: CommandDecision,
) -> bool {
    let CommandDecision { time, work } = decision;
    let Some(rules) = &mut controller.commands.rules else { return false };
    let time = if controller.zero_latency { Nanos::ZERO } else { time };
    if time == Nanos::ZERO && (rules.stations.is_empty() || !controller.zero_latency) {
        if matches!(work, EngineWork::Start(_)) {
            return true;
        }
        execute(controller, now, work);
        return false;
    }
    let times = rules.stations.enqueue(now, time, work);
    let (start, end) = (times.start, times.end);
    tracepoint::trace_at(now, || Event::CommandStage { id, stage: StageKind::Rules, start, end });
    injection::update_interrupt(controller);
    false
}

/// Executes what engines have decided by `now`, ends the commands that were parked for too long, and runs
/// the background rules and periodic rules that are due.
#[cold]
pub(crate) fn leave_engines(controller: &mut Controller, now: Nanos) {
    if let Some(rules) = &controller.commands.rules
        && rules.background.next_at() <= now
    {
        background::run_due(controller, now);
    }
    while let Some((at, work)) =
        controller.commands.rules.as_mut().and_then(|rules| rules.stations.pop_due(now))
    {
        execute(controller, at, work);
    }
    while let Some((_, command)) =
        controller.commands.rules.as_mut().and_then(|rules| rules.misses.pop_due(now))
    {
        controller.commands.complete(command.id, UNMATCHED);
    }
}

pub(super) fn execute(controller: &mut Controller, now: Nanos, work: EngineWork) {
    if let EngineWork::Start(id) | EngineWork::End(id, _) | EngineWork::Miss(id) = work
        && let Some(rules) = &mut controller.commands.rules
        && !rules.fetches.is_empty()
        && rules.fetches.defer(id, work)
    {
        return;
    }
    let Personality::Block(drive) = &mut controller.personality else { return };
    match work {
        EngineWork::Start(id) => {
            let cache_enabled = controller.admin.cache_enabled();
            let command = controller.commands.get_mut(id);
            let space = command.space;
            if drive.spaces.are_shared()
                && let Err(status) = thin::translate(&drive.spaces, command)
            {
                return controller.commands.complete(id, status);
            }
            drive.start(now, id, space, &mut controller.commands, cache_enabled);
        }
        EngineWork::End(id, status) => {
            if matches!(controller.commands.get(id).io, IoCommand::Rule(_)) {
                output::leave_out_cmb(controller, id);
            }
            controller.commands.complete(id, Status::from_bits(status));
        }
        EngineWork::Miss(id) => miss(controller, now, id),
        EngineWork::Fetch(id) => sectors::begin(controller, now, id),
        EngineWork::Wait(id) => {
            if let Some(rules) = &mut controller.commands.rules {
                rules.fetches.wait(id);
                // A context may have become free since.
                drive.kick = true;
            }
        }
        EngineWork::Nothing => {}
        EngineWork::Victim => drive.kick = true,
        EngineWork::Relocate(app, chosen) => {
            let space = drive.spaces.space_of(app);
            if drive.spaces.of_mut(space).0.relocate(chosen) {
                drive.kick = true;
                if let Some(rules) = &mut controller.commands.rules {
                    rules.count(app, |app| app.relocated += 1);
                }
            }
        }
    }
}

/// Parks a command that no rule matched.
#[cold]
fn miss(controller: &mut Controller, now: Nanos, id: u32) {
    let Some((rules, command)) = controller.commands.rules_and_command(id) else { return };
    let Some((missed, program)) = rules.misses.leave(id) else { return };
    if program != rules.program {
        // Another program was installed while the command was in the engine.
        if match_command_of_app(controller, now, id, missed.at) {
            execute(controller, now, EngineWork::Start(id));
        }
        return;
    }
    rules.count(command.app, |app| app.misses += 1);
    let (queue, (lba, blocks)) = (command.queue, blocks_of(command, missed.at));
    match rules.misses.park(now, ParkedCommand { id, missed, queue, lba, blocks }) {
        Ok(()) => {
            injection::update_interrupt(controller);
            admin::report_miss(controller);
        }
        Err(status) => controller.commands.complete(id, status),
    }
}

/// Matches the parked commands with the rules of a new program, in the order of their misses.
pub(super) fn release(controller: &mut Controller, now: Nanos) {
    let Some(rules) = &controller.commands.rules else { return };
    let parked: Vec<(ParkedKey, ParkedCommand)> = rules.misses.all().collect();
    for (key, ParkedCommand { id, missed, .. }) in parked {
        let input = WaitingInput { id, at: missed.at };
        let Some(mut decision) = decide_again(controller, input, InputEntry::New) else {
            return;
        };
        let Some(rules) = &mut controller.commands.rules else { return };
        match rules.misses.leave(id) {
            Some((missed, _)) => {
                rules.misses.miss_again(key, missed);
                decision.work = EngineWork::Nothing;
            }
            None => rules.misses.end(key, MissEnd::Released),
        }
        if enter_engine(controller, now, id, decision) {
            execute(controller, now, EngineWork::Start(id));
        }
    }
}

/// Ends the parked commands that `is_ended` selects. Returns their number.
pub(super) fn end_parked(
    controller: &mut Controller,
    end: MissEnd,
    status: Status,
    is_ended: impl Fn(&ParkedCommand, &Command) -> bool,
) -> u64 {
    let commands = &mut controller.commands;
    let Some(mut rules) = commands.rules.take() else { return 0 };
    let selected =
        |(_, parked): &(ParkedKey, ParkedCommand)| is_ended(parked, commands.get(parked.id));
    let ended: Vec<(ParkedKey, ParkedCommand)> = rules.misses.all().filter(selected).collect();
    for (key, parked) in &ended {
        rules.misses.end(*key, end);
        commands.complete(parked.id, status);
    }
    commands.rules = Some(rules);
    if !ended.is_empty() {
        injection::update_interrupt(controller);
    }
    ended.len() as u64
}

/// The inputs of a command. Unless `SEVERAL` is true, its application is the only one of the drive.
struct CommandInputs<'a, 'f, const SEVERAL: bool> {
    rules: &'a mut DriveRules,
    facts: &'a FtlFacts<'f>,
    /// The command.
    id: u32,
    /// How the next input enters the engine.
    entry: InputEntry,
    /// Blocks of the application.
    capacity: u64,
    /// Time of the inputs so far.
    time: Nanos,
}

impl<const SEVERAL: bool> CommandInputs<'_, '_, SEVERAL> {
    /// Returns the application of the command.
    #[inline(always)]
    fn app(command: &Command) -> AppId {
        if SEVERAL { command.app } else { ONLY_APP }
    }

    /// Decides about the inputs of a command from `first` on.
    ///
    /// # Errors
    /// The reason for which it is not executed.
    #[inline(always)]
    fn decide(&mut self, command: &mut Command, first: usize) -> Result<(), InputStop> {
        let op = match command.io {
            IoCommand::Read { .. } | IoCommand::Compare { .. } | IoCommand::Verify { .. } => {
                InputOp::Read
            }
            IoCommand::WriteZeroes { deallocate: true, fua: false, .. } => InputOp::Trim,
            IoCommand::Write { .. }
            | IoCommand::WriteZeroes { .. }
            | IoCommand::WriteUncorrectable { .. } => InputOp::Write,
            IoCommand::Flush => InputOp::Flush,
            IoCommand::DatasetManagement { deallocate: true, .. } => {
                return self.trims(command, first);
            }
            IoCommand::Copy { .. } => {
                self.sources(command, first)?;
                InputOp::Write
            }
            IoCommand::Rule(rule) => return self.rule_command(command, rule),
            IoCommand::Named(named) => return self.named_command(command, named),
            _ => return Ok(()),
        };
        self.redirect(command, op)
    }

    /// Decides about a command for rules.
    #[inline(never)]
    fn rule_command(&mut self, command: &mut Command, rule: RuleCommand) -> Result<(), InputStop> {
        let RuleCommand { kind, slba, nlb, arg0, arg1, buffer_bytes } = rule;
        if slba.checked_add(nlb.into()).is_none_or(|end| end > self.capacity) {
            return Err(InputStop::End(Status::LBA_OUT_OF_RANGE.do_not_retry()));
        }
        let (op, buffer_bytes) = (output::input_op(kind), buffer_bytes.into());
        let input = RuleInput { arg0, arg1, buffer_bytes, ..RuleInput::new(op, slba, nlb.into()) };
        if self.entry != InputEntry::Resumed {
            command.dma_bytes = 0;
        }
        match self.verdict(command, MissedInput { op, at: 0 }, &input)? {
            RuleVerdict::Read { address: RuleAddress::Mapped { lba }, tag: 0 } => {
                let block_bytes = self.rules.fetches.sector_bytes();
                let read = output::read_instead(command, &rule, lba, block_bytes);
                Err(read.map_or_else(InputStop::End, |()| InputStop::Read))
            }
            RuleVerdict::Complete { status, value } => {
                // The tables may have space for moved sectors again.
                self.rules.events.retry();
                output::set_reply(command, &rule, value);
                Err(InputStop::End(rule_status(status)))
            }
            RuleVerdict::Miss => Err(InputStop::Miss(MissedInput { op, at: 0 })),
            // Only writes are placed, and the drive has no names and tags of sectors.
            RuleVerdict::Place { .. } | RuleVerdict::Read { .. } => {
                Err(InputStop::End(rule_status(RuleStatus::BadAddress)))
            }
            RuleVerdict::PassThrough | RuleVerdict::Finished => {
                unreachable!("a command for rules has a verdict of its own")
            }
        }
    }

    /// Decides about a command on a sector with a name. It is executed with the tag, or with the name and
    /// the tag, that the rules choose.
    #[inline(never)]
    fn named_command(
        &mut self,
        command: &mut Command,
        named: NamedCommand,
    ) -> Result<(), InputStop> {
        if !self.rules.events.is_named {
            return Err(InputStop::End(Status::INVALID_OPCODE));
        }
        let NamedCommand { op: named_op, arg0, arg1 } = named;
        let op = named::input_op(named_op);
        let input = RuleInput { arg0, arg1, ..RuleInput::new(op, 0, 1) };
        let decided = match (self.verdict(command, MissedInput { op, at: 0 }, &input)?, named_op) {
            (
                RuleVerdict::Place { stream: PlacementStream::Host, mapped: None, tag },
                NamedOp::Write,
            ) => NamedCommand::write(tag),
            (RuleVerdict::Read { address: RuleAddress::Named { name }, tag }, NamedOp::Read) => {
                NamedCommand::read(name, tag)
            }
            (RuleVerdict::Read { address: RuleAddress::Named { name }, .. }, NamedOp::Free) => {
                NamedCommand::free(name)
            }
            (RuleVerdict::PassThrough, NamedOp::Free) => named,
            (RuleVerdict::Complete { status, value }, _) => {
                command.result = value;
                return Err(InputStop::End(rule_status(status)));
            }
            (RuleVerdict::Miss, _) => return Err(InputStop::Miss(MissedInput { op, at: 0 })),
            _ => return Err(InputStop::End(rule_status(RuleStatus::BadAddress))),
        };
        command.io = IoCommand::Named(decided);
        Ok(())
    }

    /// Runs an input.
    ///
    /// # Errors
    /// The reason for which it has not ended.
    #[inline(never)]
    fn verdict(
        &mut self,
        command: &mut Command,
        missed: MissedInput,
        input: &RuleInput,
    ) -> Result<RuleVerdict, InputStop> {
        let entry = std::mem::replace(&mut self.entry, InputEntry::New);
        let fetches = &self.rules.fetches;
        let must_wait = match entry {
            InputEntry::New => fetches.must_wait(Self::app(command), input.op),
            InputEntry::Admitted => fetches.is_full(),
            InputEntry::Resumed => false,
        };
        if must_wait {
            self.rules.fetches.enter(WaitingInput { id: self.id, at: missed.at });
            return Err(InputStop::Wait);
        }
        // Inputs that fetch nothing have an engine compiled for these facts alone.
        let facts: &dyn DriveFacts = self.facts;
        let step = match entry {
            InputEntry::Resumed => self.rules.resume_fetched(self.id, facts),
            InputEntry::New | InputEntry::Admitted => {
                self.rules.engine.begin_command(Self::app(command), input, facts)
            }
        };
        let at = WaitingInput { id: self.id, at: missed.at };
        let stage = match step {
            Some(RuleStep::Done(verdict)) if entry != InputEntry::Resumed => {
                EngineStage { verdict: Some(verdict), ops: self.rules.engine.ended_ops() }
            }
            Some(step) => self.rules.run_command(at, step, command, facts),
            None => unreachable!("there is a context for the input"),
        };
        self.time += self.rules.time_of(stage.ops);
        stage.verdict.ok_or(InputStop::Fetch)
    }

    /// Decides about the blocks that a command addresses, which then are those that a rule chose.
    #[inline(always)]
    fn redirect(&mut self, command: &mut Command, op: InputOp) -> Result<(), InputStop> {
        let (lba, blocks) = addressed_blocks(command);
        let missed = MissedInput { op, at: command.ranges.len() as u32 };
        match self.end(command, missed, lba, blocks)? {
            InputEnd::At(chosen, stream) => {
                if stream != HostStream::Host {
                    self.rules.count(Self::app(command), |app| app.hot_sectors += blocks);
                    command.stream = stream;
                }
                if chosen != lba
                    && let Some((slba, _)) = addressed(&mut command.io)
                {
                    command.first_sector =
                        command.first_sector.wrapping_add(chosen.wrapping_sub(*slba));
                    *slba = chosen;
                }
                Ok(())
            }
            InputEnd::Unchanged => Ok(()),
            InputEnd::Done(status) => Err(InputStop::End(status)),
        }
    }

    /// Decides about each range of a trim: those remain that the drive trims.
    fn trims(&mut self, command: &mut Command, first: usize) -> Result<(), InputStop> {
        let mut at = first;
        while let Some(DsmRange { slba, nlb, .. }) = command.ranges.get(at).copied() {
            let missed = MissedInput { op: InputOp::Trim, at: at as u32 };
            match self.end(command, missed, slba.get(), nlb.get().into())? {
                InputEnd::Done(status) if status.is_success() => {
                    command.ranges.remove(at);
                }
                InputEnd::Done(status) => return Err(InputStop::End(status)),
                InputEnd::At(..) | InputEnd::Unchanged => at += 1,
            }
        }
        Ok(())
    }

    /// Decides about each source range of a Copy.
    fn sources(&mut self, command: &mut Command, first: usize) -> Result<(), InputStop> {
        for at in first..command.ranges.len() {
            let DsmRange { slba, nlb, .. } = command.ranges[at];
            let missed = MissedInput { op: InputOp::Read, at: at as u32 };
            match self.end(command, missed, slba.get(), nlb.get().into())? {
                InputEnd::At(lba, _) => command.ranges[at].slba = lba.into(),
                InputEnd::Done(status) => return Err(InputStop::End(status)),
                InputEnd::Unchanged => {}
            }
        }
        Ok(())
    }

    /// Runs an input. One past the end of the drive is executed as without rules: the FTL refuses it.
    #[inline]
    fn end(
        &mut self,
        command: &mut Command,
        missed: MissedInput,
        lba: u64,
        blocks: u64,
    ) -> Result<InputEnd, InputStop> {
        if lba.checked_add(blocks).is_none_or(|end| end > self.capacity) {
            return Ok(InputEnd::Unchanged);
        }
        let input = RuleInput::new(missed.op, lba, blocks);
        if self.rules.fetches.may_fetch(Self::app(command), missed.op) {
            return self.fetching_end(command, missed, &input);
        }
        let verdict = self.rules.decide(Self::app(command), &input, self.facts);
        self.time += self.rules.time_of(self.rules.engine.ended_ops());
        end_of(command, missed, verdict)
    }

    /// Runs an input that may fetch a sector.
    #[inline(never)]
    fn fetching_end(
        &mut self,
        command: &mut Command,
        missed: MissedInput,
        input: &RuleInput,
    ) -> Result<InputEnd, InputStop> {
        let verdict = self.verdict(command, missed, input)?;
        end_of(command, missed, verdict)
    }
}

/// Returns how an input ends with a verdict.
#[inline(always)]
fn end_of(
    command: &mut Command,
    missed: MissedInput,
    verdict: RuleVerdict,
) -> Result<InputEnd, InputStop> {
    Ok(match verdict {
        RuleVerdict::Place { stream: PlacementStream::Host, mapped: Some(lba), tag: 0 }
        | RuleVerdict::Read { address: RuleAddress::Mapped { lba }, tag: 0 } => {
            InputEnd::At(lba, HostStream::Host)
        }
        RuleVerdict::Place { stream: PlacementStream::Hot, mapped: Some(lba), tag: 0 } => {
            InputEnd::At(lba, HostStream::Hot)
        }
        // Data that is not mapped could not be read again.
        RuleVerdict::Place { .. } | RuleVerdict::Read { .. } => {
            InputEnd::Done(rule_status(RuleStatus::BadAddress))
        }
        RuleVerdict::Complete { status, value } => {
            command.result = value;
            InputEnd::Done(rule_status(status))
        }
        RuleVerdict::PassThrough => InputEnd::Unchanged,
        RuleVerdict::Miss => return Err(InputStop::Miss(missed)),
        RuleVerdict::Finished => unreachable!("only an input without a command is finished"),
    })
}

/// Returns the first block and the number of blocks that a command addresses; zeros for a flush.
#[inline]
fn addressed_blocks(command: &mut Command) -> (u64, u64) {
    match addressed(&mut command.io) {
        Some((slba, 0)) => (*slba, range_blocks(command)),
        Some((slba, nlb)) => (*slba, nlb.into()),
        None => (0, 0),
    }
}

/// Returns the first block and the number of blocks of an input.
fn blocks_of(command: &mut Command, at: u32) -> (u64, u64) {
    match command.ranges.get(at as usize) {
        Some(range) => (range.slba.get(), range.nlb.get().into()),
        None => addressed_blocks(command),
    }
}

/// Returns the first block and the number of blocks that a command addresses; a Copy gives the number
/// in its ranges.
fn addressed(io: &mut IoCommand) -> Option<(&mut u64, u32)> {
    match io {
        IoCommand::Read { slba, nlb, .. }
        | IoCommand::Write { slba, nlb, .. }
        | IoCommand::WriteZeroes { slba, nlb, .. }
        | IoCommand::Compare { slba, nlb, .. }
        | IoCommand::Verify { slba, nlb, .. }
        | IoCommand::WriteUncorrectable { slba, nlb }
        | IoCommand::Rule(RuleCommand { slba, nlb, .. }) => Some((slba, *nlb)),
        IoCommand::Copy { slba, .. } => Some((slba, 0)),
        _ => None,
    }
}
