//! [`AdminQueue`]: the admin queue, with one command and one Asynchronous Event Request outstanding
//! at a time.
//!
//! The queue owns the buffer into which commands read.
//!
//! Guarantees: a response belongs to the command that was sent, whichever caller reaps it. The
//! buffer is not reused while a command that could write to it is outstanding. After a timeout no
//! further command is sent until the late answer arrives. Nothing is sent to a removed controller,
//! and no caller waits for it.

use std::sync::Arc;

use mem::{Iova, NotRegistered, PAGE_BYTES, SharedRegion};
use nvme::{AdminCommand, IDENTIFY_BYTES, NamespaceChange, RuleTableEntry, Status};
use transport::Port;

use crate::{DriverError, QueuePair, RingAddresses, controller::init};

/// A function called while waiting, so that the drive makes progress: it polls the drive in virtual
/// time, and yields or sleeps in real time.
pub(crate) type ProgressFn<'a> = &'a mut dyn FnMut();

/// Maximum number of bytes that one command reads: those of two PRP entries.
pub(crate) const RESPONSE_BYTES_MAX: usize = 2 * PAGE_BYTES;

/// The id of a command whose response the caller waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AdminCommandId(u64);

/// An outstanding command.
#[derive(Clone, Copy, Debug)]
struct OutstandingCommand {
    command: &'static str,
    /// The queue that the command is about.
    queue: u16,
    /// The id under which a caller waits for the response, if any.
    id: Option<AdminCommandId>,
}

/// The host side of a port's admin queue.
#[derive(Debug)]
pub(crate) struct AdminQueue {
    pair: QueuePair,
    port: Arc<Port>,
    buffer: Arc<SharedRegion>,
    buffer_at: Iova,
    timeout_polls: u64,
    /// Whether the outstanding command has timed out.
    unresponsive: bool,
    /// Whether the controller has been removed.
    removed: bool,
    outstanding: Option<OutstandingCommand>,
    /// Responses that their callers have not taken yet: at most one per queue.
    responses: Vec<(AdminCommandId, Result<u64, DriverError>)>,
    last_id: u64,
    completed_count: u64,
    /// A completed Asynchronous Event Request: dword 0 and status.
    event: Option<(u64, Status)>,
}

/// Values of `user` in the completions, which tell the kinds of command apart.
const COMMAND: u64 = 0;
const EVENT: u64 = 1;

impl AdminQueue {
    /// Opens the admin queue of `port`, which must not have been used before.
    pub(crate) fn open(port: &Arc<Port>, timeout_polls: u64) -> Result<AdminQueue, DriverError> {
        let ((submission, depth), (completion, _)) =
            (port.admin_submission(), port.admin_completion());
        let (buffer, buffer_at) = port.memory().allocate_registered(RESPONSE_BYTES_MAX)?;
        Ok(AdminQueue {
            pair: QueuePair::open(port, 0, RingAddresses { submission, completion }, depth, None)?,
            port: port.clone(),
            buffer,
            buffer_at,
            timeout_polls,
            unresponsive: false,
            removed: false,
            outstanding: None,
            responses: Vec::new(),
            last_id: 0,
            completed_count: 0,
            event: None,
        })
    }

    /// Restarts the queue after the controller has been disabled. The controller has forgotten all
    /// commands and does not access the buffer any more. The rings are cleared before it is
    /// enabled.
    pub(crate) fn reinit(&mut self, port: &Arc<Port>) -> Result<(), DriverError> {
        let (submission, completion) = (port.admin_submission().0, port.admin_completion().0);
        while self.pair.orphan_next(Status::ABORTED_SQ_DELETED).is_some() {}
        self.pair.reopen(port, RingAddresses { submission, completion })?;
        (self.outstanding, self.event) = (None, None);
        Ok(())
    }

    /// Suspends or resumes sending: no command is sent during a controller reset.
    pub(crate) fn set_suspended(&mut self, held: bool) {
        self.unresponsive = held;
    }

    /// Stops sending for good, because the controller has been removed.
    pub(crate) fn mark_removed(&mut self) {
        self.removed = true;
    }

    fn is_removed(&self) -> bool {
        self.removed || init::is_removed(&self.port)
    }

    /// Executes a command that reads at most [`RESPONSE_BYTES_MAX`] into the buffer, and returns
    /// the completion's result. `queue` is the queue that the command is about, for messages.
    pub(crate) fn run(
        &mut self,
        command: AdminCommand,
        queue: u16,
        progress: ProgressFn<'_>,
    ) -> Result<u64, DriverError> {
        let name = command.name();
        let ticket = self.submit(command, queue)?;
        let mut polls = 0;
        loop {
            if let Some(answer) = self.pop_response(ticket) {
                return answer;
            }
            let gone = self.is_removed();
            if gone || polls == self.timeout_polls {
                self.unresponsive = true;
                // No caller waits for the response any more; it still marks the buffer as free.
                if let Some(asked) = &mut self.outstanding {
                    asked.id = None;
                }
                return Err(match gone {
                    true => DriverError::Removed,
                    false => DriverError::Timeout { command: name, queue, polls },
                });
            }
            progress();
            polls += 1;
        }
    }

    /// Executes a command with a page of data for the drive, and returns the completion's result.
    pub(crate) fn run_with_data(
        &mut self,
        command: AdminCommand,
        data: &[u8; PAGE_BYTES],
        progress: ProgressFn<'_>,
    ) -> Result<u64, DriverError> {
        if self.is_busy() {
            // The buffer belongs to the command that is outstanding.
            return Err(DriverError::AdminQueueFull { command: command.name() });
        }
        self.buffer.write(0, data);
        self.run(command, 0, progress)
    }

    /// Returns the number of polls after which a command counts as unanswered.
    pub(crate) fn timeout_polls(&self) -> u64 {
        self.timeout_polls
    }

    /// Sends a command as [`run`](AdminQueue::run) does, without waiting. The caller polls for the
    /// response.
    pub(crate) fn submit(
        &mut self,
        command: AdminCommand,
        queue: u16,
    ) -> Result<AdminCommandId, DriverError> {
        self.submit_into(command, queue, self.buffer_at)
    }

    /// Sends a command as [`submit`](AdminQueue::submit) does, with the data at `at`: registered
    /// pages of the caller.
    pub(crate) fn submit_into(
        &mut self,
        command: AdminCommand,
        queue: u16,
        at: Iova,
    ) -> Result<AdminCommandId, DriverError> {
        self.last_id += 1;
        let ticket = AdminCommandId(self.last_id);
        self.send(command, queue, Some(ticket), at)?;
        Ok(ticket)
    }

    /// Requests the next [event](AdminQueue::pop_event), in addition to other commands. Only one
    /// request may be outstanding.
    pub(crate) fn request_event(&mut self) -> Result<(), DriverError> {
        let command = AdminCommand::AsyncEventRequest;
        let name = command.name();
        self.reap();
        if self.is_removed() {
            return Err(DriverError::Removed);
        }
        if self.unresponsive {
            return Err(DriverError::Unresponsive { command: name });
        }
        let submitted = self.pair.submit(command.to_sqe(), EVENT);
        submitted.map_err(|_| DriverError::AdminQueueFull { command: name })?;
        self.pair.ring();
        Ok(())
    }

    /// Removes and returns the completion of an Asynchronous Event Request: dword 0 and status.
    pub(crate) fn pop_event(&mut self) -> Option<(u64, Status)> {
        self.reap();
        self.event.take()
    }

    /// Sends a command whose response is dropped.
    pub(crate) fn submit_detached(
        &mut self,
        command: AdminCommand,
        queue: u16,
    ) -> Result<(), DriverError> {
        self.send(command, queue, None, self.buffer_at)
    }

    fn send(
        &mut self,
        command: AdminCommand,
        queue: u16,
        ticket: Option<AdminCommandId>,
        at: Iova,
    ) -> Result<(), DriverError> {
        let name = command.name();
        if self.is_removed() {
            return Err(DriverError::Removed);
        }
        if self.is_busy() {
            return Err(match self.unresponsive {
                true => DriverError::Unresponsive { command: name },
                false => DriverError::AdminQueueFull { command: name },
            });
        }
        let mut sqe = command.to_sqe();
        if let Some(bytes) = data_bytes(&command) {
            // Admin commands use PRP entries ([NVMe1.4 §4.3]); buffers are page aligned.
            let wire = |at| {
                self.port.memory().bus_address(at).ok_or(NotRegistered { iova: at, len: bytes })
            };
            let second =
                if bytes > PAGE_BYTES as u64 { wire(at.offset(PAGE_BYTES as u64))? } else { 0 };
            sqe.set_prp(wire(at)?, second);
        }
        if self.pair.submit(sqe, COMMAND).is_err() {
            return Err(DriverError::AdminQueueFull { command: name });
        }
        self.pair.ring();
        self.outstanding = Some(OutstandingCommand { command: name, queue, id: ticket });
        Ok(())
    }

    /// Returns whether a command is outstanding.
    pub(crate) fn is_busy(&mut self) -> bool {
        self.reap();
        self.outstanding.is_some()
    }

    /// Returns the number of commands that the drive has completed.
    pub(crate) fn completed_count(&mut self) -> u64 {
        self.reap();
        self.completed_count
    }

    /// Removes and returns the response to a [submitted](AdminQueue::submit) command, if it has
    /// arrived.
    pub(crate) fn pop_response(
        &mut self,
        ticket: AdminCommandId,
    ) -> Option<Result<u64, DriverError>> {
        self.reap();
        let place = self.responses.iter().position(|(whose, _)| *whose == ticket)?;
        Some(self.responses.swap_remove(place).1)
    }

    /// Reaps completions and stores the responses for their callers.
    fn reap(&mut self) {
        while let Some(completed) = self.pair.reap() {
            self.pair.release();
            if completed.user == EVENT {
                self.event = Some((completed.result, completed.status));
                continue;
            }
            // Only one command is outstanding, so this is its completion.
            let Some(OutstandingCommand { command, queue, id: ticket }) = self.outstanding.take()
            else {
                continue;
            };
            self.completed_count += 1;
            self.unresponsive = false;
            let Some(ticket) = ticket else { continue };
            let answer = if completed.status.is_success() {
                Ok(completed.result)
            } else {
                Err(DriverError::Command { command, queue, status: completed.status })
            };
            self.responses.push((ticket, answer));
        }
    }

    /// Executes Identify or Geometry and returns the 4096 bytes.
    pub(crate) fn identify(
        &mut self,
        command: AdminCommand,
        progress: ProgressFn<'_>,
    ) -> Result<[u8; IDENTIFY_BYTES], DriverError> {
        self.run(command, 0, progress)?;
        let mut bytes = [0; IDENTIFY_BYTES];
        self.buffer.read(0, &mut bytes);
        Ok(bytes)
    }

    /// Executes a command that reads `into.len()` bytes, at most [`RESPONSE_BYTES_MAX`].
    pub(crate) fn read(
        &mut self,
        command: AdminCommand,
        into: &mut [u8],
        progress: ProgressFn<'_>,
    ) -> Result<(), DriverError> {
        self.run(command, 0, progress)?;
        self.buffer.read(0, into);
        Ok(())
    }

    /// Reads a log page from byte `offset` on, with as many commands as needed. Offset and length
    /// are multiples of 4.
    pub(crate) fn log_page(
        &mut self,
        lid: u8,
        nsid: u32,
        offset: u64,
        into: &mut [u8],
        progress: ProgressFn<'_>,
    ) -> Result<(), DriverError> {
        let mut at = offset;
        for piece in into.chunks_mut(RESPONSE_BYTES_MAX) {
            let bytes = piece.len() as u64;
            let command = AdminCommand::GetLogPage { lid, nsid, bytes, offset: at, retain: false };
            self.run(command, 0, progress)?;
            self.buffer.read(0, piece);
            at += bytes;
        }
        Ok(())
    }
}

/// Returns the number of bytes that a command reads into the buffer, or that the drive reads.
fn data_bytes(command: &AdminCommand) -> Option<u64> {
    match command {
        AdminCommand::Identify { .. } | AdminCommand::Geometry { .. } => {
            Some(IDENTIFY_BYTES as u64)
        }
        AdminCommand::GetLogPage { bytes, .. } | AdminCommand::GetLbaStatus { bytes, .. } => {
            Some(*bytes)
        }
        AdminCommand::NamespaceManagement { change: NamespaceChange::Create, .. }
        | AdminCommand::NamespaceAttachment { .. } => Some(PAGE_BYTES as u64),
        AdminCommand::RuleTableEdit { entries, .. } => {
            Some(u64::from(*entries) * RuleTableEntry::BYTES as u64)
        }
        AdminCommand::RuleTableRead { entries, .. } => Some(u64::from(*entries) * 8),
        _ => None,
    }
}
