//! A host with arbitrary behavior: random entries, entries changed after the doorbell, random
//! doorbell values and addresses, overlapping queues, and missing reaps.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use mem::{Iova, PAGE_BYTES, SharedRegion};
use nvme::{AdminCommand, QueuePriority, Sqe};
use testkit::choices::Choices;
use transport::{DOORBELL_STRIDE, Port};

const PAGES: u64 = 64;
/// Depth of each queue in entries.
const DEPTH: u32 = 16;

pub struct Garbage {
    rng: Choices,
    port: Arc<Port>,
    memory: Arc<SharedRegion>,
    at: Iova,
    admin_tail: u32,
    tail: u32,
    /// The host may write anywhere in the doorbell memory, parked flags included.
    everywhere: bool,
}

impl Garbage {
    /// Creates the host; with `everywhere`, it also writes behind the doorbells.
    pub fn new(port: Arc<Port>, rng: Choices, everywhere: bool) -> Garbage {
        let (memory, at) = port.memory().allocate_registered(PAGES as usize * PAGE_BYTES).unwrap();
        let mut garbage = Garbage { rng, port, memory, at, admin_tail: 0, tail: 0, everywhere };
        garbage.make_queue(1);
        garbage
    }

    /// Whether the choices are exhausted.
    pub fn is_over(&self) -> bool {
        self.rng.is_over()
    }

    /// Executes a random step.
    pub fn step(&mut self) {
        match self.rng.below(100) {
            0..40 => {
                let sqe = self.entry();
                self.io(&sqe);
            }
            40..55 => {
                let sqe = self.admin_entry();
                self.admin(&sqe);
            }
            55..60 => {
                let qid = 1 + self.rng.below(5) as u16;
                self.make_queue(qid);
            }
            60..75 => {
                // A doorbell value: close to the present one, at the ring's boundaries, or far
                // outside.
                let bell = self.rng.below(8) as usize * DOORBELL_STRIDE;
                let value = match self.rng.below(8) {
                    0 => self.rng.next_u64() as u32,
                    1 => DEPTH,
                    2 => u32::from(u16::MAX),
                    _ => self.rng.below(DEPTH.into()) as u32,
                };
                self.ring(bell, value);
            }
            75..95 => {
                // The host writes to its rings and lists while the drive may be reading them.
                for _ in 0..self.rng.below(20) {
                    let offset = 8 * self.rng.below(PAGES * PAGE_BYTES as u64 / 8) as usize;
                    let word = self.word();
                    self.memory.atomic_u64(offset).store(word, Ordering::Relaxed);
                }
            }
            _ => {
                let len = match self.everywhere {
                    true => self.port.doorbells().len(),
                    false => 16 * DOORBELL_STRIDE,
                };
                let offset = 4 * self.rng.below(len as u64 / 4) as usize;
                self.ring(offset, self.rng.clone().next_u64() as u32);
            }
        }
    }

    fn ring(&mut self, offset: usize, value: u32) {
        self.port.doorbells().atomic_u32(offset).store(value, Ordering::Release);
        self.port.wake_drive();
    }

    fn put(&self, region: &SharedRegion, offset: usize, sqe: &Sqe) {
        for (i, word) in sqe.to_words().into_iter().enumerate() {
            region.atomic_u64(offset + 8 * i).store(word, Ordering::Relaxed);
        }
    }

    fn admin(&mut self, sqe: &Sqe) {
        let (at, depth) = self.port.admin_submission();
        let ring = self.port.memory().find(at, PAGE_BYTES as u64).unwrap();
        self.put(ring.region, ring.offset + 64 * self.admin_tail as usize, sqe);
        self.admin_tail = (self.admin_tail + 1) % u32::from(depth);
        self.ring(0, self.admin_tail);
        // Usually the host reaps this queue, because the run would end early otherwise.
        if self.rng.chance(0.9) {
            let head = (self.admin_tail + 63) % 64;
            self.ring(DOORBELL_STRIDE, head);
        }
    }

    fn io(&mut self, sqe: &Sqe) {
        self.put(&self.memory, 64 * self.tail as usize, sqe);
        self.tail = (self.tail + 1) % DEPTH;
        self.ring(2 * DOORBELL_STRIDE, self.tail);
        if self.rng.chance(0.9) {
            let head = self.tail;
            self.ring(3 * DOORBELL_STRIDE, head);
        }
    }

    fn make_queue(&mut self, qid: u16) {
        let page = |rng: &mut Choices| rng.below(8) * PAGE_BYTES as u64;
        let (sq, cq) = match qid {
            1 => (self.at, self.at.offset(PAGE_BYTES as u64)),
            // Any address: rings may overlap rings, lists and data.
            _ => (self.at.offset(page(&mut self.rng)), self.at.offset(page(&mut self.rng))),
        };
        let vector = self.rng.chance(0.5).then_some(self.rng.below(3) as u16);
        let (entries, priority) = (DEPTH, QueuePriority::Urgent);
        self.admin(&AdminCommand::CreateCq { qid, entries, at: cq.0, vector }.to_sqe());
        let cqid = qid;
        self.admin(&AdminCommand::CreateSq { qid, entries, at: sq.0, cqid, priority }.to_sqe());
    }

    fn address(&mut self) -> u64 {
        let inside = self.rng.below(PAGES * PAGE_BYTES as u64);
        match self.rng.below(10) {
            0 => self.rng.next_u64(),
            1 => 0,
            2 => self.at.offset(inside).0,
            3 => self.at.offset(PAGES * PAGE_BYTES as u64 - 8).0,
            // The address of the admin submission queue.
            4 => self.port.admin_submission().0.0,
            _ => self.at.offset(inside & !(PAGE_BYTES as u64 - 1)).0,
        }
    }

    /// Returns a word that may be valid: an address, half of a descriptor, or part of a range.
    fn word(&mut self) -> u64 {
        match self.rng.below(5) {
            0 => self.rng.next_u64(),
            1 => self.rng.below(1 << 16),
            2 => self.rng.below(1 << 14) | self.rng.below(16) << 60,
            _ => self.address(),
        }
    }

    fn small(&mut self) -> u32 {
        match self.rng.below(6) {
            0 => self.rng.next_u64() as u32,
            1 => 1 << self.rng.below(32),
            _ => self.rng.below(64) as u32,
        }
    }

    fn entry(&mut self) -> Sqe {
        const OPCODES: [u8; 11] =
            [0x00, 0x01, 0x02, 0x08, 0x09, 0x86, 0x90, 0x91, 0x92, 0x93, 0x94];
        let opcode = match self.rng.below(10) {
            0 => self.rng.next_u64() as u8,
            _ => OPCODES[self.rng.below(OPCODES.len() as u64) as usize],
        };
        self.fill(opcode)
    }

    fn admin_entry(&mut self) -> Sqe {
        const OPCODES: [u8; 10] = [0x00, 0x01, 0x02, 0x04, 0x05, 0x06, 0x08, 0x09, 0x0a, 0x0c];
        let opcode = match self.rng.below(8) {
            0 => self.rng.next_u64() as u8,
            1 => [0xe2, 0x86, 0x80][self.rng.below(3) as usize],
            _ => OPCODES[self.rng.below(OPCODES.len() as u64) as usize],
        };
        self.fill(opcode)
    }

    fn fill(&mut self, opcode: u8) -> Sqe {
        let nsid = if self.rng.chance(0.9) { 1 } else { self.small() };
        let mut sqe = Sqe::new(opcode, nsid);
        sqe.cid = (self.rng.next_u64() as u16).into();
        sqe.flags = [0, 0x40, 0x40, 0x80, 0xff][self.rng.below(5) as usize];
        let words = (self.address(), self.word());
        sqe.set_prp(words.0, words.1);
        if self.rng.chance(0.3) {
            let address = self.address();
            let length = 4096 * self.rng.below(17) as u32;
            sqe.set_sgl(nvme::SglDescriptor::DataBlock { address, length });
        }
        sqe.mptr = if self.rng.chance(0.7) { 0 } else { self.address() }.into();
        for dword in [&mut 0, &mut 1, &mut 2, &mut 3, &mut 4, &mut 5] {
            let value = self.small();
            match *dword {
                0 => sqe.cdw10 = value.into(),
                1 => sqe.cdw11 = if self.rng.chance(0.8) { 0 } else { value }.into(),
                2 => sqe.cdw12 = value.into(),
                3 => sqe.cdw13 = value.into(),
                4 => sqe.cdw14 = value.into(),
                _ => sqe.cdw15 = value.into(),
            }
        }
        if self.rng.chance(0.3) {
            let slba = self.rng.below(1 << 14);
            sqe.set_slba(slba);
        }
        sqe
    }
}
