//! [`DeviceL2p`]: the FTL's remaining tasks when the drive keeps the map, the dual map of [Thesis15
//! ch. 6 §4.3].
//!
//! The drive builds the map from the out-of-band bytes of the sectors written. So there are no map
//! pages, and no lines in the journal: after a restart, lines are formed from any chunks. The FTL
//! provides what the drive cannot see:
//!
//! * **Trims** are sent with the flush that makes them durable ([`FlashBackend::device_trim`]). A
//!   bit per sector marks *pending* trims. A trim drops versions sequenced before the flush. If a
//!   sector was rewritten after its trim, the trim is sent only while no later copy is on the
//!   media: such a copy may be sequenced before the flush, too, and acknowledged.
//! * **Sequence numbers** are never used twice; otherwise the drive would take new data for old.
//!   The media does not record the number of a trim. So a range of numbers is reserved in the
//!   journal before the first one is used, and recovery begins behind it.
//! * **Lost sectors** ([`Oob::poison`](crate::Oob)) look like others in the drive's map. The
//!   journal names sectors that may be lost before a unit with such a copy is written. Recovery
//!   reads the out-of-band bytes of just those.
//!
//! In the journal, a snapshot's base is the end of the reserved numbers, it has no lines, and its
//! map page entries name sectors that may be lost: logical sector + 1, or 0 for none. If there are
//! more such sectors than entries, every entry is the number of physical sectors. The record of
//! such a sector is the byte 2, three bytes 0, and the logical sector.

use std::collections::BTreeSet;

use collections::BitSet;
use nvme::Status;
use serde::{Deserialize, Serialize};

use crate::check::{Subject, Violation, require};
use crate::durability::Durability;
use crate::durability::journal::Lsn;
use crate::durability::snapshot::{Snapshot, SnapshotEncoder};
use crate::env::Env;
use crate::ids::{Lba, LbaRun, MapPageId, ToIndex, ToU32, WriteSeq};
use crate::{CapacityPlan, FlashGeometry};

/// Maximum number of ranges per sync.
const TRIM_RANGES_MAX: usize = 256;

/// First byte of the record of a sector that may be lost.
const RECORD_MAYBE_LOST: u8 = 2;

/// Sequence numbers skipped when the journal is damaged. No drive lives to write as many units.
pub(crate) const SEQ_GAP_AFTER_DAMAGE: u64 = 1 << 36;

/// Progress of the sync of trims with the drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TrimSync {
    /// All trims are synced.
    Complete,
    /// The drive has not answered.
    InFlight,
    /// The drive has rejected the sync; the next flush retries it.
    Failed(Status),
    /// The [ranges](Durability::trim_ranges) are to be sent.
    Send,
}

/// State of a sync of trims with the drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum TrimSyncState {
    Idle,
    InFlight,
    Failed(Status),
    /// The sync failed, and is to be retried.
    Retry,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DeviceL2p {
    /// One bit per host sector: it was trimmed, and the drive may have an earlier copy.
    pending_trims: BitSet,
    sync_state: TrimSyncState,
    /// Ranges being synced, as first sector and length, and the sequence number that they hold for.
    ranges: Vec<LbaRun>,
    sync_seq: WriteSeq,
    /// Map page whose trims are being synced, and the position in it.
    cursor: Option<(MapPageId, Lba)>,
    /// End of the reserved sequence numbers; and the next end, with the journal position of its
    /// reservation.
    reserved_seq_end: WriteSeq,
    reservation: Option<(WriteSeq, Lsn)>,
    /// Number of sequence numbers reserved at a time.
    reserve_batch: u64,
    /// Sectors that may be lost; those not in the journal yet; and the journal position of the
    /// others.
    maybe_lost: BTreeSet<Lba>,
    unrecorded: Vec<Lba>,
    recorded_lsn: Lsn,
}

impl DeviceL2p {
    /// Creates the state without pending trims. Sequence numbers start at `from`.
    pub(crate) fn new(
        shape: &FlashGeometry,
        layout: &CapacityPlan,
        from: WriteSeq,
        lost: &[Lba],
    ) -> DeviceL2p {
        DeviceL2p {
            pending_trims: BitSet::new(layout.logical.index()),
            sync_state: TrimSyncState::Idle,
            ranges: Vec::with_capacity(TRIM_RANGES_MAX),
            sync_seq: WriteSeq(0),
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
    pub(crate) fn cursor_page(&self) -> Option<MapPageId> {
        self.cursor.map(|(page, _)| page)
    }

    /// Checks that all assigned sequence numbers are reserved.
    pub(crate) fn check(&self, next: WriteSeq) -> Result<(), Violation> {
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
    fn is_trim_pending(&self, lba: Lba) -> bool {
        self.pending_trims.contains(lba.index())
    }

    /// Records that a sector was trimmed.
    #[inline]
    pub(crate) fn mark_trimmed(&mut self, lba: Lba) {
        self.pending_trims.insert(lba.index());
    }

    fn mark_synced(&mut self, lba: Lba) {
        self.pending_trims.remove(lba.index());
    }

    /// Returns the first sector with a pending trim from `from` on and before `end`.
    fn next_pending_trim(&self, from: Lba, end: Lba) -> Option<Lba> {
        self.pending_trims.next_at(from.index()).map(Lba::from_index).filter(|at| *at < end)
    }

    /// Adds a sector to the ranges; returns `false` if they are full.
    fn add_range(&mut self, lba: Lba) -> bool {
        if let Some(range) = self.ranges.last_mut()
            && range.end() == lba
        {
            range.sectors += 1;
            return true;
        }
        if self.ranges.len() == TRIM_RANGES_MAX {
            return false;
        }
        self.ranges.push(LbaRun { first: lba, sectors: 1 });
        true
    }

    /// Returns whether there is something to sync besides the pages with trims.
    pub(crate) fn has_sync_work(&self) -> bool {
        self.sync_state != TrimSyncState::Idle || self.cursor.is_some()
    }

    /// Returns whether a sync is in flight.
    pub(crate) fn is_syncing(&self) -> bool {
        self.sync_state == TrimSyncState::InFlight
    }

    /// Encodes the sectors that may be lost as the page entries of the snapshot.
    fn encode_maybe_lost(&self, shape: &FlashGeometry, layout: &CapacityPlan) -> Vec<u32> {
        let meta = layout.map_pages.index();
        if self.maybe_lost.len() > meta {
            return vec![shape.total_sectors().to_u32(); meta];
        }
        let mut words: Vec<u32> = self.maybe_lost.iter().map(|lba| lba.get() + 1).collect();
        words.resize(meta, 0);
        words
    }

    /// Returns the sectors that may be lost, from a snapshot and the records behind it; `None` if
    /// there were too many to name.
    pub(crate) fn decode_maybe_lost(
        snapshot: &Snapshot,
        records: &[Vec<u8>],
        logical: u32,
    ) -> Option<BTreeSet<Lba>> {
        let sound = |lba| Some(Lba(lba)).filter(|_| lba < logical);
        let named = snapshot.pages.iter().filter_map(|w| w.checked_sub(1)).map(sound);
        let later = records.iter().map(|r| match *r.as_slice() {
            [RECORD_MAYBE_LOST, 0, 0, 0, a, b, c, d] => sound(u32::from_le_bytes([a, b, c, d])),
            _ => None,
        });
        named.chain(later).collect()
    }
}

/// Results of a step of the reservation of sequence numbers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReservationStep {
    pub(crate) moved: bool,
    /// A reservation is durable: units that waited for sequence numbers can get them.
    pub(crate) is_durable: bool,
    /// A reservation was given to the journal.
    pub(crate) has_begun: bool,
}

impl Durability {
    /// Returns whether a sector was trimmed and the trim is not synced with the drive.
    #[inline]
    pub(crate) fn is_trim_pending(&self, lba: Lba) -> bool {
        self.device_l2p.as_ref().is_some_and(|map| map.is_trim_pending(lba))
    }

    /// Whether trims are being sent to the drive.
    pub(crate) fn is_syncing_trims(&self) -> bool {
        self.device_l2p.as_ref().is_some_and(|map| map.is_syncing())
    }

    /// Makes the first `trimmed` trims durable. Everything written before them is sequenced up to
    /// `sequence` and durable. `needs_sync` returns whether no later copy of a trimmed sector is
    /// durable.
    pub(crate) fn sync_trims(
        &mut self,
        env: &Env,
        sequence: WriteSeq,
        trimmed: u64,
        needs_sync: impl Fn(Lba) -> bool,
    ) -> TrimSync {
        let Some(map) = &mut self.device_l2p else { return TrimSync::Complete };
        match map.sync_state {
            TrimSyncState::InFlight => TrimSync::InFlight,
            TrimSyncState::Failed(status) => {
                map.sync_state = TrimSyncState::Retry;
                TrimSync::Failed(status)
            }
            TrimSyncState::Retry => TrimSync::Send,
            TrimSyncState::Idle => {
                map.sync_seq = sequence;
                self.gather_trims(env, trimmed, needs_sync);
                let none = self.trim_ranges().is_empty();
                if none { TrimSync::Complete } else { TrimSync::Send }
            }
        }
    }

    fn gather_trims(&mut self, env: &Env, trimmed: u64, needs_sync: impl Fn(Lba) -> bool) {
        let Some(map) = &mut self.device_l2p else { return };
        map.ranges.clear();
        // Pages in ascending order let ranges span pages.
        self.trims.sort_dirty();
        loop {
            let first = |page| (page, env.pages.first_sector_of(page));
            let next = || self.trims.pop_dirty().map(first);
            let Some((page, mut at)) = map.cursor.take().or_else(next) else { return };
            let end = env.sectors_of_page(page).end();
            // Trimmed again since: copies written before the later trim may still get a
            // sequence number.
            let again = self.trims.is_later_than(page, trimmed);
            while let Some(lba) = map.next_pending_trim(at, end) {
                if needs_sync(lba) && !map.add_range(lba) {
                    map.cursor = Some((page, lba));
                    return;
                }
                if !again {
                    map.mark_synced(lba);
                }
                at = lba + 1;
            }
            self.trims.settle(page, again);
        }
    }

    /// Returns the ranges of trims to send.
    pub(crate) fn trim_ranges(&self) -> &[LbaRun] {
        self.device_l2p.as_ref().map_or(&[], |map| &map.ranges)
    }

    /// Returns the sequence number up to which the trims supersede copies.
    pub(crate) fn trim_sequence(&self) -> WriteSeq {
        self.device_l2p.as_ref().map_or(WriteSeq(0), |map| map.sync_seq)
    }

    /// Records that the trims were sent, and whether the drive accepted them.
    pub(crate) fn trims_sent(&mut self, taken: bool) -> TrimSync {
        let Some(map) = &mut self.device_l2p else { return TrimSync::Complete };
        if taken {
            map.sync_state = TrimSyncState::InFlight;
            return TrimSync::InFlight;
        }
        map.sync_state = TrimSyncState::Retry;
        TrimSync::Failed(Status::INVALID_OPCODE)
    }

    /// Records that the drive has answered.
    ///
    /// # Panics
    /// If no trims were sent.
    pub(crate) fn device_trim_done(&mut self, status: Status) {
        if let Some(map) = &mut self.device_l2p {
            assert!(map.sync_state == TrimSyncState::InFlight, "no device trim is in flight");
            let ok = status.is_success();
            map.sync_state = if ok { TrimSyncState::Idle } else { TrimSyncState::Failed(status) };
        }
    }

    /// Records that a sector's data is lost. The journal records it before the copy with the poison
    /// mark is written.
    pub(crate) fn record_maybe_lost(&mut self, lba: Lba) {
        if let Some(map) = &mut self.device_l2p
            && map.maybe_lost.insert(lba)
        {
            map.unrecorded.push(lba);
        }
    }

    /// Whether the next unit, of relocated data or the host's, may get the sequence number `next_seq`.
    #[inline]
    pub(crate) fn can_assign_seq(&self, next_seq: WriteSeq, is_relocated: bool) -> bool {
        let Some(map) = &self.device_l2p else { return true };
        let known = map.unrecorded.is_empty() && self.journal.durable() >= map.recorded_lsn;
        next_seq < map.reserved_seq_end && (!is_relocated || known)
    }

    /// Reserves sequence numbers, and writes the pending records to the journal. `is_lost` returns
    /// whether a sector may still be lost; its second argument is whether the sector has a pending
    /// trim.
    pub(crate) fn step_reservation(
        &mut self,
        env: &Env,
        next_seq: WriteSeq,
        is_lost: impl Fn(Lba, bool) -> bool,
    ) -> ReservationStep {
        let mut step = ReservationStep::default();
        let Some(map) = &mut self.device_l2p else { return step };
        if let Some((limit, at)) = map.reservation
            && self.journal.durable() >= at
        {
            (map.reserved_seq_end, map.reservation) = (limit, None);
            self.checkpoint.complete_reservation();
            (step.moved, step.is_durable) = (true, true);
        }
        while let Some(lba) = map.unrecorded.last() {
            let mut record = [RECORD_MAYBE_LOST, 0, 0, 0, 0, 0, 0, 0];
            record[4..].copy_from_slice(&lba.get().to_le_bytes());
            if self.journal.append(&record).is_err() {
                self.checkpoint.request_space();
                break;
            }
            map.unrecorded.pop();
            map.recorded_lsn = self.journal.flush();
            step.moved = true;
        }
        let short = next_seq + map.reserve_batch / 2 > map.reserved_seq_end;
        let wanted = short || self.checkpoint.is_wanted() || self.journal.needs_snapshot();
        if wanted && map.reservation.is_none() {
            step.has_begun = self.reserve_seqs(env, next_seq, is_lost);
            step.moved |= step.has_begun;
        }
        step
    }

    fn reserve_seqs(
        &mut self,
        env: &Env,
        next_seq: WriteSeq,
        is_lost: impl Fn(Lba, bool) -> bool,
    ) -> bool {
        let Some(map) = &mut self.device_l2p else { return false };
        let pending = &map.pending_trims;
        map.maybe_lost.retain(|&lba| is_lost(lba, pending.contains(lba.index())));
        let limit = map.reserved_seq_end.max(next_seq + map.reserve_batch);
        let mut snapshot = SnapshotEncoder::new(&env.geometry, &env.plan, limit, 0);
        for page in map.encode_maybe_lost(&env.geometry, &env.plan) {
            snapshot.put_page(page);
        }
        let Ok(at) = self.journal.snapshot(snapshot.finish(&[])) else {
            self.checkpoint.abort_reservation(self.journal.failed().is_some());
            return false;
        };
        map.reservation = Some((limit, at));
        map.unrecorded.clear();
        map.recorded_lsn = at;
        self.checkpoint.begin_reservation(at);
        true
    }
}
