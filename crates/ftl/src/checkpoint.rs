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

use crate::flash::OpKind;
use crate::ftl::{STREAMS, USER};
use crate::journal::{Journal, JournalFlash, MAX_OPS, Position};
use crate::lines::{Last, Line, LineState};
use crate::snapshot::{LineEntry, Snapshot};
use crate::{Entry, Flash, Ftl, FtlConfig, Layout, OpId, Shape, WriteUnit};

/// How far a checkpoint is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// None is under way.
    Idle,
    /// Pages are being written, from this one on.
    Sweep { next: u32, written: u64 },
    /// The pages must be durable up to this position of the users' ring.
    Settle(u64),
    /// The snapshot must be durable.
    Commit(Position),
}

/// The state of checkpoints.
#[derive(Clone, Debug)]
pub(crate) struct Checkpoint {
    phase: Phase,
    /// One bit per page of the map: what it says is not where its sectors are on the media.
    dirty: Box<[u64]>,
    /// The pages that the checkpoint under way writes, and how many there were.
    sweep: Box<[u64]>,
    pages: u64,
    /// Sectors that are written between the beginnings of two checkpoints, without pages of the map; and
    /// whether those that are moved count.
    interval: u64,
    counts_moved: bool,
    /// The number of the next write unit when the checkpoint under way began, or the last one, and sectors
    /// in units since that do not count.
    began: u64,
    beside: u64,
    /// Somebody has changed something since then: what a checkpoint itself brings on, padding and moves
    /// among it, brings on no other.
    changed: bool,
    /// The base of the last snapshot that is durable, and of the checkpoint under way.
    base: u64,
    next_base: u64,
    /// Somebody waits for one that begins now or later.
    asked: bool,
    /// Somebody waits for the one under way: it is not paced.
    fast: bool,
    /// The journal has no room for records until it gets a snapshot.
    compact: bool,
    /// The journal wanted a snapshot when it last changed.
    wanted: bool,
    /// Where the last snapshot is in the journal.
    snapshot_at: Position,
    /// How often something was lost that the last checkpoint does not know of; how often when the one
    /// under way began, or the last one; and when the last durable one did.
    losses: u64,
    losses_begun: u64,
    losses_covered: u64,
}

impl Checkpoint {
    /// None; the base of the last one is `base`.
    pub(crate) fn new(layout: &Layout, config: &FtlConfig, base: u64) -> Checkpoint {
        let (pages, interval) = (layout.meta, layout.checkpoint_sectors);
        let words = vec![0; (pages as usize).div_ceil(64)];
        Checkpoint {
            phase: Phase::Idle,
            dirty: words.clone().into(),
            sweep: words.into(),
            pages: 0,
            interval,
            counts_moved: config.checkpoint_sectors > 0,
            began: base,
            beside: 0,
            changed: true,
            base,
            next_base: base,
            asked: false,
            fast: false,
            compact: false,
            wanted: false,
            snapshot_at: Position(0),
            losses: 0,
            losses_begun: 0,
            losses_covered: 0,
        }
    }

    /// A snapshot is to be taken for somebody who asked, because the journal has no room, or because
    /// something was lost.
    pub(crate) fn is_wanted(&self) -> bool {
        self.asked || self.compact || self.is_uncovered()
    }

    /// Whether the last durable checkpoint, or the one that would be begun for what was lost before,
    /// does not say where the units with numbers up to `newest` are.
    pub(crate) fn misses(&self, newest: u64) -> bool {
        newest >= self.base && self.losses == self.losses_begun
    }

    /// Something was lost that the last checkpoint does not know of: one begins.
    pub(crate) fn note_loss(&mut self) {
        self.losses += 1;
    }

    /// Whether something was lost that no durable checkpoint knows of.
    #[inline]
    pub(crate) fn is_uncovered(&self) -> bool {
        self.losses > self.losses_covered
    }

    /// Of a drive that keeps the map: a snapshot is on its way to `at`.
    pub(crate) fn reserving(&mut self, at: Position) {
        self.fast = std::mem::take(&mut self.asked);
        (self.compact, self.snapshot_at) = (false, at);
    }

    /// The same: it is durable.
    pub(crate) fn reserved(&mut self) {
        self.fast = false;
    }

    /// The same: it was refused, for ever if the journal has failed.
    pub(crate) fn give_up(&mut self, for_ever: bool) {
        self.asked &= !for_ever;
    }

    /// Users have written or trimmed, or somebody has data moved.
    #[inline]
    pub(crate) fn renew(&mut self) {
        self.changed = true;
    }

    /// A unit of so many moved sectors was numbered.
    #[inline]
    pub(crate) fn note_moved(&mut self, sectors: u32) {
        self.beside += if self.counts_moved { 0 } else { u64::from(sectors) };
    }

    /// What a page says has become untrue.
    #[inline]
    pub(crate) fn touch(&mut self, page: u32) {
        self.dirty[page as usize / 64] |= 1 << (page % 64);
    }

    /// Whether what a page says on the media, or will when what is in the write buffer is there, is
    /// untrue.
    #[inline]
    pub(crate) fn is_dirty(&self, page: u32) -> bool {
        let bits = self.dirty[page as usize / 64] | self.sweep[page as usize / 64];
        bits >> (page % 64) & 1 != 0
    }

    /// A page was made of what is true now.
    #[inline]
    fn made(&mut self, page: u32) {
        self.dirty[page as usize / 64] &= !(1 << (page % 64));
        self.sweep[page as usize / 64] &= !(1 << (page % 64));
    }

    /// The first page from `from` on that is to be written.
    fn next_page(&self, from: u32) -> Option<u32> {
        let mut word = from as usize / 64;
        let mut bits = self.sweep.get(word)? & !0 << (from % 64);
        while bits == 0 {
            word += 1;
            bits = *self.sweep.get(word)?;
        }
        Some(word as u32 * 64 + bits.trailing_zeros())
    }
}

/// The journal's way to the flash: through the last slots of the write buffer.
struct Way<'a, F> {
    flash: &'a mut F,
    shape: &'a Shape,
    first_slot: u32,
}

impl<F: Flash> JournalFlash for Way<'_, F> {
    fn program(&mut self, now: Nanos, op: u32, chunk: u32, sector: u32, bytes: &[u8]) {
        let Shape { unit, sector_bytes, .. } = *self.shape;
        let first_slot = self.first_slot + op * unit;
        let mut sectors = bytes.chunks(sector_bytes as usize);
        for slot in first_slot..first_slot + unit {
            self.flash.store(slot, sectors.next().unwrap_or_default());
        }
        let entries = &[Entry::PADDING; 64][..unit as usize];
        let unit = WriteUnit { chunk, sector, first_slot, sequence: 0, entries, metadata: false };
        self.flash.program(now, OpId::new(OpKind::Journal, op), unit);
    }

    fn erase(&mut self, now: Nanos, op: u32, chunk: u32) {
        self.flash.erase(now, OpId::new(OpKind::Journal, op), chunk);
    }
}

impl Ftl {
    /// Slots that the journal needs.
    pub(crate) fn journal_slots(shape: &Shape) -> u32 {
        MAX_OPS as u32 * shape.unit
    }

    /// The journal, for its counters.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Asks for a checkpoint of everything that is on the media now, as fast as it goes: after a flush
    /// and this, a recovery has nothing to find but the map's pages. [`kick`](Ftl::kick) afterwards.
    pub fn checkpoint(&mut self) {
        if self.drive_map.is_some() {
            return self.want_compaction();
        }
        self.checkpoint.asked = true;
    }

    /// Whether a checkpoint that was asked for is not durable yet.
    pub fn is_checkpointing(&self) -> bool {
        self.checkpoint.asked || self.checkpoint.fast
    }

    /// Whether somebody waits for pages that are in the ring.
    pub(crate) fn hurries_pages(&self) -> bool {
        self.hurries_checkpoint() && matches!(self.checkpoint.phase, Phase::Settle(_))
    }

    /// Whether somebody waits for the checkpoint under way.
    fn hurries_checkpoint(&self) -> bool {
        let c = &self.checkpoint;
        c.fast || c.asked || c.is_uncovered() && self.urgent > 0
    }

    /// Goes on with a checkpoint, or begins one when it is time.
    pub(crate) fn go_on_with_checkpoint(&mut self, now: Nanos, flash: &mut impl Flash) -> bool {
        let mut moved = if self.drive_map.is_some() {
            self.go_on_with_numbers()
        } else {
            self.advance_checkpoint()
        };
        if !self.journal.is_still() {
            self.checkpoint.wanted = self.journal.wants_snapshot();
        }
        if self.drive_map.is_none() && (self.checkpoint.compact || self.checkpoint.wanted) {
            moved |= self.compact();
        }
        let first_slot = self.slots() - Ftl::journal_slots(&self.shape);
        let way = &mut Way { flash, shape: &self.shape, first_slot };
        self.journal.kick(now, way) | moved
    }

    fn advance_checkpoint(&mut self) -> bool {
        match self.checkpoint.phase {
            Phase::Idle => {
                let written = self.written_since_checkpoint();
                let c = &mut self.checkpoint;
                let lost = c.losses > c.losses_begun;
                let due = c.changed && written >= c.interval;
                if !c.asked && !lost && !due {
                    return false;
                }
                // Pages that were not looked at may lack what is in units before the base.
                if self.counting.is_counting() {
                    return false;
                }
                // Nor would those that are yet to be brought away from chunks that are going.
                if self.salvage.doubts() {
                    return false;
                }
                c.fast = std::mem::take(&mut c.asked);
                c.losses_begun = c.losses;
                std::mem::swap(&mut c.dirty, &mut c.sweep);
                c.dirty.fill(0);
                c.pages = c.sweep.iter().map(|w| u64::from(w.count_ones())).sum();
                (c.began, c.beside, c.changed) = (self.issued.next(), 0, false);
                c.next_base = self.issued.low();
                c.phase = Phase::Sweep { next: 0, written: 0 };
                tracepoint::trace(|| tracepoint::Event::CheckpointBegins);
                true
            }
            // Goes on before users are admitted.
            Phase::Sweep { .. } => false,
            Phase::Settle(position) if self.rings[USER].durable() >= position => {
                let Ok(at) = self.journal.snapshot(self.snapshot(self.checkpoint.next_base)) else {
                    return false;
                };
                self.stats.checkpoints += 1;
                (self.checkpoint.compact, self.checkpoint.snapshot_at) = (false, at);
                self.checkpoint.phase = Phase::Commit(at);
                true
            }
            Phase::Commit(at) if self.journal.durable() >= at => {
                self.checkpoint.base = self.checkpoint.next_base;
                self.checkpoint.phase = Phase::Idle;
                tracepoint::trace(|| tracepoint::Event::CheckpointEnds);
                self.checkpoint.fast = false;
                self.checkpoint.losses_covered = self.checkpoint.losses_begun;
                self.release_held();
                true
            }
            Phase::Settle(_) | Phase::Commit(_) => false,
        }
    }

    /// Writes the pages that are due: before users are admitted, who would take every slot of the ring
    /// that becomes free as long as there are enough of them, and put the checkpoint off for ever.
    #[inline]
    pub(crate) fn sweep_due(&mut self, flash: &mut impl Flash) -> bool {
        match self.checkpoint.phase {
            Phase::Sweep { next, written } => self.sweep(next, written, flash),
            Phase::Idle | Phase::Settle(_) | Phase::Commit(_) => false,
        }
    }

    /// Sectors that count in write units numbered since the checkpoint under way began, or the last one.
    fn written_since_checkpoint(&self) -> u64 {
        let c = &self.checkpoint;
        let written = (self.issued.next() - c.began) * u64::from(self.shape.unit);
        written.saturating_sub(c.beside)
    }

    /// Writes pages, as many as are due.
    fn sweep(&mut self, from: u32, mut written: u64, flash: &mut impl Flash) -> bool {
        let mut next = from;
        let c = &self.checkpoint;
        // In half of the interval, so that the other half covers what goes wrong.
        let sectors = self.written_since_checkpoint();
        let fast = self.hurries_checkpoint();
        let due = if fast { u64::MAX } else { c.pages * 2 * sectors / c.interval.max(1) + 1 };
        while written < due {
            let Some(page) = self.checkpoint.next_page(next) else {
                // Those that a flush has written meanwhile are among what must be durable.
                self.checkpoint.phase = Phase::Settle(self.pages_at);
                return true;
            };
            let room = self.rings[USER].free() > 0
                && (fast || self.limiter.share(self.free_sectors()) > 0.0);
            if !room {
                break;
            }
            self.write_map_page(page, flash);
            (next, written) = (page + 1, written + 1);
        }
        self.checkpoint.phase = Phase::Sweep { next, written };
        next != from
    }

    /// Puts a snapshot into the journal because the records need room: of the last checkpoint's pages
    /// and of the lines as they are.
    fn compact(&mut self) -> bool {
        if self.journal.durable() < self.checkpoint.snapshot_at || self.journal.failed().is_some() {
            return false;
        }
        let Ok(at) = self.journal.snapshot(self.snapshot(self.checkpoint.base)) else {
            return false;
        };
        (self.checkpoint.compact, self.checkpoint.snapshot_at) = (false, at);
        true
    }

    /// The journal had no room for a record.
    pub(crate) fn want_compaction(&mut self) {
        self.checkpoint.compact = true;
    }

    fn snapshot(&self, base: u64) -> Vec<u8> {
        let layout = &self.layout;
        let page = |page| match self.newest_on_media(self.map.get(layout.logical + page)).0 {
            crate::lines::NONE => 0,
            psn => psn + 1,
        };
        // Some of a line's chunks may have been erased, and be in another one by now.
        let line_of = &self.lines.line_of;
        let lines = (0..).zip(&self.lines.lines).filter(|(_, l)| l.state != LineState::Free);
        // Full ones that are only counted take no units any more.
        let takes = |line: &Line| {
            let counted = self.lines.counting && line.full && line.programs == 0;
            line.state == LineState::Open && !counted
        };
        let lines = lines.map(|(id, line): (u32, &Line)| LineEntry {
            stream: line.stream,
            open: takes(line),
            last: line.last == Last::Whole,
            newest: if takes(line) { u64::MAX } else { line.newest },
            chunks: line.chunks.iter().copied().filter(|c| line_of[*c as usize] == id).collect(),
        });
        Snapshot {
            counted: layout.counted,
            base,
            pages: (0..layout.meta).map(page).collect(),
            lines: lines.filter(|l| !l.chunks.is_empty()).collect(),
        }
        .encode(&self.shape, layout)
    }

    /// Writes a page of the map: where everything in it is on the media now.
    pub(crate) fn write_map_page(&mut self, page: u32, flash: &mut impl Flash) {
        let mut bytes = std::mem::take(&mut self.paging.made);
        bytes.clear();
        let low = self.low_of_page(page);
        if flash.keeps_data() {
            self.map_page(page, low, &mut bytes);
        }
        self.checkpoint.made(page);
        let slot = self.admit(self.layout.logical + page);
        flash.store(slot, &bytes);
        self.paging.made = bytes;
        self.pages_at = self.rings[USER].position();
        // Pages bring on no checkpoint: else those of one would bring on the next, while garbage
        // collection changes more of them to make room.
        self.checkpoint.beside += 1;
        self.stats.metadata += 1;
    }

    /// The sector is somewhere else on the media than its map page says.
    #[inline]
    pub(crate) fn touch_page_of(&mut self, lba: u32) {
        if lba < self.layout.logical && self.drive_map.is_none() {
            self.checkpoint.touch(self.shape.map_page_of(lba));
        }
    }

    /// An operation of the journal has ended.
    pub(crate) fn journal_program_done(&mut self, op: u32, status: Status) {
        self.journal.program_done(op, status);
        self.blocked = [false; STREAMS];
    }
}
