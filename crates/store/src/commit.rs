//! [`Txn`] and [`Commit`]: changes are collected in one transaction; when somebody waits for one, or it is
//! old or large, it is closed and written to the journal, and the next one collects. Whoever comes
//! meanwhile shares the next.
//!
//! What the transaction's changes rely on is durable before it is written: the data that its extents and
//! sizes cover. What it gives up is free once it is durable itself.

use block::Op as DeviceOp;
use clock::Nanos;
use nvme::Status;

use crate::Ino;
use crate::core::{Core, What};
use crate::journal::{self, Header};
use crate::layout::BLOCK;
use crate::record::{INODE_BYTES, Record};

/// Changes that belong together.
#[derive(Debug)]
pub(crate) struct Txn {
    /// Its number.
    pub(crate) id: u64,
    pub(crate) records: Vec<u8>,
    /// Inodes whose own record is made when it is closed.
    pub(crate) inodes: Vec<Ino>,
    /// Runs of blocks that are free once it is durable.
    pub(crate) frees: Vec<(u32, u32)>,
    /// When its first change was made.
    pub(crate) opened: Option<Nanos>,
}

impl Txn {
    pub(crate) fn new(id: u64, bytes: usize) -> Txn {
        let records = Vec::with_capacity(bytes);
        Txn { id, records, inodes: Vec::new(), frees: Vec::new(), opened: None }
    }

    /// Bytes of its records, those included that will be made.
    pub(crate) fn bytes(&self) -> usize {
        self.records.len() + self.inodes.len() * INODE_BYTES
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes() == 0
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Idle,
    /// Waits for a flush of the data.
    Flushing { need: u64 },
    /// Waits for so many transfers.
    Writing { left: u32 },
}

/// The transaction that is on its way.
#[derive(Debug, Default)]
pub(crate) struct Commit {
    state: State,
    id: u64,
    first: u64,
    sectors: u64,
    pub(crate) frees: Vec<(u32, u32)>,
}

impl Core {
    /// When the transaction will be old.
    pub(crate) fn commit_deadline(&self) -> Nanos {
        self.txn.opened.map_or(Nanos::MAX, |opened| opened + self.options.age)
    }

    /// Goes on with flushes and transactions.
    pub(crate) fn poll_commit(&mut self) {
        if self.wedged.is_some() {
            return;
        }
        let large = self.txn.bytes() + self.coming > self.txn_bytes / 2;
        let due = self.commit_wanted >= self.txn.id || large || self.commit_deadline() <= self.now;
        if self.commit.state == State::Idle && due && !self.txn.is_empty() {
            self.close_txn();
        }
        if let State::Flushing { need } = self.commit.state {
            if self.flushed >= need {
                self.write_txn();
            } else {
                self.flush_wanted = self.flush_wanted.max(need);
            }
        }
        if self.flush_wanted > self.flushed && !self.flushing {
            self.flushing = true;
            self.stats.flushes += 1;
            self.flights.flush(What::Flush(self.writes));
            self.moved = true;
        }
    }

    /// Closes the running transaction: its sectors are made, and the next one runs.
    fn close_txn(&mut self) {
        let id = self.txn.id;
        let mut inodes = std::mem::take(&mut self.txn.inodes);
        for ino in inodes.drain(..) {
            if let Some(node) = self.tree.find_mut(ino) {
                node.live.noted = false;
                let image = node.image();
                Record::Inode { ino, image }.encode(&mut self.txn.records);
            }
        }
        self.txn.inodes = inodes;
        std::mem::swap(&mut self.txn.frees, &mut self.commit.frees);
        let first = self.ring.head;
        let sectors = self.ring.sectors_for(self.txn.records.len());
        let (payload, bytes) = (self.ring.payload(), self.ring.sector_bytes as usize);
        let mut sector = [0; BLOCK];
        for (seq, part) in (first..).zip(self.txn.records.chunks(payload)) {
            let header = Header {
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
        (self.txn.id, self.txn.opened) = (id + 1, None);
        let commit = &mut self.commit;
        (commit.id, commit.first, commit.sectors) = (id, first, sectors);
        commit.state = State::Flushing { need: self.writes };
        self.moved = true;
    }

    fn write_txn(&mut self) {
        let (first, sectors) = (self.commit.first, self.commit.sectors);
        let area = u64::from(self.superblock.layout.journal());
        let begin = area * u64::from(self.superblock.layout.block_sectors());
        let at = first % self.ring.sectors;
        let head = sectors.min(self.ring.sectors - at);
        let mut left = 0;
        // In two pieces where the ring ends.
        for (offset, lba, count) in [(0, begin + at, head), (head, begin, sectors - head)] {
            if count > 0 {
                let from = self.journal_at.offset(offset * u64::from(self.ring.sector_bytes));
                let fua = self.volatile;
                self.flights.sectors(What::Journal, DeviceOp::Write, (lba, count), from, fua);
                left += 1;
            }
        }
        self.commit.state = State::Writing { left };
        self.stats.journal_sectors += sectors;
        self.moved = true;
    }

    pub(crate) fn journal_ended(&mut self, status: Status) {
        if !status.is_success() {
            self.wedge(status);
            return;
        }
        let State::Writing { left } = self.commit.state else { return };
        self.commit.state = State::Writing { left: left - 1 };
        if left > 1 || self.wedged.is_some() {
            return;
        }
        self.commit.state = State::Idle;
        self.durable = self.commit.id;
        self.stats.commits += 1;
        self.give_up();
    }

    /// The blocks that the transaction gave up are nobody's.
    fn give_up(&mut self) {
        let mut frees = std::mem::take(&mut self.commit.frees);
        frees.sort_unstable();
        let mut run: Option<(u32, u32)> = None;
        for (start, count) in frees.drain(..) {
            match &mut run {
                Some((s, n)) if *s + *n == start => *n += count,
                _ => {
                    if let Some(run) = run.replace((start, count)) {
                        self.give_up_run(run);
                    }
                }
            }
        }
        if let Some(run) = run {
            self.give_up_run(run);
        }
        self.commit.frees = frees;
    }

    fn give_up_run(&mut self, (start, count): (u32, u32)) {
        if !self.options.discard {
            self.space.give(start, count);
            return;
        }
        self.discarding += u64::from(count);
        let what = What::Discard { start, count };
        self.flights.blocks(what, DeviceOp::Discard, (start, count), self.journal_at, false);
    }
}
