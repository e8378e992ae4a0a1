//! [`AdminQueue`]: the admin queue, one command at a time; a request for an event beside it.
//!
//! Owns the buffer that commands read into. Guarantee: an answer is that of the command that was
//! asked, whoever looks first, and the buffer is not reused while a command that could still write to
//! it is unanswered: after a timeout, no further command is sent until its answer has come. Nothing is
//! sent to a controller that is gone, and nobody waits for its answer.

use std::sync::Arc;

use nvme::{AdminCommand, IDENTIFY_BYTES, Status};
use ring::{Iova, NotRegistered, PAGE_BYTES, Port, SharedRegion};

use crate::{DriverError, QueuePair, init};

/// Lets the drive make progress: polls it in virtual time, yields or sleeps in real time.
pub(crate) type ProgressFn<'a> = &'a mut dyn FnMut();

/// Bytes that one command can read: as many as two PRP entries name.
pub(crate) const RESPONSE_BYTES_MAX: usize = 2 * PAGE_BYTES;

/// Names a command whose answer is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AdminCommandId(u64);

/// A command that is unanswered.
#[derive(Clone, Copy, Debug)]
struct OutstandingCommand {
    command: &'static str,
    /// What it is about.
    queue: u16,
    /// Who waits for the answer, if anybody does.
    id: Option<AdminCommandId>,
}

/// The host's end of a port's admin queue.
#[derive(Debug)]
pub(crate) struct AdminQueue {
    pair: QueuePair,
    port: Arc<Port>,
    buffer: Arc<SharedRegion>,
    buffer_at: Iova,
    timeout_polls: u64,
    /// The command that is unanswered has timed out.
    unresponsive: bool,
    /// The controller was given up.
    removed: bool,
    outstanding: Option<OutstandingCommand>,
    /// Answers that somebody waits for and has not looked for yet: one per queue at most.
    responses: Vec<(AdminCommandId, Result<u64, DriverError>)>,
    last_id: u64,
    completed_count: u64,
    /// A request for an event that was answered: dword 0 and status.
    event: Option<(u64, Status)>,
}

/// What completions carry back: whose they are.
const COMMAND: u64 = 0;
const EVENT: u64 = 1;

impl AdminQueue {
    /// The admin queue of `port`, which must not have been used before.
    pub(crate) fn open(port: &Arc<Port>, timeout_polls: u64) -> Result<AdminQueue, DriverError> {
        let ((submission, depth), (completion, _)) =
            (port.admin_submission(), port.admin_completion());
        let (buffer, buffer_at) = port.memory().allocate_registered(RESPONSE_BYTES_MAX)?;
        Ok(AdminQueue {
            pair: QueuePair::open(port, 0, (submission, completion), depth, None)?,
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

    /// Begins anew after the controller has been stopped: it has forgotten what was asked, and
    /// touches the buffer no more. The rings are zeroed before it is started.
    pub(crate) fn reinit(&mut self, port: &Arc<Port>) -> Result<(), DriverError> {
        let (submission, completion) = (port.admin_submission().0, port.admin_completion().0);
        while self.pair.orphan_next(Status::ABORTED_SQ_DELETED).is_some() {}
        self.pair.reopen(port, (submission, completion))?;
        (self.outstanding, self.event) = (None, None);
        Ok(())
    }

    /// Whether commands are sent at all: not while the controller is being reset.
    pub(crate) fn set_suspended(&mut self, held: bool) {
        self.unresponsive = held;
    }

    /// Nothing is sent any more: the controller is given up.
    pub(crate) fn mark_removed(&mut self) {
        self.removed = true;
    }

    fn is_removed(&self) -> bool {
        self.removed || init::is_removed(&self.port)
    }

    /// Carries out a command that reads at most [`MAX_BYTES`] into the buffer, and returns the
    /// completion's result. `queue` is the queue that it is about, for messages.
    pub(crate) fn run(
        &mut self,
        command: AdminCommand,
        queue: u16,
        pump: ProgressFn<'_>,
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
                // Nobody looks for the answer any more; it still says that the buffer is free.
                if let Some(asked) = &mut self.outstanding {
                    asked.id = None;
                }
                return Err(match gone {
                    true => DriverError::Removed,
                    false => DriverError::Timeout { command: name, queue, polls },
                });
            }
            pump();
            polls += 1;
        }
    }

    /// Sends a command as for [`run`](AdminQueue::run), and does not wait: its answer is to be
    /// looked for.
    pub(crate) fn submit(
        &mut self,
        command: AdminCommand,
        queue: u16,
    ) -> Result<AdminCommandId, DriverError> {
        self.submit_into(command, queue, self.buffer_at)
    }

    /// As [`ask`](AdminQueue::submit), with the answer's bytes at `at`: registered pages of the
    /// caller's own.
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

    /// Asks to be told of the next [event](AdminQueue::pop_event), beside whatever else is asked. One
    /// request at a time.
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

    /// The answer to a request for an event, once it is there: dword 0 and status.
    pub(crate) fn pop_event(&mut self) -> Option<(u64, Status)> {
        self.reap();
        self.event.take()
    }

    /// Sends a command whose answer nobody looks for.
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
        if let Some(bytes) = response_bytes(&command) {
            // Admin commands carry PRP entries (NVMe section 4.3); buffers are page aligned.
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

    /// Whether a command is unanswered.
    pub(crate) fn is_busy(&mut self) -> bool {
        self.reap();
        self.outstanding.is_some()
    }

    /// How many commands the drive has answered.
    pub(crate) fn completed_count(&mut self) -> u64 {
        self.reap();
        self.completed_count
    }

    /// The answer to the command that was [asked](AdminQueue::submit), once it is there.
    pub(crate) fn pop_response(
        &mut self,
        ticket: AdminCommandId,
    ) -> Option<Result<u64, DriverError>> {
        self.reap();
        let place = self.responses.iter().position(|(whose, _)| *whose == ticket)?;
        Some(self.responses.swap_remove(place).1)
    }

    /// Takes in answers, and keeps them for who waits for them.
    fn reap(&mut self) {
        while let Some(completed) = self.pair.reap() {
            self.pair.release();
            if completed.user == EVENT {
                self.event = Some((completed.result, completed.status));
                continue;
            }
            // One command is outstanding, so this is the one that came back.
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

    /// Carries out Identify or Geometry and returns the 4096 bytes.
    pub(crate) fn identify(
        &mut self,
        command: AdminCommand,
        pump: ProgressFn<'_>,
    ) -> Result<[u8; IDENTIFY_BYTES], DriverError> {
        self.run(command, 0, pump)?;
        let mut bytes = [0; IDENTIFY_BYTES];
        self.buffer.read(0, &mut bytes);
        Ok(bytes)
    }

    /// Reads a log page from byte `offset` on, in as many commands as it takes. Offset and length
    /// are multiples of 4.
    pub(crate) fn log_page(
        &mut self,
        lid: u8,
        nsid: u32,
        offset: u64,
        into: &mut [u8],
        pump: ProgressFn<'_>,
    ) -> Result<(), DriverError> {
        let mut at = offset;
        for piece in into.chunks_mut(RESPONSE_BYTES_MAX) {
            let bytes = piece.len() as u64;
            let command = AdminCommand::GetLogPage { lid, nsid, bytes, offset: at, retain: false };
            self.run(command, 0, pump)?;
            self.buffer.read(0, piece);
            at += bytes;
        }
        Ok(())
    }
}

/// How many bytes a command reads into the buffer.
fn response_bytes(command: &AdminCommand) -> Option<u64> {
    match command {
        AdminCommand::Identify { .. } | AdminCommand::Geometry { .. } => {
            Some(IDENTIFY_BYTES as u64)
        }
        AdminCommand::GetLogPage { bytes, .. } | AdminCommand::GetLbaStatus { bytes, .. } => {
            Some(*bytes)
        }
        _ => None,
    }
}
