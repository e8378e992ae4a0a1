//! Reads on the null device, for tests of system calls and allocations.

#![allow(unreachable_pub, reason = "shared by several tests")]

use std::hint::black_box;

use driver::{Null, NullQueue};
use sluice_block::sched::SchedulerConfig;
use sluice_block::{
    BlockDevice, BlockLayer, BlockLayerConfig, Payload, Queue, QueueModel, QueueTopology, Request,
    StagingScope,
};
use time::Nanos;

pub const SQ: QueueModel = QueueModel::SingleQueue;
pub const MQ: QueueModel = QueueModel::MultiQueue { staging: StagingScope::Core };

/// Opens a block layer on the null device with one hardware queue.
pub fn layer(
    layout: QueueModel,
    cores: u16,
    scheduler: &str,
    merge: bool,
) -> Vec<Queue<NullQueue>> {
    let scheduler: SchedulerConfig = scheduler.parse().unwrap();
    let config = BlockLayerConfig {
        queue_model: layout,
        topology: QueueTopology::flat(cores),
        merge,
        scheduler: scheduler.into(),
        ..BlockLayerConfig::default()
    };
    BlockLayer::open(&mut Null::default(), &config).unwrap().1
}

/// Runs `rounds` rounds of 32 reads on every queue, random and contiguous ones.
pub fn work<D: BlockDevice>(queues: &mut [D], rounds: u64) -> u64 {
    let mut completed = 0;
    let mut state = 1u64;
    for round in 0..rounds {
        let now = Nanos(1 + round * 1000);
        for queue in queues.iter_mut() {
            for i in 0..32 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let lba = if round % 4 == 0 { i } else { state >> 40 };
                queue.submit(now, Request::read(lba, 1, Payload::BitBucket, i)).unwrap();
            }
        }
        // Polls twice, because another core may have found a queue's completions.
        for _ in 0..2 {
            for queue in queues.iter_mut() {
                queue.poll(now);
                while let Some(completion) = queue.reap() {
                    black_box(completion);
                    completed += 1;
                }
            }
        }
    }
    completed
}
