//! [`PendingCalls`]: calls that wait for the volume. Allocates nothing in steady state.

use collections::Slab;
use volume::Ino;

use crate::invariants::{ServicePart, ServiceViolation, require_eq};
use crate::service::CallId;
use crate::service::pipeline::completion::OnComplete;
use crate::shared_mappings::MappingUpdate;

/// A call with an operation in flight, and the operation's effect on mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PendingCall {
    pub(crate) from: CallId,
    pub(crate) on_complete: OnComplete,
    pub(crate) mapping_update: MappingUpdate,
}

/// Pending calls by operation id; free slots provide the next ids.
#[derive(Debug, Default)]
pub(crate) struct PendingCalls {
    slots: Slab<Option<PendingCall>>,
    /// Number of posted writes among them.
    posted_writes: usize,
}

impl PendingCalls {
    /// Returns the id of the next operation.
    pub(crate) fn next(&self) -> u64 {
        self.slots.next_free().map_or(self.slots.len() as u64, u64::from)
    }

    /// Inserts a call under the [`next`](PendingCalls::next) id.
    pub(crate) fn insert(&mut self, id: u64, asked: PendingCall) {
        self.posted_writes += usize::from(asked.on_complete.is_posted_write());
        let inserted = self.slots.insert(Some(asked));
        debug_assert_eq!(u64::from(inserted), id, "calls get the next id");
    }

    /// Removes the call of a completed operation.
    pub(crate) fn remove(&mut self, id: u64) -> Option<PendingCall> {
        let asked = self.slots.remove(u32::try_from(id).ok()?)?;
        self.posted_writes -= usize::from(asked.on_complete.is_posted_write());
        Some(asked)
    }

    /// Returns whether an operation in flight changes a file's bytes.
    pub(crate) fn is_changing(&self, ino: Ino) -> bool {
        self.slots.iter().flatten().any(|asked| asked.mapping_update.changed_inode() == Some(ino))
    }

    /// Returns whether a posted write is in flight, to a file or to any.
    pub(crate) fn has_posted_write(&self, ino: Option<Ino>) -> bool {
        let of = |asked: &PendingCall| {
            asked.on_complete.is_posted_write()
                && ino.is_none_or(|ino| asked.mapping_update.changed_inode() == Some(ino))
        };
        self.posted_writes > 0 && self.slots.iter().flatten().any(of)
    }

    /// Returns the calls.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &PendingCall> {
        self.slots.iter().flatten()
    }

    pub(crate) fn check_invariants(&self) -> Result<(), ServiceViolation> {
        let (part, subject) = (ServicePart::Calls, "all operations");
        let unused = self.slots.iter().filter(|slot| slot.is_none()).count();
        require_eq(part, "an unused id is free once", subject, unused, self.slots.free_len())?;
        let posted = self.iter().filter(|call| call.on_complete.is_posted_write()).count();
        require_eq(part, "posted writes in flight", subject, posted, self.posted_writes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.in_use() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_taken_once_and_its_number_is_used_again() {
        let mut calls = PendingCalls::default();
        assert!(calls.is_empty());
        let whose = |slot| PendingCall {
            from: CallId { session: 0, slot },
            on_complete: OnComplete::Answer,
            mapping_update: MappingUpdate::Write(Ino(slot as u64)),
        };
        for slot in 0..3 {
            assert_eq!(calls.next(), slot as u64);
            calls.insert(calls.next(), whose(slot));
        }
        assert!(calls.is_changing(Ino(1)) && !calls.is_changing(Ino(3)));
        assert_eq!(calls.remove(1), Some(whose(1)));
        assert!(!calls.is_changing(Ino(1)));
        assert_eq!((calls.remove(1), calls.remove(3), calls.remove(u64::MAX)), (None, None, None));
        assert_eq!(calls.next(), 1);
        calls.insert(1, whose(7));
        calls.check_invariants().unwrap();
        calls.posted_writes += 1;
        let found = calls.check_invariants().unwrap_err();
        assert_eq!((found.part, found.invariant), (ServicePart::Calls, "posted writes in flight"));
        calls.posted_writes -= 1;
        assert_eq!(calls.next(), 3);
        for (id, slot) in [(0, 0), (2, 2), (1, 7)] {
            assert!(!calls.is_empty());
            assert_eq!(calls.remove(id), Some(whose(slot)));
        }
        assert!(calls.is_empty());
    }
}
