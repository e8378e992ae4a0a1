//! Reads return what was written, with sequential and with concurrent requests.

use controller::PersonalityKind;
use nvme::Status;
use rng::Rng;
use user_io::{
    Completion, Handle, IoDevice, IoError, MultiQueue, Payload, QueueConfig, QueueSelector,
    Request, SharedQueue,
};

use super::harness::{drive, everywhere, file, null_limits};

fn handle(device: &IoDevice) -> Handle<user_io::Queue> {
    Handle::new(device, device.create_queue(QueueConfig::default()).unwrap()).unwrap()
}

fn pattern(lba: u64, byte: usize) -> u8 {
    (lba as usize * 31 + byte / 7) as u8
}

#[test]
fn sectors_are_read_as_they_were_written_one_after_the_other() {
    everywhere(|device| {
        let mut handle = handle(device);
        let sector = handle.limits().sector_bytes as usize;
        for (lba, sectors) in [(0, 1), (7, 3), (100, 16), (500, 1)] {
            let out = device.buffer(sectors * sector).unwrap();
            let bytes: Vec<u8> = (0..out.len()).map(|i| pattern(lba, i)).collect();
            out.write(0, &bytes);
            handle.write(lba, &out, lba == 7).unwrap();
            let back = device.buffer(sectors * sector).unwrap();
            back.fill(0, back.len(), 0xee);
            handle.read(lba, &back).unwrap();
            let mut found = vec![0; back.len()];
            back.read(0, &mut found);
            assert!(found == bytes, "sectors at {lba}");
        }
        handle.flush().unwrap();
        handle.discard(100, 16).unwrap();
        handle.write_zeroes(7, 3, true).unwrap();
        for (lba, sectors) in [(7, 3), (100, 16)] {
            let back = device.buffer(sectors * sector).unwrap();
            back.fill(0, back.len(), 0xee);
            handle.read(lba, &back).unwrap();
            let mut found = vec![1; back.len()];
            back.read(0, &mut found);
            assert!(found.iter().all(|b| *b == 0), "sector {lba} must read as zeros");
        }
        assert_eq!(handle.outstanding(), 0);
    });
}

#[test]
fn buffers_in_segments_are_one_request() {
    everywhere(|device| {
        let mut handle = handle(device);
        let sector = handle.limits().sector_bytes as usize;
        let pieces: Vec<_> = [1, 3, 2].map(|n| device.buffer(n * sector).unwrap()).into();
        for (i, piece) in pieces.iter().enumerate() {
            piece.fill(0, piece.len(), 10 + i as u8);
        }
        let all: Vec<_> = pieces.iter().collect();
        handle.write_vectored(40, &all, true).unwrap();
        let whole = device.buffer(6 * sector).unwrap();
        handle.read(40, &whole).unwrap();
        let mut found = vec![0; whole.len()];
        whole.read(0, &mut found);
        for (i, byte) in found.iter().enumerate() {
            assert_eq!(*byte, 10 + [0, 1, 1, 1, 2, 2][i / sector]);
        }
        for piece in &pieces {
            piece.fill(0, piece.len(), 0);
        }
        handle.read_vectored(40, &all).unwrap();
        let mut last = [0];
        pieces[2].read(pieces[2].len() - 1, &mut last);
        assert_eq!(last, [12]);
        let many: Vec<_> = std::iter::repeat_n(&pieces[0], 1000).collect();
        let error = handle.read_vectored(0, &many).unwrap_err();
        assert!(matches!(error, IoError::Segments { segments: 1000, .. }), "{error}");
    });
}

/// Random concurrent writes and reads against a model in memory; requests in flight do not overlap.
fn random<D: block::BlockDevice>(
    device: &IoDevice,
    handle: &mut Handle<D>,
    (first, span): (u64, u64),
    seed: u64,
) {
    const DEPTH: usize = 24;
    let sector = handle.limits().sector_bytes as usize;
    let mut rng = Rng::new(seed);
    let mut model = vec![0u8; span as usize];
    let mut busy: Vec<Option<(u64, Option<u8>)>> = vec![None; DEPTH];
    let buffers: Vec<_> = (0..DEPTH).map(|_| device.buffer(sector).unwrap()).collect();
    let zero = device.buffer(sector).unwrap();
    zero.fill(0, sector, 0);
    for lba in 0..span {
        handle.write(first + lba, &zero, false).unwrap();
    }
    let mut left = 1500;
    while left > 0 || handle.outstanding() > 0 {
        while let Some(slot) = busy.iter().position(Option::is_none).filter(|_| left > 0) {
            let lba = rng.below(span);
            if busy.iter().flatten().any(|(l, _)| *l == lba) {
                break;
            }
            let (write, data) = (rng.chance(0.5), buffers[slot].payload());
            let request = if write {
                let value = rng.next_u64() as u8;
                buffers[slot].fill(0, sector, value);
                busy[slot] = Some((lba, Some(value)));
                Request::write(first + lba, 1, data, slot as u64)
            } else {
                busy[slot] = Some((lba, None));
                Request::read(first + lba, 1, data, slot as u64)
            };
            if handle.submit(request).is_err() {
                busy[slot] = None;
                break;
            }
            left -= 1;
        }
        let Some(Completion { tag, status, .. }) = handle.wait() else { continue };
        assert!(status.is_success(), "{status}");
        let (lba, wrote) =
            busy[tag as usize].take().expect("a completion carries the tag of a submitted request");
        match wrote {
            Some(value) => model[lba as usize] = value,
            None => {
                let mut found = vec![0; sector];
                buffers[tag as usize].read(0, &mut found);
                let right = found.iter().all(|b| *b == model[lba as usize]);
                assert!(right, "sector {lba}: read {}, expected {}", found[0], model[lba as usize]);
            }
        }
    }
}

#[test]
fn many_at_once_are_what_they_would_be_one_by_one() {
    everywhere(|device| random(device, &mut handle(device), (0, 64), 7));
}

#[test]
fn handles_of_several_threads_share_a_queue() {
    everywhere(|device| {
        let shared = SharedQueue::new(device.create_queue(QueueConfig::default()).unwrap());
        std::thread::scope(|s| {
            for thread in 0..4 {
                let seat = shared.attach();
                s.spawn(move || {
                    let mut handle = Handle::new(device, seat).unwrap();
                    random(device, &mut handle, (64 * thread, 64), thread);
                });
            }
        });
        assert_eq!((shared.handle_count(), shared.outstanding()), (0, 0));
    });
}

#[test]
fn a_detached_handle_leaves_nothing_to_the_next() {
    let device = IoDevice::null(null_limits(8));
    let shared = SharedQueue::new(device.create_queue(QueueConfig::default()).unwrap());
    for round in 0..1000 {
        let mut handle = Handle::new(&device, shared.attach()).unwrap();
        let read = Request::read(0, 1, Payload::BitBucket, round);
        for _ in 0..round % 8 {
            handle.submit(read).unwrap();
        }
        if round % 3 == 0 {
            handle.poll();
            assert_eq!(handle.reap().is_some(), round % 8 > 0);
        }
    }
    let mut last = Handle::new(&device, shared.attach()).unwrap();
    assert!(last.wait().is_none());
    last.run(Request::flush(0)).unwrap();
    drop(last);
    assert_eq!((shared.handle_count(), shared.outstanding()), (0, 0));
}

#[test]
fn queues_are_selected_by_direction_by_size_and_by_a_function() {
    everywhere(|device| {
        let queues = |n| -> Vec<_> {
            (0..n).map(|_| device.create_queue(QueueConfig::default()).unwrap()).collect()
        };
        for selector in [
            QueueSelector::ByDirection,
            QueueSelector::BySize(4),
            QueueSelector::RoundRobin,
            QueueSelector::Function(Box::new(|request, lanes| request.lba as usize % (lanes + 1))),
        ] {
            let lanes = MultiQueue::new(queues(2), selector).unwrap();
            random(device, &mut Handle::new(device, lanes).unwrap(), (0, 64), 3);
        }
        assert!(
            MultiQueue::new(queues(1), QueueSelector::ByDirection).is_err(),
            "reads and writes are separate queues"
        );
        assert!(MultiQueue::new(queues(0), QueueSelector::RoundRobin).is_err());
    });
}

#[test]
fn queues_come_and_go_without_end() {
    let device = drive(PersonalityKind::Block);
    let held = device.create_queue(QueueConfig::default()).unwrap();
    let buffer = device.buffer(4096).unwrap();
    for round in 0..600u64 {
        let depth = [2, 17, 256][round as usize % 3];
        let config = QueueConfig { depth, interrupts: round % 2 == 0 };
        let mut handle = Handle::new(&device, device.create_queue(config).unwrap()).unwrap();
        handle.submit(Request::write(round % 64, 1, buffer.payload(), 1)).unwrap();
        // Every other queue is dropped with its request in flight.
        if round % 2 == 0 {
            assert!(handle.wait().unwrap().status.is_success());
        } else {
            handle.poll();
        }
        handle.submit(Request::discard(0, 1, 2)).unwrap_or_default();
    }
    drop(held);
}

#[test]
fn a_drive_has_so_many_queues_and_says_so() {
    let device = drive(PersonalityKind::Block);
    let granted = device.drive_info().unwrap().io_queues;
    let all: Vec<_> =
        (0..granted).map(|_| device.create_queue(QueueConfig::default()).unwrap()).collect();
    let error = device.create_queue(QueueConfig::default()).unwrap_err();
    assert!(error.to_string().contains(&format!("all {granted} I/O queue pairs")), "{error}");
    drop(all);
    device.create_queue(QueueConfig { depth: 2, interrupts: false }).unwrap();
    let error = device.create_queue(QueueConfig { depth: 1, interrupts: false }).unwrap_err();
    assert!(error.to_string().contains("at least 2"), "{error}");
}

#[test]
fn what_cannot_be_is_said() {
    everywhere(|device| {
        let mut handle = handle(device);
        let limits = *handle.limits();
        let buffer = device.buffer(limits.sector_bytes as usize).unwrap();
        let error = handle.read(limits.sectors, &buffer).unwrap_err();
        assert_eq!(error.status(), Some(Status::LBA_OUT_OF_RANGE), "{error}");
        let odd = device.buffer(100).unwrap();
        let error = handle.write(0, &odd, false).unwrap_err();
        assert!(error.to_string().contains("whole sectors of 4096 bytes"), "{error}");
        let long = (limits.max_sectors as usize + 1) * limits.sector_bytes as usize;
        let error = handle.read(0, &device.buffer(long).unwrap()).unwrap_err();
        assert!(matches!(error, IoError::Length { .. }), "{error}");
        let own = Request::read(0, 1, buffer.payload(), 1 << 63);
        assert!(handle.submit(own).is_err(), "tags from 2^63 on are reserved for the handle");
        assert!(device.vector_queue(QueueConfig::default()).is_err());
        handle.read(0, &buffer).unwrap();
    });
}

#[test]
fn an_open_channel_drive_takes_addresses() {
    let device = drive(PersonalityKind::OpenChannel);
    assert!(
        device.create_queue(QueueConfig::default()).is_err(),
        "an open-channel drive needs a target"
    );
    let mut queue = device.vector_queue(QueueConfig::default()).unwrap();
    let open = device.drive_info().unwrap().open_channel.unwrap();
    let data = device.buffer(4096).unwrap();
    data.fill(0, 4096, 0x5a);
    let ppa = open.format.pack(nvme::Address::default());
    let ppas = || std::iter::once(ppa);
    queue.write(ppas(), ocssd::vector::DataSegments::Contiguous(data.iova()), None, 1).unwrap();
    queue.ring(false);
    let ended = loop {
        if let Some(ended) = queue.reap() {
            break ended;
        }
        std::thread::yield_now();
    };
    assert_eq!((ended.user_data, ended.failed), (1, 0), "{ended:?}");
    device.destroy_vector_queue(queue);
}

#[test]
fn a_file_keeps_what_was_flushed() {
    let (device, file) = file(1 << 20);
    let mut handle = handle(&device);
    let buffer = device.buffer(4096).unwrap();
    buffer.fill(0, 4096, 0x77);
    handle.write(3, &buffer, false).unwrap();
    handle.flush().unwrap();
    let bytes = std::fs::read(file.path()).unwrap();
    assert!(bytes[3 * 4096..4 * 4096].iter().all(|b| *b == 0x77));
    assert!(bytes[..3 * 4096].iter().all(|b| *b == 0));
}
