//! The steps of commands whose rules fetch sectors: the reads begin, the rules resume, and commands end
//! early.

use nvme::{IoCommand, Status};
use time::Nanos;

use super::commands::{InputEntry, enter_decided, execute};
use super::fetches::FetchStep;
use super::output;
use super::stations::EngineWork;
use crate::command::table::Command;
use crate::controller::{Controller, Personality};

/// Begins the reads of the sector that the rules of a command wait for.
pub(super) fn begin(controller: &mut Controller, now: Nanos, id: u32) {
    let Personality::Block(drive) = &mut controller.personality else { return };
    let Some((rules, command)) = controller.commands.rules_and_command(id) else { return };
    let capacity = drive.blocks_of(command.app);
    let reads = rules.fetches.begin(id, &command.io, capacity);
    drive.fetch(now, id, &reads, &mut controller.commands);
}

/// Resumes the rules whose sectors are read, and begins inputs that waited for a context.
pub(crate) fn resume_ready(controller: &mut Controller, now: Nanos) {
    loop {
        let Some(rules) = &mut controller.commands.rules else { return };
        let Some((id, step)) = rules.fetches.next_step() else {
            let Some(input) = rules.fetches.next_waiting() else { return };
            enter_decided(controller, now, input, InputEntry::Admitted);
            continue;
        };
        match step {
            // Another sector of the command has left the place for this one.
            None => begin(controller, now, id),
            Some(FetchStep::Resume(input)) => {
                enter_decided(controller, now, input, InputEntry::Resumed);
            }
            Some(FetchStep::Fail(lba, status)) => fail(controller, id, lba, status),
            Some(FetchStep::Restart(input)) => {
                enter_decided(controller, now, input, InputEntry::New);
            }
            Some(FetchStep::Execute(work)) => execute(controller, now, work),
        }
    }
}

/// Ends a command whose rules fetched a sector that cannot be read. The host learns of the sector.
#[cold]
fn fail(controller: &mut Controller, id: u32, lba: u64, status: Status) {
    let Some((rules, command)) = controller.commands.rules_and_command(id) else { return };
    if let IoCommand::Rule(rule) = command.io {
        output::set_reply(command, &rule, 0);
        command.io = IoCommand::Rule(nvme::RuleCommand { slba: lba, ..rule });
    }
    rules.fetches.end(id, EngineWork::end(id, status), &mut rules.engine);
}

/// Ends the commands that `is_ended` selects of those whose rules wait for a sector, once their reads
/// have ended, and of those that wait for a context. Returns their number.
pub(super) fn end_fetching(
    controller: &mut Controller,
    status: Status,
    is_ended: impl Fn(&Command) -> bool,
) -> u64 {
    let commands = &mut controller.commands;
    let Some(mut rules) = commands.rules.take() else { return 0 };
    let waiting = rules.fetches.take_waiting(|id| is_ended(commands.get(id)));
    waiting.iter().for_each(|input| commands.complete(input.id, status));
    let mut fetching = rules.fetches.needing_sectors();
    fetching.retain(|id| is_ended(commands.get(*id)));
    for id in &fetching {
        rules.fetches.end(*id, EngineWork::end(*id, status), &mut rules.engine);
    }
    commands.rules = Some(rules);
    if let Personality::Block(drive) = &mut controller.personality {
        drive.kick |= !fetching.is_empty();
    }
    (waiting.len() + fetching.len()) as u64
}
