//! [`Load`]: random requests of one core over its own sectors, with a model of the expected
//! results.

use std::collections::BTreeMap;
use std::sync::Arc;

use block::{BlockDevice, Completion, Op, Payload, Queue, Request, STATUS_REMOVED};
use driver::NvmeQueue;
use mem::{Iova, SharedRegion};
use nvme::Status;
use rng::Rng;
use time::Nanos;

pub(crate) const SECTOR: usize = 4096;

/// Sectors per core.
pub(crate) const SECTORS_PER_CORE: u64 = 512;

/// Maximum number of sectors per request: more than the 24 that one command may transfer.
const REQUEST_SECTORS_MAX: u64 = 90;

/// Maximum number of requests in flight; each has its own memory.
const BUFFERS: u64 = 16;

pub(crate) struct Load {
    pub(crate) queue: Queue<NvmeQueue>,
    pub(crate) outstanding: BTreeMap<u64, Request>,
    pub(crate) completed: u64,
    pub(crate) failed: Vec<Status>,
    base: u64,
    region: Arc<SharedRegion>,
    at: Iova,
    /// Expected value of each sector; `None` if a write failed, or the media store no data.
    model: Vec<Option<u64>>,
    next_tag: u64,
    rng: Rng,
}

/// Returns the value that a write stores in one of its sectors.
fn stamp(tag: u64, index: u64) -> u64 {
    (tag + 1) << 8 | index
}

impl Load {
    pub(crate) fn new(queue: Queue<NvmeQueue>, keeps_data: bool, seed: u64) -> Load {
        let index = u64::from(queue.submitter().0);
        let region =
            SharedRegion::anonymous((BUFFERS * REQUEST_SECTORS_MAX) as usize * SECTOR).unwrap();
        let at = queue.memory().register(&region).unwrap();
        Load {
            queue,
            outstanding: BTreeMap::new(),
            completed: 0,
            failed: Vec::new(),
            base: index * SECTORS_PER_CORE,
            region,
            at,
            model: vec![keeps_data.then_some(0); SECTORS_PER_CORE as usize],
            next_tag: index << 32,
            rng: Rng::new(seed ^ index << 48),
        }
    }

    /// Returns the memory of a request, not adjacent to that of others, so that merged requests
    /// have several segments.
    fn buffer_offset(tag: u64) -> usize {
        (tag % BUFFERS * REQUEST_SECTORS_MAX) as usize * SECTOR
    }

    fn overlaps(&self, lba: u64, sectors: u64) -> bool {
        self.outstanding.values().any(|r| {
            let end = r.lba + u64::from(r.sectors);
            r.op != Op::Flush && lba < end && r.lba < lba + sectors
        })
    }

    /// Submits a request unless it overlaps one in flight. Returns whether it did.
    pub(crate) fn submit(&mut self, now: Nanos) -> bool {
        let tag = self.next_tag;
        let oldest = self.outstanding.keys().next().copied().unwrap_or(tag);
        if tag - oldest >= BUFFERS - 1 {
            return false;
        }
        let rng = &mut self.rng;
        let sectors = match rng.below(60) {
            0 => 1 + rng.below(REQUEST_SECTORS_MAX),
            1..6 => 1 + rng.below(16),
            _ => 1 + rng.below(4),
        };
        // Often contiguous with the previous request, so that they merge.
        let last = self.outstanding.values().rfind(|r| r.op != Op::Flush);
        let lba = match last.map(|r| r.lba + u64::from(r.sectors)) {
            Some(end) if rng.below(2) == 0 && end + sectors <= self.base + SECTORS_PER_CORE => end,
            _ => self.base + rng.below(SECTORS_PER_CORE - sectors + 1),
        };
        let data = Payload::Contiguous(self.at.offset(Load::buffer_offset(tag) as u64));
        let count = sectors as u32;
        let mut request = match rng.below(24) {
            0 => Request::flush(tag),
            1 => Request::discard(lba, count, tag),
            2 => Request::write_zeroes(lba, count, rng.below(2) == 0, tag),
            3..12 => Request::write(lba, count, data, tag),
            _ => Request::read(lba, count, data, tag),
        };
        request.fua = request.op == Op::Write && rng.below(6) == 0;
        if request.op != Op::Flush && self.overlaps(lba, sectors) {
            return false;
        }
        for i in 0..sectors {
            let word = if request.op == Op::Write { stamp(tag, i) } else { u64::MAX };
            let bytes = word.to_le_bytes().repeat(SECTOR / 8);
            self.region.write(Load::buffer_offset(tag) + i as usize * SECTOR, &bytes);
        }
        let taken = self.queue.submit(now, request).is_ok();
        if taken {
            self.outstanding.insert(tag, request);
            self.next_tag += 1;
        }
        taken
    }

    /// Reaps available completions; returns their number.
    pub(crate) fn reap(&mut self) -> u64 {
        let before = self.completed;
        while let Some(completion) = self.queue.reap() {
            self.on_completion(completion);
        }
        self.completed - before
    }

    fn on_completion(&mut self, completion: Completion) {
        let request = self.outstanding.remove(&completion.tag);
        let request = request.expect("a request completes once, on the core that submitted it");
        self.completed += 1;
        let first = (request.lba - self.base.min(request.lba)) as usize;
        let own = first..first + request.sectors as usize;
        let status = completion.status;
        if !status.is_success() {
            self.failed.push(status);
            assert!([Status::ABORTED, STATUS_REMOVED].contains(&status), "{request:?}: {status}");
            if !matches!(request.op, Op::Read | Op::Flush) {
                self.model[own].fill(None);
            }
            return;
        }
        let model = self.model[own].iter_mut();
        match request.op {
            Op::Write => model.zip(0..).for_each(|(sector, i)| {
                *sector = sector.map(|_| stamp(request.tag, i));
            }),
            Op::Discard | Op::WriteZeroes => model.for_each(|sector| *sector = sector.map(|_| 0)),
            Op::Read => {
                for (i, want) in model.enumerate().filter_map(|(i, want)| Some((i, (*want)?))) {
                    let mut bytes = [0; SECTOR];
                    self.region.read(Load::buffer_offset(request.tag) + i * SECTOR, &mut bytes);
                    let (words, _) = bytes.as_chunks::<8>();
                    let wrong = words.iter().find(|w| u64::from_le_bytes(**w) != want);
                    assert!(wrong.is_none(), "{request:?}: sector {i}: {wrong:x?}, not {want:x}");
                }
            }
            Op::Flush | Op::Extents => {}
        }
    }
}
