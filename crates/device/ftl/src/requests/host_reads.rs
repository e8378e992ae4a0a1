//! [`HostReads`]: the table of host reads in progress.

use crate::ReadAddress;
use collections::Slab;
use nvme::Status;
use serde::{Deserialize, Serialize};

use crate::check::{Subject, Violation, require, require_eq};
use crate::ids::{Lba, NO_INDEX, ToIndex};

/// A host read in progress.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct HostRead {
    pub(crate) tag: u64,
    /// Flash reads in flight, plus one if a translation page is awaited.
    pub(crate) outstanding: u32,
    pub(crate) status: Status,
    pub(crate) lba: Lba,
    pub(crate) sectors: u32,
    /// Number of sectors that have been looked up.
    pub(crate) resolved: u32,
}

/// An entry of the table.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Slot {
    read: HostRead,
    /// The next read that waits for the same translation page.
    wait_next: u32,
}

/// Host reads in progress, by index. A read's index is in the tokens of its flash reads.
///
/// Invariants: a read in progress has an outstanding operation; it waits for at most one
/// translation page, and it does so exactly if it has sectors to look up.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct HostReads {
    slots: Slab<Slot>,
    /// Scratch memory for the addresses of one flash read.
    addresses: Vec<ReadAddress>,
}

impl HostReads {
    /// Creates an empty table.
    pub(crate) fn new() -> HostReads {
        HostReads { slots: Slab::new(), addresses: Vec::with_capacity(64) }
    }

    /// Adds a read and returns its index.
    #[inline]
    pub(crate) fn begin(&mut self, read: HostRead) -> u32 {
        let slot = Slot { read, wait_next: NO_INDEX };
        self.slots.insert(slot)
    }

    /// Returns a read in progress.
    #[inline]
    pub(crate) fn get(&self, index: u32) -> HostRead {
        self.slots[index].read
    }

    /// Replaces a read in progress, which keeps its index.
    #[inline]
    pub(crate) fn update(&mut self, index: u32, read: HostRead) {
        self.slots[index].read = read;
    }

    /// Records the completion of a flash read of a host read, and returns the rest of the read. A
    /// read without outstanding operations is [released](HostReads::release).
    ///
    /// # Panics
    ///
    /// If nothing of the read is outstanding.
    #[inline]
    pub(crate) fn complete_one(&mut self, index: u32, ok: bool) -> HostRead {
        let read = &mut self.slots[index].read;
        assert!(read.outstanding > 0, "no host read {index} is in flight");
        if !ok {
            read.status = Status::UNRECOVERED_READ;
        }
        read.outstanding -= 1;
        let read = *read;
        if read.outstanding == 0 {
            self.slots.release(index);
        }
        read
    }

    /// Removes a read that has been completed.
    #[inline]
    pub(crate) fn release(&mut self, index: u32) {
        self.slots[index].read.outstanding = 0;
        self.slots.release(index);
    }

    /// Returns the number of reads in progress.
    #[inline]
    pub(crate) fn in_flight(&self) -> usize {
        self.slots.in_use()
    }

    /// Takes the empty scratch memory for addresses, to be [returned](HostReads::return_addresses).
    #[inline]
    pub(crate) fn take_addresses(&mut self) -> Vec<ReadAddress> {
        std::mem::take(&mut self.addresses)
    }

    #[inline]
    pub(crate) fn return_addresses(&mut self, addresses: Vec<ReadAddress>) {
        self.addresses = addresses;
    }

    /// Appends a read to a list of reads that wait for one page; `last` is the end of the list, or none.
    pub(crate) fn append_waiter(&mut self, last: Option<u32>, index: u32) {
        self.slots[index].wait_next = NO_INDEX;
        if let Some(last) = last {
            self.slots[last].wait_next = index;
        }
    }

    /// Returns the read behind this one in its list.
    pub(crate) fn next_waiter(&self, index: u32) -> Option<u32> {
        Some(self.slots[index].wait_next).filter(|next| *next != NO_INDEX)
    }

    /// Checks the invariants; `waiters` are the reads that wait for translation pages.
    pub(crate) fn check(&self, waiters: impl Iterator<Item = u32>) -> Result<(), Violation> {
        let mut free = vec![false; self.slots.len()];
        for &index in self.slots.free_indices() {
            let twice = std::mem::replace(&mut free[index.index()], true);
            require!(!twice, Requests, "a free read is free once", Subject::Index(index), 1, 2);
        }
        let mut waiting = vec![0u32; self.slots.len()];
        waiters.take(self.slots.len() + 1).for_each(|index| waiting[index.index()] += 1);
        for (index, (Slot { read, .. }, &is_free)) in (0..).zip(self.slots.iter().zip(&free)) {
            let subject = Subject::Index(index);
            require!(
                is_free || read.outstanding > 0,
                Requests,
                "a read in progress has something outstanding",
                subject,
                "at least 1",
                read.outstanding
            );
            let expected = u32::from(!is_free && read.resolved < read.sectors);
            require_eq!(
                Requests,
                "a read that is not looked up waits for a translation page",
                subject,
                expected,
                waiting[index.index()]
            );
        }
        Ok(())
    }

    /// Breaks the list of free entries.
    #[cfg(test)]
    pub(crate) fn free_twice(&mut self, index: u32) {
        self.slots.release(index);
        self.slots.release(index);
    }
}
