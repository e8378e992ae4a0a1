//! [`Merger`]: merges contiguous requests into one command (blktrace's M and F).
//!
//! Only requests of one submitter with adjacent sectors are merged. Their data need not be
//! adjacent: the command then has a segment table. Each submitter has its own registered memory
//! with one table per request, so it never writes the memory of others.

use std::sync::Arc;

use mem::{AddressSpace, Iova, RegisterError, SharedRegion};

use crate::{Features, Limits, Op, Payload, Segment, StagedRequest};

/// The side on which a request was merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MergeSide {
    /// After the other request's last sector.
    Back,
    /// Before the other request's first sector.
    Front,
}

/// Merges requests of one submitter.
#[derive(Debug)]
pub(crate) struct Merger {
    sector_bytes: u32,
    max_sectors: u32,
    /// Maximum number of segments per command; 1 if the driver takes only contiguous data.
    segments: u16,
    /// Whether the driver supports force unit access; without it each FUA write needs its own
    /// flush.
    fua: bool,
    tables: Option<(Arc<SharedRegion>, Iova)>,
}

/// Maximum number of segments per command, whatever the driver supports; a table takes 2 KiB.
const SEGMENTS_MAX: u16 = 128;

impl Merger {
    /// Creates a merger for a submitter with at most `requests` requests.
    ///
    /// # Errors
    /// [`MergerError`] if no memory for the tables or no registration is left.
    pub(crate) fn new(
        limits: &Limits,
        features: &Features,
        requests: u32,
        memory: &AddressSpace,
    ) -> Result<Merger, MergerError> {
        let segments = features.segments.clamp(1, SEGMENTS_MAX);
        let tables = if segments > 1 {
            let bytes = requests as usize * usize::from(segments) * Segment::BYTES;
            // Memory that the device can access, even if it is in another process.
            Some(memory.allocate_registered(bytes)?)
        } else {
            None
        };
        let Limits { sector_bytes, max_sectors, .. } = *limits;
        Ok(Merger { sector_bytes, max_sectors, segments, fua: features.fua, tables })
    }

    /// Merges `newcomer` into `staged` if they are compatible, and returns the side.
    #[inline]
    pub(crate) fn merge(
        &self,
        staged: &mut StagedRequest,
        newcomer: &StagedRequest,
    ) -> Option<MergeSide> {
        let side = if staged.end() == newcomer.request.lba {
            MergeSide::Back
        } else if newcomer.end() == staged.request.lba {
            MergeSide::Front
        } else {
            return None;
        };
        self.join(staged, newcomer, side).then_some(side)
    }

    #[cold]
    fn join(&self, staged: &mut StagedRequest, newcomer: &StagedRequest, side: MergeSide) -> bool {
        let (a, b) = (&staged.request, &newcomer.request);
        let alike = a.op == b.op
            && a.fua == b.fua
            && (self.fua || !a.fua)
            && staged.submitter == newcomer.submitter
            && staged.group == newcomer.group
            && !(a.atomic || b.atomic)
            && staged.requeues == 0;
        let Some(sectors) = a.sectors.checked_add(b.sectors).filter(|_| alike) else {
            return false;
        };
        let data = match a.op {
            Op::Discard => Some(Payload::BitBucket),
            Op::Read | Op::Write if sectors <= self.max_sectors => {
                self.join_data(staged, newcomer, side)
            }
            _ => None,
        };
        let (Some(data), Some(merged)) = (data, staged.merged.checked_add(newcomer.merged)) else {
            return false;
        };
        let request = &mut staged.request;
        (request.sectors, request.data, staged.merged) = (sectors, data, merged);
        if side == MergeSide::Front {
            request.lba = newcomer.request.lba;
        }
        true
    }

    /// Returns the payload of both requests, in the order of their sectors.
    fn join_data(
        &self,
        staged: &StagedRequest,
        newcomer: &StagedRequest,
        side: MergeSide,
    ) -> Option<Payload> {
        let bytes = |s: &StagedRequest| s.request.sectors * self.sector_bytes;
        let piece = |data, bytes| match data {
            Payload::Contiguous(at) => Some(Segment { at: Some(at), bytes }),
            Payload::BitBucket => Some(Segment { at: None, bytes }),
            Payload::Scattered { .. } => None,
        };
        let new = piece(newcomer.request.data, bytes(newcomer))?;
        match staged.request.data {
            Payload::Scattered { table, segments } => {
                // Only a table of this merger may be changed, not one of the caller.
                let ours = self.segment_table(staged)?;
                if table != ours.1 || segments >= self.segments {
                    return None;
                }
                self.insert_segment(ours.0, segments, new, side);
                Some(Payload::Scattered { table, segments: segments + 1 })
            }
            old => {
                let old = piece(old, bytes(staged))?;
                let (first, second) = if side == MergeSide::Back { (old, new) } else { (new, old) };
                if let Some(data) = adjacent(first, second) {
                    return Some(data);
                }
                let (offset, table) = self.segment_table(staged)?;
                self.write(offset, first);
                self.write(offset + Segment::BYTES, second);
                Some(Payload::Scattered { table, segments: 2 })
            }
        }
    }

    /// Adds a segment to the table at `offset`, which has `count` segments.
    fn insert_segment(&self, offset: usize, count: u16, new: Segment, side: MergeSide) {
        let end = offset + usize::from(count) * Segment::BYTES;
        match side {
            MergeSide::Back => self.write(end, new),
            MergeSide::Front => {
                if let Some((region, _)) = &self.tables {
                    SharedRegion::copy(
                        region,
                        offset,
                        region,
                        offset + Segment::BYTES,
                        end - offset,
                    );
                }
                self.write(offset, new);
            }
        }
    }

    fn write(&self, offset: usize, segment: Segment) {
        if let Some((region, _)) = &self.tables {
            let [low, high] = segment.encode();
            region.write(offset, &low.to_le_bytes());
            region.write(offset + 8, &high.to_le_bytes());
        }
    }

    /// Returns the segment table of a request: its offset in the region, and its address.
    fn segment_table(&self, staged: &StagedRequest) -> Option<(usize, Iova)> {
        let (_, at) = self.tables.as_ref()?;
        let offset = staged.request.tag as usize * usize::from(self.segments) * Segment::BYTES;
        Some((offset, at.offset(offset as u64)))
    }
}

/// The reason why a merger cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum MergerError {
    /// No memory or no registration is left.
    #[error("registering memory for tables of segments: {0}")]
    Register(#[from] RegisterError),
}

/// Returns the payload of two segments that are adjacent, or `None`.
fn adjacent(first: Segment, second: Segment) -> Option<Payload> {
    match (first.at, second.at) {
        (None, None) => Some(Payload::BitBucket),
        (Some(a), Some(b)) if a.offset(first.bytes.into()) == b => Some(Payload::Contiguous(a)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Group, Request, Submitter};
    use time::Nanos;

    const LIMITS: Limits = Limits {
        sector_bytes: 512,
        sectors: 1 << 20,
        max_sectors: 16,
        optimal_sectors: 1,
        queue_depth: 8,
        volatile_cache: false,
        atomic: crate::AtomicLimits::NONE,
    };

    fn staged(id: u64, lba: u64, sectors: u32, data: Payload) -> StagedRequest {
        StagedRequest {
            request: Request::write(lba, sectors, data, id),
            since: Nanos::ZERO,
            submitter: Submitter(0),
            group: Group(0),
            merged: 1,
            requeues: 0,
        }
    }

    fn merger(memory: &AddressSpace) -> Merger {
        let features = Features { segments: 4, ..Features::default() };
        Merger::new(&LIMITS, &features, 8, memory).unwrap()
    }

    fn segments(memory: &AddressSpace, data: Payload) -> Vec<Segment> {
        let Payload::Scattered { table, segments } = data else { panic!("{data:?}") };
        (0..u64::from(segments))
            .map(|i| {
                let mut words = [0; 16];
                memory.read(table.offset(16 * i), &mut words).unwrap();
                let [low, high] =
                    [0, 8].map(|o| u64::from_le_bytes(words[o..o + 8].try_into().unwrap()));
                Segment::decode([low, high]).unwrap()
            })
            .collect()
    }

    #[test]
    fn segments_follow_the_sectors_whatever_the_order_of_arrival() {
        let memory = AddressSpace::default();
        let merger = merger(&memory);
        let at = |n: u64| Payload::Contiguous(Iova(n << 20));
        let mut head = staged(3, 100, 2, at(1));
        assert_eq!(merger.merge(&mut head, &staged(4, 102, 1, at(2))), Some(MergeSide::Back));
        assert_eq!(merger.merge(&mut head, &staged(5, 96, 4, at(3))), Some(MergeSide::Front));
        assert_eq!(
            merger.merge(&mut head, &staged(6, 103, 1, Payload::BitBucket)),
            Some(MergeSide::Back)
        );
        let seg = |n: Option<u64>, bytes| Segment { at: n.map(|n| Iova(n << 20)), bytes };
        let want = [seg(Some(3), 2048), seg(Some(1), 1024), seg(Some(2), 512), seg(None, 512)];
        assert_eq!(segments(&memory, head.request.data), want);
        assert_eq!((head.request.lba, head.request.sectors, head.merged), (96, 8, 4));
        assert_eq!(
            merger.merge(&mut head, &staged(7, 104, 1, at(4))),
            None,
            "four segments at most"
        );
    }

    #[test]
    fn data_that_touches_needs_no_table() {
        let memory = AddressSpace::default();
        let merger = merger(&memory);
        let mut head = staged(0, 10, 1, Payload::Contiguous(Iova(4096)));
        merger.merge(&mut head, &staged(1, 11, 1, Payload::Contiguous(Iova(4608)))).unwrap();
        merger.merge(&mut head, &staged(2, 9, 1, Payload::Contiguous(Iova(3584)))).unwrap();
        assert_eq!(head.request.data, Payload::Contiguous(Iova(3584)));
    }

    #[test]
    fn what_differs_stays_apart() {
        let memory = AddressSpace::default();
        let merger = merger(&memory);
        let new = || staged(1, 11, 1, Payload::BitBucket);
        let mut head = staged(0, 10, 1, Payload::BitBucket);
        let mut refused = |change: &dyn Fn(&mut StagedRequest)| {
            let mut other = new();
            change(&mut other);
            assert_eq!(merger.merge(&mut head, &other), None, "{other:?}");
        };
        refused(&|s| s.request.op = Op::Read);
        refused(&|s| s.request.fua = true);
        refused(&|s| s.submitter = Submitter(1));
        refused(&|s| s.group = Group(1));
        refused(&|s| s.request.lba = 12);
        refused(&|s| s.request.sectors = 16);
        refused(&|s| s.request.data = Payload::Scattered { table: Iova(0), segments: 1 });
        assert_eq!(merger.merge(&mut head, &new()), Some(MergeSide::Back));
    }
}
