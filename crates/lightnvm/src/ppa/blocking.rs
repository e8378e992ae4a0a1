//! [`Blocking`]: a session whose caller waits.
//!
//! Every call submits a vector, lets the drive run until it has ended, and turns failed addresses
//! into an error that names them. Vectors that were submitted otherwise go on meanwhile, and are
//! still to be reaped.

use std::fmt;

use nvme::Ppa;

use super::{Buffer, Buffers, Ended, Options, PpaError, Session, Space, Ticket, VectorError};

/// A session and what lets its drive run.
pub struct Blocking<'a> {
    session: &'a mut Session,
    pump: &'a mut dyn FnMut(),
}

impl fmt::Debug for Blocking<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blocking").field("session", self.session).finish_non_exhaustive()
    }
}

impl<'a> Blocking<'a> {
    pub(crate) fn new(session: &'a mut Session, pump: &'a mut dyn FnMut()) -> Blocking<'a> {
        Blocking { session, pump }
    }

    /// The session.
    pub fn session(&mut self) -> &mut Session {
        self.session
    }

    /// The drive's address space.
    pub fn space(&self) -> &Space {
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
    /// [`PpaError::Vector`], with the buffer; [`PpaError::Refused`]; [`PpaError::Timeout`].
    pub fn read(
        &mut self,
        ppas: &[Ppa],
        into: Buffer,
        options: Options,
    ) -> Result<Buffer, PpaError> {
        let ticket = self.session.read(ppas, into, options)?;
        self.buffer_of(ticket, ppas)
    }

    /// Writes sectors from a buffer, which comes back.
    ///
    /// # Errors
    /// As for [`read`](Blocking::read).
    pub fn write(
        &mut self,
        ppas: &[Ppa],
        from: Buffer,
        options: Options,
    ) -> Result<Buffer, PpaError> {
        let ticket = self.session.write(ppas, from, options)?;
        self.buffer_of(ticket, ppas)
    }

    /// Asks whether sectors can be read.
    ///
    /// # Errors
    /// [`PpaError::Vector`] names those that cannot; [`PpaError::Refused`]; [`PpaError::Timeout`].
    pub fn check(&mut self, ppas: &[Ppa]) -> Result<(), PpaError> {
        let ticket = self.session.check(ppas)?;
        self.finish(ticket, ppas).map(drop)
    }

    /// Erases the chunks that addresses are in.
    ///
    /// # Errors
    /// [`PpaError::Vector`] names those that failed; [`PpaError::Refused`]; [`PpaError::Timeout`].
    pub fn reset(&mut self, ppas: &[Ppa]) -> Result<(), PpaError> {
        let ticket = self.session.reset(ppas)?;
        self.finish(ticket, ppas).map(drop)
    }

    /// Copies sectors inside the drive.
    ///
    /// # Errors
    /// As for [`reset`](Blocking::reset); sources are named.
    pub fn copy(&mut self, from: &[Ppa], to: &[Ppa]) -> Result<(), PpaError> {
        let ticket = self.session.copy(from, to)?;
        self.finish(ticket, from).map(drop)
    }

    /// Waits for a vector that was submitted, however it ends.
    ///
    /// # Errors
    /// [`PpaError::Timeout`] when nothing ends for as long as the session has patience, and the
    /// vector stays outstanding; [`PpaError::NoSuchVector`].
    pub fn wait(&mut self, ticket: Ticket) -> Result<Ended, PpaError> {
        let kind = self.session.kind_of(ticket).ok_or(PpaError::NoSuchVector { ticket })?;
        let mut polls = 0;
        loop {
            if let Some(ended) = self.session.take_ended(ticket) {
                return Ok(ended);
            }
            if polls >= self.session.patience() {
                return Err(PpaError::Timeout { kind, ticket, polls });
            }
            polls += 1;
            if self.session.turn() {
                polls = 0;
            } else {
                (self.pump)();
            }
        }
    }

    /// Waits for a vector; failed addresses are an error.
    fn finish(&mut self, ticket: Ticket, ppas: &[Ppa]) -> Result<Ended, PpaError> {
        let ended = self.wait(ticket)?;
        if ended.is_success() {
            return Ok(ended);
        }
        let Ended { kind, status, failed, buffer, .. } = ended;
        let space = self.session.space();
        let named = failed.iter().filter_map(|i| ppas.get(i as usize));
        let addresses = named.map(|ppa| space.components(*ppa)).collect();
        let error = VectorError { kind, status, failed, addresses, buffer };
        Err(PpaError::Vector(Box::new(error)))
    }

    fn buffer_of(&mut self, ticket: Ticket, ppas: &[Ppa]) -> Result<Buffer, PpaError> {
        // A vector that came with a buffer ends with it.
        self.finish(ticket, ppas)?.buffer.ok_or(PpaError::NoSuchVector { ticket })
    }
}
