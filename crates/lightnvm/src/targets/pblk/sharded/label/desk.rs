//! [`Desk`]: the label when the device is opened: read, compared, and written where copies are missing.
//!
//! Guarantee: what says something else is refused before anything is written or erased.

use ftl::Found;
use nvme::Status;

use super::super::super::PblkError;
use super::super::{LabelError, ShardedError};
use super::keeper::Keeper;
use super::scribe::{Command, Held, Outcome, Scribe};
use super::sheet::Sheet;
use super::{COPIES, Label, PLACES, Read};
use crate::vector::{Addresses, VectorQueue};

/// Calls of the pump without an answer after which a drive counts as dead.
const PATIENCE: u64 = 30_000_000;

/// Reads and writes labels, one command at a time.
pub(crate) struct Desk<'a> {
    queue: &'a mut VectorQueue,
    addresses: &'a Addresses,
    pump: &'a mut dyn FnMut(),
    sheet: Sheet,
}

impl<'a> Desk<'a> {
    pub(crate) fn new(
        wanted: Label,
        queue: &'a mut VectorQueue,
        addresses: &'a Addresses,
        pump: &'a mut dyn FnMut(),
    ) -> Result<Desk<'a>, ShardedError> {
        let space = queue.port().memory();
        let sheet = Sheet::new(wanted, addresses.shape(), addresses.oob_bytes(), space);
        Ok(Desk { sheet: sheet.map_err(PblkError::from)?, queue, addresses, pump })
    }

    /// Makes sure that the drive is sharded as wanted. `found` are the label's places; `written`
    /// is how many chunks the shards have written. Returns who looks after the label from now on.
    ///
    /// # Errors
    /// [`LabelError`]; [`PblkError::Command`] and [`PblkError::Timeout`].
    pub(crate) fn settle(
        mut self,
        found: &[(u32, Found); PLACES],
        written: u32,
    ) -> Result<Keeper, ShardedError> {
        let mut scribe = Scribe::new(self.addresses.shape(), found.map(|(chunk, _)| chunk));
        let mut labels: [Option<Read>; PLACES] = [None; PLACES];
        let mut refused = None;
        for (at, (chunk, state)) in found.iter().enumerate() {
            scribe.places[at].held = match state {
                Found::Free => Held::Nothing,
                Found::Bad | Found::Foreign => Held::Gone,
                Found::Failing(_) => Held::Failing,
                Found::Open(_) | Found::Closed(_) => Held::Unknown,
            };
            if self.is_readable(*state, scribe.units()) {
                match self.read(*chunk)? {
                    Some(Ok(read)) => labels[at] = Some(read),
                    Some(Err(e)) => refused = Some(e),
                    None => {}
                }
            }
        }
        let wanted = self.sheet.label();
        let newest = labels.iter().flatten().map(|(_, generation)| *generation).max();
        for (place, read) in scribe.places.iter_mut().zip(&labels) {
            match *read {
                Some((label, generation)) if label == wanted => {
                    place.held = Held::Copy(generation);
                }
                // An older one that says something else is nobody's any more.
                Some((label, generation)) if Some(generation) == newest => {
                    refused = label.check(wanted).err();
                }
                _ => {}
            }
        }
        scribe.newest = newest.unwrap_or(1);
        if written > 0 {
            if let Some(error) = refused {
                return Err(error.into());
            }
            if scribe.copies() == 0 {
                let error = LabelError::Missing { chunks: written, places: PLACES };
                return Err(error.into());
            }
        } else if refused.is_some() || scribe.copies() < COPIES {
            // As good as new: whatever is in the label's places can go.
            for at in 0..PLACES {
                let chunk = scribe.places[at].chunk;
                let held = &mut scribe.places[at].held;
                if !matches!(*held, Held::Nothing | Held::Gone) {
                    let erased = self.carry_out(Command::Erase { chunk })? != Outcome::Failed;
                    *held = if erased { Held::Nothing } else { Held::Gone };
                }
            }
            scribe.newest = newest.map_or(1, |n| n.saturating_add(1));
        }
        scribe.complete();
        while let Some(command) = scribe.next() {
            let outcome = self.carry_out(command)?;
            scribe.done(outcome);
        }
        if scribe.copies() == 0 {
            return Err(LabelError::Unwritable { places: PLACES }.into());
        }
        Ok(Keeper::new(scribe, self.sheet))
    }

    fn is_readable(&self, state: Found, units: u32) -> bool {
        match state {
            Found::Open(written) => written >= units * self.addresses.shape().unit,
            Found::Closed(written) | Found::Failing(written) => written > 0,
            _ => false,
        }
    }

    fn read(&mut self, chunk: u32) -> Result<Option<Result<Read, LabelError>>, ShardedError> {
        let outcome = self.carry_out(Command::Read { chunk })?;
        Ok(if outcome == Outcome::Failed { None } else { self.sheet.found() })
    }

    /// Carries out a command and waits for it. A failure of the media is no error.
    fn carry_out(&mut self, command: Command) -> Result<Outcome, ShardedError> {
        let (name, chunk) = match command {
            Command::Read { chunk } => ("Vector Chunk Read", chunk),
            Command::Erase { chunk } => ("Vector Chunk Reset", chunk),
            Command::Program { chunk, .. } => ("Vector Chunk Write", chunk),
        };
        let address = self.addresses.components(self.addresses.shape().first_psn(chunk));
        let failed = |status| PblkError::Command { command: name, address, status };
        if !self.sheet.send(self.queue, self.addresses, command, 0) {
            return Err(failed(Status::NOT_READY).into());
        }
        self.queue.ring(true);
        for _ in 0..PATIENCE {
            if let Some(done) = self.queue.reap() {
                self.queue.ring(true);
                return match done.status {
                    s if s.is_success() => Ok(Outcome::Done(self.sheet.generation())),
                    s if s.is_media_error() => Ok(Outcome::Failed),
                    s => Err(failed(s).into()),
                };
            }
            (self.pump)();
        }
        let outstanding = self.queue.outstanding();
        Err(PblkError::Timeout { outstanding, polls: PATIENCE }.into())
    }
}
