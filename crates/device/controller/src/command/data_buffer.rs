//! [`DataBuffer`]: the host memory of a command's data, checked against the registered memory of
//! the queue's owner before any access (ARCHITECTURE.md, R1).

use std::ops::Range;
use std::sync::Arc;

use mem::{AddressSpace, Iova, PAGE_BYTES, SharedRegion};
use nvme::{DataPointer, SglDescriptor, Sqe, Status};

/// The location of a command's data.
#[derive(Clone, Debug, Default)]
pub(crate) enum DataBuffer {
    /// No memory: a command without data, or a Bit Bucket.
    #[default]
    Empty,
    /// One contiguous range.
    Contiguous(Iova),
    /// Segments: the offset of each in the data, and its address. A segment ends where the next one
    /// begins.
    Segments(Vec<(u64, Iova)>),
    /// Memory of the drive: the data of a Copy.
    Internal(Arc<SharedRegion>),
}

/// Maximum number of segments in a scatter-gather list (SGL).
const SGL_SEGMENTS_MAX: usize = 64;
/// Maximum number of descriptors in a scatter-gather list.
const SGL_DESCRIPTORS_MAX: usize = 8192;

impl DataBuffer {
    /// Parses the data pointer of an entry for `bytes` bytes of data.
    ///
    /// # Errors
    /// The status with which the command is to complete: memory that is not registered, misaligned
    /// entries, or a list that is too short or of an unsupported kind.
    #[inline]
    pub(crate) fn from_sqe(
        sqe: &Sqe,
        bytes: u64,
        memory: &AddressSpace,
    ) -> Result<DataBuffer, Status> {
        match sqe.data() {
            DataPointer::Sgl(SglDescriptor::BitBucket { length }) if u64::from(length) >= bytes => {
                Ok(DataBuffer::Empty)
            }
            DataPointer::Sgl(SglDescriptor::DataBlock { address, length }) => {
                if u64::from(length) < bytes {
                    return Err(Status::SGL_LENGTH_INVALID);
                }
                contiguous(Iova(address), bytes, memory)
            }
            DataPointer::Sgl(SglDescriptor::Segment { address, length, last }) => {
                from_sgl(Iova(address), length, last, bytes, memory)
            }
            DataPointer::Sgl(SglDescriptor::BitBucket { .. }) => Err(Status::SGL_LENGTH_INVALID),
            DataPointer::Sgl(SglDescriptor::Unsupported(_)) => Err(Status::SGL_TYPE_INVALID),
            DataPointer::Prp(first, second) => from_prps(first, second, bytes, memory),
            DataPointer::Reserved => Err(Status::INVALID_FIELD),
        }
    }

    /// Whether the command transfers data.
    #[inline]
    pub(crate) fn has_data(&self) -> bool {
        !matches!(self, DataBuffer::Empty)
    }

    /// Returns how many of the `bytes` bytes of data lie in `range`. Ranges are whole
    /// registrations, so a segment is entirely inside or outside.
    pub(crate) fn bytes_within(&self, bytes: u64, range: &Range<Iova>) -> u64 {
        let inside = |at: Iova| range.contains(&at);
        match self {
            DataBuffer::Empty | DataBuffer::Internal(_) => 0,
            DataBuffer::Contiguous(at) => {
                if inside(*at) {
                    bytes
                } else {
                    0
                }
            }
            DataBuffer::Segments(pieces) => {
                let end = |i: usize| pieces.get(i + 1).map_or(bytes, |p| p.0.min(bytes));
                let within = |(i, (start, at)): (usize, &(u64, Iova))| {
                    if inside(*at) { end(i) - start } else { 0 }
                };
                pieces.iter().enumerate().map(within).sum()
            }
        }
    }

    /// Calls `f` for each segment of the `len` bytes from `offset`: region, offset in the region,
    /// offset in the range, and length.
    #[inline]
    pub(crate) fn for_each_segment(
        &self,
        memory: &AddressSpace,
        offset: u64,
        len: usize,
        mut f: impl FnMut(&SharedRegion, usize, usize, usize),
    ) {
        match self {
            DataBuffer::Empty => {}
            DataBuffer::Internal(region) => f(region, offset as usize, 0, len),
            DataBuffer::Contiguous(base) => {
                // The range was checked when the command was fetched; registrations are never
                // withdrawn.
                if let Ok(b) = memory.find(base.offset(offset), len as u64) {
                    f(b.region, b.offset, 0, len);
                }
            }
            DataBuffer::Segments(pieces) => {
                let mut done = 0;
                let mut i = pieces.partition_point(|(start, _)| *start <= offset) - 1;
                while done < len && i < pieces.len() {
                    let (start, at) = pieces[i];
                    let skip = offset + done as u64 - start;
                    let end = pieces.get(i + 1).map_or(u64::MAX, |p| p.0);
                    let n = (len - done).min((end - start - skip) as usize);
                    if let Ok(b) = memory.find(at.offset(skip), n as u64) {
                        f(b.region, b.offset, done, n);
                    }
                    done += n;
                    i += 1;
                }
            }
        }
    }

    /// Copies bytes to host memory.
    pub(crate) fn write(&self, memory: &AddressSpace, offset: u64, bytes: &[u8]) {
        self.for_each_segment(memory, offset, bytes.len(), |region, at, from, n| {
            region.write(at, &bytes[from..from + n]);
        });
    }

    /// Copies bytes from host memory.
    pub(crate) fn read(&self, memory: &AddressSpace, offset: u64, bytes: &mut [u8]) {
        self.for_each_segment(memory, offset, bytes.len(), |region, at, from, n| {
            region.read(at, &mut bytes[from..from + n]);
        });
    }
}

#[inline]
fn contiguous(at: Iova, bytes: u64, memory: &AddressSpace) -> Result<DataBuffer, Status> {
    match memory.find(at, bytes) {
        Ok(_) => Ok(DataBuffer::Contiguous(at)),
        Err(_) => Err(Status::DATA_TRANSFER_ERROR),
    }
}

/// Parses PRP entries [NVMe1.4 §4.3]. The first may have a page offset. The second is a page, or a
/// list of pages if the data spans more than two; the last entry of a full list points to the next
/// list.
fn from_prps(
    first: u64,
    second: u64,
    bytes: u64,
    memory: &AddressSpace,
) -> Result<DataBuffer, Status> {
    const PAGE64: u64 = PAGE_BYTES as u64;
    let head = PAGE64 - first % PAGE64;
    if !first.is_multiple_of(4) {
        return Err(Status::PRP_OFFSET_INVALID);
    }
    if bytes <= head {
        return contiguous(Iova(first), bytes, memory);
    }
    let mut pieces = vec![(0, Iova(first))];
    if bytes - head <= PAGE64 {
        pieces.push((head, Iova(second)));
    } else {
        let mut list = second;
        let mut done = head;
        if !list.is_multiple_of(8) {
            return Err(Status::PRP_OFFSET_INVALID);
        }
        while done < bytes {
            let mut word = [0; 8];
            memory.read(Iova(list), &mut word).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
            let entry = u64::from_le_bytes(word);
            let last_slot = list % PAGE64 == PAGE64 - 8;
            if last_slot && bytes - done > PAGE64 {
                // The entry points to the next page of the list.
                if entry % PAGE64 != 0 {
                    return Err(Status::PRP_OFFSET_INVALID);
                }
                list = entry;
                continue;
            }
            pieces.push((done, Iova(entry)));
            done += PAGE64;
            list += 8;
        }
    }
    if pieces[1..].iter().any(|(_, at)| at.0 % PAGE64 != 0) {
        return Err(Status::PRP_OFFSET_INVALID);
    }
    check_registered(&pieces, bytes, memory)?;
    Ok(DataBuffer::Segments(pieces))
}

/// Parses a scatter-gather list [NVMe1.4 §4.4] of data blocks; Bit Bucket descriptors in it are not
/// supported.
fn from_sgl(
    at: Iova,
    length: u32,
    last: bool,
    bytes: u64,
    memory: &AddressSpace,
) -> Result<DataBuffer, Status> {
    let mut pieces: Vec<(u64, Iova)> = Vec::new();
    let mut done = 0;
    let (mut at, mut length, mut last) = (at, length, last);
    for _ in 0..SGL_SEGMENTS_MAX {
        if length == 0
            || length % 16 != 0
            || pieces.len() + length as usize / 16 > SGL_DESCRIPTORS_MAX
        {
            return Err(Status::SGL_LENGTH_INVALID);
        }
        let mut next = None;
        for i in 0..length / 16 {
            let mut raw = [0; 16];
            memory
                .read(at.offset(u64::from(i) * 16), &mut raw)
                .map_err(|_| Status::DATA_TRANSFER_ERROR)?;
            let [a, b]: [u64; 2] = zerocopy_words(raw);
            match SglDescriptor::decode([a, b]) {
                SglDescriptor::DataBlock { address, length } => {
                    if done < bytes && length > 0 {
                        pieces.push((done, Iova(address)));
                    }
                    done += u64::from(length);
                }
                SglDescriptor::Segment { address, length: n, last: l }
                    if !last && i + 1 == length / 16 =>
                {
                    next = Some((Iova(address), n, l));
                }
                _ => return Err(Status::SGL_TYPE_INVALID),
            }
        }
        match next {
            Some((a, n, l)) => (at, length, last) = (a, n, l),
            None if done < bytes => return Err(Status::SGL_LENGTH_INVALID),
            None => {
                check_registered(&pieces, bytes, memory)?;
                return Ok(DataBuffer::Segments(pieces));
            }
        }
    }
    Err(Status::SGL_LENGTH_INVALID)
}

fn zerocopy_words(raw: [u8; 16]) -> [u64; 2] {
    let (low, high) = raw.split_at(8);
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |w, b| w << 8 | u64::from(*b));
    [word(low), word(high)]
}

fn check_registered(
    pieces: &[(u64, Iova)],
    bytes: u64,
    memory: &AddressSpace,
) -> Result<(), Status> {
    for (i, (start, at)) in pieces.iter().enumerate() {
        let end = pieces.get(i + 1).map_or(bytes, |p| p.0.min(bytes));
        memory.find(*at, end - start).map_err(|_| Status::DATA_TRANSFER_ERROR)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use mem::AddressSpace;

    use super::*;

    fn memory(pages: usize) -> (AddressSpace, std::sync::Arc<SharedRegion>, Iova) {
        let space = AddressSpace::default();
        let region = SharedRegion::anonymous(pages * PAGE_BYTES).unwrap();
        let at = space.register(&region).unwrap();
        (space, region, at)
    }

    fn round_trip(payload: &DataBuffer, space: &AddressSpace, bytes: usize) {
        let data: Vec<u8> = (0..bytes).map(|i| (i * 7 + i / 251) as u8).collect();
        payload.write(space, 0, &data);
        let mut back = vec![0; bytes];
        payload.read(space, 0, &mut back);
        assert_eq!(back, data);
        // Also with a length that is not a multiple of the page size.
        let mut some = vec![0; bytes.min(5_000)];
        let n = some.len();
        payload.read(space, (bytes - n) as u64, &mut some);
        assert_eq!(some, data[bytes - n..]);
    }

    #[test]
    fn prp_lists_of_every_length() {
        let (space, region, at) = memory(1200);
        for (offset, bytes) in
            [(0, 512), (0, 4096), (256, 4096), (0, 8192), (512, 8192), (64, 2 << 20)]
        {
            let mut sqe = Sqe::default();
            let pages = (offset + bytes as u64).div_ceil(4096);
            let data = at.0 + 100 * 4096;
            // Pages in reverse order, to check that the list is followed.
            let page = |i: u64| if i == 0 { data } else { data + (pages - i) * 4096 };
            if pages <= 2 {
                sqe.set_prp(page(0) + offset, page(1));
            } else {
                // Two list pages; the first is full and chained.
                let mut list = at.0;
                for i in 1..pages {
                    if list % 4096 == 4088 && i + 1 < pages {
                        let next = at.0 + 4096;
                        region.write((list - at.0) as usize, &next.to_le_bytes());
                        list = next;
                    }
                    region.write((list - at.0) as usize, &page(i).to_le_bytes());
                    list += 8;
                }
                sqe.set_prp(page(0) + offset, at.0);
            }
            let payload = DataBuffer::from_sqe(&sqe, bytes as u64, &space).unwrap();
            round_trip(&payload, &space, bytes);
        }
    }

    #[test]
    fn scatter_gather_lists() {
        let (space, region, at) = memory(16);
        let mut sqe = Sqe::default();
        let put = |slot: usize, d: SglDescriptor| {
            for (i, w) in d.encode().into_iter().enumerate() {
                region.write(slot * 16 + i * 8, &w.to_le_bytes());
            }
        };
        let block = |page: u64, length| SglDescriptor::DataBlock {
            address: at.0 + page * 4096 + 3,
            length,
        };
        put(0, block(2, 1000));
        put(1, block(4, 96));
        put(2, SglDescriptor::Segment { address: at.0 + 160, length: 32, last: true });
        put(10, block(6, 4000));
        put(11, block(9, 4000));
        sqe.set_sgl(SglDescriptor::Segment { address: at.0, length: 48, last: false });
        round_trip(&DataBuffer::from_sqe(&sqe, 8192, &space).unwrap(), &space, 8192);
        assert_eq!(
            DataBuffer::from_sqe(&sqe, 9097, &space).unwrap_err(),
            Status::SGL_LENGTH_INVALID
        );
    }

    #[test]
    fn segments_within_a_registration_are_counted() {
        let (space, region, at) = memory(4);
        let other = SharedRegion::anonymous(4 * PAGE_BYTES).unwrap();
        let far = space.register(&other).unwrap();
        let range = &(far..far.offset(4 * PAGE_BYTES as u64));
        for (i, entry) in [far.0 + 4096, at.0 + 8192, far.0 + 8192].into_iter().enumerate() {
            region.write(i * 8, &entry.to_le_bytes());
        }
        let mut sqe = Sqe::default();
        sqe.set_prp(far.0 + 512, at.0);
        let bytes = 3584 + 3 * 4096;
        let payload = DataBuffer::from_sqe(&sqe, bytes, &space).unwrap();
        assert_eq!(payload.bytes_within(bytes, range), bytes - 4096);
        assert_eq!(DataBuffer::Contiguous(at).bytes_within(512, range), 0);
        assert_eq!(DataBuffer::Contiguous(far).bytes_within(512, range), 512);
        assert_eq!(DataBuffer::Empty.bytes_within(512, range), 0);
    }

    #[test]
    fn bad_pointers_are_answered() {
        let (space, _region, at) = memory(4);
        let mut sqe = Sqe::default();
        let of = |sqe: &Sqe, n| DataBuffer::from_sqe(sqe, n, &space).map(|_| ()).unwrap_err();
        assert_eq!(of(&sqe, 4096), Status::DATA_TRANSFER_ERROR);
        sqe.set_prp(at.0 + 3, 0);
        assert_eq!(of(&sqe, 512), Status::PRP_OFFSET_INVALID);
        sqe.set_prp(at.0, at.0 + 4097);
        assert_eq!(of(&sqe, 8192), Status::PRP_OFFSET_INVALID);
        sqe.set_prp(at.0, 0);
        assert_eq!(of(&sqe, 1 << 20), Status::DATA_TRANSFER_ERROR);
        sqe.set_sgl(SglDescriptor::DataBlock { address: at.0, length: 100 });
        assert_eq!(of(&sqe, 512), Status::SGL_LENGTH_INVALID);
        sqe.set_sgl(SglDescriptor::DataBlock { address: at.0 + 4 * 4096 - 511, length: 512 });
        assert_eq!(of(&sqe, 512), Status::DATA_TRANSFER_ERROR);
        sqe.set_sgl(SglDescriptor::Unsupported(0x40));
        assert_eq!(of(&sqe, 512), Status::SGL_TYPE_INVALID);
        sqe.set_sgl(SglDescriptor::BitBucket { length: 512 });
        assert!(!DataBuffer::from_sqe(&sqe, 512, &space).unwrap().has_data());
        // A list that points to itself is rejected.
        let mut words = Vec::new();
        let me = SglDescriptor::Segment { address: at.0, length: 16, last: false };
        for w in me.encode() {
            words.extend(w.to_le_bytes());
        }
        space.write(at, &words).unwrap();
        sqe.set_sgl(me);
        assert_eq!(of(&sqe, 512), Status::SGL_LENGTH_INVALID);
    }
}
