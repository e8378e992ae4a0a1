//! [`MediaEventLog`]: events that a drive detects when NAND operations fail or nearly fail. An
//! open-channel drive reports them to its host ([LightNVM17 §2.2]; [OC20 §3], log page D0h). A
//! block drive handles them in its own FTL.
//!
//! Invariant: per chunk, an event of equal or lower severity is not repeated until the chunk is
//! erased; a die failure is reported once. The number of events is therefore bounded by what
//! happens to the media, not by how often the host polls. Successful reads cost nothing here.

use media::{ChunkId, MediaError, Nand, PhysSector};
use nvme::{ChunkNotificationKind, ChunkNotificationScope};
use serde::{Deserialize, Serialize};

use crate::PersonalityKind;

/// An event about a sector, chunk or die.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MediaHealthEvent {
    /// The sector, or the first sector of the affected range.
    pub(crate) phys: PhysSector,
    pub(crate) scope: ChunkNotificationScope,
    pub(crate) kind: ChunkNotificationKind,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct MediaEventLog {
    /// Events that are not yet handled, in order.
    pending: Vec<MediaHealthEvent>,
    /// Per chunk, the highest severity reported, plus 1; empty for a drive that reports nothing.
    reported_severity: Vec<u8>,
    /// Per parallel unit, whether its die is known to have failed.
    failed_dies: Vec<bool>,
}

/// Severity of an offline chunk, the highest.
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
    /// Creates the log of a drive. Chunks that are already offline are not reported.
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

    /// Whether events are pending.
    #[inline]
    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Removes and returns the pending events.
    pub(crate) fn drain_pending(&mut self) -> Vec<MediaHealthEvent> {
        std::mem::take(&mut self.pending)
    }

    fn push_if_worse(&mut self, chunk: ChunkId, level: u8, notice: MediaHealthEvent) {
        let Some(worst) = self.reported_severity.get_mut(chunk.0 as usize) else { return };
        if *worst < level {
            *worst = level;
            self.pending.push(notice);
        }
    }

    /// Records a read with more than three quarters of the correctable bit errors; `repeated` if
    /// the read took more than one attempt.
    #[cold]
    pub(crate) fn on_high_ecc(&mut self, nand: &Nand, phys: PhysSector, repeated: bool) {
        let what = if repeated {
            ChunkNotificationKind::ErrorRateHigh
        } else {
            ChunkNotificationKind::ErrorRateMedium
        };
        let chunk = nand.layout().chunk_of(phys);
        self.push_if_worse(
            chunk,
            severity(what),
            MediaHealthEvent { phys, scope: ChunkNotificationScope::Chunk, kind: what },
        );
    }

    /// Records an unreadable sector; `exhausted` if all read retries were made.
    #[cold]
    pub(crate) fn on_read_failed(
        &mut self,
        nand: &Nand,
        phys: PhysSector,
        e: &MediaError,
        exhausted: bool,
    ) {
        let chunk = nand.layout().chunk_of(phys);
        match e {
            MediaError::Uncorrectable { .. } if exhausted => {
                let what = ChunkNotificationKind::Unrecoverable;
                self.push_if_worse(
                    chunk,
                    severity(what),
                    MediaHealthEvent { phys, scope: ChunkNotificationScope::Sector, kind: what },
                );
            }
            MediaError::Uncorrectable { .. } => self.on_high_ecc(nand, phys, true),
            _ => self.on_op_failed(nand, chunk, e),
        }
    }

    /// Records a failed operation on a chunk.
    #[cold]
    pub(crate) fn on_op_failed(&mut self, nand: &Nand, chunk: ChunkId, e: &MediaError) {
        let layout = nand.layout();
        let phys = layout.phys(chunk, 0);
        match e {
            MediaError::DieFailed { pu, .. } => {
                let what = ChunkNotificationKind::Unrecoverable;
                if let Some(dead) = self.failed_dies.get_mut(pu.index())
                    && !std::mem::replace(dead, true)
                {
                    let phys = layout.phys(layout.chunk(*pu, 0), 0);
                    self.pending.push(MediaHealthEvent {
                        phys,
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
                    MediaHealthEvent { phys, scope: ChunkNotificationScope::Chunk, kind: what },
                );
            }
            MediaError::ProgramFailed { .. } => {
                let what = ChunkNotificationKind::ErrorRateHigh;
                self.push_if_worse(
                    chunk,
                    severity(what),
                    MediaHealthEvent { phys, scope: ChunkNotificationScope::Chunk, kind: what },
                );
            }
            // Errors of the host, and the effects of a power cut, are not media events.
            _ => {}
        }
    }

    /// Clears the reported severity of an erased chunk.
    #[inline]
    pub(crate) fn on_erased(&mut self, chunk: ChunkId) {
        if let Some(worst) = self.reported_severity.get_mut(chunk.0 as usize) {
            *worst = 0;
        }
    }
}
