//! Block devices that are compared, on the null device.

use block::{
    BlockLayer, BlockLayerConfig, Limits, Queue, QueueModel, QueueTopology, Raw, StagingScope,
};
use driver::{LowLevelDriver, Null, NullQueue};

use super::super::BenchError;

/// Returns the null device with 512-byte sectors and `queues` hardware queues of 1,024 tags.
pub fn null(queues: u16) -> Null {
    let limits: Limits = Null::default().limits();
    Null::new(limits, queues)
}

/// Returns a hardware queue per core, without a block layer.
///
/// # Errors
/// If a queue cannot be created.
pub fn raw(cores: u16) -> Result<Vec<Raw<NullQueue>>, BenchError> {
    let mut null = null(cores);
    let limits = null.limits();
    let queue = |i| null.take_queue(i).map(|queue| Raw::new(queue, limits));
    (0..cores).map(queue).collect::<Option<_>>().ok_or(BenchError::Thread("a hardware queue"))
}

/// Returns a block layer for `cores` cores over `queues` hardware queues.
///
/// # Errors
/// If the block layer cannot be created.
pub fn block_layer(
    layout: QueueModel,
    cores: u16,
    queues: u16,
    merge: bool,
) -> Result<Vec<Queue<NullQueue>>, BenchError> {
    let topology = QueueTopology::flat(cores);
    let config = BlockLayerConfig {
        queue_model: layout,
        topology,
        merge,
        queue_depth: 64,
        ..BlockLayerConfig::default()
    };
    let (_, ends) = BlockLayer::open(&mut null(queues), &config)?;
    Ok(ends)
}

/// `sq`.
pub const SQ: QueueModel = QueueModel::SingleQueue;
/// `mq` with a staging queue per core.
pub const MQ: QueueModel = QueueModel::MultiQueue { staging: StagingScope::Core };
/// `mq` with one staging queue.
pub const MQ_ONE: QueueModel = QueueModel::MultiQueue { staging: StagingScope::Device };
