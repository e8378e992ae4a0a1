//! [`DriveQueues`]: hardware queues of an opened drive as a low-level driver, for layers that several
//! submitters share (SYSTOR'13 section 3: the block layer above the driver).
//!
//! Guarantee: as every queue of [`Device`](crate::Device), also of a drive in another process. When that
//! process goes, commands end by the layer's own timeouts: it aborts, resets, and finds the drive
//! removed.

use std::sync::Arc;

use block::{Features, Limits};
use driver::{EmulatedQueue, HardwareQueue, LowLevelDriver};
use ring::AddressSpace;

use crate::DirectError;
use crate::opened::Opened;

/// Hardware queues of a drive ([`Device::drive_queues`](crate::Device::drive_queues)), handed out one by
/// one. The drive must outlive them: whoever takes queues keeps this.
#[derive(Debug)]
pub struct DriveQueues {
    queues: Vec<Option<EmulatedQueue>>,
    limits: Limits,
    device: Arc<Opened>,
}

impl DriveQueues {
    pub(crate) fn new(
        device: Arc<Opened>,
        queues: Vec<EmulatedQueue>,
    ) -> Result<DriveQueues, DirectError> {
        let depth = queues.iter().map(|queue| u32::from(queue.tags().count())).min();
        let limits = Limits { queue_depth: depth.unwrap_or(0), ..*device.limits() };
        Ok(DriveQueues { queues: queues.into_iter().map(Some).collect(), limits, device })
    }
}

impl LowLevelDriver for DriveQueues {
    type Queue = EmulatedQueue;

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

    fn take_queue(&mut self, index: u16) -> Option<EmulatedQueue> {
        self.queues.get_mut(usize::from(index))?.take()
    }
}
