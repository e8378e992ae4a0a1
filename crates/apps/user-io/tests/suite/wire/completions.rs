//! A drive that writes arbitrary entries into a completion ring ([NVMe1.2 §4.6]): any command
//! identifier, queue, phase tag, head and status, anywhere, at any time.
//!
//! A second interpretation of the same entries, written from the specification, runs beside the
//! host's. Every request must complete once, by the entry that completed it. Entries that match no
//! command are counted and have no effect.

// guarantee: A-12

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use block::{BlockDevice as _, Completion, Payload, Raw, Request};
use controller::{
    Controller, ControllerConfig, DriveConfig, NullConfig, OpenChannelConfig, PersonalityKind,
    PuScheduling, TransferConfig, WriteBuffer,
};
use driver::{ControllerHandle, NvmeQueue, QueuePair, RingAddresses};
use ftl::FtlConfig;
use media::MediaConfig;
use mem::{Iova, SharedRegion};
use nvme::{Cqe, Status};
use testkit::choices::Choices;
use time::{Component, Nanos};
use transport::Port;

const QID: u16 = 1;
const SECTORS: u64 = 1 << 14;

/// Runs one case from a fuzzer's bytes.
pub(crate) fn fuzz(bytes: &[u8]) {
    broken(Choices::of(bytes), 600);
}

/// Results of a run: completed requests, and entries that matched none.
pub(crate) struct Seen {
    pub(crate) completed: u64,
    pub(crate) strays: u64,
}

fn null_drive() -> DriveConfig {
    DriveConfig {
        name: "broken0".into(),
        personality: PersonalityKind::Null,
        media: MediaConfig::Null { bytes: SECTORS * 4096, sector_bytes: 4096 },
        controller: ControllerConfig::default(),
        pu_scheduling: PuScheduling::Fifo,
        page_register: false,
        cache_program: true,
        transfers: TransferConfig::default(),
        write_buffer: WriteBuffer::None,
        ftl: FtlConfig::default(),
        null: NullConfig::default(),
        open_channel: OpenChannelConfig::default(),
        lba_bytes: None,
        protection: None,
        pmr: None,
        rules: None,
    }
}

/// A queue of a drive that only answers admin commands, and the memory of its rings.
pub(crate) struct Harness {
    pub(crate) raw: Raw<NvmeQueue>,
    port: Arc<Port>,
    submission: (Arc<SharedRegion>, Iova),
    completion: Arc<SharedRegion>,
    data: Iova,
}

/// Writes an entry.
pub(crate) fn put(ring: &SharedRegion, slot: u16, words: [u64; 2]) {
    for (at, word) in [0, 8].into_iter().zip(words) {
        ring.atomic_u64(usize::from(slot) * 16 + at).store(word, Ordering::Release);
    }
}

impl Harness {
    pub(crate) fn new(depth: u16) -> Harness {
        let mut drive = Controller::new(null_drive()).unwrap();
        let port = drive.attach().unwrap();
        let progress = &mut || {
            drive.poll(Nanos(1));
        };
        let controller = ControllerHandle::connect(port.clone(), progress, 1000).unwrap();
        let memory = port.memory();
        let submission = memory.allocate_registered(usize::from(depth) * 64).unwrap();
        let (completion, at) = memory.allocate_registered(usize::from(depth) * 16).unwrap();
        let (_, data) = memory.allocate_registered(1 << 20).unwrap();
        let rings = RingAddresses { submission: submission.1, completion: at };
        let pair = QueuePair::open(&port, QID, rings, depth, None).unwrap();
        let queue = NvmeQueue::new(controller.info(), pair, port.clone()).unwrap();
        let limits = queue.limits();
        Harness { raw: Raw::new(queue, limits), port, submission, completion, data }
    }

    fn words(&self, slot: u16) -> [u64; 2] {
        [0, 8].map(|word| {
            self.completion.atomic_u64(usize::from(slot) * 16 + word).load(Ordering::Acquire)
        })
    }

    /// Returns the memory of the completion ring.
    pub(crate) fn ring(&self) -> Arc<SharedRegion> {
        self.completion.clone()
    }

    /// Returns the identifier of the command in a slot of the submission ring.
    fn cid(&self, slot: u16) -> u16 {
        let word = self.submission.0.atomic_u64(usize::from(slot) * 64).load(Ordering::Acquire);
        (word >> 16) as u16
    }

    fn doorbells(&self) -> [u32; 2] {
        [2, 3].map(|n| self.port.doorbells().atomic_u32(4 * n).load(Ordering::Acquire))
    }

    pub(crate) fn request(&self, choices: &mut Choices, tag: u64) -> Request {
        let (lba, sectors) = (choices.below(SECTORS - 8), 1 + choices.below(8) as u32);
        match choices.below(8) {
            0 => Request::flush(tag),
            1 => Request::discard(lba, sectors, tag),
            2 => Request::extents(lba, sectors, self.data, tag),
            3 => Request::write(lba, sectors, Payload::Contiguous(self.data), tag),
            4 => Request::write_zeroes(lba, sectors, false, tag),
            _ => Request::read(lba, sectors, Payload::Contiguous(self.data), tag),
        }
    }
}

/// The second interpretation: what a host may conclude from the entries, by the specification
/// alone.
#[derive(Debug)]
struct Reading {
    depth: u16,
    /// The next slot and its phase tag.
    next: u16,
    phase: bool,
    /// Outstanding commands: the request's tag by command identifier.
    bound: BTreeMap<u16, u64>,
    strays: u64,
    /// Tail of the submission ring, and the head that the drive reported.
    tail: u16,
    head: u16,
    /// An entry found by a poll, to be reaped first.
    found: Option<Cqe>,
    /// Whether commands wait to be issued by a poll, which then looks for no entry.
    has_unissued: bool,
}

impl Reading {
    fn new(depth: u16) -> Reading {
        let (bound, found) = (BTreeMap::new(), None);
        let has_unissued = false;
        Reading {
            depth,
            next: 0,
            phase: true,
            bound,
            strays: 0,
            tail: 0,
            head: 0,
            found,
            has_unissued,
        }
    }

    fn has_capacity(&self) -> bool {
        let free = self.bound.len() + 1 < usize::from(self.depth);
        free && (self.tail + 1) % self.depth != self.head
    }

    /// Returns the next entry that matches a command, within one pass over the ring.
    fn fetch(&mut self, harness: &Harness) -> Option<Cqe> {
        for _ in 0..self.depth {
            let words = harness.words(self.next);
            if Cqe::phase(words[1]) != self.phase {
                return None;
            }
            self.next = (self.next + 1) % self.depth;
            self.phase ^= self.next == 0;
            let cqe = Cqe::from_words(words);
            if cqe.sq_id == QID && self.bound.contains_key(&cqe.cid) {
                if cqe.sq_head < self.depth {
                    self.head = cqe.sq_head;
                }
                return Some(cqe);
            }
            self.strays += 1;
        }
        None
    }

    fn poll(&mut self, harness: &Harness) {
        if !std::mem::take(&mut self.has_unissued) && self.found.is_none() {
            self.found = self.fetch(harness);
        }
    }

    fn reap(&mut self, harness: &Harness) -> Option<Completion> {
        let cqe = self.found.take().or_else(|| self.fetch(harness))?;
        let tag = self.bound.remove(&cqe.cid).expect("fetch() returns bound commands only");
        // The result of a query is limited to its memory, whatever the drive says.
        let result = cqe.result.min(Request::extent_capacity() as u64);
        Some(Completion { tag, status: cqe.status, result })
    }

    /// Returns an entry that a broken drive might write, and its slot.
    fn entry(&self, choices: &mut Choices) -> (u16, [u64; 2]) {
        let depth = u64::from(self.depth);
        let slot = match choices.chance(0.85) {
            true => (self.next + choices.below(3) as u16) % self.depth,
            false => choices.below(depth) as u16,
        };
        if choices.chance(0.03) {
            return (slot, [choices.next_u64(), choices.next_u64()]);
        }
        // Mostly with the phase of the slot's current pass.
        let phase = if slot < self.next { !self.phase } else { self.phase };
        let bound: Vec<u16> = self.bound.keys().copied().collect();
        let cid = match bound.len() as u64 {
            count @ 1.. if choices.chance(0.7) => bound[choices.below(count) as usize],
            _ if choices.chance(0.5) => choices.below(2 * depth) as u16,
            _ => choices.next_u64() as u16,
        };
        let cqe = Cqe {
            result: if choices.chance(0.5) { choices.below(300) } else { choices.next_u64() },
            sq_head: match choices.below(4) {
                0 => choices.next_u64() as u16,
                1 => choices.below(depth) as u16,
                _ => self.tail,
            },
            sq_id: if choices.chance(0.9) { QID } else { choices.next_u64() as u16 },
            cid,
            status: match choices.below(3) {
                0 => Status::from_bits(choices.below(1 << 15) as u16),
                _ => Status::SUCCESS,
            },
        };
        (slot, cqe.to_words(phase != choices.chance(0.1)))
    }
}

/// Runs a host and such a drive for this many steps; then the host abandons the queue.
pub(crate) fn broken(mut choices: Choices, steps: u32) -> Seen {
    let depth = [2, 3, 8, 33][choices.below(4) as usize];
    let (mut harness, mut reading) = (Harness::new(depth), Reading::new(depth));
    let (mut tag, mut ended) = (0u64, 0u64);
    for step in 0..steps {
        if choices.is_over() {
            break;
        }
        match choices.below(5) {
            0 | 1 => {
                let request = harness.request(&mut choices, tag);
                let room = reading.has_capacity();
                let taken = harness.raw.submit(Nanos(step.into()), request);
                assert_eq!(taken.is_ok(), room, "{reading:?}");
                if room {
                    let cid = harness.cid(reading.tail);
                    assert!(cid < depth - 1, "a command identifier of the queue: {cid}");
                    assert_eq!(
                        reading.bound.insert(cid, tag),
                        None,
                        "the command identifier is already in use"
                    );
                    reading.tail = (reading.tail + 1) % depth;
                    reading.has_unissued = true;
                    tag += 1;
                }
            }
            2 => {
                for _ in 0..1 + choices.below(u64::from(depth)) {
                    let (slot, words) = reading.entry(&mut choices);
                    put(&harness.completion, slot, words);
                }
            }
            3 => {
                harness.raw.poll(Nanos(step.into()));
                reading.poll(&harness);
                let [tail, head] = harness.doorbells();
                assert!(tail < depth.into() && head < depth.into(), "{tail}, {head}");
            }
            _ => {
                let said = harness.raw.reap();
                assert_eq!(said, reading.reap(&harness), "{reading:?}");
                ended += u64::from(said.is_some());
            }
        }
        let pair = harness.raw.queue().pair();
        assert_eq!(pair.spurious_completions(), reading.strays);
        let found = usize::from(reading.found.is_some());
        // A found entry's command is bound until it is reaped.
        assert!(
            (reading.bound.len() - found..=reading.bound.len())
                .contains(&pair.outstanding().into())
        );
    }
    let strays = reading.strays;
    // All other requests are returned once.
    let (queue, left) = harness.raw.into_queue();
    let mut queue = queue;
    let mut back: Vec<u64> = left.map(|done| done.tag).collect();
    while let Some(done) = queue.orphan_next(Status::ABORTED) {
        assert_eq!(done.status, Status::ABORTED);
        back.push(done.user);
    }
    back.sort_unstable();
    let mut bound: Vec<u64> = reading.bound.into_values().collect();
    bound.sort_unstable();
    assert_eq!(back, bound);
    assert_eq!(ended + back.len() as u64, tag);
    Seen { completed: ended, strays }
}
