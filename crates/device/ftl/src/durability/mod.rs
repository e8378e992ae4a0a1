//! Durability: barriers, trims, checkpoints, the map that a drive keeps, the state that the owner keeps,
//! and the journal.

pub(crate) mod barriers;
pub(crate) mod checkpoint;
mod checkpoint_pace;
pub(crate) mod device_l2p;
mod dirty_pages;
pub mod journal;
mod loss_epochs;
pub(crate) mod owner_state;
pub(crate) mod snapshot;
pub(crate) mod trims;

use nvme::Status;
use serde::{Deserialize, Serialize};
use time::Nanos;

use crate::check::Violation;
use crate::env::Env;
use crate::ids::{Lba, LineId, MapPageId, WriteSeq};
use barriers::{Barrier, BarrierOwner, BarrierQueue, DeferredFlush, TrimDep};
use checkpoint::Checkpoint;
use device_l2p::DeviceL2p;
use journal::{Journal, JournalFlash, Lsn};
use owner_state::DurableOwnerState;
use snapshot::LineOpened;
use trims::TrimLog;

/// State that makes data and trims durable.
///
/// Invariants: barriers are in the order of their positions; a page with trims is listed; a
/// checkpoint's base is not above the low watermark of sequence numbers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Durability {
    journal: Journal,
    checkpoint: Checkpoint,
    /// Present if the drive keeps the map.
    device_l2p: Option<Box<DeviceL2p>>,
    barriers: BarrierQueue,
    trims: TrimLog,
    /// Present if the journal keeps a state of the owner.
    owner_state: Option<Box<DurableOwnerState>>,
}

impl Durability {
    /// Creates the state without pending work. All units with sequence numbers below `base_seq` are
    /// in translation pages. `device_l2p` is present if the drive keeps the map. `owner_state` is empty if
    /// there is none.
    pub(crate) fn new(
        env: &Env,
        journal: Journal,
        base_seq: WriteSeq,
        device_l2p: Option<DeviceL2p>,
        owner_state: Vec<u8>,
    ) -> Durability {
        Durability {
            journal,
            checkpoint: Checkpoint::new(&env.plan, &env.config, base_seq),
            device_l2p: device_l2p.map(Box::new),
            barriers: BarrierQueue::default(),
            trims: TrimLog::new(env.plan.map_pages),
            owner_state: (!owner_state.is_empty())
                .then(|| Box::new(DurableOwnerState::new(owner_state))),
        }
    }

    /// The journal, to be read.
    #[inline]
    pub(crate) fn journal(&self) -> &Journal {
        &self.journal
    }

    /// The state of checkpoints, to be read.
    #[inline]
    pub(crate) fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// The barriers, to be read.
    #[inline]
    pub(crate) fn barriers(&self) -> &BarrierQueue {
        &self.barriers
    }

    /// The trims, to be read.
    #[inline]
    pub(crate) fn trims(&self) -> &TrimLog {
        &self.trims
    }

    /// Whether the drive keeps the map.
    #[inline]
    pub(crate) fn has_device_l2p(&self) -> bool {
        self.device_l2p.is_some()
    }

    /// Starts all possible operations of the journal. Returns whether any was started.
    pub(crate) fn kick_journal(&mut self, now: Nanos, flash: &mut impl JournalFlash) -> bool {
        self.journal.kick(now, flash)
    }

    /// Records that a program of the journal has ended.
    pub(crate) fn journal_program_done(&mut self, op: u32, status: Status) {
        self.journal.program_done(op, status);
    }

    /// Records that an erase of the journal has ended.
    pub(crate) fn journal_erase_done(&mut self, op: u32, status: Status) {
        self.journal.erase_done(op, status);
    }

    /// Appends the record of an opened line. Returns the position up to which the journal must be
    /// durable before the line takes units. Returns `None` if the journal has no capacity before
    /// the next snapshot, which is requested.
    pub(crate) fn line_opened(&mut self, opened: &LineOpened) -> Option<Lsn> {
        if self.journal.append(&opened.encode()).is_err() {
            self.request_snapshot();
            return None;
        }
        Some(self.journal.flush())
    }

    /// Adds a barrier at a position of the host's rings. It waits for `owner_changes` changes of the owner's
    /// state.
    pub(crate) fn add_barrier(
        &mut self,
        position: u64,
        owner: BarrierOwner,
        trim_dep: TrimDep,
        owner_changes: u64,
    ) {
        let trim_epoch = self.trims.epoch();
        self.barriers.add(Barrier { position, owner, trim_dep, trim_epoch, owner_changes });
    }

    /// Replaces the first barrier's dependency on trims.
    pub(crate) fn set_front_dep(&mut self, trim_dep: TrimDep) {
        self.barriers.set_front_dep(trim_dep);
    }

    /// Removes the first barrier.
    pub(crate) fn pop_barrier(&mut self) {
        self.barriers.pop();
    }

    /// Removes the last barrier of a host request, and returns its owner.
    pub(crate) fn pop_last_host(&mut self) -> Option<BarrierOwner> {
        self.barriers.pop_last_host()
    }

    /// Defers the completion of a host request that has passed its barrier.
    pub(crate) fn defer_flush(&mut self, flush: DeferredFlush) {
        self.barriers.defer(flush);
    }

    /// Removes the oldest deferred request, and returns its tag.
    pub(crate) fn pop_deferred(&mut self) -> Option<u64> {
        self.barriers.pop_deferred()
    }

    /// Records that a mapped sector of a translation page is trimmed.
    #[inline]
    pub(crate) fn trimmed(&mut self, lba: Lba, page: MapPageId) {
        self.trims.record(page);
        match &mut self.device_l2p {
            Some(map) => map.mark_trimmed(lba),
            None => self.checkpoint.mark_dirty(page),
        }
    }

    /// Returns whether there are trims that are not durable.
    pub(crate) fn has_trims(&self) -> bool {
        // With an L2P of the drive. Trims to be sent again join the next flush.
        self.device_l2p.as_ref().is_some_and(|m| m.has_sync_work())
            || self.trims.has_redirtied()
            || self.trims.has_dirty()
    }

    /// Takes the next page of those with trims among the first `trimmed` ones, which is to be written.
    pub(crate) fn next_trimmed_page(&mut self, trimmed: u64) -> Option<MapPageId> {
        loop {
            let page = self.trims.pop_dirty()?;
            if self.trims.clear_written(page) {
                continue;
            }
            // The next flush handles a page with later trims: copies of the trimmed sectors may be
            // in units that have no location yet, or are not durable.
            self.trims.settle(page, self.trims.is_later_than(page, trimmed));
            return Some(page);
        }
    }

    /// Records that the flush has handled all pages. Remaining ones belong to the next flush.
    pub(crate) fn start_next_trims(&mut self) {
        self.trims.start_next();
    }

    /// Returns whether a translation page can be evicted without being written.
    pub(crate) fn is_page_clean(&self, page: MapPageId) -> bool {
        !self.checkpoint.is_dirty(page) && self.trims.is_written(page)
    }

    /// Records that a page differs from its copy on flash.
    #[inline]
    pub(crate) fn mark_dirty(&mut self, page: MapPageId) {
        self.checkpoint.mark_dirty(page);
    }

    /// Records that a host sector's location on flash differs from the one in its page's copy.
    pub(crate) fn mark_sector_dirty(&mut self, env: &Env, lba: Lba) {
        if lba < env.plan.host_end() && self.device_l2p.is_none() {
            self.checkpoint.mark_dirty(env.pages.page_of(lba));
        }
    }

    /// Records that a page was encoded from the current entries; with `unpinned` it includes all of
    /// its trims.
    pub(crate) fn page_made(&mut self, page: MapPageId, unpinned: bool) {
        if unpinned {
            self.trims.mark_written(page);
        }
        self.checkpoint.mark_clean(page);
    }

    /// Records that a page was appended to the host ring in front of this position.
    pub(crate) fn page_written(&mut self, position: u64) {
        self.trims.set_pages_pos(position);
        self.checkpoint.exclude(1);
    }

    /// Records that the host wrote or trimmed, or requested a relocation.
    #[inline]
    pub(crate) fn record_host_change(&mut self) {
        self.checkpoint.record_host_change();
    }

    /// Counts a unit with `sectors` relocated sectors.
    #[inline]
    pub(crate) fn record_relocated(&mut self, sectors: u32) {
        self.checkpoint.record_relocated(sectors);
    }

    /// Records a loss that the last checkpoint does not include; the next checkpoint begins.
    pub(crate) fn record_loss(&mut self) {
        self.checkpoint.record_loss();
    }

    /// Checks barriers, trims and checkpoints, and returns the lines that wait to be erased; `head` is the
    /// position of the host's rings, `low` and `next` the limits of sequence numbers in flight.
    pub(crate) fn check_invariants(
        &self,
        head: u64,
        low: WriteSeq,
        next: WriteSeq,
    ) -> Result<Vec<LineId>, Violation> {
        let waiting = self.barriers.check(head, self.trims.epoch())?;
        let cursor = self.device_l2p.as_ref().and_then(|m| m.cursor_page());
        self.trims.check(cursor, head)?;
        self.checkpoint.check(low)?;
        self.journal.check_invariants()?;
        if let Some(state) = &self.owner_state {
            state.check()?;
        }
        if let Some(map) = &self.device_l2p {
            map.check(next)?;
        }
        Ok(waiting)
    }

    /// Breaks the count of host requests.
    #[cfg(test)]
    pub(crate) fn break_host_requests(&mut self) {
        self.barriers.break_host_requests();
    }

    /// The owner's state, for tests that break an invariant.
    #[cfg(test)]
    pub(crate) fn owner_state_mut(&mut self) -> Option<&mut DurableOwnerState> {
        self.owner_state.as_deref_mut()
    }

    /// The journal, for tests that break an invariant.
    #[cfg(test)]
    pub(crate) fn journal_mut(&mut self) -> &mut Journal {
        &mut self.journal
    }

    /// The checkpoint, for tests that break an invariant.
    #[cfg(test)]
    pub(crate) fn checkpoint_mut(&mut self) -> &mut Checkpoint {
        &mut self.checkpoint
    }

    /// The trims, for tests that break an invariant.
    #[cfg(test)]
    pub(crate) fn trims_mut(&mut self) -> &mut TrimLog {
        &mut self.trims
    }
}
