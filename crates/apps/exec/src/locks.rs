//! [`Locks`]: record locks of processes and of open files (`fcntl(2)`), and locks of whole files (`flock(2)`).
//!
//! Guarantees: if one owner holds a byte for writing, no other owner holds it. As on Linux, the two
//! kinds of locks do not conflict with each other. A blocked client retries; deadlocks are not
//! detected.

use std::ops::Range;

use volume::Ino;

use crate::invariants::{ServicePart, ServiceViolation, require_eq};

/// Owner of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockOwner {
    /// A process: closing any of its descriptors of the file releases its locks.
    Process(u32),
    /// An open file: closing its last descriptor releases its locks.
    OpenFile(u64),
    /// An open file, by `flock(2)`.
    Flock(u64),
}

impl LockOwner {
    fn is_flock(self) -> bool {
        matches!(self, LockOwner::Flock(_))
    }
}

/// A locked range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockedRange {
    /// The file.
    pub ino: Ino,
    /// The owner.
    pub owner: LockOwner,
    /// The first byte.
    pub begin: u64,
    /// End of the range (exclusive); `u64::MAX` for the end of any file.
    pub end: u64,
    /// Whether the lock is exclusive.
    pub write: bool,
}

/// All locks of a volume.
#[derive(Debug, Default)]
pub struct Locks {
    locks: Vec<LockedRange>,
}

impl Locks {
    /// Returns another owner's lock that conflicts with `wanted`.
    pub fn conflict(&self, wanted: &LockedRange) -> Option<LockedRange> {
        let clash = |held: &&LockedRange| {
            held.ino == wanted.ino
                && held.owner != wanted.owner
                && held.owner.is_flock() == wanted.owner.is_flock()
                && (held.write || wanted.write)
                && held.begin < wanted.end
                && wanted.begin < held.end
        };
        self.locks.iter().find(clash).copied()
    }

    /// Sets a lock, which replaces its owner's locks in the range. Returns `false` on a conflict.
    pub fn set(&mut self, wanted: LockedRange) -> bool {
        if self.conflict(&wanted).is_some() {
            return false;
        }
        self.clear(wanted.ino, wanted.owner, wanted.begin..wanted.end);
        if wanted.begin < wanted.end {
            self.locks.push(wanted);
        }
        true
    }

    /// Releases an owner's locks within a range.
    pub fn clear(&mut self, ino: Ino, owner: LockOwner, bytes: Range<u64>) {
        let Range { start: begin, end } = bytes;
        let mut rest = Vec::new();
        self.locks.retain(|held| {
            let apart = held.end <= begin || end <= held.begin;
            if held.ino != ino || held.owner != owner || apart {
                return true;
            }
            if held.begin < begin {
                rest.push(LockedRange { end: begin, ..*held });
            }
            if end < held.end {
                rest.push(LockedRange { begin: end, ..*held });
            }
            false
        });
        self.locks.append(&mut rest);
    }

    /// Releases all locks of an owner.
    pub fn release_all(&mut self, owner: LockOwner) {
        self.locks.retain(|held| held.owner != owner);
    }

    pub(crate) fn check_invariants(&self) -> Result<(), ServiceViolation> {
        for lock in &self.locks {
            let subject = format_args!("{lock:?}");
            let conflict = self.conflict(lock);
            require_eq(ServicePart::Locks, "locks do not conflict", subject, None, conflict)?;
        }
        Ok(())
    }

    /// Returns all locks.
    pub fn locks(&self) -> &[LockedRange] {
        &self.locks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Ino = Ino(9);

    fn lock(process: u32, begin: u64, end: u64, write: bool) -> LockedRange {
        LockedRange { ino: FILE, owner: LockOwner::Process(process), begin, end, write }
    }

    #[test]
    fn readers_share_and_writers_do_not() {
        let mut locks = Locks::default();
        assert!(locks.set(lock(1, 0, 10, false)));
        assert!(locks.set(lock(2, 5, 15, false)));
        assert!(!locks.set(lock(3, 9, 10, true)));
        assert_eq!(locks.conflict(&lock(3, 12, 20, true)), Some(lock(2, 5, 15, false)));
        assert!(locks.set(lock(3, 15, 20, true)), "beside it");
        assert!(!locks.set(lock(1, 0, 10, true)), "the other still reads a part");
        locks.release_all(LockOwner::Process(2));
        assert!(locks.set(lock(1, 0, 10, true)), "its own is replaced");
        let whole = LockedRange { owner: LockOwner::Flock(1), ..lock(1, 0, u64::MAX, true) };
        assert!(locks.set(whole), "flock does not know of records");
        assert!(!locks.set(LockedRange { owner: LockOwner::Flock(2), ..whole }));
    }

    #[test]
    fn a_hole_in_a_lock_leaves_its_ends() {
        let mut locks = Locks::default();
        assert!(locks.set(lock(1, 0, 100, true)));
        locks.clear(FILE, LockOwner::Process(1), 40..60);
        assert!(locks.set(lock(2, 40, 60, true)));
        assert!(!locks.set(lock(2, 39, 60, true)));
        assert!(!locks.set(lock(2, 40, 61, true)));
    }

    /// Compares with a model of one state per byte and owner.
    #[test]
    fn any_sequence_is_as_byte_by_byte() {
        let mut state = 1u64;
        let mut draw = |n: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % n
        };
        let mut locks = Locks::default();
        let mut bytes = [[(false, false); 3]; 24]; // (held, for writing) by byte and owner
        for step in 0..5000 {
            let (who, begin) = (draw(3) as usize, draw(24));
            let (end, write) = (begin + 1 + draw(24 - begin), draw(2) == 0);
            let range = begin as usize..end as usize;
            if draw(3) == 0 {
                locks.clear(FILE, LockOwner::Process(who as u32), begin..end);
                bytes[range].iter_mut().for_each(|byte| byte[who] = (false, false));
                continue;
            }
            let clash = |byte: &[(bool, bool); 3]| {
                (0..3).any(|o| o != who && byte[o].0 && (byte[o].1 || write))
            };
            let free = !bytes[range.clone()].iter().any(clash);
            assert_eq!(locks.set(lock(who as u32, begin, end, write)), free, "step {step}");
            if free {
                bytes[range].iter_mut().for_each(|byte| byte[who] = (true, write));
            }
        }
    }
}
