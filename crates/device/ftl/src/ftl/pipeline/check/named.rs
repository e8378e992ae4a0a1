//! Invariants of sectors with names, compared with the lines and the write buffer.

use nvme::PhysSector;

use crate::Ftl;
use crate::buffer::write_ring::UnitState;
use crate::check::{Subject, Violation, require, require_eq};
use crate::ftl::HOST;
use crate::ids::{LineId, NO_SECTOR, ToIndex, ToU32, WriteSeq};
use crate::mapping::named::NamedSectors;
use crate::space::lines::LineState;

impl Ftl {
    /// Checks the valid sectors, and counts them by line in `valid`.
    pub(super) fn check_named(&self, valid: &mut [u32]) -> Result<(), Violation> {
        let Some(named) = self.mapping.named() else { return Ok(()) };
        let mut count = 0;
        for phys in named.valid_sectors() {
            count += 1;
            let line = self.check_kept(named, phys)?;
            valid[line.index()] += 1;
        }
        require_eq!(Mapping, "valid sectors with names", Subject::Part, count, named.valid_count());
        let queued = self.requests.writes().len();
        require_eq!(Requests, "queued tags", Subject::Part, queued, named.queued());
        let used = count + u64::from(queued.to_u32()) + self.undurable_named();
        require_eq!(Mapping, "sectors that the host uses", Subject::Part, used, named.used());
        self.check_moves(named)
    }

    /// Checks that a sector is in a line that is not erased, and that its chunk has an epoch. Returns the
    /// line.
    fn check_kept(&self, named: &NamedSectors, phys: PhysSector) -> Result<LineId, Violation> {
        let (subject, chunk) = (Subject::Sector(phys), self.env.geometry.chunk_of(phys));
        let line = self.space.line_of(chunk);
        require!(
            line != LineId::NONE,
            Mapping,
            "a sector with a name is in a line",
            subject,
            "a line",
            "none"
        );
        let l = self.space.line(line);
        require!(
            l.state != LineState::Free && l.gate().erasing() == 0,
            Mapping,
            "a sector with a name is not erased",
            subject,
            "a line in use",
            format_args!("{:?}, {} chunks erasing", l.state, l.gate().erasing())
        );
        let epoch = named.epoch_of(chunk);
        require!(
            WriteSeq(0) < epoch && epoch < self.buffer.next_seq(),
            Mapping,
            "a chunk of a sector with a name has an epoch",
            subject,
            format_args!("1 to {}", self.buffer.next_seq()),
            epoch
        );
        Ok(line)
    }

    /// Sectors that the host has written for the first time, and that are not on the media.
    fn undurable_named(&self) -> u64 {
        let ring = self.buffer.ring(HOST);
        let units = ring.occupied().filter(|(id, _)| ring.unit(*id).state < UnitState::Persisted);
        let entries = units.flat_map(|(id, filled)| &ring.entries(id)[..filled.index()]);
        entries.filter(|e| e.lba().is_some() && e.durable_copy == NO_SECTOR).map(|_| 1).sum()
    }

    /// Checks that sources of moves are not valid and are kept, and the lines that wait.
    fn check_moves(&self, named: &NamedSectors) -> Result<(), Violation> {
        let mut moves = vec![0; self.space.table().len()];
        for phys in named.kept() {
            let subject = Subject::Sector(phys);
            moves[self.check_kept(named, phys)?.index()] += 1;
            require!(
                !named.is_valid(phys),
                Mapping,
                "a moved sector is valid elsewhere",
                subject,
                "not valid",
                "valid"
            );
        }
        for (id, line) in self.space.table().iter() {
            let (subject, expected) = (Subject::Line(id), moves[id.index()]);
            let found = named.kept_in(id);
            require_eq!(Mapping, "moves of a line", subject, expected, found);
            let waits = line.state == LineState::Draining
                && found > 0
                && found == line.gate().relocations_in_flight()
                && !named.is_confirmed(id)
                && !named.is_drained(id);
            require_eq!(
                Gc,
                "a line that waits for confirmations is drained",
                subject,
                waits,
                named.is_waiting(id)
            );
        }
        Ok(())
    }
}
