//! [`Keeper`]: looks after the label while the device is used.
//!
//! Owned by the first shard, whose queue its commands go through, behind everything else. Guarantees: one
//! command at a time, no more than a sector of each place per round; a round per
//! [`repeat_after`](crate::core::ScrubConfig::repeat_after) of the patrol, or one at a time when the drive
//! tells that a place is hard to read; the label is written anew when a copy was hard to read or not to
//! be read, and after [`ROUNDS`] rounds, which is at most one erase of each place in a round.

use clock::Nanos;

use super::scribe::{Outcome, Scribe};
use super::sheet::Sheet;
use crate::targets::pblk::vectors::VectorFlash;
use crate::vector::VectorEnded;

/// Rounds after which the label is written anew, whatever the drive says of it: not every drive tells that
/// a read was hard.
const ROUNDS: u32 = 16;

/// From one round to the next at least, if it is the drive that asks for it.
const EAGER: Nanos = Nanos::from_secs(60);

/// How the label of a sharded device is, and what was done about it since the device was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LabelHealth {
    /// The newest generation that there is.
    pub generation: u64,
    /// Copies of it that could be read last.
    pub copies: u32,
    /// Copies of the newest generation that could not be read any more.
    pub lost: u64,
    /// Rounds in which all copies were read.
    pub rounds: u64,
    /// Sectors read.
    pub reads: u64,
    /// Generations written.
    pub renewals: u64,
    /// Times that a new generation was wanted and no place could be spared for it.
    pub stuck: u64,
    /// Chunks erased.
    pub erases: u64,
    /// Commands that failed.
    pub failures: u64,
}

/// Looks after the label.
#[derive(Debug)]
pub(crate) struct Keeper {
    scribe: Scribe,
    sheet: Sheet,
    /// A command is under way.
    sent: bool,
    /// The copies are being read.
    looking: bool,
    /// The drive has told of one.
    suspected: bool,
    /// Rounds since the label was written.
    since: u32,
    last_look: Option<Nanos>,
    next_look: Nanos,
    pause: Nanos,
    health: LabelHealth,
}

impl Keeper {
    pub(super) fn new(scribe: Scribe, sheet: Sheet) -> Keeper {
        Keeper {
            scribe,
            sheet,
            sent: false,
            looking: false,
            suspected: false,
            since: 0,
            last_look: None,
            next_look: Nanos::MAX,
            pause: Nanos::MAX,
            health: LabelHealth::default(),
        }
    }

    /// A round begins at once, and then every `pause`; none for [`Nanos::MAX`].
    pub(crate) fn patrol(&mut self, pause: Nanos) {
        self.pause = pause.max(Nanos(1));
        self.next_look = if pause == Nanos::MAX { Nanos::MAX } else { Nanos::ZERO };
    }

    /// Whether a chunk is one of the label's places.
    pub(crate) fn has(&self, chunk: u32) -> bool {
        self.scribe.places.iter().any(|p| p.chunk == chunk)
    }

    /// Something in one of the places is hard to read, or not to be read.
    pub(crate) fn suspect(&mut self) {
        self.suspected = true;
        let soon = self.last_look.map_or(Nanos::ZERO, |last| last + EAGER);
        self.next_look = self.next_look.min(soon);
    }

    /// How the label is.
    pub(crate) fn health(&self) -> LabelHealth {
        let counts = self.scribe.counts;
        let generation = self.scribe.generations().max().unwrap_or(0);
        let copies = self.scribe.generations().filter(|found| *found == generation).count();
        LabelHealth {
            generation,
            copies: copies as u32,
            lost: counts.lost,
            reads: counts.reads,
            erases: counts.erases,
            failures: counts.failures,
            ..self.health
        }
    }

    /// The command that was under way has ended.
    pub(crate) fn done(&mut self, ended: &VectorEnded) {
        if !std::mem::take(&mut self.sent) {
            return;
        }
        let outcome = if ended.status.is_success() {
            let found = self.sheet.generation();
            if ended.high_ecc { Outcome::Hard(found) } else { Outcome::Done(found) }
        } else if ended.status.is_media_error() {
            Outcome::Failed
        } else {
            Outcome::Refused
        };
        self.scribe.done(outcome);
    }

    /// Goes on.
    #[cold]
    pub(crate) fn poll(&mut self, now: Nanos, flash: &mut VectorFlash) {
        while !self.sent {
            if let Some(command) = self.scribe.next() {
                let sheet = &self.sheet;
                self.sent = flash
                    .aside(|queue, addresses, user| sheet.send(queue, addresses, command, user));
                return;
            }
            if self.looking {
                self.looking = false;
                self.looked();
            } else if now >= self.next_look {
                self.next_look = now + self.pause;
                self.last_look = Some(now);
                self.looking = true;
                self.health.rounds += 1;
                self.scribe.look();
            } else {
                return;
            }
        }
    }

    /// All copies were read.
    fn looked(&mut self) {
        self.since += 1;
        let worn = self.scribe.worn | std::mem::take(&mut self.suspected);
        if !worn && self.since < ROUNDS {
            return self.scribe.complete();
        }
        self.since = 0;
        if self.scribe.renew() {
            self.health.renewals += 1;
        } else {
            self.health.stuck += 1;
            self.scribe.complete();
        }
    }

    /// When a poll has something to do: while a command is under way, or waits for room in the queue,
    /// when one has ended.
    pub(crate) fn deadline(&self) -> Nanos {
        if self.sent || self.looking || self.scribe.next().is_some() {
            Nanos::MAX
        } else {
            self.next_look
        }
    }

    /// Whether a poll has something to do now.
    #[inline]
    pub(crate) fn is_due(&self, now: Nanos) -> bool {
        !self.sent && (now >= self.next_look || self.looking || self.scribe.next().is_some())
    }
}
