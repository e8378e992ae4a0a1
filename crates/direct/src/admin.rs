//! The administrative side of a [`Device`] that is a drive: its health, its features, its events (NVMe
//! sections 5.2, 5.13, 5.14 and 5.21).

use nvme::{AsyncEvent, FeatureSelect, HealthLog};

use crate::device_inner::{Backend, lock};
use crate::{DirectError, IoDevice};

impl IoDevice {
    /// What a drive says of its health.
    ///
    /// # Errors
    /// [`DirectError::NoHealth`] on what is no drive; the drive's refusal.
    pub fn health(&self) -> Result<HealthLog, DirectError> {
        match self.inner().backend() {
            Backend::Drive(way) => {
                self.inner().wait_for_admin(|pump| Ok(lock(&way.controller).health(pump)?))
            }
            Backend::Passthrough(namespace) => Ok(namespace.health()?),
            _ => Err(DirectError::NoHealth { device: self.name().to_owned() }),
        }
    }

    /// The value of a drive's feature ([`nvme::feature`]).
    ///
    /// # Errors
    /// [`DirectError::NoDrive`] on what is no drive; the drive's refusal.
    pub fn get_feature(&self, fid: u8, select: FeatureSelect) -> Result<u32, DirectError> {
        match self.inner().backend() {
            Backend::Drive(way) => self
                .inner()
                .wait_for_admin(|pump| Ok(lock(&way.controller).get_feature(fid, select, pump)?)),
            Backend::Passthrough(namespace) => Ok(namespace.get_feature(fid, select)?),
            _ => Err(self.no_drive_error()),
        }
    }

    /// Sets a drive's feature until its next reset, and returns the drive's answer. Not of a controller that
    /// the kernel drives: its features are the kernel's.
    ///
    /// # Errors
    /// [`DirectError::NoDrive`] on what is no drive of ours; the drive's refusal.
    pub fn set_feature(&self, fid: u8, value: u32) -> Result<u32, DirectError> {
        let Backend::Drive(way) = self.inner().backend() else { return Err(self.no_drive_error()) };
        self.inner().wait_for_admin(|pump| Ok(lock(&way.controller).set_feature(fid, value, pump)?))
    }

    /// Asks the drive to tell of its next event: of its health, its errors, changes. Nothing to do if that
    /// was asked already. Which events there are says feature [`nvme::feature::ASYNC_EVENT`]. Those of a
    /// controller that the kernel drives are the kernel's.
    ///
    /// # Errors
    /// [`DirectError::NoDrive`] on what is no drive of ours; [`DirectError::Drive`].
    pub fn arm_event(&self) -> Result<(), DirectError> {
        let Backend::Drive(way) = self.inner().backend() else { return Err(self.no_drive_error()) };
        Ok(lock(&way.controller).request_event()?)
    }

    /// The event that was [awaited](IoDevice::arm_event), once there is one; then the next is to be asked
    /// for. Does not wait. Whoever reads the log page that it names clears it.
    ///
    /// # Errors
    /// [`DirectError::NoDrive`] on what is no drive of ours; [`DirectError::Drive`] if none is awaited.
    pub fn poll_event(&self) -> Result<Option<AsyncEvent>, DirectError> {
        let Backend::Drive(way) = self.inner().backend() else { return Err(self.no_drive_error()) };
        Ok(lock(&way.controller).poll_event()?)
    }

    fn no_drive_error(&self) -> DirectError {
        DirectError::NoDrive { device: self.name().to_owned() }
    }
}
