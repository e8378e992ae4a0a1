//! [`DriveMap`]: what is left for the layer to do when the drive keeps the map (thesis chapter 6,
//! section 4.3, the dual map: "the host does not maintain the on-disk translation table durably").
//!
//! The drive takes the map from the out-of-band bytes of what is written, so that there are no pages
//! of the map, and no lines in the journal: after a restart any chunks are lines together. What the
//! drive cannot see is the layer's:
//!
//! * **Trims** are told with the flush that makes them durable ([`Flash::forget`]). *Untold* sectors
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

use crate::flash::OpKind;
use crate::ftl::{GC, STREAMS, USER};
use crate::journal::Position;
use crate::map_page::MapPage;
use crate::snapshot::Snapshot;
use crate::write_ring::UnitState;
use crate::{Flash, Ftl, Layout, Location, OpId, Shape};

/// Runs of sectors that are told of at a time.
const RANGES: usize = 256;

/// The first byte of the record of a suspect.
const SUSPECT: u8 = 2;

/// Numbers that are skipped when the journal is damaged: no drive lives to write as many units.
pub(crate) const SKIP: u64 = 1 << 36;

/// How far telling the drive of trims is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// All have been told.
    All,
    /// The drive has not answered.
    UnderWay,
    /// The drive has refused; the next flush tells it again.
    Failed(Status),
}

/// The trims that are being told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Telling {
    Nothing,
    UnderWay,
    Failed(Status),
    /// Failed before, to be told again.
    Again,
}

#[derive(Clone, Debug)]
pub(crate) struct DriveMap {
    /// One bit per users' sector: it was trimmed, and the drive may have a copy from before.
    untold: Box<[u64]>,
    telling: Telling,
    /// What is being told: first sectors and how many; and as of which number.
    ranges: Vec<(u32, u32)>,
    sequence: u64,
    /// The page of those trimmed that is being told, and where to go on in it.
    cursor: Option<(u32, u32)>,
    /// Units are numbered below this; the next such limit, and where the journal says so.
    limit: u64,
    asked: Option<(u64, Position)>,
    /// Numbers that are reserved at a time.
    stretch: u64,
    /// Sectors that may be lost; those that the journal has no room for yet; where the others are.
    suspects: BTreeSet<u32>,
    unrecorded: Vec<u32>,
    recorded: Position,
}

impl DriveMap {
    /// Nothing to tell, and every unit is numbered `from` or more.
    pub(crate) fn new(shape: &Shape, layout: &Layout, from: u64, lost: &[u32]) -> DriveMap {
        DriveMap {
            untold: vec![0; (layout.logical as usize).div_ceil(64)].into(),
            telling: Telling::Nothing,
            ranges: Vec::with_capacity(RANGES),
            sequence: 0,
            cursor: None,
            limit: from,
            asked: None,
            stretch: (2 * layout.checkpoint_sectors / u64::from(shape.unit)).max(64),
            suspects: lost.iter().copied().collect(),
            unrecorded: Vec::new(),
            recorded: Position(0),
        }
    }

    #[inline]
    fn is_untold(&self, lba: u32) -> bool {
        self.untold.get(lba as usize / 64).is_some_and(|w| w >> (lba % 64) & 1 != 0)
    }

    /// A sector was trimmed.
    #[inline]
    pub(crate) fn trimmed(&mut self, lba: u32) {
        self.untold[lba as usize / 64] |= 1 << (lba % 64);
    }

    fn told(&mut self, lba: u32) {
        self.untold[lba as usize / 64] &= !(1 << (lba % 64));
    }

    /// The first untold sector from `from` on and before `end`.
    fn next_untold(&self, from: u32, end: u32) -> Option<u32> {
        let mut at = from;
        while at < end {
            let rest = self.untold[at as usize / 64] >> (at % 64);
            if rest != 0 {
                return Some(at + rest.trailing_zeros()).filter(|at| *at < end);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }

    /// Adds a sector to what is told; `false` if there is no room.
    fn tell(&mut self, lba: u32) -> bool {
        if let Some((first, count)) = self.ranges.last_mut()
            && *first + *count == lba
        {
            *count += 1;
            return true;
        }
        if self.ranges.len() == RANGES {
            return false;
        }
        self.ranges.push((lba, 1));
        true
    }

    /// Whether there is something to be told beside the pages with trims.
    pub(crate) fn has_begun(&self) -> bool {
        self.telling != Telling::Nothing || self.cursor.is_some()
    }

    /// Whether the drive is being told.
    pub(crate) fn is_telling(&self) -> bool {
        self.telling == Telling::UnderWay
    }

    /// The words of the snapshot.
    fn words(&self, shape: &Shape, layout: &Layout) -> Vec<u32> {
        let meta = layout.meta as usize;
        if self.suspects.len() > meta {
            return vec![shape.total_sectors() as u32; meta];
        }
        let mut words: Vec<u32> = self.suspects.iter().map(|lba| lba + 1).collect();
        words.resize(meta, 0);
        words
    }

    /// The suspects of a snapshot and the records behind it; `None` if it does not tell.
    pub(crate) fn suspects(
        snapshot: &Snapshot,
        records: &[Vec<u8>],
        logical: u32,
    ) -> Option<BTreeSet<u32>> {
        let sound = |lba: u32| Some(lba).filter(|lba| *lba < logical);
        let named = snapshot.pages.iter().filter_map(|w| w.checked_sub(1)).map(sound);
        let later = records.iter().map(|r| match *r.as_slice() {
            [SUSPECT, 0, 0, 0, a, b, c, d] => sound(u32::from_le_bytes([a, b, c, d])),
            _ => None,
        });
        named.chain(later).collect()
    }
}

impl Ftl {
    /// The trim that a sector written now comes after and that the drive was not told of: a name for
    /// it, or 0.
    #[inline]
    pub(crate) fn trim_before(&self, lba: u32, old: Location) -> u64 {
        let Some(map) = &self.drive_map else { return 0 };
        match old {
            Location::Unmapped if map.is_untold(lba) => self.rings[USER].position() + 1,
            Location::Buffer(slot) if slot < self.rings[USER].capacity() => {
                let ring = &self.rings[USER];
                let unit = &ring.units[ring.unit_of_slot(slot)];
                if unit.state < UnitState::Persisted { ring.entry(slot).trim } else { 0 }
            }
            Location::Unmapped | Location::Buffer(_) | Location::Flash(_) | Location::Lost => 0,
        }
    }

    /// Whether no copy of an untold sector since its trim is on the media.
    fn is_to_be_told(&self, lba: u32) -> bool {
        match self.map.get(lba) {
            Location::Unmapped => true,
            Location::Flash(_) | Location::Lost => false,
            Location::Buffer(slot) if slot < self.rings[USER].capacity() => {
                let ring = &self.rings[USER];
                let unit = &ring.units[ring.unit_of_slot(slot)];
                unit.state < UnitState::Persisted && ring.entry(slot).trim != 0
            }
            Location::Buffer(_) => false,
        }
    }

    /// Tells the drive the first `trimmed` sectors that were trimmed: everything that was written
    /// before is numbered up to `sequence`, and everything numbered so is on the media.
    pub(crate) fn tell(
        &mut self,
        now: Nanos,
        sequence: u64,
        trimmed: u64,
        flash: &mut impl Flash,
    ) -> Told {
        let Some(mut map) = self.drive_map.take() else { return Told::All };
        let told = match map.telling {
            Telling::UnderWay => Told::UnderWay,
            Telling::Failed(status) => {
                map.telling = Telling::Again;
                Told::Failed(status)
            }
            Telling::Again => self.send_trims(now, &mut map, flash),
            Telling::Nothing => {
                map.sequence = sequence;
                self.gather_trims(&mut map, trimmed);
                if map.ranges.is_empty() {
                    Told::All
                } else {
                    self.send_trims(now, &mut map, flash)
                }
            }
        };
        self.drive_map = Some(map);
        told
    }

    fn gather_trims(&mut self, map: &mut DriveMap, trimmed: u64) {
        map.ranges.clear();
        let count = MapPage::count(&self.shape);
        // So that what is taken off the end ascends, and runs go on over pages.
        self.trimmed_pages.sort_unstable_by(|a, b| b.cmp(a));
        loop {
            let next = || self.trimmed_pages.pop().map(|page| (page, page * count));
            let Some((page, mut at)) = map.cursor.take().or_else(next) else { return };
            let end = ((page + 1) * count).min(self.layout.logical);
            // Trimmed again since: copies of that may yet be given a number.
            let again = self.trimmed_at[page as usize] > trimmed;
            while let Some(lba) = map.next_untold(at, end) {
                if self.is_to_be_told(lba) && !map.tell(lba) {
                    map.cursor = Some((page, lba));
                    return;
                }
                if !again {
                    map.told(lba);
                }
                at = lba + 1;
            }
            if again {
                self.trimmed_again.push(page);
            } else {
                self.trimmed_at[page as usize] = 0;
            }
        }
    }

    fn send_trims(&mut self, now: Nanos, map: &mut DriveMap, flash: &mut impl Flash) -> Told {
        self.stats.trims_told += map.ranges.iter().map(|(_, n)| u64::from(*n)).sum::<u64>();
        if flash.forget(now, OpId::new(OpKind::Trim, 0), &map.ranges, map.sequence) {
            map.telling = Telling::UnderWay;
            return Told::UnderWay;
        }
        map.telling = Telling::Again;
        Told::Failed(Status::INVALID_OPCODE)
    }

    /// The drive has answered [`Flash::forget`]. [`kick`](Ftl::kick) afterwards.
    pub fn forget_done(&mut self, now: Nanos, status: Status, flash: &mut impl Flash) {
        if let Some(map) = &mut self.drive_map {
            let ok = status.is_success();
            map.telling = if ok { Telling::Nothing } else { Telling::Failed(status) };
        }
        self.complete_durable(now, flash);
    }

    /// A sector's data is lost: the journal is to say so before the copy that says it is written.
    pub(crate) fn suspect(&mut self, lba: u32) {
        if let Some(map) = &mut self.drive_map
            && map.suspects.insert(lba)
        {
            map.unrecorded.push(lba);
        }
    }

    /// Whether the next unit of a ring may be given a number.
    #[inline]
    pub(crate) fn may_number(&self, ring: usize) -> bool {
        let Some(map) = &self.drive_map else { return true };
        let known = map.unrecorded.is_empty() && self.journal.durable() >= map.recorded;
        self.issued.next() < map.limit && (ring != GC || known)
    }

    /// Reserves numbers, and brings what the journal must say to it.
    pub(crate) fn go_on_with_numbers(&mut self) -> bool {
        let Some(mut map) = self.drive_map.take() else { return false };
        let mut moved = false;
        if let Some((limit, at)) = map.asked
            && self.journal.durable() >= at
        {
            (map.limit, map.asked) = (limit, None);
            self.checkpoint.reserved();
            self.blocked = [false; STREAMS];
            moved = true;
        }
        while let Some(lba) = map.unrecorded.last() {
            let mut record = [SUSPECT, 0, 0, 0, 0, 0, 0, 0];
            record[4..].copy_from_slice(&lba.to_le_bytes());
            if self.journal.append(&record).is_err() {
                self.want_compaction();
                break;
            }
            map.unrecorded.pop();
            map.recorded = self.journal.flush();
            moved = true;
        }
        let short = self.issued.next() + map.stretch / 2 > map.limit;
        let wanted = short || self.checkpoint.is_wanted() || self.journal.wants_snapshot();
        if wanted && map.asked.is_none() {
            moved |= self.reserve(&mut map);
        }
        self.drive_map = Some(map);
        moved
    }

    fn reserve(&mut self, map: &mut DriveMap) -> bool {
        // What is on the media and whole, or trimmed for good, is above suspicion.
        map.suspects.retain(|&lba| match self.map.get(lba) {
            Location::Flash(psn) => self.reverse.poisoned(psn),
            Location::Unmapped => map.untold[lba as usize / 64] >> (lba % 64) & 1 != 0,
            Location::Buffer(_) | Location::Lost => true,
        });
        let limit = map.limit.max(self.issued.next() + map.stretch);
        let snapshot = Snapshot {
            counted: self.layout.counted,
            base: limit,
            pages: map.words(&self.shape, &self.layout),
            lines: Vec::new(),
        };
        let Ok(at) = self.journal.snapshot(snapshot.encode(&self.shape, &self.layout)) else {
            self.checkpoint.give_up(self.journal.failed().is_some());
            return false;
        };
        map.asked = Some((limit, at));
        map.unrecorded.clear();
        map.recorded = at;
        self.checkpoint.reserving(at);
        self.stats.checkpoints += 1;
        true
    }
}
