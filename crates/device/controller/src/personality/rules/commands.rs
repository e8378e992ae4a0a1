//! Commands of a drive with rules: the input of each, and the verdict.

use nvme::{DsmRange, IoCommand, Status};
use rules::{InputOp, PlacementStream, RuleAddress, RuleInput, RuleStatus, RuleVerdict};
use time::Nanos;
use tracepoint::{Event, StageKind};

use super::DriveRules;
use super::facts::FtlFacts;
use super::stations::EngineWork;
use crate::command::table::{Command, Commands, range_blocks};
use crate::controller::{Controller, Personality};
use crate::faults::injection;
use crate::personality::block::BlockDrive;

/// The result of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InputEnd {
    /// It is executed at this block.
    At(u64),
    /// It is executed as without rules.
    Unchanged,
    /// It ends with this status and value.
    Done(Status, u64),
}

/// The operations of the inputs of a command, and its status if they end it.
#[derive(Clone, Copy, Debug, Default)]
struct CommandDecision {
    time: Nanos,
    end: Option<Status>,
}

/// Returns the status of a command whose input completes with a status.
fn status_of(status: RuleStatus) -> Status {
    match status {
        RuleStatus::Ok => Status::SUCCESS,
        RuleStatus::NotFound => Status::RULE_NOT_FOUND.do_not_retry(),
        RuleStatus::Invalid => Status::RULE_INVALID.do_not_retry(),
        RuleStatus::Denied => Status::RULE_DENIED.do_not_retry(),
        RuleStatus::Busy => Status::RULE_BUSY,
        RuleStatus::Corrupt => Status::RULE_CORRUPT.do_not_retry(),
        RuleStatus::IndexOutOfRange => Status::RULE_INDEX.do_not_retry(),
        RuleStatus::TableFull => Status::RULE_TABLE_FULL.do_not_retry(),
        RuleStatus::HopLimit => Status::RULE_HOP_LIMIT.do_not_retry(),
        RuleStatus::OutputFull => Status::RULE_OUTPUT_FULL.do_not_retry(),
        RuleStatus::BadAddress => Status::RULE_BAD_ADDRESS.do_not_retry(),
    }
}

/// Starts a command of a drive with rules.
#[cold]
pub(crate) fn start(controller: &mut Controller, now: Nanos, id: u32) {
    let Personality::Block(drive) = &mut controller.personality else { return };
    let commands = &mut controller.commands;
    let Some(mut rules) = commands.rules.take() else { return };
    let decision = rules.decide_command(drive, commands, id);
    let time = if controller.zero_latency { Nanos::ZERO } else { decision.time };
    let work = decision.end.map_or(EngineWork::Start(id), |status| EngineWork::end(id, status));
    let is_timed = time > Nanos::ZERO || !rules.stations.is_empty() && controller.zero_latency;
    if is_timed {
        let times = rules.stations.enqueue(now, time, work);
        let (start, end) = (times.start, times.end);
        tracepoint::trace_at(now, || Event::CommandStage {
            id,
            stage: StageKind::Rules,
            start,
            end,
        });
    }
    commands.rules = Some(rules);
    match is_timed {
        true => injection::update_interrupt(controller),
        false => execute(controller, now, work),
    }
}

/// Executes what engines have decided by `now`.
#[cold]
pub(crate) fn leave_engines(controller: &mut Controller, now: Nanos) {
    while let Some((at, work)) =
        controller.commands.rules.as_mut().and_then(|rules| rules.stations.pop_due(now))
    {
        execute(controller, at, work);
    }
}

fn execute(controller: &mut Controller, now: Nanos, work: EngineWork) {
    let Personality::Block(drive) = &mut controller.personality else { return };
    match work {
        EngineWork::Start(id) => {
            let cache_enabled = controller.admin.cache_enabled();
            drive.start(now, id, &mut controller.commands, cache_enabled);
        }
        EngineWork::End(id, status) => {
            controller.commands.complete(id, Status::from_bits(status));
        }
        EngineWork::Victim => drive.kick = true,
    }
}

impl DriveRules {
    /// Decides about a command, and changes the blocks that it addresses as the rules say.
    fn decide_command(
        &mut self,
        drive: &BlockDrive,
        commands: &mut Commands,
        id: u32,
    ) -> CommandDecision {
        let is_idle = commands.outstanding() <= 1;
        let lines = drive.ftl.victim_lines();
        let facts = FtlFacts::new(&lines, is_idle);
        let mut inputs = CommandInputs {
            rules: self,
            facts: &facts,
            capacity: drive.capacity_blocks(),
            time: Nanos::ZERO,
        };
        let end = inputs.decide(commands.get_mut(id));
        let time = inputs.time;
        CommandDecision { time, end }
    }
}

/// The inputs of a command.
struct CommandInputs<'a, 'f> {
    rules: &'a mut DriveRules,
    facts: &'a FtlFacts<'f>,
    /// Blocks of the drive.
    capacity: u64,
    /// Time of the inputs so far.
    time: Nanos,
}

impl CommandInputs<'_, '_> {
    /// Decides about a command. Returns its status if it is not executed.
    fn decide(&mut self, command: &mut Command) -> Option<Status> {
        let blocks = range_blocks(command);
        let op = match command.io {
            IoCommand::Read { .. } | IoCommand::Compare { .. } | IoCommand::Verify { .. } => {
                InputOp::Read
            }
            IoCommand::WriteZeroes { deallocate: true, fua: false, .. } => InputOp::Trim,
            IoCommand::Write { .. }
            | IoCommand::WriteZeroes { .. }
            | IoCommand::WriteUncorrectable { .. } => InputOp::Write,
            IoCommand::Flush => {
                return self.end(command, InputOp::Flush, 0, 0).and_then(|end| match end {
                    InputEnd::Done(status, _) => Some(status),
                    _ => None,
                });
            }
            IoCommand::DatasetManagement { deallocate: true, .. } => return self.trims(command),
            IoCommand::Copy { slba, .. } => {
                if let Some(status) = self.sources(command) {
                    return Some(status);
                }
                return self.redirect(command, InputOp::Write, slba, blocks);
            }
            _ => return None,
        };
        let (slba, nlb) = addressed(&mut command.io)?;
        let (slba, nlb) = (*slba, nlb.into());
        self.redirect(command, op, slba, nlb)
    }

    /// Decides about the blocks that a command addresses, which then are those that a rule chose.
    fn redirect(
        &mut self,
        command: &mut Command,
        op: InputOp,
        slba: u64,
        blocks: u64,
    ) -> Option<Status> {
        match self.end(command, op, slba, blocks)? {
            InputEnd::At(lba) if lba != slba => {
                if let Some((slba, _)) = addressed(&mut command.io) {
                    command.first_sector =
                        command.first_sector.wrapping_add(lba.wrapping_sub(*slba));
                    *slba = lba;
                }
                None
            }
            InputEnd::At(_) | InputEnd::Unchanged => None,
            InputEnd::Done(status, _) => Some(status),
        }
    }

    /// Decides about each range of a trim: those remain that the drive trims.
    fn trims(&mut self, command: &mut Command) -> Option<Status> {
        let mut ranges = std::mem::take(&mut command.ranges);
        let mut failed = None;
        ranges.retain(|range| {
            if failed.is_some() {
                return false;
            }
            match self.end(command, InputOp::Trim, range.slba.get(), range.nlb.get().into()) {
                Some(InputEnd::Done(status, _)) => {
                    failed = (!status.is_success()).then_some(status);
                    false
                }
                _ => true,
            }
        });
        command.ranges = ranges;
        failed
    }

    /// Decides about each source range of a Copy.
    fn sources(&mut self, command: &mut Command) -> Option<Status> {
        for at in 0..command.ranges.len() {
            let DsmRange { slba, nlb, .. } = command.ranges[at];
            match self.end(command, InputOp::Read, slba.get(), nlb.get().into()) {
                Some(InputEnd::At(lba)) => command.ranges[at].slba = lba.into(),
                Some(InputEnd::Done(status, _)) => return Some(status),
                Some(InputEnd::Unchanged) | None => {}
            }
        }
        None
    }

    /// Runs an input; `None` if it is past the end of the drive, which the FTL refuses.
    fn end(
        &mut self,
        command: &mut Command,
        op: InputOp,
        lba: u64,
        blocks: u64,
    ) -> Option<InputEnd> {
        if lba.checked_add(blocks).is_none_or(|end| end > self.capacity) {
            return None;
        }
        let verdict = self.rules.decide(&RuleInput::new(op, lba, blocks), self.facts);
        self.time += self.rules.time_of_last();
        let end = match verdict {
            RuleVerdict::Place { stream: PlacementStream::Host, mapped: Some(lba), tag: 0 }
            | RuleVerdict::Read { address: RuleAddress::Mapped { lba }, tag: 0 } => {
                InputEnd::At(lba)
            }
            // Data that is not mapped could not be read again.
            RuleVerdict::Place { .. } | RuleVerdict::Read { .. } => {
                InputEnd::Done(status_of(RuleStatus::BadAddress), 0)
            }
            RuleVerdict::Complete { status, value } => InputEnd::Done(status_of(status), value),
            RuleVerdict::PassThrough => InputEnd::Unchanged,
            RuleVerdict::Miss => {
                self.rules.stats.misses += 1;
                InputEnd::Done(Status::RULE_MISS.do_not_retry(), 0)
            }
            RuleVerdict::Finished => unreachable!("only an input without a command is finished"),
        };
        if let InputEnd::Done(_, value) = end {
            command.result = value;
        }
        Some(end)
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
        | IoCommand::WriteUncorrectable { slba, nlb } => Some((slba, *nlb)),
        IoCommand::Copy { slba, .. } => Some((slba, 0)),
        _ => None,
    }
}
