//! [`BlockLayerDevice`]: the block layer's queues, one per core, as one device. [`PerCoreDevices`]
//! assigns jobs to cores.

use block::{BlockDevice, BlockLayer, Completion, Group, Limits, Queue, QueueFull, Request};
use driver::NvmeQueue;
use event::Waker;
use mem::AddressSpace;
use time::{Component, Nanos};
use workload::job_index_of_tag;

use crate::per_core_devices::PerCoreDevices;

/// The block layer of one drive, with all its cores.
#[derive(Debug)]
pub struct BlockLayerDevice {
    kind: &'static str,
    block_layer: BlockLayer,
    queues: PerCoreDevices<Queue<NvmeQueue>>,
    /// Group of each job; jobs without an entry are in group 0.
    groups: Vec<Group>,
}

impl BlockLayerDevice {
    /// Returns the queues of `layer`, whose queue model is `kind`; `None` if the layer has no
    /// cores.
    pub(crate) fn new(
        kind: &'static str,
        layer: BlockLayer,
        queues: Vec<Queue<NvmeQueue>>,
    ) -> Option<BlockLayerDevice> {
        Some(BlockLayerDevice {
            kind,
            block_layer: layer,
            queues: PerCoreDevices::new(queues)?,
            groups: Vec::new(),
        })
    }

    /// Returns the queue model, `"sq"` or `"mq"`.
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// Returns the block layer, for its counters.
    pub fn block_layer(&self) -> &BlockLayer {
        &self.block_layer
    }

    /// Returns each core's queue, in order.
    pub fn queues_mut(&mut self) -> &mut [Queue<NvmeQueue>] {
        self.queues.all_mut()
    }

    /// Sets the group of each job, with clones counted one by one.
    pub fn set_groups(&mut self, groups: Vec<Group>) {
        self.groups = groups;
    }
}

impl Component for BlockLayerDevice {
    #[inline]
    fn poll(&mut self, now: Nanos) -> bool {
        self.queues.poll(now)
    }

    #[inline]
    fn deadline(&self) -> Nanos {
        self.queues.deadline()
    }
}

impl BlockDevice for BlockLayerDevice {
    block::answer_block_device!(can_wake: true, enable_sharing: {}, can_wait: false);

    fn limits(&self) -> &Limits {
        self.queues.limits()
    }

    #[inline]
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        let job = job_index_of_tag(request.tag);
        let queue = self.queues.for_job(job);
        queue.set_group(self.groups.get(job).copied().unwrap_or_default());
        queue.submit(now, request)
    }

    #[inline]
    fn reap(&mut self) -> Option<Completion> {
        self.queues.reap()
    }

    fn memory(&self) -> &AddressSpace {
        self.queues.memory()
    }

    fn set_waker(&mut self, waker: Waker) {
        self.queues.set_waker(&waker);
    }
}
