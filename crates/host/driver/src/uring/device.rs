//! [`RingDevice`]: a device of the host whose hardware queues are io_uring instances.

use mem::AddressSpace;

use super::backend::UringBackend;
use super::queue::RingQueueConfig;
use super::ring::RingSetup;
use super::{RingQueue, UringError};
use crate::hal::{Features, Limits, LowLevelDriver};

/// A device of the host through io_uring: [`Uring`](super::Uring) is a file or block device,
/// [`Passthrough`](super::Passthrough) a namespace under the kernel's NVMe driver.
#[derive(Debug)]
pub struct RingDevice<W: UringBackend + Clone> {
    pub(super) backend: W,
    memory: AddressSpace,
    pub(super) config: RingQueueConfig,
    queues: Vec<Option<RingQueue<W>>>,
}

impl<W: UringBackend + Clone> RingDevice<W> {
    pub(super) fn new(
        backend: W,
        memory: AddressSpace,
        config: RingQueueConfig,
        queues: u16,
    ) -> Result<RingDevice<W>, UringError> {
        let mut device = RingDevice { backend, memory, config, queues: Vec::new() };
        device.queues =
            (0..queues).map(|_| device.create_queue().map(Some)).collect::<Result<_, _>>()?;
        Ok(device)
    }

    /// Creates another hardware queue, which [`take_queue`](LowLevelDriver::take_queue) does not
    /// return. Dropping it closes its ring.
    ///
    /// # Errors
    /// The error of creating a ring: no memory, too many open files.
    pub fn create_queue(&self) -> Result<RingQueue<W>, UringError> {
        self.create_queue_with(self.config.setup)
    }

    pub(super) fn create_queue_with(&self, setup: RingSetup) -> Result<RingQueue<W>, UringError> {
        let config = RingQueueConfig { setup, ..self.config };
        let (backend, memory) = (self.backend.clone(), self.memory.clone());
        RingQueue::new(backend, memory, config).map_err(UringError::ring)
    }
}

impl<W: UringBackend + Clone> LowLevelDriver for RingDevice<W> {
    type Queue = RingQueue<W>;

    fn limits(&self) -> Limits {
        self.config.limits
    }

    fn features(&self) -> Features {
        self.config.features
    }

    fn queues(&self) -> u16 {
        self.queues.len() as u16
    }

    fn memory(&self) -> &AddressSpace {
        &self.memory
    }

    fn take_queue(&mut self, index: u16) -> Option<RingQueue<W>> {
        self.queues.get_mut(usize::from(index))?.take()
    }
}
