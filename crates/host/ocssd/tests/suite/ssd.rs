//! Attaching, identification, chunk information, queues, and free chunks.

use controller::PersonalityKind;
use driver::DriverError;
use media::{ChunkId, InjectedFault, MediaConfig};
use nvme::{ChunkState, Status};
use ocssd::ppa::{FreeChunkPool, PuId, PuSet, Session, SessionConfig, VectorOptions};
use ocssd::vector::DataSegments;
use ocssd::{OcssdError, OpenChannelSsd};
use time::Nanos;

use crate::harness::{self, Bench, ODD, POLL_LIMIT, at, run};

#[test]
fn a_drive_that_manages_its_own_flash_is_refused_by_name() {
    let mut config = harness::config(harness::Shape(2, 2, 1, 32, 16, 1, 2));
    config.personality = PersonalityKind::Block;
    config.ftl.over_provisioning = 0.5;
    let mut bench = Bench::new(config);
    let port = bench.drive().attach().unwrap();
    let error = OpenChannelSsd::attach(port, &mut || bench.turn(), POLL_LIMIT).unwrap_err();
    assert!(matches!(&error, OcssdError::NotOpenChannel { serial } if serial == "ppa"), "{error}");
    // A drive that completes no command.
    let port = bench.drive().attach().unwrap();
    let error = OpenChannelSsd::attach(port, &mut || {}, 10).unwrap_err();
    assert!(matches!(error, OcssdError::Driver(DriverError::Timeout { polls: 10, .. })), "{error}");
}

#[test]
fn geometry_capabilities_and_performance_are_the_drives() {
    let mut bench = Bench::new(harness::config(ODD));
    let ssd = bench.attach();
    let g = *ssd.geometry();
    assert_eq!((g.groups, g.pus, g.chunks, g.sectors), (3, 5, 7, 24));
    assert_eq!((g.ws_min, g.ws_opt, g.mw_cunits, g.oob_bytes), (4, 4, 8, 16));
    assert_eq!((ssd.can_copy(), ssd.max_open_chunks()), (true, None));
    let p = ssd.performance();
    assert_eq!(
        (p.read.0, p.write.0, p.reset.0),
        (Nanos::from_micros(50), Nanos::from_micros(500), Nanos::from_millis(3),)
    );
    assert_eq!(p.pu_write_bytes_per_sec, Some(4 * 512 * 2_000), "one write unit every 500 us");
    assert_eq!(p.pu_read_bytes_per_sec, Some(4 * 512 * 20_000));
    assert_eq!(ssd.space().format().to_string(), "group 2 | pu 3 | chunk 3 | sector 5");
}

#[test]
fn the_chunk_report_is_typed_whole_and_by_parallel_unit() {
    let (mut bench, mut ssd, mut session) = harness::open(ODD, 32);
    let space = ssd.space();
    let mut progress = || bench.turn();
    let all = ssd.chunks(&mut progress).unwrap();
    assert_eq!(all.len(), 3 * 5 * 7);
    for (n, chunk) in (0..).zip(&all) {
        assert_eq!(space.chunk_index(chunk.address), Ok(n));
        assert_eq!((chunk.state, chunk.write_pointer, chunk.sectors), (ChunkState::Free, 0, 24));
        assert!(chunk.sequential && !chunk.is_closed_early());
    }
    let first = at(2, 3, 4, 0);
    let mut io = session.blocking(&mut progress);
    let buffer = io.buffers().allocate(24).unwrap();
    let buffer = io.write(&run(&space, first, 8), buffer, VectorOptions::default()).unwrap();
    io.write(&run(&space, at(2, 3, 5, 0), 24), buffer, VectorOptions::default()).unwrap();
    io.reset(&run(&space, at(2, 3, 6, 0), 1)).unwrap();
    let of_pu = ssd.chunks_on_pu(PuId(13), &mut progress).unwrap();
    let seen: Vec<_> = of_pu[3..].iter().map(|c| (c.state, c.write_pointer)).collect();
    use ChunkState::{Closed, Free, Open};
    assert_eq!(seen, [(Free, 0), (Open, 8), (Closed, 24), (Free, 0)]);
    assert_eq!(of_pu[4], ssd.chunk(at(2, 3, 4, 23), &mut progress).unwrap());
    assert!(of_pu[6].wear_index > of_pu[3].wear_index, "an erase must increase the wear index");
    assert!(matches!(ssd.chunks_on_pu(PuId(15), &mut progress), Err(OcssdError::Address(_))));
    assert!(matches!(ssd.chunk(at(3, 0, 0, 0), &mut progress), Err(OcssdError::Address(_))));
    let set: PuSet = "0,13-14".parse().unwrap();
    assert_eq!(ssd.chunks_on_pus(&set, &mut progress).unwrap()[7..14], of_pu);
    assert!(ssd.chunks_on_pus(&"14-15".parse().unwrap(), &mut progress).is_err());
}

#[test]
fn queues_are_made_and_deleted_and_their_commands_come_back() {
    let mut config = harness::config(ODD);
    config.controller.max_io_queues = 2;
    let mut bench = Bench::new(config);
    let mut ssd = bench.attach();
    let space = ssd.space();
    let mut progress = || bench.turn();
    assert!(
        ssd.create_queue(0, None, &mut progress).is_err(),
        "a queue of depth 0 must be refused"
    );
    assert!(ssd.create_queue(u16::MAX, None, &mut progress).is_err());
    for answered in [false, true, false] {
        let mut first = ssd.create_queue(1, None, &mut progress).unwrap();
        let second = ssd.create_queue(8, None, &mut progress).unwrap();
        let none = ssd.create_queue(8, None, &mut progress).unwrap_err();
        let no_queue = DriverError::NoFreeQueue { granted: 2 };
        assert_eq!(none.to_string(), no_queue.to_string());
        let ppas = run(&space, at(0, 0, 0, 0), 2);
        first.read(ppas.iter().copied(), DataSegments::BitBucket, None, 77).unwrap();
        assert!(
            first.read(ppas.iter().copied(), DataSegments::BitBucket, None, 78).is_err(),
            "depth 1"
        );
        first.ring(false);
        (0..100 * u32::from(answered)).for_each(|_| progress());
        let mut back = Vec::new();
        ssd.delete_queue(first, &mut |ended| back.push(ended), &mut progress).unwrap();
        assert_eq!(back.len(), 1);
        let status = if answered { Status::UNWRITTEN } else { Status::ABORTED_SQ_DELETED };
        assert_eq!((back[0].user_data, back[0].failed, back[0].status), (77, 0b11, status));
        ssd.delete_queue(second, &mut |_| panic!("nothing was outstanding"), &mut progress)
            .unwrap();
    }
    // Sessions return their queues as well.
    let session = SessionConfig { queue_depth: 3, vectors: 4, ..SessionConfig::default() };
    for _ in 0..5 {
        let one = Session::open(&mut ssd, session, &mut progress).unwrap();
        assert_eq!(one.close(&mut ssd, &mut progress).unwrap().len(), 0);
    }
}

#[test]
fn free_chunks_come_least_worn_first_and_neighbors_on_different_channels() {
    let mut config = harness::config(ODD);
    if let MediaConfig::Nand(nand) = &mut config.media {
        nand.errors.endurance = 255;
    }
    let mut bench = Bench::new(config);
    let nand = bench.nand();
    // PU 1: chunk 3 is the least worn, chunk 0 is bad. PU 5 has only bad chunks.
    for chunk in 0..7 {
        nand.set_wear(ChunkId(7 + chunk), 10 - u32::from(chunk == 3)).unwrap();
        nand.inject(InjectedFault::ChunkBad { chunk: ChunkId(5 * 7 + chunk) }).unwrap();
    }
    nand.inject(InjectedFault::ChunkBad { chunk: ChunkId(7) }).unwrap();
    let mut ssd = bench.attach();
    let mut progress = || bench.turn();
    let pus: PuSet = "0-1,5-6,10".parse().unwrap();
    let mut free = FreeChunkPool::new(&mut ssd, &pus, &mut progress).unwrap();
    assert_eq!((free.len(), free.len_on(PuId(1)), free.len_on(PuId(5))), (7 + 6 + 7 + 7, 6, 0));
    // PUs 0, 5 and 10 are the first of each channel, 1 and 6 the second of theirs.
    let taken = free.pop_many(5).unwrap();
    let want = [at(0, 0, 0, 0), at(2, 0, 0, 0), at(0, 1, 3, 0), at(1, 1, 0, 0), at(0, 0, 1, 0)];
    assert_eq!(taken, want);
    assert_eq!(free.pop_on(PuId(1)), Some(at(0, 1, 1, 0)));
    assert_eq!(free.pop_near(at(0, 1, 6, 7)), Some(at(0, 1, 2, 0)));
    assert_eq!(
        free.pop_near(at(1, 0, 0, 0)).map(|a| (a.group, a.pu)),
        Some((2, 0)),
        "the parallel unit has no free chunk, so another one is used"
    );
    assert!(free.remove(at(1, 1, 6, 0)) && !free.remove(at(1, 1, 6, 0)));
    let info = ssd.chunk(at(1, 1, 6, 0), &mut progress).unwrap();
    assert!(
        free.return_chunk(&info) && !free.return_chunk(&info),
        "a chunk must be accepted only once"
    );
    let bad = ssd.chunk(at(1, 0, 0, 0), &mut progress).unwrap();
    assert!(!free.return_chunk(&bad), "a chunk that is not free must be refused");
    let left = free.len();
    assert_eq!(
        (free.pop_many(left + 1), free.len()),
        (None, left),
        "`pop_many` must return all chunks or none"
    );
    let mut rest = free.pop_many(left).unwrap();
    rest.sort();
    rest.dedup();
    assert_eq!((rest.len(), free.is_empty(), free.pop_many(1)), (left, true, None));
}
