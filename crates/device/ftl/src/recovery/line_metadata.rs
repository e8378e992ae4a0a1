//! [`LineMetaScan`]: lines that are recovered from their metadata [LightNVM17 §4.2.2].
//!
//! A line whose chunks are all fully written, and as many as a line has, may have a footer: its few
//! sectors replace the out-of-band bytes of the whole line. If the footer cannot be read, or
//! belongs to another line, the out-of-band bytes are read.
//!
//! Without a snapshot, headers say which chunks form a line; if several name one chunk, it belongs
//! to the line opened last. A chunk may have been erased since and written in another line without
//! metadata. So one sector of each chunk is compared with the table.

use super::lines::{RecoveredLines, unknown_line};
use super::op::RecoveryOpPurpose;
use super::{OPS_PER_BATCH_MAX, RecoveryOp, ScanObservations};
use crate::Oob;
use crate::durability::snapshot::LineEntry;
use crate::env::Env;
use crate::ids::{ToIndex, ToU32, WriteSeq};
use crate::space::line_meta::{LineFooter, LineHeader, footer_unit_location, header_bytes};
use nvme::{ChunkId, PhysSector};

/// Maximum number of outstanding footer reads: their contents are kept until the footer is
/// complete.
const FOOTER_READS_MAX: usize = 64;

/// A line whose footer is being read or checked.
#[derive(Debug)]
struct FooterCandidate {
    line: usize,
    bytes: Vec<u8>,
    /// Reads that have not been reported.
    remaining: u32,
    valid: bool,
    /// The footer, if it is to be checked.
    footer: Option<LineFooter>,
}

impl FooterCandidate {
    /// Records the end of a read. Returns whether it was the last one.
    fn end_read(&mut self) -> bool {
        assert!(self.remaining > 0, "no read of the footer of line {} is in flight", self.line);
        self.remaining -= 1;
        self.remaining == 0
    }

    /// Returns the first write unit of each chunk that the footer to be checked names; `None` for a
    /// chunk without one.
    fn named_units(&self, env: &Env) -> Option<Vec<u32>> {
        let list = &self.footer.as_ref()?.p2l;
        let of = |member| {
            let mut sectors =
                (0..env.geometry.sectors_per_chunk).step_by(env.geometry.ws_opt.index());
            sectors.find(|s| list.oob(member, *s).is_some())
        };
        (0..env.plan.active_pus).map(of).collect()
    }
}

/// The footer of a line, in place of its out-of-band bytes.
#[derive(Debug)]
pub(super) struct FoundFooter {
    /// The index of the line.
    pub(super) line: usize,
    pub(super) footer: LineFooter,
}

/// The read of line metadata.
#[derive(Debug, Default)]
pub(super) struct LineMetaScan {
    headers: Vec<LineHeader>,
    /// The next chunk or line.
    next: usize,
    candidates: Vec<FooterCandidate>,
}

impl LineMetaScan {
    /// Adds the operations that read headers, of lines of one chunk each.
    pub(super) fn header_ops(
        &mut self,
        env: &Env,
        observations: &ScanObservations,
        lines: &RecoveredLines,
        ops: &mut Vec<RecoveryOp>,
    ) {
        let size = u64::from(env.geometry.sector_bytes.max(1));
        let count = header_bytes(env.plan.active_pus).div_ceil(size).to_u32();
        while ops.len() < OPS_PER_BATCH_MAX && env.plan.line_metadata_units > 0 {
            let Some(line) = lines.get(self.next) else { break };
            self.next += 1;
            let chunk = line.chunks[0];
            if observations.is_full(&env.geometry, chunk) {
                let phys = env.geometry.first_sector_of(chunk);
                let purpose = RecoveryOpPurpose::LineHeader { chunk };
                ops.push(RecoveryOp::read(purpose, phys, count, true));
            }
        }
    }

    /// Imports the first sectors of a chunk, which may be a header.
    pub(super) fn import_header(&mut self, env: &Env, chunk: ChunkId, bytes: Option<&[u8]>) {
        let (owner, active) = (env.plan.journal.config.owner, env.plan.active_pus);
        let first = bytes.and_then(|b| LineHeader::decode(&env.geometry, owner, active, b));
        self.headers.extend(first.filter(|f| f.members.first() == Some(&chunk)));
    }

    /// Forms lines of the chunks that headers name, the youngest line first; other chunks stay lines
    /// of one chunk. Returns the number of lines formed.
    pub(super) fn make_lines(
        &mut self,
        env: &Env,
        observations: &ScanObservations,
        lines: &mut RecoveredLines,
    ) -> usize {
        let mut headers = std::mem::take(&mut self.headers);
        headers.sort_unstable_by_key(|f| (f.identity.open_seq, f.members.first().copied()));
        let mut taken = vec![false; env.geometry.total_chunks().index()];
        let mut found = Vec::new();
        for header in headers.into_iter().rev() {
            let free = |c: &ChunkId| {
                observations.is_full(&env.geometry, *c) && !lines.is_journal_chunk(*c)
            };
            let whole = header.members.iter().all(|c| free(c) && !taken[c.index()]);
            if !whole {
                continue;
            }
            let mut twice = false;
            for chunk in &header.members {
                twice |= std::mem::replace(&mut taken[chunk.index()], true);
            }
            if twice {
                header.members.iter().for_each(|c| taken[c.index()] = false);
                continue;
            }
            found.push(unknown_line(header.identity.stream, header.members));
        }
        found.reverse();
        let count = found.len();
        lines.replace_single_chunks(found, &taken);
        count
    }

    /// Adds the operations that read the footers of lines in which a unit may have a sequence number from
    /// `base_seq` on, and those that check what was read.
    pub(super) fn footer_ops(
        &mut self,
        env: &Env,
        observations: &ScanObservations,
        lines: &mut RecoveredLines,
        base_seq: WriteSeq,
        ops: &mut Vec<RecoveryOp>,
    ) {
        self.check_ops(env, lines, ops);
        let (units, active) = (LineFooter::units(&env.plan), env.plan.active_pus);
        while ops.len() < FOOTER_READS_MAX && units > 0 {
            let at = self.next;
            let Some(line) = lines.get(at) else { break };
            self.next += 1;
            if !line.open && line.max_seq < base_seq {
                continue;
            }
            let is_whole = line.chunks.len() == active.index()
                && line.chunks.iter().all(|c| observations.is_full(&env.geometry, *c));
            if is_whole {
                self.read_footer(env, at, line, ops);
            }
            lines.set_has_footer(at, false);
        }
    }

    fn read_footer(&mut self, env: &Env, at: usize, line: &LineEntry, ops: &mut Vec<RecoveryOp>) {
        let (units, active) = (LineFooter::units(&env.plan), env.plan.active_pus);
        let candidate = self.candidates.len().to_u32();
        for unit_index in 0..units {
            let (member, sector) = footer_unit_location(&env.geometry, active, units, unit_index);
            let phys = env.geometry.first_sector_of(line.chunks[member.index()]) + sector;
            let purpose = RecoveryOpPurpose::LineFooter { candidate, unit_index };
            ops.push(RecoveryOp::read(purpose, phys, env.geometry.ws_opt, true));
        }
        let bytes = vec![0; units.index() * env.geometry.unit_bytes()];
        let candidate =
            FooterCandidate { line: at, bytes, remaining: units, valid: true, footer: None };
        self.candidates.push(candidate);
    }

    /// Imports a unit of a footer; `None` if it could not be read. After the last one, returns the
    /// line with the units that were read. With `is_checked` the footer is compared with the line
    /// first.
    ///
    /// # Panics
    /// If no such unit is being read.
    pub(super) fn import_footer_unit(
        &mut self,
        env: &Env,
        lines: &RecoveredLines,
        unit: FooterUnit<'_>,
        is_checked: bool,
    ) -> Option<FoundFooter> {
        let c = candidate(&mut self.candidates, unit.candidate);
        let unit_bytes = env.geometry.unit_bytes();
        let at = unit.unit_index.index() * unit_bytes;
        match (c.bytes.get_mut(at..at + unit_bytes), unit.data.and_then(|d| d.get(..unit_bytes))) {
            (Some(to), Some(data)) => to.copy_from_slice(data),
            _ => c.valid = false,
        }
        if !c.end_read() {
            return None;
        }
        let (line, bytes) = (c.line, std::mem::take(&mut c.bytes));
        let chunks = &lines.get(line)?.chunks;
        let owner = env.plan.journal.config.owner;
        let footer = LineFooter::decode(&env.geometry, owner, chunks, &bytes);
        let footer = footer.filter(|_| c.valid);
        if is_checked {
            c.footer = footer;
            return None;
        }
        footer.map(|footer| FoundFooter { line, footer })
    }

    /// Adds the reads that check lines whose chunks no other metadata confirms.
    fn check_ops(&mut self, env: &Env, lines: &RecoveredLines, ops: &mut Vec<RecoveryOp>) {
        self.candidates.retain(|c| c.named_units(env).is_some());
        for (candidate, c) in (0..).zip(&mut self.candidates) {
            let chunks = lines.get(c.line).map_or(&[][..], |line| &line.chunks);
            let named = c.named_units(env).into_iter().flatten().zip(chunks);
            for (member, (sector, &chunk)) in (0..).zip(named) {
                let phys = env.geometry.first_sector_of(chunk) + sector;
                let purpose = RecoveryOpPurpose::Check { candidate, member, phys };
                ops.push(RecoveryOp::read(purpose, phys, 1, false));
                c.remaining += 1;
            }
        }
    }

    /// Compares out-of-band bytes with the footer. Returns the line if all of its chunks agree.
    ///
    /// # Panics
    /// If no such line is being checked.
    pub(super) fn check_footer(
        &mut self,
        env: &Env,
        index: u32,
        member: u32,
        phys: PhysSector,
        oob: Option<Oob>,
    ) -> Option<FoundFooter> {
        let c = candidate(&mut self.candidates, index);
        let sector = env.geometry.sector_in_chunk(phys);
        let says = c.footer.as_ref().and_then(|l| l.p2l.oob(member, sector));
        c.valid &= oob.is_some() && says == oob;
        if !c.end_read() {
            return None;
        }
        let (line, footer) = (c.line, c.footer.take());
        footer.filter(|_| c.valid).map(|footer| FoundFooter { line, footer })
    }
}

/// A unit of a footer that has been read.
#[derive(Clone, Copy, Debug)]
pub(super) struct FooterUnit<'a> {
    pub(super) candidate: u32,
    pub(super) unit_index: u32,
    /// The contents; `None` if they could not be read.
    pub(super) data: Option<&'a [u8]>,
}

fn candidate(candidates: &mut [FooterCandidate], index: u32) -> &mut FooterCandidate {
    let candidate = candidates.get_mut(index.index());
    candidate.unwrap_or_else(|| panic!("the footer of candidate {index} is not being read"))
}
