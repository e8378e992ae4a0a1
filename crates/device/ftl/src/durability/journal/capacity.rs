//! [`JournalConfig`]: sizes that an owner needs; [`JournalCapacity`]: the resulting capacities of
//! the flash.
//!
//! A journal always reserves space for one more snapshot in every copy: the old generation stays
//! until the new one's snapshot is durable. With `s` chunks per copy for a snapshot and `g` for a
//! generation, `g + s` per copy are enough.

use serde::{Deserialize, Serialize};

use super::JournalError;
use super::frame::HEADER_BYTES;
use crate::FlashGeometry;
use crate::ids::{ToIndex, ToU32};

/// Bytes in front of every record.
pub(crate) const RECORD_HEADER: usize = 4;

/// Sizes that an owner needs of its journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalConfig {
    /// Identifies the owner, in every frame. Journals of other owners are refused.
    pub owner: u32,
    /// Bytes of a snapshot at most.
    pub snapshot_bytes: u64,
    /// Bytes of records between two snapshots. Each record takes four bytes more than its length,
    /// and each [`flush`](super::Journal::flush) fills up a frame ([`frame_payload_bytes`]). Only
    /// [`chunks_needed`] uses this value; the real capacity of a generation depends on the number of
    /// good chunks.
    pub record_bytes: u64,
}

/// Returns the bytes of payload of one frame, which a flush fills up.
pub fn frame_payload_bytes(shape: &FlashGeometry) -> u64 {
    (u64::from(shape.ws_opt) * u64::from(shape.sector_bytes)).saturating_sub(HEADER_BYTES as u64)
}

/// Returns the number of chunks to reserve for a journal, spread evenly over at least two parallel
/// units: two copies of a full generation and of the next snapshot, and one spare chunk.
///
/// # Errors
/// [`JournalError::InvalidParameter`].
pub fn chunks_needed(shape: &FlashGeometry, config: &JournalConfig) -> Result<u32, JournalError> {
    let capacity = JournalCapacity::new(shape, config)?;
    Ok(2 * (capacity.generation_chunks + capacity.snapshot_chunks) + 1)
}

/// The sizes of a [`JournalConfig`] in frames and chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JournalCapacity {
    /// Bytes of a write unit.
    pub(crate) unit_bytes: usize,
    /// Bytes of payload of a frame.
    pub(crate) payload_bytes: usize,
    /// Write units of a chunk.
    pub(crate) units: u32,
    /// Frames of the largest snapshot.
    pub(crate) snapshot_frames: u32,
    /// Frames of the records of a generation.
    record_frames: u32,
    /// Write units behind a unit that must be programmed before it can be read.
    pair_units: u32,
    /// Chunks of one copy of the largest snapshot.
    pub(crate) snapshot_chunks: u32,
    /// Chunks of one copy of the largest snapshot and of one frame of records.
    pub(crate) chunks_min: u32,
    /// Chunks of one copy of the largest snapshot and of the records of a generation.
    pub(crate) generation_chunks: u32,
}

impl JournalCapacity {
    pub(crate) fn new(
        shape: &FlashGeometry,
        config: &JournalConfig,
    ) -> Result<JournalCapacity, JournalError> {
        let unfit = |what, value: u32, allowed| {
            Err(JournalError::InvalidParameter { what, value: value.into(), allowed })
        };
        if shape.ws_opt == 0 || shape.ws_opt > 64 {
            return unfit("the write unit", shape.ws_opt, "it must be from 1 to 64 sectors");
        }
        if shape.sectors_per_chunk == 0 || !shape.sectors_per_chunk.is_multiple_of(shape.ws_opt) {
            return unfit(
                "the chunk's size",
                shape.sectors_per_chunk,
                "it must be of whole write units",
            );
        }
        if shape.sector_bytes < 512 {
            return unfit("the sector size", shape.sector_bytes, "it must be at least 512 bytes");
        }
        let unit_bytes = shape.ws_opt.index() * shape.sector_bytes.index();
        let payload_bytes = unit_bytes - HEADER_BYTES;
        let units = shape.sectors_per_chunk / shape.ws_opt;
        let frames = |bytes: u64| bytes.div_ceil(payload_bytes as u64).max(1);
        let (snapshot, records) = (frames(config.snapshot_bytes), frames(config.record_bytes));
        let limit = u64::from(u32::MAX / 8);
        for (what, frames, value) in [
            ("the snapshot's size", snapshot, config.snapshot_bytes),
            ("the records' size", records, config.record_bytes),
        ] {
            if frames > limit {
                let allowed = "it must be less than 2^29 frames";
                return Err(JournalError::InvalidParameter { what, value, allowed });
            }
        }
        let chunks = |frames: u64| frames.div_ceil(u64::from(units)).to_u32();
        Ok(JournalCapacity {
            unit_bytes,
            payload_bytes,
            units,
            snapshot_frames: snapshot.to_u32(),
            record_frames: records.to_u32(),
            pair_units: shape.pair_units(),
            snapshot_chunks: chunks(snapshot),
            chunks_min: chunks(snapshot + 1),
            generation_chunks: chunks(snapshot + records),
        })
    }

    /// Returns the least number of chunks of one copy.
    pub(crate) fn copy_chunks_min(&self) -> u32 {
        self.snapshot_chunks + self.chunks_min
    }

    /// Returns the number of copies that `good` chunks are enough for.
    pub(crate) fn copy_count(&self, good: u32) -> u32 {
        if good >= 2 * self.copy_chunks_min() { 2 } else { 1 }
    }

    /// Returns the chunks reserved for the next snapshot.
    pub(crate) fn reserve_chunks(&self, good: u32) -> u32 {
        self.copy_count(good) * self.snapshot_chunks
    }

    /// Returns the frames of one copy of a generation without failures.
    pub(crate) fn generation_frames(&self, good: u32) -> u64 {
        let chunks = (good.saturating_sub(self.reserve_chunks(good))) / self.copy_count(good);
        u64::from(chunks) * u64::from(self.units)
    }

    /// Returns the number of write units that must be programmed behind a generation's snapshot
    /// before all of it can be read, when `left` more fit into its chunk: reaching the chunk's end
    /// is enough. The result does not exceed the capacity beyond the announced records.
    pub(crate) fn base_pairing_units(&self, good: u32, base_frames: u32, left: u32) -> u32 {
        let announced = u64::from(base_frames) + u64::from(self.record_frames);
        let spare = self.generation_frames(good).saturating_sub(announced);
        self.pair_units.min(left).min(spare.min(u32::MAX.into()).to_u32())
    }
}

#[cfg(test)]
mod tests {
    use nvme::Geometry;

    use super::*;

    fn shape(units: u32, unit: u32) -> FlashGeometry {
        FlashGeometry::from_geometry(&Geometry {
            groups: 2,
            pus: 2,
            chunks: 16,
            sectors: units * unit,
            sector_bytes: 512,
            oob_bytes: 0,
            ws_min: unit,
            ws_opt: unit,
            mw_cunits: 0,
        })
    }

    fn config(snapshot_bytes: u64, record_bytes: u64) -> JournalConfig {
        JournalConfig { owner: 1, snapshot_bytes, record_bytes }
    }

    #[test]
    fn chunks_follow_from_bytes() {
        // 464 bytes per frame, 10 frames per chunk.
        let shape = shape(10, 1);
        assert_eq!(frame_payload_bytes(&shape), 464);
        for (snapshot, records, snapshot_chunks, generation_chunks) in [
            (0, 0, 1, 1),
            (464, 464 * 9, 1, 1),
            (464, 464 * 9 + 1, 1, 2),
            (464 * 10, 464, 1, 2),
            (464 * 10 + 1, 464, 2, 2),
            (464 * 25, 464 * 20, 3, 5),
        ] {
            let config = config(snapshot, records);
            let capacity = JournalCapacity::new(&shape, &config).unwrap();
            assert_eq!(capacity.snapshot_chunks, snapshot_chunks, "{config:?}");
            assert_eq!(capacity.generation_chunks, generation_chunks, "{config:?}");
            let needed = chunks_needed(&shape, &config).unwrap();
            assert_eq!(needed, 2 * (snapshot_chunks + generation_chunks) + 1);
            assert_eq!(capacity.copy_count(needed - 1), 2);
            let frames = capacity.generation_frames(needed - 1);
            assert_eq!(frames, u64::from(generation_chunks) * 10);
            assert_eq!(capacity.copy_count(2 * capacity.copy_chunks_min() - 1), 1);
        }
    }

    #[test]
    fn what_cannot_be_says_why() {
        type Change = fn(&mut FlashGeometry, &mut JournalConfig);
        let cases: [(Change, &str); 7] = [
            (|s, _| s.ws_opt = 0, "the write unit"),
            (|s, _| s.ws_opt = 65, "the write unit"),
            (|s, _| s.sectors_per_chunk = 5, "the chunk's size"),
            (|s, _| s.sectors_per_chunk = 0, "the chunk's size"),
            (|s, _| s.sector_bytes = 256, "the sector size"),
            (|_, c| c.snapshot_bytes = u64::MAX, "the snapshot's size"),
            (|_, c| c.record_bytes = u64::MAX, "the records' size"),
        ];
        for (change, what) in cases {
            let (mut shape, mut config) = (shape(4, 2), config(1, 1));
            change(&mut shape, &mut config);
            match chunks_needed(&shape, &config) {
                Err(JournalError::InvalidParameter { what: found, .. }) => assert_eq!(found, what),
                other => panic!("{other:?}"),
            }
        }
    }
}
