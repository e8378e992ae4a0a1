//! [`QueueFactory`]: hardware queues of an opened drive as a low-level driver, for layers that several submitters
//! share (the block layer above the driver, [SYSTOR13 §3]).
//!
//! Guarantee: queues behave as every queue of [`IoDevice`](crate::IoDevice), also for a drive in
//! another process. If that process ends, commands end by the timeouts of the layer above, which
//! aborts, resets, and finds the drive removed.

use std::sync::Arc;

use block::{Features, Limits};
use driver::{HardwareQueue, LowLevelDriver, NvmeQueue};
use mem::AddressSpace;

use crate::DirectError;
use crate::device_inner::DeviceInner;

/// Hardware queues of a drive ([`IoDevice::queue_factory`](crate::IoDevice::queue_factory)), taken
/// one by one. Keep the factory while its queues are in use: it keeps the drive alive.
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
