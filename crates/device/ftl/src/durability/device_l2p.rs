//! [`DeviceL2p`]: what is left for the layer to do when the drive keeps the map (thesis chapter 6,
//! section 4.3, the dual map: "the host does not maintain the on-disk translation table durably").
//!
//! The drive takes the map from the out-of-band bytes of what is written, so that there are no pages
//! of the map, and no lines in the journal: after a restart any chunks are lines together. What the
//! drive cannot see is the layer's:
//!
//! * **Trims** are told with the flush that makes them durable ([`FlashBackend::device_trim`]). *Untold* sectors
//!   have a bit each. A trim takes back what is numbered below the flush; a sector that was written
//!   again since is told of only as long as no copy since the trim is on the media, because such a
//!   copy may be numbered below it, too, and promised.
//! * **Numbers** of write units are never used twice, or the drive would take what is new for old: of
//!   a trim, nothing on the media tells which number it had. So a range of them is reserved in the
//!   journal before the first one is used, and recovery begins behind it.
//! * **Lost sectors** ([`Oob::poison`](crate::Oob)) look like others in the drive's map. The journal
//!   names sectors that may be lost, before a unit with such a copy is written; recovery looks at the
//!   out-of-band bytes of just those.
//!
//! In the journal a snapshot's base is the end of the reserved numbers, it has no lines, and its words
//! of map pages name the suspects: logical sector + 1, 0 for none; all of them the number of physical
//! sectors when there are more suspects than words. The record of a suspect is the byte 2, three of 0,
//! and the logical sector.

use std::collections::BTreeSet;

use clock::Nanos;
use nvme::Status;

use crate::buffer::write_ring::UnitState;
use crate::check::{Subject, Violation, require};
use crate::durability::journal::Lsn;
use crate::durability::snapshot::Snapshot;
use crate::flash::OpKind;
use crate::ftl::{GC, HOST};
use crate::mapping::translation_page::TranslationPage;
use crate::{CapacityPlan, FlashBackend, FlashGeometry, Ftl, L2pEntry, OpToken};

/// Runs of sectors that are told of at a time.
const TRIM_RANGES_MAX: usize = 256;

/// The first byte of the record of a suspect.
const RECORD_MAYBE_LOST: u8 = 2;

/// Numbers that are skipped when the journal is damaged: no drive lives to write as many units.
pub(crate) const SEQ_GAP_AFTER_DAMAGE: u64 = 1 << 36;

/// How far telling the drive of trims is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TrimSync {
    /// All have been told.
    Complete,
    /// The drive has not answered.
    InFlight,
    /// The drive has refused; the next flush tells it again.
    Failed(Status),
}

/// The trims that are being told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TrimSyncState {
    Idle,
    InFlight,
    Failed(Status),
    /// Failed before, to be told again.
    Retry,
}

#[derive(Clone, Debug)]
pub(crate) struct DeviceL2p {
    /// One bit per users' sector: it was trimmed, and the drive may have a copy from before.
    pending_trims: Box<[u64]>,
    sync_state: TrimSyncState,
    /// What is being told: first sectors and how many; and as of which number.
    ranges: Vec<(u32, u32)>,
    sync_seq: u64,
    /// The page of those trimmed that is being told, and where to go on in it.
    cursor: Option<(u32, u32)>,
    /// Units are numbered below this; the next such limit, and where the journal says so.
    reserved_seq_end: u64,
    reservation: Option<(u64, Lsn)>,
    /// Numbers that are reserved at a time.
    reserve_batch: u64,
    /// Sectors that may be lost; those that the journal has no room for yet; where the others are.
    maybe_lost: BTreeSet<u32>,
    unrecorded: Vec<u32>,
    recorded_lsn: Lsn,
}

impl DeviceL2p {
    /// Nothing to tell, and every unit is numbered `from` or more.
    pub(crate) fn new(
        shape: &FlashGeometry,
        layout: &CapacityPlan,
        from: u64,
        lost: &[u32],
    ) -> DeviceL2p {
        DeviceL2p {
            pending_trims: vec![0; (layout.logical as usize).div_ceil(64)].into(),
            sync_state: TrimSyncState::Idle,
            ranges: Vec::with_capacity(TRIM_RANGES_MAX),
            sync_seq: 0,
            cursor: None,
            reserved_seq_end: from,
            reservation: None,
            reserve_batch: (2 * layout.checkpoint_sectors / u64::from(shape.ws_opt)).max(64),
            maybe_lost: lost.iter().copied().collect(),
            unrecorded: Vec::new(),
            recorded_lsn: Lsn(0),
        }
    }

    /// The page whose trims did not all fit the last sync.
    pub(crate) fn cursor_page(&self) -> Option<u32> {
        self.cursor.map(|(page, _)| page)
    }

    /// Checks that all assigned sequence numbers are reserved.
    pub(crate) fn check(&self, next: u64) -> Result<(), Violation> {
        require!(
            next <= self.reserved_seq_end,
            Durability,
            "sequence numbers are reserved",
            Subject::Part,
            format_args!("at most {}", self.reserved_seq_end),
            next
        );
        Ok(())
    }

    #[inline]
    fn is_trim_pending(&self, lba: u32) -> bool {
        self.pending_trims.get(lba as usize / 64).is_some_and(|w| w >> (lba % 64) & 1 != 0)
    }

    /// A sector was trimmed.
    #[inline]
    pub(crate) fn mark_trimmed(&mut self, lba: u32) {
        self.pending_trims[lba as usize / 64] |= 1 << (lba % 64);
    }

    fn mark_synced(&mut self, lba: u32) {
        self.pending_trims[lba as usize / 64] &= !(1 << (lba % 64));
    }

    /// The first untold sector from `from` on and before `end`.
    fn next_pending_trim(&self, from: u32, end: u32) -> Option<u32> {
        let mut at = from;
        while at < end {
            let rest = self.pending_trims[at as usize / 64] >> (at % 64);
            if rest != 0 {
                return Some(at + rest.trailing_zeros()).filter(|at| *at < end);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }

    /// Adds a sector to what is told; `false` if there is no room.
    fn add_range(&mut self, lba: u32) -> bool {
        if let Some((first, count)) = self.ranges.last_mut()
            && *first + *count == lba
        {
            *count += 1;
            return true;
        }
        if self.ranges.len() == TRIM_RANGES_MAX {
            return false;
        }
        self.ranges.push((lba, 1));
        true
    }

    /// Whether there is something to be told beside the pages with trims.
    pub(crate) fn has_sync_work(&self) -> bool {
        self.sync_state != TrimSyncState::Idle || self.cursor.is_some()
    }

    /// Whether the drive is being told.
    pub(crate) fn is_syncing(&self) -> bool {
        self.sync_state == TrimSyncState::InFlight
    }

    /// The words of the snapshot.
    fn encode_maybe_lost(&self, shape: &FlashGeometry, layout: &CapacityPlan) -> Vec<u32> {
        let meta = layout.map_pages as usize;
        if self.maybe_lost.len() > meta {
            return vec![shape.total_sectors() as u32; meta];
        }
        let mut words: Vec<u32> = self.maybe_lost.iter().map(|lba| lba + 1).collect();
        words.resize(meta, 0);
        words
    }

    /// The suspects of a snapshot and the records behind it; `None` if it does not tell.
    pub(crate) fn decode_maybe_lost(
        snapshot: &Snapshot,
        records: &[Vec<u8>],
        logical: u32,
    ) -> Option<BTreeSet<u32>> {
        let sound = |lba: u32| Some(lba).filter(|lba| *lba < logical);
        let named = snapshot.pages.iter().filter_map(|w| w.checked_sub(1)).map(sound);
        let later = records.iter().map(|r| match *r.as_slice() {
            [RECORD_MAYBE_LOST, 0, 0, 0, a, b, c, d] => sound(u32::from_le_bytes([a, b, c, d])),
            _ => None,
        });
        named.chain(later).collect()
    }
}

impl Ftl {
    /// The trim that a sector written now comes after and that the drive was not told of: a name for
    /// it, or 0.
    #[inline]
    pub(crate) fn trim_before(&self, lba: u32, old: L2pEntry) -> u64 {
        let Some(map) = &self.durability.device_l2p else { return 0 };
        match old {
            L2pEntry::Unmapped if map.is_trim_pending(lba) => {
                self.buffer.rings[HOST].head_pos() + 1
            }
            L2pEntry::Buffer(slot) if slot < self.buffer.rings[HOST].capacity() => {
                let ring = &self.buffer.rings[HOST];
                let unit = &ring.units[ring.unit_of_slot(slot)];
                if unit.state < UnitState::Persisted { ring.entry(slot).trim_dep } else { 0 }
            }
            L2pEntry::Unmapped | L2pEntry::Buffer(_) | L2pEntry::Flash(_) | L2pEntry::Lost => 0,
        }
    }

    /// Whether no copy of an untold sector since its trim is on the media.
    fn needs_trim_sync(&self, lba: u32) -> bool {
        match self.mapping.get(lba) {
            L2pEntry::Unmapped => true,
            L2pEntry::Flash(_) | L2pEntry::Lost => false,
            L2pEntry::Buffer(slot) if slot < self.buffer.rings[HOST].capacity() => {
                let ring = &self.buffer.rings[HOST];
                let unit = &ring.units[ring.unit_of_slot(slot)];
                unit.state < UnitState::Persisted && ring.entry(slot).trim_dep != 0
            }
            L2pEntry::Buffer(_) => false,
        }
    }

    /// Tells the drive the first `trimmed` sectors that were trimmed: everything that was written
    /// before is numbered up to `sequence`, and everything numbered so is on the media.
    pub(crate) fn sync_trims(
        &mut self,
        now: Nanos,
        sequence: u64,
        trimmed: u64,
        flash: &mut impl FlashBackend,
    ) -> TrimSync {
        let Some(mut map) = self.durability.device_l2p.take() else { return TrimSync::Complete };
        let told = match map.sync_state {
            TrimSyncState::InFlight => TrimSync::InFlight,
            TrimSyncState::Failed(status) => {
                map.sync_state = TrimSyncState::Retry;
                TrimSync::Failed(status)
            }
            TrimSyncState::Retry => self.send_trims(now, &mut map, flash),
            TrimSyncState::Idle => {
                map.sync_seq = sequence;
                self.gather_trims(&mut map, trimmed);
                if map.ranges.is_empty() {
                    TrimSync::Complete
                } else {
                    self.send_trims(now, &mut map, flash)
                }
            }
        };
        self.durability.device_l2p = Some(map);
        told
    }

    fn gather_trims(&mut self, map: &mut DeviceL2p, trimmed: u64) {
        map.ranges.clear();
        let count = TranslationPage::entries_per_page(&self.env.geometry);
        // So that what is taken off the end ascends, and runs go on over pages.
        self.durability.trims.sort_dirty();
        loop {
            let next = || self.durability.trims.pop_dirty().map(|page| (page, page * count));
            let Some((page, mut at)) = map.cursor.take().or_else(next) else { return };
            let end = ((page + 1) * count).min(self.env.plan.logical);
            // Trimmed again since: copies of that may yet be given a number.
            let again = self.durability.trims.is_later_than(page, trimmed);
            while let Some(lba) = map.next_pending_trim(at, end) {
                if self.needs_trim_sync(lba) && !map.add_range(lba) {
                    map.cursor = Some((page, lba));
                    return;
                }
                if !again {
                    map.mark_synced(lba);
                }
                at = lba + 1;
            }
            self.durability.trims.settle(page, again);
        }
    }

    fn send_trims(
        &mut self,
        now: Nanos,
        map: &mut DeviceL2p,
        flash: &mut impl FlashBackend,
    ) -> TrimSync {
        self.stats.trims_synced += map.ranges.iter().map(|(_, n)| u64::from(*n)).sum::<u64>();
        if flash.device_trim(now, OpToken::new(OpKind::Trim, 0), &map.ranges, map.sync_seq) {
            map.sync_state = TrimSyncState::InFlight;
            return TrimSync::InFlight;
        }
        map.sync_state = TrimSyncState::Retry;
        TrimSync::Failed(Status::INVALID_OPCODE)
    }

    /// The drive has answered [`FlashBackend::device_trim`]. [`kick`](Ftl::kick) afterwards.
    pub fn device_trim_done(&mut self, now: Nanos, status: Status, flash: &mut impl FlashBackend) {
        if let Some(map) = &mut self.durability.device_l2p {
            assert!(map.sync_state == TrimSyncState::InFlight, "no device trim is in flight");
            let ok = status.is_success();
            map.sync_state = if ok { TrimSyncState::Idle } else { TrimSyncState::Failed(status) };
        }
        self.complete_barriers(now, flash);
    }

    /// A sector's data is lost: the journal is to say so before the copy that says it is written.
    pub(crate) fn note_maybe_lost(&mut self, lba: u32) {
        if let Some(map) = &mut self.durability.device_l2p
            && map.maybe_lost.insert(lba)
        {
            map.unrecorded.push(lba);
        }
    }

    /// Whether the next unit of a ring may be given a number.
    #[inline]
    pub(crate) fn can_assign_seq(&self, ring: usize) -> bool {
        let Some(map) = &self.durability.device_l2p else { return true };
        let known =
            map.unrecorded.is_empty() && self.durability.journal.durable() >= map.recorded_lsn;
        self.buffer.sequencer.next_seq() < map.reserved_seq_end && (ring != GC || known)
    }

    /// Reserves numbers, and brings what the journal must say to it.
    pub(crate) fn step_seq_reservation(&mut self) -> bool {
        let Some(mut map) = self.durability.device_l2p.take() else { return false };
        let mut moved = false;
        if let Some((limit, at)) = map.reservation
            && self.durability.journal.durable() >= at
        {
            (map.reserved_seq_end, map.reservation) = (limit, None);
            self.durability.checkpoint.complete_reservation();
            self.space.programs.unblock();
            moved = true;
        }
        while let Some(lba) = map.unrecorded.last() {
            let mut record = [RECORD_MAYBE_LOST, 0, 0, 0, 0, 0, 0, 0];
            record[4..].copy_from_slice(&lba.to_le_bytes());
            if self.durability.journal.append(&record).is_err() {
                self.request_snapshot();
                break;
            }
            map.unrecorded.pop();
            map.recorded_lsn = self.durability.journal.flush();
            moved = true;
        }
        let short = self.buffer.sequencer.next_seq() + map.reserve_batch / 2 > map.reserved_seq_end;
        let wanted = short
            || self.durability.checkpoint.is_wanted()
            || self.durability.journal.needs_snapshot();
        if wanted && map.reservation.is_none() {
            moved |= self.reserve_seqs(&mut map);
        }
        self.durability.device_l2p = Some(map);
        moved
    }

    fn reserve_seqs(&mut self, map: &mut DeviceL2p) -> bool {
        // What is on the media and whole, or trimmed for good, is above suspicion.
        map.maybe_lost.retain(|&lba| match self.mapping.get(lba) {
            L2pEntry::Flash(psn) => self.mapping.is_poisoned(psn),
            L2pEntry::Unmapped => map.pending_trims[lba as usize / 64] >> (lba % 64) & 1 != 0,
            L2pEntry::Buffer(_) | L2pEntry::Lost => true,
        });
        let limit = map.reserved_seq_end.max(self.buffer.sequencer.next_seq() + map.reserve_batch);
        let snapshot = Snapshot {
            usable_chunks: self.env.plan.usable_chunks,
            base_seq: limit,
            pages: map.encode_maybe_lost(&self.env.geometry, &self.env.plan),
            lines: Vec::new(),
        };
        let Ok(at) =
            self.durability.journal.snapshot(snapshot.encode(&self.env.geometry, &self.env.plan))
        else {
            self.durability
                .checkpoint
                .abort_reservation(self.durability.journal.failed().is_some());
            return false;
        };
        map.reservation = Some((limit, at));
        map.unrecorded.clear();
        map.recorded_lsn = at;
        self.durability.checkpoint.begin_reservation(at);
        self.stats.checkpoints += 1;
        true
    }
}
