//! Random requests at every queue depth, compared with a model of the contents of each sector.

use std::collections::HashMap;
use std::ops::Range;

use rng::Rng;
use sluice_driver::{
    HardwareQueue, LowLevelDriver, Op, Payload, Request, Segment, TaskWork, UringConfig,
};
use time::Nanos;

use super::fixture::{Disk, Fixture, Loop, wait};

/// Maximum sectors per request.
const REQUEST_SECTORS_MAX: u64 = 8;
/// Memory per tag: data, then a table.
const TAG_BYTES: usize = 16_384;
const TABLE_OFFSET: usize = 8 * 1024;

/// Fills sectors with the contents of version `version`; 0 is zeros.
fn stamp(out: &mut [u8], sector: usize, lba: u64, version: u64) {
    for (i, sector) in out.chunks_mut(sector).enumerate() {
        for (j, word) in sector.chunks_mut(8).enumerate() {
            let value = (lba + i as u64) << 40 ^ version.wrapping_mul(0x9e37_79b9) ^ j as u64;
            word.copy_from_slice(&if version == 0 { 0 } else { value }.to_le_bytes());
        }
    }
}

/// Splits a payload into segments of whole sectors.
fn segments(harness: &Fixture, rng: &mut Rng, at: usize, sectors: u64) -> Vec<Segment> {
    let s = harness.sector() as u64;
    let mut out = Vec::new();
    let mut left = sectors;
    while left > 0 {
        let count = rng.below(left) + 1;
        let from = at as u64 + (sectors - left) * s;
        out.push(Segment { at: Some(harness.memory.at(from as usize)), bytes: (count * s) as u32 });
        left -= count;
    }
    out
}

struct InFlight {
    request: Request,
    at: usize,
}

/// Runs requests with up to `depth` in flight, and checks every read. `model` has, for each sector,
/// the tag of its last write plus one; 0 for zeros.
fn drive(
    harness: &mut Fixture,
    rng: &mut Rng,
    depth: u64,
    names: Range<u64>,
    model: &mut HashMap<u64, u64>,
) {
    let s = harness.sector();
    let sectors = harness.queue.limits().sectors;
    let discards = harness.device.features().discard;
    let mut in_flight: HashMap<u16, InFlight> = HashMap::new();
    let mut busy: Vec<(u64, u64)> = Vec::new();
    let Range { start: mut sent, end } = names;
    while sent < end || !in_flight.is_empty() {
        let mut batch = 0;
        while sent < end && (in_flight.len() as u64) < depth && batch < 1 + rng.below(8) {
            let length = rng.below(REQUEST_SECTORS_MAX) + 1;
            let lba = rng.below(sectors - length + 1);
            if busy.iter().any(|(from, to)| lba < *to && *from < lba + length) {
                break;
            }
            let tag = harness.queue.tags_mut().take().unwrap();
            let at = usize::from(tag.0) * TAG_BYTES;
            let data = match rng.below(3) {
                0 => {
                    let pieces = segments(harness, rng, at, length);
                    harness.memory.table(at + TABLE_OFFSET, &pieces)
                }
                _ => Payload::Contiguous(harness.memory.at(at)),
            };
            let length = length as u32;
            let request = match rng.below(16) {
                0..7 => Request::read(lba, length, data, sent),
                7 => Request::flush(sent),
                8 if discards => Request::discard(lba, length, sent),
                9 if discards => Request::write_zeroes(lba, length, rng.below(2) == 0, sent),
                _ => Request { fua: rng.below(8) == 0, ..Request::write(lba, length, data, sent) },
            };
            if request.op == Op::Write {
                let mut bytes = vec![0; length as usize * s];
                stamp(&mut bytes, s, lba, sent + 1);
                harness.memory.region.write(at, &bytes);
            } else if request.op == Op::Read {
                harness.memory.region.fill(at, length as usize * s, 0xdd);
            }
            harness.queue.bind_tag_cmd(tag, &request, Nanos(sent)).unwrap();
            if request.op != Op::Flush {
                busy.push((lba, lba + u64::from(length)));
            }
            in_flight.insert(tag.0, InFlight { request, at });
            (sent, batch) = (sent + 1, batch + 1);
        }
        harness.queue.issue_tags();
        if in_flight.is_empty() {
            continue;
        }
        let event = wait(&mut harness.queue);
        let InFlight { request, at } =
            in_flight.remove(&event.tag.0).expect("each command completes once");
        assert!(event.status.is_success(), "{request:?}: {}", event.status);
        assert_eq!(harness.queue.detach_tag_cmd(event.tag).unwrap().user, request.tag);
        harness.queue.release_tags(&[event.tag]).unwrap();
        let Request { op, lba, sectors, .. } = request;
        if op != Op::Flush {
            busy.retain(|range| *range != (lba, lba + u64::from(sectors)));
        }
        for i in 0..u64::from(sectors) {
            let version = match op {
                Op::Write => request.tag + 1,
                Op::Discard | Op::WriteZeroes => 0,
                _ => break,
            };
            model.insert(lba + i, version);
        }
        if op == Op::Read {
            for i in 0..u64::from(sectors) {
                let found = harness.memory.bytes(at + i as usize * s, s);
                let mut wanted = vec![0; s];
                stamp(&mut wanted, s, lba + i, model.get(&(lba + i)).copied().unwrap_or(0));
                assert!(found == wanted, "{request:?}: sector {}", lba + i);
            }
        }
    }
    assert_eq!(harness.queue.fetch_event(), None);
    assert_eq!(harness.queue.tags().bound(), 0);
    let stats = harness.queue.stats();
    assert_eq!(stats.spurious_completions, 0);
    assert_eq!(stats.entries, stats.completions);
}

fn depths(path: &std::path::Path, config: UringConfig, count: u64, seed: u64) {
    let mut harness = Fixture::open(path, UringConfig { depth: 64, ..config });
    let (mut rng, mut model) = (Rng::new(seed), HashMap::new());
    for (round, depth) in (0..).zip([1, 2, 3, 8, 17, 32, 64]) {
        let names = round * count..(round + 1) * count;
        drive(&mut harness, &mut rng, depth, names, &mut model);
    }
}

#[test]
fn ten_thousand_requests_read_back_what_was_written() {
    let disk = Disk::new(2 << 20);
    let config = UringConfig { sector_bytes: Some(512), ..UringConfig::default() };
    depths(&disk.path, config, 1_450, 1);
}

#[test]
fn the_other_configurations_read_back_what_was_written() {
    let disk = Disk::new(2 << 20);
    let default = UringConfig { sector_bytes: Some(512), ..UringConfig::default() };
    for (seed, config) in [
        UringConfig { direct: false, ..default },
        UringConfig { registered_buffers: false, registered_file: false, ..default },
        UringConfig { submission_thread: Some(Default::default()), ..default },
        UringConfig { task_work: TaskWork::Cooperative, ..default },
        UringConfig { task_work: TaskWork::Deferred, ..default },
        UringConfig { submit_batch: 1, ..default },
    ]
    .into_iter()
    .enumerate()
    {
        std::fs::write(&disk.path, vec![0; 2 << 20]).unwrap();
        depths(&disk.path, config, 150, seed as u64);
    }
}

#[test]
fn a_loop_device_reads_back_what_was_written() {
    let disk = Disk::new(4 << 20);
    let Some(device) = Loop::new(&disk, &[]) else { return };
    depths(&device.path, UringConfig::default(), 600, 7);
}
