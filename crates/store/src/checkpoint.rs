//! [`Checkpoint`]: a snapshot of all metadata, after which the journal before it is not needed, because the
//! data that it has is in place by then as well. The first
//! one is made before a volume is ready, the last one when it is closed, and others when a third of
//! the journal is in use.

use std::sync::Arc;

use block::Op as DeviceOp;
use nvme::Status;
use ring::{Iova, Region};

use crate::core::{Core, What};
use crate::layout::{BLOCK, PIECE_BLOCKS, PIECE_BYTES};
use crate::snapshot::{Cursor, seal};
use crate::superblock::{SUPERBLOCK_BYTES, Superblock};

#[derive(Clone, Copy, Debug)]
enum State {
    Idle,
    /// Pieces are made, and what only the journal has is written in place.
    Writing(Cursor),
    /// What the snapshot may have seen has to be durable.
    Committing {
        txn: u64,
    },
    /// The pieces have to be.
    Flushing {
        need: u64,
    },
    /// The first, or the second, superblock is on its way.
    Superblock {
        second: bool,
    },
}

/// A snapshot that is being made.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    state: State,
    /// What the superblock will say.
    next: Option<Superblock>,
    begin: u64,
    /// Its first transaction: data that those before have must be in place.
    first: u64,
    pieces: u32,
    under_way: u32,
    buffers: Vec<u32>,
    region: Arc<Region>,
    at: Iova,
    piece: Vec<u8>,
    /// The volume is closed with this one.
    last: bool,
}

impl Checkpoint {
    /// Two buffers for pieces and one for a superblock are in `region`.
    pub(crate) fn new(region: Arc<Region>, at: Iova) -> Checkpoint {
        Checkpoint {
            state: State::Idle,
            next: None,
            begin: 0,
            first: 0,
            pieces: 0,
            under_way: 0,
            buffers: vec![0, 1],
            region,
            at,
            piece: Vec::with_capacity(PIECE_BYTES + BLOCK),
            last: false,
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle)
    }

    pub(crate) fn last_begun(&self) -> bool {
        self.last
    }
}

impl Core {
    /// Begins a snapshot, if none is being made.
    pub(crate) fn begin_checkpoint(&mut self) -> bool {
        if !self.checkpoint.is_idle() || self.wedged.is_some() {
            return false;
        }
        let old = self.superblock;
        let checkpoint = &mut self.checkpoint;
        (checkpoint.begin, checkpoint.first) = (self.ring.head, self.txn.id);
        checkpoint.pieces = 0;
        checkpoint.next = Some(Superblock {
            generation: old.generation + 1,
            area: 1 - old.area,
            snapshot: old.snapshot + 1,
            journal_seq: self.ring.head,
            journal_txn: self.txn.id,
            epoch: self.ring.epoch,
            owner: Some(self.options.owner).filter(|_| !checkpoint.last),
            data_in_journal: !checkpoint.last,
            ..old
        });
        checkpoint.state = State::Writing(Cursor::new(&self.tree));
        self.moved = true;
        true
    }

    /// Begins the one after which the volume is not in use.
    pub(crate) fn begin_last_checkpoint(&mut self) -> bool {
        if !self.checkpoint.is_idle() {
            return false;
        }
        self.checkpoint.last = true;
        self.begin_checkpoint()
    }

    /// Whether data that only the journal has must be written in place for there to be room in it, or for
    /// the volume to be closed.
    pub(crate) fn journal_needs_room(&self) -> bool {
        let full = self.ring.used() > self.ring.sectors / 2;
        !self.checkpoint.is_idle() && (self.checkpoint.last || full)
    }

    /// Goes on with a snapshot.
    pub(crate) fn poll_checkpoint(&mut self) {
        if self.wedged.is_some() || self.options.read_only {
            return;
        }
        match self.checkpoint.state {
            State::Idle => {
                if self.ring.used() > self.ring.sectors / 3 && !self.checkpoint.last {
                    self.begin_checkpoint();
                }
            }
            State::Writing(mut cursor) => {
                while !cursor.at_end()
                    && let Some(buffer) = self.checkpoint.buffers.pop()
                {
                    self.write_piece(&mut cursor, buffer);
                    self.checkpoint.state = State::Writing(cursor);
                }
                let placed = self.place(self.checkpoint.first);
                if cursor.at_end() && self.checkpoint.under_way == 0 && placed {
                    let txn = if self.txn.is_empty() { self.txn.id - 1 } else { self.txn.id };
                    self.checkpoint.state = State::Committing { txn };
                    self.moved = true;
                }
            }
            State::Committing { txn } => {
                if self.durable >= txn {
                    self.checkpoint.state = State::Flushing { need: self.writes };
                    self.moved = true;
                } else {
                    self.commit_wanted = self.commit_wanted.max(txn);
                }
            }
            State::Flushing { need } => {
                if self.flushed >= need {
                    self.write_superblock(false);
                } else {
                    self.flush_wanted = self.flush_wanted.max(need);
                }
            }
            State::Superblock { .. } => {}
        }
    }

    fn write_piece(&mut self, cursor: &mut Cursor, buffer: u32) {
        let checkpoint = &mut self.checkpoint;
        let Some(next) = &checkpoint.next else { return };
        cursor.fill(&self.tree, &mut checkpoint.piece);
        let index = checkpoint.pieces;
        let blocks = seal(&mut checkpoint.piece, next.snapshot, index, cursor.at_end());
        let layout = next.layout;
        let begin = index * PIECE_BLOCKS;
        if begin + blocks > layout.snapshot_blocks {
            // The limit on metadata and the size of the journal make sure that it fits.
            return self.wedge(Status::INTERNAL);
        }
        let at = buffer as usize * PIECE_BYTES;
        checkpoint.region.write(at, &checkpoint.piece);
        checkpoint.pieces += 1;
        checkpoint.under_way += 1;
        let (from, first) = (checkpoint.at.offset(at as u64), layout.snapshot(next.area) + begin);
        let what = What::Piece(buffer);
        self.flights.blocks(what, DeviceOp::Write, (first, blocks), from, false);
        self.stats.checkpoint_bytes += u64::from(blocks) * BLOCK as u64;
        self.moved = true;
    }

    pub(crate) fn piece_ended(&mut self, buffer: u32, status: Status) {
        self.checkpoint.buffers.push(buffer);
        self.checkpoint.under_way -= 1;
        self.writes += u64::from(self.volatile);
        if !status.is_success() {
            self.wedge(status);
        }
    }

    fn write_superblock(&mut self, second: bool) {
        let checkpoint = &mut self.checkpoint;
        let Some(next) = &mut checkpoint.next else { return };
        next.pieces = checkpoint.pieces;
        let mut sector = [0; BLOCK];
        sector[..SUPERBLOCK_BYTES].copy_from_slice(&next.encode());
        checkpoint.region.write(2 * PIECE_BYTES, &sector);
        checkpoint.state = State::Superblock { second };
        let block = if second { next.layout.second() } else { 0 };
        let lba = u64::from(block) * u64::from(next.layout.block_sectors());
        let from = checkpoint.at.offset(2 * PIECE_BYTES as u64);
        self.flights.sectors(What::Superblock, DeviceOp::Write, (lba, 1), from, self.volatile);
        self.moved = true;
    }

    pub(crate) fn superblock_ended(&mut self, status: Status) {
        if !status.is_success() {
            return self.wedge(status);
        }
        if matches!(self.checkpoint.state, State::Superblock { second: false }) {
            return self.write_superblock(true);
        }
        if let Some(next) = self.checkpoint.next.take() {
            self.superblock = next;
        }
        self.ring.tail = self.checkpoint.begin;
        self.checkpoint.state = State::Idle;
        self.stats.checkpoints += 1;
    }
}
