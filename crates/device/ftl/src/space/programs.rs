//! [`ProgramsInFlight`]: programs in flight on lines, and the streams that wait for one of them to
//! complete.

use collections::BitSet;
use serde::{Deserialize, Serialize};

use crate::FlashGeometry;
use crate::check::{Subject, Violation, require, require_eq};
use crate::ftl::STREAM_COUNT;
use crate::ids::{ToIndex, ToU32};
use nvme::{ChunkId, PuId};

/// Maximum number of programs in flight per parallel unit: one in the array, one in the cache register.
/// Padding that breaks a deadlock of paired pages is not limited by it.
pub(crate) const PROGRAMS_PER_PU: u8 = 2;

/// A program of padding from outside of the rings.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct PadWrite {
    pub(crate) chunk: ChunkId,
    pub(crate) sector: u32,
}

/// Programs in flight on chunks of lines; the journal counts its own.
///
/// Invariants: the total is the sum over the parallel units; a chunk has one padding program at most.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ProgramsInFlight {
    per_pu: Vec<u8>,
    /// Parallel units that take another program, by their position in striping order.
    free_pus: BitSet,
    /// Position of each parallel unit in striping order.
    stripe_positions: Vec<u32>,
    total: u32,
    pads: Vec<PadWrite>,
    /// Streams for which no location was found. Set until something completes that may make one.
    blocked: [bool; STREAM_COUNT],
}

impl ProgramsInFlight {
    /// Creates the state of flash without programs.
    pub(crate) fn new(geometry: &FlashGeometry) -> ProgramsInFlight {
        let pus = geometry.pus.index();
        let mut free_pus = BitSet::new(pus);
        for position in 0..pus {
            free_pus.insert(position);
        }
        let all = (0..geometry.pus).map(PuId);
        ProgramsInFlight {
            per_pu: vec![0; pus],
            free_pus,
            stripe_positions: all.map(|pu| geometry.stripe_position(pu)).collect(),
            total: 0,
            pads: Vec::new(),
            blocked: [false; STREAM_COUNT],
        }
    }

    /// Counts a program that starts on a parallel unit.
    #[inline]
    pub(crate) fn start(&mut self, pu: PuId) {
        let on_pu = &mut self.per_pu[pu.index()];
        *on_pu += 1;
        if *on_pu == PROGRAMS_PER_PU {
            self.free_pus.remove(self.stripe_positions[pu.index()].index());
        }
        self.total += 1;
    }

    /// Counts a program that has completed on a parallel unit. All streams look for locations again.
    ///
    /// # Panics
    /// If none is in flight there.
    #[inline]
    pub(crate) fn complete(&mut self, pu: PuId) {
        let on_pu = &mut self.per_pu[pu.index()];
        assert!(*on_pu > 0, "no program is in flight on {pu}");
        *on_pu -= 1;
        if *on_pu + 1 == PROGRAMS_PER_PU {
            self.free_pus.insert(self.stripe_positions[pu.index()].index());
        }
        self.total -= 1;
        self.unblock();
    }

    /// Returns how many programs are in flight.
    #[inline]
    pub(crate) fn total(&self) -> u32 {
        self.total
    }

    /// Whether a parallel unit takes another program.
    #[inline]
    pub(crate) fn has_slot(&self, pu: PuId) -> bool {
        self.per_pu[pu.index()] < PROGRAMS_PER_PU
    }

    /// Returns the parallel units that take another program, by their position in striping order.
    #[inline]
    pub(crate) fn free_pus(&self) -> &BitSet {
        &self.free_pus
    }

    /// Whether no location was found for a stream since something completed last.
    #[inline]
    pub(crate) fn is_blocked(&self, stream: usize) -> bool {
        self.blocked[stream]
    }

    /// Records whether a stream need not look for a location before something completes.
    #[inline]
    pub(crate) fn set_blocked(&mut self, stream: usize, blocked: bool) {
        self.blocked[stream] = blocked;
    }

    /// Lets all streams search for locations again.
    #[inline]
    pub(crate) fn unblock(&mut self) {
        self.blocked = [false; STREAM_COUNT];
    }

    /// Records that padding is programmed into a chunk.
    ///
    /// # Panics
    /// If the chunk has padding in flight already.
    pub(crate) fn add_pad(&mut self, pad: PadWrite) {
        assert!(!self.has_pad_on(pad.chunk), "chunk {} is being padded already", pad.chunk);
        self.pads.push(pad);
    }

    /// Removes the padding of a chunk, whose program has completed, and returns its first sector.
    ///
    /// # Panics
    /// If the chunk has none in flight.
    pub(crate) fn take_pad(&mut self, chunk: ChunkId) -> u32 {
        let at = self.pads.iter().position(|p| p.chunk == chunk);
        let at = at.unwrap_or_else(|| panic!("no padding of {chunk} is in flight"));
        self.pads.swap_remove(at).sector
    }

    /// Whether a chunk has padding in flight.
    pub(crate) fn has_pad_on(&self, chunk: ChunkId) -> bool {
        self.pads.iter().any(|p| p.chunk == chunk)
    }

    /// Returns padding in flight.
    pub(crate) fn pads(&self) -> &[PadWrite] {
        &self.pads
    }

    /// Checks the counters against the programs counted by parallel unit.
    pub(crate) fn check(&self, geometry: &FlashGeometry, on_pu: &[u32]) -> Result<(), Violation> {
        let all: u32 = on_pu.iter().sum();
        require_eq!(Space, "programs in flight", Subject::Part, all, self.total);
        for (pu, (&expected, &found)) in (0..).map(PuId).zip(on_pu.iter().zip(&self.per_pu)) {
            let subject = Subject::Pu(pu);
            let found = u32::from(found);
            require_eq!(Space, "programs in flight per parallel unit", subject, expected, found);
            let position = self.stripe_positions[pu.index()].index();
            let (has_slot, is_free) = (self.has_slot(pu), self.free_pus.contains(position));
            require_eq!(Space, "parallel unit that takes a program", subject, has_slot, is_free);
            let pads = self.pads.iter().filter(|p| geometry.pu_of(p.chunk) == pu).count().to_u32();
            let most = u32::from(PROGRAMS_PER_PU) + pads;
            require!(
                expected <= most,
                Space,
                "a parallel unit has two programs at most, besides padding",
                subject,
                format_args!("at most {most}"),
                expected
            );
        }
        Ok(())
    }

    /// Breaks the count of programs on a parallel unit, or the total.
    #[cfg(test)]
    pub(crate) fn break_count(&mut self, pu: Option<usize>) {
        match pu {
            Some(pu) => self.per_pu[pu] += 1,
            None => self.total += 1,
        }
    }
}
