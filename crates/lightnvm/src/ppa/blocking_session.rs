//! [`Blocking`]: a session whose caller waits.
//!
//! Every call submits a vector, lets the drive run until it has ended, and turns failed addresses
//! into an error that names them. Vectors that were submitted otherwise go on meanwhile, and are
//! still to be reaped.

use std::fmt;

use nvme::Ppa;

use super::{
    Buffer, Buffers, PpaError, PpaSpace, RequestCompletion, RequestId, Session, VectorError,
    VectorOptions,
};

/// A session and what lets its drive run.
pub struct BlockingSession<'a> {
    session: &'a mut Session,
    pump: &'a mut dyn FnMut(),
}

impl fmt::Debug for BlockingSession<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blocking").field("session", self.session).finish_non_exhaustive()
    }
}

impl<'a> BlockingSession<'a> {
    pub(crate) fn new(session: &'a mut Session, pump: &'a mut dyn FnMut()) -> BlockingSession<'a> {
        BlockingSession { session, pump }
    }

    /// The session.
    pub fn session(&mut self) -> &mut Session {
        self.session
    }

    /// The drive's address space.
    pub fn space(&self) -> &PpaSpace {
        self.session.space()
    }

    /// Where its buffers come from.
    pub fn buffers(&self) -> &Buffers {
        self.session.buffers()
    }

    /// What lets the drive run, for admin commands.
    pub fn pump(&mut self) -> &mut dyn FnMut() {
        self.pump
    }

    /// Reads sectors into a buffer, which comes back.
    ///
    /// # Errors
    /// [`PpaError::Vector`], with the buffer; [`PpaError::Rejected`]; [`PpaError::Timeout`].
    pub fn read(
        &mut self,
        ppas: &[Ppa],
        into: Buffer,
        options: VectorOptions,
    ) -> Result<Buffer, PpaError> {
        let ticket = self.session.read(ppas, into, options)?;
        self.wait_buffer(ticket, ppas)
    }

    /// Writes sectors from a buffer, which comes back.
    ///
    /// # Errors
    /// As for [`read`](Blocking::read).
    pub fn write(
        &mut self,
        ppas: &[Ppa],
        from: Buffer,
        options: VectorOptions,
    ) -> Result<Buffer, PpaError> {
        let ticket = self.session.write(ppas, from, options)?;
        self.wait_buffer(ticket, ppas)
    }

    /// Asks whether sectors can be read.
    ///
    /// # Errors
    /// [`PpaError::Vector`] names those that cannot; [`PpaError::Rejected`]; [`PpaError::Timeout`].
    pub fn check(&mut self, ppas: &[Ppa]) -> Result<(), PpaError> {
        let ticket = self.session.check(ppas)?;
        self.wait_success(ticket, ppas).map(drop)
    }

    /// Erases the chunks that addresses are in.
    ///
    /// # Errors
    /// [`PpaError::Vector`] names those that failed; [`PpaError::Rejected`]; [`PpaError::Timeout`].
    pub fn reset(&mut self, ppas: &[Ppa]) -> Result<(), PpaError> {
        let ticket = self.session.reset(ppas)?;
        self.wait_success(ticket, ppas).map(drop)
    }

    /// Copies sectors inside the drive.
    ///
    /// # Errors
    /// As for [`reset`](Blocking::reset); sources are named.
    pub fn copy(&mut self, from: &[Ppa], to: &[Ppa]) -> Result<(), PpaError> {
        let ticket = self.session.copy(from, to)?;
        self.wait_success(ticket, from).map(drop)
    }

    /// Waits for a vector that was submitted, however it ends.
    ///
    /// # Errors
    /// [`PpaError::Timeout`] when nothing ends for as long as the session has patience, and the
    /// vector stays outstanding; [`PpaError::NoSuchVector`].
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
                (self.pump)();
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

    fn wait_buffer(&mut self, ticket: RequestId, ppas: &[Ppa]) -> Result<Buffer, PpaError> {
        // A vector that came with a buffer ends with it.
        self.wait_success(ticket, ppas)?.buffer.ok_or(PpaError::NoSuchVector { request: ticket })
    }
}
