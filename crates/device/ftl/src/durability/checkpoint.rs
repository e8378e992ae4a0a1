//! [`Checkpoint`]: writes the map to the media incrementally, so that recovery reads a bounded part
//! of it [LightNVM17 §4.2.2]. Linux pblk never had checkpoints.
//!
//! A checkpoint records the next sequence number (the *base*), and writes every map page that has
//! changed since the last checkpoint, paced by host writes. When those pages are durable, it puts a
//! snapshot into the journal: the base, the locations of the pages, and the lines. Recovery then
//! needs the pages, and the units sequenced from the base on. Those are in lines that were open at
//! the base, or have been opened since.
//!
//! A line takes write units only after the journal has its opening, so that recovery knows every
//! line with data.

use serde::{Deserialize, Serialize};

use crate::check::{Subject, Violation, require};
use crate::durability::Durability;
use crate::durability::checkpoint_pace::CheckpointPace;
use crate::durability::dirty_pages::DirtyPages;
use crate::durability::journal::Lsn;
use crate::durability::loss_epochs::LossEpochs;
use crate::env::Env;
use crate::ids::{MapPageId, WriteSeq};
use crate::{CapacityPlan, FtlConfig};

/// Phase of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Phase {
    /// No checkpoint is in progress.
    Idle,
    /// Pages are written, from this one on.
    WritePages(PageCursor),
    /// Waits until the pages are durable, up to this position of the host's rings.
    AwaitPages(u64),
    /// The snapshot must be durable.
    AwaitSnapshot(Lsn),
}

/// Facts that a checkpoint depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CheckpointFacts {
    /// The position up to which the host's rings are durable.
    pub(crate) durable_pos: u64,
    pub(crate) next_seq: WriteSeq,
    pub(crate) low_watermark: WriteSeq,
    /// Whether no checkpoint may begin: translation pages are to be reconciled, or fetched from
    /// chunks at risk, and would be missing.
    pub(crate) is_blocked: bool,
}

/// A step of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CheckpointStep {
    /// Nothing to do now.
    Wait,
    /// A checkpoint has begun.
    Begun,
    /// Its pages are durable: a snapshot with this base is to be written.
    WriteSnapshot { base_seq: WriteSeq },
    /// The checkpoint is durable.
    Ended,
}

/// Progress of the pages of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PageCursor {
    /// The next page to write.
    pub(crate) next: MapPageId,
    pub(crate) written: u64,
}

/// The state of checkpoints.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Checkpoint {
    phase: Phase,
    pages: DirtyPages,
    pace: CheckpointPace,
    losses: LossEpochs,
    /// The base of the last durable snapshot, and of the checkpoint in progress.
    base_seq: WriteSeq,
    pending_base_seq: WriteSeq,
    /// Whether a caller waits for a checkpoint that begins now or later.
    requested: bool,
    /// Whether a caller waits for the checkpoint in progress, which is then not paced.
    unpaced: bool,
    /// Whether the journal has no capacity for records until it gets a snapshot.
    needs_journal_space: bool,
    /// Whether the journal needed a snapshot when it last changed.
    journal_wants_snapshot: bool,
    /// Position of the last snapshot in the journal.
    snapshot_lsn: Lsn,
}

impl Checkpoint {
    /// Creates the state without a checkpoint in progress. The base of the last one is `base_seq`.
    pub(crate) fn new(layout: &CapacityPlan, config: &FtlConfig, base_seq: WriteSeq) -> Checkpoint {
        Checkpoint {
            phase: Phase::Idle,
            pages: DirtyPages::new(layout.map_pages),
            pace: CheckpointPace::new(layout, config, base_seq),
            losses: LossEpochs::default(),
            base_seq,
            pending_base_seq: base_seq,
            requested: false,
            unpaced: false,
            needs_journal_space: false,
            journal_wants_snapshot: false,
            snapshot_lsn: Lsn(0),
        }
    }

    /// Checks the order of the loss epochs and of the base sequence numbers; `low` is the low watermark.
    pub(crate) fn check(&self, low: WriteSeq) -> Result<(), Violation> {
        self.losses.check_invariants()?;
        self.pages.check_invariants()?;
        let order = [self.base_seq, self.pending_base_seq, low];
        require!(
            order.is_sorted(),
            Durability,
            "checkpoint: base ≤ next base ≤ low watermark",
            Subject::Part,
            "ascending",
            format_args!("{order:?}")
        );
        Ok(())
    }

    /// Whether a snapshot is needed: a caller requested it, the journal has no capacity left, or a
    /// loss is not durable yet.
    pub(crate) fn is_wanted(&self) -> bool {
        self.requested || self.needs_journal_space || self.has_undurable_loss()
    }

    /// Returns whether units sequenced up to `newest` are covered neither by the last durable
    /// checkpoint nor by one that would be started for an earlier loss.
    pub(crate) fn would_lose(&self, newest: WriteSeq) -> bool {
        newest >= self.base_seq && !self.losses.is_begun_due()
    }

    /// Records a loss that the last checkpoint does not include; the next checkpoint begins.
    pub(crate) fn record_loss(&mut self) {
        self.losses.record();
    }

    /// Whether there is a loss that no durable checkpoint includes.
    #[inline]
    pub(crate) fn has_undurable_loss(&self) -> bool {
        self.losses.has_undurable()
    }

    /// Records that a snapshot is being written to `at`. Used when the drive keeps the map.
    pub(crate) fn begin_reservation(&mut self, at: Lsn) {
        self.unpaced = std::mem::take(&mut self.requested);
        (self.needs_journal_space, self.snapshot_lsn) = (false, at);
    }

    /// Records that the snapshot of a reservation is durable.
    pub(crate) fn complete_reservation(&mut self) {
        self.unpaced = false;
    }

    /// Records that the snapshot of a reservation was refused; `for_ever` if the journal has
    /// failed.
    pub(crate) fn abort_reservation(&mut self, for_ever: bool) {
        self.requested &= !for_ever;
    }

    /// Records that the host has written or trimmed, or that data is to be relocated on request.
    #[inline]
    pub(crate) fn record_host_change(&mut self) {
        self.pace.record_host_change();
    }

    /// Records that a unit with this number of relocated sectors was sequenced.
    #[inline]
    pub(crate) fn record_relocated(&mut self, sectors: u32) {
        self.pace.record_relocated(sectors);
    }

    /// Marks a page as changed since it was written.
    #[inline]
    pub(crate) fn mark_dirty(&mut self, page: MapPageId) {
        self.pages.mark_dirty(page);
    }

    /// Whether a page's copy on the media differs from the map, or will when the buffered units are
    /// programmed.
    #[inline]
    pub(crate) fn is_dirty(&self, page: MapPageId) -> bool {
        self.pages.is_dirty(page)
    }

    /// Records that a page was encoded from the current entries.
    #[inline]
    pub(super) fn mark_clean(&mut self, page: MapPageId) {
        self.pages.mark_clean(page);
    }
}

impl Checkpoint {
    /// Breaks the loss epochs: a checkpoint has begun for a loss that was not recorded.
    #[cfg(test)]
    pub(crate) fn break_losses(&mut self) {
        self.losses.break_order();
    }

    /// Breaks the count of pages to write.
    #[cfg(test)]
    pub(crate) fn break_pages(&mut self) {
        self.pages.break_count();
    }

    /// Whether a requested checkpoint is not durable.
    pub(crate) fn is_requested(&self) -> bool {
        self.requested || self.unpaced
    }

    /// Requests a snapshot, because the journal has no capacity for a record.
    pub(super) fn request_space(&mut self) {
        self.needs_journal_space = true;
    }

    /// The base sequence number of the last durable snapshot.
    pub(crate) fn base_seq(&self) -> WriteSeq {
        self.base_seq
    }

    /// Excludes sectors from the interval. Otherwise the writes of one checkpoint would cause the
    /// next, while garbage collection changes more pages to free space.
    pub(super) fn exclude(&mut self, sectors: u64) {
        self.pace.exclude(sectors);
    }

    /// Begins a checkpoint if it is due or requested.
    fn begin(&mut self, env: &Env, facts: CheckpointFacts) -> CheckpointStep {
        let lost = self.losses.is_begun_due();
        let due = self.pace.is_due(env, facts.next_seq);
        if !self.requested && !lost && !due || facts.is_blocked {
            return CheckpointStep::Wait;
        }
        self.unpaced = std::mem::take(&mut self.requested);
        self.losses.begin();
        self.pages.begin();
        self.pace.begin(facts.next_seq);
        self.pending_base_seq = facts.low_watermark;
        self.phase = Phase::WritePages(PageCursor { next: MapPageId(0), written: 0 });
        tracepoint::trace(|| tracepoint::Event::CheckpointBegins);
        tracing::debug!(pages = self.pages.to_write_count(), "checkpoint begins");
        CheckpointStep::Begun
    }
}

impl Durability {
    /// Requests a checkpoint that is not paced; with an L2P of the drive, a snapshot.
    pub(crate) fn request_checkpoint(&mut self) {
        if self.device_l2p.is_some() {
            self.request_snapshot();
        } else {
            self.checkpoint.requested = true;
        }
    }

    /// Requests a snapshot, because the journal has no capacity for a record.
    pub(crate) fn request_snapshot(&mut self) {
        self.checkpoint.request_space();
    }

    /// Whether a request waits for the checkpoint in progress: it is not paced.
    pub(crate) fn is_checkpoint_urgent(&self) -> bool {
        let c = &self.checkpoint;
        c.is_requested() || c.has_undurable_loss() && self.barriers.has_host_requests()
    }

    /// Whether a request waits for pages that are in the host ring.
    pub(crate) fn has_urgent_pages(&self) -> bool {
        self.is_checkpoint_urgent() && matches!(self.checkpoint.phase, Phase::AwaitPages(_))
    }

    /// Continues a checkpoint, or begins one when it is due.
    pub(crate) fn step_checkpoint(&mut self, env: &Env, facts: CheckpointFacts) -> CheckpointStep {
        let c = &mut self.checkpoint;
        match c.phase {
            Phase::Idle => c.begin(env, facts),
            Phase::AwaitPages(position) if facts.durable_pos >= position => {
                CheckpointStep::WriteSnapshot { base_seq: c.pending_base_seq }
            }
            Phase::AwaitSnapshot(at) if self.journal.durable() >= at => {
                c.base_seq = c.pending_base_seq;
                c.phase = Phase::Idle;
                tracepoint::trace(|| tracepoint::Event::CheckpointEnds);
                tracing::debug!(base_seq = c.base_seq.get(), "checkpoint durable");
                c.unpaced = false;
                c.losses.complete();
                CheckpointStep::Ended
            }
            // Pages are written before host data is admitted.
            Phase::WritePages(_) | Phase::AwaitPages(_) | Phase::AwaitSnapshot(_) => {
                CheckpointStep::Wait
            }
        }
    }

    /// Gives the snapshot of the checkpoint in progress to the journal. Returns whether it was taken.
    pub(crate) fn write_checkpoint_snapshot(&mut self, snapshot: Vec<u8>) -> bool {
        let Ok(at) = self.journal.snapshot(snapshot) else { return false };
        (self.checkpoint.needs_journal_space, self.checkpoint.snapshot_lsn) = (false, at);
        self.on_owner_snapshot(at);
        self.checkpoint.phase = Phase::AwaitSnapshot(at);
        true
    }

    /// Returns whether a snapshot must and can be written because records need capacity.
    pub(crate) fn wants_space_snapshot(&mut self) -> bool {
        let c = &mut self.checkpoint;
        if !self.journal.is_unchanged() {
            c.journal_wants_snapshot = self.journal.needs_snapshot();
        }
        self.device_l2p.is_none()
            && (c.needs_journal_space || c.journal_wants_snapshot)
            && self.journal.durable() >= c.snapshot_lsn
            && self.journal.failed().is_none()
    }

    /// Whether a requested snapshot is not durable.
    pub(crate) fn is_snapshot_pending(&self) -> bool {
        let c = &self.checkpoint;
        c.needs_journal_space || self.journal.durable() < c.snapshot_lsn
    }

    /// Gives a snapshot with the base of the last checkpoint to the journal. Returns whether it was taken.
    pub(crate) fn write_space_snapshot(&mut self, snapshot: Vec<u8>) -> bool {
        let Ok(at) = self.journal.snapshot(snapshot) else { return false };
        (self.checkpoint.needs_journal_space, self.checkpoint.snapshot_lsn) = (false, at);
        self.on_owner_snapshot(at);
        true
    }

    /// Progress of the pages of the checkpoint in progress; `None` if no pages are to be written.
    #[inline]
    pub(crate) fn page_cursor(&self) -> Option<PageCursor> {
        match self.checkpoint.phase {
            Phase::WritePages(cursor) => Some(cursor),
            Phase::Idle | Phase::AwaitPages(_) | Phase::AwaitSnapshot(_) => None,
        }
    }

    /// Returns the number of pages that should be written by now. Pages are written in half of the
    /// interval; the other half covers delays.
    pub(crate) fn due_pages(&self, env: &Env, next_seq: WriteSeq) -> u64 {
        let c = &self.checkpoint;
        if self.is_checkpoint_urgent() {
            return u64::MAX;
        }
        c.pages.to_write_count() * 2 * c.pace.written_since(env, next_seq)
            / c.pace.interval().max(1)
            + 1
    }

    /// Returns the first page from this one on that the checkpoint in progress writes.
    pub(crate) fn next_checkpoint_page(&self, from: MapPageId) -> Option<MapPageId> {
        self.checkpoint.pages.next_to_write(from)
    }

    /// Records the progress of the pages.
    pub(crate) fn set_page_cursor(&mut self, cursor: PageCursor) {
        self.checkpoint.phase = Phase::WritePages(cursor);
    }

    /// Records that all pages are in the host ring. Pages that a flush has written meanwhile must
    /// be durable, too.
    pub(crate) fn await_pages(&mut self) {
        self.checkpoint.phase = Phase::AwaitPages(self.trims.pages_pos());
    }
}
