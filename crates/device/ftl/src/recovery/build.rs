//! Builds the FTL from the results of the recovery.

use super::lines::FoundLines;
use super::named::NamedContents;
use super::pages::FoundPages;
use super::recovered_map::MapContents;
use super::{NewestCopies, PageLocation, Phase, Recovery, RecoveryError, ScanObservations};
use crate::Ftl;
use crate::env::Env;
use crate::ids::{Lba, MapPageId, WriteSeq};

impl Recovery {
    /// Returns the FTL with its durable state. If too many chunks are bad, it can be read and
    /// trimmed, and writes fail with
    /// [`Status::CAPACITY_EXCEEDED`](nvme::Status::CAPACITY_EXCEEDED).
    ///
    /// # Errors
    ///
    /// [`RecoveryError`].
    pub fn finish(mut self) -> Result<Ftl, RecoveryError> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        let (Some(journal), Phase::Done) = (self.journal.take(), &self.phase) else {
            return Err(RecoveryError::Unfinished);
        };
        let base_seq = self.baseline.base_seq();
        let read = self.lines.newer_than(base_seq).flat_map(|line| line.chunks.iter().copied());
        let places = self.observations.possible_locations(&self.env.geometry, read);
        self.map.assign_lost_locations(self.pages.found(), places);
        if cfg!(debug_assertions) {
            let checked = self.check_invariants();
            let checked =
                checked.and_then(|()| self.map.check_invariants(&self.env, self.pages.found()));
            checked.unwrap_or_else(|violation| panic!("{violation}"));
        }
        let next_seq = self.next_seq(self.map.copies());
        let MapContents { l2p_entries, poison, lost, copies, named } = self.map.into_contents();
        let named = self.baseline.has_names.then(|| named.into_contents(&self.env));
        let named_seq = named.as_ref().map_or(WriteSeq(1), |named| named.next_seq);
        let found_lines = self.lines.into_parts();
        let FoundPages { pages, lost: lost_pages } = self.pages.into_found();
        let state = RecoveredState {
            env: self.env,
            base_seq: base_seq.max(WriteSeq(1)),
            next_seq: next_seq.max(named_seq),
            has_device_l2p: self.device_l2p.is_some(),
            full_scan: self.baseline.full_scan,
            l2p_entries,
            poison,
            pages,
            lost_pages,
            copies,
            observations: self.observations,
            found_lines,
            named,
            lost,
            owner_state: self.baseline.owner_state,
        };
        Ok(state.restore(journal)?)
    }
}

/// Plain data of a recovery, from which the FTL is built.
#[derive(Debug)]
pub(crate) struct RecoveredState {
    pub(crate) env: Env,
    /// All units with smaller sequence numbers are in the translation pages.
    pub(crate) base_seq: WriteSeq,
    /// The sequence number of the next unit.
    pub(crate) next_seq: WriteSeq,
    /// Whether the drive keeps the map.
    pub(crate) has_device_l2p: bool,
    /// Whether all of the flash was scanned.
    pub(crate) full_scan: bool,
    /// By logical sector, its physical sector plus 1; empty for a cached map.
    pub(crate) l2p_entries: Vec<u32>,
    /// Logical sectors whose data was lost.
    pub(crate) poison: Vec<Lba>,
    /// The latest versions of the translation pages.
    pub(crate) pages: Vec<PageLocation>,
    /// Translation pages whose latest version is lost.
    pub(crate) lost_pages: Vec<MapPageId>,
    /// Copies that are newer than the translation pages.
    pub(crate) copies: NewestCopies,
    pub(crate) observations: ScanObservations,
    pub(crate) found_lines: FoundLines,
    /// Present if sectors have names.
    pub(crate) named: Option<NamedContents>,
    /// Logical sectors whose latest version is lost.
    pub(crate) lost: Vec<Lba>,
    /// The state that the owner keeps in the journal.
    pub(crate) owner_state: Vec<u8>,
}
