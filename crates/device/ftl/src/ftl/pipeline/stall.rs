//! [`Stall`]: why host requests do not complete.

use std::fmt;

use crate::ids::LineId;
use crate::ids::MapPageId;

use nvme::ChunkId;

use crate::Ftl;
use crate::ftl::{GC, RINGS, STREAM_COUNT};
use crate::space::lines::LineState;

/// A condition that keeps host requests from completing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocker {
    /// Flash operations have been started and not been reported: programs, erases and reads.
    FlashOperations {
        /// Programs of data, padding and line metadata.
        programs: u32,
        /// Erases of lines, deferred ones included.
        erases: u32,
        /// Reads for garbage collection and of translation pages.
        reads: u32,
    },
    /// The host has no free slots in the write buffer.
    BufferFull,
    /// The rate limiter admits nothing at this many free sectors.
    RateLimiter {
        /// Sectors that can be written and are not committed.
        free_sectors: u64,
    },
    /// The write or trim at the head of the queue needs this translation page.
    TranslationPage {
        /// The page.
        page: MapPageId,
        /// Frames of the map cache whose pages are pinned, of all.
        pinned_frames: u32,
    },
    /// A full unit of this ring (0 host, 1 garbage collection, 2 hot data of the host) has no location.
    NoLocation {
        /// The ring.
        ring: usize,
        /// Chunks that a line can be opened on.
        free_chunks: u32,
    },
    /// Units of the buffer cannot be released before the paired pages of this chunk are programmed.
    PairedPages {
        /// The chunk.
        chunk: ChunkId,
    },
    /// This line takes no units before the journal record of its opening is durable.
    LineRecord {
        /// The line.
        line: LineId,
    },
    /// Garbage collection has no space beyond what is committed to the host.
    GcSpace,
    /// No sequence numbers are reserved.
    SequenceNumbers,
    /// The journal takes no more records.
    JournalFailed,
    /// The first barrier waits for this position of the host's rings to be durable.
    Position {
        /// The barrier's position.
        position: u64,
        /// The position up to which everything is durable.
        durable: u64,
    },
    /// The first barrier waits for trims to be made durable.
    Trims,
    /// Deferred flushes wait for a checkpoint that records lost sectors.
    LossCheckpoint,
    /// Deferred flushes wait for redispatched units to be durable.
    Redispatch,
    /// Deferred flushes wait for changes of the owner's state to be durable.
    OwnerState,
    /// This many lines are kept because their moves are not [confirmed](Ftl::confirm_move), or changes of the
    /// owner's state before that are not durable.
    UnconfirmedMoves {
        /// The lines.
        lines: usize,
    },
    /// This drained line cannot be erased before its barrier completes.
    DrainedLine {
        /// The line.
        line: LineId,
    },
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Blocker::FlashOperations { programs, erases, reads } => {
                write!(f, "{programs} programs, {erases} erases and {reads} reads in flight")
            }
            Blocker::BufferFull => f.write_str("the write buffer is full"),
            Blocker::RateLimiter { free_sectors } => {
                write!(f, "the rate limiter admits nothing at {free_sectors} free sectors")
            }
            Blocker::TranslationPage { page, pinned_frames } => {
                write!(f, "translation {page} is not in memory, {pinned_frames} frames are pinned")
            }
            Blocker::NoLocation { ring, free_chunks } => {
                write!(f, "a unit of ring {ring} has no location, {free_chunks} chunks are free")
            }
            Blocker::PairedPages { chunk } => {
                write!(f, "the paired pages of {chunk} are not programmed")
            }
            Blocker::LineRecord { line } => {
                write!(f, "the journal record of line {line} is not durable")
            }
            Blocker::GcSpace => {
                f.write_str("garbage collection has no space that is not committed")
            }
            Blocker::SequenceNumbers => f.write_str("no sequence numbers are reserved"),
            Blocker::JournalFailed => f.write_str("the journal has failed"),
            Blocker::Position { position, durable } => {
                write!(f, "a barrier at position {position}, durable is {durable}")
            }
            Blocker::Trims => f.write_str("a barrier waits for trims to be durable"),
            Blocker::LossCheckpoint => f.write_str("lost sectors are not in a durable checkpoint"),
            Blocker::Redispatch => f.write_str("redispatched units are not durable"),
            Blocker::OwnerState => f.write_str("changes of the owner's state are not durable"),
            Blocker::UnconfirmedMoves { lines } => {
                write!(f, "{lines} lines wait for the confirmation of their moves")
            }
            Blocker::DrainedLine { line } => write!(f, "drained line {line} waits for a barrier"),
        }
    }
}

/// Host requests that have not completed, and what they wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stall {
    /// Whether writes or trims are queued.
    pub writes: bool,
    /// Whether requests wait for durability.
    pub flushes: bool,
    /// Reads in progress.
    pub reads: usize,
    /// The conditions that hold.
    pub blockers: Vec<Blocker>,
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the FTL stalls (writes queued: {}, flushes waiting: {}, reads in progress: {})",
            self.writes, self.flushes, self.reads
        )?;
        self.blockers.iter().try_for_each(|blocker| write!(f, "; {blocker}"))
    }
}

impl Ftl {
    /// Names what host requests wait for after a [`kick`](Ftl::kick); `None` if there are none. If the
    /// flash has no operation in flight at that time, no request will ever complete: test harnesses stop
    /// with this explanation then.
    pub fn explain_stall(&self) -> Option<Stall> {
        let (writes, flushes) =
            (!self.requests.writes().is_empty(), self.durability.barriers().has_host_requests());
        let reads = self.requests.reads().in_flight();
        if !writes && !flushes && reads == 0 {
            return None;
        }
        let mut blockers = Vec::new();
        self.push_operations(&mut blockers);
        self.push_admission(&mut blockers);
        let lines = self.mapping.named().map_or(0, |named| named.kept_lines());
        if lines > 0 {
            blockers.push(Blocker::UnconfirmedMoves { lines });
        }
        self.push_dispatch(&mut blockers);
        self.push_durability(&mut blockers);
        Some(Stall { writes, flushes, reads, blockers })
    }

    fn push_operations(&self, blockers: &mut Vec<Blocker>) {
        let (programs, erases) = (self.space.programs().total(), self.space.erasing());
        let reads = self.gc.reads_in_flight() + self.mapping.fetches_in_flight();
        if programs + erases + reads > 0 {
            blockers.push(Blocker::FlashOperations { programs, erases, reads });
        }
    }

    /// Adds what the first queued write or trim waits for.
    fn push_admission(&self, blockers: &mut Vec<Blocker>) {
        let Some(first) = self.requests.writes().front() else { return };
        if !self.mapping.can_modify_now(&self.env, first.next_lba()) {
            let page = self.env.pages.page_of(first.next_lba());
            let pinned_frames = self.mapping.frames().map_or(0, |f| f.pinned());
            blockers.push(Blocker::TranslationPage { page, pinned_frames });
        }
        if first.is_trim() {
            return;
        }
        let ring = self.route(&first, self.env.config.atomic_writes).ring;
        let (slots, free_sectors) = (self.buffer.ring(ring).free(), self.free_sectors());
        if slots == 0 {
            blockers.push(Blocker::BufferFull);
        } else if self.gc.limiter().admissible_sectors(
            slots,
            free_sectors,
            !self.gc.is_relocating(),
        ) == 0
        {
            blockers.push(Blocker::RateLimiter { free_sectors });
        }
    }

    /// Adds what the full units of the write buffer wait for.
    fn push_dispatch(&self, blockers: &mut Vec<Blocker>) {
        for ring in RINGS {
            if let Some(chunk) = self.buffer.ring(ring).pair_blocked_chunk() {
                blockers.push(Blocker::PairedPages { chunk });
            }
            let queued = self.buffer.redispatch().queued(ring) > 0;
            if self.buffer.ring(ring).ready().is_none() && !queued {
                continue;
            }
            if ring == GC && !self.gc_can_place_unit() {
                blockers.push(Blocker::GcSpace);
            } else if !self.can_assign_seq(ring) {
                blockers.push(Blocker::SequenceNumbers);
            } else {
                let free_chunks = self.space.free_chunks();
                blockers.push(Blocker::NoLocation { ring, free_chunks });
            }
        }
        for stream in 0..STREAM_COUNT {
            let unrecorded = |recorded| recorded > self.durability.journal().durable();
            let open = self.space.open_lines(stream).iter().find(|o| unrecorded(o.recorded_lsn));
            blockers.extend(open.map(|open| Blocker::LineRecord { line: open.line }));
        }
        if self.durability.journal().failed().is_some() {
            blockers.push(Blocker::JournalFailed);
        }
    }

    /// Adds what flushes wait for.
    fn push_durability(&self, blockers: &mut Vec<Blocker>) {
        if let Some(barrier) = self.durability.barriers().front() {
            let durable = self.buffer.durable_pos();
            if barrier.position > durable {
                blockers.push(Blocker::Position { position: barrier.position, durable });
            } else if self.durability.trims().has_dirty() || self.durability.trims().has_redirtied()
            {
                blockers.push(Blocker::Trims);
            }
        }
        if let Some(flush) = self.durability.barriers().front_deferred() {
            if !self.durability.is_owner_state_durable(flush.owner_changes) {
                blockers.push(Blocker::OwnerState);
            }
            if self.durability.checkpoint().has_undurable_loss() {
                blockers.push(Blocker::LossCheckpoint);
            }
            if self.buffer.redispatch().has_in_flight() {
                blockers.push(Blocker::Redispatch);
            }
        }
        let drained =
            |l: &crate::space::lines::Line| l.state == LineState::Draining && l.gate().is_idle();
        let lines = self.space.table().iter().filter(|(_, l)| drained(l));
        blockers.extend(lines.map(|(line, _)| Blocker::DrainedLine { line }));
    }
}
