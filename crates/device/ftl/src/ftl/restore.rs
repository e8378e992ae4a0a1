//! Builds an FTL from the results of a recovery.

use std::collections::BTreeSet;

use nvme::{ChunkId, PhysSector};

use crate::durability::Durability;
use crate::durability::device_l2p::DeviceL2p;
use crate::durability::journal::Journal;
use crate::ftl::HOST;
use crate::ids::{Lba, LineId, MapPageId, ToIndex, WriteSeq};
use crate::mapping::reconcile::Reconcile;
use crate::recovery::{PageLocation, RecoveredState, ScanObservations};
use crate::space::open_line::{OpenLine, WritableChunk};
use crate::space::restore::{FoundChunk, RestoredLine};
use crate::{ChunkReport, Ftl, L2pEntry, NewFtlError};

impl RecoveredState {
    /// Builds the FTL in its state before the restart, without what was not durable.
    pub(crate) fn restore(mut self, journal: Journal) -> Result<Ftl, NewFtlError> {
        let env = self.env.clone();
        tracing::info!(
            next_seq = self.next_seq.get(),
            full_scan = self.full_scan,
            lost_map_pages = self.lost_pages.len(),
            "recovered"
        );
        let device_l2p = self
            .has_device_l2p
            .then(|| DeviceL2p::new(&env.geometry, &env.plan, self.next_seq, &self.poison));
        let base_seq = self.base_seq.min(self.next_seq);
        let owner_state = std::mem::take(&mut self.owner_state);
        let durability = Durability::new(&env, journal, base_seq, device_l2p, owner_state);
        let mut ftl = Ftl::empty(env, durability, self.next_seq)?;
        self.fill_map(&mut ftl);
        if self.env.plan.map_cache.frames > 0 {
            self.defer_map_pages(&mut ftl);
        }
        self.import_names(&mut ftl);
        self.build_lines(&mut ftl);
        self.import_moves(&mut ftl);
        self.record_lost(&mut ftl);
        if self.has_device_l2p {
            ftl.durability.request_snapshot();
        } else if self.full_scan {
            // The existing journal does not hold what the recovery found.
            ftl.durability.request_snapshot();
            ftl.checkpoint();
        }
        Ok(ftl)
    }

    /// Leaves the translation pages on the media, and gives the FTL the entries that are newer than
    /// the pages.
    fn defer_map_pages(&mut self, ftl: &mut Ftl) {
        let (host_end, pages) = (self.env.plan.host_end(), self.env.pages);
        let copies = std::mem::take(&mut self.copies);
        let written = self.pages.iter().map(|found| found.page);
        let found =
            copies.iter().filter(|(lba, _)| *lba < host_end).map(|(lba, _)| pages.page_of(lba));
        let lost = self.lost_pages.iter().copied();
        let to_count: BTreeSet<MapPageId> = written.chain(found).chain(lost).collect();
        let seen = ScanObservations {
            chunk_reports: self.observations.chunk_reports.clone(),
            observed_lbas: std::mem::take(&mut self.observations.observed_lbas),
            unreadable: std::mem::take(&mut self.observations.unreadable),
        };
        // The contents of a bad chunk that is in no line are unknown if the journal did not say
        // which lines exist.
        let gone = |f: &ChunkReport| *f == ChunkReport::Bad;
        let blind = self.full_scan && seen.chunk_reports.iter().any(gone);
        let (next, unreadable) = (ftl.buffer.next_seq(), seen.unreadable.clone());
        let pages = to_count.into_iter();
        let reconcile =
            Reconcile::new(self.env.plan.map_pages, pages, copies, self.full_scan, seen);
        ftl.mapping.import_recovery(reconcile, unreadable, next, blind);
        ftl.space.set_reconciling(ftl.mapping.reconcile().is_running());
    }

    /// Returns whether a chunk is bad.
    fn is_bad(&self, chunk: ChunkId) -> bool {
        let report = self.observations.chunk_reports[chunk.index()];
        matches!(report, ChunkReport::Bad | ChunkReport::NotOwned)
    }

    fn fill_map(&self, ftl: &mut Ftl) {
        let host_end = self.env.plan.host_end();
        for (lba, word) in Lba(0).ascending().zip(&self.l2p_entries) {
            if let Some(phys) = word.checked_sub(1).map(PhysSector) {
                ftl.mapping.set(lba, L2pEntry::Flash(phys));
                ftl.mapping.record_found(phys, lba, false);
            }
        }
        for &lba in &self.poison {
            match ftl.mapping.get(lba) {
                L2pEntry::Flash(phys) => ftl.mapping.record_found(phys, lba, true),
                L2pEntry::Unmapped => {
                    ftl.mapping.set(lba, L2pEntry::Lost);
                }
                L2pEntry::Buffer(_) | L2pEntry::Lost => {}
            }
        }
        for &PageLocation { phys, page } in &self.pages {
            ftl.mapping.set(self.env.plan.page_sector(page), L2pEntry::Flash(phys));
            ftl.mapping.record_found(phys, self.env.plan.page_sector(page), false);
        }
        for &page in &self.lost_pages {
            ftl.mapping.set(self.env.plan.page_sector(page), L2pEntry::Lost);
        }
        if self.env.plan.map_cache.frames > 0 {
            return;
        }
        for (lba, copy) in self.copies.iter().filter(|(lba, _)| *lba < host_end) {
            ftl.mapping.set(lba, L2pEntry::Flash(copy.phys));
            ftl.mapping.record_found(copy.phys, lba, copy.poison);
            ftl.durability.mark_sector_dirty(&ftl.env, lba);
        }
    }

    /// Gives the FTL its lines and free chunks.
    fn build_lines(&self, ftl: &mut Ftl) {
        let shape = self.env.geometry;
        let mut valid = vec![0u32; shape.total_chunks().index()];
        // With a map cache the entries of the pages are counted later.
        let counts = self.env.plan.map_cache.frames > 0;
        let first = if counts { self.env.plan.host_end() } else { Lba(0) };
        let lbas =
            first.run(if ftl.mapping.is_named() { 0 } else { self.env.plan.lba_end() - first });
        for lba in lbas {
            if let L2pEntry::Flash(phys) = ftl.mapping.get(lba) {
                valid[shape.chunk_of(phys).index()] += 1;
            }
        }
        for sector in self.named.iter().flat_map(|named| &named.valid) {
            valid[shape.chunk_of(sector.phys).index()] += 1;
        }
        let mut known = vec![false; shape.total_chunks().index()];
        for &chunk in &self.found_lines.journal_chunks {
            known[chunk.index()] = true;
        }
        let mut open_chunks = Vec::new();
        for line in &self.found_lines.lines {
            for &chunk in &line.chunks {
                known[chunk.index()] = true;
                ftl.space.restore_bad(chunk, self.is_bad(chunk));
            }
            let found = |chunk: &ChunkId| self.observations.chunk_reports[chunk.index()];
            let mut members: Vec<WritableChunk> = Vec::new();
            for chunk in &line.chunks {
                match found(chunk) {
                    ChunkReport::Free | ChunkReport::Open(0) => ftl.space.add_chunk(*chunk, true),
                    ChunkReport::Open(next) if next < shape.sectors_per_chunk => {
                        open_chunks.push(WritableChunk { chunk: *chunk, next })
                    }
                    ChunkReport::Open(n)
                    | ChunkReport::Closed(n)
                    | ChunkReport::ProgramFailed(n) => {
                        members.push(WritableChunk { chunk: *chunk, next: n });
                    }
                    // Its data cannot be read; reads of it fail.
                    ChunkReport::Bad | ChunkReport::NotOwned
                        if counts || valid[chunk.index()] > 0 =>
                    {
                        let next = shape.sectors_per_chunk;
                        members.push(WritableChunk { chunk: *chunk, next });
                    }
                    ChunkReport::Bad | ChunkReport::NotOwned => {}
                }
            }
            if members.is_empty() {
                continue;
            }
            let id = ftl.space.restore_line(members.iter().map(|m| m.chunk));
            let mut sum = 0;
            for m in &members {
                sum += valid[m.chunk.index()];
                ftl.space.restore_chunk(m.chunk, m.next, found_chunk(found(&m.chunk)));
            }
            let max_seq = line.max_seq.min(ftl.buffer.next_seq());
            ftl.space.restore_contents(
                id,
                RestoredLine { valid_sectors: sum, stream: line.stream, max_seq },
            );
            // With a map cache, the recovery also knows the sectors of a chunk that is bad
            // now.
            let whole = |f: ChunkReport| {
                f == ChunkReport::Closed(shape.sectors_per_chunk) || counts && f == ChunkReport::Bad
            };
            let full = members.len() == self.env.plan.active_pus.index()
                && members.iter().all(|m| whole(found(&m.chunk)));
            if line.has_footer && full && self.env.plan.line_metadata_units > 0 {
                ftl.space.restore_footer(id);
            }
            ftl.close_if_done(id);
        }
        for chunk in shape.chunks().filter(|c| !known[c.index()]) {
            let report = self.observations.chunk_reports[chunk.index()];
            let valid_sectors = valid[chunk.index()];
            let written = match report {
                ChunkReport::Free | ChunkReport::Open(0) => {
                    ftl.space.add_chunk(chunk, true);
                    continue;
                }
                ChunkReport::Bad if valid_sectors > 0 => shape.sectors_per_chunk,
                ChunkReport::Bad | ChunkReport::NotOwned => {
                    ftl.space.add_chunk(chunk, false);
                    continue;
                }
                // The chunk is in no line: its erase was cut short, or it was never used.
                ChunkReport::Open(n) | ChunkReport::Closed(n) | ChunkReport::ProgramFailed(n) => n,
            };
            let id = ftl.space.restore_line([chunk]);
            ftl.space.restore_chunk(chunk, written, found_chunk(report));
            let contents = RestoredLine { valid_sectors, stream: 0, max_seq: WriteSeq(0) };
            ftl.space.restore_contents(id, contents);
            ftl.close_if_done(id);
        }
        // Chunks that were open stay open, as lines of the host stream.
        for members in open_chunks.chunks(self.env.plan.active_pus.index()) {
            let id = ftl.space.restore_line(members.iter().map(|m| m.chunk));
            let mut valid_sectors = 0;
            for m in members {
                ftl.space.restore_chunk(m.chunk, m.next, FoundChunk::Good);
                valid_sectors += valid[m.chunk.index()];
            }
            ftl.space.restore_open(id, valid_sectors, ftl.buffer.next_seq());
            let open = OpenLine::new(&shape, id, members.iter().copied());
            ftl.space.add_open_line(HOST, open, None);
        }
    }

    /// Imports the valid sectors that have names. No unit is numbered before a snapshot is durable.
    fn import_names(&mut self, ftl: &mut Ftl) {
        let (Some(state), Some(named)) = (&mut self.named, ftl.mapping.named_mut()) else { return };
        named.import(&self.env, std::mem::take(&mut state.epochs), &state.valid);
        ftl.durability.request_snapshot();
    }

    /// Imports the moves that the owner of the names may not know: their lines are kept until it confirms
    /// them.
    fn import_moves(&self, ftl: &mut Ftl) {
        for moved in self.named.iter().flat_map(|named| &named.moves) {
            let line = ftl.space.line_of(self.env.geometry.chunk_of(moved.from));
            let Some(named) = ftl.mapping.named_mut().filter(|_| line != LineId::NONE) else {
                continue;
            };
            let to = ftl.space.line_of(self.env.geometry.chunk_of(moved.to));
            named.import_move(&self.env, *moved, line, to);
            ftl.space.relocations_started(line, 1);
        }
    }

    /// Requests a checkpoint that records the lost sectors, so that they stay known.
    fn record_lost(&self, ftl: &mut Ftl) {
        for &lba in &self.lost {
            ftl.durability.mark_sector_dirty(&ftl.env, lba);
        }
        if !self.lost.is_empty() {
            ftl.durability.record_loss();
        }
    }
}

fn found_chunk(report: ChunkReport) -> FoundChunk {
    match report {
        ChunkReport::Free | ChunkReport::Open(_) | ChunkReport::Closed(_) => FoundChunk::Good,
        ChunkReport::ProgramFailed(_) => FoundChunk::ProgramFailed,
        ChunkReport::Bad | ChunkReport::NotOwned => FoundChunk::Gone,
    }
}
