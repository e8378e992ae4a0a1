//! A controller whose commands exceed the timeout while QEMU's monitor throttles it (throttle group
//! `slow`, namespace 5 of `scripts/guest`), and a sector of it that cannot be read.

// guarantee: C-04

use std::time::{Duration, Instant};

use block::BlockDevice as _;
use driver::{Payload, Request};
use nvme::Status;
use open::OpenOptions;
use time::{Component as _, Nanos};
use user_io::{IoDevice, Queue, QueueConfig};

use super::harness::target;

/// The namespace.
const NSID: u32 = 5;
/// An unreadable sector of 512 bytes.
const UNREADABLE: u64 = 200_000;
/// Timeout of a command, and of an abort.
const TIMEOUT: Nanos = Nanos::from_millis(1_000);
/// Requests in flight on each queue.
const DEPTH: usize = 3;
/// Longer than any operation in a guest, whose time is emulated.
const HANG_TIMEOUT: Duration = Duration::from_secs(120);

fn open() -> IoDevice {
    let options = OpenOptions { timeout: Some(TIMEOUT), ..OpenOptions::default() };
    open::open(&format!("{}#{NSID}", target()), &options).unwrap()
}

/// Has QEMU's monitor limit the requests per second; 0 removes the limit.
fn limit(requests: u32) {
    println!(
        "\nmonitor: {{\"execute\": \"qom-set\", \"arguments\": {{\"path\": \"/objects/slow\", \"property\": \"limits\", \
         \"value\": {{\"iops-total\": {requests}}}}}}}"
    );
}

/// A queue that writes its own sectors in order, and repeats each write until it succeeds.
struct Writer {
    queue: Queue,
    at: Payload,
    first: u64,
    /// Number of submissions and of completions by tag, which is the sector's number.
    completions: Vec<(u32, u32)>,
    outstanding: usize,
    good: u64,
    aborted: u64,
    /// Sectors to be written again.
    unwritten: Vec<u64>,
}

impl Writer {
    fn new(device: &IoDevice, at: Payload, first: u64) -> Writer {
        let queue = device.create_queue(QueueConfig::default()).unwrap();
        let (completions, unwritten) = (Vec::new(), Vec::new());
        Writer { queue, at, first, completions, outstanding: 0, good: 0, aborted: 0, unwritten }
    }

    fn step(&mut self, now: Nanos, submits: bool) {
        while submits && self.outstanding < DEPTH {
            let tag = self.unwritten.pop().unwrap_or(self.completions.len() as u64);
            if tag == self.completions.len() as u64 {
                self.completions.push((0, 0));
            }
            let request = Request::write(self.first + tag % 64, 1, self.at, tag);
            // A queue that is being reset refuses requests.
            if self.queue.submit(now, request).is_err() {
                self.unwritten.push(tag);
                break;
            }
            self.completions[tag as usize].0 += 1;
            self.outstanding += 1;
        }
        self.queue.poll(now);
        while let Some(done) = self.queue.reap() {
            let (begun, ended) = &mut self.completions[done.tag as usize];
            *ended += 1;
            assert_eq!(begun, ended, "request {} completed twice", done.tag);
            self.outstanding -= 1;
            match done.status {
                status if status.is_success() => self.good += 1,
                status => {
                    assert!(
                        status.is(Status::ABORTED) || status.is(Status::ABORTED_SQ_DELETED),
                        "{status}"
                    );
                    self.aborted += 1;
                    self.unwritten.push(done.tag);
                }
            }
        }
    }
}

/// Requests that exceed the timeout are aborted, and their queue is reset. Each completes once, and
/// the queues continue when the controller does.
#[test]
#[ignore = "needs a controller of its own (make test-guest)"]
fn guest_slow_commands_end_once() {
    let device = open();
    let clock = device.clock();
    let data = device.buffer(4096).unwrap();
    data.fill(0, 512, 0x6b);
    let mut writers = [0, 4096].map(|first| Writer::new(&device, data.payload(), first));
    let turns =
        |writers: &mut [Writer; 2], until: &mut dyn FnMut(&[Writer; 2]) -> bool, submits| {
            let begun = Instant::now();
            while !until(writers) {
                assert!(begun.elapsed() < HANG_TIMEOUT, "the writers make no progress");
                writers.iter_mut().for_each(|writer| writer.step(clock.now(), submits));
                std::thread::yield_now();
            }
        };
    turns(&mut writers, &mut |all| all.iter().all(|writer| writer.good >= 100), true);
    assert_eq!(writers.each_ref().map(|writer| writer.aborted), [0, 0]);
    limit(2);
    let begun = Instant::now();
    turns(&mut writers, &mut |all| all.iter().any(|writer| writer.aborted > 0), true);
    println!("reset after {} ms", begun.elapsed().as_millis());
    limit(0);
    let good = writers.each_ref().map(|writer| writer.good);
    turns(
        &mut writers,
        &mut |all| all.iter().zip(good).all(|(writer, before)| writer.good >= before + 100),
        true,
    );
    turns(&mut writers, &mut |all| all.iter().all(|writer| writer.outstanding == 0), false);
    for writer in &mut writers {
        assert!(writer.completions.iter().all(|(begun, ended)| begun == ended));
        println!("{} requests ended well, {} were aborted", writer.good, writer.aborted);
        // The drive must have the written data.
        data.fill(0, 512, 0);
        let now = clock.now();
        writer.queue.submit(now, Request::read(writer.first, 1, data.payload(), 0)).unwrap();
        let status = wait_completion(&device, &mut writer.queue);
        assert!(status.is_success(), "{status}");
        let mut bytes = [0; 512];
        data.read(0, &mut bytes);
        assert_eq!(bytes, [0x6b; 512]);
    }
    assert_eq!(device.removal_reason(), None);
}

/// Returns the status of the one request in flight.
fn wait_completion(device: &IoDevice, queue: &mut Queue) -> Status {
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < HANG_TIMEOUT, "the request does not complete");
        queue.poll(device.clock().now());
        if let Some(done) = queue.reap() {
            return done.status;
        }
        std::thread::yield_now();
    }
}

/// Requests that read an unreadable sector fail with a media error; all others succeed.
#[test]
#[ignore = "needs a controller of its own (make test-guest)"]
fn guest_slow_sector_that_cannot_be_read() {
    let device = open();
    let mut queue = device.create_queue(QueueConfig::default()).unwrap();
    let data = device.buffer(64 << 10).unwrap();
    for (lba, sectors, readable) in [
        (UNREADABLE, 1, false),
        (UNREADABLE - 8, 8, true),
        (UNREADABLE - 8, 32, false),
        (UNREADABLE + 1, 100, true),
    ] {
        let request = Request::read(lba, sectors, data.payload(), 0);
        queue.submit(device.clock().now(), request).unwrap();
        let status = wait_completion(&device, &mut queue);
        assert_eq!(status.is_success(), readable, "{sectors} at {lba}: {status}");
        assert!(readable || status.is(Status::UNRECOVERED_READ), "{status}");
    }
}
