//! [`Member`]: one hardware queue as a drive of its own.

use driver::{Features, HardwareQueue, Limits, LowLevelDriver};
use ring::AddressSpace;

/// One hardware queue that leads to a drive of its own, taken from its driver: a port of an AHCI
/// controller, or the one queue that is used of an NVMe drive.
#[derive(Debug)]
pub struct StripeMember<Q> {
    queue: Option<Q>,
    memory: AddressSpace,
    limits: Limits,
    features: Features,
}

impl<Q: HardwareQueue> StripeMember<Q> {
    /// Takes hardware queue `index`; `None` if it is not to be had.
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

    /// Every hardware queue of a driver whose queues lead to different drives.
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
