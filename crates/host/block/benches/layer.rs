//! Cost of the block layer per request on the null device, next to the raw path: submission, tag,
//! dispatch and completion, with accounting. `sluice bench block` measures both interleaved.

use std::hint::black_box;

use divan::Bencher;
use divan::counter::ItemsCount;
use driver::{LowLevelDriver, Null};
use sluice_block::sched::SchedulerConfig;
use sluice_block::{
    BlockDevice, BlockLayer, BlockLayerConfig, Payload, QueueModel, Raw, Request, StagingScope,
};
use time::Nanos;

fn main() {
    divan::main();
}

/// Batches per measurement: a single one is below the resolution of the timer.
const BATCHES: u64 = 1000;
/// Requests per batch.
const BATCH: [u64; 3] = [1, 8, 32];

fn reads<D: BlockDevice>(bencher: Bencher<'_, '_>, mut device: D, batch: u64) {
    let mut state = 1u64;
    let mut now = Nanos(1);
    bencher.counter(ItemsCount::new(batch * BATCHES)).bench_local(|| {
        for _ in 0..BATCHES {
            now += Nanos(100);
            for tag in 0..batch {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let request = Request::read(state >> 34, 1, Payload::BitBucket, tag);
                device.submit(now, black_box(request)).unwrap();
            }
            device.poll(now);
            while let Some(completion) = device.reap() {
                black_box(completion);
            }
        }
    });
}

fn layer(bencher: Bencher<'_, '_>, layout: QueueModel, scheduler: &str, merge: bool, batch: u64) {
    let scheduler: SchedulerConfig = scheduler.parse().unwrap();
    let config = BlockLayerConfig {
        queue_model: layout,
        merge,
        scheduler: scheduler.into(),
        ..BlockLayerConfig::default()
    };
    let (_, mut queues) = BlockLayer::open(&mut Null::default(), &config).unwrap();
    reads(bencher, queues.remove(0), batch);
}

const MQ: QueueModel = QueueModel::MultiQueue { staging: StagingScope::Core };

#[divan::bench(args = BATCH)]
fn raw(bencher: Bencher<'_, '_>, batch: u64) {
    let mut null = Null::default();
    let queue = null.take_queue(0).unwrap();
    reads(bencher, Raw::new(queue, null.limits()), batch);
}

#[divan::bench(args = BATCH)]
fn mq(bencher: Bencher<'_, '_>, batch: u64) {
    layer(bencher, MQ, "none", true, batch);
}

#[divan::bench(args = BATCH)]
fn mq_without_merging(bencher: Bencher<'_, '_>, batch: u64) {
    layer(bencher, MQ, "none", false, batch);
}

#[divan::bench(args = BATCH)]
fn sq(bencher: Bencher<'_, '_>, batch: u64) {
    layer(bencher, QueueModel::SingleQueue, "none", true, batch);
}

#[divan::bench(args = BATCH)]
fn mq_deadline(bencher: Bencher<'_, '_>, batch: u64) {
    layer(bencher, MQ, "deadline", true, batch);
}

#[divan::bench(args = BATCH)]
fn sq_fair(bencher: Bencher<'_, '_>, batch: u64) {
    layer(bencher, QueueModel::SingleQueue, "fair", true, batch);
}
