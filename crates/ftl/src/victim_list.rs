//! [`Reading`]: what was written in a victim, read back from the media when there is no reverse map in
//! memory (LightNVM paper section 4.2.4: garbage collection looks up "the reverse map" of the block it
//! reclaims; section 4.2.2 says where that is).
//!
//! The line's last metadata, if it has any that can be read; else the out-of-band bytes of all its
//! sectors. If those cannot be read either, the map says which logical sectors are in the line: then
//! what is lost is known to be lost, instead of the line being erased below its readers.

use std::ops::Range;

use clock::Nanos;

use crate::fetch::{Demand, Want};
use crate::flash::OpKind;
use crate::line_meta::{LastMeta, LineList, place_of_last};
use crate::lines::Last;
use crate::map_page::MapPage;
use crate::metadata::READS;
use crate::{Flash, Ftl, Layout, Location, Oob, OpId, ReadTarget};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// The last metadata.
    Last,
    /// Out-of-band bytes.
    Oob,
}

/// A read of one write unit under way.
#[derive(Clone, Copy, Debug)]
struct UnitRead {
    /// Which of the last metadata; the first sector otherwise.
    piece: u32,
    member: u32,
    first_psn: u32,
}

/// The list of a victim that is being read; of one at a time.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    line: u32,
    source: Source,
    /// The next write unit to read.
    next: u32,
    reads: [Option<UnitRead>; READS],
    failed: bool,
    /// Pages of the map that have been asked what they know of the line.
    asked: u32,
    bytes: Vec<u8>,
    list: Box<LineList>,
}

impl Reading {
    pub(crate) fn outstanding(&self) -> u32 {
        self.reads.iter().flatten().count() as u32
    }
}

impl Ftl {
    /// Whether it is known what was written in a victim; begins to read it if not.
    pub(crate) fn knows_victim(&mut self, now: Nanos, line: u32, flash: &mut impl Flash) -> bool {
        let l = &self.lines.lines[line as usize];
        // What is being read of it ends before it is erased, even if nothing of it is valid by then.
        let empty = l.valid == 0 && self.collector.reading_list.is_none();
        let known = l.list.is_some() || self.collector.list.is_some();
        if self.reverse.is_in_memory() || known || empty {
            return true;
        }
        if self.collector.reading_list.is_none() {
            let members = l.chunks.len() as u32;
            let source = if l.last == Last::Whole { Source::Last } else { Source::Oob };
            let bytes = self.shape.unit as usize * self.shape.sector_bytes as usize;
            let pieces = LastMeta::units(&self.layout) as usize;
            self.collector.reading_list = Some(Box::new(Reading {
                line,
                source,
                next: 0,
                reads: [None; READS],
                failed: false,
                asked: 0,
                bytes: vec![0; if source == Source::Last { pieces * bytes } else { 0 }],
                list: Box::new(LineList::new(&self.shape, members, 0)),
            }));
        }
        self.go_on_reading(now, flash);
        self.collector.list.is_some()
    }

    /// Starts as many reads as there are slots for, and ends with the list when all have ended.
    fn go_on_reading(&mut self, now: Nanos, flash: &mut impl Flash) {
        let Some(mut reading) = self.collector.reading_list.take() else { return };
        loop {
            while let Some(at) = reading.reads.iter().position(Option::is_none) {
                let Some(read) = self.next_read(&mut reading) else { break };
                reading.reads[at] = Some(read);
                let first_slot = self.metadata_read_slot(at);
                let mut addresses = [(0, 0); 64];
                let unit = self.shape.unit as usize;
                for (i, address) in (0..).zip(&mut addresses[..unit]) {
                    *address = (read.first_psn + i, first_slot + i);
                }
                let op = OpId::new(OpKind::Meta, at as u32);
                flash.read(now, op, &addresses[..unit], ReadTarget::Slots);
            }
            if reading.outstanding() > 0 {
                self.collector.reading_list = Some(reading);
                return;
            }
            if reading.source == Source::Oob {
                break;
            }
            let chunks = &self.lines.lines[reading.line as usize].chunks;
            let last = LastMeta::decode(&self.shape, self.layout.owner, chunks, &reading.bytes);
            if let (Some(last), false) = (last, reading.failed) {
                *reading.list = last.list;
                self.stats.victims_by_metadata += 1;
                self.collector.list = Some(reading.list);
                return;
            }
            self.lines.lines[reading.line as usize].last = Last::None;
            (reading.source, reading.next, reading.failed) = (Source::Oob, 0, false);
            reading.bytes = Vec::new();
        }
        if reading.failed && !self.ask_the_map(now, &mut reading, flash) {
            self.collector.reading_list = Some(reading);
            return;
        }
        self.stats.victims_by_oob += 1;
        self.collector.list = Some(reading.list);
    }

    /// The next write unit that is to be read, if there is one.
    fn next_read(&self, reading: &mut Reading) -> Option<UnitRead> {
        let chunks = &self.lines.lines[reading.line as usize].chunks;
        let members = chunks.len() as u32;
        loop {
            let piece = reading.next;
            let (member, sector) = match reading.source {
                Source::Last => {
                    let units = LastMeta::units(&self.layout);
                    if piece == units {
                        return None;
                    }
                    place_of_last(&self.shape, members, units, piece)
                }
                Source::Oob => {
                    let (member, row) = (piece % members, piece / members);
                    if row * self.shape.unit >= self.shape.sectors {
                        return None;
                    }
                    (member, row * self.shape.unit)
                }
            };
            reading.next += 1;
            let chunk = chunks[member as usize];
            // Of a line that is being written, what waits for its pair is in the write buffer still.
            let c = &self.lines.chunks[chunk as usize];
            if sector + self.shape.unit <= c.readable(&self.shape) {
                let first_psn = self.shape.first_psn(chunk) + sector;
                return Some(UnitRead { piece, member, first_psn });
            }
            // Last metadata is whole, or there is none.
            reading.failed |= reading.source == Source::Last;
        }
    }

    /// A read of a victim's metadata has ended. [`kick`](Ftl::kick) afterwards.
    pub(crate) fn metadata_read_done(&mut self, at: u32, failed: u64, flash: &mut impl Flash) {
        let first_slot = self.metadata_read_slot(at as usize);
        let Some(reading) = &mut self.collector.reading_list else { return };
        let read = reading.reads.get_mut(at as usize).and_then(Option::take);
        let Some(UnitRead { piece, member, first_psn }) = read else { return };
        let (unit, size) = (self.shape.unit, self.shape.sector_bytes as usize);
        for i in 0..unit {
            let (psn, slot) = (first_psn + i, first_slot + i);
            if failed >> i & 1 != 0 {
                reading.failed = true;
                continue;
            }
            match reading.source {
                Source::Last => {
                    flash.moved(psn, slot);
                    let at = (piece * unit + i) as usize * size;
                    flash.load(slot, &mut reading.bytes[at..at + size]);
                }
                Source::Oob => {
                    let mut bytes = [0; Oob::BYTES];
                    flash.load_oob(psn, slot, &mut bytes);
                    let sector = psn % self.shape.sectors;
                    if let Some(lba) = Oob::decode(&bytes).and_then(|oob| oob.lba) {
                        reading.list.learn(member, sector, lba);
                    }
                }
            }
        }
    }

    /// Finds what points into a line of which something cannot be read. Pages of the map that are not in
    /// frames are brought there, one after the other; returns whether all have been asked.
    #[cold]
    fn ask_the_map(&mut self, now: Nanos, reading: &mut Reading, flash: &mut impl Flash) -> bool {
        let Layout { logical, meta, .. } = self.layout;
        let count = MapPage::count(&self.shape);
        while reading.asked < meta {
            let page = reading.asked;
            if !self.holds_nothing(page) {
                if self.want_page(now, page, Demand::Change, flash) != Want::Resident {
                    return false;
                }
                let first = page * count;
                self.ask(first..logical.min(first + count), reading);
            }
            reading.asked += 1;
        }
        self.ask(logical..logical + meta, reading);
        true
    }

    fn ask(&self, sectors: Range<u32>, reading: &mut Reading) {
        for lba in sectors {
            let Location::Flash(psn) = self.map.get(lba) else { continue };
            let chunk = self.shape.chunk_of(psn);
            if self.lines.line_of[chunk as usize] == reading.line {
                let member = self.lines.chunks[chunk as usize].place;
                reading.list.learn(member, psn % self.shape.sectors, lba);
            }
        }
    }
}
