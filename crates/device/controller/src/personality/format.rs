//! Format NVM of a drive that manages its own flash [NVMe1.4 §5.23].
//!
//! The drive trims all of its sectors and flushes the trims; then all of them read as zeros, also
//! after a power cut. A format with user data erase goes on: every line that had data is refreshed,
//! which moves nothing and erases its chunks. A power cut at any instant leaves sectors that are
//! formatted or not, because the steps are requests to the FTL. Invariants: no I/O command is in
//! flight while a format runs; every format ends once, and its command completes once.

use ftl::Completion;
use media::{ChunkId, ChunkState};
use nvme::Status;
use serde::{Deserialize, Serialize};
use time::Nanos;

use crate::command::table::Commands;
use crate::controller::{Controller, Personality};
use crate::personality::block::BlockDrive;
use crate::personality::sanitize::SanitizeState;

/// Tag of the requests of a format to the FTL. It is above the tags of commands.
pub(crate) const FORMAT_TAG: u64 = 1 << 62;

/// Times that the refresh of the remaining lines is requested without any progress.
const REQUESTS_MAX: u32 = 4;

/// The command that requested a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FormatCommand {
    /// Index of the host.
    pub(crate) port: usize,
    /// Index of its admin submission queue.
    pub(crate) queue: usize,
    pub(crate) cid: u16,
}

/// The step that a format is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FormatPhase {
    /// Commands that were fetched before are in flight.
    Waiting,
    Trimming,
    Flushing,
    Erasing,
    Done(Status),
}

/// A format in progress.
#[derive(Clone, Debug)]
pub(crate) struct FormatRun {
    /// Whether chunks are erased.
    erases: bool,
    /// The command; `None` if the format was injected, or its host is gone.
    command: Option<FormatCommand>,
    phase: FormatPhase,
    /// Chunks with data that have not been erased yet, and how often they had been erased before.
    chunks: Vec<(ChunkId, u32)>,
    /// Requests since the last progress.
    requests: u32,
}

/// The operations that clear the whole drive.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct DriveMaintenance {
    #[serde(skip)]
    pub(crate) format: Option<Box<FormatRun>>,
    pub(crate) sanitize: SanitizeState,
}

impl BlockDrive {
    /// Requests a format, which starts when no I/O command is in flight.
    pub(crate) fn request_format(&mut self, erases: bool, command: Option<FormatCommand>) {
        let (phase, chunks) = (FormatPhase::Waiting, Vec::new());
        self.maintenance.format =
            Some(Box::new(FormatRun { erases, command, phase, chunks, requests: 0 }));
    }

    /// Removes the command of a host that is detached, whose format goes on. Returns its queue.
    pub(crate) fn take_format_command(&mut self, port: usize) -> Option<usize> {
        let run = self.maintenance.format.as_mut()?;
        let command = run.command.take_if(|command| command.port == port)?;
        Some(command.queue)
    }

    /// Trims all sectors, if a format waits for that.
    fn start_format(&mut self) {
        let Some(run) =
            self.maintenance.format.as_mut().filter(|run| run.phase == FormatPhase::Waiting)
        else {
            return;
        };
        run.phase = FormatPhase::Trimming;
        let sectors = u32::try_from(self.ftl.sectors()).unwrap_or(u32::MAX);
        self.ftl.trim(FORMAT_TAG, 0, sectors);
        self.kick = true;
    }

    /// Processes the completion of a request of a format to the FTL.
    #[cold]
    pub(super) fn on_format_step(&mut self, now: Nanos, done: Completion, commands: &mut Commands) {
        let Some(run) = &mut self.maintenance.format else { return };
        self.kick = true;
        if !done.status.is_success() {
            run.phase = FormatPhase::Done(done.status);
            return;
        }
        match run.phase {
            FormatPhase::Trimming => {
                run.phase = FormatPhase::Flushing;
                self.flush_for_format(now, commands);
            }
            FormatPhase::Flushing if run.erases => self.start_erase(),
            FormatPhase::Flushing => run.phase = FormatPhase::Done(Status::SUCCESS),
            // A flush that makes erases possible.
            FormatPhase::Waiting | FormatPhase::Erasing | FormatPhase::Done(_) => {}
        }
    }

    fn flush_for_format(&mut self, now: Nanos, commands: &mut Commands) {
        let (ftl, mut flash) = self.split_ftl_and_flash(commands);
        ftl.flush(now, FORMAT_TAG, &mut flash);
    }

    /// Requests that all lines with data be erased.
    fn start_erase(&mut self) {
        let Some(run) = &mut self.maintenance.format else { return };
        let has_data = |state: ChunkState| !matches!(state, ChunkState::Free | ChunkState::Offline);
        let ftl = &mut self.ftl;
        for (chunk, info) in self.array.nand.chunks() {
            if has_data(info.state) && ftl.is_in_line(chunk) {
                run.chunks.push((chunk, info.wear));
                ftl.refresh(chunk);
            }
        }
        run.phase = FormatPhase::Erasing;
    }

    /// Continues the erases of a format. The FTL has done what it can now.
    #[cold]
    pub(super) fn step_format(&mut self, now: Nanos, commands: &mut Commands) {
        let Some(run) = &mut self.maintenance.format else { return };
        if run.phase != FormatPhase::Erasing {
            return;
        }
        let nand = &self.array.nand;
        let before = run.chunks.len();
        run.chunks.retain(|(chunk, wear)| {
            let info = nand.chunk_info(*chunk);
            info.is_some_and(|info| info.wear == *wear && info.state != ChunkState::Offline)
        });
        if run.chunks.len() < before {
            run.requests = 0;
        }
        if run.chunks.is_empty() {
            run.phase = FormatPhase::Done(Status::SUCCESS);
        } else if self.array.is_idle() && run.requests == REQUESTS_MAX {
            run.phase = FormatPhase::Done(Status::INTERNAL);
        } else if self.array.is_idle() {
            run.requests += 1;
            for (chunk, _) in &run.chunks {
                self.ftl.refresh(*chunk);
            }
            // A line is erased when the changes that superseded its data are durable.
            self.flush_for_format(now, commands);
            self.kick = true;
        }
    }

    /// Removes a format that has ended. Returns its command and its status.
    fn take_finished_format(&mut self) -> Option<(Option<FormatCommand>, Status)> {
        let run =
            self.maintenance.format.take_if(|run| matches!(run.phase, FormatPhase::Done(_)))?;
        let FormatPhase::Done(status) = run.phase else { return None };
        Some((run.command, status))
    }
}

fn block_drive(controller: &mut Controller) -> Option<&mut BlockDrive> {
    match &mut controller.personality {
        Personality::Block(drive) => Some(drive),
        _ => None,
    }
}

/// Requests a format of the drive. I/O commands that are fetched from now on are refused until it
/// ends; it starts when those that were fetched before have completed.
///
/// # Errors
/// [`Status::INVALID_OPCODE`] of a drive that does not manage its flash;
/// [`Status::FORMAT_IN_PROGRESS`] during another format; [`Status::SANITIZE_IN_PROGRESS`] and
/// [`Status::SANITIZE_FAILED`] during Sanitize, and after one that has failed.
pub(crate) fn request(
    controller: &mut Controller,
    erases: bool,
    command: Option<FormatCommand>,
) -> Result<(), Status> {
    let refused_with = controller.commands.refused_with;
    let Some(drive) = block_drive(controller) else { return Err(Status::INVALID_OPCODE) };
    if let Some(status) = refused_with {
        return Err(status);
    }
    drive.request_format(erases, command);
    controller.commands.refused_with = Some(Status::FORMAT_IN_PROGRESS);
    start_if_idle(controller);
    Ok(())
}

/// Starts the requested format if no I/O command is in flight.
#[cold]
pub(crate) fn start_if_idle(controller: &mut Controller) {
    if controller.commands.outstanding() == 0
        && let Some(drive) = block_drive(controller)
    {
        drive.start_format();
    }
}

/// Completes the command of a format that has ended.
#[cold]
pub(crate) fn complete_finished(controller: &mut Controller) {
    let finished = block_drive(controller).and_then(BlockDrive::take_finished_format);
    let Some((command, status)) = finished else { return };
    controller.commands.refused_with = None;
    controller.stats.formats += 1;
    complete(controller, command, status);
}

/// Ends a format because the drive loses power. The drive without power is replaced afterwards.
pub(crate) fn abort_at_power_cut(controller: &mut Controller) {
    let run = block_drive(controller).and_then(|drive| drive.maintenance.format.take());
    if let Some(run) = run {
        controller.commands.refused_with = None;
        complete(controller, run.command, Status::POWER_LOSS);
    }
}

fn complete(controller: &mut Controller, command: Option<FormatCommand>, status: Status) {
    let Some(FormatCommand { queue, cid, .. }) = command else { return };
    if !status.is_success() {
        controller.log_admin_error(queue, cid, status);
    }
    controller.queues.post(queue, cid, status, 0);
}
