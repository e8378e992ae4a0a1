//! Every command completes exactly once, and reads return what was written.

use std::collections::BTreeMap;

use controller::{SataData, SataDriveConfig};
use driver::{BindError, HardwareQueue, LowLevelDriver, Op, Payload, Request, Segment, Tag};
use nvme::Status;

use super::harness::{Harness, config, stamp};

const SECTORS: u64 = 1 << 14;
const MAX: u64 = 64;

#[test]
fn a_host_knows_its_drives() {
    let mut harness = Harness::new(&config(6, SECTORS, SataData::Memory));
    assert_eq!(harness.host.queues(), 6);
    assert!(harness.host.take_queue(0).is_none(), "the queue was already taken");
    let limits = harness.host.limits();
    assert_eq!((limits.sectors, limits.sector_bytes, limits.queue_depth), (SECTORS, 512, 32));
    assert!(limits.volatile_cache && harness.host.features().discard);
    let drives = harness.host.drives();
    assert_eq!(drives[5].identify.serial, "SLUICESATA05");
    assert_eq!(drives[5].identify.model, SataDriveConfig::default().model);
    assert!(drives.iter().zip(&harness.queues).all(|(drive, queue)| drive.port == queue.port()));
    assert!(harness.queues.iter().all(|queue| queue.tags().count() == 32));
}

#[test]
fn empty_bays_are_left_out_and_odd_drives_named() {
    let mut some = config(6, SECTORS, SataData::Memory);
    (some.drives[0], some.drives[3]) = (None, None);
    some.drives[4].as_mut().unwrap().sectors = 100;
    let harness = Harness::new(&some);
    assert_eq!(harness.queues.iter().map(|q| q.port()).collect::<Vec<_>>(), [1, 2, 4, 5]);
    assert_eq!(harness.host.limits().sectors, 100, "the limit must be the minimum over all drives");
    assert_eq!(harness.queues[0].limits().sectors, SECTORS);
}

/// The requests in flight of a random run.
struct InFlight {
    op: Op,
    lba: u64,
    sectors: u32,
    slot: usize,
}

/// At most one request is in flight per sector, so that the expected result is unique.
#[test]
fn random_commands_on_six_drives_end_once_and_with_the_right_data() {
    let mut harness = Harness::new(&config(6, SECTORS, SataData::Memory));
    let mut random = rng::Rng::new(11);
    // Version of each sector per queue; 0 reads as zeros.
    let mut versions = vec![vec![0u64; SECTORS as usize]; 6];
    let mut busy = vec![vec![false; SECTORS as usize]; 6];
    let mut under: BTreeMap<u64, (usize, InFlight)> = BTreeMap::new();
    let (mut next, mut done, mut kinds) = (1u64, 0u64, BTreeMap::new());
    let bytes_each = MAX as usize * 512;
    let mut free: Vec<usize> = (0..6 * 32).rev().collect();
    let tables = 6 * 32 * bytes_each;
    while done < 12_500 {
        for queue in 0..6 {
            while next <= 12_500 && harness.queues[queue].tags().free() > 0 {
                let sectors = 1 + random.below(MAX) as u32;
                let lba = random.below(SECTORS - MAX);
                let range = lba as usize..lba as usize + sectors as usize;
                let op = match random.below(20) {
                    0 => Op::Flush,
                    1 => Op::Discard,
                    n if n < 10 => Op::Write,
                    _ => Op::Read,
                };
                if op != Op::Flush && busy[queue][range.clone()].iter().any(|busy| *busy) {
                    break;
                }
                let slot = free.pop().unwrap();
                let at = slot * bytes_each;
                if op == Op::Write {
                    for (i, lba) in (lba..).take(sectors as usize).enumerate() {
                        harness.region.write(at + i * 512, &stamp(queue, lba, next));
                    }
                } else {
                    harness.region.fill(at, bytes_each, 0xee);
                }
                // Every other payload is scattered, in segments of even lengths.
                let mut data = harness.payload(at);
                if next % 2 == 0 {
                    let table = tables + slot * 64;
                    let total = sectors * 512;
                    let first = 2 * random.below(u64::from(total) / 2) as u32;
                    let pieces = [(0, first), (first, 0), (first, total - first)];
                    for (i, (offset, bytes)) in pieces.into_iter().enumerate() {
                        let at = harness.at.offset(at as u64 + u64::from(offset));
                        let words = Segment { at: Some(at), bytes }.encode();
                        for (j, word) in words.into_iter().enumerate() {
                            harness.region.write(table + i * 16 + j * 8, &word.to_le_bytes());
                        }
                    }
                    let table = harness.at.offset(table as u64);
                    data = Payload::Scattered { table, segments: 3 };
                }
                let request = match op {
                    Op::Flush => Request::flush(next),
                    Op::Discard => Request::discard(lba, sectors, next),
                    Op::Write => {
                        Request { fua: next % 5 == 0, ..Request::write(lba, sectors, data, next) }
                    }
                    _ => Request::read(lba, sectors, data, next),
                };
                harness.submit(queue, &request).unwrap();
                if op != Op::Flush {
                    busy[queue][range].fill(true);
                }
                under.insert(next, (queue, InFlight { op, lba, sectors, slot }));
                next += 1;
            }
        }
        let mut ended = Vec::new();
        harness.settle();
        harness.reap(&mut ended);
        for e in &ended {
            assert!(e.status.is_success(), "{}", e.status);
            let (queue, InFlight { op, lba, sectors, slot }) =
                under.remove(&e.user).expect("each request completes once, on its own queue");
            assert_eq!(queue, e.queue);
            for (i, lba) in (lba..).take(sectors as usize).enumerate() {
                let version = &mut versions[queue][lba as usize];
                match op {
                    Op::Write => *version = e.user,
                    Op::Discard => *version = 0,
                    Op::Read => {
                        let mut bytes = [0; 512];
                        harness.region.read(slot * bytes_each + i * 512, &mut bytes);
                        let zeros = [0; 512];
                        let expected =
                            if *version == 0 { zeros } else { stamp(queue, lba, *version) };
                        assert!(bytes == expected, "queue {queue} sector {lba} version {version}");
                    }
                    _ => continue,
                }
                busy[queue][lba as usize] = false;
            }
            free.push(slot);
            *kinds.entry(format!("{op:?}")).or_insert(0) += 1;
            done += 1;
        }
        if !under.is_empty() {
            assert!(harness.step());
        }
    }
    assert!(kinds.len() == 4 && kinds.values().all(|n| *n > 300), "{kinds:?}");
    let issued: u64 = harness.queues.iter().map(|q| q.stats().issued).sum();
    assert_eq!(issued, next - 1);
    let stats = harness.controller.stats();
    let total: u64 = stats.drives.iter().map(|d| d.reads + d.writes + d.others).sum();
    // Each drive executed IDENTIFY DEVICE once.
    assert_eq!(total - 6, done);
    assert!(stats.drives.iter().all(|d| d.errors + d.dropped + d.fatal_errors == 0));
}

#[test]
fn a_flush_waits_for_the_others_and_the_others_for_it() {
    let mut harness = Harness::new(&config(1, SECTORS, SataData::Memory));
    let now = harness.now();
    let mut tags = [Tag(0); 32];
    assert_eq!(harness.queues[0].get_free_tags(&mut tags), 32);
    for (i, tag) in tags.into_iter().enumerate() {
        let request = match i {
            3 | 4 => Request::flush(i as u64),
            10 => Request::discard(9, 100, i as u64),
            _ => Request::write(8 * i as u64, 8, Payload::BitBucket, i as u64),
        };
        harness.queues[0].bind_tag_cmd(tag, &request, now).unwrap();
    }
    assert_eq!(harness.queues[0].outstanding(), 0, "a bound request is not issued yet");
    assert!(harness.queues[0].issue_tags());
    assert!(!harness.queues[0].issue_tags());
    let ended = harness.wait(32);
    assert!(ended.iter().all(|e| e.status.is_success()));
    assert_eq!(
        harness.controller.stats().drives[0].errors,
        0,
        "queued and non-queued commands are never mixed"
    );
    let mut users: Vec<u64> = ended.iter().map(|e| e.user).collect();
    users.sort_unstable();
    assert_eq!(users, (0..32).collect::<Vec<u64>>());
}

#[test]
fn neither_kind_starves_the_other() {
    let mut harness = Harness::new(&config(1, SECTORS, SataData::Memory));
    for i in 0..32 {
        let request = match i % 2 {
            0 => Request::flush(0),
            _ => Request::read(i, 1, Payload::BitBucket, 1),
        };
        harness.submit(0, &request).unwrap();
    }
    let (mut counts, mut ended) = ([0u64; 2], Vec::new());
    while counts[0] + counts[1] < 2_000 {
        harness.settle();
        harness.reap(&mut ended);
        for e in ended.drain(..) {
            counts[e.user as usize] += 1;
            let request = match e.user {
                0 => Request::flush(0),
                _ => Request::read(5, 1, Payload::BitBucket, 1),
            };
            harness.submit(0, &request).unwrap();
        }
        assert!(harness.step());
    }
    // One flush, then the sixteen waiting reads, and so on.
    assert!(counts[0] > 100 && counts[1] > 1_000, "{counts:?}");
}

#[test]
fn what_a_drive_cannot_do_is_refused_before_it_hears_of_it() {
    let mut harness = Harness::new(&config(1, SECTORS, SataData::Memory));
    let good = harness.payload(0);
    let refused = |harness: &mut Harness, request: &Request| match harness.submit(0, request) {
        Err(BindError::Refused(status)) => status,
        other => panic!("{other:?}"),
    };
    let nowhere = Payload::Contiguous(mem::Iova(64));
    assert_eq!(
        refused(&mut harness, &Request::read(0, 1, nowhere, 0)),
        Status::DATA_TRANSFER_ERROR
    );
    let end = harness.payload((64 << 20) - 256);
    assert_eq!(refused(&mut harness, &Request::read(0, 1, end, 0)), Status::DATA_TRANSFER_ERROR);
    let odd = harness.payload(1);
    assert_eq!(refused(&mut harness, &Request::write(0, 1, odd, 0)), Status::INVALID_FIELD);
    assert_eq!(refused(&mut harness, &Request::read(0, 0, good, 0)), Status::INVALID_FIELD);
    assert_eq!(refused(&mut harness, &Request::read(0, 8193, good, 0)), Status::INVALID_FIELD);
    assert_eq!(refused(&mut harness, &Request::read(1 << 48, 1, good, 0)), Status::INVALID_FIELD);
    assert_eq!(
        refused(&mut harness, &Request::write_zeroes(0, 1, false, 0)),
        Status::INVALID_OPCODE
    );
    assert_eq!(refused(&mut harness, &Request::discard(0, 40_000_000, 0)), Status::INVALID_FIELD);
    let short = Payload::Scattered { table: harness.at, segments: 1 };
    harness.region.fill(0, 16, 0);
    assert_eq!(refused(&mut harness, &Request::read(0, 1, short, 0)), Status::SGL_LENGTH_INVALID);
    let many = Payload::Scattered { table: harness.at, segments: 200 };
    for i in 0..200 {
        let [a, b] = Segment { at: Some(harness.at.offset(8192)), bytes: 2 }.encode();
        harness.region.write(i * 16, &a.to_le_bytes());
        harness.region.write(i * 16 + 8, &b.to_le_bytes());
    }
    assert_eq!(refused(&mut harness, &Request::read(0, 1, many, 0)), Status::INVALID_FIELD);
    assert_eq!(harness.queues[0].tags().free(), 32);
    // The largest request, and the largest one with an invalid address.
    assert!(harness.run(0, &Request::read(0, 8192, good, 0)).status.is_success());
    assert!(harness.run(0, &Request::read(0, 8192, Payload::BitBucket, 0)).status.is_success());
    assert_eq!(harness.queues[0].stats().recoveries + harness.queues[0].stats().resets, 0);
}

#[test]
fn drives_without_data_read_their_pattern_or_nothing() {
    let mut harness = Harness::new(&config(1, SECTORS, SataData::Pattern));
    assert!(harness.run(0, &Request::read(70, 3, harness.payload(0), 0)).status.is_success());
    let mut bytes = [0; 1536];
    harness.region.read(0, &mut bytes);
    for (i, sector) in bytes.chunks(512).enumerate() {
        let mut expected = [0; 512];
        media::fill_pattern(70 + i as u64, &mut expected);
        assert_eq!(sector, expected);
    }
    let mut harness = Harness::new(&config(1, SECTORS, SataData::Untouched));
    harness.region.fill(0, 512, 3);
    assert!(harness.run(0, &Request::read(70, 1, harness.payload(0), 0)).status.is_success());
    let mut bytes = [0; 512];
    harness.region.read(0, &mut bytes);
    assert_eq!(bytes, [3; 512]);
}
