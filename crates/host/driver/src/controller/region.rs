//! [`PersistentRegion`]: host access to the persistent memory region of a drive ([NVMe1.4 §4.8]).
//!
//! A store is visible to the other hosts of the region at once, and survives a loss of power after
//! it was persisted: its cache lines are written back, and PMRSTS is read, which is the mechanism
//! of PMRCAP.PMRWBM. Of stores that were not persisted, each aligned word of 8 bytes survives or
//! not.
//!
//! Stores and persists take time of the host ([`RegionCosts`]). In virtual time they return it, and
//! the caller adds it to the time of its request. With a clock
//! ([`in_real_time`](PersistentRegion::in_real_time)), the calling thread spins for it.
//!
//! Concurrency: any thread may access the region. Two hosts that store to one word must order that.

use std::sync::Arc;

use event::RealClock;
use mem::PersistentMemory;
use nvme::register::{PMRCAP, PMRCTL, PMRSTS};
use nvme::{PmrCap, PmrControl, PmrStatus};
use time::Nanos;
use transport::{Port, PortRegion, RegionCosts};

use crate::DriverError;
use crate::controller::admin::ProgressFn;
use crate::controller::init::{self, ProgressPace};

/// Unit of PMRCAP.PMRTO.
const TIMEOUT_UNIT: Nanos = Nanos::from_millis(500);

/// The reason for which a persistent memory region was not accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegionError {
    /// The range is outside of the region.
    #[error("bytes {offset}..+{len} of a persistent memory region of {bytes}")]
    OutOfBounds {
        /// Offset of the range.
        offset: u64,
        /// Length of the range, in bytes.
        len: u64,
        /// Size of the region, in bytes.
        bytes: u64,
    },
    /// The region is disabled, or the drive sanitizes it.
    #[error("the persistent memory region is not ready (PMRSTS.NRDY): enable it by PMRCTL.EN")]
    NotReady,
    /// The drive was removed or has lost its power; of stores that were not persisted, any part may
    /// be lost.
    #[error("the drive of the persistent memory region was removed, or lost its power")]
    Removed,
}

/// A persistent memory region. Clones refer to one region.
#[derive(Clone, Debug)]
pub struct PersistentRegion {
    port: Arc<Port>,
    region: PortRegion,
    /// The clock by which the caller spins, in real time.
    clock: Option<RealClock>,
}

impl PersistentRegion {
    /// Returns the region of the drive behind a port; `None` if the drive has none, or the host is
    /// confined to a part of the drive. The region of a real controller is not mapped.
    pub fn of_port(port: &Arc<Port>) -> Option<PersistentRegion> {
        let region = port.persistent_region()?.clone();
        Some(PersistentRegion { port: port.clone(), region, clock: None })
    }

    /// Has the calling thread spin for the time of stores and persists, by `clock`. They return
    /// zero then.
    #[must_use]
    pub fn in_real_time(self, clock: RealClock) -> PersistentRegion {
        PersistentRegion { clock: Some(clock), ..self }
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> u64 {
        self.region.memory.len() as u64
    }

    /// Returns the time that stores and persists take.
    pub fn costs(&self) -> RegionCosts {
        self.region.costs
    }

    /// Returns the memory, for software that charges its accesses itself.
    pub fn memory(&self) -> &PersistentMemory {
        &self.region.memory
    }

    /// Checks that the region can be accessed.
    ///
    /// # Errors
    /// [`RegionError::NotReady`], [`RegionError::Removed`].
    #[inline]
    pub fn check_ready(&self) -> Result<(), RegionError> {
        match PmrStatus::from_value(self.port.register(PMRSTS)) {
            None => Err(RegionError::Removed),
            Some(status) if status.not_ready => Err(RegionError::NotReady),
            Some(_) => Ok(()),
        }
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), RegionError> {
        let bytes = self.bytes();
        match offset.checked_add(len) {
            Some(end) if end <= bytes => self.check_ready(),
            _ => Err(RegionError::OutOfBounds { offset, len, bytes }),
        }
    }

    /// Reads from the region, also what is not persistent.
    ///
    /// # Errors
    /// [`RegionError`]; `into` is as before.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), RegionError> {
        self.check(offset, into.len() as u64)?;
        self.region.memory.read(offset as usize, into);
        Ok(())
    }

    /// Stores to the region. Returns the time that the host has to spend: the cost of each cache
    /// line, or zero in real time.
    ///
    /// # Errors
    /// [`RegionError`]; nothing was stored.
    pub fn store(&self, offset: u64, data: &[u8]) -> Result<Nanos, RegionError> {
        let len = data.len() as u64;
        self.check(offset, len)?;
        let began = self.now();
        self.region.memory.store(offset as usize, data);
        self.region.counters.add_store(RegionCosts::lines(offset, len));
        Ok(self.spend(began, self.region.costs.store_time(offset, len)))
    }

    /// Persists the cache lines of a range. They survive a loss of power after the return. Returns
    /// the time that the host has to spend: the cost of a persist, or zero in real time.
    ///
    /// # Errors
    /// [`RegionError`]. After [`RegionError::Removed`] it is not known what is persistent.
    pub fn persist(&self, offset: u64, len: u64) -> Result<Nanos, RegionError> {
        self.check(offset, len)?;
        let began = self.now();
        self.region.memory.persist(offset as usize, len as usize);
        // The read of PMRSTS that PMRCAP.PMRWBM asks for. The region may be gone meanwhile.
        self.check_ready()?;
        self.region.counters.add_persist();
        Ok(self.spend(began, self.region.costs.persist))
    }

    fn now(&self) -> Nanos {
        self.clock.map_or(Nanos::ZERO, |clock| clock.now())
    }

    /// Spins until `time` has passed since `began`, in real time; else returns `time`.
    fn spend(&self, began: Nanos, time: Nanos) -> Nanos {
        let Some(clock) = self.clock else { return time };
        if time > Nanos::ZERO {
            while clock.now() < began + time {
                std::hint::spin_loop();
            }
        }
        Nanos::ZERO
    }
}

/// Asks the drive to enable or disable the region of a port whose host has registers. Other regions
/// are always enabled.
pub(crate) fn request_enabled(port: &Port, enabled: bool) {
    if port.persistent_region().is_some() && port.has_registers() {
        port.set_register(PMRCTL, PmrControl { enabled }.to_value());
        port.wake_drive();
    }
}

/// Enables or disables the region, and waits until it is ready or not.
///
/// # Errors
/// [`DriverError::InitTimeout`], [`DriverError::Removed`].
pub(crate) fn set_enabled(
    port: &Port,
    enabled: bool,
    progress: ProgressFn<'_>,
    pace: ProgressPace,
) -> Result<(), DriverError> {
    let units = PmrCap::from_value(port.register(PMRCAP)).timeout.max(1);
    let timeout = Nanos(TIMEOUT_UNIT.0 * u64::from(units));
    request_enabled(port, enabled);
    let step = match enabled {
        true => "enable its persistent memory region",
        false => "disable its persistent memory region",
    };
    init::wait_until(port, step, timeout, progress, pace, |_| {
        let status = PmrStatus::from_value(port.register(PMRSTS)).ok_or(DriverError::Removed)?;
        Ok(status.not_ready != enabled)
    })
}
