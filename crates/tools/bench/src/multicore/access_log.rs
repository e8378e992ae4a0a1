//! [`AccessLog`]: the memory accesses and lock operations of the running core's code, in order.
//!
//! The block layer's code runs at one instant of virtual time. The engine then replays its accesses
//! in virtual time, in competition with those of other cores. Each host thread has one log, so a
//! machine is modeled on one thread.
//!
//! A cache line is identified by the address of the reported object and the offset in it. Lines are
//! numbered in the order of first touch, and each reported object starts a line of its own. The
//! placement of objects by the allocator therefore does not influence results (ARCHITECTURE.md,
//! R3).

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use time::Nanos;

/// Size of a cache line in bytes.
const LINE: usize = 64;

/// Index of a cache line, by first touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheLineId(pub u32);

/// Index of a lock, by creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LockId(pub u32);

/// An operation that takes time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessOp {
    /// Work without shared memory.
    Compute(Nanos),
    Read(CacheLineId),
    Write(CacheLineId),
    /// Takes a ticket of the lock.
    Draw(LockId),
    /// Waits until the ticket is served.
    Enter(LockId),
    /// Probes the lock and finds it taken.
    Probe(LockId),
    /// Serves the next ticket.
    Leave(LockId),
}

#[derive(Debug, Default)]
struct AccessLog {
    running: bool,
    ops: Vec<AccessOp>,
    /// Work in the first critical section.
    critical_work: Nanos,
    lines: HashMap<usize, CacheLineId, BuildHasherDefault<AddressHasher>>,
    /// Per lock: whether a core holds it or waits for it.
    taken: Vec<bool>,
}

/// Hashes addresses. No iteration depends on the order of these hashes.
#[derive(Debug, Default)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_usize((*byte).into());
        }
    }

    fn write_usize(&mut self, value: usize) {
        self.0 = (self.0 ^ value as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    }
}

thread_local! {
    static TAPE: RefCell<AccessLog> = RefCell::default();
}

fn with_log<R>(use_it: impl FnOnce(&mut AccessLog) -> R) -> R {
    TAPE.with_borrow_mut(use_it)
}

/// Removes all lines and locks, to start another machine.
pub(crate) fn reset() {
    with_log(|tape| *tape = AccessLog::default());
}

/// Runs `code` and appends its accesses to `ops`. `inside` is the code's own work, in the first
/// critical section if it enters one.
pub(crate) fn record<R>(ops: &mut Vec<AccessOp>, inside: Nanos, code: impl FnOnce() -> R) -> R {
    with_log(|tape| {
        tape.running = true;
        tape.critical_work = inside;
        std::mem::swap(&mut tape.ops, ops);
    });
    let result = code();
    with_log(|tape| {
        tape.running = false;
        tape.push_work();
        std::mem::swap(&mut tape.ops, ops);
    });
    result
}

/// Returns a new lock.
pub(crate) fn new_lock() -> LockId {
    with_log(|tape| {
        tape.taken.push(false);
        LockId(tape.taken.len() as u32 - 1)
    })
}

/// Returns the number of locks.
pub(crate) fn lock_count() -> usize {
    with_log(|tape| tape.taken.len())
}

/// Sets whether a core holds a lock or waits for it.
pub(crate) fn set_taken(lock: LockId, taken: bool) {
    with_log(|tape| tape.taken[lock.0 as usize] = taken);
}

/// Records an access of the running core to `what`.
pub(crate) fn touch<T: ?Sized>(what: &T, write: bool) {
    with_log(|tape| {
        if !tape.running {
            return;
        }
        let address = std::ptr::from_ref(what).cast::<u8>() as usize;
        for offset in (0..size_of_val(what).max(1)).step_by(LINE) {
            let next = CacheLineId(tape.lines.len() as u32);
            let line = *tape.lines.entry(address + offset).or_insert(next);
            tape.ops.push(if write { AccessOp::Write(line) } else { AccessOp::Read(line) });
        }
    });
}

/// Records that the running core acquires a lock.
pub(crate) fn acquire(lock: LockId) {
    with_log(|tape| {
        if tape.running {
            tape.ops.extend([AccessOp::Draw(lock), AccessOp::Enter(lock)]);
            tape.push_work();
        }
    });
}

/// Records that the running core tries to acquire a lock; returns whether it was free.
pub(crate) fn try_acquire(lock: LockId) -> bool {
    let taken = with_log(|tape| {
        let taken = tape.running && tape.taken[lock.0 as usize];
        if taken {
            tape.ops.push(AccessOp::Probe(lock));
        }
        taken
    });
    if !taken {
        acquire(lock);
    }
    !taken
}

/// Records that the running core releases a lock.
pub(crate) fn release(lock: LockId) {
    with_log(|tape| {
        if tape.running {
            tape.ops.push(AccessOp::Leave(lock));
        }
    });
}

impl AccessLog {
    fn push_work(&mut self) {
        let work = std::mem::take(&mut self.critical_work);
        if work > Nanos::ZERO {
            self.ops.push(AccessOp::Compute(work));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_touched_is_written_down_in_lines_of_first_touch() {
        reset();
        let (one, many) = (1u64, [0u8; 130]);
        let mut ops = Vec::new();
        touch(&one, true);
        record(&mut ops, Nanos(7), || {
            touch(&one, true);
            touch(&many, false);
            touch(&one, false);
        });
        let line = CacheLineId;
        let reads = [1, 2, 3].map(|n| AccessOp::Read(line(n)));
        let mut wanted = vec![AccessOp::Write(line(0))];
        wanted.extend(reads);
        wanted.extend([AccessOp::Read(line(0)), AccessOp::Compute(Nanos(7))]);
        assert_eq!(ops, wanted);
    }

    #[test]
    fn work_goes_into_the_first_critical_section() {
        reset();
        let (a, b) = (new_lock(), new_lock());
        let mut ops = Vec::new();
        set_taken(b, true);
        let got = record(&mut ops, Nanos(5), || {
            acquire(a);
            let got = try_acquire(b);
            release(a);
            got
        });
        assert!(!got);
        let wanted = [
            AccessOp::Draw(a),
            AccessOp::Enter(a),
            AccessOp::Compute(Nanos(5)),
            AccessOp::Probe(b),
            AccessOp::Leave(a),
        ];
        assert_eq!(ops, wanted);
    }
}
