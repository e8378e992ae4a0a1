//! Cost of the host side of a queue pair per command: tag, entry, doorbell, completion.

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use mem::{PAGE_BYTES, SharedRegion};
use nvme::{Cqe, SglDescriptor, Sqe, Status};
use sluice_driver::{QueuePair, RingAddresses};
use transport::{CqProducer, Port, SqConsumer};

fn main() {
    divan::main();
}

const DEPTH: u16 = 256;
/// Batches per measurement: a single one is below the resolution of the timer.
const BATCHES: u32 = 1000;

fn connect_pair() -> (QueuePair, SqConsumer, CqProducer) {
    let port = Port::new().unwrap();
    let memory = SharedRegion::anonymous(16 * PAGE_BYTES).unwrap();
    let at = port.memory().register(&memory).unwrap();
    let cq = at.offset(8 * PAGE_BYTES as u64);
    (
        QueuePair::open(&port, 1, RingAddresses { submission: at, completion: cq }, DEPTH, None)
            .unwrap(),
        SqConsumer::open(&port, 1, at, DEPTH).unwrap(),
        CqProducer::open(&port, 1, cq, DEPTH, None).unwrap(),
    )
}

fn answer(cid: u16, sq_head: u16) -> Cqe {
    Cqe { result: 0, sq_head, sq_id: 1, cid, status: Status::SUCCESS }
}

/// Round trips of batches of `batch` reads, with both ends on one core; the drive's end only
/// fetches and completes.
#[divan::bench(args = [1, 8, 32])]
fn round_trip(bencher: Bencher<'_, '_>, batch: u16) {
    let (mut pair, mut sq, mut cq) = connect_pair();
    let block = SglDescriptor::DataBlock { address: 1 << 40, length: 4096 };
    bencher.counter(ItemsCount::new(u32::from(batch) * BATCHES)).bench_local(|| {
        for _ in 0..BATCHES {
            for user in 0..u64::from(batch) {
                let mut sqe = Sqe::read(1, black_box(user), 8);
                sqe.set_sgl(block);
                pair.submit(sqe, user).unwrap();
            }
            pair.ring();
            sq.read_tail().unwrap();
            while let Some(sqe) = sq.fetch() {
                cq.post(answer(sqe.cid.get(), sq.head())).unwrap();
            }
            while let Some(done) = pair.reap() {
                black_box(done);
            }
        }
    });
}

/// Round trips without the host side: the difference is the cost of the driver.
#[divan::bench(args = [1, 8, 32])]
fn bare_rings(bencher: Bencher<'_, '_>, batch: u16) {
    let port = Port::new().unwrap();
    let memory = SharedRegion::anonymous(16 * PAGE_BYTES).unwrap();
    let at = port.memory().register(&memory).unwrap();
    let cq_at = at.offset(8 * PAGE_BYTES as u64);
    let mut host_sq = transport::SqProducer::open(&port, 1, at, DEPTH).unwrap();
    let mut host_cq = transport::CqConsumer::open(&port, 1, cq_at, DEPTH).unwrap();
    let mut sq = SqConsumer::open(&port, 1, at, DEPTH).unwrap();
    let mut cq = CqProducer::open(&port, 1, cq_at, DEPTH, None).unwrap();
    let block = SglDescriptor::DataBlock { address: 1 << 40, length: 4096 };
    bencher.counter(ItemsCount::new(u32::from(batch) * BATCHES)).bench_local(|| {
        for _ in 0..BATCHES {
            for user in 0..u64::from(batch) {
                let mut sqe = Sqe::read(1, black_box(user), 8);
                sqe.set_sgl(block);
                host_sq.push(&sqe).unwrap();
            }
            host_cq.release();
            host_sq.ring();
            sq.read_tail().unwrap();
            while let Some(sqe) = sq.fetch() {
                cq.post(answer(sqe.cid.get(), sq.head())).unwrap();
            }
            while let Some(cqe) = host_cq.pop() {
                host_sq.update_head(cqe.sq_head);
                black_box(cqe);
            }
        }
    });
}
