//! [`Recovery`]: the map from what is on the media after power was lost.
//!
//! Every written sector's out-of-band bytes name its logical sector and a sequence number; of all
//! copies of a logical sector the one with the largest number is current. What was trimmed is in
//! *trim state* sectors, which are written like data behind the users' sectors:
//!
//! ```text
//! bytes 0..4    0x54724d31 ("1MrT"), little endian
//! bytes 4..8    0
//! bytes 8..16   D: every write with a smaller sequence number was durable when this was written
//! bytes 16..    one bit per sector of the region, lowest first: 1 if it is trimmed
//! ```
//! A set bit takes back every copy older than `D`. The bit is set for a sector that is unmapped, and
//! for one whose only newer copy is not durable yet: if that copy is lost the sector must still be
//! trimmed, and if it survives its number is at least `D`. A flush writes trim state only after the
//! data written before it is durable, so that no write older than a flushed trim is at least `D`.
//!
//! Before the scan whoever owns the flash pads chunks that were being written, so that the paired
//! pages of everything in them are programmed and can be read (LightNVM paper section 4.2.2).

use crate::lines::{LineState, NONE};
use crate::{Ftl, FtlConfig, Layout, Location, NewFtlError, Oob, Shape};

/// What is known of a chunk at power-on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Erased, nothing written.
    Free,
    /// Written up to this sector, and can be written further.
    Open(u32),
    /// Written up to this sector, takes no more until erased.
    Closed(u32),
    /// A program failed after this sector: its data is to be moved and the chunk retired.
    Failing(u32),
    /// Not to be used.
    Bad,
}

const TRIM_STATE_MAGIC: u32 = 0x5472_4d31;
pub(crate) const TRIM_STATE_HEADER: usize = 16;

pub(crate) fn encode_trim_state(
    sector_bytes: u32,
    durable: u64,
    count: u32,
    trimmed: impl Fn(u32) -> bool,
) -> Vec<u8> {
    let mut bytes = vec![0; sector_bytes as usize];
    bytes[..4].copy_from_slice(&TRIM_STATE_MAGIC.to_le_bytes());
    bytes[8..16].copy_from_slice(&durable.to_le_bytes());
    for i in 0..count {
        if trimmed(i) {
            bytes[TRIM_STATE_HEADER + i as usize / 8] |= 1 << (i % 8);
        }
    }
    bytes
}

/// Rebuilds a layer, fed by whoever owns the flash: [`sector`](Recovery::sector) for every written
/// sector in any order, then [`trim_state`](Recovery::trim_state) for every sector of
/// [`trim_states`](Recovery::trim_states), then [`finish`](Recovery::finish).
#[derive(Debug)]
pub struct Recovery {
    ftl: Ftl,
    /// Sequence number of the copy that the map points at.
    newest: Vec<u64>,
}

impl Recovery {
    /// A recovery of a layer over `counted` chunks: all but those that were bad when the layer was
    /// first made, because the capacity must not change.
    ///
    /// # Errors
    /// As [`Ftl::new`].
    pub fn new(shape: Shape, config: FtlConfig, counted: u32) -> Result<Recovery, NewFtlError> {
        let layout = Layout::of(&shape, &config, counted)?;
        let ftl = Ftl::empty(shape, config, layout)?;
        Ok(Recovery { newest: vec![0; (layout.logical + layout.meta) as usize], ftl })
    }

    /// A written sector of a chunk that is not [`Found::Bad`]; `None` for one that cannot be read or
    /// is not from this layer.
    pub fn sector(&mut self, psn: u32, oob: Option<Oob>) {
        let Some(oob) = oob else { return };
        let total = self.ftl.layout.logical + self.ftl.layout.meta;
        let Some(lba) = oob.lba.filter(|l| *l < total) else { return };
        self.ftl.map.set_reverse(psn, Some(lba), oob.poison);
        self.ftl.sequence = self.ftl.sequence.max(oob.sequence.saturating_add(1));
        if oob.sequence >= self.newest[lba as usize] {
            self.newest[lba as usize] = oob.sequence;
            self.ftl.map.set(lba, Location::Flash(psn));
        }
    }

    /// The physical sectors of the current trim states, with their regions.
    pub fn trim_states(&self) -> Vec<(u32, u32)> {
        let layout = &self.ftl.layout;
        (0..layout.meta)
            .filter_map(|region| match self.ftl.map.get(layout.logical + region) {
                Location::Flash(psn) => Some((psn, region)),
                _ => None,
            })
            .collect()
    }

    /// The contents of a region's trim state. Contents that are not trim state change nothing.
    pub fn trim_state(&mut self, region: u32, bytes: &[u8]) {
        let Some((header, bits)) = bytes.split_at_checked(TRIM_STATE_HEADER) else { return };
        let (Ok(magic), Ok(durable)) = (header[..4].try_into(), header[8..].try_into()) else {
            return;
        };
        if u32::from_le_bytes(magic) != TRIM_STATE_MAGIC {
            return;
        }
        let durable = u64::from_le_bytes(durable);
        let size = Layout::region(&self.ftl.shape);
        let first = region * size;
        let count = size.min(self.ftl.layout.logical.saturating_sub(first));
        for i in 0..count {
            let trimmed = bits.get(i as usize / 8).is_some_and(|b| b >> (i % 8) & 1 != 0);
            let lba = first + i;
            if trimmed && self.newest[lba as usize] < durable {
                self.ftl.map.set(lba, Location::Unmapped);
            }
        }
    }

    /// The layer as it was, less what was not durable. If too many chunks went bad, it can be read
    /// and trimmed, and writes fail with [`nvme::Status::CAPACITY_EXCEEDED`].
    pub fn finish(self, found: impl Fn(u32) -> Found) -> Ftl {
        let mut ftl = self.ftl;
        let shape = ftl.shape;
        let mut valid = vec![0u32; shape.total_chunks() as usize];
        for lba in 0..ftl.layout.logical + ftl.layout.meta {
            if let Location::Flash(psn) = ftl.map.get(lba) {
                valid[shape.chunk_of(psn) as usize] += 1;
            }
        }
        let mut open = Vec::new();
        for chunk in 0..shape.total_chunks() {
            let state = found(chunk);
            match state {
                Found::Bad => ftl.lines.chunks[chunk as usize].bad = true,
                Found::Free => ftl.lines.add_free(chunk),
                Found::Open(0) => ftl.lines.add_free(chunk),
                Found::Open(next) if next < shape.sectors => open.push((chunk, next)),
                Found::Open(written) | Found::Closed(written) | Found::Failing(written) => {
                    let line = ftl.lines.adopt(&[(chunk, shape.sectors)], LineState::Open);
                    ftl.lines.chunks[chunk as usize].persisted = written;
                    let failing = matches!(state, Found::Failing(_));
                    ftl.lines.chunks[chunk as usize].bad = failing;
                    let l = &mut ftl.lines.lines[line as usize];
                    (l.valid, l.full, l.hurt) = (valid[chunk as usize], true, failing);
                    ftl.lines.close_if_done(line);
                }
            }
        }
        // Chunks that were being written go on being written, as lines of the users' stream.
        for members in open.chunks(ftl.layout.active as usize) {
            let line = ftl.lines.adopt(members, LineState::Open);
            for &(chunk, next) in members {
                ftl.lines.chunks[chunk as usize].persisted = next;
                ftl.lines.lines[line as usize].valid += valid[chunk as usize];
                debug_assert_eq!(ftl.lines.chunks[chunk as usize].first, NONE);
            }
            let open = ftl.lines.open_line(line, members);
            ftl.open[crate::ftl::USER].push_back(open);
        }
        ftl
    }
}
