//! Cost of the raw path per request on the host side, including the driver.

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use driver::{ControllerInfo, QueuePair, RingAddresses};
use mem::{Iova, PAGE_BYTES, SharedRegion};
use nvme::{Cqe, Status};
use sluice_block::{BlockDevice, Payload, Raw, Request};
use time::{Component, Nanos};
use transport::{CqProducer, Port, SqConsumer};

fn main() {
    divan::main();
}

const DEPTH: u16 = 256;
/// Batches per measurement: a single one is below the resolution of the timer.
const BATCHES: u32 = 1000;

/// Round trips of batches of `batch` reads, with both ends on one core; the drive's end only
/// fetches and completes. The difference to the driver's bench `round_trip` is the cost of `Raw`;
/// the difference to `bare_rings` includes the driver.
#[divan::bench(args = [1, 8, 32])]
fn reads(bencher: Bencher<'_, '_>, batch: u16) {
    let port = Port::new().unwrap();
    let memory = SharedRegion::anonymous(16 * PAGE_BYTES).unwrap();
    let at = port.memory().register(&memory).unwrap();
    let cq_at = at.offset(8 * PAGE_BYTES as u64);
    let rings = RingAddresses { submission: at, completion: cq_at };
    let pair = QueuePair::open(&port, 1, rings, DEPTH, None).unwrap();
    let mut sq = SqConsumer::open(&port, 1, at, DEPTH).unwrap();
    let mut cq = CqProducer::open(&port, 1, cq_at, DEPTH, None).unwrap();
    let info = ControllerInfo {
        serial: String::new(),
        product: driver::ProductIdentity { model: String::new(), firmware: String::new() },
        nsid: 1,
        sector_bytes: 4096,
        oob_bytes: 0,
        metadata: None,
        sectors: 1 << 30,
        max_sectors: 32,
        optimal_sectors: 1,
        volatile_cache: false,
        io_queues: 1,
        max_outstanding: 0,
        data: driver::DataPointers::Sgl,
        features: driver::Features::default(),
        open_channel: None,
    };
    let mut raw = Raw::from_pair(&info, pair, port).unwrap();
    bencher.counter(ItemsCount::new(u32::from(batch) * BATCHES)).bench_local(|| {
        for _ in 0..BATCHES {
            for tag in 0..u64::from(batch) {
                let data = Payload::Contiguous(Iova(1 << 40));
                raw.submit(Nanos::ZERO, Request::read(black_box(tag), 1, data, tag)).unwrap();
            }
            raw.poll(Nanos::ZERO);
            sq.read_tail().unwrap();
            while let Some(sqe) = sq.fetch() {
                let (cid, sq_head) = (sqe.cid.get(), sq.head());
                cq.post(Cqe { result: 0, sq_head, sq_id: 1, cid, status: Status::SUCCESS })
                    .unwrap();
            }
            while let Some(done) = raw.reap() {
                black_box(done);
            }
        }
    });
}
