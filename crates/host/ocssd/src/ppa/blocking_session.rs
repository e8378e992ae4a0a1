//! [`BlockingSession`]: a synchronous interface to a session.
//!
//! Every call submits a vector, polls the drive until it completes, and converts failed addresses
//! to an error that names them. Vectors submitted otherwise make progress meanwhile, and are reaped
//! by their submitter.

use std::fmt;

use nvme::Ppa;

use super::{
    PpaError, PpaSpace, RequestCompletion, RequestId, Session, VectorBuffer, VectorBufferPool,
    VectorError, VectorOptions,
};

/// A session together with the function that lets its drive run.
pub struct BlockingSession<'a> {
    session: &'a mut Session,
    progress: &'a mut dyn FnMut(),
}

impl fmt::Debug for BlockingSession<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blocking").field("session", self.session).finish_non_exhaustive()
    }
}

impl<'a> BlockingSession<'a> {
    pub(crate) fn new(
        session: &'a mut Session,
        progress: &'a mut dyn FnMut(),
    ) -> BlockingSession<'a> {
        BlockingSession { session, progress }
    }

    /// Returns the session.
    pub fn session(&mut self) -> &mut Session {
        self.session
    }

    /// Returns the drive's address space.
    pub fn space(&self) -> &PpaSpace {
        self.session.space()
    }

    /// Returns the pool of the session's buffers.
    pub fn buffers(&self) -> &VectorBufferPool {
        self.session.buffers()
    }

    /// Returns the function that lets the drive run, for admin commands.
    pub fn progress(&mut self) -> &mut dyn FnMut() {
        self.progress
    }

    /// Reads sectors into a buffer and returns it.
    ///
    /// # Errors
    /// [`PpaError::Vector`], with the buffer; [`PpaError::Rejected`]; [`PpaError::Timeout`].
    pub fn read(
        &mut self,
        ppas: &[Ppa],
        into: VectorBuffer,
        options: VectorOptions,
    ) -> Result<VectorBuffer, PpaError> {
        let ticket = self.session.read(ppas, into, options)?;
        self.wait_buffer(ticket, ppas)
    }

    /// Writes sectors from a buffer and returns it.
    ///
    /// # Errors
    /// As for [`read`](BlockingSession::read).
    pub fn write(
        &mut self,
        ppas: &[Ppa],
        from: VectorBuffer,
        options: VectorOptions,
    ) -> Result<VectorBuffer, PpaError> {
        let ticket = self.session.write(ppas, from, options)?;
        self.wait_buffer(ticket, ppas)
    }

    /// Checks whether sectors are readable, without transfer.
    ///
    /// # Errors
    /// [`PpaError::Vector`] names unreadable sectors; [`PpaError::Rejected`];
    /// [`PpaError::Timeout`].
    pub fn check(&mut self, ppas: &[Ppa]) -> Result<(), PpaError> {
        let ticket = self.session.check(ppas)?;
        self.wait_success(ticket, ppas).map(drop)
    }

    /// Erases the chunks that contain the addresses.
    ///
    /// # Errors
    /// [`PpaError::Vector`] names those that failed; [`PpaError::Rejected`]; [`PpaError::Timeout`].
    pub fn reset(&mut self, ppas: &[Ppa]) -> Result<(), PpaError> {
        let ticket = self.session.reset(ppas)?;
        self.wait_success(ticket, ppas).map(drop)
    }

    /// Copies sectors within the drive.
    ///
    /// # Errors
    /// As for [`reset`](BlockingSession::reset); sources are named.
    pub fn copy(&mut self, from: &[Ppa], to: &[Ppa]) -> Result<(), PpaError> {
        let ticket = self.session.copy(from, to)?;
        self.wait_success(ticket, from).map(drop)
    }

    /// Waits for a submitted vector and returns its completion, failed or not.
    ///
    /// # Errors
    /// [`PpaError::Timeout`] if nothing completes within the session's poll limit; the vector stays
    /// outstanding. [`PpaError::NoSuchVector`].
    pub fn wait(&mut self, ticket: RequestId) -> Result<RequestCompletion, PpaError> {
        let kind =
            self.session.kind_of(ticket).ok_or(PpaError::NoSuchVector { request: ticket })?;
        let mut polls = 0;
        loop {
            if let Some(ended) = self.session.reap_request(ticket) {
                return Ok(ended);
            }
            if polls >= self.session.poll_limit() {
                return Err(PpaError::Timeout { kind, request: ticket, polls });
            }
            polls += 1;
            if self.session.poll_once() {
                polls = 0;
            } else {
                (self.progress)();
            }
        }
    }

    /// Waits for a vector; failed addresses are an error.
    fn wait_success(
        &mut self,
        ticket: RequestId,
        ppas: &[Ppa],
    ) -> Result<RequestCompletion, PpaError> {
        let ended = self.wait(ticket)?;
        if ended.is_success() {
            return Ok(ended);
        }
        let RequestCompletion { kind, status, failed, buffer, .. } = ended;
        let space = self.session.space();
        let named = failed.iter().filter_map(|i| ppas.get(i as usize));
        let addresses = named.map(|ppa| space.components(*ppa)).collect();
        let error = VectorError { kind, status, failed, addresses, buffer };
        Err(PpaError::Vector(Box::new(error)))
    }

    fn wait_buffer(&mut self, ticket: RequestId, ppas: &[Ppa]) -> Result<VectorBuffer, PpaError> {
        // A vector that was submitted with a buffer completes with it.
        self.wait_success(ticket, ppas)?.buffer.ok_or(PpaError::NoSuchVector { request: ticket })
    }
}
