//! Invariants of the maps, compared with the lines and the write buffer.

use std::collections::BTreeMap;

use crate::buffer::write_ring::UnitState;
use crate::check::{Subject, Violation, require, require_eq};
use crate::ftl::RINGS;
use crate::ids::{Lba, LineId, MapPageId, ToIndex};
use crate::space::lines::LineState;
use crate::{Ftl, L2pEntry};

impl Ftl {
    pub(super) fn check_mapping(&self) -> Result<(), Violation> {
        self.mapping.check_invariants(&self.env)?;
        let mut valid = vec![0; self.space.table().len()];
        for lba in self.mapping.resident_sectors(&self.env) {
            self.check_sector(lba, &mut valid)?;
        }
        self.check_named(&mut valid)?;
        for (id, (line, &expected)) in
            self.space.table().iter().zip(&valid).map(|((id, line), n)| (id, (line, n)))
        {
            let subject = Subject::Line(id);
            if self.mapping.is_cached() {
                require!(
                    line.valid_sectors >= expected.min(line.sectors),
                    Space,
                    "valid sectors",
                    subject,
                    format_args!("at least {expected}"),
                    line.valid_sectors
                );
            } else {
                require_eq!(Space, "valid sectors", subject, expected, line.valid_sectors);
            }
        }
        self.check_pins()
    }

    fn check_sector(&self, lba: Lba, valid: &mut [u32]) -> Result<(), Violation> {
        let subject = Subject::Lba(lba);
        match self.mapping.get(lba) {
            L2pEntry::Unmapped | L2pEntry::Lost => {}
            L2pEntry::Buffer(slot) => {
                let slots = self.buffer.capacity();
                require!(
                    slot.get() < slots,
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
                    lba.get() + 1,
                    self.buffer.entry(slot).lba_plus_1
                );
                let state = self.buffer.unit_of(slot).state;
                require!(
                    state != UnitState::Released,
                    Mapping,
                    "a buffered sector is in a unit that is not released",
                    subject,
                    "not Released",
                    format_args!("{state:?}")
                );
            }
            L2pEntry::Flash(phys) => {
                let chunk = self.env.geometry.chunk_of(phys);
                let (c, line) = (self.space.chunk(chunk), self.space.line_of(chunk));
                if line == LineId::NONE {
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
                valid[line.index()] += 1;
                let l = self.space.line(line);
                require!(
                    l.state != LineState::Free && l.gate().erasing() == 0,
                    Mapping,
                    "a mapped sector is not erased",
                    subject,
                    "a line in use",
                    format_args!("{:?}, {} chunks erasing", l.state, l.gate().erasing())
                );
                let readable = c.readable_end(&self.env.geometry);
                require!(
                    c.offline || self.env.geometry.sector_in_chunk(phys) < readable,
                    Mapping,
                    "a mapped sector is readable",
                    subject,
                    format_args!("below {readable}"),
                    self.env.geometry.sector_in_chunk(phys)
                );
            }
        }
        Ok(())
    }

    /// Compares the pins of frames with the buffered sectors and the requests that wait for pages.
    fn check_pins(&self) -> Result<(), Violation> {
        let Some(frames) = self.mapping.frames() else { return Ok(()) };
        let mut pins: BTreeMap<MapPageId, u32> = BTreeMap::new();
        for ring in RINGS {
            for (unit, filled) in self.buffer.ring(ring).occupied() {
                if self.buffer.ring(ring).unit(unit).state == UnitState::Released {
                    continue;
                }
                for entry in &self.buffer.ring(ring).entries(unit)[..filled.index()] {
                    let page =
                        entry.lba_plus_1.checked_sub(1).and_then(|lba| frames.page_of(Lba(lba)));
                    if let Some(page) = page {
                        *pins.entry(page).or_default() += 1;
                    }
                }
            }
        }
        let (resident, pinned) = self.mapping.pins();
        for page in pinned {
            *pins.entry(page).or_default() += 1;
        }
        for (page, found) in resident {
            let expected = pins.remove(&page).unwrap_or(0);
            require_eq!(Mapping, "pins of a resident page", Subject::Page(page), expected, found);
        }
        if let Some((page, expected)) = pins.first_key_value() {
            require_eq!(Mapping, "a pinned page is resident", Subject::Page(*page), *expected, 0);
        }
        Ok(())
    }
}
