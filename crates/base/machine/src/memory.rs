//! [`SharedMemory`]: the cache lines and locks of a modeled machine.
//!
//! A cache line is identified by the address of the reported object and the offset in it. Lines are
//! numbered in the order of first touch, and each reported object starts a line of its own. The
//! placement of objects by the allocator therefore does not influence results (ARCHITECTURE.md,
//! R3).

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::lines::{CacheLineId, CoherenceDirectory};
use crate::ticket_lock::TicketLock;

/// Size of a cache line in bytes.
const LINE: usize = 64;

/// Identity of a lock, from a counter of the process. Results do not depend on its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LockId(pub u64);

/// Hashes addresses and identities. No iteration depends on the order of these hashes.
#[derive(Debug, Default)]
pub(crate) struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_usize((*byte).into());
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.write_usize(value as usize);
    }

    fn write_usize(&mut self, value: usize) {
        self.0 = (self.0 ^ value as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    }
}

type ByAddress<K, V> = HashMap<K, V, BuildHasherDefault<AddressHasher>>;

/// The cache lines and the locks.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    pub(crate) directory: CoherenceDirectory,
    lines: ByAddress<usize, CacheLineId>,
    next_line: u32,
    lock_index: ByAddress<LockId, usize>,
    locks: Vec<TicketLock>,
}

impl SharedMemory {
    pub(crate) fn new(directory: CoherenceDirectory) -> SharedMemory {
        SharedMemory {
            directory,
            lines: HashMap::default(),
            next_line: 0,
            lock_index: HashMap::default(),
            locks: Vec::new(),
        }
    }

    /// Accesses every line of an object at `address`, one after the other, from `now` on. Returns
    /// the end in nanoseconds.
    pub(crate) fn touch(
        &mut self,
        core: usize,
        address: usize,
        bytes: usize,
        write: bool,
        now: u64,
    ) -> u64 {
        let mut at = now;
        for offset in (0..bytes.max(1)).step_by(LINE) {
            let next = CacheLineId(self.next_line);
            let line = *self.lines.entry(address + offset).or_insert(next);
            self.next_line += u32::from(line == next);
            at = self.directory.touch(core, line, write, at);
        }
        at
    }

    /// Returns a lock and the directory in which its lines are.
    pub(crate) fn lock(&mut self, id: LockId) -> (&mut TicketLock, &mut CoherenceDirectory) {
        let index = *self.lock_index.entry(id).or_insert_with(|| {
            let [tickets, serving] = [self.next_line, self.next_line + 1].map(CacheLineId);
            self.next_line += 2;
            self.locks.push(TicketLock::new(tickets, serving));
            self.locks.len() - 1
        });
        (&mut self.locks[index], &mut self.directory)
    }
}
