//! [`ChunkStates`]: the write pointers of the chunks that jobs on parallel units use, and the reads
//! that a reset must wait for.
//!
//! Invariants: only the one writer of a parallel unit advances its write pointers. A chunk that is
//! being reset has no reads, and gets none. `written <= submitted <= sectors`.

use nvme::ChunkState;
use ocssd::ReportedChunk;

use crate::unit_spec::UnitLimits;

/// State of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// Erased, or written by jobs up to its write pointer.
    Open,
    /// To be reset before it is written, and not readable: a program failure closed it early.
    Dirty,
    /// A reset is decided or in flight.
    Resetting,
    /// Bad, of another owner, or failed in this run: neither written nor read.
    Retired,
}

#[derive(Clone, Copy, Debug)]
struct Chunk {
    state: Use,
    sectors: u32,
    /// Sectors whose writes are decided.
    submitted: u32,
    /// Sectors whose writes have completed.
    written: u32,
    /// Reads that are decided or in flight.
    reads: u32,
}

/// The next step of a writer in a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteStep {
    /// Write this many sectors from the device's sector on.
    Write { sector: u64, sectors: u32 },
    /// Reset the chunk, whose first sector and number of sectors these are.
    Reset { sector: u64, sectors: u32 },
    /// Wait for writes or for the reset of the chunk.
    Wait,
    /// The chunk cannot be written any more.
    Skip,
}

/// The chunks of a device.
#[derive(Debug)]
pub(crate) struct ChunkStates {
    chunks: Vec<Chunk>,
    chunks_per_unit: u32,
    chunk_sectors: u32,
    /// Sectors that must follow in a chunk before a sector can be read.
    read_distance: u32,
}

impl ChunkStates {
    pub(crate) fn new(limits: &UnitLimits, report: &[Option<ReportedChunk>]) -> ChunkStates {
        let known = |chunk: &Option<ReportedChunk>| match chunk {
            Some(chunk) if chunk.state != ChunkState::Offline => {
                let state = if chunk.is_closed_early() { Use::Dirty } else { Use::Open };
                let (sectors, written) = (chunk.sectors, chunk.write_pointer);
                Chunk { state, sectors, submitted: written, written, reads: 0 }
            }
            _ => Chunk { state: Use::Retired, sectors: 0, submitted: 0, written: 0, reads: 0 },
        };
        ChunkStates {
            chunks: report.iter().map(known).collect(),
            chunks_per_unit: limits.geometry.chunks,
            chunk_sectors: limits.geometry.sectors.max(1),
            read_distance: limits.geometry.mw_cunits,
        }
    }

    /// Returns the number of a chunk of a unit.
    pub(crate) fn chunk(&self, unit: u32, chunk: u32) -> usize {
        unit as usize * self.chunks_per_unit as usize + chunk as usize
    }

    fn first_sector(&self, chunk: usize) -> u64 {
        chunk as u64 * u64::from(self.chunk_sectors)
    }

    fn chunk_of(&mut self, sector: u64) -> Option<&mut Chunk> {
        self.chunks.get_mut((sector / u64::from(self.chunk_sectors)) as usize)
    }

    /// Returns the next step of a writer by `most` sectors that arrives at a chunk or, if not
    /// `arrives`, continues in it.
    pub(crate) fn write_step(&mut self, chunk: usize, most: u32, arrives: bool) -> WriteStep {
        let first = self.first_sector(chunk);
        let Some(c) = self.chunks.get_mut(chunk) else { return WriteStep::Skip };
        match c.state {
            Use::Retired => WriteStep::Skip,
            Use::Resetting => WriteStep::Wait,
            Use::Open if c.submitted < c.sectors => {
                let (from, sectors) = (c.submitted, most.min(c.sectors - c.submitted));
                c.submitted += sectors;
                WriteStep::Write { sector: first + u64::from(from), sectors }
            }
            Use::Open if !arrives => WriteStep::Skip,
            Use::Open if c.written < c.submitted => WriteStep::Wait,
            Use::Open | Use::Dirty => {
                c.state = Use::Resetting;
                WriteStep::Reset { sector: first, sectors: c.sectors }
            }
        }
    }

    /// Completes a write of `sectors` from `first` on.
    pub(crate) fn end_write(&mut self, first: u64, sectors: u32, success: bool) {
        let offset = (first % u64::from(self.chunk_sectors)) as u32;
        let Some(c) = self.chunk_of(first) else { return };
        match success {
            true => c.written = c.written.max(offset + sectors),
            false => c.state = Use::Retired,
        }
    }

    /// Completes the reset of the chunk at a sector.
    pub(crate) fn end_reset(&mut self, sector: u64, success: bool) {
        let Some(c) = self.chunk_of(sector) else { return };
        (c.submitted, c.written) = (0, 0);
        c.state = if success { Use::Open } else { Use::Retired };
    }

    /// Returns whether a chunk has reads, for which its reset waits.
    pub(crate) fn has_reads(&self, sector: u64) -> bool {
        let chunk = (sector / u64::from(self.chunk_sectors)) as usize;
        self.chunks.get(chunk).is_some_and(|c| c.reads > 0)
    }

    /// Starts a read of a chunk.
    pub(crate) fn begin_read(&mut self, sector: u64) {
        if let Some(c) = self.chunk_of(sector) {
            c.reads += 1;
        }
    }

    /// Completes a read of a chunk.
    pub(crate) fn end_read(&mut self, sector: u64) {
        if let Some(c) = self.chunk_of(sector) {
            debug_assert!(c.reads > 0, "a read of {sector} that did not begin");
            c.reads -= 1;
        }
    }

    /// Returns the number of sectors of a chunk that can be read, from its first on.
    pub(crate) fn readable(&self, chunk: usize) -> u32 {
        match self.chunks.get(chunk) {
            Some(c) if c.state == Use::Open && c.written == c.sectors => c.written,
            Some(c) if c.state == Use::Open => c.written.saturating_sub(self.read_distance),
            _ => 0,
        }
    }

    /// Returns whether a sector can be read.
    pub(crate) fn is_readable(&self, sector: u64) -> bool {
        let chunk = (sector / u64::from(self.chunk_sectors)) as usize;
        sector % u64::from(self.chunk_sectors) < u64::from(self.readable(chunk))
    }

    /// Returns the device's sector at an offset in a chunk.
    pub(crate) fn sector_of(&self, chunk: usize, offset: u32) -> u64 {
        self.first_sector(chunk) + u64::from(offset)
    }

    /// Returns the unit that a sector is in.
    pub(crate) fn unit_of(&self, sector: u64) -> u32 {
        (sector / u64::from(self.chunk_sectors) / u64::from(self.chunks_per_unit.max(1))) as u32
    }

    /// Returns the number of sectors from `sector` to the end of its chunk.
    pub(crate) fn to_chunk_end(&self, sector: u64) -> u64 {
        u64::from(self.chunk_sectors) - sector % u64::from(self.chunk_sectors)
    }
}

#[cfg(test)]
mod tests {
    use nvme::{Address, Geometry};
    use ocssd::ppa::PuSet;

    use super::*;

    fn states(chunks: &[Option<ReportedChunk>]) -> ChunkStates {
        let geometry = Geometry {
            groups: 1,
            pus: 1,
            chunks: chunks.len() as u32,
            sectors: 24,
            sector_bytes: 4096,
            oob_bytes: 0,
            ws_min: 4,
            ws_opt: 8,
            mw_cunits: 8,
        };
        let pus: PuSet = "0".parse().unwrap();
        ChunkStates::new(&UnitLimits { pus, geometry, sectors_max: 64, queue_depth: 8 }, chunks)
    }

    fn reported(state: ChunkState, write_pointer: u32) -> Option<ReportedChunk> {
        Some(ReportedChunk {
            address: Address::default(),
            state,
            sequential: true,
            wear_index: 0,
            sectors: 24,
            write_pointer,
        })
    }

    #[test]
    fn a_chunk_is_written_in_order_and_reset_when_the_writer_is_back() {
        let mut states = states(&[reported(ChunkState::Free, 0)]);
        let step = states.write_step(0, 16, true);
        assert_eq!(step, WriteStep::Write { sector: 0, sectors: 16 });
        assert_eq!(states.readable(0), 0, "not completed");
        states.end_write(0, 16, true);
        assert_eq!(states.readable(0), 8, "the pairs of the others are not written");
        let step = states.write_step(0, 16, false);
        assert_eq!(step, WriteStep::Write { sector: 16, sectors: 8 }, "the rest of the chunk");
        assert_eq!(states.write_step(0, 16, false), WriteStep::Skip, "full");
        assert_eq!(states.write_step(0, 16, true), WriteStep::Wait, "for the write");
        states.end_write(16, 8, true);
        assert_eq!(states.readable(0), 24, "a full chunk");
        states.begin_read(3);
        let step = states.write_step(0, 16, true);
        assert_eq!(step, WriteStep::Reset { sector: 0, sectors: 24 });
        assert_eq!(states.readable(0), 0, "being reset");
        assert_eq!(states.write_step(0, 4, true), WriteStep::Wait);
        assert!(states.has_reads(0));
        states.end_read(3);
        assert!(!states.has_reads(0));
        states.end_reset(0, true);
        let step = states.write_step(0, 4, true);
        assert_eq!(step, WriteStep::Write { sector: 0, sectors: 4 });
    }

    #[test]
    fn chunks_that_fail_or_are_of_others_are_left_out() {
        let mut states = states(&[
            None,
            reported(ChunkState::Offline, 0),
            reported(ChunkState::Closed, 8),
            reported(ChunkState::Open, 16),
        ]);
        assert_eq!(states.write_step(0, 4, true), WriteStep::Skip);
        assert_eq!(states.write_step(1, 4, true), WriteStep::Skip);
        assert_eq!(states.readable(2), 0, "closed early");
        assert_eq!(states.write_step(2, 4, true), WriteStep::Reset { sector: 48, sectors: 24 });
        states.end_reset(48, false);
        assert_eq!(states.write_step(2, 4, true), WriteStep::Skip, "the erase failed");
        assert_eq!(states.readable(3), 8);
        assert_eq!(states.write_step(3, 8, true), WriteStep::Write { sector: 88, sectors: 8 });
        states.end_write(88, 8, false);
        assert_eq!(states.readable(3), 0, "the program failed");
        assert_eq!(states.write_step(3, 8, true), WriteStep::Skip);
    }
}
