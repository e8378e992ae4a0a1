//! Random commands, relocations, power cuts and corruptions, against an oracle: a block that changed on
//! the media is never returned with success, and every other block is.

use controller::{CorruptedPart, Fault, FaultSector, WriteBuffer};
use media::MediaConfig;
use nvme::{CopyRange, DsmRange, ProtectionInfo, Sqe, Status};
use rng::Rng;
use testkit::oracle::run_seeds;

use super::harness::{Bench, CHECKS, GENERATED, RANGES_PAGE, config, with_info};

const PAGE: usize = 4096;

/// The contents of a block after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    /// The value of its bytes.
    value: u8,
    /// Its application tag; `None` if it is not checked.
    tag: Option<u16>,
    /// The error that its read finds.
    corrupted: Option<CorruptedPart>,
}

const UNWRITTEN: Version = Version { value: 0, tag: None, corrupted: None };

/// A block: its versions since the last one that is durable, oldest first.
#[derive(Clone, Debug)]
struct Block {
    versions: Vec<Version>,
    /// Whether a power cut may have returned any of the versions.
    is_uncertain: bool,
}

struct Case {
    bench: Bench,
    rng: Rng,
    blocks: Vec<Block>,
    cuts: usize,
    /// Reads that failed because of a corruption.
    found: u32,
    seed: u64,
}

impl Case {
    fn new(seed: u64) -> Case {
        let mut rng = Rng::new(seed);
        let lba_bytes = *[512, 4096, 4096].get(rng.below(3) as usize).unwrap();
        let mut config = config(lba_bytes);
        config.write_buffer = match rng.below(3) {
            0 => WriteBuffer::None,
            1 => WriteBuffer::PowerLossProtected { bytes: 1 << 18 },
            _ => WriteBuffer::Volatile { bytes: 0 },
        };
        let MediaConfig::Nand(nand) = &mut config.media else { unreachable!() };
        if rng.chance(0.3) {
            nand.errors.program_fail = 0.002;
        }
        let bench = Bench::new(config);
        let blocks = vec![
            Block { versions: vec![UNWRITTEN], is_uncertain: false };
            bench.drive.sectors() as usize
        ];
        Case { bench, rng, blocks, cuts: 0, found: 0, seed }
    }

    /// Draws a range of blocks; half of them are in a small part of the drive.
    fn range(&mut self, max: u64) -> (u64, u32) {
        let all = self.blocks.len() as u64;
        let end = if self.rng.chance(0.5) { all } else { all / 8 };
        let count = 1 + self.rng.below(max);
        (self.rng.below(end - count), count as u32)
    }

    /// Executes a command, and records whether the power was cut. Returns its status.
    fn execute(&mut self, sqe: Sqe, blocks: u32) -> Status {
        let status = match sqe.dptr[0].get() {
            0 => self.bench.io(sqe, blocks).status,
            _ => self.bench.host.io(&mut self.bench.drive, sqe).status,
        };
        self.bench.drive.check_invariants().unwrap();
        let is_cut = |fault: &controller::FaultRecord| {
            matches!(fault.fault, Fault::PowerCut { .. }) && !fault.is_open
        };
        let cuts = self.bench.drive.faults().iter().filter(|fault| is_cut(fault)).count();
        if cuts > self.cuts {
            self.cuts = cuts;
            for block in &mut self.blocks {
                block.is_uncertain |= block.versions.len() > 1;
            }
        }
        status
    }

    /// Records that a command changed blocks, or may have if the power was cut.
    fn change(&mut self, lba: u64, versions: &[Version], run: impl FnOnce(&mut Case) -> Status) {
        let range = lba as usize..lba as usize + versions.len();
        for (block, version) in self.blocks[range.clone()].iter_mut().zip(versions) {
            block.versions.push(*version);
        }
        let cuts = self.cuts;
        match run(self) {
            // The power may be cut after the command, when the drive works on.
            Status::SUCCESS if self.cuts > cuts => {}
            Status::SUCCESS => {
                self.blocks[range].iter_mut().for_each(|block| block.is_uncertain = false);
            }
            Status::POWER_LOSS => {}
            other => panic!("seed {}: {other}", self.seed),
        }
    }

    fn write(&mut self) {
        let (lba, count) = self.range(12);
        let value = 1 + self.rng.below(250) as u8;
        let is_generated = self.rng.chance(0.6);
        let tag = self.rng.below(0xffff) as u16;
        let version = |i: u32| Version {
            value: value.wrapping_add(i as u8),
            tag: Some(tag),
            corrupted: None,
        };
        let versions: Vec<Version> = (0..count).map(version).collect();
        self.bench.fill(count, value);
        for (i, version) in versions.iter().enumerate() {
            let reference_tag = lba as u32 + i as u32;
            let info = match is_generated {
                true => ProtectionInfo::UNCHECKED,
                false => self.bench.info_of(version.value, tag, reference_tag),
            };
            self.bench.set_info(i, info);
        }
        let prinfo = if is_generated { GENERATED } else { CHECKS };
        let fua = self.rng.chance(0.1);
        let sqe = with_info(Sqe::write(1, lba, count, fua), prinfo, tag.into());
        self.change(lba, &versions, |case| case.execute(sqe, count));
    }

    fn write_zeroes(&mut self) {
        let (lba, count) = self.range(20);
        let tag = self.rng.below(0xffff) as u16;
        let version = Version { value: 0, tag: Some(tag), corrupted: None };
        let sqe = with_info(Sqe::write_zeroes(1, lba, count, false), GENERATED, tag.into());
        self.change(lba, &vec![version; count as usize], |case| case.execute(sqe, 0));
    }

    /// Deallocates whole sectors.
    fn trim(&mut self) {
        let each = (PAGE / self.bench.lba_bytes) as u64;
        let (lba, count) = self.range(24);
        let (first, end) = (lba.next_multiple_of(each), (lba + u64::from(count)) / each * each);
        if first >= end {
            return;
        }
        let count = (end - first) as u32;
        let range = DsmRange::new(first, count).to_bytes();
        self.bench.host.memory.write(RANGES_PAGE as usize * PAGE, &range);
        let mut sqe = Sqe::dataset_management(1, 1, true);
        sqe.set_sgl(self.bench.host.block(RANGES_PAGE, 16));
        self.change(first, &vec![UNWRITTEN; count as usize], |case| case.execute(sqe, 0));
    }

    /// Copies blocks after a read has found their versions; wrong sources are not copied.
    fn copy(&mut self) {
        let ((from, count), (to, _)) = (self.range(8), self.range(8));
        for lba in from..from + u64::from(count) {
            self.read(lba, 1);
        }
        let sources = from as usize..from as usize + count as usize;
        let (mut versions, mut is_wrong) = (Vec::new(), false);
        for block in &self.blocks[sources] {
            let version = *block.versions.last().unwrap();
            is_wrong |= version.corrupted.is_some();
            versions.push(Version { tag: Some(7), ..version });
        }
        let mut range = CopyRange::new(from, count);
        range.reference_tag = (from as u32).into();
        self.bench.host.memory.write(RANGES_PAGE as usize * PAGE, &range.to_bytes());
        let mut sqe = with_info(Sqe::copy(1, to, 1), (GENERATED | CHECKS) >> 14 | GENERATED, 7);
        sqe.set_sgl(self.bench.host.block(RANGES_PAGE, 32));
        if self.blocks.len() as u64 - to < u64::from(count) {
            return;
        }
        if is_wrong {
            let status = self.execute(sqe, 0);
            let is_check = [Status::GUARD_CHECK, Status::REFERENCE_TAG_CHECK].contains(&status);
            assert!(is_check || status == Status::POWER_LOSS, "seed {}: {status}", self.seed);
            return;
        }
        self.change(to, &versions, |case| case.execute(sqe, 0));
    }

    /// Makes the changes before it durable.
    fn flush(&mut self) {
        if self.execute(Sqe::flush(1), 0) == Status::SUCCESS {
            for block in self.blocks.iter_mut().filter(|block| !block.is_uncertain) {
                block.versions.drain(..block.versions.len() - 1);
            }
        }
    }

    /// Reads blocks: one by one if a block of the range is wrong or uncertain.
    fn read(&mut self, lba: u64, count: u32) {
        let range = lba as usize..lba as usize + count as usize;
        let is_plain = |block: &Block| {
            !block.is_uncertain && block.versions.last().unwrap().corrupted.is_none()
        };
        if count > 1 && !self.blocks[range.clone()].iter().all(is_plain) {
            return (lba..lba + u64::from(count)).for_each(|lba| self.read(lba, 1));
        }
        let returns_info = self.rng.chance(0.5);
        let prinfo = if returns_info { CHECKS } else { GENERATED | CHECKS };
        let cuts = self.cuts;
        let sqe = with_info(Sqe::read(1, lba, count), prinfo, 0);
        let lba_bytes = self.bench.lba_bytes;
        self.bench.host.memory.fill(0, count as usize * lba_bytes, 0xee);
        let status = self.execute(sqe, count);
        if status == Status::POWER_LOSS || self.cuts > cuts {
            return;
        }
        for (i, index) in range.enumerate() {
            let mut bytes = vec![0; lba_bytes];
            self.bench.host.memory.read(i * lba_bytes, &mut bytes);
            let block = &mut self.blocks[index];
            let fits = |version: &Version| match (version.corrupted, status) {
                (None, Status::SUCCESS) => {
                    let tag = returns_info.then(|| self.bench.info(i));
                    let tag = tag.map(|info| Some(info).filter(|info| info.is_checked()));
                    bytes.iter().all(|byte| *byte == version.value)
                        && tag.is_none_or(|info| {
                            info.map(|info| info.application_tag) == version.tag
                                && info.is_none_or(|info| info.reference_tag == index as u32)
                        })
                }
                (Some(CorruptedPart::ReferenceTag), status) => {
                    status == Status::REFERENCE_TAG_CHECK
                }
                (Some(_), status) => status == Status::GUARD_CHECK,
                _ => false,
            };
            let context = || {
                let found = bytes[0];
                format!("seed {}, block {index}: {status}, {found}, {block:?}", self.seed)
            };
            if !block.is_uncertain {
                assert!(fits(block.versions.last().unwrap()), "{}", context());
            } else {
                assert!(block.versions.iter().any(&fits), "{}", context());
                block.versions.retain(fits);
                block.is_uncertain = block.versions.len() > 1;
            }
            self.found += u32::from(status != Status::SUCCESS);
        }
    }

    /// Changes the data or the information of a sector on the media: of all of its blocks.
    fn corrupt(&mut self) {
        let each = PAGE / self.bench.lba_bytes;
        let (lba, _) = self.range(1);
        let first = lba as usize / each * each;
        for lba in first..first + each {
            self.read(lba as u64, 1);
        }
        let blocks = &mut self.blocks[first..first + each];
        let is_unclear = |block: &Block| {
            block.is_uncertain || block.versions.last().unwrap().corrupted.is_some()
        };
        if blocks.iter().any(is_unclear) {
            return;
        }
        let parts = [CorruptedPart::Data, CorruptedPart::Guard, CorruptedPart::ReferenceTag];
        let part = parts[self.rng.below(3) as usize];
        let fault = Fault::CorruptedData { sector: FaultSector::lba(lba), part };
        if self.bench.drive.inject_fault(self.bench.host.now, fault).is_err() {
            // The sector is in the write buffer, or has no data.
            return;
        }
        for block in blocks {
            let version = block.versions.last_mut().unwrap();
            match version.tag {
                Some(_) => version.corrupted = Some(part),
                // A block of a written sector that was never written itself is not checked.
                None if part == CorruptedPart::Data => version.value ^= 0x5a,
                None => {}
            }
        }
    }

    fn cut_power(&mut self) {
        let open = self.bench.drive.faults().iter().any(|fault| fault.is_open);
        if !open {
            let after_ops = 1 + self.rng.below(40);
            let fault = Fault::PowerCut { after_ops };
            self.bench.drive.inject_fault(self.bench.host.now, fault).unwrap();
        }
    }

    fn run(mut self, steps: u32) -> Case {
        for _ in 0..steps {
            match self.rng.below(100) {
                0..45 => self.write(),
                45..50 => self.write_zeroes(),
                50..54 => self.trim(),
                54..58 => self.copy(),
                58..64 => self.flush(),
                64..88 => {
                    let (lba, count) = self.range(16);
                    self.read(lba, count);
                }
                88..98 => self.corrupt(),
                _ => self.cut_power(),
            }
        }
        for lba in 0..self.blocks.len() as u64 {
            self.read(lba, 1);
        }
        self
    }
}

#[test]
fn a_wrong_block_is_never_returned_and_every_other_one_is() {
    let replay = "cargo test -p sluice-controller --test suite protection::oracle::";
    let run = run_seeds(30, &[], replay, |seed| {
        let case = Case::new(seed).run(1_500);
        let relocated = case.bench.drive.stats().ftl.unwrap().gc_relocations;
        (case.found, case.cuts, relocated)
    });
    let (mut found, mut cuts, mut relocated) = (0, 0, 0);
    for result in run.results {
        (found, cuts, relocated) = (found + result.0, cuts + result.1, relocated + result.2);
    }
    assert!(found > 1_000 && cuts > 500 && relocated > 10_000, "{found} {cuts} {relocated}");
}
