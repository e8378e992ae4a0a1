//! What garbage collection keeps back for users' reads (thesis chapter 6: the host knows which parallel
//! units its reads wait on; LightNVM paper section 4.2.4 has collection out of the users' way).
//!
//! By [`GcYields`]:
//!
//! * To parallel units with reads waiting: what garbage collection wants there takes another unit's turn.
//!   Victims' units on quiet parallel units are read first, moved data is programmed on quiet ones, and an
//!   erase waits until its unit is quiet. What finds no quiet unit is kept back.
//! * To any read: a parallel unit is quiet when no read is under way at all, so that everything is kept
//!   back. The next read goes elsewhere than this one, and finds what was started there.
//!
//! Guarantees: only while space does not press ([`RateLimiter::presses`](crate::RateLimiter)); as soon as
//! it does, all that was kept back goes on. While something is kept back users write as if nothing were
//! being moved, so that they wait for garbage collection no longer than without this. Something that is
//! kept back is looked at again whenever a user's read has ended, and no read waits for it.

use clock::Nanos;

use crate::collect::Scan;
use crate::flash::OpKind;
use crate::ftl::GC;
use crate::{Flash, Ftl, GcYields, OpId, Shape};

/// Units of a victim that are passed over for others at most.
const PASSED_MOST: usize = 64;

/// A write unit of the line that is being scanned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unit {
    pub(crate) unit: u32,
    pub(crate) member: u32,
    /// Whether it is the line's last.
    pub(crate) last: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Yielding {
    to: GcYields,
    /// Units of the victim that is being scanned, passed over: unit and member.
    passed: Vec<(u32, u32)>,
    /// Per parallel unit, whether the programs that are being placed avoid it.
    avoided: Vec<bool>,
    avoids: bool,
    /// Whether a scan found nothing but waiting reads.
    keeps_scan: bool,
    /// Whether a program found nothing but waiting reads, or units that are busy.
    keeps_program: bool,
    /// Chunks whose erase has been kept back.
    erases: Vec<u32>,
}

impl Yielding {
    pub(crate) fn new(shape: &Shape, to: GcYields) -> Yielding {
        let on = to != GcYields::Never;
        Yielding {
            to,
            passed: Vec::with_capacity(if on { PASSED_MOST } else { 0 }),
            avoided: vec![false; if on { shape.pus as usize } else { 0 }],
            avoids: false,
            keeps_scan: false,
            keeps_program: false,
            erases: Vec::new(),
        }
    }

    /// Whether something is kept back.
    #[inline]
    pub(crate) fn keeps(&self) -> bool {
        self.keeps_scan || self.keeps_program || !self.erases.is_empty()
    }

    /// Whether a program is kept back.
    #[inline]
    pub(crate) fn keeps_program(&self) -> bool {
        self.keeps_program
    }

    /// Whether what is being placed keeps away from a parallel unit.
    #[inline]
    pub(crate) fn avoids(&self, pu: u32) -> bool {
        self.avoids && self.avoided[pu as usize]
    }

    pub(crate) fn avoid_none(&mut self) {
        self.avoids = false;
    }

    /// Whether units of the victim were passed over that are still to be looked at.
    #[inline]
    pub(crate) fn has_passed(&self) -> bool {
        !self.passed.is_empty()
    }

    /// The victim has been scanned.
    pub(crate) fn scanned(&mut self) {
        self.passed.clear();
        self.keeps_scan = false;
    }
}

impl Ftl {
    /// Sectors that users may write without having earned them, because garbage collection moves on
    /// more slowly than it could: as long as that goes on, from one on.
    #[inline]
    pub(crate) fn spares_while_kept_back(&self, free: u64) -> Option<u32> {
        if !self.yielding.keeps_scan && !self.yielding.keeps_program {
            return None;
        }
        let spare = self.limiter.before_it_presses(free).filter(|spare| *spare > 0)?;
        Some(spare.min(u32::MAX.into()) as u32)
    }

    #[inline]
    fn yields(&self) -> bool {
        self.yielding.to != GcYields::Never && !self.limiter.presses(self.free_sectors())
    }

    /// Whether garbage collection keeps away from a parallel unit, if it yields.
    #[inline]
    fn is_read(&self, pu: u32, flash: &impl Flash) -> bool {
        match self.yielding.to {
            GcYields::Never => false,
            GcYields::BusyPus => flash.reads_waiting(pu) > 0,
            GcYields::AnyRead => self.reads_under_way() > 0,
        }
    }

    /// Before programs of a ring are placed: garbage collection's keep away from parallel units with
    /// reads waiting.
    pub(crate) fn avoid_reads(&mut self, ring: usize, flash: &impl Flash) {
        if ring != GC || self.yielding.to == GcYields::Never {
            return;
        }
        self.yielding.avoids = false;
        self.yielding.keeps_program = false;
        if self.rings[GC].ready().is_none() || !self.yields() {
            return;
        }
        for pu in 0..self.shape.pus {
            let avoided = self.is_read(pu, flash);
            self.yielding.avoided[pu as usize] = avoided;
            self.yielding.avoids |= avoided;
        }
    }

    /// A ring's program found no place: whether because of reads that wait.
    pub(crate) fn note_unplaced(&mut self, ring: usize) {
        self.yielding.keeps_program |= ring == GC && self.yielding.avoids;
    }

    /// The next write unit of the oldest victim to be looked at: of those on quiet parallel units the
    /// first; `None` if there is none, or no victim.
    pub(crate) fn next_to_scan(&mut self, flash: &impl Flash) -> Option<Unit> {
        self.yielding.keeps_scan = false;
        let yields = self.yields();
        if yields && self.yielding.to == GcYields::AnyRead && self.reads_under_way() > 0 {
            self.yielding.keeps_scan = true;
            return None;
        }
        let yields = yields && self.yielding.to == GcYields::BusyPus;
        let (shape, y) = (&self.shape, &mut self.yielding);
        let Scan { line, unit, member, units } = self.collector.victims.front_mut()?;
        let units = *units;
        let chunks = &self.lines.lines[*line as usize].chunks;
        let quiet =
            |member: u32| !yields || flash.reads_waiting(shape.pu_of(chunks[member as usize])) == 0;
        let at_end = |unit: u32| unit >= units;
        if let Some(i) = y.passed.iter().position(|(_, member)| quiet(*member)) {
            let (of, by) = y.passed.swap_remove(i);
            return Some(Unit { unit: of, member: by, last: at_end(*unit) && y.passed.is_empty() });
        }
        while !at_end(*unit) && y.passed.len() < PASSED_MOST {
            let (of, by) = (*unit, *member);
            *member += 1;
            if *member as usize == chunks.len() {
                (*unit, *member) = (of + 1, 0);
            }
            if quiet(by) {
                let last = at_end(*unit) && y.passed.is_empty();
                return Some(Unit { unit: of, member: by, last });
            }
            y.passed.push((of, by));
        }
        y.keeps_scan = true;
        None
    }

    /// Whether the erase of a chunk is kept back: not if the chunk may be wanted before long.
    fn keeps_erase(&self, chunk: u32, flash: &impl Flash) -> bool {
        self.yields()
            && self.lines.free_chunks() >= 2 * self.layout.active
            && self.is_read(self.shape.pu_of(chunk), flash)
    }

    /// Erases a chunk that counts as being erased, now or as soon as its parallel unit is quiet.
    pub(crate) fn erase_or_keep(&mut self, now: Nanos, chunk: u32, flash: &mut impl Flash) {
        if self.keeps_erase(chunk, flash) {
            self.yielding.erases.push(chunk);
        } else {
            flash.erase(now, OpId::new(OpKind::Erase, chunk), chunk);
        }
    }

    /// Begins a round of garbage collection: erases what was kept back and need not be any more.
    /// Returns whether there was something.
    pub(crate) fn erase_kept(&mut self, now: Nanos, flash: &mut impl Flash) -> bool {
        self.yielding.keeps_scan = false;
        let mut moved = false;
        for i in (0..self.yielding.erases.len()).rev() {
            let chunk = self.yielding.erases[i];
            if !self.keeps_erase(chunk, flash) {
                self.yielding.erases.swap_remove(i);
                flash.erase(now, OpId::new(OpKind::Erase, chunk), chunk);
                moved = true;
            }
        }
        moved
    }
}
