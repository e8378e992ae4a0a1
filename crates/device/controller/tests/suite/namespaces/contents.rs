//! Random commands to up to 32 namespaces whose extents are fragmented, against a model of their
//! contents.

// guarantee: B-94

use std::collections::BTreeMap;

use controller::{DriveConfig, WriteBuffer};
use media::{DataStore, MediaConfig};
use mem::PAGE_BYTES;
use nvme::{AdminCommand, CopyRange, DsmRange, LbaStatusDescriptor, SecureErase, Sqe, Status};
use rng::Rng;

use super::harness::NamespaceBench;
use crate::hostile::host::block_config;

/// Page with ranges of commands.
const RANGES_PAGE: u64 = 61;
/// The value of a block that was marked as unreadable.
const MARKED: u8 = 0xff;

struct Model {
    bench: NamespaceBench,
    rng: Rng,
    /// Values of the blocks of each namespace, if it is attached.
    contents: BTreeMap<u32, Vec<u8>>,
    detached: BTreeMap<u32, Vec<u8>>,
    unit_blocks: u64,
}

impl Model {
    fn new(seed: u64) -> Model {
        let mut rng = Rng::new(seed);
        let lba_bytes = [None, Some(512), Some(1024)][rng.below(3) as usize];
        let write_buffer = match rng.below(3) {
            0 => WriteBuffer::None,
            1 => WriteBuffer::Volatile { bytes: 1 << 18 },
            _ => WriteBuffer::PowerLossProtected { bytes: 1 << 18 },
        };
        let mut config = DriveConfig { lba_bytes, write_buffer, ..block_config() };
        if rng.chance(0.3) {
            config.ftl.map_cache_sectors = 1 << 20;
        }
        let bench = NamespaceBench::new(config);
        let unit_blocks = 4096 / bench.block_bytes as u64;
        let contents = BTreeMap::from([(1, vec![0; bench.drive.sectors() as usize])]);
        let detached = BTreeMap::new();
        Model { bench, rng, contents, detached, unit_blocks }
    }

    fn free_blocks(&self) -> u64 {
        let allocated: u64 = self.bench.drive.namespaces().iter().map(|n| n.allocated_bytes).sum();
        self.bench.drive.sectors() - allocated / self.bench.block_bytes as u64
    }

    fn change_namespaces(&mut self) {
        let of = |map: &BTreeMap<u32, Vec<u8>>, rng: &mut Rng| -> Option<u32> {
            let count = map.len() as u64;
            (count > 0).then(|| *map.keys().nth(rng.below(count) as usize).unwrap())
        };
        match self.rng.below(7) {
            0 | 1 => {
                if let Some(nsid) = of(&self.contents, &mut self.rng) {
                    assert_eq!(self.bench.delete(nsid), Status::SUCCESS);
                    self.contents.remove(&nsid);
                }
            }
            2..=4 => {
                let free = self.free_blocks();
                let count = self.contents.len() + self.detached.len();
                if free > 0 && count < 32 {
                    let part = free / (1 + self.rng.below(12)) + 1;
                    let blocks = (1 + self.rng.below(part)).min(free);
                    let nsid = self.bench.add(blocks);
                    self.contents.insert(nsid, vec![0; blocks as usize]);
                }
            }
            5 => {
                let nsid = of(&self.contents, &mut self.rng);
                if let Some(nsid) = nsid {
                    assert_eq!(self.bench.attach(nsid, false), Status::SUCCESS);
                    let contents = self.contents.remove(&nsid).unwrap();
                    self.detached.insert(nsid, contents);
                }
                if let Some(nsid) = of(&self.detached, &mut self.rng) {
                    assert_eq!(self.bench.attach(nsid, true), Status::SUCCESS);
                    let contents = self.detached.remove(&nsid).unwrap();
                    self.contents.insert(nsid, contents);
                }
            }
            _ => {
                if let Some(nsid) = of(&self.contents, &mut self.rng) {
                    let erase =
                        [SecureErase::None, SecureErase::UserData][self.rng.below(2) as usize];
                    let format = NamespaceBench::format_entry(nsid, erase);
                    assert_eq!(self.bench.admin(format), Status::SUCCESS);
                    self.contents.get_mut(&nsid).unwrap().fill(0);
                }
            }
        }
        assert_eq!(self.bench.drive.check_invariants(), Ok(()));
    }

    /// Returns a namespace and a range in it of up to `max` blocks.
    fn range(&mut self, max: u64) -> Option<(u32, usize, usize)> {
        let count = self.contents.len() as u64;
        let nsid = *self.contents.keys().nth(self.rng.below(count.max(1)) as usize)?;
        let blocks = self.contents[&nsid].len() as u64;
        let lba = self.rng.below(blocks);
        let count = 1 + self.rng.below(max.min(blocks - lba));
        Some((nsid, lba as usize, count as usize))
    }

    fn command(&mut self) {
        let max = 48.min((48 << 12) / self.bench.block_bytes as u64);
        let Some((nsid, lba, count)) = self.range(max) else { return };
        let (at, end, nlb) = (lba as u64, lba + count, count as u32);
        let old = self.contents[&nsid][lba..end].to_vec();
        let is_marked = old.contains(&MARKED);
        let unread = Status::UNRECOVERED_READ;
        let error = old.iter().position(|value| *value == MARKED).unwrap_or(0);
        // A change of a part of a unit reads it.
        let unit = self.unit_blocks as usize;
        match self.rng.below(9) {
            0 | 1 => {
                let values: Vec<u8> = (0..count).map(|_| 1 + self.rng.below(250) as u8).collect();
                assert_eq!(self.bench.write(nsid, at, &values), Status::SUCCESS);
                self.contents.get_mut(&nsid).unwrap()[lba..end].copy_from_slice(&values);
            }
            2 => match self.bench.read(nsid, at, nlb) {
                Ok(values) => assert_eq!(values, old),
                Err(status) => {
                    assert!(is_marked && status.is(unread), "{status}");
                    let entry = self.bench.newest_error();
                    assert_eq!((entry.nsid.get(), entry.lba.get()), (nsid, at + error as u64));
                }
            },
            3 => {
                let zeroes = Sqe::write_zeroes(1, at, nlb, self.rng.chance(0.5));
                assert_eq!(self.bench.io(nsid, zeroes, 0), Status::SUCCESS);
                self.contents.get_mut(&nsid).unwrap()[lba..end].fill(0);
            }
            4 => {
                let status = self.bench.io(nsid, Sqe::verify(1, at, nlb), 0);
                assert_eq!(status.is_success(), !is_marked, "{status}");
            }
            5 if !is_marked => {
                let mut data = old.clone();
                let wrong = self.rng.below(2 * count as u64) as usize;
                if let Some(value) = data.get_mut(wrong) {
                    *value ^= 0x11;
                }
                self.bench.fill(&data);
                let status = self.bench.io(nsid, Sqe::compare(1, at, nlb), count);
                assert_eq!(status.is(Status::COMPARE_FAILURE), wrong < count, "{status}");
                if wrong < count {
                    let entry = self.bench.newest_error();
                    assert_eq!((entry.nsid.get(), entry.lba.get()), (nsid, (lba + wrong) as u64));
                }
            }
            6 if unit == 1 => {
                let status = self.bench.io(nsid, Sqe::write_uncorrectable(1, at, nlb), 0);
                assert_eq!(status, Status::SUCCESS);
                self.contents.get_mut(&nsid).unwrap()[lba..end].fill(MARKED);
            }
            7 => self.trim_or_status(nsid),
            8 => self.copy(nsid),
            _ => {}
        }
    }

    /// Deallocates several ranges, or queries the status of blocks.
    fn trim_or_status(&mut self, nsid: u32) {
        let blocks = self.contents[&nsid].len() as u64;
        let unit = self.unit_blocks;
        if self.rng.chance(0.4) {
            let lba = self.rng.below(blocks);
            let count = 1 + self.rng.below((blocks - lba).min(200));
            let entries = 1 + self.rng.below(200) as u32;
            let io = self.rng.chance(0.5);
            let list = if io {
                let sqe = Sqe::lba_status(1, lba, count as u32, entries);
                let mut sqe = sqe;
                sqe.nsid = nsid.into();
                sqe.set_sgl(self.bench.host.block(0, 4096));
                let cqe = self.bench.host.io(&mut self.bench.drive, sqe);
                assert_eq!(cqe.status, Status::SUCCESS);
                let mut data = vec![0; 4096];
                self.bench.host.memory.read(0, &mut data);
                data[..16 * cqe.result as usize].to_vec()
            } else {
                let command =
                    AdminCommand::GetLbaStatus { nsid, slba: lba, nlb: count as u16, bytes: 4096 };
                let data = self.bench.query(command.to_sqe()).unwrap();
                let found = u32::from_le_bytes(data[..4].try_into().unwrap());
                data[8..8 + 16 * found as usize].to_vec()
            };
            let mut next = lba;
            for entry in list.chunks(16) {
                let entry = LbaStatusDescriptor::from_bytes(entry.try_into().unwrap());
                assert_eq!(entry.slba.get(), next);
                let range = next as usize..(next + u64::from(entry.nlb.get())) as usize;
                if entry.status == 0 {
                    let contents = &self.contents[&nsid][range.clone()];
                    assert!(contents.iter().all(|value| *value == 0), "{entry:?}");
                }
                next = range.end as u64;
            }
            assert!(next > lba && next <= lba + count);
            return;
        }
        let count = 1 + self.rng.below(4);
        for n in 0..count {
            let lba = self.rng.below(blocks);
            let nlb = self.rng.below((blocks - lba).min(100)) as u32;
            let at = RANGES_PAGE as usize * PAGE_BYTES + n as usize * 16;
            self.bench.host.memory.write(at, &DsmRange::new(lba, nlb).to_bytes());
            // Only whole units are deallocated.
            let first = lba.next_multiple_of(unit);
            let end = (lba + u64::from(nlb)) / unit * unit;
            let contents = self.contents.get_mut(&nsid).unwrap();
            if first < end {
                contents[first as usize..end as usize].fill(0);
            }
        }
        let mut sqe = Sqe::dataset_management(1, count as u16, true);
        sqe.set_sgl(self.bench.host.block(RANGES_PAGE, 16 * count as u32));
        sqe.nsid = nsid.into();
        assert_eq!(self.bench.host.io(&mut self.bench.drive, sqe).status, Status::SUCCESS);
    }

    fn copy(&mut self, nsid: u32) {
        let contents = self.contents[&nsid].clone();
        let blocks = contents.len() as u64;
        let (mut values, mut marked) = (Vec::new(), None);
        let mut sources = 0;
        for n in 0..1 + self.rng.below(4) {
            let lba = self.rng.below(blocks);
            let left = blocks - values.len() as u64;
            let nlb = (1 + self.rng.below((blocks - lba).min(30))).min(left);
            if nlb == 0 {
                break;
            }
            let range = CopyRange::new(lba, nlb as u32);
            let at = RANGES_PAGE as usize * PAGE_BYTES + n as usize * CopyRange::BYTES;
            self.bench.host.memory.write(at, &range.to_bytes());
            let source = &contents[lba as usize..(lba + nlb) as usize];
            let found = source.iter().position(|value| *value == MARKED);
            marked = marked.or(found.map(|block| lba + block as u64));
            values.extend_from_slice(source);
            sources += 1;
        }
        let target = self.rng.below(blocks - values.len() as u64 + 1);
        let mut sqe = Sqe::copy(1, target, sources);
        sqe.nsid = nsid.into();
        let bytes = u32::from(sources) * CopyRange::BYTES as u32;
        sqe.set_sgl(self.bench.host.block(RANGES_PAGE, bytes));
        let status = self.bench.host.io(&mut self.bench.drive, sqe).status;
        match marked {
            Some(lba) => {
                assert!(status.is(Status::UNRECOVERED_READ), "{status}");
                let entry = self.bench.newest_error();
                assert_eq!((entry.nsid.get(), entry.lba.get()), (nsid, lba));
            }
            None => {
                assert_eq!(status, Status::SUCCESS);
                let contents = self.contents.get_mut(&nsid).unwrap();
                contents[target as usize..][..values.len()].copy_from_slice(&values);
            }
        }
    }

    /// Reads every block of every namespace.
    fn check_all(&mut self) {
        for (nsid, contents) in &self.contents {
            let mut lba = 0;
            while lba < contents.len() {
                let count = (contents.len() - lba).min(32);
                let expected = &contents[lba..lba + count];
                match self.bench.read(*nsid, lba as u64, count as u32) {
                    Ok(values) => assert_eq!(values, expected, "namespace {nsid}, block {lba}"),
                    Err(status) => assert!(expected.contains(&MARKED), "{status}"),
                }
                lba += count;
            }
        }
    }
}

#[test]
fn fragmented_namespaces_have_the_contents_of_the_model() {
    let seeds = match std::env::var("NAMESPACE_SEED") {
        Ok(seed) => seed.parse().unwrap()..=seed.parse().unwrap(),
        Err(_) => 0..=29,
    };
    for seed in seeds {
        eprintln!("NAMESPACE_SEED={seed}");
        let mut model = Model::new(seed);
        for step in 0..400 {
            if model.rng.chance(0.15) {
                model.change_namespaces();
            } else {
                model.command();
            }
            if step % 100 == 99 {
                model.check_all();
                model.bench.flush();
                model.bench = model.bench.restart();
                model.check_all();
            }
        }
    }
}

/// A drive without data returns the pattern of the namespace's address, wherever the block is.
#[test]
fn the_pattern_is_that_of_the_address_in_the_namespace() {
    for lba_bytes in [None, Some(512)] {
        let mut config = DriveConfig { lba_bytes, ..block_config() };
        if let MediaConfig::Nand(nand) = &mut config.media {
            nand.data = DataStore::None;
        }
        let mut b = NamespaceBench::new(config);
        assert_eq!(b.delete(1), Status::SUCCESS);
        let unit = 4096 / b.block_bytes as u64;
        let small: Vec<u32> = (0..8).map(|_| b.add(3 * unit)).collect();
        small.iter().step_by(2).for_each(|nsid| assert_eq!(b.delete(*nsid), Status::SUCCESS));
        let blocks = b.unallocated() / b.block_bytes as u64;
        let nsid = b.add(blocks);
        for (lba, count) in [(0, 48), (7, 30), (1, 1), (2 * unit, 20)] {
            assert_eq!(b.write(nsid, lba, &vec![1; count as usize]), Status::SUCCESS);
            let sqe = Sqe::read(1, lba, count);
            assert_eq!(b.io(nsid, sqe, count as usize), Status::SUCCESS);
            let compare = Sqe::compare(1, lba, count);
            for block in 0..u64::from(count) {
                let (mut found, mut expected) = (vec![0; b.block_bytes], vec![0; b.block_bytes]);
                b.host.memory.read(block as usize * b.block_bytes, &mut found);
                media::fill_pattern(lba + block, &mut expected);
                assert_eq!(found, expected, "block {}", lba + block);
            }
            assert_eq!(b.io(nsid, compare, count as usize), Status::SUCCESS);
        }
    }
}
