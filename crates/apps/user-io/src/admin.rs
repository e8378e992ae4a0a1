//! Administrative commands of an [`IoDevice`] that is a drive: health, features and events
//! ([NVMe1.4 §5.2, §5.13, §5.14, §5.21]).

use nvme::{AsyncEvent, FeatureSelect, HealthLog};

use crate::device_inner::{Backend, lock};
use crate::{DirectError, IoDevice};

impl IoDevice {
    /// Reads the drive's health log.
    ///
    /// # Errors
    /// [`DirectError::NoHealth`] if the device is not a drive; otherwise the status of the command.
    pub fn health(&self) -> Result<HealthLog, DirectError> {
        match self.inner().backend() {
            Backend::Drive(way) => {
                self.inner().wait_for_admin(|progress| Ok(lock(&way.controller).health(progress)?))
            }
            Backend::Passthrough(namespace) => Ok(namespace.health()?),
            _ => Err(DirectError::NoHealth { device: self.name().to_owned() }),
        }
    }

    /// Returns the value of a feature ([`nvme::feature`]) of the drive.
    ///
    /// # Errors
    /// [`DirectError::NoDrive`] if the device is not a drive; otherwise the status of the command.
    pub fn get_feature(&self, fid: u8, select: FeatureSelect) -> Result<u32, DirectError> {
        match self.inner().backend() {
            Backend::Drive(way) => self.inner().wait_for_admin(|progress| {
                Ok(lock(&way.controller).get_feature(fid, select, progress)?)
            }),
            Backend::Passthrough(namespace) => Ok(namespace.get_feature(fid, select)?),
            _ => Err(self.no_drive_error()),
        }
    }

    /// Sets a feature of the drive until its next reset, and returns dword 0 of the completion.
    /// Features of a controller with a kernel driver belong to the kernel and cannot be set.
    ///
    /// # Errors
    /// [`DirectError::NoDrive`] if this process does not drive the controller; otherwise the status
    /// of the command.
    pub fn set_feature(&self, fid: u8, value: u32) -> Result<u32, DirectError> {
        let Backend::Drive(way) = self.inner().backend() else { return Err(self.no_drive_error()) };
        self.inner()
            .wait_for_admin(|progress| Ok(lock(&way.controller).set_feature(fid, value, progress)?))
    }

    /// Submits an asynchronous event request, by which the drive reports its next event. Does
    /// nothing if one is outstanding. Feature [`nvme::feature::ASYNC_EVENT`] selects the kinds of
    /// events. A kernel driver receives the events of its controller itself.
    ///
    /// # Errors
    /// [`DirectError::NoDrive`] if this process does not drive the controller;
    /// [`DirectError::Drive`].
    pub fn arm_event(&self) -> Result<(), DirectError> {
        let Backend::Drive(way) = self.inner().backend() else { return Err(self.no_drive_error()) };
        Ok(lock(&way.controller).request_event()?)
    }

    /// Returns the event requested by [`arm_event`](IoDevice::arm_event), if it has occurred. Does
    /// not wait. After an event, arm the next one. Reading the log page that the event names clears
    /// the event.
    ///
    /// # Errors
    /// [`DirectError::NoDrive`] if this process does not drive the controller;
    /// [`DirectError::Drive`] if no event request is outstanding.
    pub fn poll_event(&self) -> Result<Option<AsyncEvent>, DirectError> {
        let Backend::Drive(way) = self.inner().backend() else { return Err(self.no_drive_error()) };
        Ok(lock(&way.controller).poll_event()?)
    }

    pub(crate) fn no_drive_error(&self) -> DirectError {
        DirectError::NoDrive { device: self.name().to_owned() }
    }
}
