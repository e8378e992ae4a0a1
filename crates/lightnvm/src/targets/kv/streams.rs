//! [`Streams`]: the chunks that take records, each on a parallel unit of its own.
//!
//! A record is contiguous in one chunk. Units are programmed in order as they fill up; the memory of
//! a unit is kept until the unit can be read from flash, which is when its pairs are programmed
//! (LightNVM paper section 4.2.1), and reads before that are answered from there. A chunk whose
//! program failed keeps the memory of what is not on flash until that has been moved.

mod programs;

use std::collections::VecDeque;

use ring::Region;

use super::chunks::{Chunks, Use};
use super::config::Layout;
use super::oob::Label;
use super::order::Order;
use super::slots::Slots;
use super::stats::KvStats;

/// Who writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    /// Users' changes.
    User,
    /// Records that cleaning moves.
    Moves,
}

/// Why a record has no place now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Short {
    /// Programs have to end first.
    Memory,
    /// No chunk is free.
    Chunk,
}

/// Where a record goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    group: Group,
    stream: usize,
    pub(crate) chunk: u32,
    pub(crate) offset: u32,
}

impl Spot {
    /// Who asked for it.
    pub(crate) fn group(&self) -> Group {
        self.group
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Filling,
    Ready,
    Sent,
    Done,
}

#[derive(Clone, Copy, Debug)]
struct Unit {
    /// None: all padding.
    slot: Option<u32>,
    order: Option<u64>,
    step: Step,
}

#[derive(Debug)]
struct Stream {
    chunk: u32,
    stamp: u64,
    /// Bytes that have their place.
    fill: u32,
    /// Where the last record starts.
    last_start: Option<u32>,
    /// Number of the first of `units`; those before it can be read from flash.
    base: u32,
    units: VecDeque<Unit>,
    /// Units programmed, and units sent, from the chunk's start.
    done: u32,
    sent: u32,
    outstanding: u32,
    failed: bool,
}

/// A chunk that was being written when power went away.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resumable {
    pub(crate) chunk: u32,
    pub(crate) fill: u32,
    pub(crate) stamp: u64,
}

/// What followed from the end of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    Nothing,
    /// The chunk is full, and all of it can be read.
    Full,
    /// The chunk failed, and no command is under way on it any more.
    Failed,
}

#[derive(Debug)]
pub(crate) struct Streams {
    all: Vec<Option<Stream>>,
    /// Chunks that failed, with what is not on flash.
    failed: Vec<Stream>,
    groups: [Vec<Option<usize>>; 2],
    turns: [usize; 2],
    slots: Slots,
    layout: Layout,
    pub(crate) resumable: VecDeque<Resumable>,
    /// Units that wait to be sent.
    ready: u32,
}

impl Streams {
    /// Units of memory that `layout` needs. While no program is under way a stream keeps the units
    /// that wait for their pair and the one that fills: the rest is enough for a batch.
    pub(crate) fn slots_needed(layout: &Layout) -> u32 {
        layout.streams * (layout.pair_units + 3) + layout.batch_bytes.div_ceil(layout.unit_bytes)
    }

    pub(crate) fn new(layout: Layout, slots: Slots) -> Streams {
        let none = |n: u32| vec![None; n as usize];
        Streams {
            all: (0..layout.streams).map(|_| None).collect(),
            failed: Vec::new(),
            groups: [none(layout.active), none(layout.cleaners)],
            turns: [0; 2],
            slots,
            layout,
            resumable: VecDeque::new(),
            ready: 0,
        }
    }

    /// A place for a record, or a batch of them, of `bytes`.
    pub(crate) fn place(
        &mut self,
        group: Group,
        bytes: u32,
        chunks: &mut Chunks,
        stamp: &mut u64,
        stats: &mut KvStats,
    ) -> Result<Spot, Short> {
        let g = group as usize;
        let count = self.groups[g].len();
        loop {
            let turn = self.turns[g];
            let mut short = Short::Chunk;
            if self.groups[g][turn].is_none() {
                match self.open(group, chunks, stamp) {
                    Ok(stream) => self.groups[g][turn] = Some(stream),
                    Err(why) => short = why,
                }
            }
            for i in 0..count {
                let Some(stream) = self.groups[g][(turn + i) % count] else { continue };
                let Some(s) = &self.all[stream] else { continue };
                if s.fill + bytes > self.layout.chunk_bytes {
                    continue;
                }
                let unit = self.layout.unit_bytes;
                let new = (s.fill + bytes).div_ceil(unit) - s.fill.div_ceil(unit);
                let spot = Spot { group, stream, chunk: s.chunk, offset: s.fill };
                if new > self.slots.free_count() && !self.make_more(group) {
                    return Err(Short::Memory);
                }
                return Ok(spot);
            }
            let Some(stream) = self.groups[g][turn] else { return Err(short) };
            self.can_open(group, chunks)?;
            self.close(stream, stats);
            self.groups[g][turn] = None;
        }
    }

    /// Makes more memory, if chunks that failed have it, and only moving out of them frees it.
    #[cold]
    fn make_more(&mut self, group: Group) -> bool {
        let running = self.all.iter().flatten().any(|s| s.outstanding > 0) || self.ready > 0;
        group == Group::Moves && !self.failed.is_empty() && !running && self.slots.make_more()
    }

    fn can_open(&self, group: Group, chunks: &Chunks) -> Result<(), Short> {
        if self.all.iter().all(Option::is_some) {
            return Err(Short::Memory);
        }
        let kept = if group == Group::User { self.layout.reserve } else { 0 };
        let free = !self.resumable.is_empty() || chunks.free_count > kept;
        if free { Ok(()) } else { Err(Short::Chunk) }
    }

    fn open(&mut self, group: Group, chunks: &mut Chunks, stamp: &mut u64) -> Result<usize, Short> {
        self.can_open(group, chunks)?;
        let stream = self.all.iter().position(Option::is_none).ok_or(Short::Memory)?;
        let Resumable { chunk, fill, stamp } = match self.resumable.pop_front() {
            Some(resumable) => resumable,
            None => {
                *stamp += 1;
                let chunk = chunks.take(Use::Open).ok_or(Short::Chunk)?;
                Resumable { chunk, fill: 0, stamp: *stamp }
            }
        };
        chunks.get_mut(chunk).stamp = stamp;
        let base = fill / self.layout.unit_bytes;
        self.all[stream] = Some(Stream {
            chunk,
            stamp,
            fill,
            last_start: None,
            base,
            units: VecDeque::new(),
            done: base,
            sent: base,
            outstanding: 0,
            failed: false,
        });
        Ok(stream)
    }

    /// Puts a record where [`place`](Streams::place) said. Returns the CRC-32C of the inline bytes,
    /// for `header` to be made with.
    pub(crate) fn put_inline(
        &mut self,
        spot: &Spot,
        at: u32,
        (from, from_at): (&Region, usize),
        bytes: u32,
        (scratch, order): (&mut [u8], &mut Order),
    ) -> u32 {
        let (mut done, mut crc) = (0, 0);
        while done < bytes {
            let offset = at + done;
            let left = self.layout.unit_bytes - offset % self.layout.unit_bytes;
            let n = (bytes - done).min(left).min(scratch.len() as u32);
            let piece = &mut scratch[..n as usize];
            from.read(from_at + done as usize, piece);
            crc = crc32c::crc32c_append(crc, piece);
            self.write(spot, offset, piece, order);
            done += n;
        }
        crc
    }

    /// Puts bytes of a record in place.
    pub(crate) fn put_bytes(&mut self, spot: &Spot, at: u32, bytes: &[u8], order: &mut Order) {
        let (mut at, mut bytes) = (at, bytes);
        while !bytes.is_empty() {
            let left = (self.layout.unit_bytes - at % self.layout.unit_bytes) as usize;
            let (now, rest) = bytes.split_at(left.min(bytes.len()));
            self.write(spot, at, now, order);
            (at, bytes) = (at + now.len() as u32, rest);
        }
    }

    /// Bytes within one unit.
    fn write(&mut self, spot: &Spot, at: u32, bytes: &[u8], order: &mut Order) {
        let (unit, within) = (at / self.layout.unit_bytes, at % self.layout.unit_bytes);
        if let Some(slot) = self.slot_for(spot.stream, unit, order) {
            let (region, to) = self.slots.place(slot, within);
            region.write(to, bytes);
        }
    }

    /// The slot of a unit, which begins to fill if it has not begun.
    fn slot_for(&mut self, stream: usize, unit: u32, order: &mut Order) -> Option<u32> {
        let sectors = self.layout.unit_bytes / self.layout.sector_bytes;
        let s = self.all[stream].as_mut()?;
        while unit >= s.base + s.units.len() as u32 {
            // `place` has made sure that there are enough.
            let slot = self.slots.take()?;
            self.slots.clear(slot);
            for sector in 0..sectors {
                self.slots.label(slot, sector, Label::Packed { first: None, stamp: s.stamp });
            }
            let unit = Unit { slot: Some(slot), order: Some(order.begin()), step: Step::Filling };
            s.units.push_back(unit);
        }
        s.units.get((unit - s.base) as usize)?.slot
    }

    /// Ends a record: what was put belongs to the chunk now. `offset` is where the record starts, and
    /// `last` says whether it is the last of a batch, or alone.
    pub(crate) fn commit(
        &mut self,
        spot: &Spot,
        (offset, bytes, last): (u32, u32, bool),
        order: &mut Order,
    ) {
        let Layout { sector_bytes, unit_bytes, .. } = self.layout;
        let sector = offset / sector_bytes;
        let slot = self.slot_for(spot.stream, offset / unit_bytes, order);
        // The zeros behind the inline bytes may be the first of a unit.
        self.slot_for(spot.stream, (offset + bytes - 1) / unit_bytes, order);
        let Some(s) = &mut self.all[spot.stream] else { return };
        let first = s.last_start.is_none_or(|start| start / sector_bytes < sector);
        if let (Some(slot), true) = (slot, first) {
            let label = Label::Packed { first: Some(offset % sector_bytes), stamp: s.stamp };
            self.slots.label(slot, sector % (unit_bytes / sector_bytes), label);
        }
        s.last_start = Some(offset);
        s.fill = offset + bytes;
        let mut filled = false;
        for i in offset / unit_bytes..s.fill / unit_bytes {
            if let Some(unit) = s.units.get_mut((i - s.base) as usize)
                && unit.step == Step::Filling
            {
                (unit.step, filled) = (Step::Ready, true);
                self.ready += 1;
            }
        }
        if filled && last {
            let g = spot.group as usize;
            self.turns[g] = (self.turns[g] + 1) % self.groups[g].len();
        }
    }

    /// Pads the unit that fills up in every stream, if its number is below `number`, so that what is
    /// in it becomes durable. Returns whether there was any.
    pub(crate) fn pad_below(&mut self, number: u64, stats: &mut KvStats) -> bool {
        let mut padded = false;
        for stream in 0..self.all.len() {
            let Some(s) = &self.all[stream] else { continue };
            let filling = s.units.back().filter(|u| u.step == Step::Filling && !s.failed);
            if filling.and_then(|u| u.order).is_some_and(|order| order < number) {
                self.pad(stream, stats);
                padded = true;
            }
        }
        padded
    }

    fn pad(&mut self, stream: usize, stats: &mut KvStats) {
        let Layout { sector_bytes, unit_bytes, .. } = self.layout;
        let Some(s) = &mut self.all[stream] else { return };
        let used = s.fill % unit_bytes;
        let Some(unit) = s.units.back_mut().filter(|u| u.step == Step::Filling && used > 0) else {
            return;
        };
        if let Some(slot) = unit.slot {
            for sector in used.div_ceil(sector_bytes)..unit_bytes / sector_bytes {
                self.slots.label(slot, sector, Label::Padding { stamp: s.stamp });
            }
        }
        unit.step = Step::Ready;
        self.ready += 1;
        s.fill += unit_bytes - used;
        stats.padded_bytes += u64::from(unit_bytes - used);
    }

    /// Pads a chunk to its end: no record fits any more.
    fn close(&mut self, stream: usize, stats: &mut KvStats) {
        self.pad(stream, stats);
        let Some(s) = &mut self.all[stream] else { return };
        while s.base + (s.units.len() as u32) < self.layout.units {
            s.units.push_back(Unit { slot: None, order: None, step: Step::Ready });
            self.ready += 1;
            stats.padded_bytes += u64::from(self.layout.unit_bytes);
        }
        s.fill = self.layout.chunk_bytes;
    }

    fn find(&self, chunk: u32) -> Option<usize> {
        self.all.iter().position(|s| s.as_ref().is_some_and(|s| s.chunk == chunk))
    }

    /// Bytes of a chunk that failed that are on flash; all, if it failed before this power-on.
    pub(crate) fn durable_bytes(&self, chunk: u32) -> u32 {
        let failed = self.failed.iter().find(|s| s.chunk == chunk);
        failed.map_or(u32::MAX, |s| s.done * self.layout.unit_bytes)
    }

    /// Where a unit of a chunk is in memory, if it is.
    pub(crate) fn in_memory(&self, chunk: u32, unit: u32) -> Option<(&Region, usize)> {
        let s = match self.find(chunk) {
            Some(stream) => self.all[stream].as_ref()?,
            None => self.failed.iter().find(|s| s.chunk == chunk)?,
        };
        let unit = s.units.get(unit.checked_sub(s.base)? as usize)?;
        Some(self.slots.place(unit.slot?, 0))
    }

    /// Whether no unit waits to be sent.
    pub(crate) fn is_idle(&self) -> bool {
        self.ready == 0
    }
}
