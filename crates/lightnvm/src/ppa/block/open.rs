//! [`VirtualBlock::open`]: a block found again after a restart or a power cut.
//!
//! Nothing but the list of its chunks is needed: units are written in striping order, so the first
//! one that some chunk does not have is where the block ends. Everything that an append has returned
//! for, or a pad, is before it (rule R7): appends return when all of their full units are on the
//! drive.
//!
//! Power that is cut while units are under way leaves more: units behind the end, on chunks that were
//! faster; and units that the write pointer covers and nobody can read (*torn*), at most the last
//! one of each chunk. Both belong to an append that had not returned. They cannot be written over, so
//! such a block is *sealed*: it can be read, copied and erased.
//!
//! | chunk | here |
//! |---|---|
//! | free, open | has what its write pointer says |
//! | closed, full | is full; or its erase was interrupted, and nothing of it can be read |
//! | closed, not full | a program failed: the block goes on when it has been replaced |
//! | offline | has what the other chunks say it should have; reading it fails, rather than that sectors are silently missing |

use std::ops::Range;

use nvme::{Address, ChunkState, Status};

use super::{BlockChunk, BlockError, VirtualBlock, merge};
use crate::ppa::{BlockingSession, PpaError};
use crate::{ChunkInfo, OpenChannelSsd};

/// What [`VirtualBlock::open`] has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Sectors of the block.
    pub sectors: u64,
    /// Sectors from the start before the first that is torn, or on a chunk that has gone offline. If
    /// none has, this is everything that was appended or padded and acknowledged, and possibly some of
    /// what was not.
    pub intact: u64,
    /// Sectors at the end of a chunk that cannot be read: torn, or worn out.
    pub torn: Vec<Range<u64>>,
    /// Sectors that cannot be read before more is written behind them.
    pub unpaired: Vec<Range<u64>>,
    /// Sectors on the drive behind the end of the block.
    pub beyond_end: u64,
    /// Whether the block can only be read, copied and erased.
    pub sealed: bool,
}

impl VirtualBlock {
    /// Opens the block that was made of these chunks, in this order. Reads the last write unit of
    /// each chunk, and writes nothing.
    ///
    /// # Errors
    /// [`BlockError::NoChunks`], [`BlockError::DuplicateChunk`], [`BlockError::ShortChunk`],
    /// [`BlockError::TooManyOpen`], and those of the drive.
    pub fn open(
        ssd: &mut OpenChannelSsd,
        io: &mut BlockingSession<'_>,
        chunks: &[Address],
    ) -> Result<(VirtualBlock, RecoveryReport), BlockError> {
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
        // What is torn behind the end is behind the end.
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

    /// The first unit that some chunk does not have.
    fn find_end(&self, infos: &[ChunkInfo]) -> u64 {
        let known = infos.iter().enumerate().filter(|(_, c)| c.state != ChunkState::Offline);
        let first_missing = known.map(|(index, c)| {
            let rows = u64::from(c.write_pointer / self.unit_sectors);
            rows * self.width() + index as u64
        });
        first_missing.min().unwrap_or(0).min(self.total_units())
    }

    /// The last sectors of a chunk if they cannot be read although nothing more has to be written
    /// first.
    fn find_torn(
        &mut self,
        io: &mut BlockingSession<'_>,
        index: usize,
    ) -> Result<Option<Range<u64>>, BlockError> {
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

/// What the drive says of a chunk, as the block sees it.
fn block_chunk(info: &ChunkInfo) -> BlockChunk {
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
