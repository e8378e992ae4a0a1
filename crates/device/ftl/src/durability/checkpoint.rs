//! [`Checkpoint`]: brings the map to the media piece by piece, so that recovery reads a bounded part
//! of it (LightNVM paper section 4.2.2; kernel pblk never had them).
//!
//! A checkpoint notes how far write units are numbered (the *base*), writes every page of the map
//! that has changed since the last one, paced by what users write, and when those pages are durable
//! puts a snapshot into the journal: the base, where the pages are, and the lines. Recovery then
//! needs the pages, and the units from the base on; those are in lines that were open at the base
//! or have been opened since.
//!
//! A line takes write units only when the journal says that it was opened: so no unit is in a line that
//! recovery does not know.

use clock::Nanos;
use nvme::Status;

use crate::check::{Subject, Violation, require};
use crate::durability::journal::{Journal, JournalFlash, Lsn, OPS_MAX};
use crate::durability::snapshot::{LineEntry, Snapshot};
use crate::flash::OpKind;
use crate::ftl::HOST;
use crate::space::lines::{Footer, Line, LineState};
use crate::{
    BufferEntry, CapacityPlan, FlashBackend, FlashGeometry, Ftl, FtlConfig, OpToken, WriteUnit,
};

/// How far a checkpoint is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// None is under way.
    Idle,
    /// Pages are being written, from this one on.
    WritePages { next: u32, written: u64 },
    /// The pages must be durable up to this position of the users' ring.
    AwaitPages(u64),
    /// The snapshot must be durable.
    AwaitSnapshot(Lsn),
}

/// The state of checkpoints.
#[derive(Clone, Debug)]
pub(crate) struct Checkpoint {
    phase: Phase,
    /// One bit per page of the map: what it says is not where its sectors are on the media.
    dirty: Box<[u64]>,
    /// The pages that the checkpoint under way writes, and how many there were.
    pages_to_write: Box<[u64]>,
    page_count: u64,
    /// Sectors that are written between the beginnings of two checkpoints, without pages of the map; and
    /// whether those that are moved count.
    interval: u64,
    counts_relocations: bool,
    /// The number of the next write unit when the checkpoint under way began, or the last one, and sectors
    /// in units since that do not count.
    began_seq: u64,
    excluded_sectors: u64,
    /// Somebody has changed something since then: what a checkpoint itself brings on, padding and moves
    /// among it, brings on no other.
    changed: bool,
    /// The base of the last snapshot that is durable, and of the checkpoint under way.
    base_seq: u64,
    pending_base_seq: u64,
    /// Somebody waits for one that begins now or later.
    requested: bool,
    /// Somebody waits for the one under way: it is not paced.
    unpaced: bool,
    /// The journal has no room for records until it gets a snapshot.
    needs_journal_space: bool,
    /// The journal wanted a snapshot when it last changed.
    journal_wants_snapshot: bool,
    /// Where the last snapshot is in the journal.
    snapshot_lsn: Lsn,
    /// How often something was lost that the last checkpoint does not know of; how often when the one
    /// under way began, or the last one; and when the last durable one did.
    loss_epoch: u64,
    loss_epoch_at_start: u64,
    loss_epoch_durable: u64,
}

impl Checkpoint {
    /// None; the base of the last one is `base`.
    pub(crate) fn new(layout: &CapacityPlan, config: &FtlConfig, base_seq: u64) -> Checkpoint {
        let (pages, interval) = (layout.map_pages, layout.checkpoint_sectors);
        let words = vec![0; (pages as usize).div_ceil(64)];
        Checkpoint {
            phase: Phase::Idle,
            dirty: words.clone().into(),
            pages_to_write: words.into(),
            page_count: 0,
            interval,
            counts_relocations: config.checkpoint_sectors > 0,
            began_seq: base_seq,
            excluded_sectors: 0,
            changed: true,
            base_seq,
            pending_base_seq: base_seq,
            requested: false,
            unpaced: false,
            needs_journal_space: false,
            journal_wants_snapshot: false,
            snapshot_lsn: Lsn(0),
            loss_epoch: 0,
            loss_epoch_at_start: 0,
            loss_epoch_durable: 0,
        }
    }

    /// Checks the order of the loss epochs and of the base sequence numbers; `low` is the low watermark.
    pub(crate) fn check(&self, low: u64) -> Result<(), Violation> {
        let order = [self.loss_epoch_durable, self.loss_epoch_at_start, self.loss_epoch];
        require!(
            order.is_sorted(),
            Durability,
            "losses: durable ≤ begun ≤ known",
            Subject::Part,
            "ascending",
            format_args!("{order:?}")
        );
        let order = [self.base_seq, self.pending_base_seq, low];
        require!(
            order.is_sorted(),
            Durability,
            "checkpoint: base ≤ next base ≤ low watermark",
            Subject::Part,
            "ascending",
            format_args!("{order:?}")
        );
        Ok(())
    }

    /// A snapshot is to be taken for somebody who asked, because the journal has no room, or because
    /// something was lost.
    pub(crate) fn is_wanted(&self) -> bool {
        self.requested || self.needs_journal_space || self.has_undurable_loss()
    }

    /// Whether the last durable checkpoint, or the one that would be begun for what was lost before,
    /// does not say where the units with numbers up to `newest` are.
    pub(crate) fn would_lose(&self, newest: u64) -> bool {
        newest >= self.base_seq && self.loss_epoch == self.loss_epoch_at_start
    }

    /// Something was lost that the last checkpoint does not know of: one begins.
    pub(crate) fn record_loss(&mut self) {
        self.loss_epoch += 1;
    }

    /// Whether something was lost that no durable checkpoint knows of.
    #[inline]
    pub(crate) fn has_undurable_loss(&self) -> bool {
        self.loss_epoch > self.loss_epoch_durable
    }

    /// Of a drive that keeps the map: a snapshot is on its way to `at`.
    pub(crate) fn begin_reservation(&mut self, at: Lsn) {
        self.unpaced = std::mem::take(&mut self.requested);
        (self.needs_journal_space, self.snapshot_lsn) = (false, at);
    }

    /// The same: it is durable.
    pub(crate) fn complete_reservation(&mut self) {
        self.unpaced = false;
    }

    /// The same: it was refused, for ever if the journal has failed.
    pub(crate) fn abort_reservation(&mut self, for_ever: bool) {
        self.requested &= !for_ever;
    }

    /// Users have written or trimmed, or somebody has data moved.
    #[inline]
    pub(crate) fn note_host_change(&mut self) {
        self.changed = true;
    }

    /// A unit of so many moved sectors was numbered.
    #[inline]
    pub(crate) fn record_relocated(&mut self, sectors: u32) {
        self.excluded_sectors += if self.counts_relocations { 0 } else { u64::from(sectors) };
    }

    /// What a page says has become untrue.
    #[inline]
    pub(crate) fn mark_dirty(&mut self, page: u32) {
        self.dirty[page as usize / 64] |= 1 << (page % 64);
    }

    /// Whether what a page says on the media, or will when what is in the write buffer is there, is
    /// untrue.
    #[inline]
    pub(crate) fn is_dirty(&self, page: u32) -> bool {
        let bits = self.dirty[page as usize / 64] | self.pages_to_write[page as usize / 64];
        bits >> (page % 64) & 1 != 0
    }

    /// A page was made of what is true now.
    #[inline]
    fn mark_clean(&mut self, page: u32) {
        self.dirty[page as usize / 64] &= !(1 << (page % 64));
        self.pages_to_write[page as usize / 64] &= !(1 << (page % 64));
    }

    /// The first page from `from` on that is to be written.
    fn next_page(&self, from: u32) -> Option<u32> {
        let mut word = from as usize / 64;
        let mut bits = self.pages_to_write.get(word)? & !0 << (from % 64);
        while bits == 0 {
            word += 1;
            bits = *self.pages_to_write.get(word)?;
        }
        Some(word as u32 * 64 + bits.trailing_zeros())
    }
}

/// The journal's way to the flash: through the last slots of the write buffer.
struct JournalFlashAdapter<'a, F> {
    flash: &'a mut F,
    geometry: &'a FlashGeometry,
    first_slot: u32,
}

impl<F: FlashBackend> JournalFlash for JournalFlashAdapter<'_, F> {
    fn program(&mut self, now: Nanos, op: u32, chunk: u32, sector: u32, bytes: &[u8]) {
        let FlashGeometry { ws_opt: unit, sector_bytes, .. } = *self.geometry;
        let first_slot = self.first_slot + op * unit;
        let mut sectors = bytes.chunks(sector_bytes as usize);
        for slot in first_slot..first_slot + unit {
            self.flash.write_slot(slot, sectors.next().unwrap_or_default());
        }
        let entries = &[BufferEntry::PADDING; 64][..unit as usize];
        let unit = WriteUnit { chunk, sector, first_slot, sequence: 0, entries, metadata: false };
        self.flash.program(now, OpToken::new(OpKind::Journal, op), unit);
    }

    fn erase(&mut self, now: Nanos, op: u32, chunk: u32) {
        self.flash.erase(now, OpToken::new(OpKind::Journal, op), chunk);
    }
}

impl Ftl {
    /// Slots that the journal needs.
    pub(crate) fn journal_slots(shape: &FlashGeometry) -> u32 {
        OPS_MAX as u32 * shape.ws_opt
    }

    /// The journal, for its counters.
    pub fn journal(&self) -> &Journal {
        &self.durability.journal
    }

    /// Asks for a checkpoint of everything that is on the media now, as fast as it goes: after a flush
    /// and this, a recovery has nothing to find but the map's pages. [`kick`](Ftl::kick) afterwards.
    pub fn checkpoint(&mut self) {
        if self.durability.device_l2p.is_some() {
            return self.request_snapshot();
        }
        self.durability.checkpoint.requested = true;
    }

    /// Whether a checkpoint that was asked for is not durable yet.
    pub fn is_checkpointing(&self) -> bool {
        self.durability.checkpoint.requested || self.durability.checkpoint.unpaced
    }

    /// Whether somebody waits for pages that are in the ring.
    pub(crate) fn has_urgent_pages(&self) -> bool {
        self.is_checkpoint_urgent()
            && matches!(self.durability.checkpoint.phase, Phase::AwaitPages(_))
    }

    /// Whether somebody waits for the checkpoint under way.
    fn is_checkpoint_urgent(&self) -> bool {
        let c = &self.durability.checkpoint;
        c.unpaced
            || c.requested
            || c.has_undurable_loss() && self.durability.barriers.has_host_requests()
    }

    /// Goes on with a checkpoint, or begins one when it is time.
    pub(crate) fn step_checkpoint(&mut self, now: Nanos, flash: &mut impl FlashBackend) -> bool {
        let mut moved = if self.durability.device_l2p.is_some() {
            self.step_seq_reservation()
        } else {
            self.advance_checkpoint()
        };
        if !self.durability.journal.is_unchanged() {
            self.durability.checkpoint.journal_wants_snapshot =
                self.durability.journal.needs_snapshot();
        }
        if self.durability.device_l2p.is_none()
            && (self.durability.checkpoint.needs_journal_space
                || self.durability.checkpoint.journal_wants_snapshot)
        {
            moved |= self.snapshot_for_journal_space();
        }
        let first_slot = self.slots() - Ftl::journal_slots(&self.env.geometry);
        let way = &mut JournalFlashAdapter { flash, geometry: &self.env.geometry, first_slot };
        self.durability.journal.kick(now, way) | moved
    }

    fn advance_checkpoint(&mut self) -> bool {
        match self.durability.checkpoint.phase {
            Phase::Idle => {
                let written = self.written_since_checkpoint();
                let c = &mut self.durability.checkpoint;
                let lost = c.loss_epoch > c.loss_epoch_at_start;
                let due = c.changed && written >= c.interval;
                if !c.requested && !lost && !due {
                    return false;
                }
                // Pages that were not looked at may lack what is in units before the base.
                if self.mapping.reconcile().is_running() {
                    return false;
                }
                // Nor would those that are yet to be brought away from chunks that are going.
                if self.mapping.page_rebuild().has_at_risk() {
                    return false;
                }
                c.unpaced = std::mem::take(&mut c.requested);
                c.loss_epoch_at_start = c.loss_epoch;
                std::mem::swap(&mut c.dirty, &mut c.pages_to_write);
                c.dirty.fill(0);
                c.page_count = c.pages_to_write.iter().map(|w| u64::from(w.count_ones())).sum();
                (c.began_seq, c.excluded_sectors, c.changed) =
                    (self.buffer.sequencer.next_seq(), 0, false);
                c.pending_base_seq = self.buffer.sequencer.low_watermark();
                c.phase = Phase::WritePages { next: 0, written: 0 };
                tracepoint::trace(|| tracepoint::Event::CheckpointBegins);
                true
            }
            // Goes on before users are admitted.
            Phase::WritePages { .. } => false,
            Phase::AwaitPages(position) if self.buffer.rings[HOST].durable_pos() >= position => {
                let Ok(at) = self
                    .durability
                    .journal
                    .snapshot(self.encode_snapshot(self.durability.checkpoint.pending_base_seq))
                else {
                    return false;
                };
                self.stats.checkpoints += 1;
                (
                    self.durability.checkpoint.needs_journal_space,
                    self.durability.checkpoint.snapshot_lsn,
                ) = (false, at);
                self.durability.checkpoint.phase = Phase::AwaitSnapshot(at);
                true
            }
            Phase::AwaitSnapshot(at) if self.durability.journal.durable() >= at => {
                self.durability.checkpoint.base_seq = self.durability.checkpoint.pending_base_seq;
                self.durability.checkpoint.phase = Phase::Idle;
                tracepoint::trace(|| tracepoint::Event::CheckpointEnds);
                self.durability.checkpoint.unpaced = false;
                self.durability.checkpoint.loss_epoch_durable =
                    self.durability.checkpoint.loss_epoch_at_start;
                self.complete_deferred();
                true
            }
            Phase::AwaitPages(_) | Phase::AwaitSnapshot(_) => false,
        }
    }

    /// Writes the pages that are due: before users are admitted, who would take every slot of the ring
    /// that becomes free as long as there are enough of them, and put the checkpoint off for ever.
    #[inline]
    pub(crate) fn write_due_pages(&mut self, flash: &mut impl FlashBackend) -> bool {
        match self.durability.checkpoint.phase {
            Phase::WritePages { next, written } => {
                self.write_checkpoint_pages(next, written, flash)
            }
            Phase::Idle | Phase::AwaitPages(_) | Phase::AwaitSnapshot(_) => false,
        }
    }

    /// Sectors that count in write units numbered since the checkpoint under way began, or the last one.
    fn written_since_checkpoint(&self) -> u64 {
        let c = &self.durability.checkpoint;
        let written =
            (self.buffer.sequencer.next_seq() - c.began_seq) * u64::from(self.env.geometry.ws_opt);
        written.saturating_sub(c.excluded_sectors)
    }

    /// Writes pages, as many as are due.
    fn write_checkpoint_pages(
        &mut self,
        from: u32,
        mut written: u64,
        flash: &mut impl FlashBackend,
    ) -> bool {
        let mut next = from;
        let c = &self.durability.checkpoint;
        // In half of the interval, so that the other half covers what goes wrong.
        let sectors = self.written_since_checkpoint();
        let fast = self.is_checkpoint_urgent();
        let due = if fast { u64::MAX } else { c.page_count * 2 * sectors / c.interval.max(1) + 1 };
        while written < due {
            let Some(page) = self.durability.checkpoint.next_page(next) else {
                // Those that a flush has written meanwhile are among what must be durable.
                self.durability.checkpoint.phase =
                    Phase::AwaitPages(self.durability.trims.pages_pos());
                return true;
            };
            let room = self.buffer.rings[HOST].free() > 0
                && (fast || self.gc.limiter().headroom(self.free_sectors()) > 0.0);
            if !room {
                break;
            }
            self.write_map_page(page, flash);
            (next, written) = (page + 1, written + 1);
        }
        self.durability.checkpoint.phase = Phase::WritePages { next, written };
        next != from
    }

    /// Puts a snapshot into the journal because the records need room: of the last checkpoint's pages
    /// and of the lines as they are.
    fn snapshot_for_journal_space(&mut self) -> bool {
        if self.durability.journal.durable() < self.durability.checkpoint.snapshot_lsn
            || self.durability.journal.failed().is_some()
        {
            return false;
        }
        let Ok(at) = self
            .durability
            .journal
            .snapshot(self.encode_snapshot(self.durability.checkpoint.base_seq))
        else {
            return false;
        };
        (self.durability.checkpoint.needs_journal_space, self.durability.checkpoint.snapshot_lsn) =
            (false, at);
        true
    }

    /// The journal had no room for a record.
    pub(crate) fn request_snapshot(&mut self) {
        self.durability.checkpoint.needs_journal_space = true;
    }

    fn encode_snapshot(&self, base: u64) -> Vec<u8> {
        let layout = &self.env.plan;
        let page = |page| match self
            .buffer
            .durable_copy_of(&self.env.geometry, self.mapping.get(layout.logical + page))
            .0
        {
            crate::space::lines::NONE => 0,
            psn => psn + 1,
        };
        // Some of a line's chunks may have been erased, and be in another one by now.
        let line_of = &self.space.lines.line_of;
        let lines = (0..).zip(&self.space.lines.lines).filter(|(_, l)| l.state != LineState::Free);
        // Full ones that are only counted take no units any more.
        let takes = |line: &Line| {
            let counted =
                self.space.lines.reconciling && line.fully_mapped && line.programs_in_flight == 0;
            line.state == LineState::Open && !counted
        };
        let lines = lines.map(|(id, line): (u32, &Line)| LineEntry {
            stream: line.stream,
            open: takes(line),
            has_footer: line.footer == Footer::Valid,
            max_seq: if takes(line) { u64::MAX } else { line.max_seq },
            chunks: line.chunks.iter().copied().filter(|c| line_of[*c as usize] == id).collect(),
        });
        Snapshot {
            usable_chunks: layout.usable_chunks,
            base_seq: base,
            pages: (0..layout.map_pages).map(page).collect(),
            lines: lines.filter(|l| !l.chunks.is_empty()).collect(),
        }
        .encode(&self.env.geometry, layout)
    }

    /// Writes a page of the map: where everything in it is on the media now.
    pub(crate) fn write_map_page(&mut self, page: u32, flash: &mut impl FlashBackend) {
        let mut bytes = self.mapping.take_page_buffer();
        bytes.clear();
        let low = self.base_seq_of_page(page);
        if flash.stores_data() {
            self.encode_map_page(page, low, &mut bytes);
        }
        self.durability.checkpoint.mark_clean(page);
        let slot = self.admit(self.env.plan.logical + page);
        flash.write_slot(slot, &bytes);
        self.mapping.return_page_buffer(bytes);
        self.durability.trims.set_pages_pos(self.buffer.rings[HOST].head_pos());
        // Pages bring on no checkpoint: else those of one would bring on the next, while garbage
        // collection changes more of them to make room.
        self.durability.checkpoint.excluded_sectors += 1;
        self.stats.metadata += 1;
    }

    /// The sector is somewhere else on the media than its map page says.
    #[inline]
    pub(crate) fn mark_map_page_dirty(&mut self, lba: u32) {
        if lba < self.env.plan.logical && self.durability.device_l2p.is_none() {
            self.durability.checkpoint.mark_dirty(self.env.geometry.map_page_of(lba));
        }
    }

    /// An operation of the journal has ended.
    pub(crate) fn journal_program_done(&mut self, op: u32, status: Status) {
        self.durability.journal.program_done(op, status);
        self.space.programs.unblock();
    }
}
