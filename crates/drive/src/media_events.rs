//! [`MediaEventLog`]: what a drive learns of its NAND from operations that fail or nearly do: worth telling
//! the host unasked, if that is who manages the flash (LightNVM paper section 2.2; OC section 3, log
//! page D0h), else the business of the drive's own translation layer.
//!
//! Guarantee: about a chunk, the same thing or something better is said once until the chunk is
//! erased, and about a parallel unit once; so the number of notices is bounded by what happens to the
//! media, not by how often the host looks. Reads that go well cost nothing here.

use media::{ChunkIndex, MediaError, Nand, PhysSector};
use nvme::{ChunkNotificationKind, ChunkNotificationScope};

use crate::PersonalityKind;

/// Something to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MediaEvent {
    /// The sector, or the first of what is meant.
    pub(crate) psn: PhysSector,
    pub(crate) scope: ChunkNotificationScope,
    pub(crate) kind: ChunkNotificationKind,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct MediaEventLog {
    /// What has been learnt and not been told, in order.
    pending: Vec<MediaEvent>,
    /// Per chunk, one more than the severity of the worst that was said; empty for a drive that
    /// tells nothing.
    reported_severity: Vec<u8>,
    /// Per parallel unit, whether its die is known to have failed.
    failed_dies: Vec<bool>,
}

/// What was said of a chunk that is offline: nothing is worse.
const SEVERITY_OFFLINE: u8 = 5;

fn severity(what: ChunkNotificationKind) -> u8 {
    match what {
        ChunkNotificationKind::Refreshed
        | ChunkNotificationKind::WearOutside
        | ChunkNotificationKind::ErrorRateLow => 1,
        ChunkNotificationKind::ErrorRateMedium => 2,
        ChunkNotificationKind::ErrorRateHigh => 3,
        ChunkNotificationKind::Unrecoverable => 4,
    }
}

impl MediaEventLog {
    /// Of a drive with somebody to tell. Chunks that are offline already are known to be: nothing is
    /// said of them.
    pub(crate) fn new(nand: &Nand, personality: PersonalityKind) -> MediaEventLog {
        if personality == PersonalityKind::Null {
            return MediaEventLog::default();
        }
        let offline = |i: media::ChunkInfo| i.state == media::ChunkState::Offline;
        MediaEventLog {
            pending: Vec::new(),
            reported_severity: nand
                .chunks()
                .map(|(_, i)| if offline(i) { SEVERITY_OFFLINE } else { 0 })
                .collect(),
            failed_dies: vec![false; nand.config().geometry.total_pus() as usize],
        }
    }

    /// Whether there is something to tell.
    #[inline]
    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Takes what there is to tell.
    pub(crate) fn drain_pending(&mut self) -> Vec<MediaEvent> {
        std::mem::take(&mut self.pending)
    }

    fn push_if_worse(&mut self, chunk: ChunkIndex, level: u8, notice: MediaEvent) {
        let Some(worst) = self.reported_severity.get_mut(chunk.0 as usize) else { return };
        if *worst < level {
            *worst = level;
            self.pending.push(notice);
        }
    }

    /// A sector was read with more than three quarters of the bit errors that can be corrected;
    /// `repeated` if it took more than one attempt.
    #[cold]
    pub(crate) fn on_high_ecc(&mut self, nand: &Nand, psn: PhysSector, repeated: bool) {
        let what = if repeated {
            ChunkNotificationKind::ErrorRateHigh
        } else {
            ChunkNotificationKind::ErrorRateMedium
        };
        let chunk = nand.layout().chunk_of(psn);
        self.push_if_worse(
            chunk,
            severity(what),
            MediaEvent { psn, scope: ChunkNotificationScope::Chunk, kind: what },
        );
    }

    /// A sector could not be read; `exhausted` if everything was tried.
    #[cold]
    pub(crate) fn on_read_failed(
        &mut self,
        nand: &Nand,
        psn: PhysSector,
        e: &MediaError,
        exhausted: bool,
    ) {
        let chunk = nand.layout().chunk_of(psn);
        match e {
            MediaError::Uncorrectable { .. } if exhausted => {
                let what = ChunkNotificationKind::Unrecoverable;
                self.push_if_worse(
                    chunk,
                    severity(what),
                    MediaEvent { psn, scope: ChunkNotificationScope::Sector, kind: what },
                );
            }
            MediaError::Uncorrectable { .. } => self.on_high_ecc(nand, psn, true),
            _ => self.on_op_failed(nand, chunk, e),
        }
    }

    /// An operation on a chunk failed.
    #[cold]
    pub(crate) fn on_op_failed(&mut self, nand: &Nand, chunk: ChunkIndex, e: &MediaError) {
        let layout = nand.layout();
        let psn = layout.psn(chunk, 0);
        match e {
            MediaError::DieFailed { pu, .. } => {
                let what = ChunkNotificationKind::Unrecoverable;
                if let Some(dead) = self.failed_dies.get_mut(*pu as usize)
                    && !std::mem::replace(dead, true)
                {
                    let psn = layout.psn(layout.chunk(*pu, 0), 0);
                    self.pending.push(MediaEvent {
                        psn,
                        scope: ChunkNotificationScope::Pu,
                        kind: what,
                    });
                }
            }
            MediaError::ChunkBad { .. } | MediaError::EraseFailed { .. } => {
                let what = ChunkNotificationKind::Unrecoverable;
                self.push_if_worse(
                    chunk,
                    SEVERITY_OFFLINE,
                    MediaEvent { psn, scope: ChunkNotificationScope::Chunk, kind: what },
                );
            }
            MediaError::ProgramFailed { .. } => {
                let what = ChunkNotificationKind::ErrorRateHigh;
                self.push_if_worse(
                    chunk,
                    severity(what),
                    MediaEvent { psn, scope: ChunkNotificationScope::Chunk, kind: what },
                );
            }
            // The host's mistakes, and what a power cut left.
            _ => {}
        }
    }

    /// A chunk was erased: what was said of it is history.
    #[inline]
    pub(crate) fn on_erased(&mut self, chunk: ChunkIndex) {
        if let Some(worst) = self.reported_severity.get_mut(chunk.0 as usize) {
            *worst = 0;
        }
    }
}
