//! [`Recovery`]: the map from what is on the media after power was lost.
//!
//! Every written sector's out-of-band bytes name its logical sector and the number of its write unit;
//! of all copies of a logical sector the one with the largest number is current. What is not mapped
//! any more is in the map's pages ([`crate::map_page`]), which are written like data behind the
//! users' sectors: a page takes back every copy in a unit with a smaller number than its `low`. A
//! flush writes the pages of what was trimmed only when everything that was issued before is on the
//! media, so that no copy of a sector that was trimmed before is in a unit numbered `low` or more.
//!
//! Before the scan whoever owns the flash pads chunks that were being written, so that the paired
//! pages of everything in them are programmed and can be read (LightNVM paper section 4.2.2).

use crate::issued::Issued;
use crate::lines::{LineState, NONE};
use crate::map_page::MapPage;
use crate::{Ftl, FtlConfig, Layout, Location, NewFtlError, Oob, Shape};

/// What is known of a chunk at power-on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Erased, nothing written.
    Free,
    /// Written up to this sector, and can be written further.
    Open(u32),
    /// Written up to this sector, takes no more until erased.
    Closed(u32),
    /// A program failed after this sector: its data is to be moved and the chunk retired.
    Failing(u32),
    /// Not to be used.
    Bad,
}

/// Rebuilds a layer, fed by whoever owns the flash: [`sector`](Recovery::sector) for every written
/// sector in any order, then [`map_page`](Recovery::map_page) for every sector of
/// [`map_pages`](Recovery::map_pages), then [`finish`](Recovery::finish).
#[derive(Debug)]
pub struct Recovery {
    ftl: Ftl,
    /// Number of the unit of the copy that the map points at.
    newest: Vec<u64>,
    next: u64,
    contradictions: u64,
}

impl Recovery {
    /// A recovery of a layer over `counted` chunks: all but those that were bad when the layer was
    /// first made, because the capacity must not change.
    ///
    /// # Errors
    /// As [`Ftl::new`].
    pub fn new(shape: Shape, config: FtlConfig, counted: u32) -> Result<Recovery, NewFtlError> {
        let layout = Layout::of(&shape, &config, counted)?;
        let ftl = Ftl::empty(shape, config, layout)?;
        Ok(Recovery {
            newest: vec![0; (layout.logical + layout.meta) as usize],
            next: 1,
            contradictions: 0,
            ftl,
        })
    }

    /// A written sector of a chunk that is not [`Found::Bad`]; `None` for one that cannot be read or
    /// is not from this layer.
    pub fn sector(&mut self, psn: u32, oob: Option<Oob>) {
        let Some(oob) = oob else { return };
        let total = self.ftl.layout.logical + self.ftl.layout.meta;
        let Some(lba) = oob.lba.filter(|l| *l < total) else { return };
        self.ftl.map.set_reverse(psn, Some(lba), oob.poison);
        self.next = self.next.max(oob.sequence.saturating_add(1));
        let newest = self.newest[lba as usize];
        // Within a unit the later one is newer.
        let later = oob.sequence == newest && self.ftl.map.get(lba) < Location::Flash(psn);
        if oob.sequence > newest || later {
            self.newest[lba as usize] = oob.sequence;
            self.ftl.map.set(lba, Location::Flash(psn));
        }
    }

    /// The physical sectors of the map's current pages, with their numbers.
    pub fn map_pages(&self) -> Vec<(u32, u32)> {
        let layout = &self.ftl.layout;
        (0..layout.meta)
            .filter_map(|page| match self.ftl.map.get(layout.logical + page) {
                Location::Flash(psn) => Some((psn, page)),
                _ => None,
            })
            .collect()
    }

    /// The contents of a page of the map. Contents that are not that page change nothing.
    pub fn map_page(&mut self, number: u32, bytes: &[u8]) {
        let shape = self.ftl.shape;
        let Some(page) = MapPage::decode(&shape, number, bytes) else { return };
        let first = number * MapPage::count(&shape);
        let count = MapPage::count(&shape).min(self.ftl.layout.logical.saturating_sub(first));
        for (i, lba) in (0..count).zip(first..) {
            if self.newest[lba as usize] >= page.low {
                continue;
            }
            match (page.get(i).psn, self.ftl.map.get(lba)) {
                (None, _) => {
                    self.ftl.map.set(lba, Location::Unmapped);
                }
                (Some(psn), at) => self.contradictions += u64::from(at != Location::Flash(psn)),
            }
        }
    }

    /// Sectors of which the map's pages said something else than what was found.
    pub fn contradictions(&self) -> u64 {
        self.contradictions
    }

    /// The layer as it was, less what was not durable. If too many chunks went bad, it can be read
    /// and trimmed, and writes fail with [`nvme::Status::CAPACITY_EXCEEDED`].
    pub fn finish(self, found: impl Fn(u32) -> Found) -> Ftl {
        let mut ftl = self.ftl;
        ftl.issued = Issued::from(self.next);
        let shape = ftl.shape;
        let mut valid = vec![0u32; shape.total_chunks() as usize];
        for lba in 0..ftl.layout.logical + ftl.layout.meta {
            if let Location::Flash(psn) = ftl.map.get(lba) {
                valid[shape.chunk_of(psn) as usize] += 1;
            }
        }
        let mut open = Vec::new();
        for chunk in 0..shape.total_chunks() {
            let state = found(chunk);
            match state {
                Found::Bad => ftl.lines.chunks[chunk as usize].bad = true,
                Found::Free => ftl.lines.add_free(chunk),
                Found::Open(0) => ftl.lines.add_free(chunk),
                Found::Open(next) if next < shape.sectors => open.push((chunk, next)),
                Found::Open(written) | Found::Closed(written) | Found::Failing(written) => {
                    let line = ftl.lines.adopt(&[(chunk, shape.sectors)], LineState::Open);
                    ftl.lines.chunks[chunk as usize].persisted = written;
                    let failing = matches!(state, Found::Failing(_));
                    ftl.lines.chunks[chunk as usize].bad = failing;
                    let l = &mut ftl.lines.lines[line as usize];
                    (l.valid, l.full, l.hurt) = (valid[chunk as usize], true, failing);
                    ftl.lines.close_if_done(line);
                }
            }
        }
        // Chunks that were being written go on being written, as lines of the users' stream.
        for members in open.chunks(ftl.layout.active as usize) {
            let line = ftl.lines.adopt(members, LineState::Open);
            for &(chunk, next) in members {
                ftl.lines.chunks[chunk as usize].persisted = next;
                ftl.lines.lines[line as usize].valid += valid[chunk as usize];
                debug_assert_eq!(ftl.lines.chunks[chunk as usize].first, NONE);
            }
            let open = ftl.lines.open_line(line, members);
            ftl.open[crate::ftl::USER].push_back(open);
        }
        ftl
    }
}
