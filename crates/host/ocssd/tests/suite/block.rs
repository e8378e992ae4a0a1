//! Virtual blocks, with one test per operation.

use std::io::Read;

use media::{ChunkId, InjectedFault, UnitInChunk};
use nvme::{ChunkState, PuId, Status};
use ocssd::OpenChannelSsd;
use ocssd::ppa::{
    Address, BlockingSession, FailedChunk, FreeChunkPool, PadMode, PuSet, Session, VectorOptions,
    VirtualBlock, VirtualBlockError,
};
use time::Nanos;

use crate::harness::{self, Bench, ODD, OOB, SECTOR, Shape, all_data, all_oob, at, run};

/// Sectors of a unit of [`ODD`].
const UNIT: u64 = 4;

fn read(block: &mut VirtualBlock, io: &mut BlockingSession<'_>, first: u64, count: u64) -> Vec<u8> {
    let mut bytes = vec![0; count as usize * SECTOR];
    block.read(io, first, &mut bytes).unwrap();
    bytes
}

/// Creates a block of these chunks on a drive with odd geometry.
fn setup(chunks: &[Address]) -> (Bench, OpenChannelSsd, Session, VirtualBlock) {
    let (mut bench, mut ssd, mut session) = harness::open(ODD, 32);
    let mut progress = || bench.turn();
    let block =
        VirtualBlock::create(&mut ssd, &mut session.blocking(&mut progress), chunks).unwrap();
    (bench, ssd, session, block)
}

fn three() -> [Address; 3] {
    [at(0, 0, 0, 0), at(1, 0, 3, 0), at(2, 4, 6, 0)]
}

#[test]
fn everything_appended_can_be_read_at_any_time() {
    let (mut bench, _ssd, mut session, mut block) = setup(&three());
    let mut progress = || bench.turn();
    let mut io = session.blocking(&mut progress);
    assert_eq!((block.capacity(), block.remaining_sectors(), block.is_empty()), (72, 72, true));
    let mut value = 1;
    for n in [1, 2, 3, 7, 0, 11, 4, 5, 20, 19] {
        let data = all_data(value..value + n);
        let oob = all_oob(value..value + n);
        assert_eq!(block.append_with_oob(&mut io, &data, &oob).unwrap(), value - 1);
        value += n;
        assert_eq!(block.len(), value - 1);
        assert_eq!(
            block.durable(),
            block.len() / UNIT * UNIT,
            "complete units must be on the drive"
        );
        let (mut found, mut meta) =
            (vec![0; block.len() as usize * SECTOR], vec![0; block.len() as usize * OOB]);
        block.read_with_oob(&mut io, 0, &mut found, &mut meta).unwrap();
        assert!(found == all_data(1..value) && meta == all_oob(1..value));
    }
    assert_eq!((block.len(), block.remaining_sectors()), (72, 0));
    assert!(block.stats().read > 0 && block.stats().read_from_memory > 0);
    let more = block.append(&mut io, &all_data([1])).unwrap_err();
    assert!(matches!(more, VirtualBlockError::Full { wanted: 1, remaining: 0 }));
    // Units are striped over the chunks.
    for (sector, want) in [(0, at(0, 0, 0, 0)), (4, at(1, 0, 3, 0)), (13, at(0, 0, 0, 5))] {
        assert_eq!(block.address(sector).unwrap(), want);
    }
    assert!(block.address(72).is_err());
}

#[test]
fn the_read_cursor_reads_like_read() {
    let (mut bench, _ssd, mut session, mut block) = setup(&three());
    let mut progress = || bench.turn();
    let mut io = session.blocking(&mut progress);
    block.append(&mut io, &all_data(1..31)).unwrap();
    let mut some = vec![0; 7 * SECTOR];
    assert_eq!(block.read_next(&mut io, &mut some).unwrap(), 7);
    assert!(some == all_data(1..8));
    block.seek(25);
    assert_eq!(
        block.read_next(&mut io, &mut some).unwrap(),
        5,
        "a read at the end returns fewer sectors"
    );
    assert!(some[..5 * SECTOR] == all_data(26..31));
    assert_eq!((block.read_next(&mut io, &mut some).unwrap(), block.read_cursor()), (0, 30));
    block.seek(u64::MAX);
    assert_eq!(block.read_next(&mut io, &mut some).unwrap(), 0);
    block.seek(2);
    let mut reader = block.reader(&mut io);
    let (mut odd, mut rest) = (vec![0; 700], Vec::new());
    reader.read_exact(&mut odd).unwrap();
    reader.read_to_end(&mut rest).unwrap();
    assert!([odd, rest].concat() == all_data(3..31));
    for (first, count) in [(0, 31), (30, 1), (u64::MAX, 1)] {
        let mut bytes = vec![0; count * SECTOR];
        let error = block.read(&mut io, first, &mut bytes).unwrap_err();
        assert!(matches!(error, VirtualBlockError::PastEnd { len: 30, .. }), "{error}");
    }
    block.read(&mut io, 30, &mut []).unwrap();
    assert!(matches!(
        block.read(&mut io, 0, &mut [0; 100]),
        Err(VirtualBlockError::PartialSector { .. })
    ));
    assert!(matches!(
        block.append(&mut io, &[0; 513]),
        Err(VirtualBlockError::PartialSector { .. })
    ));
    let short = block.append_with_oob(&mut io, &all_data([1]), &[0; 15]).unwrap_err();
    assert!(matches!(short, VirtualBlockError::OobLength { given: 15, sectors: 1, each: 16 }));
}

#[test]
fn what_is_not_a_block_is_refused_by_chunk() {
    let (mut bench, mut ssd, mut session) = harness::open(ODD, 32);
    let space = ssd.space();
    bench.nand().inject(InjectedFault::ChunkBad { chunk: ChunkId(1) }).unwrap();
    let mut progress = || bench.turn();
    let mut io = session.blocking(&mut progress);
    let buffer = io.buffers().allocate(4).unwrap();
    io.write(&run(&space, at(0, 1, 0, 0), 4), buffer, VectorOptions::default()).unwrap();
    let refused = |io: &mut BlockingSession<'_>, ssd: &mut OpenChannelSsd, chunks: &[Address]| {
        VirtualBlock::create(ssd, io, chunks).unwrap_err().to_string()
    };
    let say = refused(&mut io, &mut ssd, &[]);
    assert_eq!(say, "a virtual block has at least one chunk");
    let say = refused(&mut io, &mut ssd, &[at(0, 0, 0, 3), at(2, 0, 0, 0), at(0, 0, 0, 0)]);
    assert_eq!(say, "chunk 0/0/0/0 is in the block twice");
    let say = refused(&mut io, &mut ssd, &[at(0, 1, 0, 0)]);
    assert_eq!(say, "chunk 0/1/0/0 is Open, but a new block needs free chunks: erase it first");
    let say = refused(&mut io, &mut ssd, &[at(0, 0, 1, 0)]);
    assert_eq!(say, "chunk 0/0/1/0 is Offline, but a new block needs free chunks: erase it first");
    assert!(refused(&mut io, &mut ssd, &[at(0, 5, 0, 0)]).contains("5 PUs per group"));
    let mut free = FreeChunkPool::new(&mut ssd, &"0".parse().unwrap(), io.progress()).unwrap();
    let none = VirtualBlock::allocate(&mut ssd, &mut io, &mut free, 7).unwrap_err();
    assert!(matches!(none, VirtualBlockError::NoFreeChunks { wanted: 7, free: 6 }));
    assert_eq!(VirtualBlock::allocate(&mut ssd, &mut io, &mut free, 6).unwrap().capacity(), 144);
}

#[test]
fn appends_keep_all_chunks_programming() {
    // 8 units of 16 sectors on 8 PUs: two rows take two program times, not sixteen.
    let (mut bench, mut ssd, mut session) = harness::open(Shape(2, 4, 2, 4, 96, 8, 2), 64);
    let mut progress = || bench.turn();
    let mut io = session.blocking(&mut progress);
    let all = PuSet::all(&ssd.space());
    let mut free = FreeChunkPool::new(&mut ssd, &all, io.progress()).unwrap();
    let mut block = VirtualBlock::allocate(&mut ssd, &mut io, &mut free, 8).unwrap();
    let data = all_data(1..8 * 16 * 20 + 1);
    let before = bench.now;
    let mut progress = || bench.turn();
    let mut io = session.blocking(&mut progress);
    block.append(&mut io, &data).unwrap();
    let took = bench.now.since(before);
    assert!(took < Nanos(20 * 520_000), "20 rows in {took}");
}

#[test]
fn padding_makes_everything_readable_and_durable() {
    let (mut bench, mut ssd, mut session, mut block) = setup(&three());
    let mut progress = || bench.turn();
    let mut io = session.blocking(&mut progress);
    assert_eq!(
        block.pad(&mut io, PadMode::Readable).unwrap(),
        0,
        "an empty block needs no padding"
    );
    block.append(&mut io, &all_data(1..15)).unwrap();
    assert_eq!((block.durable(), block.len()), (12, 14));
    assert_eq!(block.pad(&mut io, PadMode::Unit).unwrap(), 2);
    assert_eq!((block.durable(), block.len()), (16, 16));
    assert_eq!(block.pad(&mut io, PadMode::Unit).unwrap(), 0);
    // Padding adds two units on each of three chunks.
    assert_eq!(block.pad(&mut io, PadMode::Readable).unwrap(), 24);
    let before = *block.stats();
    let all = read(&mut block, &mut io, 0, 16);
    assert!(all == all_data((1..15).chain([0, 0])));
    assert_eq!(
        block.stats().read_from_memory,
        before.read_from_memory,
        "all sectors must be read from the drive"
    );
    // Without the buffered data, the result is the same.
    let (mut again, found) = VirtualBlock::open(&mut ssd, &mut io, &block.chunks()).unwrap();
    assert_eq!((found.sectors, found.intact, found.sealed), (40, 40, false));
    assert_eq!(found.unpaired, std::iter::once(16..40).collect::<Vec<_>>());
    assert!(read(&mut again, &mut io, 0, 16) == all);
    let early = again.read(&mut io, 14, &mut [0; 4 * SECTOR]).unwrap_err();
    let VirtualBlockError::NotYetReadable(early) = early else { panic!("{early}") };
    assert!(early.into_iter().flatten().eq(16..18));
    // Appending continues at the end.
    assert_eq!(again.append(&mut io, &all_data(50..60)).unwrap(), 40);
    assert_eq!(again.pad(&mut io, PadMode::End).unwrap(), 22);
    assert_eq!(again.pad(&mut io, PadMode::End).unwrap(), 0);
    let want = all_data((1..15).chain([0; 26]).chain(50..60).chain([0; 22]));
    assert!(read(&mut again, &mut io, 0, 72) == want);
    for chunk in block.chunks() {
        let info = ssd.chunk(chunk, io.progress()).unwrap();
        assert_eq!((info.state, info.write_pointer), (ChunkState::Closed, 24));
    }
}

#[test]
fn a_failed_program_is_named_kept_and_repaired() {
    let (mut bench, mut ssd, mut session, mut block) = setup(&three());
    // Chunk 3 of PU 5 fails in its third unit.
    let chunk = ChunkId(5 * 7 + 3);
    bench.nand().inject(InjectedFault::Program { chunk, unit: UnitInChunk(2) }).unwrap();
    let mut progress = || bench.turn();
    let mut io = session.blocking(&mut progress);
    block.append(&mut io, &all_data(1..6)).unwrap();
    let error = block.append(&mut io, &all_data(6..61)).unwrap_err();
    let text = error.to_string();
    let VirtualBlockError::Unwritten(e) = error else { panic!("{error}") };
    let status = Status::CHUNK_CLOSED_EARLY;
    assert_eq!(e.chunks, [FailedChunk { index: 1, chunk: at(1, 0, 3, 0), status }]);
    // Unit 7 is the third of the second chunk; unit 10 is the next one there.
    assert_eq!(e.missing[0], 28..32);
    assert!(text.contains("chunk 1/0/3/0") && text.contains("28-31"), "{text}");
    let taken = 5 + e.accepted;
    assert_eq!((block.len(), block.durable()), (taken, 28));
    assert!(e.accepted < 55, "the block must stop accepting sectors");
    assert!(
        read(&mut block, &mut io, 0, taken) == all_data(1..taken + 1),
        "all accepted sectors must be readable"
    );
    let more = block.append(&mut io, &all_data([1])).unwrap_err();
    assert!(
        matches!(more, VirtualBlockError::Unwritten(n) if n.accepted == 0 && n.missing == e.missing)
    );
    assert!(matches!(block.pad(&mut io, PadMode::End), Err(VirtualBlockError::Unwritten(_))));
    // Invalid replacements.
    let mut replace = |block: &mut VirtualBlock, io: &mut BlockingSession<'_>, index, with| {
        block.replace(&mut ssd, io, index, with)
    };
    let gone = replace(&mut block, &mut io, 3, at(1, 0, 4, 0)).unwrap_err();
    assert!(matches!(gone, VirtualBlockError::NoSuchChunk { index: 3, chunks: 3 }));
    let twice = replace(&mut block, &mut io, 1, at(0, 0, 0, 0)).unwrap_err();
    assert!(matches!(twice, VirtualBlockError::DuplicateChunk { .. }), "{twice}");
    // A replacement that fails as well, and one that works.
    bench
        .nand()
        .inject(InjectedFault::Program { chunk: ChunkId(5 * 7 + 4), unit: UnitInChunk(2) })
        .unwrap();
    let mut progress = || bench.turn();
    let mut io = session.blocking(&mut progress);
    let bad = block.replace(&mut ssd, &mut io, 1, at(1, 0, 4, 0)).unwrap_err();
    assert!(
        matches!(bad, VirtualBlockError::ReplacementFailed { status: s, .. } if s == status),
        "{bad}"
    );
    assert_eq!(block.chunks(), three());
    let used = block.replace(&mut ssd, &mut io, 1, at(1, 0, 4, 0)).unwrap_err();
    assert!(matches!(used, VirtualBlockError::NotFree { state: ChunkState::Closed, .. }), "{used}");
    assert_eq!(block.replace(&mut ssd, &mut io, 1, at(1, 0, 5, 0)).unwrap(), at(1, 0, 3, 0));
    assert_eq!(block.chunks(), [three()[0], at(1, 0, 5, 0), three()[2]]);
    assert!(block.failed_chunks().is_empty());
    assert_eq!(block.durable(), block.len() / UNIT * UNIT);
    assert!(read(&mut block, &mut io, 0, taken) == all_data(1..taken + 1));
    block.append(&mut io, &all_data(taken + 1..73)).unwrap();
    assert!(read(&mut block, &mut io, 0, 72) == all_data(1..73));
    let (mut again, found) = VirtualBlock::open(&mut ssd, &mut io, &block.chunks()).unwrap();
    assert_eq!((found.sectors, found.sealed), (72, false));
    assert!(read(&mut again, &mut io, 0, 72) == all_data(1..73));
}

#[test]
fn unreadable_sectors_fail_alone() {
    let (mut bench, mut ssd, mut session, mut block) = setup(&three());
    let mut progress = || bench.turn();
    let mut io = session.blocking(&mut progress);
    block.append(&mut io, &all_data(1..73)).unwrap();
    let layout = *bench.nand().layout();
    for sector in [3, 9, 10, 40] {
        let phys = layout.phys_at(block.address(sector).unwrap());
        bench.nand().inject(InjectedFault::Uncorrectable { phys }).unwrap();
    }
    let mut progress = || bench.turn();
    let mut io = session.blocking(&mut progress);
    let (mut again, _) = VirtualBlock::open(&mut ssd, &mut io, &block.chunks()).unwrap();
    let mut bytes = vec![0; 60 * SECTOR];
    let error = again.read(&mut io, 2, &mut bytes).unwrap_err();
    let VirtualBlockError::Uncorrectable(u) = error else { panic!("{error}") };
    assert_eq!(
        (u.sectors.clone(), u.status),
        (vec![3..4, 9..11, 40..41], Status::UNRECOVERED_READ)
    );
    assert_eq!(u.addresses[1], again.address(9).unwrap());
    let want = (3..63).map(|v| if [4, 10, 11, 41].contains(&v) { 0 } else { v });
    assert!(bytes == all_data(want), "all other sectors must be read");
    // A copy continues after the uncorrectable sectors.
    let chunks = [at(0, 2, 1, 0), at(1, 2, 1, 0), at(2, 2, 1, 0), at(0, 3, 1, 0)];
    let mut copy = VirtualBlock::create(&mut ssd, &mut io, &chunks).unwrap();
    let copied = again.copy_to(&mut io, &mut copy).unwrap();
    assert_eq!((copied.sectors, copied.uncorrectable), (72, u.sectors));
    let want = (1..73).map(|v| if [4, 10, 11, 41].contains(&v) { 0 } else { v });
    assert!(read(&mut copy, &mut io, 0, 72) == all_data(want));
}

#[test]
fn copies_are_the_drives_where_it_can_and_always_readable() {
    for (tail, ahead) in [(0, 0), (0, 8), (3, 0), (0, 3), (2, 6)] {
        let (mut bench, mut ssd, mut session, mut block) = setup(&three());
        let mut progress = || bench.turn();
        let mut io = session.blocking(&mut progress);
        let chunks: Vec<Address> = (0..5).map(|i| at(i % 3, 2, i, 0)).collect();
        let mut other = VirtualBlock::create(&mut ssd, &mut io, &chunks).unwrap();
        let n = 60 + tail;
        block.append_with_oob(&mut io, &all_data(1..n + 1), &all_oob(1..n + 1)).unwrap();
        let before: Vec<u64> = (1_000..1_000 + ahead).collect();
        let data = all_data(before.iter().copied());
        other.append_with_oob(&mut io, &data, &all_oob(before.iter().copied())).unwrap();
        let copied = block.copy_to(&mut io, &mut other).unwrap();
        assert_eq!((copied.sectors, copied.uncorrectable.len()), (n, 0));
        // The source has 15 units on three chunks. The last two units of each chunk are not
        // readable yet. An unaligned target needs a copy by the host.
        assert_eq!(copied.sectors_by_drive > 0, ahead % UNIT == 0, "{copied:?}");
        let mut found = vec![0; other.len() as usize * SECTOR];
        let mut meta = vec![0; other.len() as usize * OOB];
        other.read_with_oob(&mut io, 0, &mut found, &mut meta).unwrap();
        let want: Vec<u64> = before.iter().copied().chain(1..n + 1).collect();
        assert!(found == all_data(want.iter().copied()) && meta == all_oob(want));
        assert!(
            read(&mut block, &mut io, 0, n) == all_data(1..n + 1),
            "the source must not change"
        );
    }
}

#[test]
fn erased_blocks_are_new_and_chunks_that_go_bad_are_named() {
    let (mut bench, mut ssd, mut session, mut block) = setup(&three());
    let mut progress = || bench.turn();
    let mut io = session.blocking(&mut progress);
    block.erase(&mut io).unwrap();
    assert_eq!(session.stats().chunks_reset, 0, "erasing an empty block must not reset chunks");
    let mut io = session.blocking(&mut progress);
    block.append(&mut io, &all_data(1..20)).unwrap();
    block.seek(4);
    block.erase(&mut io).unwrap();
    assert_eq!((block.len(), block.read_cursor(), block.stats().erased), (0, 0, 3));
    block.append(&mut io, &all_data(5..25)).unwrap();
    assert!(read(&mut block, &mut io, 0, 20) == all_data(5..25));
    let chunk = ChunkId(5 * 7 + 3);
    bench.nand().inject(InjectedFault::Erase { chunk }).unwrap();
    let mut progress = || bench.turn();
    let mut io = session.blocking(&mut progress);
    let error = block.erase(&mut io).unwrap_err();
    let VirtualBlockError::NotErased(failed) = error else { panic!("{error}") };
    assert_eq!((failed.len(), failed[0].index, failed[0].chunk), (1, 1, at(1, 0, 3, 0)));
    assert!(matches!(block.append(&mut io, &all_data([1])), Err(VirtualBlockError::Unwritten(_))));
    block.replace(&mut ssd, &mut io, 1, at(1, 1, 0, 0)).unwrap();
    block.append(&mut io, &all_data(1..73)).unwrap();
    assert!(read(&mut block, &mut io, 0, 72) == all_data(1..73));
}

#[test]
fn a_block_with_an_offline_chunk_returns_the_remaining_data() {
    let (mut bench, mut ssd, mut session, mut block) = setup(&three());
    let mut progress = || bench.turn();
    let mut io = session.blocking(&mut progress);
    block.append(&mut io, &all_data(1..73)).unwrap();
    bench.nand().inject(InjectedFault::DieFailure { pu: PuId(5) }).unwrap();
    let mut progress = || bench.turn();
    let mut io = session.blocking(&mut progress);
    let (mut again, found) = VirtualBlock::open(&mut ssd, &mut io, &block.chunks()).unwrap();
    assert_eq!((found.sectors, found.intact, found.sealed), (72, 4, false));
    let mut bytes = vec![0; 72 * SECTOR];
    let error = again.read(&mut io, 0, &mut bytes).unwrap_err();
    let VirtualBlockError::Uncorrectable(u) = error else { panic!("{error}") };
    let lost: Vec<_> = (0..6).map(|row| row * 12 + 4..row * 12 + 8).collect();
    assert_eq!(u.sectors, lost);
    let want = (1..73).map(|v| if (v - 1) / 4 % 3 == 1 { 0 } else { v });
    assert!(bytes == all_data(want));
    let error = again.replace(&mut ssd, &mut io, 1, at(1, 1, 0, 0)).unwrap_err();
    assert!(matches!(error, VirtualBlockError::Uncorrectable(u) if u.sectors.len() == 6));
}

#[test]
fn a_timeout_is_resolved_by_the_next_call() {
    let (mut bench, mut ssd, mut session, mut block) = setup(&three());
    let mut progress = || bench.turn();
    block.append(&mut session.blocking(&mut progress), &all_data(1..10)).unwrap();
    bench.cut_after = Some(bench.turns + 2);
    let mut progress = || bench.turn();
    let error = block.append(&mut session.blocking(&mut progress), &all_data(10..40)).unwrap_err();
    assert!(error.to_string().contains("timed out"), "{error}");
    let taken = block.len();
    assert!(taken > 9);
    // The drive was only slow; the append continues.
    bench.cut_after = None;
    let mut progress = || bench.turn();
    let mut io = session.blocking(&mut progress);
    assert_eq!(block.append(&mut io, &all_data(taken + 1..51)).unwrap(), taken);
    assert!(read(&mut block, &mut io, 0, 50) == all_data(1..51));
    // The session is closed with units in flight, so the block does not know whether they were
    // written.
    bench.cut_after = Some(bench.turns + 2);
    let mut progress = || bench.turn();
    block.append(&mut session.blocking(&mut progress), &all_data(51..73)).unwrap_err();
    bench.cut_after = None;
    let chunks = block.chunks();
    session.close(&mut ssd, &mut || bench.turn()).unwrap();
    let mut session = bench.session(&mut ssd, 8, 8);
    let mut progress = || bench.turn();
    let mut io = session.blocking(&mut progress);
    let error = block.append(&mut io, &all_data([1])).unwrap_err();
    assert!(matches!(error, VirtualBlockError::Unwritten(_)), "{error}");
    let (mut again, found) = VirtualBlock::open(&mut ssd, &mut io, &chunks).unwrap();
    assert!(found.sectors >= 48, "{found:?}");
    if !found.sealed {
        again.pad(&mut io, PadMode::End).unwrap();
    }
    assert!(read(&mut again, &mut io, 0, found.intact) == all_data(1..found.intact + 1));
}
