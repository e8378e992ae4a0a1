//! Copies data between frames and the memory of requests.

use block::{Payload, Segment};
use nvme::Status;
use ring::{AddressSpace, Iova, SharedRegion};

/// Direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyDirection {
    /// From the cache to the request.
    CacheToRequest,
    /// From the request to the cache; a segment without an address supplies zeros.
    RequestToCache,
}

/// Copies `len` bytes between `frame` at `frame_offset` and a request's data at `offset`.
#[inline]
pub(super) fn copy(
    memory: &AddressSpace,
    way: CopyDirection,
    (frame, frame_offset): (&SharedRegion, usize),
    (data, offset): (Payload, u64),
    len: usize,
) -> Result<(), Status> {
    match data {
        Payload::Contiguous(at) => {
            copy_segment(memory, way, (frame, frame_offset), at.offset(offset), len)
        }
        Payload::BitBucket => {
            if way == CopyDirection::RequestToCache {
                frame.fill(frame_offset, len, 0);
            }
            Ok(())
        }
        Payload::Scattered { table, segments } => {
            copy_segment_list(memory, way, (frame, frame_offset), (table, segments), (offset, len))
        }
    }
}

#[inline]
fn copy_segment(
    memory: &AddressSpace,
    way: CopyDirection,
    (frame, frame_offset): (&SharedRegion, usize),
    at: Iova,
    len: usize,
) -> Result<(), Status> {
    let there = memory.find(at, len as u64).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
    match way {
        CopyDirection::CacheToRequest => {
            SharedRegion::copy(frame, frame_offset, there.region, there.offset, len)
        }
        CopyDirection::RequestToCache => {
            SharedRegion::copy(there.region, there.offset, frame, frame_offset, len)
        }
    }
    Ok(())
}

fn copy_segment_list(
    memory: &AddressSpace,
    way: CopyDirection,
    (frame, frame_offset): (&SharedRegion, usize),
    (table, segments): (Iova, u16),
    (offset, len): (u64, usize),
) -> Result<(), Status> {
    let mut begin = 0u64;
    let end = offset + len as u64;
    for i in 0..u64::from(segments) {
        let mut entry = [0; Segment::BYTES];
        let at = table.offset(i * Segment::BYTES as u64);
        memory.read(at, &mut entry).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
        let [low, high] = [0, 8].map(|from| {
            let mut word = [0; 8];
            word.copy_from_slice(&entry[from..from + 8]);
            u64::from_le_bytes(word)
        });
        let segment = Segment::decode([low, high]).ok_or(Status::SGL_TYPE_INVALID)?;
        let after = begin + u64::from(segment.bytes);
        let (from, to) = (begin.max(offset), after.min(end));
        if from < to {
            let there = frame_offset + (from - offset) as usize;
            let len = (to - from) as usize;
            let data = match segment.at {
                Some(at) => Payload::Contiguous(at),
                None => Payload::BitBucket,
            };
            copy(memory, way, (frame, there), (data, from - begin), len)?;
        }
        begin = after;
        if begin >= end {
            return Ok(());
        }
    }
    Err(Status::SGL_LENGTH_INVALID)
}
