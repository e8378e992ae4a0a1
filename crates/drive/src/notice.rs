//! [`Notices`]: what a drive learns of its NAND from operations that fail or nearly do: worth telling
//! the host unasked, if that is who manages the flash (LightNVM paper section 2.2; OC section 3, log
//! page D0h), else the business of the drive's own translation layer.
//!
//! Guarantee: about a chunk, the same thing or something better is said once until the chunk is
//! erased, and about a parallel unit once; so the number of notices is bounded by what happens to the
//! media, not by how often the host looks. Reads that go well cost nothing here.

use media::{ChunkId, MediaError, Nand, Psn};
use nvme::{MediaNotice, MediaScope};

use crate::PersonalityKind;

/// Something to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    /// The sector, or the first of what is meant.
    pub(crate) psn: Psn,
    pub(crate) scope: MediaScope,
    pub(crate) what: MediaNotice,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Notices {
    /// What has been learnt and not been told, in order.
    pending: Vec<Notice>,
    /// Per chunk, one more than the severity of the worst that was said; empty for a drive that
    /// tells nothing.
    worst: Vec<u8>,
    /// Per parallel unit, whether its die is known to have failed.
    dead: Vec<bool>,
}

/// What was said of a chunk that is offline: nothing is worse.
const OFFLINE: u8 = 5;

fn severity(what: MediaNotice) -> u8 {
    match what {
        MediaNotice::Refreshed | MediaNotice::WearOutside | MediaNotice::ErrorRateLow => 1,
        MediaNotice::ErrorRateMedium => 2,
        MediaNotice::ErrorRateHigh => 3,
        MediaNotice::Unrecoverable => 4,
    }
}

impl Notices {
    /// Of a drive with somebody to tell. Chunks that are offline already are known to be: nothing is
    /// said of them.
    pub(crate) fn of(nand: &Nand, personality: PersonalityKind) -> Notices {
        if personality == PersonalityKind::Null {
            return Notices::default();
        }
        let offline = |i: media::ChunkInfo| i.state == media::ChunkState::Offline;
        Notices {
            pending: Vec::new(),
            worst: nand.chunks().map(|(_, i)| if offline(i) { OFFLINE } else { 0 }).collect(),
            dead: vec![false; nand.config().geometry.total_pus() as usize],
        }
    }

    /// Whether there is something to tell.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Takes what there is to tell.
    pub(crate) fn take(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.pending)
    }

    fn say(&mut self, chunk: ChunkId, level: u8, notice: Notice) {
        let Some(worst) = self.worst.get_mut(chunk.0 as usize) else { return };
        if *worst < level {
            *worst = level;
            self.pending.push(notice);
        }
    }

    /// A sector was read with more than three quarters of the bit errors that can be corrected;
    /// `repeated` if it took more than one attempt.
    #[cold]
    pub(crate) fn many_errors(&mut self, nand: &Nand, psn: Psn, repeated: bool) {
        let what = if repeated { MediaNotice::ErrorRateHigh } else { MediaNotice::ErrorRateMedium };
        let chunk = nand.layout().chunk_of(psn);
        self.say(chunk, severity(what), Notice { psn, scope: MediaScope::Chunk, what });
    }

    /// A sector could not be read; `exhausted` if everything was tried.
    #[cold]
    pub(crate) fn unreadable(&mut self, nand: &Nand, psn: Psn, e: &MediaError, exhausted: bool) {
        let chunk = nand.layout().chunk_of(psn);
        match e {
            MediaError::Uncorrectable { .. } if exhausted => {
                let what = MediaNotice::Unrecoverable;
                self.say(chunk, severity(what), Notice { psn, scope: MediaScope::Sector, what });
            }
            MediaError::Uncorrectable { .. } => self.many_errors(nand, psn, true),
            _ => self.failed(nand, chunk, e),
        }
    }

    /// An operation on a chunk failed.
    #[cold]
    pub(crate) fn failed(&mut self, nand: &Nand, chunk: ChunkId, e: &MediaError) {
        let layout = nand.layout();
        let psn = layout.psn(chunk, 0);
        match e {
            MediaError::DieFailed { pu, .. } => {
                let what = MediaNotice::Unrecoverable;
                if let Some(dead) = self.dead.get_mut(*pu as usize)
                    && !std::mem::replace(dead, true)
                {
                    let psn = layout.psn(layout.chunk(*pu, 0), 0);
                    self.pending.push(Notice { psn, scope: MediaScope::Pu, what });
                }
            }
            MediaError::ChunkBad { .. } | MediaError::EraseFailed { .. } => {
                let what = MediaNotice::Unrecoverable;
                self.say(chunk, OFFLINE, Notice { psn, scope: MediaScope::Chunk, what });
            }
            MediaError::ProgramFailed { .. } => {
                let what = MediaNotice::ErrorRateHigh;
                self.say(chunk, severity(what), Notice { psn, scope: MediaScope::Chunk, what });
            }
            // The host's mistakes, and what a power cut left.
            _ => {}
        }
    }

    /// A chunk was erased: what was said of it is history.
    #[inline]
    pub(crate) fn erased(&mut self, chunk: ChunkId) {
        if let Some(worst) = self.worst.get_mut(chunk.0 as usize) {
            *worst = 0;
        }
    }
}
