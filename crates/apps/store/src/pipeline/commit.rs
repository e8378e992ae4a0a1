//! [`Txn`] and [`Commit`]: group commit. Changes are collected in one transaction. When a request
//! waits for it, or it is old or large, it is closed and written to the journal, while the next one
//! collects. Requests that arrive meanwhile share the next one.
//!
//! Invariant: data that a transaction's extents and sizes cover is durable before the transaction
//! is written. Blocks that it frees become available once it is durable.

use block::Op as DeviceOp;
use clock::Nanos;
use nvme::Status;

use crate::Ino;
use crate::journal::{self, SectorHeader};
use crate::layout::BLOCK;
use crate::pipeline::{Core, TransferPurpose};
use crate::record::{INODE_BYTES, Record};

/// Changes that are committed together.
#[derive(Debug)]
pub(crate) struct Txn {
    /// Transaction number.
    pub(crate) id: u64,
    pub(crate) records: Vec<u8>,
    /// Inodes whose record is encoded when the transaction is closed.
    pub(crate) inodes: Vec<Ino>,
    /// Extents that become free once it is durable.
    pub(crate) freed_extents: Vec<(u32, u32)>,
    /// Time of its first change.
    pub(crate) started_at: Option<Nanos>,
}

impl Txn {
    pub(crate) fn new(id: u64, bytes: usize) -> Txn {
        let records = Vec::with_capacity(bytes);
        Txn { id, records, inodes: Vec::new(), freed_extents: Vec::new(), started_at: None }
    }

    /// Returns the bytes of its records, including those still to be encoded.
    pub(crate) fn bytes(&self) -> usize {
        self.records.len() + self.inodes.len() * INODE_BYTES
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes() == 0
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum CommitState {
    #[default]
    Idle,
    /// Waits for a flush of the data.
    Flushing { write_seq: u64 },
    /// Waits for this many transfers.
    Writing { remaining: u32 },
}

/// The transaction being committed.
#[derive(Debug, Default)]
pub(crate) struct Commit {
    state: CommitState,
    id: u64,
    first: u64,
    sectors: u64,
    pub(crate) freed_extents: Vec<(u32, u32)>,
}

impl Core {
    /// Returns when the running transaction expires.
    pub(crate) fn commit_deadline(&self) -> Nanos {
        self.txn.started_at.map_or(Nanos::MAX, |opened| opened + self.options.dirty_expire)
    }

    /// Advances flushes and commits.
    pub(crate) fn poll_commit(&mut self) {
        if self.aborted.is_some() {
            return;
        }
        let large = self.txn.bytes() + self.record_bytes_in_flight > self.txn_bytes_max / 2;
        let due =
            self.commit_requested >= self.txn.id || large || self.commit_deadline() <= self.now;
        if self.commit.state == CommitState::Idle && due && !self.txn.is_empty() {
            self.close_txn();
        }
        if let CommitState::Flushing { write_seq: need } = self.commit.state {
            if self.flushed_seq >= need {
                self.write_txn();
            } else {
                self.flush_requested = self.flush_requested.max(need);
            }
        }
        if self.flush_requested > self.flushed_seq && !self.flushing {
            self.flushing = true;
            self.stats.flushes += 1;
            self.transfers.submit_flush(TransferPurpose::Flush(self.write_seq));
            self.made_progress = true;
        }
    }

    /// Closes the running transaction: encodes its sectors, and starts the next one.
    fn close_txn(&mut self) {
        let id = self.txn.id;
        let mut inodes = std::mem::take(&mut self.txn.inodes);
        for ino in inodes.drain(..) {
            if let Some(node) = self.tree.find_mut(ino) {
                node.state.in_txn = false;
                let image = node.record();
                Record::Inode { ino, record: image }.encode(&mut self.txn.records);
            }
        }
        self.txn.inodes = inodes;
        std::mem::swap(&mut self.txn.freed_extents, &mut self.commit.freed_extents);
        let first = self.ring.head;
        let sectors = self.ring.sectors_for(self.txn.records.len());
        let (payload, bytes) = (self.ring.payload(), self.ring.sector_bytes as usize);
        let mut sector = [0; BLOCK];
        for (seq, part) in (first..).zip(self.txn.records.chunks(payload)) {
            let header = SectorHeader {
                length: part.len() as u16,
                epoch: self.ring.epoch,
                seq,
                txn: id,
                first: seq == first,
                last: seq + 1 == first + sectors,
            };
            journal::encode(&header, part, &mut sector[..bytes]);
            self.journal.write((seq - first) as usize * bytes, &sector[..bytes]);
        }
        self.ring.head += sectors;
        self.txn.records.clear();
        (self.txn.id, self.txn.started_at) = (id + 1, None);
        let commit = &mut self.commit;
        (commit.id, commit.first, commit.sectors) = (id, first, sectors);
        commit.state = CommitState::Flushing { write_seq: self.write_seq };
        self.made_progress = true;
    }

    fn write_txn(&mut self) {
        let (first, sectors) = (self.commit.first, self.commit.sectors);
        let area = u64::from(self.superblock.layout.journal());
        let begin = area * u64::from(self.superblock.layout.block_sectors());
        let at = first % self.ring.sectors;
        let head = sectors.min(self.ring.sectors - at);
        let mut left = 0;
        // Two transfers if the sectors wrap around the end of the ring.
        for (offset, lba, count) in [(0, begin + at, head), (head, begin, sectors - head)] {
            if count > 0 {
                let from = self.journal_iova.offset(offset * u64::from(self.ring.sector_bytes));
                let fua = self.volatile;
                self.transfers.submit_sectors(
                    TransferPurpose::Journal,
                    DeviceOp::Write,
                    (lba, count),
                    from,
                    fua,
                );
                left += 1;
            }
        }
        self.commit.state = CommitState::Writing { remaining: left };
        self.stats.journal_sectors += sectors;
        self.made_progress = true;
    }

    pub(crate) fn on_journal_complete(&mut self, status: Status) {
        if !status.is_success() {
            self.abort(status);
            return;
        }
        let CommitState::Writing { remaining: left } = self.commit.state else { return };
        self.commit.state = CommitState::Writing { remaining: left - 1 };
        if left > 1 || self.aborted.is_some() {
            return;
        }
        self.commit.state = CommitState::Idle;
        self.durable_txn = self.commit.id;
        self.stats.commits += 1;
        self.free_committed();
    }

    /// Frees the blocks that the committed transaction released.
    fn free_committed(&mut self) {
        let mut frees = std::mem::take(&mut self.commit.freed_extents);
        frees.sort_unstable();
        let mut run: Option<(u32, u32)> = None;
        for (start, count) in frees.drain(..) {
            match &mut run {
                Some((s, n)) if *s + *n == start => *n += count,
                _ => {
                    if let Some(run) = run.replace((start, count)) {
                        self.free_extent(run);
                    }
                }
            }
        }
        if let Some(run) = run {
            self.free_extent(run);
        }
        self.commit.freed_extents = frees;
    }

    fn free_extent(&mut self, (start, count): (u32, u32)) {
        if !self.options.discard {
            self.allocator.free(start, count);
            return;
        }
        self.discarding += u64::from(count);
        let what = TransferPurpose::Discard { start, count };
        self.transfers.submit_blocks(
            what,
            DeviceOp::Discard,
            (start, count),
            self.journal_iova,
            false,
        );
    }
}
