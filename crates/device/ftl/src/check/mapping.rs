//! Invariants of the maps, compared with the lines and the write buffer.

use std::collections::BTreeMap;

use super::{Subject, Violation, require, require_eq};
use crate::buffer::write_ring::UnitState;
use crate::ftl::{GC, HOST};
use crate::mapping::translation_page::TranslationPage;
use crate::space::lines::{LineState, NONE};
use crate::{Ftl, L2pEntry};

/// Sums over the map entries that the check has read.
struct Seen {
    /// One bit per physical sector: an entry points at it.
    sectors: Vec<u64>,
    /// By line, the sectors that entries point at.
    valid: Vec<u32>,
    mapped: u64,
}

impl Ftl {
    pub(super) fn check_mapping(&self) -> Result<(), Violation> {
        let (logical, map_pages) = (self.env.plan.logical, self.env.plan.map_pages);
        let shown = self.mapping.fetches.check(&self.mapping.l2p)?;
        require_eq!(
            Mapping,
            "the scratch frame is unmapped between calls",
            Subject::Part,
            NONE,
            shown
        );
        let mut seen = Seen {
            sectors: vec![0; (self.env.geometry.total_sectors() as usize).div_ceil(64)],
            valid: vec![0; self.space.lines.lines.len()],
            mapped: 0,
        };
        let per_page = TranslationPage::entries_per_page(&self.env.geometry);
        for page in 0..map_pages {
            if !self.mapping.l2p.is_page_resident(page) {
                continue;
            }
            let first = page * per_page;
            for lba in first..(first + per_page).min(logical) {
                self.check_sector(lba, &mut seen)?;
            }
        }
        for lba in logical..logical + map_pages {
            self.check_sector(lba, &mut seen)?;
        }
        let mapped = seen.mapped;
        let all_in_memory = self.mapping.l2p.frames.is_none();
        if all_in_memory {
            require_eq!(Mapping, "mapped sectors", Subject::Part, mapped, self.mapping.l2p.mapped);
        } else {
            require!(
                mapped <= self.mapping.l2p.mapped,
                Mapping,
                "mapped sectors",
                Subject::Part,
                format_args!("at least {mapped}"),
                self.mapping.l2p.mapped
            );
        }
        for (id, (line, &expected)) in (0..).zip(self.space.lines.lines.iter().zip(&seen.valid)) {
            let subject = Subject::Line(id);
            if all_in_memory {
                require_eq!(Space, "valid sectors", subject, expected, line.valid_sectors);
            } else {
                require!(
                    line.valid_sectors >= expected.min(line.sectors),
                    Space,
                    "valid sectors",
                    subject,
                    format_args!("at least {expected}"),
                    line.valid_sectors
                );
            }
        }
        self.check_pins()?;
        for page in self.mapping.page_rebuild.jobs() {
            require!(
                !self.mapping.l2p.is_page_resident(page),
                Mapping,
                "a page that is rebuilt is in no frame",
                Subject::Page(page),
                "no frame",
                "a frame"
            );
        }
        Ok(())
    }

    fn check_sector(&self, lba: u32, seen: &mut Seen) -> Result<(), Violation> {
        let subject = Subject::Lba(lba);
        let at = self.mapping.l2p.get(lba);
        seen.mapped += u64::from(at != L2pEntry::Unmapped);
        match at {
            L2pEntry::Unmapped | L2pEntry::Lost => {}
            L2pEntry::Buffer(slot) => {
                let slots = self.buffer.rings[HOST].capacity() + self.buffer.rings[GC].capacity();
                require!(
                    slot < slots,
                    Mapping,
                    "a buffered sector is in a slot of the write buffer",
                    subject,
                    format_args!("below {slots}"),
                    slot
                );
                require_eq!(
                    Mapping,
                    "a slot holds the sector that the map has there",
                    subject,
                    lba + 1,
                    self.entry(slot).lba_plus_1
                );
                let state = self.unit_of(slot).state;
                require!(
                    state != UnitState::Released,
                    Mapping,
                    "a buffered sector is in a unit that is not released",
                    subject,
                    "not Released",
                    format_args!("{state:?}")
                );
            }
            L2pEntry::Flash(psn) => {
                let word = &mut seen.sectors[psn as usize / 64];
                let bit = 1 << (psn % 64);
                require!(
                    *word & bit == 0,
                    Mapping,
                    "a physical sector is mapped once",
                    Subject::Sector(psn),
                    1,
                    2
                );
                *word |= bit;
                let chunk = self.env.geometry.chunk_of(psn);
                let (c, line) = (
                    &self.space.lines.chunks[chunk as usize],
                    self.space.lines.line_of[chunk as usize],
                );
                if line == NONE {
                    require!(
                        c.bad,
                        Mapping,
                        "a mapped sector is in a line or in a bad chunk",
                        subject,
                        "bad",
                        "good"
                    );
                    return Ok(());
                }
                seen.valid[line as usize] += 1;
                let l = &self.space.lines.lines[line as usize];
                require!(
                    l.state != LineState::Free && l.erasing == 0,
                    Mapping,
                    "a mapped sector is not erased",
                    subject,
                    "a line in use",
                    format_args!("{:?}, {} chunks erasing", l.state, l.erasing)
                );
                let readable = c.readable_end(&self.env.geometry);
                require!(
                    c.offline || psn % self.env.geometry.sectors_per_chunk < readable,
                    Mapping,
                    "a mapped sector is readable",
                    subject,
                    format_args!("below {readable}"),
                    psn % self.env.geometry.sectors_per_chunk
                );
                if self.mapping.p2l.is_in_memory() {
                    let found = self.mapping.p2l.get(psn);
                    require!(
                        found == Some(lba),
                        Mapping,
                        "P2L agrees with L2P",
                        Subject::Sector(psn),
                        lba,
                        found.map_or_else(|| "none".to_string(), |lba| lba.to_string())
                    );
                }
            }
        }
        Ok(())
    }

    /// Pins of frames, against the sectors of the write buffer and those who wait for pages.
    fn check_pins(&self) -> Result<(), Violation> {
        let Some(frames) = &self.mapping.l2p.frames else { return Ok(()) };
        frames.check()?;
        let mut pins: BTreeMap<u32, u32> = BTreeMap::new();
        for ring in [HOST, GC] {
            for (unit, filled) in self.buffer.rings[ring].occupied() {
                if self.buffer.rings[ring].units[unit as usize].state == UnitState::Released {
                    continue;
                }
                for entry in &self.buffer.rings[ring].entries(unit)[..filled as usize] {
                    let page = entry.lba_plus_1.checked_sub(1).and_then(|lba| frames.page_of(lba));
                    if let Some(page) = page {
                        *pins.entry(page).or_default() += 1;
                    }
                }
            }
        }
        for page in self.mapping.pager.pinned_pages() {
            *pins.entry(page).or_default() += 1;
        }
        for (page, found) in frames.resident_pins() {
            let expected = pins.remove(&page).unwrap_or(0);
            require_eq!(Mapping, "pins of a resident page", Subject::Page(page), expected, found);
        }
        if let Some((page, expected)) = pins.first_key_value() {
            require_eq!(Mapping, "a pinned page is resident", Subject::Page(*page), *expected, 0);
        }
        Ok(())
    }
}
