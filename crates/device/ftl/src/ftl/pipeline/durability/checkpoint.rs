//! Checkpoints of the map, and the journal. The rules are in
//! [`checkpoint`](crate::durability::checkpoint).

use nvme::{ChunkId, Status};
use time::Nanos;

use crate::durability::checkpoint::{CheckpointFacts, CheckpointStep, PageCursor};
use crate::durability::journal::{Journal, JournalFlash, OPS_MAX};
use crate::durability::owner_state::OwnerChange;
use crate::durability::snapshot::{LineEntry, SnapshotEncoder};
use crate::flash::OpKind;
use crate::ftl::HOST;
use crate::ids::{MapPageId, SlotId, ToIndex, ToU32, WriteSeq};
use crate::space::lines::{Footer, LineState};
use crate::{FlashBackend, FlashGeometry, Ftl, OpToken, WriteUnit};

/// The journal's access to the flash, with the last slots of the write buffer as its memory.
struct JournalFlashAdapter<'a, F> {
    flash: &'a mut F,
    geometry: &'a FlashGeometry,
    first_slot: SlotId,
}

impl<F: FlashBackend> JournalFlash for JournalFlashAdapter<'_, F> {
    fn program(&mut self, now: Nanos, op: u32, chunk: ChunkId, sector: u32, bytes: &[u8]) {
        let FlashGeometry { ws_opt: unit, sector_bytes, .. } = *self.geometry;
        let first_slot = self.first_slot + op * unit;
        let mut sectors = bytes.chunks(sector_bytes.index());
        for slot in first_slot.run(unit) {
            self.flash.write_slot(slot, sectors.next().unwrap_or_default());
        }
        let unit = WriteUnit::without_sectors(chunk, sector, first_slot, unit);
        self.flash.program(now, OpToken::new(OpKind::Journal, op), unit);
    }

    fn erase(&mut self, now: Nanos, op: u32, chunk: ChunkId) {
        self.flash.erase(now, OpToken::new(OpKind::Journal, op), chunk);
    }
}

impl Ftl {
    /// Returns the number of slots that the journal needs.
    pub(crate) fn journal_slots(geometry: &FlashGeometry) -> u32 {
        OPS_MAX.to_u32() * geometry.ws_opt
    }

    /// Returns the journal, for its counters.
    pub fn journal(&self) -> &Journal {
        self.durability.journal()
    }

    /// Requests a checkpoint of all that is on the media now, at full speed. After a flush and this
    /// checkpoint, a recovery reads the map's pages only. Call [`kick`](Ftl::kick) afterwards.
    pub fn checkpoint(&mut self) {
        self.durability.request_checkpoint();
    }

    /// Returns whether a requested checkpoint is not durable yet.
    pub fn is_checkpointing(&self) -> bool {
        self.durability.checkpoint().is_requested()
    }

    /// Continues a checkpoint, or begins one when it is due.
    pub(crate) fn step_checkpoint(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
        let mut moved = if self.durability.has_device_l2p() {
            self.step_seq_reservation()
        } else {
            self.advance_checkpoint()
        };
        if self.durability.wants_space_snapshot() {
            let snapshot = self.encode_snapshot(self.durability.checkpoint().base_seq());
            moved |= self.durability.write_space_snapshot(snapshot);
        }
        moved |= self.mapping.is_named() && self.end_snapshot_wait();
        if self.durability.journal().is_unchanged() {
            return moved;
        }
        let first_slot = SlotId(self.slots() - Ftl::journal_slots(&self.env.geometry));
        let way = &mut JournalFlashAdapter { flash, geometry: &self.env.geometry, first_slot };
        self.durability.kick_journal(now, way) | moved
    }

    fn advance_checkpoint(&mut self) -> bool {
        let facts = CheckpointFacts {
            durable_pos: self.buffer.durable_pos(),
            next_seq: self.buffer.next_seq(),
            low_watermark: self.buffer.low_watermark(),
            is_blocked: self.mapping.reconcile().is_running()
                || self.mapping.page_rebuild().has_at_risk(),
        };
        match self.durability.step_checkpoint(&self.env, facts) {
            CheckpointStep::Wait => false,
            CheckpointStep::Begun => true,
            CheckpointStep::WriteSnapshot { base_seq } => {
                let snapshot = self.encode_snapshot(base_seq);
                let taken = self.durability.write_checkpoint_snapshot(snapshot);
                self.stats.checkpoints += u64::from(taken);
                taken
            }
            CheckpointStep::Ended => {
                self.complete_deferred();
                true
            }
        }
    }

    /// Writes the pages that are due. This comes before the admission of host data, which would take
    /// every slot that becomes free, and so delay the checkpoint for ever.
    #[inline]
    pub(crate) fn write_due_pages(&mut self, flash: &mut impl FlashBackend) -> bool {
        match self.durability.page_cursor() {
            Some(cursor) => self.write_checkpoint_pages(cursor, flash),
            None => false,
        }
    }

    /// Writes as many pages as are due.
    fn write_checkpoint_pages(&mut self, from: PageCursor, flash: &mut impl FlashBackend) -> bool {
        let PageCursor { mut next, mut written } = from;
        let due = self.durability.due_pages(&self.env, self.buffer.next_seq());
        let fast = self.durability.is_checkpoint_urgent();
        while written < due {
            let Some(page) = self.durability.next_checkpoint_page(next) else {
                self.durability.await_pages();
                return true;
            };
            let room = self.buffer.ring(HOST).free() > 0
                && (fast || self.gc.limiter().headroom(self.free_sectors()) > 0.0);
            if !room {
                break;
            }
            self.write_map_page(page, flash);
            (next, written) = (page + 1, written + 1);
        }
        self.durability.set_page_cursor(PageCursor { next, written });
        next != from.next
    }

    fn encode_snapshot(&self, base: WriteSeq) -> Vec<u8> {
        let layout = &self.env.plan;
        // Without pages, all that the base tells a recovery is which numbers have been used.
        let base = if self.mapping.is_named() { self.buffer.next_seq() } else { base };
        let page = |page: MapPageId| match self
            .buffer
            .durable_copy_of(&self.env.geometry, self.mapping.get(layout.page_sector(page)))
            .0
        {
            crate::ids::NO_SECTOR => 0,
            phys => phys.get() + 1,
        };
        let table = self.space.table();
        let mut snapshot =
            SnapshotEncoder::new(&self.env.geometry, layout, base, table.len().to_u32());
        layout.pages().for_each(|at| snapshot.put_page(page(at)));
        let mut entry = LineEntry {
            stream: 0,
            open: false,
            has_footer: false,
            max_seq: WriteSeq(0),
            chunks: Vec::with_capacity(layout.active_pus.index()),
        };
        for (id, line) in table.iter().filter(|(_, line)| line.state != LineState::Free) {
            // Some chunks of a drained line may have been erased, and belong to another line now.
            let is_own = |chunk: &ChunkId| {
                let is_own = line.state != LineState::Draining || table.line_of(*chunk) == id;
                debug_assert_eq!(is_own, table.line_of(*chunk) == id, "{chunk}");
                is_own
            };
            let own = line.chunks.iter().copied().filter(is_own);
            entry.chunks.clear();
            entry.chunks.extend(own);
            if entry.chunks.is_empty() {
                continue;
            }
            // Full lines whose valid sectors are not counted yet take no units.
            let counted =
                self.space.is_reconciling() && line.fully_mapped && line.programs_in_flight == 0;
            entry.open = line.state == LineState::Open && !counted;
            entry.stream = line.stream;
            entry.has_footer = line.footer == Footer::Valid;
            entry.max_seq = if entry.open { WriteSeq::MAX } else { line.max_seq };
            snapshot.put_line(&entry);
        }
        snapshot.finish(self.durability.owner_state())
    }

    /// Writes a translation page with the entries that point to the media now.
    pub(crate) fn write_map_page(&mut self, page: MapPageId, flash: &mut impl FlashBackend) {
        let mut bytes = self.mapping.take_page_buffer();
        bytes.clear();
        // An unpinned page has no sector in the write buffer: it includes all units and trims so
        // far.
        let unpinned = self.mapping.is_unpinned(page);
        let low = if unpinned { self.buffer.next_seq() } else { self.buffer.low_watermark() };
        if flash.stores_data() {
            self.encode_map_page(page, low, &mut bytes);
        }
        self.durability.page_made(page, unpinned);
        let slot = self.admit(HOST, self.env.plan.page_sector(page));
        flash.write_slot(slot, &bytes);
        self.mapping.return_page_buffer(bytes);
        self.durability.page_written(self.buffer.head_pos());
        self.stats.metadata += 1;
    }

    /// Reports the end of an operation of the journal.
    pub(crate) fn journal_program_done(&mut self, op: u32, status: Status) {
        self.durability.journal_program_done(op, status);
        self.space.unblock();
        if self.durability.advance_owner_state() {
            self.complete_deferred();
            self.release_confirmed();
        }
    }

    /// Returns the state that the journal keeps for the owner of this FTL: zeros, changed by
    /// [`change_owner_state`](Ftl::change_owner_state). Empty without
    /// [`FtlConfig::owner_bytes`](crate::FtlConfig::owner_bytes).
    pub fn owner_state(&self) -> &[u8] {
        self.durability.owner_state()
    }

    /// Changes parts of the owner's state. After a power cut, the state is that after a prefix of all
    /// changes, which includes those before a completed flush.
    ///
    /// # Panics
    /// If a part of the change is outside of the state.
    pub fn change_owner_state(&mut self, change: &OwnerChange) {
        self.durability.change_owner_state(change);
    }
}
