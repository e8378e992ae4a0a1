//! [`AdminQueue`]: the admin queue, one command at a time.
//!
//! Owns the buffer that commands read into. Guarantee: an answer is that of the command that was
//! asked, and the buffer is not reused while a command that could still write to it is unanswered:
//! after a timeout, no further command is sent.

use std::sync::Arc;

use nvme::{AdminCommand, IDENTIFY_BYTES};
use ring::{Iova, PAGE, Port, Region};

use crate::{DriverError, QueuePair};

/// Lets the drive make progress: polls it in virtual time, yields or sleeps in real time.
pub(crate) type Pump<'a> = &'a mut dyn FnMut();

/// Bytes that one command can read: as many as two PRP entries name.
pub(crate) const MAX_BYTES: usize = 2 * PAGE;

/// The host's end of a port's admin queue.
#[derive(Debug)]
pub(crate) struct AdminQueue {
    pair: QueuePair,
    buffer: Arc<Region>,
    buffer_at: Iova,
    timeout_polls: u64,
    unresponsive: bool,
    /// The command that is unanswered, and the queue it is about.
    asked: Option<(&'static str, u16)>,
}

impl AdminQueue {
    /// The admin queue of `port`, which must not have been used before.
    pub(crate) fn open(port: &Arc<Port>, timeout_polls: u64) -> Result<AdminQueue, DriverError> {
        let ((submission, depth), (completion, _)) =
            (port.admin_submission(), port.admin_completion());
        let buffer = Region::anonymous(MAX_BYTES).map_err(DriverError::Memory)?;
        let buffer_at = port.memory().register(&buffer)?;
        Ok(AdminQueue {
            pair: QueuePair::open(port, 0, (submission, completion), depth, None)?,
            buffer,
            buffer_at,
            timeout_polls,
            unresponsive: false,
            asked: None,
        })
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
        self.ask(command, queue)?;
        let mut polls = 0;
        loop {
            if let Some(answer) = self.answer() {
                return answer;
            }
            if polls == self.timeout_polls {
                self.unresponsive = true;
                return Err(DriverError::Timeout { command: name, queue, polls });
            }
            pump();
            polls += 1;
        }
    }

    /// Sends a command as for [`run`](AdminQueue::run), and does not wait.
    pub(crate) fn ask(&mut self, command: AdminCommand, queue: u16) -> Result<(), DriverError> {
        let name = command.name();
        if self.unresponsive {
            return Err(DriverError::Unresponsive { command: name });
        }
        if self.asked.is_some() {
            return Err(DriverError::AdminQueueFull { command: name });
        }
        let mut sqe = command.to_sqe();
        if let Some(bytes) = bytes_read(&command) {
            // Admin commands carry PRP entries (NVMe section 4.3); the buffer is page aligned.
            let second = if bytes > PAGE as u64 { self.buffer_at.offset(PAGE as u64).0 } else { 0 };
            sqe.set_prp(self.buffer_at.0, second);
        }
        if self.pair.submit(sqe, 0).is_err() {
            return Err(DriverError::AdminQueueFull { command: name });
        }
        self.pair.ring();
        self.asked = Some((name, queue));
        Ok(())
    }

    /// Whether a command is unanswered.
    pub(crate) fn is_busy(&self) -> bool {
        self.asked.is_some()
    }

    /// The answer to the command that was [asked](AdminQueue::ask), once it is there.
    pub(crate) fn answer(&mut self) -> Option<Result<u64, DriverError>> {
        let (command, queue) = self.asked?;
        // One command is outstanding, so this is the one that came back.
        let completed = self.pair.reap()?;
        self.pair.release();
        self.asked = None;
        Some(if completed.status.is_success() {
            Ok(completed.result)
        } else {
            Err(DriverError::Command { command, queue, status: completed.status })
        })
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
