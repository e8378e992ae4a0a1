//! [`AdminQueue`]: the admin queue, one command at a time; a request for an event beside it.
//!
//! Owns the buffer that commands read into. Guarantee: an answer is that of the command that was
//! asked, whoever looks first, and the buffer is not reused while a command that could still write to
//! it is unanswered: after a timeout, no further command is sent until its answer has come. Nothing is
//! sent to a controller that is gone, and nobody waits for its answer.

use std::sync::Arc;

use nvme::{AdminCommand, IDENTIFY_BYTES, Status};
use ring::{Iova, PAGE, Port, Region, Unregistered};

use crate::{DriverError, QueuePair, bring_up};

/// Lets the drive make progress: polls it in virtual time, yields or sleeps in real time.
pub(crate) type Pump<'a> = &'a mut dyn FnMut();

/// Bytes that one command can read: as many as two PRP entries name.
pub(crate) const MAX_BYTES: usize = 2 * PAGE;

/// Names a command whose answer is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

/// A command that is unanswered.
#[derive(Clone, Copy, Debug)]
struct Asked {
    command: &'static str,
    /// What it is about.
    queue: u16,
    /// Who waits for the answer, if anybody does.
    ticket: Option<Ticket>,
}

/// The host's end of a port's admin queue.
#[derive(Debug)]
pub(crate) struct AdminQueue {
    pair: QueuePair,
    port: Arc<Port>,
    buffer: Arc<Region>,
    buffer_at: Iova,
    timeout_polls: u64,
    /// The command that is unanswered has timed out.
    unresponsive: bool,
    /// The controller was given up.
    gone: bool,
    asked: Option<Asked>,
    /// Answers that somebody waits for and has not looked for yet: one per queue at most.
    kept: Vec<(Ticket, Result<u64, DriverError>)>,
    tickets: u64,
    answered: u64,
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
        let (buffer, buffer_at) = port.memory().provide(MAX_BYTES)?;
        Ok(AdminQueue {
            pair: QueuePair::open(port, 0, (submission, completion), depth, None)?,
            port: port.clone(),
            buffer,
            buffer_at,
            timeout_polls,
            unresponsive: false,
            gone: false,
            asked: None,
            kept: Vec::new(),
            tickets: 0,
            answered: 0,
            event: None,
        })
    }

    /// Begins anew after the controller has been stopped: it has forgotten what was asked, and
    /// touches the buffer no more. The rings are zeroed before it is started.
    pub(crate) fn renew(&mut self, port: &Arc<Port>) -> Result<(), DriverError> {
        let (submission, completion) = (port.admin_submission().0, port.admin_completion().0);
        while self.pair.abandon(Status::ABORTED_SQ_DELETED).is_some() {}
        self.pair.reopen(port, (submission, completion))?;
        (self.asked, self.event) = (None, None);
        Ok(())
    }

    /// Whether commands are sent at all: not while the controller is being reset.
    pub(crate) fn hold(&mut self, held: bool) {
        self.unresponsive = held;
    }

    /// Nothing is sent any more: the controller is given up.
    pub(crate) fn end(&mut self) {
        self.gone = true;
    }

    fn is_gone(&self) -> bool {
        self.gone || bring_up::is_gone(&self.port)
    }

    /// Carries out a command that reads at most [`MAX_BYTES`] into the buffer, and returns the
    /// completion's result. `queue` is the queue that it is about, for messages.
    pub(crate) fn run(
        &mut self,
        command: AdminCommand,
        queue: u16,
        pump: Pump<'_>,
    ) -> Result<u64, DriverError> {
        let name = command.name();
        let ticket = self.ask(command, queue)?;
        let mut polls = 0;
        loop {
            if let Some(answer) = self.answer(ticket) {
                return answer;
            }
            let gone = self.is_gone();
            if gone || polls == self.timeout_polls {
                self.unresponsive = true;
                // Nobody looks for the answer any more; it still says that the buffer is free.
                if let Some(asked) = &mut self.asked {
                    asked.ticket = None;
                }
                return Err(match gone {
                    true => DriverError::Gone,
                    false => DriverError::Timeout { command: name, queue, polls },
                });
            }
            pump();
            polls += 1;
        }
    }

    /// Sends a command as for [`run`](AdminQueue::run), and does not wait: its answer is to be
    /// looked for.
    pub(crate) fn ask(&mut self, command: AdminCommand, queue: u16) -> Result<Ticket, DriverError> {
        self.ask_into(command, queue, self.buffer_at)
    }

    /// As [`ask`](AdminQueue::ask), with the answer's bytes at `at`: registered pages of the
    /// caller's own.
    pub(crate) fn ask_into(
        &mut self,
        command: AdminCommand,
        queue: u16,
        at: Iova,
    ) -> Result<Ticket, DriverError> {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.send(command, queue, Some(ticket), at)?;
        Ok(ticket)
    }

    /// Asks to be told of the next [event](AdminQueue::event), beside whatever else is asked. One
    /// request at a time.
    pub(crate) fn listen(&mut self) -> Result<(), DriverError> {
        let command = AdminCommand::AsyncEventRequest;
        let name = command.name();
        self.look();
        if self.is_gone() {
            return Err(DriverError::Gone);
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
    pub(crate) fn event(&mut self) -> Option<(u64, Status)> {
        self.look();
        self.event.take()
    }

    /// Sends a command whose answer nobody looks for.
    pub(crate) fn tell(&mut self, command: AdminCommand, queue: u16) -> Result<(), DriverError> {
        self.send(command, queue, None, self.buffer_at)
    }

    fn send(
        &mut self,
        command: AdminCommand,
        queue: u16,
        ticket: Option<Ticket>,
        at: Iova,
    ) -> Result<(), DriverError> {
        let name = command.name();
        if self.is_gone() {
            return Err(DriverError::Gone);
        }
        if self.is_busy() {
            return Err(match self.unresponsive {
                true => DriverError::Unresponsive { command: name },
                false => DriverError::AdminQueueFull { command: name },
            });
        }
        let mut sqe = command.to_sqe();
        if let Some(bytes) = bytes_read(&command) {
            // Admin commands carry PRP entries (NVMe section 4.3); buffers are page aligned.
            let wire =
                |at| self.port.memory().wire(at).ok_or(Unregistered { iova: at, len: bytes });
            let second = if bytes > PAGE as u64 { wire(at.offset(PAGE as u64))? } else { 0 };
            sqe.set_prp(wire(at)?, second);
        }
        if self.pair.submit(sqe, COMMAND).is_err() {
            return Err(DriverError::AdminQueueFull { command: name });
        }
        self.pair.ring();
        self.asked = Some(Asked { command: name, queue, ticket });
        Ok(())
    }

    /// Whether a command is unanswered.
    pub(crate) fn is_busy(&mut self) -> bool {
        self.look();
        self.asked.is_some()
    }

    /// How many commands the drive has answered.
    pub(crate) fn answered(&mut self) -> u64 {
        self.look();
        self.answered
    }

    /// The answer to the command that was [asked](AdminQueue::ask), once it is there.
    pub(crate) fn answer(&mut self, ticket: Ticket) -> Option<Result<u64, DriverError>> {
        self.look();
        let place = self.kept.iter().position(|(whose, _)| *whose == ticket)?;
        Some(self.kept.swap_remove(place).1)
    }

    /// Takes in answers, and keeps them for who waits for them.
    fn look(&mut self) {
        while let Some(completed) = self.pair.reap() {
            self.pair.release();
            if completed.user == EVENT {
                self.event = Some((completed.result, completed.status));
                continue;
            }
            // One command is outstanding, so this is the one that came back.
            let Some(Asked { command, queue, ticket }) = self.asked.take() else { continue };
            self.answered += 1;
            self.unresponsive = false;
            let Some(ticket) = ticket else { continue };
            let answer = if completed.status.is_success() {
                Ok(completed.result)
            } else {
                Err(DriverError::Command { command, queue, status: completed.status })
            };
            self.kept.push((ticket, answer));
        }
    }

    /// Carries out Identify or Geometry and returns the 4096 bytes.
    pub(crate) fn describe(
        &mut self,
        command: AdminCommand,
        pump: Pump<'_>,
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
        pump: Pump<'_>,
    ) -> Result<(), DriverError> {
        let mut at = offset;
        for piece in into.chunks_mut(MAX_BYTES) {
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
fn bytes_read(command: &AdminCommand) -> Option<u64> {
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
