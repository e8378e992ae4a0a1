//! [`Given`]: recovery when the drive keeps the map: it is taken as it is, and checked against the
//! chunks (thesis chapter 6, section 4.3: "on device bring up, the mapping table is loaded").
//!
//! Read are the journal and the out-of-band bytes of sectors that may be lost. If the journal is
//! damaged those of everything are, to find what is lost; numbers then go on far behind the largest.
//! They are, too, if the map knows of nothing: with data of the layer on the media it was wiped.

use std::collections::BTreeSet;

use super::job::JobKind;
use super::{BATCH, Found, Job, Phase, Recovery, RecoveryError};
use crate::Oob;
use crate::drive_map::{DriveMap, SKIP};
use crate::snapshot::LineEntry;

/// What the drive's own map says.
#[derive(Debug, Default)]
pub(super) struct Given {
    /// Logical sectors, and where they are.
    entries: Vec<(u32, u32)>,
    /// Sectors that may be lost, in the order in which they are looked at.
    suspects: Vec<u32>,
    /// The largest number that was seen.
    largest: u64,
    /// The map knows of nothing, not even of a trim.
    blank: bool,
    /// The journal does not tell which numbers were given away.
    untold: bool,
}

impl Given {
    /// These entries, which nobody has looked at, of a map whose newest entry has this number.
    pub(super) fn new(entries: Vec<(u32, u32)>, newest: u64) -> Given {
        Given {
            blank: entries.is_empty() && newest == 0,
            largest: newest,
            entries,
            ..Given::default()
        }
    }
}

impl Recovery {
    /// The journal has been read.
    pub(super) fn begin_with_map(&mut self, records: &[Vec<u8>]) {
        let known = |s| DriveMap::suspects(s, records, self.layout.logical);
        let suspects: Option<BTreeSet<u32>> = self.snapshot.as_ref().and_then(known);
        self.all |= suspects.is_none();
        if let Some(given) = &mut self.given {
            given.untold = self.all;
            // A map that knows of nothing is that of a target that has written nothing, or was wiped:
            // what is written tells.
            self.all |= given.blank;
            given.suspects = suspects.into_iter().flatten().collect();
        }
        self.stats.from_checkpoint = !self.all;
        self.lines = self.lines_of_chunks();
        (self.looking, self.cursor) = (self.all, (0, 0));
        self.phase = if self.all { Phase::Lasts } else { Phase::Pad };
        self.choose_what_to_read();
        if !self.all {
            // They are padded, not read.
            self.stats.lines_read = 0;
        }
        if let Err(e) = self.check_map() {
            self.error = Some(e);
        }
    }

    /// The chunks that have something in them, as lines as wide as those that will be written: to
    /// collect a narrow line costs as much padding as to collect a wide one, and gives less back.
    fn lines_of_chunks(&self) -> Vec<LineEntry> {
        let mut chunks: Vec<u32> = self.every_chunk().into_iter().flat_map(|l| l.chunks).collect();
        // Those that may go on being written become lines of their own.
        let is_open = |c: u32| matches!(self.seen.found[c as usize], Found::Open(_));
        let place = |c: u32| (is_open(c), c % self.shape.chunks, self.shape.pu_of(c));
        chunks.sort_unstable_by_key(|c| place(*c));
        let line = |chunks: &[u32]| LineEntry {
            stream: 0,
            open: true,
            last: false,
            newest: u64::MAX,
            chunks: chunks.to_vec(),
        };
        chunks.chunks(self.layout.active as usize).map(line).collect()
    }

    /// Looks at what may be lost: at what can be read without padding, and, when all chunks have been
    /// padded, at the rest.
    pub(super) fn map_jobs(&mut self, jobs: &mut Vec<Job>) {
        if self.all {
            self.oob_jobs(jobs);
        }
        let Some(given) = &mut self.given else { return };
        while jobs.len() < BATCH && !self.all {
            let Some(lba) = given.suspects.pop() else { break };
            if let Some(psn) = self.words[lba as usize].checked_sub(1)
                && !matches!(self.seen.found[self.shape.chunk_of(psn) as usize], Found::Bad)
            {
                jobs.push(Job::read(JobKind::Copies { psn, count: 1 }, psn, 1, false));
            }
        }
        if jobs.is_empty() {
            if self.all && self.refuse_foreign() || self.end_look() {
                return;
            }
            self.phase = Phase::Done;
        }
    }

    /// Takes the map's entries, each of which must name a sector of its own that has been written.
    fn check_map(&mut self) -> Result<(), RecoveryError> {
        let Some(given) = &mut self.given else { return Ok(()) };
        let mut offline = BTreeSet::new();
        let mut named = vec![0u64; (self.shape.total_sectors() as usize).div_ceil(64)];
        for (lba, psn) in std::mem::take(&mut given.entries) {
            let cannot = |what| Err(RecoveryError::Map { lba, psn, what });
            if u64::from(psn) >= self.shape.total_sectors() {
                return cannot("there is no such sector");
            }
            if lba >= self.layout.logical {
                let sectors = self.layout.logical;
                return Err(RecoveryError::OtherLayout { psn, lba, sectors });
            }
            let chunk = self.shape.chunk_of(psn);
            if self.reserved.contains(&chunk) {
                return cannot("that is the journal's");
            }
            match self.seen.found[chunk as usize] {
                Found::Foreign => return cannot("that is somebody else's"),
                // Reads of it fail, which is better than to find nothing.
                Found::Bad => {}
                found if psn - self.shape.first_psn(chunk) >= found.written() => {
                    return cannot("that was never written");
                }
                _ => {}
            }
            let (word, bit) = (&mut named[psn as usize / 64], 1 << (psn % 64));
            if *word & bit != 0 {
                return cannot("another logical sector is there, too");
            }
            *word |= bit;
            self.words[lba as usize] = psn + 1;
            if self.seen.found[chunk as usize] == Found::Bad {
                offline.insert(chunk);
            }
        }
        let line =
            |c| LineEntry { stream: 0, open: false, last: false, newest: 0, chunks: vec![c] };
        self.lines.extend(offline.into_iter().map(line));
        Ok(())
    }

    /// The out-of-band bytes of a sector that could be read.
    pub(super) fn label(&mut self, psn: u32, oob: Option<Oob>) {
        let Some(oob) = oob else {
            self.foreign = (self.foreign.0 + 1, self.foreign.1.min(psn));
            return;
        };
        self.ours = true;
        if let Some(given) = &mut self.given {
            given.largest = given.largest.max(oob.sequence);
            if let (true, Some(lba)) = (given.blank, oob.lba) {
                self.error = Some(RecoveryError::MapLost { lba, psn });
            }
        }
        if let Some(lba) = oob.lba.filter(|lba| oob.poison && *lba < self.layout.logical)
            && self.words[lba as usize] == psn + 1
        {
            self.poison.push(lba);
        }
    }

    /// The first number that is free, if the drive keeps the map.
    pub(super) fn first_number(&self) -> Option<u64> {
        let given = self.given.as_ref()?;
        let reserved = self.snapshot.as_ref().map_or(1, |s| s.base);
        let behind =
            if given.untold { given.largest.max(reserved).saturating_add(SKIP) } else { 0 };
        Some(reserved.max(behind))
    }
}
