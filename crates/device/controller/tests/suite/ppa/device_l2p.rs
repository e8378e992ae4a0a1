//! The device L2P against a model, with copies, resets, trims and power cuts.

// guarantee: D-42

use std::collections::BTreeMap;

use controller::{Controller, DriveConfig, OpenChannelConfig};
use driver::{ControllerHandle, DriverError};
use ftl::{Lba, Oob, WriteSeq};
use media::{DataStore, InjectedFault, MediaConfig, NandConfig};
use mem::PAGE_BYTES;
use nvme::{
    Address, DeviceL2pLog, DsmRange, Ppa, PuId, SglDescriptor, Sqe, Status, VendorExtensions,
    log_page,
};
use rng::Rng;
use time::Component;

use super::harness::{Harness, drive, on_image, planes, seeds};
use crate::common::open_channel_host::{META, OTHER_LIST, OpenChannelHost};

/// Two parallel units with 8 chunks of 12 units of 2 sectors of 512 bytes.
fn shape() -> NandConfig {
    let mut nand = planes(2);
    (nand.geometry.pus, nand.geometry.chunks, nand.geometry.pages) = (2, 8, 12);
    (nand.geometry.page_bytes, nand.geometry.sector_bytes) = (512, 512);
    nand
}

const CHUNKS: u32 = 8;
const SECTORS: u32 = 24;
const UNIT: u32 = 2;
const ALL: u64 = 2 * CHUNKS as u64 * SECTORS as u64;

fn with_device_l2p(config: DriveConfig) -> DriveConfig {
    let open_channel = OpenChannelConfig { device_l2p: true, ..config.open_channel };
    DriveConfig { open_channel, ..config }
}

fn memory() -> DriveConfig {
    with_device_l2p(drive(shape()))
}

fn oob_bytes(lba: u64, sequence: u64) -> [u8; Oob::BYTES] {
    Oob { lba: Some(Lba(lba as u32)), poison: false, metadata: false, sequence: WriteSeq(sequence) }
        .encode()
}

/// Stores out-of-band bytes for a write.
fn put(d: &OpenChannelHost, labels: &[[u8; Oob::BYTES]]) {
    for (i, bytes) in labels.iter().enumerate() {
        d.memory.write(META + i * Oob::BYTES, bytes);
    }
}

fn write(d: &OpenChannelHost, at: &[Ppa], labels: &[[u8; Oob::BYTES]]) -> Sqe {
    put(d, labels);
    d.with_meta(d.with_data(Sqe::vector_write(1, d.list(at)), at.len()))
}

fn trim(d: &OpenChannelHost, ranges: &[DsmRange], sequence: u64) -> Sqe {
    for (i, range) in ranges.iter().enumerate() {
        d.memory.write(META + PAGE_BYTES + i * DsmRange::BYTES, &range.to_bytes());
    }
    let mut sqe = Sqe::device_trim(1, ranges.len() as u16, sequence);
    let length = (ranges.len() * DsmRange::BYTES) as u32;
    let address = d.at.offset((META + PAGE_BYTES) as u64).0;
    sqe.set_sgl(SglDescriptor::DataBlock { address, length });
    sqe
}

fn read_map(r: &mut Harness) -> Vec<Option<Address>> {
    let OpenChannelHost { drive, now, .. } = &mut r.open;
    let mut progress = || {
        drive.poll(*now);
    };
    r.controller.dual_map(0, ALL, &mut progress).unwrap()
}

fn read_totals(r: &mut Harness) -> DeviceL2pLog {
    let OpenChannelHost { drive, now, .. } = &mut r.open;
    let mut progress = || {
        drive.poll(*now);
    };
    r.controller.map_totals(&mut progress).unwrap()
}

fn totals(mapped: u64, trimmed: u64, newest: u64) -> DeviceL2pLog {
    DeviceL2pLog { mapped: mapped.into(), trimmed: trimmed.into(), seq_max: newest.into() }
}

fn pair(d: &OpenChannelHost, pu: u32, chunk: u32, unit: u32) -> Vec<Ppa> {
    (unit * UNIT..(unit + 1) * UNIT).map(|s| d.ppa(0, pu, chunk, s)).collect()
}

#[test]
fn the_map_has_the_newest_copy() {
    let mut r = Harness::new(memory());
    let extensions = r.open.open_channel().extensions;
    assert!(extensions.has(VendorExtensions::DEVICE_L2P));
    assert_eq!(extensions.l2p_entries.get(), ALL);
    assert!(read_map(&mut r).iter().all(Option::is_none));
    let run = |r: &mut Harness, sqe: Sqe| r.open.run(sqe).0.status;
    let at = |chunk, sector| Some(Address { group: 0, pu: 0, chunk, sector });
    let padding = Oob { lba: None, poison: false, metadata: false, sequence: WriteSeq(0) }.encode();

    let sqe = write(&r.open, &pair(&r.open, 0, 0, 0), &[oob_bytes(5, 10), oob_bytes(6, 11)]);
    assert_eq!(run(&mut r, sqe), Status::SUCCESS);
    let map = read_map(&mut r);
    assert_eq!((map[5], map[6]), (at(0, 0), at(0, 1)));
    assert_eq!(map.iter().flatten().count(), 2);
    // A stale version that arrives late, padding, and invalid bytes.
    let sqe = write(&r.open, &pair(&r.open, 0, 1, 0), &[oob_bytes(5, 9), padding]);
    assert_eq!(run(&mut r, sqe), Status::SUCCESS);
    let sqe = write(&r.open, &pair(&r.open, 0, 1, 1), &[[0xff; 16], oob_bytes(ALL, 99)]);
    assert_eq!(run(&mut r, sqe), Status::SUCCESS);
    assert_eq!(read_map(&mut r)[5], at(0, 0));
    // The drive copies this version, then a newer one is written.
    let (from, to) = (pair(&r.open, 0, 0, 0), pair(&r.open, 0, 2, 0));
    let sqe = Sqe::vector_copy(1, r.open.list(&from), r.open.list_at(OTHER_LIST, &to));
    assert_eq!(run(&mut r, sqe), Status::SUCCESS);
    assert_eq!((read_map(&mut r)[5], read_map(&mut r)[6]), (at(2, 0), at(2, 1)));
    let sqe = write(&r.open, &pair(&r.open, 0, 1, 2), &[oob_bytes(6, 12), padding]);
    assert_eq!(run(&mut r, sqe), Status::SUCCESS);
    assert_eq!(read_map(&mut r)[6], at(1, 4));
    // A reset unmaps the chunk's sectors, but not the relocated ones.
    assert_eq!(r.open.reset(&[r.open.ppa(0, 0, 0, 0)]).status, Status::SUCCESS);
    assert_eq!((read_map(&mut r)[5], read_map(&mut r)[6]), (at(2, 0), at(1, 4)));
    assert_eq!(r.open.reset(&[r.open.ppa(0, 0, 1, 0)]).status, Status::SUCCESS);
    assert_eq!((read_map(&mut r)[5], read_map(&mut r)[6]), (at(2, 0), None));
    // Writes by logical block without metadata create no entry.
    let sqe = r.open.with_data(Sqe::write(1, r.open.ppa(0, 0, 1, 0).0, UNIT, false), 2);
    assert_eq!(run(&mut r, sqe), Status::SUCCESS);
    assert_eq!(read_map(&mut r).iter().flatten().count(), 1);
    let stats = r.open.drive.stats().device_l2p.unwrap();
    assert_eq!((stats.updates, stats.stale, stats.out_of_range, stats.resets), (5, 1, 1, 1));
}

#[test]
fn trimmed_addresses_do_not_come_back() {
    let mut r = Harness::new(memory());
    let run = |r: &mut Harness, sqe: Sqe| r.open.run(sqe).0.status;
    let mut next = 0;
    let mut put_one = |r: &mut Harness, lba, sequence| {
        let at = pair(&r.open, 0, 0, next);
        next += 1;
        let padding =
            Oob { lba: None, poison: false, metadata: false, sequence: WriteSeq(0) }.encode();
        let sqe = write(&r.open, &at, &[oob_bytes(lba, sequence), padding]);
        assert_eq!(run(r, sqe), Status::SUCCESS);
        read_map(r)[lba as usize].is_some()
    };
    assert_eq!(read_totals(&mut r), DeviceL2pLog::default());
    assert!(put_one(&mut r, 7, 10));
    assert!(put_one(&mut r, 8, 20));
    assert_eq!(read_totals(&mut r), totals(2, 0, 20));
    let sqe = trim(&r.open, &[DsmRange::new(6, 4)], 15);
    assert_eq!(run(&mut r, sqe), Status::SUCCESS);
    let map = read_map(&mut r);
    assert_eq!(
        (map[7], map[8].is_some()),
        (None, true),
        "a version newer than the trim stays mapped"
    );
    assert_eq!(read_totals(&mut r), totals(1, 3, 20));
    assert!(!put_one(&mut r, 7, 15), "a version as old as the trim must be stale");
    assert!(!put_one(&mut r, 9, 3), "a late version older than the trim must be stale");
    assert!(put_one(&mut r, 7, 16));
    // An older trim that arrives late has no effect.
    let sqe = trim(&r.open, &[DsmRange::new(0, ALL as u32)], 14);
    assert_eq!(run(&mut r, sqe), Status::SUCCESS);
    assert!(read_map(&mut r)[7].is_some());
    // The map survives a power loss.
    let sqe = trim(&r.open, &[DsmRange::new(7, 1), DsmRange::new(20, 2)], 40);
    assert_eq!(run(&mut r, sqe), Status::SUCCESS);
    let mut r = Harness::from_drive(r.open.drive.power_cut().power_on().unwrap());
    assert_eq!(read_totals(&mut r).seq_max.get(), 40);
    assert!(!put_one(&mut r, 7, 40));
    assert!(!put_one(&mut r, 21, 39));
    assert!(put_one(&mut r, 21, 41));
    // Refused trims: ranges past the end, too many addresses, and a drive without a device L2P.
    for (ranges, status) in [
        (vec![DsmRange::new(ALL, 1)], Status::LBA_OUT_OF_RANGE),
        (vec![DsmRange::new(ALL - 1, 2)], Status::LBA_OUT_OF_RANGE),
        (vec![DsmRange::new(u64::MAX, 2)], Status::LBA_OUT_OF_RANGE),
        (vec![DsmRange::new(0, ALL as u32); 2], Status::INVALID_FIELD),
    ] {
        let sqe = trim(&r.open, &ranges, 50);
        assert_eq!(run(&mut r, sqe), status, "{ranges:?}");
    }
    assert!(read_map(&mut r)[21].is_some(), "refused commands must not change the map");
    let mut plain = Harness::new(drive(shape()));
    let sqe = trim(&plain.open, &[DsmRange::new(0, 1)], 1);
    assert_eq!(run(&mut plain, sqe), Status::INVALID_OPCODE);
}

#[test]
fn the_page_is_read_in_parts_and_not_past_its_end() {
    let mut r = Harness::new(memory());
    for unit in 0..12 {
        let first = u64::from(unit * UNIT);
        let labels = [oob_bytes(first, 1), oob_bytes(first + 1, 1)];
        let sqe = write(&r.open, &pair(&r.open, 1, 3, unit), &labels);
        assert_eq!(r.open.run(sqe).0.status, Status::SUCCESS);
    }
    let all = read_map(&mut r);
    let OpenChannelHost { drive, .. } = &mut r.open;
    let mut progress = || {
        drive.poll(time::Nanos::ZERO);
    };
    let c = &mut r.controller;
    for (first, count) in [(0, 1), (23, 2), (100, ALL - 100), (ALL, 0)] {
        let some = c.dual_map(first, count, &mut progress).unwrap();
        assert_eq!(some, all[first as usize..][..count as usize]);
    }
    for (first, count) in [(ALL, 1), (0, ALL + 1), (u64::MAX, 2)] {
        let error = c.dual_map(first, count, &mut progress).unwrap_err();
        assert!(matches!(error, DriverError::Unsupported { .. }), "{error}");
    }
    // Reads of the log page at half an entry, at the end, and past the end.
    let read = |c: &mut ControllerHandle, offset, bytes: &mut [u8], progress: &mut dyn FnMut()| {
        c.log_page(log_page::DEVICE_L2P, offset, bytes, progress).map_err(|e| e.status())
    };
    let mut half = [0; 4];
    read(c, 23 * 8 + 4, &mut half, &mut progress).unwrap();
    let mut whole = [0; 8];
    read(c, 23 * 8, &mut whole, &mut progress).unwrap();
    assert_eq!(half, whole[4..]);
    assert!(
        read(c, ALL * 8, &mut half, &mut progress).is_ok(),
        "a read at the end of the map must succeed"
    );
    let past = read(c, ALL * 8 + 4, &mut half, &mut progress);
    assert_eq!(past, Err(Some(Status::INVALID_FIELD)));
    // A drive without a device L2P.
    let mut plain = Harness::new(super::harness::drive(shape()));
    let OpenChannelHost { drive, .. } = &mut plain.open;
    let mut progress = || {
        drive.poll(time::Nanos::ZERO);
    };
    let page = read(&mut plain.controller, 0, &mut half, &mut progress);
    assert_eq!(page, Err(Some(Status::INVALID_LOG_PAGE)));
    let error = plain.controller.dual_map(0, 1, &mut progress).unwrap_err();
    assert!(matches!(error, DriverError::Unsupported { .. }));
    let error = plain.controller.map_totals(&mut progress).unwrap_err();
    assert!(matches!(error, DriverError::Unsupported { .. }));
}

#[test]
fn media_without_data_have_no_device_l2p() {
    for change in [(|nand| nand.data = DataStore::None) as fn(&mut NandConfig), |nand| {
        nand.geometry.oob_bytes = 8
    }] {
        let mut config = memory();
        let MediaConfig::Nand(nand) = &mut config.media else { unreachable!() };
        change(nand);
        assert!(Controller::new(config).is_err());
    }
    let block = with_device_l2p(crate::common::drive(shape()));
    assert!(
        Controller::new(block).is_err(),
        "a drive that manages its flash cannot export a device L2P"
    );
}

#[test]
fn an_image_keeps_its_map_and_damage_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("drive.img");
    let config = || with_device_l2p(on_image(shape(), &image));
    let mut r = Harness::new(config());
    let sqe = write(&r.open, &pair(&r.open, 0, 4, 0), &[oob_bytes(1, 1), oob_bytes(2, 2)]);
    assert_eq!(r.open.run(sqe).0.status, Status::SUCCESS);
    let sqe = trim(&r.open, &[DsmRange::new(2, 1)], 9);
    assert_eq!(r.open.run(sqe).0.status, Status::SUCCESS);
    let before = read_map(&mut r);
    assert_eq!(before.iter().flatten().count(), 1);
    drop(r);
    // The process ended during an erase: the old data is lost.
    let mut r = Harness::new(config());
    assert_eq!(read_map(&mut r), before);
    let reset = Sqe::vector_reset(1, r.open.list(&[r.open.ppa(0, 0, 4, 0)]));
    r.open.send(reset, 1);
    drop(r);
    let mut r = Harness::new(config());
    assert!(read_map(&mut r).iter().all(Option::is_none));
    // The map still has its trims.
    let sqe = write(&r.open, &pair(&r.open, 0, 5, 0), &[oob_bytes(1, 1), oob_bytes(2, 9)]);
    assert_eq!(r.open.run(sqe).0.status, Status::SUCCESS);
    assert_eq!(read_map(&mut r).iter().flatten().count(), 1);
    drop(r);
    let map = folder.path().join("drive.img.map");
    let good = std::fs::read(&map).unwrap();
    let mut bad = good.clone();
    bad[8] ^= 4;
    std::fs::write(&map, &bad).unwrap();
    let error = Controller::new(config()).unwrap_err().to_string();
    assert!(error.contains("logical address 1") && error.contains("drive.img.map"), "{error}");
    std::fs::write(&map, &good).unwrap();
    // If the image is recreated, the old map is obsolete.
    std::fs::remove_file(&image).unwrap();
    let mut r = Harness::new(config());
    assert!(read_map(&mut r).iter().all(Option::is_none));
    let sqe = write(&r.open, &pair(&r.open, 0, 0, 0), &[oob_bytes(2, 1), oob_bytes(3, 1)]);
    assert_eq!(r.open.run(sqe).0.status, Status::SUCCESS);
    assert_eq!(
        read_map(&mut r).iter().flatten().count(),
        2,
        "the trims of the old map must be obsolete too"
    );
}

#[test]
fn a_chunk_that_goes_bad_keeps_its_entries_until_it_is_reset() {
    let mut r = Harness::new(memory());
    let sqe = write(&r.open, &pair(&r.open, 0, 4, 0), &[oob_bytes(1, 1), oob_bytes(2, 2)]);
    assert_eq!(r.open.run(sqe).0.status, Status::SUCCESS);
    let nand = r.open.drive.nand_mut().unwrap();
    let chunk = nand.layout().chunk(PuId(0), 4);
    nand.inject(InjectedFault::ChunkBad { chunk }).unwrap();
    let mut r = Harness::from_drive(r.open.drive.power_cut().power_on().unwrap());
    // Reads of the bad chunk fail, which is better than an unmapped address.
    assert_eq!(read_map(&mut r).iter().flatten().count(), 2);
    let other = r.open.drive.nand_mut().unwrap().layout().chunk(PuId(0), 5);
    let sqe = write(&r.open, &pair(&r.open, 0, 5, 0), &[oob_bytes(1, 1), oob_bytes(7, 2)]);
    assert_eq!(r.open.run(sqe).0.status, Status::SUCCESS);
    r.open.drive.nand_mut().unwrap().inject(InjectedFault::Erase { chunk: other }).unwrap();
    assert!(!r.open.reset(&[r.open.ppa(0, 0, 5, 0)]).status.is_success());
    // The reset failed and took the chunk offline.
    let map = read_map(&mut r);
    assert_eq!((map[1], map[7]), (None, None));
}

/// The possible locations of a logical address with their sequence numbers, newest first.
#[derive(Clone, Debug, PartialEq)]
enum Expected {
    Nothing,
    At(Address, u64),
    Trimmed(u64),
}

/// A command in flight.
enum Sent {
    Write(Vec<(Address, u64, u64)>),
    Reset(u32, u32),
}

struct Model {
    known: BTreeMap<u64, Expected>,
}

impl Model {
    fn write(&mut self, at: Address, lba: u64, sequence: u64) {
        let newer = match self.known.get(&lba) {
            None | Some(Expected::Nothing) => true,
            Some(Expected::At(_, than)) => sequence >= *than,
            Some(Expected::Trimmed(than)) => sequence > *than,
        };
        if newer {
            self.known.insert(lba, Expected::At(at, sequence));
        }
    }

    fn reset(&mut self, pu: u32, chunk: u32) {
        for known in self.known.values_mut() {
            if matches!(known, Expected::At(a, _) if a.pu == pu && a.chunk == chunk) {
                *known = Expected::Nothing;
            }
        }
    }

    fn trim(&mut self, lbas: std::ops::Range<u64>, sequence: u64) {
        for lba in lbas {
            let known = self.known.entry(lba).or_insert(Expected::Nothing);
            let older = match known {
                Expected::Nothing => true,
                Expected::At(_, than) => *than <= sequence,
                Expected::Trimmed(than) => *than < sequence,
            };
            if older {
                *known = Expected::Trimmed(sequence);
            }
        }
    }

    fn address_of(&self, lba: u64) -> Option<Address> {
        match self.known.get(&lba) {
            Some(Expected::At(a, _)) => Some(*a),
            _ => None,
        }
    }
}

/// Random writes, copies, resets, trims and power cuts.
fn device_l2p_matches_the_model(seed: u64) {
    let mut rng = Rng::new(seed);
    let folder = tempfile::tempdir().unwrap();
    let in_image = rng.chance(0.3);
    let config = match in_image {
        true => with_device_l2p(on_image(shape(), &folder.path().join("drive.img"))),
        false => memory(),
    };
    let mut r = Harness::new(config.clone());
    let mut model = Model { known: BTreeMap::new() };
    let (mut sent, mut user, mut sequence) = (BTreeMap::new(), 0u64, 0u64);
    // Units accepted per chunk.
    let mut filled = [0u32; 2 * CHUNKS as usize];
    // Chunks with a reset in flight, or interrupted by a power cut.
    let mut resetting = [false; 2 * CHUNKS as usize];
    let settle = |r: &mut Harness,
                  model: &mut Model,
                  sent: &mut BTreeMap<u64, Sent>,
                  filled: &mut [u32],
                  resetting: &mut [bool]| {
        for ended in std::mem::take(&mut r.open.completed) {
            assert_eq!(ended.status, Status::SUCCESS);
            match sent.remove(&ended.user).unwrap() {
                Sent::Write(sectors) => {
                    for (at, lba, sequence) in sectors {
                        model.write(at, lba, sequence);
                    }
                }
                Sent::Reset(pu, chunk) => {
                    model.reset(pu, chunk);
                    let flat = (pu * CHUNKS + chunk) as usize;
                    (filled[flat], resetting[flat]) = (0, false);
                }
            }
        }
    };
    for _ in 0..250 {
        let (pu, chunk) = (rng.below(2) as u32, rng.below(CHUNKS.into()) as u32);
        let flat = (pu * CHUNKS + chunk) as usize;
        match rng.below(20) {
            0..=10 if filled[flat] < 12 && !resetting[flat] => {
                let at = pair(&r.open, pu, chunk, filled[flat]);
                let mut sectors = Vec::new();
                for i in 0..UNIT {
                    sequence += 1;
                    // Sometimes an old sequence number: a version that arrives late.
                    let number = if rng.chance(0.2) { rng.below(sequence) } else { sequence };
                    let lba = rng.below(40);
                    let sector = filled[flat] * UNIT + i;
                    sectors.push((Address { group: 0, pu, chunk, sector }, lba, number));
                }
                let labels: Vec<_> = sectors.iter().map(|(_, l, s)| oob_bytes(*l, *s)).collect();
                let sqe = write(&r.open, &at, &labels);
                filled[flat] += 1;
                user += 1;
                sent.insert(user, Sent::Write(sectors));
                // The next command reuses this memory, so the drive must read it now.
                r.open.send(sqe, user);
            }
            11 if !resetting[flat] => {
                let busy = sent.values().any(|s| match s {
                    Sent::Write(w) => w.iter().any(|(a, ..)| (a.pu, a.chunk) == (pu, chunk)),
                    Sent::Reset(..) => false,
                });
                if !busy && filled[flat] > 0 {
                    user += 1;
                    resetting[flat] = true;
                    sent.insert(user, Sent::Reset(pu, chunk));
                    let sqe = Sqe::vector_reset(1, r.open.list(&[r.open.ppa(0, pu, chunk, 0)]));
                    r.open.send(sqe, user);
                }
            }
            12 => {
                let first = rng.below(40);
                let count = 1 + rng.below(5);
                let number = rng.below(sequence + 1);
                // Writes that complete in the meantime precede it in the model as well.
                let sqe = trim(&r.open, &[DsmRange::new(first, count as u32)], number);
                r.open.send(sqe, u64::MAX);
                let at = r.open.completed.iter().position(|e| e.user == u64::MAX).unwrap();
                assert_eq!(r.open.completed.remove(at).status, Status::SUCCESS);
                settle(&mut r, &mut model, &mut sent, &mut filled, &mut resetting);
                model.trim(first..first + count, number);
            }
            13..=17 => {
                let until = r.open.now + time::Nanos(rng.below(2_000_000));
                r.open.run_to(until);
                settle(&mut r, &mut model, &mut sent, &mut filled, &mut resetting);
            }
            18 if rng.chance(0.4) => {
                settle(&mut r, &mut model, &mut sent, &mut filled, &mut resetting);
                r = if in_image && rng.chance(0.5) {
                    drop(r);
                    Harness::new(config.clone())
                } else {
                    Harness::from_drive(r.open.drive.power_cut().power_on().unwrap())
                };
                // Commands in flight were not executed: units are torn or untouched; chunks need an
                // erase or did not change.
                for s in std::mem::take(&mut sent).into_values() {
                    let Sent::Reset(pu, chunk) = s else { continue };
                    let nand = r.open.drive.nand_mut().unwrap();
                    let id = nand.layout().chunk(PuId(pu), chunk);
                    if nand.is_erase_interrupted(id) {
                        model.reset(pu, chunk);
                        let again = [r.open.ppa(0, pu, chunk, 0)];
                        assert_eq!(r.open.reset(&again).status, Status::SUCCESS);
                    }
                }
                let nand = r.open.drive.nand_mut().unwrap();
                for (i, filled) in filled.iter_mut().enumerate() {
                    let id = nand.layout().chunk(PuId(i as u32 / CHUNKS), i as u32 % CHUNKS);
                    *filled = nand.chunk_info(id).unwrap().write_pointer / UNIT;
                }
                resetting.fill(false);
            }
            _ => {}
        }
        settle(&mut r, &mut model, &mut sent, &mut filled, &mut resetting);
        if rng.chance(0.2) {
            let map = read_map(&mut r);
            settle(&mut r, &mut model, &mut sent, &mut filled, &mut resetting);
            for (lba, found) in map.iter().enumerate().take(40) {
                assert_eq!(*found, model.address_of(lba as u64), "logical address {lba}");
            }
            assert!(map[40..].iter().all(Option::is_none));
        }
    }
}

#[test]
fn the_map_is_what_a_model_says_whatever_happens() {
    seeds(150, device_l2p_matches_the_model);
}
