//! [`MetadataLog`]: the running transaction, the one being committed, and the journal's sectors.
//!
//! Changes are collected in one transaction. When a request waits for it, or it is old or large, it
//! is closed and written to the journal, while the next one collects. Requests that arrive meanwhile
//! share the next one.
//!
//! Invariant: data that a transaction's extents and sizes cover is durable before the transaction
//! is written. Blocks that it frees become available once it is durable.

use std::collections::BTreeSet;
use std::sync::Arc;

use mem::{AddressSpace, Iova, RegisterError, SharedRegion};
use time::Nanos;

use crate::Ino;
use crate::invariants::{VolumeViolation, require, require_eq};
use crate::on_media::journal::{self, JournalRing, SectorHeader};
use crate::on_media::layout::{BLOCK, BlockRun};
use crate::on_media::record::{EXTENT_BYTES, INODE_BYTES, InodeRecord, MetadataRecord};

/// Bytes of records that a written extent adds.
const EXTENT_RECORD_BYTES: usize = EXTENT_BYTES + INODE_BYTES;
/// Additional bytes if its unit is new.
const UNIT_RECORD_BYTES: usize = EXTENT_BYTES;

/// Changes that are committed together.
#[derive(Debug)]
struct Txn {
    /// Transaction number.
    id: u64,
    records: Vec<u8>,
    /// Inodes whose record is encoded when the transaction is closed.
    inodes: Vec<Ino>,
    /// Extents that become free once it is durable.
    freed: Vec<BlockRun>,
    /// Time of its first change.
    started_at: Option<Nanos>,
}

impl Txn {
    /// Returns the bytes of its records, including those still to be encoded.
    fn bytes(&self) -> usize {
        self.records.len() + self.inodes.len() * INODE_BYTES
    }

    fn is_empty(&self) -> bool {
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
struct Commit {
    state: CommitState,
    id: u64,
    first_seq: u64,
    sectors: u64,
    freed: Vec<BlockRun>,
}

/// A transfer of sectors to the journal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JournalWrite {
    /// First sector, counted from the start of the journal.
    pub(crate) first_sector: u64,
    pub(crate) sectors: u64,
    pub(crate) iova: Iova,
}

/// Transactions and the journal.
#[derive(Debug)]
pub(crate) struct MetadataLog {
    txn: Txn,
    commit: Commit,
    ring: JournalRing,
    /// Maximum bytes of a transaction.
    txn_bytes_max: usize,
    /// Number of extents in flight, which will add records.
    extents_in_flight: usize,
    /// Bytes of the records that each of them adds.
    extent_record_bytes: usize,
    /// The last transaction that must be committed.
    requested_txn: u64,
    /// The last durable transaction.
    durable_txn: u64,
    /// Sectors of the transaction being committed.
    region: Arc<SharedRegion>,
    iova: Iova,
}

impl MetadataLog {
    /// Creates an empty log; `next_txn` is the number of its first transaction, `txn_bytes` the
    /// limit of a transaction's bytes in the mount's options, and `has_units` whether the volume's
    /// units have several blocks.
    pub(crate) fn new(
        ring: JournalRing,
        next_txn: u64,
        txn_bytes: usize,
        has_units: bool,
        memory: &AddressSpace,
    ) -> Result<MetadataLog, RegisterError> {
        let txn_bytes = journal::txn_bytes_max(ring.sectors(), ring.sector_bytes(), txn_bytes);
        let bytes = (ring.sectors_for(2 * txn_bytes) + 1) * u64::from(ring.sector_bytes());
        let (region, iova) = memory.allocate_registered(bytes as usize)?;
        Ok(MetadataLog {
            txn: Txn {
                id: next_txn,
                records: Vec::with_capacity(txn_bytes),
                inodes: Vec::new(),
                freed: Vec::new(),
                started_at: None,
            },
            commit: Commit::default(),
            ring,
            txn_bytes_max: txn_bytes,
            extents_in_flight: 0,
            extent_record_bytes: EXTENT_RECORD_BYTES + usize::from(has_units) * UNIT_RECORD_BYTES,
            requested_txn: 0,
            durable_txn: next_txn - 1,
            region,
            iova,
        })
    }

    pub(crate) fn ring(&self) -> &JournalRing {
        &self.ring
    }

    /// Discards the journal's sectors before `seq`.
    pub(crate) fn discard_before(&mut self, seq: u64) {
        self.ring.discard_before(seq);
    }

    /// Returns the maximum bytes of a transaction.
    pub(crate) fn txn_bytes_max(&self) -> usize {
        self.txn_bytes_max
    }

    /// Returns the bytes of the records that a written extent adds.
    pub(crate) fn extent_record_bytes(&self) -> usize {
        self.extent_record_bytes
    }

    /// Returns the number of the running transaction.
    pub(crate) fn running_txn(&self) -> u64 {
        self.txn.id
    }

    /// Returns the last transaction with changes: the running one, or the one before.
    pub(crate) fn last_txn(&self) -> u64 {
        if self.txn.is_empty() { self.txn.id - 1 } else { self.txn.id }
    }

    /// Returns the last durable transaction.
    pub(crate) fn durable_txn(&self) -> u64 {
        self.durable_txn
    }

    /// Returns whether a transaction is durable; if not, requests its commit.
    pub(crate) fn require_durable(&mut self, txn: u64) -> bool {
        let is_durable = txn <= self.durable_txn;
        if !is_durable {
            self.requested_txn = self.requested_txn.max(txn);
        }
        is_durable
    }

    /// Requests a commit of the running transaction.
    pub(crate) fn request_commit(&mut self) {
        self.requested_txn = self.requested_txn.max(self.txn.id);
    }

    /// Appends a record to the running transaction.
    pub(crate) fn record(&mut self, record: &MetadataRecord<'_>) {
        record.encode(&mut self.txn.records);
    }

    /// Adds an inode, whose record is encoded when the transaction is closed.
    pub(crate) fn add_inode(&mut self, ino: Ino) {
        self.txn.inodes.push(ino);
    }

    /// Records that the running transaction has a change.
    pub(crate) fn record_change(&mut self, now: Nanos) {
        self.txn.started_at.get_or_insert(now);
    }

    /// Adds blocks that become free once the running transaction is durable.
    pub(crate) fn free_when_durable(&mut self, blocks: BlockRun) {
        self.txn.freed.push(blocks);
    }

    /// Returns whether transactions will free blocks; if the running one will, requests its commit.
    pub(crate) fn request_pending_frees(&mut self) -> bool {
        if !self.txn.freed.is_empty() {
            self.request_commit();
        }
        !self.txn.freed.is_empty() || !self.commit.freed.is_empty()
    }

    /// Returns whether the transaction being committed frees no blocks.
    pub(crate) fn is_commit_without_frees(&self) -> bool {
        self.commit.freed.is_empty()
    }

    /// Begins the write of an extent, which will add records.
    pub(crate) fn begin_extent(&mut self) {
        self.extents_in_flight += 1;
    }

    pub(crate) fn end_extent(&mut self) {
        assert!(self.extents_in_flight > 0, "log: an extent was written, and none is in flight");
        self.extents_in_flight -= 1;
    }

    /// Returns whether there is journal space for records and additional sectors; if not, requests
    /// a commit. Journaled pages and extents in flight may need a transaction each.
    pub(crate) fn ensure_space(
        &mut self,
        bytes: usize,
        sectors: u64,
        journaled_pages: usize,
    ) -> bool {
        let all = self.bytes_with_extents() + bytes;
        let each = (self.extents_in_flight + journaled_pages) as u64;
        let sectors = self.ring.sectors_for(all) + each + sectors + 2;
        let fits = all <= self.txn_bytes_max && sectors <= self.ring.free();
        if !fits && !self.txn.is_empty() {
            self.request_commit();
        }
        fits
    }

    fn bytes_with_extents(&self) -> usize {
        self.txn.bytes() + self.extents_in_flight * self.extent_record_bytes
    }

    /// Returns whether no transaction is being committed.
    pub(crate) fn is_commit_idle(&self) -> bool {
        self.commit.state == CommitState::Idle
    }

    /// Returns whether the running transaction has no changes.
    pub(crate) fn is_empty(&self) -> bool {
        self.txn.is_empty()
    }

    /// Returns when the running transaction expires.
    pub(crate) fn deadline(&self, dirty_expire: Nanos) -> Nanos {
        self.txn.started_at.map_or(Nanos::MAX, |started| started + dirty_expire)
    }

    /// Returns whether the running transaction can and must be closed.
    pub(crate) fn is_close_due(&self, now: Nanos, dirty_expire: Nanos) -> bool {
        let is_large = self.bytes_with_extents() > self.txn_bytes_max / 2;
        let is_due =
            self.requested_txn >= self.txn.id || is_large || self.deadline(dirty_expire) <= now;
        self.commit.state == CommitState::Idle && is_due && !self.txn.is_empty()
    }

    /// Closes the running transaction: encodes its sectors, and starts the next one. `inode_record`
    /// returns the record of an inode, unless it was removed. The transaction is written after a
    /// flush of all writes up to `write_seq`.
    pub(crate) fn close_txn(
        &mut self,
        write_seq: u64,
        mut inode_record: impl FnMut(Ino) -> Option<InodeRecord>,
    ) {
        let txn = &mut self.txn;
        for ino in txn.inodes.drain(..) {
            if let Some(record) = inode_record(ino) {
                MetadataRecord::Inode { ino, record }.encode(&mut txn.records);
            }
        }
        std::mem::swap(&mut txn.freed, &mut self.commit.freed);
        let sectors = self.ring.sectors_for(txn.records.len());
        let first_seq = self.ring.append(sectors);
        let (payload, bytes) = (self.ring.payload(), self.ring.sector_bytes() as usize);
        let mut sector = [0; BLOCK];
        for (seq, part) in (first_seq..).zip(txn.records.chunks(payload)) {
            let header = SectorHeader {
                length: part.len() as u16,
                epoch: self.ring.epoch(),
                seq,
                txn: txn.id,
                first: seq == first_seq,
                last: seq + 1 == first_seq + sectors,
            };
            journal::encode(&header, part, &mut sector[..bytes]);
            self.region.write((seq - first_seq) as usize * bytes, &sector[..bytes]);
        }
        txn.records.clear();
        let commit = &mut self.commit;
        (commit.id, commit.first_seq, commit.sectors) = (txn.id, first_seq, sectors);
        commit.state = CommitState::Flushing { write_seq };
        (txn.id, txn.started_at) = (txn.id + 1, None);
    }

    /// Returns the last write that must be durable before the closed transaction is written, if
    /// there is one.
    pub(crate) fn awaited_write_seq(&self) -> Option<u64> {
        match self.commit.state {
            CommitState::Flushing { write_seq } => Some(write_seq),
            _ => None,
        }
    }

    /// Begins to write the closed transaction. Returns two transfers if its sectors wrap around the
    /// end of the journal.
    pub(crate) fn begin_commit(&mut self) -> [Option<JournalWrite>; 2] {
        let (first_seq, sectors) = (self.commit.first_seq, self.commit.sectors);
        let begin = first_seq % self.ring.sectors();
        let before_end = sectors.min(self.ring.sectors() - begin);
        let rest = sectors - before_end;
        self.commit.state = CommitState::Writing { remaining: 1 + u32::from(rest > 0) };
        let offset = before_end * u64::from(self.ring.sector_bytes());
        let head = JournalWrite { first_sector: begin, sectors: before_end, iova: self.iova };
        let tail = JournalWrite { first_sector: 0, sectors: rest, iova: self.iova.offset(offset) };
        [Some(head), Some(tail).filter(|tail| tail.sectors > 0)]
    }

    /// Returns the sectors of the transaction being committed.
    pub(crate) fn commit_sectors(&self) -> u64 {
        self.commit.sectors
    }

    /// Records the completion of a transfer. Returns whether it was the last one.
    pub(crate) fn end_journal_write(&mut self) -> bool {
        let CommitState::Writing { remaining } = &mut self.commit.state else {
            panic!("log: a write of the journal completes in state {:?}", self.commit.state);
        };
        assert!(*remaining > 0, "log: transaction {} has no write in flight", self.commit.id);
        *remaining -= 1;
        *remaining == 0
    }

    /// Makes the written transaction durable. Returns the blocks that it frees, merged.
    pub(crate) fn end_commit(&mut self) -> Vec<BlockRun> {
        self.commit.state = CommitState::Idle;
        self.durable_txn = self.commit.id;
        let mut freed = std::mem::take(&mut self.commit.freed);
        freed.sort_unstable();
        freed.dedup_by(|next, run| {
            let continues = run.end_block() == next.first_block;
            if continues {
                run.blocks += next.blocks;
            }
            continues
        });
        freed
    }

    /// Returns memory of [`end_commit`](MetadataLog::end_commit) for later commits.
    pub(crate) fn reuse(&mut self, mut freed: Vec<BlockRun>) {
        freed.clear();
        self.commit.freed = freed;
    }

    /// Returns the blocks that become free once transactions are durable.
    pub(crate) fn pending_frees(&self) -> impl Iterator<Item = BlockRun> + '_ {
        self.txn.freed.iter().chain(&self.commit.freed).copied()
    }

    /// Returns the inodes of the running transaction.
    pub(crate) fn inodes(&self) -> impl Iterator<Item = Ino> + '_ {
        self.txn.inodes.iter().copied()
    }

    /// Returns the number of extents in flight.
    pub(crate) fn extents_in_flight(&self) -> usize {
        self.extents_in_flight
    }

    pub(crate) fn check_invariants(&self) -> Result<(), VolumeViolation> {
        self.ring.check_invariants()?;
        let is_idle = self.commit.state == CommitState::Idle;
        let closed = self.txn.id - 1;
        let durable = if is_idle { closed } else { closed - 1 };
        require_eq!(
            Log,
            "transactions before the one being committed are durable",
            format_args!("transaction {closed}"),
            durable,
            self.durable_txn
        );
        require!(
            is_idle || self.commit.id == closed,
            Log,
            "the last closed transaction is committed",
            format_args!("transaction {closed}"),
            closed,
            self.commit.id
        );
        require!(
            self.bytes_with_extents() <= 2 * self.txn_bytes_max,
            Log,
            "a transaction fits its buffer",
            format_args!("transaction {}", self.txn.id),
            2 * self.txn_bytes_max,
            self.bytes_with_extents()
        );
        require!(
            self.txn.is_empty() || self.txn.started_at.is_some(),
            Log,
            "a transaction with changes expires",
            format_args!("transaction {}", self.txn.id),
            "a time",
            self.txn.started_at
        );
        let mut seen = BTreeSet::new();
        for ino in &self.txn.inodes {
            require!(seen.insert(*ino), Log, "a transaction has an inode once", ino, 1, 2);
        }
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn break_durable(&mut self) {
        self.durable_txn += 1;
    }
}
