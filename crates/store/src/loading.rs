//! [`Loader`]: reads all metadata of a volume, one transfer at a time, and writes nothing.
//!
//! Superblocks, then the snapshot that the newer one names, then the journal up to its end, and then
//! everything is checked ([`check`]). It stops at the first thing that cannot be (`OpenError`), or, for
//! `fsck`, goes on as far as there is anything to be read.

use std::sync::Arc;

use block::{Device, Limits, Op};
use clock::Nanos;
use nvme::Status;
use ring::{Iova, Region};

use crate::bytes::Fields;
use crate::check::check;
use crate::flights::Flights;
use crate::journal::{Sector, decode};
use crate::layout::{BLOCK, PIECE_BLOCKS, PIECE_BYTES, device_blocks};
use crate::parts::Parts;
use crate::record::Record;
use crate::snapshot;
use crate::superblock::{Decoded, SUPERBLOCK_BYTES, Superblock, VERSION};
use crate::tree::Tree;
use crate::{Finding, OpenError};

/// What was read.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) superblock: Superblock,
    pub(crate) tree: Tree,
    /// Data that the journal has.
    pub(crate) parts: Parts,
    pub(crate) findings: Vec<Finding>,
    /// Transactions read from the journal, and their sectors.
    pub(crate) transactions: u64,
    pub(crate) sectors: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    First,
    Second,
    Piece(u32),
    Journal,
    Check,
}

/// Reads a volume.
#[derive(Debug)]
pub(crate) struct Loader {
    region: Arc<Region>,
    at: Iova,
    limits: Limits,
    flights: Flights<()>,
    step: Step,
    reading: bool,
    /// Goes on after damage.
    thorough: bool,
    copies: [Option<Decoded>; 2],
    superblock: Option<Superblock>,
    tree: Tree,
    parts: Parts,
    findings: Vec<Finding>,
    /// The next sector of the journal, and how many are read at a time.
    seq: u64,
    chunk: u64,
    /// Of the transaction that has begun: payloads, and sectors.
    records: Vec<u8>,
    txn: Option<u64>,
    pub(crate) transactions: u64,
    sectors: u64,
    scratch: Vec<u8>,
}

impl Loader {
    pub(crate) fn new<D: Device>(device: &D, thorough: bool) -> Result<Loader, OpenError> {
        let limits = *device.limits();
        let (sector_bytes, blocks) = (limits.sector_bytes, device_blocks(&limits));
        if !sector_bytes.is_power_of_two() || !(512..=4096).contains(&sector_bytes) || blocks < 2 {
            return Err(OpenError::NotAVolume);
        }
        let (region, at) = device.memory().provide(PIECE_BYTES)?;
        Ok(Loader {
            region,
            at,
            limits,
            flights: Flights::new(&limits),
            step: Step::First,
            reading: false,
            thorough,
            copies: [None; 2],
            superblock: None,
            tree: Tree::new(),
            parts: Parts::default(),
            findings: Vec::new(),
            seq: 0,
            chunk: 0,
            records: Vec::new(),
            txn: None,
            transactions: 0,
            sectors: 0,
            scratch: vec![0; PIECE_BYTES],
        })
    }

    /// Goes on; the result when there is one.
    pub(crate) fn poll<D: Device>(
        &mut self,
        device: &mut D,
        now: Nanos,
    ) -> Option<Result<Loaded, OpenError>> {
        device.poll(now);
        while let Some(completion) = device.reap() {
            if let Some(((), status)) = self.flights.ended(&completion) {
                self.reading = false;
                if let Err(error) = self.read(status) {
                    return Some(Err(error));
                }
            }
        }
        if self.step == Step::Check {
            return self.finish();
        }
        if !self.reading {
            self.ask();
        }
        if self.flights.send(device, now) {
            device.poll(now);
        }
        None
    }

    fn ask(&mut self) {
        let second = (device_blocks(&self.limits) - 1) as u32;
        let block_sectors = u64::from(BLOCK as u32 / self.limits.sector_bytes);
        let (lba, sectors) = match (self.step, &self.superblock) {
            (Step::First, _) => (0, 1),
            (Step::Second, _) => (u64::from(second) * block_sectors, 1),
            (Step::Piece(index), Some(block)) => {
                let begin = index * PIECE_BLOCKS;
                let count = PIECE_BLOCKS.min(block.layout.snapshot_blocks - begin);
                let first = block.layout.snapshot(block.area) + begin;
                (u64::from(first) * block_sectors, u64::from(count) * block_sectors)
            }
            (Step::Journal, Some(block)) => {
                let all = block.layout.journal_sectors();
                let at = self.seq % all;
                let first = u64::from(block.layout.journal()) * block_sectors;
                (first + at, self.chunk.min(all - at))
            }
            _ => return,
        };
        self.flights.sectors((), Op::Read, (lba, sectors), self.at, false);
        self.reading = true;
        self.sectors = sectors;
    }

    fn read(&mut self, status: Status) -> Result<(), OpenError> {
        let mut bytes = std::mem::take(&mut self.scratch);
        self.region.read(0, &mut bytes);
        let result = match self.step {
            Step::First | Step::Second => self.superblock(status, &bytes),
            Step::Piece(index) => self.piece(index, status, &bytes),
            Step::Journal => self.journal(status, &bytes),
            Step::Check => Ok(()),
        };
        self.scratch = bytes;
        result
    }

    fn superblock(&mut self, status: Status, bytes: &[u8]) -> Result<(), OpenError> {
        let found = match bytes.first_chunk::<SUPERBLOCK_BYTES>() {
            Some(bytes) if status.is_success() => Superblock::decode(bytes),
            _ => Decoded::Damaged,
        };
        if self.step == Step::First {
            self.copies[0] = Some(found);
            self.step = Step::Second;
            return Ok(());
        }
        self.copies[1] = Some(found);
        self.choose()
    }

    fn choose(&mut self) -> Result<(), OpenError> {
        let second = (device_blocks(&self.limits) - 1) * BLOCK as u64;
        let mut best: Option<Superblock> = None;
        let (mut damaged, mut missing) = (Vec::new(), Vec::new());
        for (copy, offset) in self.copies.into_iter().flatten().zip([0, second]) {
            match copy {
                Decoded::Newer { version, features } => {
                    return Err(OpenError::Newer { version, features, known: VERSION });
                }
                Decoded::Superblock(block) => {
                    best = best.filter(|b| b.generation >= block.generation).or(Some(block));
                }
                Decoded::Damaged => damaged.push(Finding::Superblock { offset }),
                Decoded::Nothing => missing.push(Finding::Superblock { offset }),
            }
        }
        let Some(block) = best else {
            return Err(match damaged.first() {
                Some(first) => OpenError::Damaged { first: first.clone(), count: 2 },
                None => OpenError::NotAVolume,
            });
        };
        let layout = block.layout;
        let device_blocks = device_blocks(&self.limits);
        if u64::from(layout.blocks) != device_blocks
            || layout.sector_bytes != self.limits.sector_bytes
        {
            return Err(OpenError::OtherDevice {
                blocks: layout.blocks.into(),
                sector_bytes: layout.sector_bytes,
                device_blocks,
                device_sector_bytes: self.limits.sector_bytes,
            });
        }
        self.findings.extend(damaged.into_iter().chain(missing));
        self.superblock = Some(block);
        self.seq = block.journal_seq;
        self.chunk = PIECE_BYTES as u64 / u64::from(layout.sector_bytes);
        self.step = if block.pieces == 0 { Step::Journal } else { Step::Piece(0) };
        Ok(())
    }

    fn found(&mut self, finding: Finding) -> Result<(), OpenError> {
        if !self.thorough {
            return Err(OpenError::Damaged { first: finding, count: 1 });
        }
        self.findings.push(finding);
        Ok(())
    }

    /// Takes note of records; `data` if those of data may be among them.
    fn apply(&mut self, bytes: &[u8], offset: u64, data: bool) -> Result<(), OpenError> {
        let mut fields = Fields(bytes);
        while !fields.0.is_empty() {
            let record = Record::decode(&mut fields);
            match record.filter(|r| data || !matches!(r, Record::Data { .. })) {
                Some(record) => {
                    self.parts.apply(&record);
                    self.tree.apply(record);
                }
                None => return self.found(Finding::Record { offset }),
            }
        }
        Ok(())
    }

    fn piece(&mut self, index: u32, status: Status, bytes: &[u8]) -> Result<(), OpenError> {
        let Some(block) = self.superblock else { return Ok(()) };
        let first = block.layout.snapshot(block.area) + index * PIECE_BLOCKS;
        let offset = u64::from(first) * BLOCK as u64;
        let last = index + 1 == block.pieces;
        let past = (index + 1) * PIECE_BLOCKS >= block.layout.snapshot_blocks;
        let bytes = &bytes[..self.sectors as usize * self.limits.sector_bytes as usize];
        match snapshot::open(bytes, block.snapshot, index).filter(|_| status.is_success()) {
            Some((records, says)) if says == last => self.apply(records, offset, false)?,
            _ => self.found(Finding::SnapshotPiece { index, offset })?,
        }
        self.step = if last || past { Step::Journal } else { Step::Piece(index + 1) };
        Ok(())
    }

    fn journal(&mut self, status: Status, bytes: &[u8]) -> Result<(), OpenError> {
        let Some(block) = self.superblock else { return Ok(()) };
        if !status.is_success() && self.sectors > 1 {
            // A sector that cannot be read may be behind the end.
            self.chunk = 1;
            return Ok(());
        }
        let sector_bytes = self.limits.sector_bytes as usize;
        for bytes in bytes.chunks_exact(sector_bytes).take(self.sectors as usize) {
            let at = self.seq % block.layout.journal_sectors();
            let begin = u64::from(block.layout.journal()) * BLOCK as u64;
            let offset = begin + at * sector_bytes as u64;
            let sector = if status.is_success() { decode(bytes) } else { Sector::Damaged };
            let (header, payload) = match sector {
                Sector::Written(header, payload) => (header, payload),
                Sector::Zeros => return self.journal_ends(),
                Sector::Damaged => {
                    self.found(Finding::JournalSector { seq: self.seq, offset })?;
                    return self.journal_ends();
                }
            };
            if (header.epoch, header.seq) != (block.epoch, self.seq)
                || header.txn != block.journal_txn + self.transactions
                || header.first == self.txn.is_some()
            {
                return self.journal_ends();
            }
            self.txn = Some(header.txn);
            self.records.extend(payload);
            self.seq += 1;
            if header.last {
                self.txn = None;
                let records = std::mem::take(&mut self.records);
                self.apply(&records, offset, block.data_in_journal)?;
                self.records = records;
                self.records.clear();
                self.transactions += 1;
            }
            if self.seq - block.journal_seq >= block.layout.journal_sectors() {
                return self.journal_ends();
            }
        }
        Ok(())
    }

    fn journal_ends(&mut self) -> Result<(), OpenError> {
        self.step = Step::Check;
        Ok(())
    }

    fn finish(&mut self) -> Option<Result<Loaded, OpenError>> {
        let superblock = self.superblock?;
        let mut tree = std::mem::replace(&mut self.tree, Tree::new());
        tree.count();
        let parts = std::mem::take(&mut self.parts);
        self.findings.extend(check(&tree, &parts, &superblock.layout));
        let findings = std::mem::take(&mut self.findings);
        let damage = || findings.iter().filter(|f| f.is_damage());
        if let Some(first) = damage().next().filter(|_| !self.thorough) {
            let error = OpenError::Damaged { first: first.clone(), count: damage().count() };
            return Some(Err(error));
        }
        let sectors = self.seq - superblock.journal_seq;
        let transactions = self.transactions;
        Some(Ok(Loaded { superblock, tree, parts, findings, transactions, sectors }))
    }

    /// The superblock, as soon as it is known.
    pub(crate) fn known(&self) -> Option<&Superblock> {
        self.superblock.as_ref()
    }
}
