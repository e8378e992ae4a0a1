//! Costs of the rings per command, both ends: on one thread in batches, on two spinning threads,
//! and the cost of copying as many bytes.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use mem::{PAGE_BYTES, SharedRegion};
use nvme::{Cqe, SglDescriptor, Sqe};
use sluice_transport::{CqConsumer, CqProducer, Port, SqConsumer, SqProducer};

fn main() {
    divan::main();
}

const DEPTH: u16 = 256;
/// Batches per measurement: one is too short for the timer.
const BATCHES: u32 = 1000;
/// Commands of a measurement with two threads.
const COMMANDS: u64 = 100_000;

struct Host {
    sq: SqProducer,
    cq: CqConsumer,
}

struct Drive {
    sq: SqConsumer,
    cq: CqProducer,
}

fn both_sides() -> (Host, Drive) {
    let port: Arc<Port> = Port::new().unwrap();
    let memory = SharedRegion::anonymous(8 * PAGE_BYTES).unwrap();
    let at = port.memory().register(&memory).unwrap();
    let cq = at.offset(4 * PAGE_BYTES as u64);
    (
        Host {
            sq: SqProducer::open(&port, 1, at, DEPTH).unwrap(),
            cq: CqConsumer::open(&port, 1, cq, DEPTH).unwrap(),
        },
        Drive {
            sq: SqConsumer::open(&port, 1, at, DEPTH).unwrap(),
            cq: CqProducer::open(&port, 1, cq, DEPTH, None).unwrap(),
        },
    )
}

impl Host {
    fn push(&mut self, lba: u64) {
        let mut sqe = Sqe::read(1, black_box(lba), 1);
        sqe.set_sgl(SglDescriptor::DataBlock { address: 1 << 40, length: 4096 });
        self.sq.push(&sqe).unwrap();
    }

    fn ring(&mut self) {
        self.cq.release();
        self.sq.ring();
    }

    fn reap(&mut self) -> u64 {
        let mut reaped = 0;
        while let Some(cqe) = self.cq.pop() {
            self.sq.update_head(cqe.sq_head);
            black_box(cqe);
            reaped += 1;
        }
        reaped
    }

    /// Executes `count` commands, at most `depth` of them in flight.
    fn drive_through(&mut self, count: u64, depth: u64) {
        let (mut sent, mut done) = (0, 0);
        while done < count {
            let before = sent;
            while sent < count && sent - done < depth {
                self.push(sent);
                sent += 1;
            }
            if sent > before {
                self.ring();
            }
            match self.reap() {
                0 => spin_loop(),
                reaped => done += reaped,
            }
        }
    }
}

impl Drive {
    fn poll(&mut self) -> bool {
        self.sq.read_tail().unwrap();
        let mut moved = false;
        while let Some(sqe) = self.sq.fetch() {
            let cqe =
                Cqe { cid: sqe.cid.get(), sq_head: self.sq.head(), sq_id: 1, ..Cqe::default() };
            self.cq.post(cqe).unwrap();
            moved = true;
        }
        moved
    }
}

/// Sends batches of `batch` commands and their completions, both ends on one thread.
#[divan::bench(args = [1, 8, 32])]
fn one_thread(bencher: Bencher<'_, '_>, batch: u16) {
    let (mut host, mut drive) = both_sides();
    bencher.counter(ItemsCount::new(u32::from(batch) * BATCHES)).bench_local(|| {
        for _ in 0..BATCHES {
            (0..batch.into()).for_each(|lba| host.push(lba));
            host.ring();
            drive.poll();
            host.reap();
        }
    });
}

/// Host and drive on one thread each, with `depth` commands in flight.
#[divan::bench(args = [1, 32, 128])]
fn two_threads(bencher: Bencher<'_, '_>, depth: u64) {
    let (mut host, mut drive) = both_sides();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                if !drive.poll() {
                    spin_loop();
                }
            }
        });
        bencher
            .counter(ItemsCount::new(COMMANDS))
            .bench_local(|| host.drive_through(COMMANDS, depth));
        stop.store(true, Ordering::Relaxed);
    });
}

/// Copies an entry of 64 bytes and one of 16, which is the minimum cost of any ring.
#[divan::bench(args = [1, 8, 32])]
fn copies(bencher: Bencher<'_, '_>, batch: usize) {
    let mut entries = vec![[0u8; 64]; DEPTH.into()];
    let mut answers = vec![[0u8; 16]; DEPTH.into()];
    let (entry, answer) = ([1; 64], [2; 16]);
    bencher.counter(ItemsCount::new(batch * BATCHES as usize)).bench_local(|| {
        for round in 0..BATCHES as usize {
            for i in 0..batch {
                let at = (round * batch + i) % usize::from(DEPTH);
                entries[at] = black_box(entry);
                answers[at] = black_box(answer);
                black_box((&entries[at], &answers[at]));
            }
        }
    });
}
