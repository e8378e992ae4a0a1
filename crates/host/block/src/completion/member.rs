//! [`StripeMember`]: one hardware queue as a drive of its own.

use driver::{Features, HardwareQueue, Limits, LowLevelDriver};
use mem::AddressSpace;

/// A hardware queue that leads to a drive of its own: a port of an AHCI controller, or the only
/// used queue of an NVMe drive.
#[derive(Debug)]
pub struct StripeMember<Q> {
    queue: Option<Q>,
    memory: AddressSpace,
    limits: Limits,
    features: Features,
}

impl<Q: HardwareQueue> StripeMember<Q> {
    /// Takes hardware queue `index` from its driver; `None` if the queue does not exist or is in
    /// use.
    pub fn take<D: LowLevelDriver<Queue = Q>>(
        driver: &mut D,
        index: u16,
    ) -> Option<StripeMember<Q>> {
        let queue = driver.take_queue(index)?;
        let memory = queue.memory().clone();
        Some(StripeMember {
            queue: Some(queue),
            memory,
            limits: driver.limits(),
            features: driver.features(),
        })
    }

    /// Takes every hardware queue of a driver whose queues lead to different drives.
    pub fn take_all<D: LowLevelDriver<Queue = Q>>(driver: &mut D) -> Vec<StripeMember<Q>> {
        (0..driver.queues()).filter_map(|index| StripeMember::take(driver, index)).collect()
    }
}

impl<Q: HardwareQueue> LowLevelDriver for StripeMember<Q> {
    type Queue = Q;

    fn limits(&self) -> Limits {
        self.limits
    }

    fn features(&self) -> Features {
        self.features
    }

    fn queues(&self) -> u16 {
        1
    }

    fn memory(&self) -> &AddressSpace {
        &self.memory
    }

    fn take_queue(&mut self, index: u16) -> Option<Q> {
        if index == 0 { self.queue.take() } else { None }
    }
}
