//! Format NVM of a drive that manages its own flash [NVMe1.4 §5.23], and the creation and deletion of
//! its namespaces, which clear blocks in the same way.
//!
//! The drive trims the sectors of the namespaces and flushes the trims; then all of them read as
//! zeros, also after a power cut. A format with user data erase goes on: every line that had data is
//! refreshed, which moves the data of other namespaces and erases the chunks. A power cut at any
//! instant leaves sectors that are formatted or not, because the steps are requests to the FTL.
//! Invariants: no I/O command for a formatted or deleted namespace is in flight while its sectors
//! are trimmed; one run is in progress at a time; every run ends once, and its command completes
//! once.

use ftl::Completion;
use media::{ChunkId, ChunkState};
use nvme::Status;
use serde::{Deserialize, Serialize};
use time::Nanos;

use crate::admin::FailedCommand;
use crate::command::table::Commands;
use crate::controller::{Controller, Personality};
use crate::namespaces::request::NamespaceReplySender;
use crate::namespaces::table::{DriveNamespace, NamespaceExtent};
use crate::namespaces::{NamespaceTable, management};
use crate::persistence::nonvolatile::NonVolatile;
use crate::personality::block::BlockDrive;
use crate::personality::rules::durable;
use crate::personality::sanitize::{self, SanitizeState};
use crate::personality::spaces::ONLY_SPACE;

/// Tag of the requests of a run to the FTL. It is above the tags of commands, and its lower half, which
/// is the index of a command in their tags, is that of none.
pub(crate) const FORMAT_TAG: u64 = 1 << 62 | u32::MAX as u64;

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
    pub(crate) nsid: u32,
}

/// The party that is told of the end of a run.
#[derive(Clone, Debug)]
pub(crate) enum RunRequester {
    /// A host, by the completion of its command.
    Host(FormatCommand),
    /// An administrator without queues.
    Administrator(NamespaceReplySender),
}

/// The work of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FormatTask {
    /// A format.
    Format {
        /// The namespace; all attached ones for `None`.
        nsid: Option<u32>,
        /// Whether chunks are erased.
        erases: bool,
    },
    /// The creation of a namespace.
    Create { nsid: u32, blocks: u64, extents: Vec<NamespaceExtent> },
    /// The deletion of a namespace; of all for `None`.
    Delete { nsid: Option<u32> },
}

/// The step that a run is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FormatPhase {
    /// Commands that were fetched before are in flight.
    Waiting,
    /// Trims of this number of extents are in progress.
    Trimming(u32),
    Flushing,
    Erasing,
    Done(Status),
}

/// A run in progress.
#[derive(Clone, Debug)]
pub(crate) struct FormatRun {
    task: FormatTask,
    /// The requester; `None` if the format was injected, or its host is gone.
    requester: Option<RunRequester>,
    phase: FormatPhase,
    /// Attached namespaces that a deletion has removed.
    removed: Vec<u32>,
    /// Chunks with data that have not been erased yet, and how often they had been erased before.
    chunks: Vec<(ChunkId, u32)>,
    /// Requests since the last progress.
    requests: u32,
}

/// The operations that clear the whole drive or a namespace, and the memory in which they are recorded.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DriveMaintenance {
    pub(crate) settings: NonVolatile,
    #[serde(skip)]
    pub(crate) format: Option<Box<FormatRun>>,
    pub(crate) sanitize: SanitizeState,
}

impl FormatRun {
    /// Checks that the run does not prevent an I/O command for a namespace; a Flush of all of them
    /// for `None`.
    ///
    /// # Errors
    /// The status with which the command is to complete.
    pub(crate) fn admit(&self, nsid: Option<u32>) -> Result<(), Status> {
        match &self.task {
            FormatTask::Format { nsid: formatted, .. } => {
                match formatted.is_none() || *formatted == nsid {
                    true => Err(Status::FORMAT_IN_PROGRESS),
                    false => Ok(()),
                }
            }
            FormatTask::Create { .. } => Ok(()),
            // As if it were gone already.
            FormatTask::Delete { nsid: deleted } => match nsid {
                Some(nsid) if deleted.is_none_or(|deleted| deleted == nsid) => {
                    Err(Status::INVALID_FIELD)
                }
                _ => Ok(()),
            },
        }
    }

    /// Checks that the run does not change a namespace; any namespace for `None`.
    ///
    /// # Errors
    /// *Format in progress* during a format, *not ready* during another change.
    pub(crate) fn check_idle(&self, nsid: Option<u32>) -> Result<(), Status> {
        let overlaps =
            |changed: &Option<u32>| changed.is_none() || nsid.is_none() || *changed == nsid;
        match &self.task {
            FormatTask::Format { nsid, .. } if overlaps(nsid) => Err(Status::FORMAT_IN_PROGRESS),
            FormatTask::Delete { nsid } if overlaps(nsid) => Err(Status::NOT_READY),
            FormatTask::Create { nsid, .. } if overlaps(&Some(*nsid)) => Err(Status::NOT_READY),
            _ => Ok(()),
        }
    }

    /// Returns the namespace whose commands in flight must complete before the run starts, all of
    /// them for `Some(None)`; `None` if the run has started or waits for nothing.
    fn waits_for(&self) -> Option<Option<u32>> {
        match &self.task {
            _ if self.phase != FormatPhase::Waiting => None,
            FormatTask::Format { nsid, .. } | FormatTask::Delete { nsid } => Some(*nsid),
            FormatTask::Create { .. } => None,
        }
    }
}

impl BlockDrive {
    /// Starts a run that waited: removes deleted namespaces, and trims the sectors of the run. Returns
    /// whether a format has begun.
    fn start_format(&mut self) -> bool {
        let DriveMaintenance { settings, format, .. } = &mut self.maintenance;
        let Some(run) = format.as_mut().filter(|run| run.phase == FormatPhase::Waiting) else {
            return false;
        };
        let table = &mut self.namespaces;
        let extents_of = |table: &NamespaceTable, nsid: Option<u32>, has_detached: bool| {
            let namespaces = table.iter().filter(|n| match nsid {
                Some(nsid) => n.nsid == nsid,
                None => n.is_attached || has_detached,
            });
            namespaces.flat_map(|n| n.extents.iter().copied()).collect()
        };
        let extents: Vec<NamespaceExtent> = match &run.task {
            FormatTask::Format { nsid, .. } => extents_of(table, *nsid, false),
            FormatTask::Create { extents, .. } => extents.clone(),
            FormatTask::Delete { nsid } => {
                let extents = extents_of(table, *nsid, true);
                let is_removed = |n: &&DriveNamespace| nsid.is_none_or(|nsid| nsid == n.nsid);
                let removed = table.iter().filter(|n| n.is_attached).filter(is_removed);
                run.removed = removed.map(|n| n.nsid).collect();
                let changed = table.change(settings, |table| match nsid {
                    Some(nsid) => table.remove(*nsid),
                    None => table.remove_all(),
                });
                if let Err(status) = changed {
                    run.removed.clear();
                    run.phase = FormatPhase::Done(status);
                    self.kick = true;
                    return false;
                }
                extents
            }
        };
        let is_format = matches!(run.task, FormatTask::Format { .. });
        run.phase = match extents.len() {
            0 => FormatPhase::Done(Status::SUCCESS),
            count => FormatPhase::Trimming(count as u32),
        };
        for extent in extents {
            let sectors = u32::try_from(extent.units).unwrap_or(u32::MAX);
            self.spaces.first.trim(FORMAT_TAG, extent.first, sectors);
        }
        self.kick = true;
        is_format
    }

    /// Removes the command of a host that is detached, whose format goes on. Returns its queue.
    pub(crate) fn take_format_command(&mut self, port: usize) -> Option<usize> {
        let run = self.maintenance.format.as_mut()?;
        let requester = run.requester.take_if(|requester| match requester {
            RunRequester::Host(command) => command.port == port,
            RunRequester::Administrator(_) => false,
        });
        match requester? {
            RunRequester::Host(command) => Some(command.queue),
            RunRequester::Administrator(_) => None,
        }
    }

    /// Processes the completion of a request of a format to the FTL.
    #[cold]
    pub(super) fn on_format_step(&mut self, now: Nanos, done: Completion, commands: &mut Commands) {
        let Some(run) = &mut self.maintenance.format else { return };
        self.kick = true;
        if let FormatPhase::Trimming(left) = &mut run.phase
            && *left > 1
        {
            // A trim of sectors of the drive does not fail.
            *left -= 1;
            return;
        }
        if !done.status.is_success() {
            run.phase = FormatPhase::Done(done.status);
            return;
        }
        match run.phase {
            FormatPhase::Trimming(_) => {
                run.phase = FormatPhase::Flushing;
                self.flush_for_format(now, commands);
            }
            FormatPhase::Flushing => self.end_flush(),
            // A flush that makes erases possible.
            FormatPhase::Waiting | FormatPhase::Erasing | FormatPhase::Done(_) => {}
        }
    }

    /// Continues a run whose trims are durable.
    fn end_flush(&mut self) {
        let Some(run) = &mut self.maintenance.format else { return };
        let status = match &mut run.task {
            FormatTask::Format { erases: true, .. } => return self.start_erase(),
            FormatTask::Format { .. } | FormatTask::Delete { .. } => Status::SUCCESS,
            FormatTask::Create { nsid, blocks, extents } => {
                let (nsid, blocks, extents) = (*nsid, *blocks, std::mem::take(extents));
                let table = &mut self.namespaces;
                let add = |table: &mut NamespaceTable| table.add(nsid, blocks, extents);
                table.change(&mut self.maintenance.settings, add).err().unwrap_or(Status::SUCCESS)
            }
        };
        run.phase = FormatPhase::Done(status);
    }

    fn flush_for_format(&mut self, now: Nanos, commands: &mut Commands) {
        let (ftl, mut flash) = self.split_ftl_and_flash(ONLY_SPACE, commands);
        ftl.flush(now, FORMAT_TAG, &mut flash);
    }

    /// Requests that all lines with data be erased.
    fn start_erase(&mut self) {
        let Some(run) = &mut self.maintenance.format else { return };
        let has_data = |state: ChunkState| !matches!(state, ChunkState::Free | ChunkState::Offline);
        let ftl = &mut self.spaces.first;
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
                self.spaces.first.refresh(*chunk);
            }
            // A line is erased when the changes that superseded its data are durable.
            self.flush_for_format(now, commands);
            self.kick = true;
        }
    }

    /// Removes a run that has ended. Returns it and its status.
    fn take_finished_format(&mut self) -> Option<(Box<FormatRun>, Status)> {
        let run =
            self.maintenance.format.take_if(|run| matches!(run.phase, FormatPhase::Done(_)))?;
        let FormatPhase::Done(status) = run.phase else { return None };
        Some((run, status))
    }
}

fn block_drive(controller: &mut Controller) -> Option<&mut BlockDrive> {
    match &mut controller.personality {
        Personality::Block(drive) => Some(drive),
        _ => None,
    }
}

/// Requests a run. I/O commands for a formatted or deleted namespace that are fetched from now on are
/// refused until it ends; it starts when those that were fetched before have completed.
///
/// # Errors
/// [`Status::INVALID_OPCODE`] of a drive that does not manage its flash;
/// [`Status::OPERATION_DENIED`] while a host has newer blocks of the namespace;
/// [`Status::FORMAT_IN_PROGRESS`] during a format, [`Status::NOT_READY`] during another run;
/// [`Status::SANITIZE_IN_PROGRESS`] and [`Status::SANITIZE_FAILED`] during Sanitize, and after one
/// that has failed.
pub(crate) fn request(
    controller: &mut Controller,
    task: FormatTask,
    requester: Option<RunRequester>,
) -> Result<(), Status> {
    let refused_with = controller.commands.refused_with;
    let logged = controller.memory.logged_namespace;
    let Some(drive) = block_drive(controller) else { return Err(Status::INVALID_OPCODE) };
    if let FormatTask::Format { nsid, .. } | FormatTask::Delete { nsid } = task
        && logged.is_some_and(|logged| nsid.is_none_or(|nsid| nsid == logged))
    {
        return Err(Status::OPERATION_DENIED.do_not_retry());
    }
    if let Some(status) = refused_with {
        return Err(status);
    }
    if let Some(run) = &drive.maintenance.format {
        return Err(match run.task {
            FormatTask::Format { .. } => Status::FORMAT_IN_PROGRESS,
            _ => Status::NOT_READY,
        });
    }
    let (phase, chunks) = (FormatPhase::Waiting, Vec::new());
    let run = FormatRun { task, requester, phase, removed: Vec::new(), chunks, requests: 0 };
    drive.maintenance.format = Some(Box::new(run));
    controller.commands.is_formatting = true;
    management::update_checks(controller);
    start_if_idle(controller);
    Ok(())
}

/// Starts the requested run if no I/O command that it waits for is in flight.
#[cold]
pub(crate) fn start_if_idle(controller: &mut Controller) {
    let Personality::Block(drive) = &mut controller.personality else { return };
    let waits_for = drive.maintenance.format.as_ref().and_then(|run| run.waits_for());
    if waits_for.is_none_or(|nsid| !controller.commands.has_any(nsid)) && drive.start_format() {
        durable::clear_tables(controller);
    }
}

/// Starts a format, a change of namespaces or Sanitize, if it waited for commands that have completed.
#[cold]
pub(crate) fn start_waiting(controller: &mut Controller) {
    if controller.commands.is_formatting {
        start_if_idle(controller);
    }
    if controller.commands.refused_with.is_some() {
        sanitize::start_if_idle(controller);
    }
}

/// Completes the command of a run that has ended.
#[cold]
pub(crate) fn complete_finished(controller: &mut Controller) {
    let finished = block_drive(controller).and_then(BlockDrive::take_finished_format);
    let Some((run, status)) = finished else { return };
    controller.commands.is_formatting = false;
    let mut result = 0_u32;
    match run.task {
        FormatTask::Format { .. } => controller.stats.formats += 1,
        FormatTask::Create { nsid, .. } if status.is_success() => {
            tracing::info!(nsid, "namespace created");
            result = nsid;
        }
        FormatTask::Delete { nsid } => tracing::info!(?nsid, "namespace deleted"),
        FormatTask::Create { .. } => {}
    }
    management::update_checks(controller);
    for nsid in run.removed {
        controller.namespace_changed(nsid);
    }
    complete(controller, run.requester, status, result);
}

/// Ends a run because the drive loses power. The drive without power is replaced afterwards.
pub(crate) fn abort_at_power_cut(controller: &mut Controller) {
    let run = block_drive(controller).and_then(|drive| drive.maintenance.format.take());
    if let Some(run) = run {
        complete(controller, run.requester, Status::POWER_LOSS, 0);
    }
}

fn complete(
    controller: &mut Controller,
    requester: Option<RunRequester>,
    status: Status,
    result: u32,
) {
    let FormatCommand { queue, cid, nsid, .. } = match requester {
        None => return,
        Some(RunRequester::Administrator(reply)) => {
            return reply.send(if status.is_success() { Ok(result) } else { Err(status) });
        }
        Some(RunRequester::Host(command)) => command,
    };
    if !status.is_success() {
        controller.log_admin_error(queue, FailedCommand::admin(cid, nsid), status);
    }
    let result = if status.is_success() { result.into() } else { 0 };
    controller.queues.post(queue, cid, status, result);
}
