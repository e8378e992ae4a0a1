//! Copies data between frames and the memory of requests.

use block::{Payload, Segment};
use mem::{AddressSpace, Iova, SharedRegion};
use nvme::Status;

/// Direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyDirection {
    /// From the cache to the request.
    CacheToRequest,
    /// From the request to the cache; a segment without an address supplies zeros.
    RequestToCache,
}

/// Bytes of a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameBytes<'a> {
    pub(super) region: &'a SharedRegion,
    /// First byte in the region.
    pub(super) offset: usize,
}

/// Bytes of a request's data.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestBytes {
    pub(super) data: Payload,
    /// First byte in the data.
    pub(super) offset: u64,
}

/// Copies `len` bytes between a frame and a request's data.
#[inline]
pub(super) fn copy(
    memory: &AddressSpace,
    way: CopyDirection,
    frame: FrameBytes<'_>,
    request: RequestBytes,
    len: usize,
) -> Result<(), Status> {
    match request.data {
        Payload::Contiguous(at) => copy_segment(memory, way, frame, at.offset(request.offset), len),
        Payload::BitBucket => {
            if way == CopyDirection::RequestToCache {
                frame.region.fill(frame.offset, len, 0);
            }
            Ok(())
        }
        Payload::Scattered { table, segments } => {
            copy_segment_list(memory, way, frame, table, segments, request.offset, len)
        }
    }
}

#[inline]
fn copy_segment(
    memory: &AddressSpace,
    way: CopyDirection,
    frame: FrameBytes<'_>,
    at: Iova,
    len: usize,
) -> Result<(), Status> {
    let there = memory.find(at, len as u64).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
    match way {
        CopyDirection::CacheToRequest => {
            SharedRegion::copy(frame.region, frame.offset, there.region, there.offset, len)
        }
        CopyDirection::RequestToCache => {
            SharedRegion::copy(there.region, there.offset, frame.region, frame.offset, len)
        }
    }
    Ok(())
}

fn copy_segment_list(
    memory: &AddressSpace,
    way: CopyDirection,
    frame: FrameBytes<'_>,
    table: Iova,
    segments: u16,
    offset: u64,
    len: usize,
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
            let there = FrameBytes { offset: frame.offset + (from - offset) as usize, ..frame };
            let len = (to - from) as usize;
            let data = match segment.at {
                Some(at) => Payload::Contiguous(at),
                None => Payload::BitBucket,
            };
            copy(memory, way, there, RequestBytes { data, offset: from - begin }, len)?;
        }
        begin = after;
        if begin >= end {
            return Ok(());
        }
    }
    Err(Status::SGL_LENGTH_INVALID)
}
