//! [`MetadataReader`]: reads all metadata of a volume, one transfer at a time, and writes nothing.
//!
//! It reads the superblocks, the snapshot of the newer one, and the journal up to its end, and then
//! checks everything ([`check`]). It stops at the first error (`VolumeOpenError`), or, for `fsck`,
//! continues as far as data can be read.

use std::sync::Arc;

use block::{BlockDevice, Completion, Limits, Op};
use collections::Reader;
use mem::{Iova, RegisterError, SharedRegion};
use nvme::Status;
use time::Nanos;

use crate::device_io::{DeviceTransfers, SectorRun};
use crate::fsck::check::check;
use crate::metadata::tree::Tree;
use crate::on_media::journal::{Sector, decode};
use crate::on_media::layout::{BLOCK, SEGMENT_BLOCKS, SEGMENT_BYTES, device_blocks};
use crate::on_media::record::MetadataRecord;
use crate::on_media::snapshot;
use crate::on_media::superblock::{DecodedSuperblock, SUPERBLOCK_BYTES, Superblock, VERSION};
use crate::recovery::journaled_blocks::JournaledBlocks;
use crate::{FsckProblem, VolumeOpenError};

/// Loaded metadata.
#[derive(Debug)]
pub(crate) struct LoadedMetadata {
    pub(crate) superblock: Superblock,
    pub(crate) tree: Tree,
    /// Journaled data.
    pub(crate) journaled: JournaledBlocks,
    pub(crate) problems: Vec<FsckProblem>,
    /// Transactions read from the journal, and their sectors.
    pub(crate) transactions: u64,
    pub(crate) sectors: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadStep {
    FirstSuperblock,
    SecondSuperblock,
    SnapshotSegment(u32),
    Journal,
    Check,
}

/// Reads sectors into memory, one transfer at a time.
#[derive(Debug)]
struct SectorReader {
    region: Arc<SharedRegion>,
    iova: Iova,
    transfers: DeviceTransfers<()>,
    is_reading: bool,
    /// Sectors of the last transfer.
    sectors: u64,
    bytes: Vec<u8>,
}

impl SectorReader {
    fn new<D: BlockDevice>(device: &D) -> Result<SectorReader, RegisterError> {
        let (region, iova) = device.memory().allocate_registered(SEGMENT_BYTES)?;
        Ok(SectorReader {
            region,
            iova,
            transfers: DeviceTransfers::new(device.limits()),
            is_reading: false,
            sectors: 0,
            bytes: vec![0; SEGMENT_BYTES],
        })
    }

    fn begin(&mut self, run: SectorRun) {
        assert!(!self.is_reading, "metadata reader: {run:?} is read during another read");
        self.transfers.submit_sectors((), Op::Read, run, self.iova, false);
        self.is_reading = true;
        self.sectors = run.sectors;
    }

    /// Handles a completion; returns the status of the transfer that completes with it.
    fn on_completion(&mut self, completion: &Completion) -> Option<Status> {
        let ((), status) = self.transfers.on_completion(completion)?;
        self.is_reading = false;
        self.region.read(0, &mut self.bytes);
        Some(status)
    }
}

/// Progress in the journal.
#[derive(Debug, Default)]
struct JournalScan {
    /// The next sector of the journal, and the number of sectors per read.
    next_seq: u64,
    chunk_sectors: u64,
    /// Payloads of the incomplete transaction, and its number.
    records: Vec<u8>,
    txn: Option<u64>,
    /// Complete transactions.
    transactions: u64,
}

/// Metadata read so far.
#[derive(Debug)]
struct FoundMetadata {
    tree: Tree,
    journaled: JournaledBlocks,
    problems: Vec<FsckProblem>,
    /// Whether to continue after damage.
    continues_after_damage: bool,
}

impl FoundMetadata {
    fn report_problem(&mut self, problem: FsckProblem) -> Result<(), VolumeOpenError> {
        if !self.continues_after_damage {
            return Err(VolumeOpenError::Damaged { first: problem, count: 1 });
        }
        self.problems.push(problem);
        Ok(())
    }

    /// Applies records; `data` if records of journaled data are allowed.
    fn apply(&mut self, bytes: &[u8], offset: u64, data: bool) -> Result<(), VolumeOpenError> {
        let mut fields = Reader::new(bytes);
        while !fields.is_at_end() {
            let record = MetadataRecord::decode(&mut fields);
            match record.filter(|r| data || !matches!(r, MetadataRecord::Data { .. })) {
                Some(record) => {
                    self.journaled.apply(&record);
                    self.tree.apply(record);
                }
                None => return self.report_problem(FsckProblem::Record { offset }),
            }
        }
        Ok(())
    }
}

/// Reads a volume.
#[derive(Debug)]
pub(crate) struct MetadataReader {
    limits: Limits,
    reader: SectorReader,
    step: ReadStep,
    copies: [Option<DecodedSuperblock>; 2],
    superblock: Option<Superblock>,
    journal: JournalScan,
    found: FoundMetadata,
}

impl MetadataReader {
    pub(crate) fn new<D: BlockDevice>(
        device: &D,
        thorough: bool,
    ) -> Result<MetadataReader, VolumeOpenError> {
        let limits = *device.limits();
        let (sector_bytes, blocks) = (limits.sector_bytes, device_blocks(&limits));
        if !sector_bytes.is_power_of_two() || !(512..=4096).contains(&sector_bytes) || blocks < 2 {
            return Err(VolumeOpenError::NotAVolume);
        }
        Ok(MetadataReader {
            limits,
            reader: SectorReader::new(device)?,
            step: ReadStep::FirstSuperblock,
            copies: [None; 2],
            superblock: None,
            journal: JournalScan::default(),
            found: FoundMetadata {
                tree: Tree::new(),
                journaled: JournaledBlocks::default(),
                problems: Vec::new(),
                continues_after_damage: thorough,
            },
        })
    }

    /// Advances; returns the result when finished.
    pub(crate) fn poll<D: BlockDevice>(
        &mut self,
        device: &mut D,
        now: Nanos,
    ) -> Option<Result<LoadedMetadata, VolumeOpenError>> {
        device.poll(now);
        while let Some(completion) = device.reap() {
            if let Some(status) = self.reader.on_completion(&completion)
                && let Err(error) = self.on_read_complete(status)
            {
                return Some(Err(error));
            }
        }
        if self.step == ReadStep::Check {
            return Some(self.finish());
        }
        if !self.reader.is_reading {
            self.submit_read();
        }
        if self.reader.transfers.send(device, now) {
            device.poll(now);
        }
        None
    }

    /// Returns the superblock that was chosen before the snapshot and the journal are read.
    fn chosen_superblock(&self) -> Superblock {
        self.superblock.unwrap_or_else(|| {
            panic!("metadata reader: no superblock was chosen before {:?}", self.step)
        })
    }

    fn submit_read(&mut self) {
        let second = device_blocks(&self.limits) - 1;
        let block_sectors = u64::from(BLOCK as u32 / self.limits.sector_bytes);
        let run = match self.step {
            ReadStep::FirstSuperblock => SectorRun { lba: 0, sectors: 1 },
            ReadStep::SecondSuperblock => SectorRun { lba: second * block_sectors, sectors: 1 },
            ReadStep::SnapshotSegment(index) => {
                let Superblock { layout, snapshot_area, .. } = self.chosen_superblock();
                let begin = index * SEGMENT_BLOCKS;
                let count = SEGMENT_BLOCKS.min(layout.snapshot_blocks - begin);
                let first = layout.snapshot(snapshot_area) + begin;
                let (lba, sectors) =
                    (u64::from(first) * block_sectors, u64::from(count) * block_sectors);
                SectorRun { lba, sectors }
            }
            ReadStep::Journal => {
                let layout = self.chosen_superblock().layout;
                let all = layout.journal_sectors();
                let at = self.journal.next_seq % all;
                let first = u64::from(layout.journal()) * block_sectors;
                let sectors = self.journal.chunk_sectors.min(all - at);
                SectorRun { lba: first + at, sectors }
            }
            ReadStep::Check => return,
        };
        self.reader.begin(run);
    }

    fn on_read_complete(&mut self, status: Status) -> Result<(), VolumeOpenError> {
        let bytes = std::mem::take(&mut self.reader.bytes);
        let result = match self.step {
            ReadStep::FirstSuperblock | ReadStep::SecondSuperblock => {
                self.on_superblock(status, &bytes)
            }
            ReadStep::SnapshotSegment(index) => self.on_segment(index, status, &bytes),
            ReadStep::Journal => self.on_journal(status, &bytes),
            ReadStep::Check => unreachable!("metadata reader: a read completes after the last"),
        };
        self.reader.bytes = bytes;
        result
    }

    fn on_superblock(&mut self, status: Status, bytes: &[u8]) -> Result<(), VolumeOpenError> {
        let found = match bytes.first_chunk::<SUPERBLOCK_BYTES>() {
            Some(bytes) if status.is_success() => Superblock::decode(bytes),
            _ => DecodedSuperblock::Damaged,
        };
        if self.step == ReadStep::FirstSuperblock {
            self.copies[0] = Some(found);
            self.step = ReadStep::SecondSuperblock;
            return Ok(());
        }
        self.copies[1] = Some(found);
        self.choose_superblock()
    }

    fn choose_superblock(&mut self) -> Result<(), VolumeOpenError> {
        let second = (device_blocks(&self.limits) - 1) * BLOCK as u64;
        let mut best: Option<Superblock> = None;
        let (mut damaged, mut missing) = (Vec::new(), Vec::new());
        for (copy, offset) in self.copies.into_iter().flatten().zip([0, second]) {
            match copy {
                DecodedSuperblock::Newer { version, features } => {
                    return Err(VolumeOpenError::Newer { version, features, known: VERSION });
                }
                DecodedSuperblock::Superblock(block) => {
                    best = best.filter(|b| b.generation >= block.generation).or(Some(block));
                }
                DecodedSuperblock::Damaged => damaged.push(FsckProblem::Superblock { offset }),
                DecodedSuperblock::NotASuperblock => {
                    missing.push(FsckProblem::Superblock { offset })
                }
            }
        }
        let Some(block) = best else {
            return Err(match damaged.first() {
                Some(first) => VolumeOpenError::Damaged { first: first.clone(), count: 2 },
                None => VolumeOpenError::NotAVolume,
            });
        };
        let layout = block.layout;
        let device_blocks = device_blocks(&self.limits);
        if u64::from(layout.blocks) != device_blocks
            || layout.sector_bytes != self.limits.sector_bytes
        {
            return Err(VolumeOpenError::OtherDevice {
                blocks: layout.blocks.into(),
                sector_bytes: layout.sector_bytes,
                device_blocks,
                device_sector_bytes: self.limits.sector_bytes,
            });
        }
        self.found.problems.extend(damaged.into_iter().chain(missing));
        self.superblock = Some(block);
        self.journal.next_seq = block.journal_seq;
        self.journal.chunk_sectors = SEGMENT_BYTES as u64 / u64::from(layout.sector_bytes);
        self.step =
            if block.segments == 0 { ReadStep::Journal } else { ReadStep::SnapshotSegment(0) };
        Ok(())
    }

    fn on_segment(
        &mut self,
        index: u32,
        status: Status,
        bytes: &[u8],
    ) -> Result<(), VolumeOpenError> {
        let block = self.chosen_superblock();
        let first = block.layout.snapshot(block.snapshot_area) + index * SEGMENT_BLOCKS;
        let offset = u64::from(first) * BLOCK as u64;
        let last = index + 1 == block.segments;
        let past = (index + 1) * SEGMENT_BLOCKS >= block.layout.snapshot_blocks;
        let bytes = &bytes[..self.reader.sectors as usize * self.limits.sector_bytes as usize];
        match snapshot::open(bytes, block.snapshot, index).filter(|_| status.is_success()) {
            Some((records, says)) if says == last => self.found.apply(records, offset, false)?,
            _ => self.found.report_problem(FsckProblem::SnapshotSegment { index, offset })?,
        }
        self.step =
            if last || past { ReadStep::Journal } else { ReadStep::SnapshotSegment(index + 1) };
        Ok(())
    }

    fn on_journal(&mut self, status: Status, bytes: &[u8]) -> Result<(), VolumeOpenError> {
        let block = self.chosen_superblock();
        if !status.is_success() && self.reader.sectors > 1 {
            // The unreadable sector may be beyond the end: read one sector at a time.
            self.journal.chunk_sectors = 1;
            return Ok(());
        }
        let sector_bytes = self.limits.sector_bytes as usize;
        for bytes in bytes.chunks_exact(sector_bytes).take(self.reader.sectors as usize) {
            let at = self.journal.next_seq % block.layout.journal_sectors();
            let begin = u64::from(block.layout.journal()) * BLOCK as u64;
            let offset = begin + at * sector_bytes as u64;
            let sector = if status.is_success() { decode(bytes) } else { Sector::Damaged };
            let (header, payload) = match sector {
                Sector::Written(header, payload) => (header, payload),
                Sector::Zeros => return self.on_journal_end(),
                Sector::Damaged => {
                    let seq = self.journal.next_seq;
                    self.found.report_problem(FsckProblem::JournalSector { seq, offset })?;
                    return self.on_journal_end();
                }
            };
            if (header.epoch, header.seq) != (block.epoch, self.journal.next_seq)
                || header.txn != block.journal_txn + self.journal.transactions
                || header.first == self.journal.txn.is_some()
            {
                return self.on_journal_end();
            }
            self.journal.txn = Some(header.txn);
            self.journal.records.extend(payload);
            self.journal.next_seq += 1;
            if header.last {
                self.journal.txn = None;
                self.found.apply(&self.journal.records, offset, block.data_in_journal)?;
                self.journal.records.clear();
                self.journal.transactions += 1;
            }
            if self.journal.next_seq - block.journal_seq >= block.layout.journal_sectors() {
                return self.on_journal_end();
            }
        }
        Ok(())
    }

    fn on_journal_end(&mut self) -> Result<(), VolumeOpenError> {
        self.step = ReadStep::Check;
        Ok(())
    }

    fn finish(&mut self) -> Result<LoadedMetadata, VolumeOpenError> {
        let superblock = self.chosen_superblock();
        let found = &mut self.found;
        let mut tree = std::mem::replace(&mut found.tree, Tree::new());
        tree.rebuild_counts();
        let parts = std::mem::take(&mut found.journaled);
        found.problems.extend(check(&tree, &parts, &superblock.layout));
        let findings = std::mem::take(&mut found.problems);
        let damage = || findings.iter().filter(|f| f.is_damage());
        if let Some(first) = damage().next().filter(|_| !found.continues_after_damage) {
            let error = VolumeOpenError::Damaged { first: first.clone(), count: damage().count() };
            return Err(error);
        }
        let sectors = self.journal.next_seq - superblock.journal_seq;
        let transactions = self.journal.transactions;
        Ok(LoadedMetadata {
            superblock,
            tree,
            journaled: parts,
            problems: findings,
            transactions,
            sectors,
        })
    }

    /// Returns the superblock once it is known.
    pub(crate) fn known_superblock(&self) -> Option<&Superblock> {
        self.superblock.as_ref()
    }
}
