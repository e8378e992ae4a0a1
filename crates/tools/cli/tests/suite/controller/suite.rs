//! The tests for all kinds of controllers.

use driver::{
    BindError, Completed, ConnectOptions, ControllerHandle, DataPointers, DriverError,
    HardwareQueue, NvmeDeviceError, NvmeQueue, Op, Payload, QueueState, Request, Segment, Tag,
};
use nvme::Status;
use time::Nanos;

use super::harness::{ControllerHarness, DriveSide};
use super::load::Load;

pub(crate) fn data_is_what_was_written_at_every_size_and_place(harness: &mut ControllerHarness) {
    for (queues, depth, seed) in [(1, 8, 11), (3, 64, 12)] {
        let requests = harness.rounds(200);
        let mut load = Load::new(harness, queues, depth, seed);
        load.run(harness, requests);
        assert!(load.commands > requests as u64, "some requests take several commands");
        load.close(harness);
    }
}

/// Binds one request, and waits for its completion.
fn one(harness: &mut ControllerHarness, queue: &mut NvmeQueue, request: Request) -> Status {
    let mut tag = [Tag(0)];
    assert_eq!(queue.get_free_tags(&mut tag), 1);
    let now = harness.world.progress();
    if let Err(error) = queue.bind_tag_cmd(tag[0], &request, now) {
        queue.release_tags(&tag).unwrap();
        let driver::BindError::Refused(status) = error else { panic!("{error}") };
        return status;
    }
    assert!(queue.issue_tags());
    loop {
        harness.world.progress();
        if let Some(event) = queue.fetch_event() {
            queue.detach_tag_cmd(event.tag).unwrap();
            queue.release_tags(&tag).unwrap();
            return event.status;
        }
    }
}

pub(crate) fn what_is_thrown_away_goes_nowhere(harness: &mut ControllerHarness) {
    let mut queue = harness.queue(4).unwrap();
    let (region, at) = harness.port.memory().allocate_registered(1 << 16).unwrap();
    let sectors = 8192 / harness.info.sector_bytes;
    region.fill(0, 1 << 16, 0x5a);
    let write = Request::write(0, sectors, Payload::Contiguous(at), 1);
    assert_eq!(one(harness, &mut queue, write), Status::SUCCESS);
    region.fill(0, 1 << 16, 0x11);
    let most = harness.info.max_sectors.min(harness.info.sectors as u32);
    for sectors in [1, sectors, most] {
        let read = Request::read(0, sectors, Payload::BitBucket, 1);
        assert_eq!(one(harness, &mut queue, read), Status::SUCCESS, "{sectors} sectors");
    }
    let mut bytes = vec![0; 1 << 16];
    region.read(0, &mut bytes);
    assert!(bytes.iter().all(|b| *b == 0x11), "a bit bucket must not change memory");
    let read = Request::read(0, sectors, Payload::Contiguous(at), 1);
    assert_eq!(one(harness, &mut queue, read), Status::SUCCESS);
    region.read(0, &mut bytes);
    assert!(bytes[..8192].iter().all(|b| *b == 0x5a));
    assert!(bytes[8192..].iter().all(|b| *b == 0x11));
    harness.close(queue);
}

pub(crate) fn memory_that_entries_cannot_name_is_copied(harness: &mut ControllerHarness) {
    let mut queue = harness.queue(9).unwrap();
    let (region, at) = harness.port.memory().allocate_registered(1 << 16).unwrap();
    let (tables, table) = harness.port.memory().allocate_registered(4096).unwrap();
    assert!(harness.info.features.segments > 1);
    let sector = harness.info.sector_bytes;
    let odd =
        |op, tag| Request { op, ..Request::read(8, 2, Payload::Contiguous(at.offset(3)), tag) };
    region.fill(0, 1 << 16, 0x42);
    assert_eq!(one(harness, &mut queue, odd(Op::Write, 1)), Status::SUCCESS);
    region.fill(0, 1 << 16, 0x11);
    assert_eq!(one(harness, &mut queue, odd(Op::Read, 1)), Status::SUCCESS);
    let mut bytes = vec![0; 1 << 16];
    region.read(0, &mut bytes);
    let end = 3 + 2 * sector as usize;
    assert!(bytes[3..end].iter().all(|b| *b == 0x42));
    assert!(
        bytes[..3].iter().chain(&bytes[end..]).all(|b| *b == 0x11),
        "the read must not change other bytes"
    );
    // Several segments, some of them bit buckets. Emulated drives do not support bit buckets among
    // segments.
    let holes = harness.info.data != DataPointers::Sgl;
    let hole = (!holes).then(|| at.offset(0x8000));
    let pieces =
        [(Some(at.offset(0x101)), 7), (hole, sector - 7), (Some(at.offset(0x2000)), sector)];
    for (i, (at, bytes)) in pieces.into_iter().enumerate() {
        for (j, word) in (Segment { at, bytes }).encode().iter().enumerate() {
            tables.write(16 * i + 8 * j, &word.to_le_bytes());
        }
    }
    let read = |segments| {
        let data = Payload::Scattered { table, segments };
        Request::read(8, if segments == 3 { 2 } else { 1 }, data, 1)
    };
    region.fill(0, 1 << 16, 0x11);
    assert_eq!(one(harness, &mut queue, read(3)), Status::SUCCESS);
    region.read(0, &mut bytes);
    let end = 0x2000 + sector as usize;
    assert!(bytes[0x101..0x108].iter().chain(&bytes[0x2000..end]).all(|b| *b == 0x42));
    let found = bytes.iter().filter(|b| **b != 0x11).count();
    assert_eq!(found, sector as usize + if holes { 7 } else { sector as usize });
    let inline = harness.info.metadata.is_some_and(|metadata| metadata.extended_lba_bytes() > 0);
    let copied = match harness.info.data {
        _ if inline => 3,
        DataPointers::Prp => 3,
        DataPointers::SglAndPrp => 1,
        DataPointers::Sgl => 0,
    };
    assert_eq!(queue.bounce_stats().commands, copied);
    // The segments have fewer bytes than the command.
    assert!(one(harness, &mut queue, read(1)).is(Status::SGL_LENGTH_INVALID));
    let end = one(
        harness,
        &mut queue,
        Request::read(harness.info.sectors, 1, Payload::Contiguous(at), 1),
    );
    assert!(end.is(Status::LBA_OUT_OF_RANGE), "{end}");
    harness.close(queue);
}

/// Requests exceed the memory of the bounce buffers: the queue reports `Busy`, and continues.
pub(crate) fn copies_push_back(harness: &mut ControllerHarness) {
    if harness.info.data != DataPointers::Prp {
        return;
    }
    const TAGS: usize = 8;
    let most = harness.info.max_sectors;
    let bytes = harness.info.max_transfer_bytes() as usize;
    let mut queue = harness.queue(TAGS as u16 + 1).unwrap();
    let (region, at) = harness.port.memory().allocate_registered(TAGS * bytes + 1).unwrap();
    for round in 0..2u8 {
        for i in 0..TAGS {
            region.fill(1 + i * bytes, bytes, if round == 0 { i as u8 } else { 0xee });
        }
        let (mut next, mut done, mut busy) = (0, 0, 0);
        while done < TAGS {
            while next < TAGS {
                let mut tag = [Tag(0)];
                assert_eq!(queue.get_free_tags(&mut tag), 1);
                let data = Payload::Contiguous(at.offset(1 + (next * bytes) as u64));
                let op = if round == 0 { Op::Write } else { Op::Read };
                // Two locations only, because the drive may be small.
                let lba = (next % 2) as u64 * u64::from(most);
                let request = Request { op, ..Request::read(lba, most, data, 1) };
                match queue.bind_tag_cmd(tag[0], &request, Nanos::ZERO) {
                    Ok(()) => next += 1,
                    Err(error) => {
                        assert_eq!(error, BindError::Busy);
                        queue.release_tags(&tag).unwrap();
                        assert!(done < next, "a queue without commands must not be busy");
                        busy += 1;
                        break;
                    }
                }
            }
            queue.issue_tags();
            harness.world.progress();
            while let Some(event) = queue.fetch_event() {
                assert_eq!(event.status, Status::SUCCESS);
                queue.detach_tag_cmd(event.tag).unwrap();
                queue.release_tags(&[event.tag]).unwrap();
                done += 1;
            }
        }
        assert!(busy > 0, "no request exceeded the bounce buffers");
        assert!(queue.bounce_stats().busy >= busy);
    }
    // Of several writes to one location, any may be the last, but its data must be complete.
    let mut byte = [0; 1];
    for i in 0..TAGS {
        region.read(1 + i * bytes, &mut byte);
        let last = byte[0];
        assert!(usize::from(last) % 2 == i % 2 && usize::from(last) < TAGS, "{last} of {i}");
        let mut all = vec![0; bytes];
        region.read(1 + i * bytes, &mut all);
        assert!(all.iter().all(|b| *b == last));
    }
    assert_eq!(queue.bounce_stats().commands, 2 * TAGS as u64);
    harness.close(queue);
}

pub(crate) fn queues_are_granted_up_to_a_number(harness: &mut ControllerHarness) {
    let granted = harness.info.io_queues;
    assert!(granted >= 2);
    for round in 0..2 {
        let mut queues: Vec<_> = (0..granted).map(|_| harness.queue(4).unwrap()).collect();
        let none = harness.queue(4).unwrap_err();
        let no_queue = matches!(
            none,
            NvmeDeviceError::Driver(DriverError::NoFreeQueue { granted: said }) if said == granted
        );
        assert!(no_queue, "{none}");
        for queue in &mut queues {
            assert_eq!(one(harness, queue, Request::flush(round)), Status::SUCCESS);
        }
        for queue in queues {
            harness.close(queue);
        }
    }
    let most = harness.admin(|c, _| c.max_entries());
    if let Ok(depth) = u16::try_from(most + 1) {
        let deep = harness.queue(depth).unwrap_err();
        let refused = matches!(deep, NvmeDeviceError::Driver(DriverError::Depth { .. }));
        assert!(refused, "{deep}");
    }
}

pub(crate) fn the_health_log_counts(harness: &mut ControllerHarness) {
    let before = harness.admin(|c, progress| c.health(progress)).unwrap();
    let mut queue = harness.queue(4).unwrap();
    for lba in 0..10 {
        let write = Request::write(lba, 1, Payload::BitBucket, 1);
        assert_eq!(one(harness, &mut queue, write), Status::SUCCESS);
    }
    let after = harness.admin(|c, progress| c.health(progress)).unwrap();
    assert_eq!(after.host_writes.get() - before.host_writes.get(), 10);
    assert!(after.temperature.get() > 0);
    harness.close(queue);
}

/// Many commands, serial and concurrent: with doorbells in memory, registers are written only when
/// the controller asks for it, and every command completes.
pub(crate) fn doorbells_in_memory_save_registers(harness: &mut ControllerHarness) {
    let mut queue = harness.queue(9).unwrap();
    let (_, at) = harness.port.memory().allocate_registered(1 << 12).unwrap();
    let sectors = u64::from(4096 / harness.info.sector_bytes);
    let in_memory = harness.controller.lock().unwrap().has_shadow_doorbells();
    let (mut next, mut done) = (0, 0);
    let commands = 300;
    let mut rung = 0;
    while done < commands {
        while next < commands && next - done < 1 + next % 8 {
            let mut tag = [Tag(0)];
            assert_eq!(queue.get_free_tags(&mut tag), 1);
            let request =
                Request::read(next % 16 * sectors, sectors as u32, Payload::Contiguous(at), next);
            queue.bind_tag_cmd(tag[0], &request, Nanos::ZERO).unwrap();
            next += 1;
            rung += u64::from(queue.issue_tags());
        }
        let now = harness.world.progress();
        queue.poll(now);
        while let Some(event) = queue.fetch_event() {
            assert_eq!(event.status, Status::SUCCESS);
            queue.detach_tag_cmd(event.tag).unwrap();
            queue.release_tags(&[event.tag]).unwrap();
            done += 1;
        }
    }
    match queue.pair().doorbells() {
        None => assert!(!in_memory),
        Some(counts) => {
            assert!(in_memory);
            println!("{counts:?} of {rung}");
            assert!(counts.register_writes_saved > 0 && counts.register_writes > 0, "{counts:?}");
            assert!(
                counts.register_writes + counts.register_writes_saved >= rung,
                "each doorbell is counted as written or as saved"
            );
        }
    }
    harness.close(queue);
}

/// Completes the commands that the device has dropped, as the owner of a queue does. Returns their
/// indexes.
fn drain_completed(queue: &mut NvmeQueue) -> Vec<usize> {
    let bound: Vec<Tag> = queue.tags().bound_tags().map(|(tag, _)| tag).collect();
    let take = |tag: Tag| {
        let command = queue.detach_tag_cmd(tag).unwrap();
        queue.release_tags(&[tag]).unwrap();
        command.user as usize
    };
    bound.into_iter().map(take).collect()
}

pub(crate) fn a_queue_is_reset_under_load(harness: &mut ControllerHarness) {
    const TAGS: usize = 24;
    let sector = harness.info.sector_bytes as usize;
    let sectors = 16384 / harness.info.sector_bytes;
    let mut queue = harness.queue(TAGS as u16 + 1).unwrap();
    let (region, at) = harness.port.memory().allocate_registered(TAGS * 16384).unwrap();
    for round in 0..harness.rounds(6) as u8 {
        for i in 0..TAGS {
            region.fill(i * 16384, 16384, round ^ (i as u8) << 3);
        }
        let request = |i: usize, op| Request {
            op,
            ..Request::read(
                i as u64 * u64::from(sectors),
                sectors,
                Payload::Contiguous(at.offset(i as u64 * 16384)),
                i as u64,
            )
        };
        let mut todo: Vec<usize> = (0..TAGS).collect();
        let (mut done, mut resets) = (0, 0);
        while !todo.is_empty() || done < TAGS {
            let now = harness.world.progress();
            queue.poll(now);
            while queue.state() == QueueState::Ready && !todo.is_empty() {
                let mut tag = [Tag(0)];
                assert_eq!(queue.get_free_tags(&mut tag), 1);
                let i = todo[todo.len() - 1];
                queue.bind_tag_cmd(tag[0], &request(i, Op::Write), now).unwrap();
                todo.pop();
            }
            queue.issue_tags();
            if resets == 0 {
                // Some commands may have completed; most are in flight.
                resets += 1;
                queue.reset(now);
                assert_eq!(queue.state(), QueueState::Resetting);
                let limit = now + Nanos::from_millis(20_000);
                while queue.state() == QueueState::Resetting {
                    let now = harness.world.progress();
                    queue.poll(now);
                    assert!(now < limit, "the reset does not complete");
                    assert!(queue.fetch_event().is_none() || queue.state() == QueueState::Ready);
                }
                assert_eq!(queue.state(), QueueState::Ready);
                // Each command has either completed before, or is taken back here.
                let back = drain_completed(&mut queue);
                assert_eq!(back.len() + done, TAGS);
                todo.extend(back);
            }
            while let Some(event) = queue.fetch_event() {
                let command = queue.detach_tag_cmd(event.tag).expect("each command completes once");
                queue.release_tags(&[event.tag]).unwrap();
                assert_eq!(event.status, Status::SUCCESS, "{}", command.user);
                done += 1;
            }
        }
        assert_eq!(queue.tags().bound(), 0);
        region.fill(0, TAGS * 16384, 0xee);
        for i in 0..TAGS {
            assert_eq!(one(harness, &mut queue, request(i, Op::Read)), Status::SUCCESS);
            let mut bytes = vec![0; sector];
            region.read(i * 16384, &mut bytes);
            assert!(bytes.iter().all(|b| *b == round ^ (i as u8) << 3), "round {round}, {i}");
        }
        assert_eq!(queue.pair().spurious_completions(), 0);
    }
    harness.close(queue);
}

pub(crate) fn other_namespaces_are_refused(harness: &mut ControllerHarness) {
    // The controller has one connection. A second connection to an emulated drive is that of
    // another host.
    let DriveSide::Emulated { drive, now } = &mut harness.world else { return };
    let port = drive.attach().unwrap();
    let options = ConnectOptions { nsid: Some(77), ..ConnectOptions::default() };
    let progress = &mut || {
        use time::Component;
        drive.poll(*now);
    };
    let refused = ControllerHandle::connect_with(port, options, progress, 1_000_000).unwrap_err();
    assert!(matches!(refused, DriverError::NoSuchNamespace { nsid: 77 }), "{refused}");
}

/// Closes a queue with commands outstanding: each completes once.
pub(crate) fn a_queue_is_closed_under_load(harness: &mut ControllerHarness) {
    let mut queue = harness.queue(17).unwrap();
    let mut tags = [Tag(0); 16];
    assert_eq!(queue.get_free_tags(&mut tags), 16);
    let now = harness.world.progress();
    for tag in tags {
        let request = Request::write(0, 1, Payload::BitBucket, tag.0.into());
        queue.bind_tag_cmd(tag, &request, now).unwrap();
    }
    assert!(queue.issue_tags());
    let mut back = Vec::new();
    let world = &mut harness.world;
    queue.close(&mut |c: Completed| back.push(c.user), &mut || world.admin_progress()).unwrap();
    back.sort_unstable();
    let mut all = tags.map(|t| u64::from(t.0));
    all.sort_unstable();
    assert_eq!(back, all);
}

/// Resets the controller while three queues write: all queues recover, each command completes once,
/// and retried writes are readable.
pub(crate) fn the_controller_is_reset_under_load(harness: &mut ControllerHarness) {
    const TAGS: usize = 12;
    let sectors = 4096 / harness.info.sector_bytes;
    let (region, at) = harness.port.memory().allocate_registered(3 * TAGS * 4096).unwrap();
    let mut queues: Vec<_> = (0..3).map(|_| harness.queue(TAGS as u16 + 1).unwrap()).collect();
    for round in 1..4u8 {
        for i in 0..3 * TAGS {
            region.fill(i * 4096, 4096, round ^ (i as u8) << 2);
        }
        let request = |i: usize, op| {
            let data = Payload::Contiguous(at.offset(i as u64 * 4096));
            Request { op, ..Request::read(i as u64 * u64::from(sectors), sectors, data, i as u64) }
        };
        let mut ended = [0; 3 * TAGS];
        for (number, queue) in queues.iter_mut().enumerate() {
            let now = harness.world.progress();
            for i in number * TAGS..(number + 1) * TAGS {
                let mut tag = [Tag(0)];
                assert_eq!(queue.get_free_tags(&mut tag), 1);
                queue.bind_tag_cmd(tag[0], &request(i, Op::Write), now).unwrap();
            }
            assert!(queue.issue_tags());
        }
        // Completions that were reaped before the reset count.
        for _ in 0..3 {
            let limit = harness.world.progress() + Nanos::from_millis(30_000);
            while !queues[0].check_event() {
                harness.world.admin_progress();
                assert!(harness.world.progress() < limit, "no completion");
            }
            let event = queues[0].fetch_event().expect("a completion");
            ended[queues[0].detach_tag_cmd(event.tag).unwrap().user as usize] += 1;
            queues[0].release_tags(&[event.tag]).unwrap();
        }
        // QEMU's controller (7.2) crashes if it is reset while it has unread requests. After this
        // loop it has completed them, although the completions are not reaped.
        for _ in 0..2_000 {
            harness.world.admin_progress();
        }
        let answered = queues.iter_mut().all(|queue| queue.check_event());
        assert!(answered, "each queue must have a completion for the reset to drop");
        let now = harness.world.progress();
        harness.controller.lock().unwrap().reset(now).unwrap();
        let limit = now + Nanos::from_millis(30_000);
        let mut resetting = [false; 3];
        loop {
            let now = harness.world.progress();
            assert!(now < limit, "the controller does not come back");
            for (queue, was) in queues.iter_mut().zip(&mut resetting) {
                queue.poll(now);
                *was |= queue.state() == QueueState::Resetting;
            }
            let ready = |q: &NvmeQueue| q.state() == QueueState::Ready;
            if resetting == [true; 3] && queues.iter().all(ready) {
                break;
            }
        }
        for queue in &mut queues {
            assert!(queue.fetch_event().is_none(), "the reset must have dropped all completions");
            for i in drain_completed(queue) {
                ended[i] += 1;
                assert_eq!(one(harness, queue, request(i, Op::Write)), Status::SUCCESS);
            }
        }
        assert_eq!(ended, [1; 3 * TAGS], "each command must complete once");
        region.fill(0, 3 * TAGS * 4096, 0xee);
        for i in 0..3 * TAGS {
            let queue = &mut queues[i % 3];
            assert_eq!(one(harness, queue, request(i, Op::Read)), Status::SUCCESS);
            let mut bytes = [0; 4096];
            region.read(i * 4096, &mut bytes);
            assert!(bytes.iter().all(|b| *b == round ^ (i as u8) << 2), "round {round}, {i}");
        }
        assert_eq!(harness.controller.lock().unwrap().resets(), u64::from(round));
    }
    harness.admin(|c, progress| c.health(progress)).unwrap();
    for queue in queues {
        harness.close(queue);
    }
}
