//! Power cuts of a running drive.
//!
//! The hosts stay attached: their queues outlive the cut, as if their drivers had created them again
//! at once. The drive powers up without delay, and its recovery takes no time. Features that hosts
//! have set are kept. Settings of the FTL return to those of the configuration.

use nvme::Status;
use time::Nanos;

use crate::controller::{Controller, Personality};
use crate::error::DriveError;
use crate::faults::injection;
use crate::namespaces::management;
use crate::persistence::power::KeptMemory;
use crate::personality::null::NullDrive;
use crate::personality::rules::durable;
use crate::personality::{format, sanitize};
use crate::{DriveConfig, WriteBuffer};

/// Cuts the power and powers the drive up: everything that is not on the media or protected by
/// capacitors is lost. Commands in flight end with [`Status::POWER_LOSS`]; returns their number.
///
/// If recovery fails, because too much flash is gone, the drive stays unavailable: commands end
/// with [`Status::NOT_READY`] and the *do not retry* bit.
pub(super) fn power_cycle(controller: &mut Controller, now: Nanos) -> u64 {
    if let Personality::Block(drive) = &mut controller.personality
        && matches!(controller.config.write_buffer, WriteBuffer::PowerLossProtected { .. })
    {
        drive.drain(now, &mut controller.commands);
    }
    format::abort_at_power_cut(controller);
    controller.stages.clear();
    if let Some(rules) = &mut controller.commands.rules {
        rules.power_cut();
        // Nothing is in an engine or parked any more.
        injection::update_interrupt(controller);
    }
    let aborted = controller.commands.take_in_flight();
    let lba_bytes = controller.config.lba_bytes();
    let report = match &controller.personality {
        Personality::Block(drive) => sanitize::report_of(drive),
        _ => None,
    };
    let unavailable = Personality::Null(Box::new(NullDrive::unavailable(lba_bytes)));
    let off = std::mem::replace(&mut controller.personality, unavailable);
    if let Some(pmr) = &mut controller.memory.pmr {
        pmr.cut_power();
    }
    match power_up(off, &controller.config) {
        Ok(personality) => controller.personality = personality,
        Err(error) => {
            tracing::error!("the drive does not recover from a power cut: {error}");
            controller.report_internal_error();
        }
    }
    durable::restore(controller);
    management::update_checks(controller);
    if let (Personality::Block(drive), Some(report)) = (&mut controller.personality, report) {
        sanitize::set_report(drive, report);
    }
    sanitize::restore(controller);
    for id in &aborted {
        let command = controller.commands.get_mut(*id);
        (command.status, command.due) = (Status::POWER_LOSS, now);
        controller.complete(*id);
    }
    aborted.len() as u64
}

/// Powers a drive up after a cut at the present instant.
fn power_up(off: Personality, config: &DriveConfig) -> Result<Personality, DriveError> {
    let kind = config.personality;
    match off {
        Personality::Block(mut drive) => {
            drive.array.power_cut();
            let (ftl, scrub) = (drive.spaces.stats(), drive.media_event_handler.stats);
            let (partial, commands) = (drive.changes.stats, drive.command_stats);
            let errors = drive.protection.as_ref().map(|protection| protection.errors);
            let drive = *drive;
            let kept =
                KeptMemory { settings: Some(drive.maintenance.settings), ..KeptMemory::default() };
            let mut next = Controller::nand_personality(drive.array, kind, config, kept)?;
            if let Personality::Block(drive) = &mut next {
                drive.spaces.first.add_stats(&ftl);
                drive.media_event_handler.stats = scrub;
                drive.changes.stats = partial;
                drive.command_stats = commands;
                if let (Some(protection), Some(errors)) = (&mut drive.protection, errors) {
                    protection.errors = errors;
                }
            }
            Ok(next)
        }
        Personality::OpenChannel(mut drive) => {
            drive.power_cut();
            let drive = *drive;
            let kept = KeptMemory { device_l2p: drive.device_l2p, ..KeptMemory::default() };
            Controller::nand_personality(drive.array, kind, config, kept)
        }
        Personality::Pcm(mut drive) => {
            drive.power_cut();
            Ok(Personality::Pcm(drive))
        }
        Personality::Null(mut drive) => {
            drive.power_cut();
            Ok(Personality::Null(drive))
        }
    }
}
