//! Vectors of any length, with asynchronous and synchronous calls.

use std::collections::BTreeMap;

use media::{InjectedFault, PhysSector};
use nvme::Status;
use ocssd::ppa::{
    FailedMask, Ppa, PpaError, PpaSpace, RejectReason, RequestId, Session, SessionConfig,
    VectorBuffer, VectorKind, VectorOptions,
};
use rng::Rng;
use time::{Component, Nanos};

use crate::harness::{self, Bench, OOB, SECTOR, Shape, all_data, all_oob, at, data, oob, run};

/// 2 × 4 PUs with 4 chunks of 1536 sectors in units of 16.
const WIDE: Shape = Shape(2, 4, 2, 4, 96, 8, 2);

/// Returns units of every chunk of the drive, striped over all PUs.
fn striped(space: &PpaSpace, chunks: u32, units: u32) -> Vec<Ppa> {
    let unit = space.geometry().ws_min;
    let mut ppas = Vec::new();
    for chunk in 0..chunks {
        for row in 0..units {
            for pu in space.striped() {
                let first = space.pu_address(pu).unwrap();
                ppas.extend(run(space, at(first.group, first.pu, chunk, row * unit), unit));
            }
        }
    }
    ppas
}

fn fill(buffer: &mut VectorBuffer, values: std::ops::Range<u64>) {
    buffer.write(0, &all_data(values.clone())).unwrap();
    buffer.write_oob(0, &all_oob(values)).unwrap();
}

#[test]
fn ten_thousand_sectors_are_one_vector_at_any_queue_depth() {
    for queue_depth in [1, 2, 128] {
        let (mut bench, _ssd, mut session) = harness::open(WIDE, queue_depth);
        let space = *session.space();
        // Full chunks, so that all sectors are readable: 8 PUs × 96 units of 16.
        let ppas = striped(&space, 1, 96);
        let count = ppas.len() as u32;
        assert_eq!(count, 12_288);
        let mut progress = || bench.turn();
        let mut io = session.blocking(&mut progress);
        let mut buffer = io.buffers().allocate(count).unwrap();
        fill(&mut buffer, 1..u64::from(count) + 1);
        let buffer = io.write(&ppas, buffer, VectorOptions::default()).unwrap();
        drop(buffer);
        // Reads 10,000 of the sectors in random order.
        let mut order: Vec<u32> = (0..count).collect();
        Rng::new(4).shuffle(&mut order);
        order.truncate(10_000);
        let some: Vec<Ppa> = order.iter().map(|i| ppas[*i as usize]).collect();
        let buffer = io.buffers().allocate(10_000).unwrap();
        let buffer = io.read(&some, buffer, VectorOptions::default()).unwrap();
        let values = || order.iter().map(|i| u64::from(*i) + 1);
        assert!(buffer.to_vec() == all_data(values()));
        let mut meta = vec![0; 10_000 * OOB];
        buffer.read_oob(0, &mut meta).unwrap();
        assert!(meta == all_oob(values()));
        io.check(&some).unwrap();
        let stats = *session.stats();
        assert_eq!((stats.vectors, stats.split, stats.failed), (3, 3, 0));
        let commands = 12_288 / 64 + 2 * 10_000_u64.div_ceil(64);
        assert_eq!(stats.commands, commands, "each command but the last must have 64 addresses");
        assert_eq!((stats.sectors_written, stats.sectors_read), (12_288, 10_000));
        assert_eq!(stats.sectors_checked, 10_000);
    }
}

#[test]
fn each_address_of_a_long_vector_has_its_own_status() {
    let (mut bench, _ssd, mut session) = harness::open(WIDE, 16);
    let space = *session.space();
    let ppas = striped(&space, 1, 96);
    let layout = *bench.nand().layout();
    let mut progress = || bench.turn();
    let mut io = session.blocking(&mut progress);
    let mut buffer = io.buffers().allocate(ppas.len() as u32).unwrap();
    fill(&mut buffer, 1..ppas.len() as u64 + 1);
    let buffer = io.write(&ppas, buffer, VectorOptions::default()).unwrap();
    let bad: Vec<u32> = vec![0, 63, 64, 700, 701, 702, 9_999];
    for i in &bad {
        let phys: PhysSector = layout.phys_at(space.address(ppas[*i as usize]).unwrap());
        bench.nand().inject(InjectedFault::Uncorrectable { phys }).unwrap();
    }
    let mut progress = || bench.turn();
    let mut io = session.blocking(&mut progress);
    let error = io.read(&ppas[..10_000], buffer, VectorOptions::default()).unwrap_err();
    let PpaError::Vector(e) = error else { panic!("{error}") };
    assert_eq!((e.kind, e.status), (VectorKind::Read, Status::UNRECOVERED_READ));
    assert_eq!(e.failed, bad.iter().copied().collect::<FailedMask>());
    assert_eq!(e.failed.to_string(), "0,63-64,700-702,9999");
    let named: Vec<_> = bad.iter().map(|i| space.address(ppas[*i as usize]).unwrap()).collect();
    assert_eq!(e.addresses, named);
    let text = e.to_string();
    assert_eq!(
        text,
        "read of 0/0/0/0, 1/1/0/15, 0/2/0/0, 1/1/0/92 and 3 more: unrecovered read error"
    );
    // All other sectors were read.
    let buffer = e.buffer.unwrap();
    let mut sector = [0; SECTOR];
    for i in [1u32, 62, 65, 699, 703, 9_998] {
        buffer.read(i, &mut sector).unwrap();
        assert_eq!(sector, data(u64::from(i) + 1), "sector {i}");
    }
    let stats = session.stats();
    assert_eq!((stats.failed, stats.failed_addresses), (1, 7));
}

#[test]
fn holes_unwritten_sectors_and_bad_writes_are_errors_of_their_vector_only() {
    let (mut bench, _ssd, mut session) = harness::open(harness::ODD, 8);
    let space = *session.space();
    let mut progress = || bench.turn();
    let mut io = session.blocking(&mut progress);
    let take = |io: &ocssd::ppa::BlockingSession<'_>, n| io.buffers().allocate(n).unwrap();
    let hole = Ppa(u64::MAX);
    let buffer = take(&io, 1);
    let status = io.read(&[hole], buffer, VectorOptions::default()).unwrap_err().status();
    assert_eq!(status, Some(Status::LBA_OUT_OF_RANGE));
    let unwritten = run(&space, at(1, 1, 1, 0), 1);
    assert_eq!(io.check(&unwritten).unwrap_err().status(), Some(Status::UNWRITTEN));
    // Out of order: no unit of the vector is written, not even the valid one.
    let mixed = [run(&space, at(0, 0, 0, 0), 4), run(&space, at(0, 1, 0, 4), 4)].concat();
    let buffer = take(&io, 8);
    let error = io.write(&mixed, buffer, VectorOptions::default()).unwrap_err();
    let PpaError::Vector(e) = error else { panic!("{error}") };
    assert_eq!((e.status, e.failed.count()), (Status::OUT_OF_ORDER_WRITE, 8));
    // The valid unit, written in order and followed by its paired units, is readable.
    for sector in [0, 4, 8] {
        let buffer = take(&io, 4);
        io.write(&run(&space, at(0, 0, 0, sector), 4), buffer, VectorOptions::default()).unwrap();
    }
    io.check(&run(&space, at(0, 0, 0, 0), 4)).unwrap();
    let early = io.check(&run(&space, at(0, 0, 0, 4), 1)).unwrap_err();
    assert_eq!(early.status(), Some(Status::UNWRITTEN));
    // A copy with an unreadable source writes nothing, and all its addresses fail.
    let from: Vec<Ppa> = [0, 1, 2, 9].map(|s| run(&space, at(0, 0, 0, s), 1)[0]).to_vec();
    let error = io.copy(&from, &run(&space, at(2, 4, 6, 0), 4)).unwrap_err();
    let PpaError::Vector(e) = error else { panic!("{error}") };
    assert_eq!((e.status, e.failed.count()), (Status::UNWRITTEN, 4));
    io.copy(&run(&space, at(0, 0, 0, 0), 4), &run(&space, at(2, 4, 6, 0), 4)).unwrap();
    io.reset(&run(&space, at(0, 0, 0, 0), 1)).unwrap();
    assert!(io.check(&run(&space, at(0, 0, 0, 0), 4)).is_err(), "the chunk is erased");
}

#[test]
fn what_cannot_be_is_refused_before_it_is_sent_and_the_buffer_comes_back() {
    let (mut bench, mut ssd, mut session) = harness::open(harness::ODD, 8);
    let mut other = Bench::new(harness::config(harness::ODD));
    let foreign = other.attach().buffers().allocate(8).unwrap();
    let space = *session.space();
    let eight = run(&space, at(0, 0, 0, 0), 8);
    let because = |refused: ocssd::ppa::Rejected| (refused.reason, refused.buffer.is_some());
    let take = |session: &Session, n| session.buffers().allocate(n).unwrap();
    let o = VectorOptions::default();
    let b = take(&session, 8);
    let length = |n| RejectReason::Length { addresses: n, limit: 1 << 20 };
    assert_eq!(because(session.read(&[], b, o).unwrap_err()), (length(0), true));
    let long = vec![eight[0]; (1 << 20) + 1];
    assert_eq!(because(session.check(&long).unwrap_err()), (length((1 << 20) + 1), false));
    let b = take(&session, 8);
    let unit = RejectReason::WriteUnit { addresses: 7, unit: 4 };
    assert_eq!(because(session.write(&eight[..7], b, o).unwrap_err()), (unit, true));
    let b = take(&session, 7);
    let small = RejectReason::Buffer { sectors: 7, addresses: 8 };
    assert_eq!(because(session.read(&eight, b, o).unwrap_err()), (small, true));
    let refused = session.read(&eight, foreign, o).unwrap_err();
    assert_eq!(because(refused), (RejectReason::ForeignBuffer, true));
    let lengths = RejectReason::CopyLengths { from: 8, to: 4 };
    assert_eq!(because(session.copy(&eight, &eight[..4]).unwrap_err()), (lengths, false));
    assert_eq!((session.outstanding(), session.stats().rejected), (0, 6));
    let config = SessionConfig { queue_depth: 0, ..SessionConfig::default() };
    let none = Session::open(&mut ssd, config, &mut || bench.turn()).unwrap_err();
    assert!(matches!(none, PpaError::Config { queue_depth: 0, vectors: 256 }));
}

#[test]
fn random_vectors_in_flight_all_end_once_with_the_right_data() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let depth = [1, 2, 7, 64][rng.below(4) as usize];
        let mut bench = Bench::new(harness::config(WIDE));
        let mut ssd = bench.attach();
        let vectors = 1 + rng.below(40) as u16;
        let mut session = bench.session(&mut ssd, depth, vectors);
        let space = *session.space();
        let ppas = striped(&space, 1, 96);
        let mut progress = || bench.turn();
        let mut io = session.blocking(&mut progress);
        let mut buffer = io.buffers().allocate(ppas.len() as u32).unwrap();
        fill(&mut buffer, 1..ppas.len() as u64 + 1);
        drop(io.write(&ppas, buffer, VectorOptions::default()).unwrap());
        let mut flying: BTreeMap<RequestId, Vec<u64>> = BTreeMap::new();
        let (mut taken, mut ended, mut busy) = (0, 0, 0);
        while ended < 300 {
            if taken < 300 && rng.chance(0.7) {
                let most = if rng.chance(0.1) { 500 } else { 20 };
                let n = 1 + rng.below(most);
                let which: Vec<u64> = (0..n).map(|_| rng.below(ppas.len() as u64)).collect();
                let list: Vec<Ppa> = which.iter().map(|i| ppas[*i as usize]).collect();
                let buffer = session.buffers().allocate(n as u32).unwrap();
                match session.read(&list, buffer, VectorOptions::default()) {
                    Ok(ticket) => {
                        assert!(flying.insert(ticket, which).is_none());
                        taken += 1;
                    }
                    Err(refused) => {
                        assert!(refused.reason.is_busy() && refused.buffer.is_some());
                        assert_eq!(flying.len(), usize::from(vectors));
                        busy += 1;
                    }
                }
            }
            session.poll(bench.now);
            bench.turn();
            while let Some(done) = session.reap() {
                let which = flying.remove(&done.request).expect("each request completes once");
                assert!(done.is_success() && done.failed.is_empty());
                let buffer = done.buffer.unwrap();
                assert!(buffer.to_vec() == all_data(which.iter().map(|i| i + 1)), "seed {seed}");
                ended += 1;
            }
            assert_eq!(session.outstanding(), flying.len());
        }
        assert!(flying.is_empty() && (vectors > 20 || busy > 0), "seed {seed}");
        assert_eq!((session.spurious_completions(), ssd.buffers().slabs()), (0, 1));
    }
}

#[test]
fn waiting_reaps_its_own_vector_and_not_the_others() {
    let (mut bench, mut ssd, mut session) = harness::open(harness::ODD, 8);
    let space = *session.space();
    let ppas = run(&space, at(0, 0, 0, 0), 4);
    let first = session.check(&ppas).unwrap();
    let second = session.check(&ppas).unwrap();
    let mut another = bench.session(&mut ssd, 4, 4);
    let foreign = another.check(&ppas).unwrap();
    let mut progress = || bench.turn();
    let mut io = session.blocking(&mut progress);
    assert_eq!(io.wait(second).unwrap().request, second);
    assert!(
        matches!(io.wait(second), Err(PpaError::NoSuchVector { request }) if request == second)
    );
    assert!(
        matches!(io.wait(foreign), Err(PpaError::NoSuchVector { .. })),
        "the vector belongs to another session"
    );
    assert_eq!(session.reap().unwrap().request, first);
    assert!(session.reap().is_none());
}

#[test]
fn a_drive_that_does_not_answer_is_a_timeout_and_its_buffers_are_not_reused() {
    let (mut bench, mut ssd, mut session) = harness::open(harness::ODD, 2);
    let space = *session.space();
    let four = run(&space, at(0, 0, 0, 0), 4);
    bench.cut_after = Some(bench.turns);
    let mut progress = || bench.turn();
    let mut io = session.blocking(&mut progress);
    let buffer = io.buffers().allocate(1000).unwrap();
    let error = io.write(&four, buffer, VectorOptions::default()).unwrap_err();
    let PpaError::Timeout { kind: VectorKind::Write, request: ticket, polls } = error else {
        panic!("{error}")
    };
    assert_eq!(polls, harness::POLL_LIMIT);
    assert_eq!(session.outstanding(), 1);
    // The vector is still outstanding when the drive resumes.
    bench.cut_after = None;
    let mut progress = || bench.turn();
    let ended = session.blocking(&mut progress).wait(ticket).unwrap();
    assert!(ended.is_success() && ended.buffer.unwrap().sectors() == 1000);
    // If the drive never resumes, closing the session returns everything except the memory.
    for _ in 0..3 {
        let buffer = session.buffers().allocate(20).unwrap();
        session.read(&four, buffer, VectorOptions::default()).unwrap();
    }
    bench.cut_after = Some(bench.turns);
    let error = session.close(&mut ssd, &mut || bench.turn()).unwrap_err();
    assert!(matches!(error, PpaError::Ssd(_)), "{error}");
}

#[test]
fn closing_returns_what_was_not_reaped() {
    let (mut bench, mut ssd, mut session) = harness::open(harness::ODD, 1);
    let space = *session.space();
    let four = run(&space, at(0, 0, 0, 0), 4);
    let mut want = Vec::new();
    for _ in 0..5 {
        let buffer = session.buffers().allocate(4).unwrap();
        want.push(session.write(&four, buffer, VectorOptions::default()).unwrap());
    }
    let ended = session.close(&mut ssd, &mut || bench.turn()).unwrap();
    assert_eq!(ended.iter().map(|e| e.request).collect::<Vec<_>>(), want);
    let first: Vec<bool> = ended.iter().map(|e| e.is_success()).collect();
    assert_eq!(
        first,
        [true, false, false, false, false],
        "writing the same unit twice is out of order"
    );
    assert!(ended.iter().all(|e| e.buffer.is_some()));
}

/// [LightNVM17 §5.5]: streams on separate parallel units do not wait for each other.
#[test]
fn reads_on_parallel_units_of_their_own_do_not_wait_for_writes() {
    let slowest = |reader: (u32, u32), writer: (u32, u32)| {
        let mut bench = Bench::new(harness::config(WIDE));
        let mut ssd = bench.attach();
        let mut reads = bench.session(&mut ssd, 1, 1);
        let mut writes = bench.session(&mut ssd, 1, 1);
        let space = *reads.space();
        let source = run(&space, at(reader.0, reader.1, 0, 0), 1536);
        let mut progress = || bench.turn();
        let mut io = reads.blocking(&mut progress);
        let buffer = io.buffers().allocate(1536).unwrap();
        drop(io.write(&source, buffer, VectorOptions::default()).unwrap());
        let mut rng = Rng::new(9);
        let (mut sector, mut worst, mut done) = (0, Nanos::ZERO, 0);
        let mut since = bench.now;
        let (mut reading, mut writing) = (false, false);
        while done < 150 {
            if !reading {
                let ppa = [source[rng.below(1536) as usize]];
                let buffer = reads.buffers().allocate(1).unwrap();
                reads.read(&ppa, buffer, VectorOptions::default()).unwrap();
                (reading, since) = (true, bench.now);
            }
            if !writing {
                let first = at(writer.0, writer.1, 1 + sector / 1536 % 3, sector % 1536);
                let buffer = writes.buffers().allocate(16).unwrap();
                writes.write(&run(&space, first, 16), buffer, VectorOptions::default()).unwrap();
                sector += 16;
                writing = true;
            }
            reads.poll(bench.now);
            writes.poll(bench.now);
            if let Some(ended) = reads.reap() {
                assert!(ended.is_success());
                (reading, done) = (false, done + 1);
                worst = worst.max(bench.now.since(since));
                continue;
            }
            if let Some(ended) = writes.reap() {
                assert!(ended.is_success());
                writing = false;
                continue;
            }
            bench.turn();
        }
        worst
    };
    let (apart, together) = (slowest((0, 0), (1, 0)), slowest((0, 0), (0, 0)));
    // tR and a transfer of 512 B; on the same unit, reads wait for a program of 500 us.
    assert!(apart < Nanos::from_micros(60), "{apart}");
    assert!(together > Nanos::from_micros(500), "{together}");
    assert_eq!(oob(0), [0; OOB]);
}
