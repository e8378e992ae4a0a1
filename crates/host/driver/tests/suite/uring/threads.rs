//! Several queues of one device, each owned by a thread.

use nvme::Status;
use rng::Rng;
use sluice_driver::{HardwareQueue, LowLevelDriver, Payload, Request, Tag, Uring, UringConfig};
use time::Nanos;

use super::fixture::{Disk, Memory, run, wait};

const THREADS: u16 = 4;
const SECTORS: u64 = 256;

#[test]
fn queues_of_several_threads_do_not_mix() {
    let disk = Disk::new(u64::from(THREADS) * SECTORS * 4096);
    let config = UringConfig {
        queues: THREADS,
        depth: 16,
        sector_bytes: Some(4096),
        ..UringConfig::default()
    };
    let mut device = Uring::open(&disk.path, config).unwrap();
    assert_eq!(device.queues(), THREADS);
    assert_eq!(
        (0..8).map(|s| device.map_queue(s, 8)).collect::<Vec<_>>(),
        [0, 0, 1, 1, 2, 2, 3, 3]
    );
    let queues: Vec<_> = (0..THREADS)
        .map(|index| (device.take_queue(index).unwrap(), Memory::new(&device, 16 * 4096)))
        .collect();
    std::thread::scope(|scope| {
        for (index, (mut queue, memory)) in (0..).zip(queues) {
            scope.spawn(move || {
                // Each thread writes its own bytes to its own part of the device.
                let mut rng = Rng::new(index);
                let mut held = vec![0u8; SECTORS as usize];
                let mut tags = [Tag(0); 16];
                for round in 0..200u64 {
                    let count = queue.get_free_tags(&mut tags);
                    assert_eq!(count, 16);
                    let write = round % 2 == 0;
                    let start = rng.below(SECTORS - 16);
                    for (i, tag) in tags.iter().enumerate() {
                        let lba = index * SECTORS + start + i as u64;
                        let at = usize::from(tag.0) * 4096;
                        let data = Payload::Contiguous(memory.at(at));
                        let request = if write {
                            let byte = (index * 50 + 1) as u8 + (round % 49) as u8;
                            memory.region.fill(at, 4096, byte);
                            held[start as usize + i] = byte;
                            Request::write(lba, 1, data, start + i as u64)
                        } else {
                            Request::read(lba, 1, data, start + i as u64)
                        };
                        queue.bind_tag_cmd(*tag, &request, Nanos::ZERO).unwrap();
                    }
                    queue.issue_tags();
                    for _ in 0..16 {
                        let event = wait(&mut queue);
                        assert_eq!(event.status, Status::SUCCESS);
                        let user = queue.detach_tag_cmd(event.tag).unwrap().user;
                        let found = memory.bytes(usize::from(event.tag.0) * 4096, 4096);
                        let wanted = held[user as usize];
                        assert!(found.iter().all(|b| *b == wanted), "thread {index}, {user}");
                        queue.release_tags(&[event.tag]).unwrap();
                    }
                }
                assert_eq!(queue.stats().spurious_completions, 0);
            });
        }
    });
}

#[test]
fn a_queue_moves_from_thread_to_thread() {
    let disk = Disk::new(1 << 20);
    let mut device = Uring::open(&disk.path, UringConfig::default()).unwrap();
    let memory = Memory::new(&device, 65_536);
    let mut queue = device.take_queue(0).unwrap();
    for round in 0..8u64 {
        let at = Payload::Contiguous(memory.at(4096));
        queue = std::thread::spawn(move || {
            assert!(run(&mut queue, Request::write(round, 1, at, round)).is_success());
            assert!(run(&mut queue, Request::flush(round)).is_success());
            queue
        })
        .join()
        .unwrap();
        assert!(run(&mut queue, Request::read(round, 1, at, round)).is_success());
    }
    assert_eq!(queue.stats().spurious_completions, 0);
}
