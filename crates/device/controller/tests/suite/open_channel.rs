//! The open-channel command set ([OC20 §3, §4]; [LightNVM17 §3]): addresses, chunks,
//! vector commands and their status bits.

// guarantee: B-53

use crate::common;

use common::nand;
use common::open_channel_host::{DATA, LIST, META, OTHER_LIST, OpenChannelHost, open_channel};
use media::{CellType, ChunkId, InjectedFault, NandConfig, UnitInChunk};
use mem::PAGE_BYTES;
use nvme::{ChunkDescriptor, ChunkState, DsmRange, Ppa, PpaList, PuId, SglDescriptor, Sqe, Status};
use time::Nanos;

/// Two groups of three parallel units with 11 chunks of 12 multi-plane pages of 2 x 2 sectors.
/// Every count except the planes leaves holes in the address format.
fn shape() -> NandConfig {
    let mut nand = NandConfig { cell: CellType::Mlc, paired_page_distance: 2, ..nand() };
    (nand.geometry.channels, nand.geometry.pus, nand.geometry.planes) = (2, 3, 2);
    (nand.geometry.chunks, nand.geometry.pages) = (11, 12);
    nand.geometry.page_bytes = 8192;
    nand
}

/// Sectors per write unit, and per chunk.
const UNIT: u32 = 4;
const SECTORS: u32 = 48;

fn new() -> OpenChannelHost {
    OpenChannelHost::new(open_channel(shape()))
}

fn run(d: &OpenChannelHost, chunk: u32, sectors: std::ops::Range<u32>) -> Vec<Ppa> {
    sectors.map(|s| d.ppa(1, 2, chunk, s)).collect()
}

fn put(d: &OpenChannelHost, sectors: usize, seed: u8) -> (Vec<u8>, Vec<u8>) {
    let data: Vec<u8> = (0..sectors * 4096).map(|i| (i / 4096 + i / 7) as u8 ^ seed).collect();
    let meta: Vec<u8> = (0..sectors * 16).map(|i| (i * 5) as u8 ^ seed).collect();
    d.memory.write(DATA, &data);
    d.memory.write(META, &meta);
    (data, meta)
}

fn get(d: &OpenChannelHost, sectors: usize) -> (Vec<u8>, Vec<u8>) {
    let (mut data, mut meta) = (vec![0; sectors * 4096], vec![0; sectors * 16]);
    d.memory.read(DATA, &mut data);
    d.memory.read(META, &mut meta);
    (data, meta)
}

fn wipe(d: &OpenChannelHost) {
    d.memory.fill(DATA, META + 64 * PAGE_BYTES / 2, 0xee);
}

fn chunk_info(d: &mut OpenChannelHost, group: u32, pu: u32, chunk: u32) -> (ChunkState, u64, u8) {
    let layout = *d.drive.nand_mut().unwrap().layout();
    let flat = layout.chunk(PuId(group * 3 + pu), chunk);
    let info = d.drive.nand_mut().unwrap().chunk_info(flat).unwrap();
    (info.state, info.write_pointer.into(), info.wear as u8)
}

#[test]
fn geometry_and_chunk_log_tell_what_there_is() {
    let mut drive = controller::Controller::new(open_channel(shape())).unwrap();
    let (mut controller, _port) = common::attach(&mut drive);
    let oc = controller.info().open_channel.unwrap();
    let g = oc.geometry;
    assert_eq!((g.groups, g.pus, g.chunks, g.sectors), (2, 3, 11, SECTORS));
    assert_eq!((g.ws_min, g.ws_opt, g.mw_cunits, g.oob_bytes), (UNIT, UNIT, 2 * UNIT, 16));
    assert!(oc.can_copy);
    assert_eq!(oc.timing.read_typical, 50_000);
    let mut progress = || {
        time::Component::poll(&mut drive, Nanos::ZERO);
    };
    let all = controller.chunks(0, 66, &mut progress).unwrap();
    assert_eq!(all.len(), 66);
    for (i, chunk) in all.iter().enumerate() {
        let a = oc.format.unpack(Ppa(chunk.slba.get()));
        let flat = (a.group * 3 + a.pu) * 11 + a.chunk;
        assert_eq!((flat as usize, a.sector), (i, 0));
        assert_eq!((chunk.cnlb.get(), chunk.wp.get()), (SECTORS.into(), 0));
        assert_eq!(chunk.state, ChunkState::Free.to_bits());
    }
    assert_eq!(controller.chunks(60, 3, &mut progress).unwrap(), all[60..63]);
    assert!(
        controller.chunks(60, 7, &mut progress).is_err(),
        "a chunk report past the end must fail"
    );
}

#[test]
fn vectors_carry_data_and_metadata_of_1_to_64_sectors() {
    let mut d = new();
    for (chunk, count) in [(0, 4), (1, 8), (2, 48), (3, 44)] {
        let ppas = run(&d, chunk, 0..count);
        let (data, meta) = put(&d, count as usize, chunk as u8);
        let sqe = d.with_data(Sqe::vector_write(1, d.list(&ppas)), count as usize);
        let sqe = d.with_meta(sqe);
        assert_eq!(d.run(sqe).0.status, Status::SUCCESS);
        let readable = if count == 48 { 48 } else { count.saturating_sub(8) };
        for n in [1, 2, 3, 7, readable].into_iter().filter(|n| (1..=readable).contains(n)) {
            wipe(&d);
            // In reverse order, to check that every address has its own destination.
            let back: Vec<Ppa> = ppas[..n as usize].iter().rev().copied().collect();
            let sqe = d.with_data(Sqe::vector_read(1, d.list(&back)), n as usize);
            let sqe = d.with_meta(sqe);
            assert_eq!(d.run(sqe).0.status, Status::SUCCESS);
            let (found, found_meta) = get(&d, n as usize);
            let places = (0..n as usize).rev().zip(found.chunks(4096).zip(found_meta.chunks(16)));
            for (i, (sector, oob)) in places {
                assert!(sector == &data[i * 4096..][..4096], "sector {i}");
                assert_eq!(oob, &meta[i * 16..][..16]);
            }
        }
    }
    // 64 addresses over several chunks.
    let ppas: Vec<Ppa> = (4..8).flat_map(|chunk| run(&d, chunk, 0..16)).collect();
    let (data, _) = put(&d, 64, 9);
    assert_eq!(d.write(&ppas).status, Status::SUCCESS);
    wipe(&d);
    let ppas: Vec<Ppa> = (4..8).flat_map(|chunk| run(&d, chunk, 0..8)).collect();
    assert_eq!(d.read(&ppas).status, Status::SUCCESS);
    let (found, _) = get(&d, 32);
    for i in 0..32 {
        assert!(found[i * 4096..][..4096] == data[(i / 8 * 16 + i % 8) * 4096..][..4096]);
    }
}

#[test]
fn pages_and_segmented_lists_carry_data_too() {
    let mut d = new();
    let ppas = run(&d, 0, 0..16);
    let (data, _) = put(&d, 16, 3);
    // PRP: the first page, and a list of the others in reverse.
    let mut sqe = Sqe::vector_write(1, d.list(&ppas));
    let page = |i: usize| d.at.offset((DATA + i * PAGE_BYTES) as u64).0;
    for i in 1..16 {
        d.memory.write(OTHER_LIST + (i - 1) * 8, &page(16 - i).to_le_bytes());
    }
    sqe.set_prp(page(0), d.at.offset(OTHER_LIST as u64).0);
    assert_eq!(d.run(sqe).0.status, Status::SUCCESS);
    wipe(&d);
    // SGL: a segment of blocks whose boundaries are inside sectors.
    let mut sqe = Sqe::vector_read(1, d.list(&ppas[..8]));
    let lengths = [4096 + 100, 96, 3 * 4096 - 196, 4 * 4096];
    let mut at = d.at.offset(DATA as u64).0;
    for (i, length) in lengths.into_iter().enumerate() {
        let block = SglDescriptor::DataBlock { address: at, length };
        for (w, word) in block.encode().into_iter().enumerate() {
            d.memory.write(OTHER_LIST + i * 16 + w * 8, &word.to_le_bytes());
        }
        at += u64::from(length);
    }
    let address = d.at.offset(OTHER_LIST as u64).0;
    sqe.set_sgl(SglDescriptor::Segment { address, length: 64, last: true });
    assert_eq!(d.run(sqe).0.status, Status::SUCCESS);
    let (found, _) = get(&d, 8);
    for i in 0..8 {
        let from = if i == 0 { 0 } else { 16 - i };
        assert!(found[i * 4096..][..4096] == data[from * 4096..][..4096], "sector {i}");
    }
}

#[test]
fn addresses_in_holes_fail_one_by_one() {
    let mut d = new();
    d.fill(1, 2, 0, 4);
    let good = d.ppa(1, 2, 0, 0);
    // Chunks 11 to 15, sectors 48 to 63 and parallel unit 3 are encodable, but do not exist.
    let holes = [d.ppa(1, 2, 11, 0), d.ppa(1, 3, 0, 0), d.ppa(1, 2, 0, 48), Ppa(u64::MAX)];
    for (i, hole) in holes.into_iter().enumerate() {
        let mut ppas = [good; 8];
        (ppas[1], ppas[3 + i]) = (hole, hole);
        let ended = d.read(&ppas);
        assert_eq!((ended.status, ended.result), (Status::LBA_OUT_OF_RANGE, 1 << 1 | 1 << (3 + i)));
        assert_eq!(d.read(&[hole]).result, 1);
        assert_eq!(d.reset(&[good, hole]).result, 2);
        assert!(d.write(&[hole; 4]).status.is(Status::LBA_OUT_OF_RANGE));
    }
    assert_eq!(d.read(&[good]).status, Status::SUCCESS, "the command must not reset any chunk");
    let sqe = d.with_data(Sqe::vector_read(1, PpaList::List { at: 0, count: 2 }), 2);
    assert_eq!(d.run(sqe).0.status, Status::DATA_TRANSFER_ERROR);
}

#[test]
fn writes_are_whole_units_in_order() {
    let mut d = new();
    let at = |d: &OpenChannelHost, range| run(d, 0, range);
    let ended = d.write(&at(&d, 4..8));
    assert_eq!((ended.status, ended.result), (Status::OUT_OF_ORDER_WRITE, 0b1111));
    assert_eq!(
        d.write(&at(&d, 0..3)).status,
        Status::INVALID_FIELD,
        "a partial write unit must be refused"
    );
    let mixed = [0, 1, 3, 2].map(|s| d.ppa(1, 2, 0, s));
    assert_eq!(d.write(&mixed).status, Status::OUT_OF_ORDER_WRITE);
    // The second unit is not contiguous, so nothing is written.
    let ppas = [at(&d, 0..4), at(&d, 8..12)].concat();
    let ended = d.write(&ppas);
    assert_eq!((ended.status, ended.result), (Status::OUT_OF_ORDER_WRITE, 0b1111_0000));
    assert_eq!(chunk_info(&mut d, 1, 2, 0), (ChunkState::Free, 0, 0));
    assert_eq!(d.write(&at(&d, 0..48)).status, Status::SUCCESS);
    assert_eq!(chunk_info(&mut d, 1, 2, 0), (ChunkState::Closed, 48, 0));
    for first in [0, 44] {
        let ended = d.write(&at(&d, first..first + 4));
        assert_eq!(
            (ended.status, ended.result),
            (Status::OUT_OF_ORDER_WRITE, 0b1111),
            "the chunk is closed"
        );
    }
}

#[test]
fn reads_of_what_is_not_there_or_not_readable_yet() {
    let mut d = new();
    d.fill(1, 2, 0, 3);
    // Three units are written; a unit is readable only after two more.
    let ended = d.read(&run(&d, 0, 0..16));
    assert_eq!((ended.status, ended.result), (Status::UNWRITTEN, 0xfff0));
    assert_eq!(d.read(&run(&d, 0, 0..4)).status, Status::SUCCESS);
    let ended = d.read(&[d.ppa(0, 0, 5, 0)]);
    assert_eq!((ended.status, ended.result), (Status::UNWRITTEN, 1));
}

#[test]
fn resets_return_descriptors_and_each_chunk_is_reset_once() {
    let mut d = new();
    d.fill(1, 2, 0, 12);
    d.fill(1, 2, 1, 1);
    let ppas = [d.ppa(1, 2, 0, 7), d.ppa(1, 2, 1, 0)];
    let sqe = d.with_meta(Sqe::vector_reset(1, d.list(&ppas)));
    let (ended, time) = d.run(sqe);
    assert_eq!(
        (ended.status, time),
        (Status::SUCCESS, Nanos::from_millis(6)),
        "operations on one parallel unit are serialized"
    );
    let mut bytes = [0; 2 * ChunkDescriptor::BYTES];
    d.memory.read(META, &mut bytes);
    let (chunks, _) = bytes.as_chunks::<{ ChunkDescriptor::BYTES }>();
    for (raw, chunk) in chunks.iter().zip([0, 1]) {
        let descriptor = ChunkDescriptor::from_bytes(*raw);
        assert_eq!(descriptor.state, ChunkState::Free.to_bits());
        assert_eq!((descriptor.slba.get(), descriptor.wp.get()), (d.ppa(1, 2, chunk, 0).0, 0));
        assert!(descriptor.wear_index > 0, "an erase must increase the wear index");
    }
    assert_eq!(chunk_info(&mut d, 1, 2, 0), (ChunkState::Free, 0, 1));
    let twice = [d.ppa(1, 2, 0, 0), d.ppa(1, 2, 1, 0), d.ppa(1, 2, 0, 3)];
    let ended = d.reset(&twice);
    assert_eq!((ended.status, ended.result), (Status::INVALID_RESET, 0b100));
    d.fill(1, 2, 0, 2);
}

#[test]
fn copies_stay_inside_of_the_drive() {
    let mut d = new();
    let source = run(&d, 0, 0..48);
    let (data, meta) = put(&d, 48, 5);
    let sqe = d.with_data(Sqe::vector_write(1, d.list(&source)), 48);
    let sqe = d.with_meta(sqe);
    assert_eq!(d.run(sqe).0.status, Status::SUCCESS);
    let target: Vec<Ppa> = (0..16).map(|s| d.ppa(0, 0, 7, s)).collect();
    let from: Vec<Ppa> = (0..16).map(|i| source[i * 3]).collect();
    let copy = |d: &OpenChannelHost, from: &[Ppa], to: &[Ppa]| {
        Sqe::vector_copy(1, d.list(from), d.list_at(OTHER_LIST, to))
    };
    let sqe = copy(&d, &from, &target);
    let before = d.drive.nand_mut().unwrap().buffer_stats();
    assert_eq!(d.run(sqe).0.status, Status::SUCCESS);
    let after = d.drive.nand_mut().unwrap().buffer_stats();
    assert_eq!((after.copies, after.shares), (before.copies, before.shares + 16));
    wipe(&d);
    let sqe = d.with_data(Sqe::vector_read(1, d.list(&target[..8])), 8);
    let sqe = d.with_meta(sqe);
    assert_eq!(d.run(sqe).0.status, Status::SUCCESS);
    let (found, oob) = get(&d, 8);
    for i in 0..8 {
        assert!(found[i * 4096..][..4096] == data[i * 3 * 4096..][..4096]);
        assert_eq!(oob[i * 16..][..16], meta[i * 3 * 16..][..16]);
    }
    // With a metadata pointer, the destination gets these out-of-band bytes.
    let other: Vec<Ppa> = (0..16).map(|s| d.ppa(0, 0, 8, s)).collect();
    let (_, meta) = put(&d, 16, 9);
    let sqe = d.with_meta(copy(&d, &from, &other));
    assert_eq!(d.run(sqe).0.status, Status::SUCCESS);
    let mut bad = copy(&d, &from[..4], &[16, 17, 18, 19].map(|s| d.ppa(0, 0, 8, s)));
    bad.mptr = (d.at.0 + (1 << 40)).into();
    assert_eq!(d.run(bad).0.status, Status::DATA_TRANSFER_ERROR);
    wipe(&d);
    let sqe = d.with_data(Sqe::vector_read(1, d.list(&other[..8])), 8);
    let sqe = d.with_meta(sqe);
    assert_eq!(d.run(sqe).0.status, Status::SUCCESS);
    let (found, oob) = get(&d, 8);
    for i in 0..8 {
        assert!(found[i * 4096..][..4096] == data[i * 3 * 4096..][..4096]);
    }
    assert_eq!(oob, meta[..8 * 16]);
    // An unreadable source sets its status bit, and the destination does not change.
    let mut unreadable = from[..4].to_vec();
    unreadable[2] = d.ppa(1, 1, 1, 1);
    let next: Vec<Ppa> = (16..20).map(|s| d.ppa(0, 0, 7, s)).collect();
    let sqe = copy(&d, &unreadable, &next);
    let ended = d.run(sqe).0;
    assert_eq!((ended.status, ended.result), (Status::UNWRITTEN, 0b100));
    let sqe = copy(&d, &from[..4], &next);
    assert_eq!(d.run(sqe).0.status, Status::SUCCESS);
    let sqe = copy(&d, &from[..4], &next);
    assert_eq!(d.run(sqe).0.status, Status::OUT_OF_ORDER_WRITE);
}

#[test]
fn failures_close_chunks_early_and_say_which_unit() {
    let mut d = new();
    let layout = *d.drive.nand_mut().unwrap().layout();
    let flat = layout.chunk(PuId(5), 0);
    let nand = d.drive.nand_mut().unwrap();
    nand.inject(InjectedFault::Program { chunk: flat, unit: UnitInChunk(2) }).unwrap();
    let ended = d.write(&run(&d, 0, 0..12));
    assert_eq!((ended.status, ended.result), (Status::CHUNK_CLOSED_EARLY, 0xf00));
    assert_eq!(chunk_info(&mut d, 1, 2, 0), (ChunkState::Closed, 8, 0));
    assert_eq!(
        d.read(&run(&d, 0, 0..8)).status,
        Status::SUCCESS,
        "units before a failed program are readable without their paired pages"
    );
    assert_eq!(d.read(&run(&d, 0, 8..12)).status, Status::UNRECOVERED_READ);
    for first in [8, 12] {
        assert_eq!(d.write(&run(&d, 0, first..first + 4)).status, Status::OUT_OF_ORDER_WRITE);
    }
    // An erase that fails takes the chunk offline.
    assert_eq!(d.reset(&[d.ppa(1, 2, 0, 0)]).status, Status::SUCCESS);
    let other = ChunkId(flat.0 + 1);
    d.drive.nand_mut().unwrap().inject(InjectedFault::Erase { chunk: other }).unwrap();
    let ended = d.reset(&[d.ppa(1, 2, 0, 0), d.ppa(1, 2, 1, 0)]);
    assert_eq!(ended.result, 0b10);
    assert!(ended.status.is_media_error());
    assert_eq!(chunk_info(&mut d, 1, 2, 1).0, ChunkState::Offline);
    let ended = d.write(&run(&d, 1, 0..4));
    assert_eq!((ended.status, ended.result), (Status::OFFLINE_CHUNK, 0b1111));
    let ended = d.reset(&[d.ppa(1, 2, 0, 0), d.ppa(1, 2, 1, 0)]);
    assert_eq!((ended.status, ended.result), (Status::OFFLINE_CHUNK, 0b10));
    assert!(d.read(&run(&d, 1, 0..1)).status.is(Status::UNRECOVERED_READ));
}

#[test]
fn plain_commands_take_physical_addresses_as_blocks() {
    let mut d = new();
    let first = d.ppa(1, 0, 3, 0).0;
    let (data, _) = put(&d, 48, 1);
    let sqe = d.with_data(Sqe::write(1, first, 48, false), 48);
    assert_eq!(d.run(sqe).0.status, Status::SUCCESS);
    wipe(&d);
    let sqe = d.with_data(Sqe::read(1, first + 5, 20), 20);
    assert_eq!(d.run(sqe).0.status, Status::SUCCESS);
    assert!(get(&d, 20).0 == data[5 * 4096..25 * 4096]);
    for (slba, nlb, status) in [
        (first + 40, 9, Status::LBA_OUT_OF_RANGE),
        (first + 48, 1, Status::LBA_OUT_OF_RANGE),
        (first, 65, Status::INVALID_FIELD),
    ] {
        let sqe = d.with_data(Sqe::read(1, slba, nlb), nlb as usize);
        assert_eq!(d.run(sqe).0.status, status, "{nlb} from {}", slba - first);
    }
    // Dataset Management resets whole chunks.
    let deallocate = |d: &mut OpenChannelHost, slba, nlb| {
        d.memory.write(DATA, &DsmRange::new(slba, nlb).to_bytes());
        let mut sqe = Sqe::dataset_management(1, 1, true);
        sqe.set_sgl(SglDescriptor::DataBlock { address: d.at.0, length: 16 });
        d.run(sqe).0.status
    };
    assert_eq!(deallocate(&mut d, first, 20), Status::INVALID_FIELD);
    assert_eq!(chunk_info(&mut d, 1, 0, 3).0, ChunkState::Closed);
    assert_eq!(deallocate(&mut d, first, SECTORS), Status::SUCCESS);
    assert_eq!(chunk_info(&mut d, 1, 0, 3), (ChunkState::Free, 0, 1));
    assert_eq!(d.run(Sqe::flush(1)).0.status, Status::SUCCESS);
    assert_eq!(d.run(Sqe::write_zeroes(1, first, 4, false)).0.status, Status::INVALID_OPCODE);
}

#[test]
fn power_cuts_tear_programs_and_interrupt_erases() {
    let mut d = new();
    d.fill(1, 2, 0, 12);
    d.fill(1, 2, 1, 4);
    let ppas = run(&d, 1, 16..20);
    let sqe = d.with_data(Sqe::vector_write(1, d.list(&ppas)), 4);
    d.send(sqe, 1);
    let reset = Sqe::vector_reset(1, d.list(&[d.ppa(0, 0, 0, 0)]));
    d.send(reset, 2);
    let middle = d.now + Nanos(300_000);
    d.run_to(middle);
    let OpenChannelHost { drive, .. } = d;
    let mut d = OpenChannelHost::from_drive(drive.power_cut().power_on().unwrap());
    assert_eq!(d.read(&run(&d, 0, 0..48)).status, Status::SUCCESS);
    assert_eq!(chunk_info(&mut d, 1, 2, 1).1, 20, "the write pointer must include the torn unit");
    // Writes continue after the failed unit.
    for first in [20, 24, 28] {
        assert_eq!(d.write(&run(&d, 1, first..first + 4)).status, Status::SUCCESS);
    }
    let ended = d.read(&run(&d, 1, 12..20));
    assert_eq!((ended.status, ended.result), (Status::UNRECOVERED_READ, 0xf0));
    assert!(d.write(&[0, 1, 2, 3].map(|s| d.ppa(0, 0, 0, s))).status.is_media_error());
    assert_eq!(d.reset(&[d.ppa(0, 0, 0, 0)]).status, Status::SUCCESS);
    d.fill(0, 0, 0, 1);
}

#[test]
fn writes_in_flight_are_not_overtaken_when_latencies_are_switched_off() {
    let (fetch, rate) = (Nanos::from_micros(3), 100_000_000);
    for (fetch, rate, to_device) in
        [(fetch, 0, 0), (Nanos::ZERO, rate, 0), (Nanos::ZERO, rate, rate), (fetch, rate, rate)]
    {
        let mut config = open_channel(shape());
        config.controller.fetch_latency = fetch;
        config.controller.dma_bytes_per_sec = rate;
        config.controller.dma_to_device_bytes_per_sec = to_device;
        let mut d = OpenChannelHost::new(config);
        for unit in 0..4 {
            let ppas = run(&d, 0, unit * UNIT..(unit + 1) * UNIT);
            let list = d.list_at(LIST + unit as usize * 64, &ppas);
            d.drive.set_zero_latency(unit >= 2);
            d.send(d.with_data(Sqe::vector_write(1, list), UNIT as usize), unit.into());
        }
        let ended = d.wait();
        assert_eq!(ended.len(), 4);
        assert!(ended.iter().all(|done| done.status == Status::SUCCESS), "{ended:?}");
        assert_eq!(chunk_info(&mut d, 1, 2, 0), (ChunkState::Open, 16, 0));
        // Nothing is in flight: no time passes.
        let start = d.now;
        let ppas = run(&d, 0, 16..20);
        assert_eq!((d.write(&ppas).status, d.now), (Status::SUCCESS, start));
    }
}
