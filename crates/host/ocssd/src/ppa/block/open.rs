//! [`VirtualBlock::open`]: recovers a block after a restart or a power cut.
//!
//! Only the list of chunks is needed. Units are written in striping order, so the first unit that
//! is missing on a chunk is the end of the block. Appends and pads return once their full units are
//! on the drive, so everything acknowledged is before the end (ARCHITECTURE.md, R7).
//!
//! A power cut while units are in flight may leave two kinds of remains: units after the end, on
//! faster chunks; and *torn* units, at most the last one of each chunk, which the write pointer
//! includes but which are unreadable. Both belong to an append that had not returned. They cannot
//! be overwritten, so such a block is *sealed*: it can be read, copied and erased.
//!
//! | chunk | treated as |
//! |---|---|
//! | free, open | written up to its write pointer |
//! | closed, full | full; if its erase was interrupted, all of it is unreadable |
//! | closed, not full | failed: the block is writable once the chunk is replaced |
//! | offline | as long as the other chunks imply; its reads fail, so that no sectors are silently missing |

use std::ops::Range;

use nvme::{Address, ChunkState, Status};

use super::{BlockChunk, VirtualBlock, VirtualBlockError, merge};
use crate::ppa::{BlockingSession, PpaError};
use crate::{OpenChannelSsd, ReportedChunk};

/// Result of [`VirtualBlock::open`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Number of sectors of the block.
    pub sectors: u64,
    /// Number of leading sectors before the first one that is torn or on an offline chunk. If there
    /// is none, these include everything that was acknowledged, and possibly sectors that were not.
    pub intact: u64,
    /// Unreadable sectors at the end of a chunk: torn, or worn out.
    pub torn: Vec<Range<u64>>,
    /// Sectors that are not readable until more is written after them.
    pub unpaired: Vec<Range<u64>>,
    /// Number of sectors on the drive after the end of the block.
    pub beyond_end: u64,
    /// Whether the block can only be read, copied and erased.
    pub sealed: bool,
}

impl VirtualBlock {
    /// Opens the block that consists of these chunks, in this order. Reads the last write unit of
    /// each chunk, and writes nothing.
    ///
    /// # Errors
    /// [`VirtualBlockError::NoChunks`], [`VirtualBlockError::DuplicateChunk`], [`VirtualBlockError::ShortChunk`],
    /// [`VirtualBlockError::TooManyOpen`], and those of the drive.
    pub fn open(
        ssd: &mut OpenChannelSsd,
        io: &mut BlockingSession<'_>,
        chunks: &[Address],
    ) -> Result<(VirtualBlock, RecoveryReport), VirtualBlockError> {
        let infos = VirtualBlock::query_chunks(ssd, io, chunks)?;
        let members = infos.iter().map(block_chunk).collect();
        let mut block = VirtualBlock::new(*io.space(), members);
        let units = block.find_end(&infos);
        block.units_submitted = units;
        for (index, info) in infos.iter().enumerate() {
            if info.state == ChunkState::Offline {
                let rows = block.rows_of(index, units) as u32;
                block.members[index].sectors_written = rows * block.unit_sectors;
            }
        }
        let mut found = RecoveryReport { sectors: block.len(), ..RecoveryReport::default() };
        let mut torn = Vec::new();
        for (index, info) in infos.iter().enumerate() {
            let end = block.rows_of(index, units) as u32 * block.unit_sectors;
            found.beyond_end += u64::from(block.members[index].sectors_written.saturating_sub(end));
            if info.state != ChunkState::Offline && info.write_pointer > 0 {
                torn.extend(block.find_torn(io, index)?);
            }
        }
        torn.sort_unstable_by_key(|r| r.start);
        // Torn sectors after the end are counted as beyond the end.
        let torn = torn.into_iter().filter(|r| r.start < found.sectors);
        torn.for_each(|r| merge(&mut found.torn, r));
        let offline = infos.iter().zip(0..).filter(|(c, _)| c.state == ChunkState::Offline);
        let lost = offline.map(|(_, index)| index * block.unit_sectors());
        let torn = found.torn.first().map(|r| r.start);
        found.intact = lost.chain(torn).min().unwrap_or(found.sectors).min(found.sectors);
        block.torn.clone_from(&found.torn);
        block.sealed = found.beyond_end > 0 || !found.torn.is_empty();
        found.sealed = block.sealed;
        found.unpaired = block.not_yet_readable(0..found.sectors);
        Ok((block, found))
    }

    /// Returns the first unit that is missing on some chunk.
    fn find_end(&self, infos: &[ReportedChunk]) -> u64 {
        let known = infos.iter().enumerate().filter(|(_, c)| c.state != ChunkState::Offline);
        let first_missing = known.map(|(index, c)| {
            let rows = u64::from(c.write_pointer / self.unit_sectors);
            rows * self.width() + index as u64
        });
        first_missing.min().unwrap_or(0).min(self.total_units())
    }

    /// Returns the last sectors of a chunk if they are unreadable although their paired pages are
    /// written.
    fn find_torn(
        &mut self,
        io: &mut BlockingSession<'_>,
        index: usize,
    ) -> Result<Option<Range<u64>>, VirtualBlockError> {
        let (m, least) = (self.members[index], self.space.geometry().ws_min);
        let from = m.sectors_written.saturating_sub(least);
        self.ppas.clear();
        self.ppas.extend(
            self.space.extent(Address { sector: from, ..m.first }, m.sectors_written - from)?,
        );
        match io.check(&self.ppas) {
            Ok(()) => Ok(None),
            Err(PpaError::Vector(e)) if e.status.is(Status::UNWRITTEN) => Ok(None),
            Err(PpaError::Vector(e)) if e.status.is_media_error() => {
                Ok(Some(self.sectors_of(index, from, m.sectors_written)))
            }
            Err(other) => Err(other.into()),
        }
    }
}

/// Converts chunk information to the state of a chunk in the block.
fn block_chunk(info: &ReportedChunk) -> BlockChunk {
    let failure = match info.state {
        ChunkState::Offline => Some(Status::OFFLINE_CHUNK),
        _ if info.is_closed_early() => Some(Status::CHUNK_CLOSED_EARLY),
        _ => None,
    };
    BlockChunk {
        first: info.address,
        sectors_written: info.write_pointer,
        closed: matches!(info.state, ChunkState::Closed | ChunkState::Offline),
        failure,
    }
}
