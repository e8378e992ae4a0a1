//! [`KvDevice`]: the drive of a key-value target, with its queue pair and registered memory.

use std::sync::Arc;

use mem::{Iova, SharedRegion};
use nvme::ChunkId;

use super::format::command_tag::KvCommandTag;
use super::request::ValueBuffer;
use ocssd::vector::{Addresses, VectorQueue};

/// The drive, and host memory registered with it.
#[derive(Debug)]
pub(crate) struct KvDevice {
    pub(crate) queue: VectorQueue,
    pub(crate) addresses: Addresses,
    /// Memory of blocking requests; registrations last as long as the port.
    pub(crate) blocking_memory: Option<BlockingMemory>,
}

/// Registered memory with its address.
#[derive(Debug)]
pub(crate) struct BlockingMemory {
    pub(crate) region: Arc<SharedRegion>,
    pub(crate) at: Iova,
}

impl KvDevice {
    /// Submits the erase of a chunk. Returns whether the queue accepted it.
    pub(crate) fn erase(&mut self, chunk: u32) -> bool {
        let address = std::iter::once(self.addresses.chunk(ChunkId(chunk)));
        let user = KvCommandTag::Erase { chunk }.to_bits();
        self.queue.reset(address, user).is_ok()
    }

    /// Returns whether the memory of a value is registered.
    pub(crate) fn is_registered(&self, value: &ValueBuffer) -> bool {
        // An empty value needs no address.
        value.bytes == 0 || self.queue.port().memory().find(value.at, value.bytes).is_ok()
    }
}
