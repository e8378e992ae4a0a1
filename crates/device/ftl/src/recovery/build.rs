//! Builds the FTL from the results of the recovery.

use super::{NewestCopies, Phase, Recovery, RecoveryError, ScanObservations};
use crate::Ftl;
use crate::durability::snapshot::LineEntry;
use crate::env::Env;

impl Recovery {
    /// The layer as it was, less what was not durable. If too many chunks went bad, it can be read
    /// and trimmed, and writes fail with [`Status::CAPACITY_EXCEEDED`](nvme::Status::CAPACITY_EXCEEDED).
    ///
    /// # Errors
    /// [`RecoveryError`].
    pub fn finish(mut self) -> Result<Ftl, RecoveryError> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        let (Some(journal), Phase::Done) = (self.journal.take(), &self.phase) else {
            return Err(RecoveryError::Unfinished);
        };
        self.assign_lost_locations();
        debug_assert!(self.has_unique_locations(), "two sectors in one place");
        let base_seq = self.base_seq().max(1);
        let oldest = self.lines.iter().map(|l| l.max_seq).filter(|n| *n != u64::MAX);
        let next_seq = match self.first_free_seq() {
            Some(next) => next,
            None => self.copies.next_seq().max(base_seq).max(oldest.max().unwrap_or(0) + 1),
        };
        let state = RecoveredState {
            env: Env { geometry: self.geometry, config: self.config, plan: self.plan },
            base_seq,
            next_seq,
            has_device_l2p: self.device_l2p.is_some(),
            full_scan: self.full_scan,
            l2p_entries: self.l2p_entries,
            poison: self.poison,
            pages: self.page_queue,
            lost_pages: self.lost_pages,
            copies: self.copies,
            observations: self.observations,
            lines: self.lines,
            journal_chunks: self.journal_chunks,
            lost: self.lost,
        };
        Ok(state.restore(journal)?)
    }
}

/// Plain data of a recovery, from which the layer is made.
#[derive(Debug)]
pub(crate) struct RecoveredState {
    pub(crate) env: Env,
    /// All units with smaller sequence numbers are in the translation pages.
    pub(crate) base_seq: u64,
    /// The sequence number of the next unit.
    pub(crate) next_seq: u64,
    /// The drive keeps the map.
    pub(crate) has_device_l2p: bool,
    /// Everything on flash was scanned.
    pub(crate) full_scan: bool,
    /// By logical sector, its physical sector plus 1; empty for a cached map.
    pub(crate) l2p_entries: Vec<u32>,
    /// Logical sectors whose data was lost.
    pub(crate) poison: Vec<u32>,
    /// Translation pages: the physical sector and the page.
    pub(crate) pages: Vec<(u32, u32)>,
    /// Translation pages whose latest version is lost.
    pub(crate) lost_pages: Vec<u32>,
    /// Copies that are newer than the translation pages.
    pub(crate) copies: NewestCopies,
    pub(crate) observations: ScanObservations,
    pub(crate) lines: Vec<LineEntry>,
    pub(crate) journal_chunks: Vec<u32>,
    /// Logical sectors whose latest version is lost.
    pub(crate) lost: Vec<u32>,
}
