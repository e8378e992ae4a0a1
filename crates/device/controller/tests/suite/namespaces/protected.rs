//! Protection information in namespaces with several extents: reference tags are the blocks of the
//! namespace.

// guarantee: B-95

use mem::PAGE_BYTES;
use nvme::{NewNamespace, ProtectionInfo, Sqe, Status};
use rng::Rng;

use super::harness::NamespaceBench;
use crate::protection::harness::{CHECKS, GENERATED, config, with_info};

/// Page of the host's memory with protection information.
const INFO_PAGE: usize = 58;

impl NamespaceBench {
    /// Executes a command on blocks with protection information at its page.
    fn protected(&mut self, nsid: u32, mut sqe: Sqe, prinfo: u32, blocks: usize) -> Status {
        sqe.mptr = self.host.at.offset((INFO_PAGE * PAGE_BYTES) as u64).0.into();
        let tags = if prinfo & GENERATED != 0 { 0 } else { 0xffff_0000 };
        self.io(nsid, with_info(sqe, prinfo, tags), blocks)
    }

    fn info_of(&self, value: u8, lba: u64) -> ProtectionInfo {
        ProtectionInfo::of_data(&vec![value; self.block_bytes], 7, lba as u32)
    }
}

#[test]
fn reference_tags_are_those_of_the_namespace_whatever_its_extents() {
    for lba_bytes in [512, 4096] {
        let mut bench = NamespaceBench::new(config(lba_bytes));
        let mut rng = Rng::new(lba_bytes.into());
        let (all, unit) = (bench.drive.sectors(), u64::from(4096 / lba_bytes));
        assert_eq!(bench.delete(1), Status::SUCCESS);
        // A namespace has the protection information of the drive.
        let without = bench.create_entry(NewNamespace::with_blocks(unit));
        assert!(bench.admin(without).is(Status::INVALID_FORMAT));
        // Nine parts; every other one is deleted, and a namespace is made of the holes.
        let part = all / 9 / unit * unit;
        let parts: Vec<u32> = (0..9).map(|_| bench.add(part)).collect();
        for nsid in parts.iter().step_by(2) {
            assert_eq!(bench.delete(*nsid), Status::SUCCESS);
        }
        let nsid = bench.add(5 * part);
        let mut model = vec![None; 5 * part as usize];
        for round in 0..400u32 {
            // Often across the end of an extent.
            let count = 1 + rng.below(16);
            let near = (1 + rng.below(4)) * part - rng.below(count + 1);
            let lba = if rng.chance(0.7) { near } else { rng.below(5 * part - count) };
            let lba = lba.min(5 * part - count);
            let values: Vec<u8> = (0..count).map(|i| (round + i as u32) as u8).collect();
            bench.fill(&values);
            let write = Sqe::write(1, lba, count as u32, false);
            let by_host = rng.chance(0.5);
            for (i, value) in values.iter().enumerate().filter(|_| by_host) {
                let info = bench.info_of(*value, lba + i as u64);
                bench.host.memory.write(INFO_PAGE * PAGE_BYTES + 8 * i, &info.to_bytes());
            }
            let prinfo = if by_host { CHECKS } else { GENERATED };
            assert_eq!(bench.protected(nsid, write, prinfo, count as usize), Status::SUCCESS);
            for (i, value) in values.iter().enumerate() {
                model[lba as usize + i] = Some(*value);
            }
            let lba = lba.saturating_sub(rng.below(4));
            let read = Sqe::read(1, lba, count as u32);
            let prinfo = if rng.chance(0.5) { CHECKS } else { GENERATED | CHECKS };
            assert_eq!(bench.protected(nsid, read, prinfo, count as usize), Status::SUCCESS);
            for (i, lba) in (0..count as usize).zip(lba..) {
                let value = model[lba as usize];
                let mut data = vec![0; bench.block_bytes];
                bench.host.memory.read(i * bench.block_bytes, &mut data);
                assert_eq!(data, vec![value.unwrap_or(0); bench.block_bytes], "block {lba}");
                if let (Some(value), CHECKS) = (value, prinfo) {
                    let mut bytes = [0; 8];
                    bench.host.memory.read(INFO_PAGE * PAGE_BYTES + 8 * i, &mut bytes);
                    let found = ProtectionInfo::from_bytes(bytes);
                    assert_eq!(found.reference_tag, lba as u32);
                    assert_eq!(found.guard, bench.info_of(value, lba).guard, "block {lba}");
                }
            }
        }
        // A tag that is not the block's is found before anything is written.
        bench.fill(&[1, 2]);
        for (i, lba) in [(0, part - 1), (1, part + 1)] {
            let info = bench.info_of(1 + i as u8, lba);
            bench.host.memory.write(INFO_PAGE * PAGE_BYTES + 8 * i, &info.to_bytes());
        }
        let write = Sqe::write(1, part - 1, 2, false);
        assert!(bench.protected(nsid, write, CHECKS, 2).is(Status::REFERENCE_TAG_CHECK));
        assert_eq!(bench.drive.check_invariants(), Ok(()));
    }
}
