//! Steps of [`Recovery`] that pass the results of one part to the others.

use nvme::PhysSector;

use super::journal::JournalStep;
use super::{LineMetaScan, NewestCopies, Phase, Recovery, RecoveryError, RecoveryOp};
use crate::durability::journal::Recovered;
use crate::durability::owner_state;
use crate::durability::snapshot::{LineOpened, Snapshot, SnapshotError};
use crate::ftl::owned_chunks;
use crate::ids::{MapPageId, WriteSeq};
use crate::mapping::translation_page::TranslationPage;
use crate::recovery::line_metadata::FoundFooter;
use crate::{CapacityPlan, NewFtlError, Oob};

impl Recovery {
    /// Adds the next reads of the journal.
    pub(super) fn journal_ops(&mut self, ops: &mut Vec<RecoveryOp>) {
        let geometry = self.env.geometry;
        let step = self.journal_reader().step(geometry, ops);
        if let Err(error) = step.and_then(|step| self.on_journal_step(step)) {
            self.error = Some(error);
        }
    }

    fn on_journal_step(&mut self, step: JournalStep) -> Result<(), RecoveryError> {
        match step {
            JournalStep::Ops => Ok(()),
            // The journal was probed without padding: unless it is refused, it is read.
            JournalStep::Probed(found) => {
                let refused = found.snapshot.map(|bytes| self.import_snapshot(&bytes));
                self.journal_reader().end_probe();
                refused.transpose().map(|_| ())
            }
            JournalStep::Complete(recovered) => self.on_journal_recovered(recovered),
        }
    }

    /// Takes the result of the journal's recovery.
    fn on_journal_recovered(&mut self, mut recovered: Recovered) -> Result<(), RecoveryError> {
        self.journal = Some(recovered.journal);
        if let Some(bytes) = &recovered.snapshot {
            self.baseline.snapshot = self.import_snapshot(bytes)?;
        }
        if let Some(snapshot) = &mut self.baseline.snapshot {
            self.baseline.owner_state = std::mem::take(&mut snapshot.owner_state);
        }
        self.apply_owner_records(&mut recovered.records);
        self.baseline.full_scan = self.baseline.snapshot.is_none() || recovered.truncated;
        if self.device_l2p.is_some() {
            return self.begin_with_device_l2p(&recovered.records);
        }
        let geometry = &self.env.geometry;
        if !self.baseline.full_scan {
            let opened = recovered.records.iter().map(|r| LineOpened::decode(r, geometry));
            match opened.collect::<Option<Vec<LineOpened>>>() {
                Some(opened) => {
                    if let Some(snapshot) = self.baseline.snapshot() {
                        self.map.named_mut().import_lines(geometry, snapshot, &opened);
                    }
                    self.lines.merge(geometry, self.baseline.snapshot(), opened);
                }
                None => self.baseline.full_scan = true,
            }
        }
        self.stats.from_checkpoint = !self.baseline.full_scan;
        if self.baseline.full_scan {
            self.start_full_scan();
        } else {
            self.phase = Phase::Pad;
            self.scan.rewind();
            self.queue_line_scans();
        }
        Ok(())
    }

    /// Removes the changes of the owner's state from the records, and applies them.
    fn apply_owner_records(&mut self, records: &mut Vec<Vec<u8>>) {
        if self.baseline.owner_state.is_empty() {
            // Records that no FTL with this configuration writes have the media scanned.
            return;
        }
        for record in records.extract_if(.., |record| owner_state::is_owner_record(record)) {
            if !owner_state::apply_record(&record, &mut self.baseline.owner_state) {
                tracing::warn!("a change of the owner's state in the journal does not fit it");
            }
        }
    }

    fn import_snapshot(&mut self, bytes: &[u8]) -> Result<Option<Snapshot>, RecoveryError> {
        let Some(counted) = Snapshot::usable_chunks(bytes) else { return Ok(None) };
        let (geometry, config) = (self.env.geometry, self.env.config);
        let owned = owned_chunks(&self.observations.chunk_reports);
        let plan = CapacityPlan::new(&geometry, &config, owned, counted);
        let plan = plan.map_err(NewFtlError::from)?;
        match Snapshot::decode(bytes, &geometry, &plan) {
            Ok(snapshot) => {
                self.env.plan = plan;
                self.map.resize(&self.env);
                Ok(Some(snapshot))
            }
            Err(SnapshotError::Malformed) => Ok(None),
            Err(SnapshotError::ConfigMismatch(changed)) => {
                Err(RecoveryError::ConfigMismatch(changed))
            }
        }
    }

    /// Takes the journal of a drive that keeps the map.
    fn begin_with_device_l2p(&mut self, records: &[Vec<u8>]) -> Result<(), RecoveryError> {
        let Some(given) = &mut self.device_l2p else { return Ok(()) };
        let (snapshot, is_damaged) = (self.baseline.snapshot.as_ref(), self.baseline.full_scan);
        self.baseline.full_scan = given.begin(&self.env, snapshot, records, is_damaged);
        let full_scan = self.baseline.full_scan;
        self.stats.from_checkpoint = !full_scan;
        let (geometry, width) = (&self.env.geometry, self.env.plan.active_pus);
        self.lines.set_wide_lines(geometry, &self.observations, width);
        self.scan.set_probe(full_scan);
        self.scan.rewind();
        self.phase = if full_scan { Phase::LineFooters } else { Phase::Pad };
        self.queue_line_scans();
        if !full_scan {
            // These lines are padded, not read.
            self.stats.lines_read = 0;
        }
        let Some(given) = &mut self.device_l2p else { return Ok(()) };
        given.import(&self.env, &self.observations, &mut self.lines, &mut self.map)
    }

    /// Starts a full scan: first the line headers.
    fn start_full_scan(&mut self) {
        self.baseline.full_scan = true;
        self.lines.set_single_chunks(&self.env.geometry, &self.observations);
        self.line_metas = LineMetaScan::default();
        self.scan.set_probe(true);
        self.phase = Phase::LineHeaders;
    }

    /// Restarts as a full scan, because the parts that were read do not suffice.
    pub(super) fn restart_full_scan(&mut self) {
        self.stats.from_checkpoint = false;
        self.map.clear();
        self.observations.forget_sectors();
        self.pages.forget_lost();
        self.scan.forget_probe();
        self.start_full_scan();
    }

    /// Queues the chunks of lines in which a unit may be numbered from the base on.
    pub(super) fn queue_line_scans(&mut self) {
        let base_seq = self.baseline.base_seq();
        self.stats.lines_read = self.lines.newer_than(base_seq).count() as u64;
        self.scan.set_queue(self.lines.chunks_newer_than(base_seq, &self.observations));
    }

    /// Imports the footer of a line, in place of its out-of-band bytes.
    pub(super) fn import_footer(&mut self, found: Option<FoundFooter>) {
        let Some(FoundFooter { line, footer }) = found else { return };
        let Some(entry) = self.lines.get(line) else { return };
        for (member, chunk) in (0..).zip(entry.chunks.clone()) {
            let first_phys = self.env.geometry.first_sector_of(chunk);
            for sector in 0..self.env.geometry.sectors_per_chunk {
                if let Some(oob) = footer.p2l.oob(member, sector) {
                    self.import_sector(first_phys + sector, Some(Some(oob)));
                }
            }
        }
        self.lines.set_has_footer(line, true);
    }

    /// Imports a sector: `None` if it cannot be read, `Some(None)` if no FTL wrote it.
    pub(super) fn import_sector(&mut self, phys: PhysSector, found: Option<Option<Oob>>) {
        let Some(oob) = found else {
            self.observations.unreadable.insert(phys);
            return;
        };
        let Some(oob) = oob else {
            self.evidence.record_foreign(phys);
            return;
        };
        self.evidence.record_own();
        if let Some(given) = &mut self.device_l2p {
            if let Err(error) = given.import_oob(&self.env, phys, oob, &mut self.map) {
                self.error.get_or_insert(error);
            }
            return;
        }
        self.observations.observed_lbas.record(&self.env.geometry, phys, oob.lba);
        match oob.lba {
            Some(lba) if lba >= self.env.plan.lba_end() => {
                let error = RecoveryError::OtherLayout {
                    phys,
                    lba,
                    sectors: self.env.plan.lba_end().get(),
                };
                self.error.get_or_insert(error);
            }
            // A copy older than the base is in a translation page, or was overwritten.
            Some(_) if oob.sequence < self.baseline.base_seq() => {}
            Some(lba) => self.map.copies_mut().add(lba, phys, oob),
            None => {}
        }
    }

    /// Imports a translation page; `None` if it cannot be read.
    pub(super) fn import_page(&mut self, id: MapPageId, bytes: Option<&[u8]>) {
        let full_scan = self.baseline.full_scan;
        let page = bytes.and_then(|b| TranslationPage::decode(&self.env.geometry, id.get(), b));
        match page {
            Some(page) => {
                let (env, seen, stats) = (&self.env, &self.observations, &mut self.stats);
                self.map.import_page(env, id, &page, seen, full_scan, stats);
            }
            // Without the page, a full scan must find its sectors.
            None if !full_scan => self.restart_full_scan(),
            None => {}
        }
    }

    /// The sequence number of the next unit.
    pub(super) fn next_seq(&self, copies: &NewestCopies) -> WriteSeq {
        if let Some(given) = &self.device_l2p {
            return given.first_free_seq(self.baseline.snapshot.as_ref().map(|s| s.base_seq));
        }
        let base_seq = self.baseline.base_seq().max(WriteSeq(1));
        copies
            .next_seq()
            .max(base_seq)
            .max(WriteSeq((self.lines.max_closed_seq().unwrap_or(WriteSeq(0)) + 1).get()))
    }
}
