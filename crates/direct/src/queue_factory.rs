//! [`QueueFactory`]: hardware queues of an opened drive as a low-level driver, for layers that several
//! submitters share (SYSTOR'13 section 3: the block layer above the driver).
//!
//! Guarantee: as every queue of [`Device`](crate::Device), also of a drive in another process. When that
//! process goes, commands end by the layer's own timeouts: it aborts, resets, and finds the drive
//! removed.

use std::sync::Arc;

use block::{Features, Limits};
use driver::{HardwareQueue, LowLevelDriver, NvmeQueue};
use ring::AddressSpace;

use crate::DirectError;
use crate::device_inner::DeviceInner;

/// Hardware queues of a drive ([`IoDevice::queue_factory`](crate::IoDevice::queue_factory)), handed out one by
/// one. The drive must outlive them: whoever takes queues keeps this.
#[derive(Debug)]
pub struct QueueFactory {
    queues: Vec<Option<NvmeQueue>>,
    limits: Limits,
    device: Arc<DeviceInner>,
}

impl QueueFactory {
    pub(crate) fn new(
        device: Arc<DeviceInner>,
        queues: Vec<NvmeQueue>,
    ) -> Result<QueueFactory, DirectError> {
        let depth = queues.iter().map(|queue| u32::from(queue.tags().count())).min();
        let limits = Limits { queue_depth: depth.unwrap_or(0), ..*device.limits() };
        Ok(QueueFactory { queues: queues.into_iter().map(Some).collect(), limits, device })
    }
}

impl LowLevelDriver for QueueFactory {
    type Queue = NvmeQueue;

    fn limits(&self) -> Limits {
        self.limits
    }

    fn features(&self) -> Features {
        self.device.features()
    }

    fn queues(&self) -> u16 {
        self.queues.len() as u16
    }

    fn memory(&self) -> &AddressSpace {
        self.device.memory()
    }

    fn take_queue(&mut self, index: u16) -> Option<NvmeQueue> {
        self.queues.get_mut(usize::from(index))?.take()
    }
}
