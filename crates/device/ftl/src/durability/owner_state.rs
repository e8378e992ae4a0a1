//! [`DurableOwnerState`]: a small state that the owner of the FTL keeps in its journal, such as the durable
//! tables of a drive's rules.
//!
//! It is [`owner_bytes`](crate::FtlConfig::owner_bytes) bytes long, and zeros at first. A change of
//! any parts of it is one record. After a power cut the state is that after a prefix of the changes.
//! A flush completes when the changes before it are durable.
//!
//! Every snapshot of the journal has all of the state. So a change that the journal has no capacity
//! for needs no record: the next snapshot, which is requested, includes it. Until then no later change
//! is recorded either, because of their order.
//!
//! ```text
//! record: the owner's state was changed
//! byte 0         3
//! byte 1         1 if the state was set to zeros first, otherwise 0
//! bytes 2..4     0
//! then           per part: its offset (4 bytes), its length (4 bytes), its bytes
//! ```

use std::collections::VecDeque;

use collections::{PutBytes, Reader};
use serde::{Deserialize, Serialize};

use crate::check::{Subject, Violation, require};
use crate::durability::Durability;
use crate::durability::journal::Lsn;
use crate::ids::{ToIndex, ToU32};

/// First byte of the record of a change.
const RECORD_OWNER_CHANGED: u8 = 3;

/// A change of the state that the owner of an FTL keeps in its journal: all of its parts, or none after
/// a power cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerChange {
    record: Vec<u8>,
}

impl Default for OwnerChange {
    fn default() -> OwnerChange {
        OwnerChange { record: vec![RECORD_OWNER_CHANGED, 0, 0, 0] }
    }
}

impl OwnerChange {
    /// Creates a change that sets the state to zeros before its parts are stored.
    pub fn cleared() -> OwnerChange {
        OwnerChange { record: vec![RECORD_OWNER_CHANGED, 1, 0, 0] }
    }

    /// Adds a part: the bytes from `offset` on.
    pub fn put(&mut self, offset: u32, bytes: &[u8]) {
        self.record.put_u32(offset).put_u32(bytes.len().to_u32()).put(bytes);
    }

    /// Returns whether the change has no part, and leaves the state as it is.
    pub fn is_empty(&self) -> bool {
        self.record == [RECORD_OWNER_CHANGED, 0, 0, 0]
    }

    /// Removes the parts, and keeps the memory.
    pub fn clear(&mut self) {
        self.record.truncate(4);
        self.record[1] = 0;
    }
}

/// Whether a record of the journal is a change of the owner's state.
pub(crate) fn is_owner_record(record: &[u8]) -> bool {
    record.first() == Some(&RECORD_OWNER_CHANGED)
}

/// Applies a record to the state. Returns `false`, and may have applied a part, if it does not fit.
pub(crate) fn apply_record(record: &[u8], state: &mut [u8]) -> bool {
    let Some((&[RECORD_OWNER_CHANGED, clears @ 0..=1, 0, 0], parts)) = record.split_first_chunk()
    else {
        return false;
    };
    if clears == 1 {
        state.fill(0);
    }
    let mut reader = Reader::new(parts);
    while let Some(offset) = reader.u32() {
        let part = reader.u32().and_then(|length| reader.bytes(length.index()));
        let Some(bytes) = part else { return false };
        let target = state.get_mut(offset.index()..).and_then(|s| s.get_mut(..bytes.len()));
        let Some(target) = target else { return false };
        target.copy_from_slice(bytes);
    }
    reader.is_at_end()
}

/// The changes up to a position of the journal.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct RecordedChanges {
    changes: u64,
    lsn: Lsn,
}

/// The state of the owner, and how much of it is durable.
///
/// Invariant: at most as many changes are durable as there were.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DurableOwnerState {
    bytes: Vec<u8>,
    /// Number of changes.
    changes: u64,
    /// Number of changes that are durable.
    durable: u64,
    /// Changes that flushes wait for, or that a snapshot has, in ascending order.
    recorded: VecDeque<RecordedChanges>,
    /// Position of the last record or snapshot with changes.
    lsn: Lsn,
    /// Whether the journal had no capacity for a record. The next snapshot has the change.
    awaits_snapshot: bool,
}

impl DurableOwnerState {
    /// Creates the state that was recovered.
    pub(crate) fn new(bytes: Vec<u8>) -> DurableOwnerState {
        DurableOwnerState {
            bytes,
            changes: 0,
            durable: 0,
            recorded: VecDeque::new(),
            lsn: Lsn(0),
            awaits_snapshot: false,
        }
    }

    /// The state.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Records that a snapshot with the state was given to the journal.
    pub(crate) fn on_snapshot(&mut self, lsn: Lsn) {
        (self.lsn, self.awaits_snapshot) = (lsn, false);
        self.recorded.push_back(RecordedChanges { changes: self.changes, lsn });
    }

    /// Records that the journal is durable up to a position. Returns whether more changes are durable.
    fn advance(&mut self, durable: Lsn) -> bool {
        let before = self.durable;
        while let Some(recorded) = self.recorded.pop_front_if(|recorded| recorded.lsn <= durable) {
            self.durable = recorded.changes;
        }
        self.durable > before
    }

    /// Checks the invariant.
    pub(crate) fn check(&self) -> Result<(), Violation> {
        let mut last = self.durable;
        for changes in self.recorded.iter().map(|recorded| recorded.changes).chain([self.changes]) {
            require!(
                changes >= last,
                Durability,
                "changes of the owner's state are durable in their order",
                Subject::Part,
                format_args!("at least {last}"),
                changes
            );
            last = changes;
        }
        Ok(())
    }

    /// Breaks the invariant.
    #[cfg(test)]
    pub(crate) fn break_order(&mut self) {
        self.durable = self.changes + 1;
    }
}

impl Durability {
    /// The state of the owner; empty if the FTL keeps none.
    pub(crate) fn owner_state(&self) -> &[u8] {
        self.owner_state.as_ref().map_or(&[], |state| state.bytes())
    }

    /// Changes the state of the owner.
    ///
    /// # Panics
    /// If a part of the change is outside of the state.
    pub(crate) fn change_owner_state(&mut self, change: &OwnerChange) {
        let state = self.owner_state.as_mut().expect("the FTL keeps a state of its owner");
        let fits = apply_record(&change.record, &mut state.bytes);
        assert!(fits, "the change is inside of the {} bytes of the state", state.bytes.len());
        state.changes += 1;
        if state.awaits_snapshot {
            return;
        }
        match self.journal.append(&change.record) {
            Ok(lsn) => state.lsn = lsn,
            Err(_) => {
                state.awaits_snapshot = true;
                self.request_snapshot();
            }
        }
    }

    /// Has the journal make the changes of the owner's state so far durable. Returns their number, or 0 if
    /// they are.
    pub(crate) fn flush_owner_state(&mut self) -> u64 {
        let Some(state) = &mut self.owner_state else { return 0 };
        let is_requested = state.recorded.back().is_some_and(|last| last.changes == state.changes);
        if state.durable < state.changes && !is_requested && !state.awaits_snapshot {
            if self.journal.durable() < state.lsn {
                self.journal.flush();
            }
            let (changes, lsn) = (state.changes, state.lsn);
            state.recorded.push_back(RecordedChanges { changes, lsn });
        }
        state.advance(self.journal.durable());
        if state.durable < state.changes { state.changes } else { 0 }
    }

    /// Changes of the owner's state so far.
    pub(crate) fn owner_changes(&self) -> u64 {
        self.owner_state.as_ref().map_or(0, |state| state.changes)
    }

    /// Whether the first `changes` changes of the owner's state are durable.
    #[inline]
    pub(crate) fn is_owner_state_durable(&self, changes: u64) -> bool {
        self.owner_state.as_ref().is_none_or(|state| state.durable >= changes)
    }

    /// Records that the journal may be durable up to a later position. Returns whether more changes of the
    /// owner's state are durable.
    pub(crate) fn advance_owner_state(&mut self) -> bool {
        let durable = self.journal.durable();
        self.owner_state.as_mut().is_some_and(|state| state.advance(durable))
    }

    /// Records that a snapshot with the owner's state was given to the journal.
    pub(crate) fn on_owner_snapshot(&mut self, lsn: Lsn) {
        if let Some(state) = &mut self.owner_state {
            state.on_snapshot(lsn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_applied_if_it_fits() {
        let mut change = OwnerChange::default();
        assert!(change.is_empty());
        change.put(2, b"abc");
        change.put(9, b"z");
        change.put(10, b"");
        let mut state = vec![1; 10];
        assert!(!change.is_empty() && is_owner_record(&change.record));
        assert!(apply_record(&change.record, &mut state));
        assert_eq!(state, [1, 1, b'a', b'b', b'c', 1, 1, 1, 1, b'z']);
        let mut cleared = OwnerChange::cleared();
        assert!(!cleared.is_empty());
        cleared.put(0, b"q");
        assert!(apply_record(&cleared.record, &mut state));
        assert_eq!(state, [b'q', 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        cleared.clear();
        assert!(cleared.is_empty());
        for part in [8, 9, u32::MAX] {
            let mut outside = OwnerChange::default();
            outside.put(part, b"123");
            assert!(!apply_record(&outside.record, &mut state), "{part}");
        }
        let whole = change.record;
        for end in [0, 1, 3, 5, 8, 11, whole.len() - 1] {
            assert!(!apply_record(&whole[..end], &mut state), "{end} bytes");
        }
        for (at, value) in [(0, 1), (1, 2), (2, 1), (3, 1)] {
            let mut other = whole.clone();
            other[at] = value;
            assert!(!apply_record(&other, &mut state), "byte {at}");
        }
    }
}
