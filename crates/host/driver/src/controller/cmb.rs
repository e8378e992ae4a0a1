//! [`Cmb`]: host access to the controller memory buffer of a drive ([NVMe1.4 §4.7]).
//!
//! Commands can address the buffer. Data that the host stages there is on the drive before a
//! command refers to it, and the command transfers nothing. The owner of the buffer divides it;
//! this module allocates no parts of it.

use std::sync::Arc;

use mem::{Iova, SharedRegion};
use nvme::register::{CMBLOC, CMBSZ};
use nvme::{CmbLocation, CmbSize, IdentifyController, VendorExtensions};
use transport::Port;

use crate::DriverError;

/// A range outside of the controller memory buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bytes {offset}..+{len} of a controller memory buffer of {bytes}")]
pub struct OutOfCmbBounds {
    /// Offset of the range.
    pub offset: u64,
    /// Length of the range, in bytes.
    pub len: u64,
    /// Size of the buffer, in bytes.
    pub bytes: u64,
}

/// A controller memory buffer. Clones refer to the same buffer.
#[derive(Clone, Debug)]
pub struct Cmb {
    region: Arc<SharedRegion>,
    /// Offset of the buffer in the region.
    start: usize,
    base: Iova,
    bytes: u64,
    size: CmbSize,
    protected: bool,
}

impl Cmb {
    /// Returns the buffer that the registers of a port report, if any.
    ///
    /// # Errors
    /// [`DriverError::Implausible`]: the reported offset or size is wrong.
    pub(crate) fn from_port(
        port: &Port,
        controller: &IdentifyController,
    ) -> Result<Option<Cmb>, DriverError> {
        let size = CmbSize::from_value(port.register(CMBSZ));
        // The buffer of a real controller is not mapped.
        if size.units == 0 || port.is_real_controller() {
            return Ok(None);
        }
        let implausible = |what: String| DriverError::Implausible { what };
        let (Some(unit), Some(bytes)) = (size.unit_bytes(), size.bytes()) else {
            let what = format!("that its memory buffer has units of {}", size.unit_log16);
            return Err(implausible(what));
        };
        let location = CmbLocation::from_value(port.register(CMBLOC));
        let bar = port.bar(location.bar).ok_or_else(|| {
            implausible(format!("that its memory buffer is behind register {}", location.bar))
        })?;
        let base = bar.offset(unit.saturating_mul(location.offset_units.into()));
        let found = port.memory().find(base, bytes).map_err(|e| {
            implausible(format!("that it has a memory buffer of {bytes} bytes, but {e}"))
        })?;
        let protected = VendorExtensions::from_vendor_bytes(&controller.vendor)
            .has(VendorExtensions::PROTECTED_CMB);
        let (region, start) = (found.region.clone(), found.offset);
        Ok(Some(Cmb { region, start, base, bytes, size, protected }))
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the supported contents of the buffer.
    pub fn supported_uses(&self) -> CmbSize {
        self.size
    }

    /// Returns whether the contents survive the loss of the drive's power: data is durable once it
    /// is written.
    pub fn is_protected(&self) -> bool {
        self.protected
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), OutOfCmbBounds> {
        match offset.checked_add(len) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => Err(OutOfCmbBounds { offset, len, bytes: self.bytes }),
        }
    }

    /// Returns the address of a range, for an entry or a list.
    ///
    /// # Errors
    /// [`OutOfCmbBounds`].
    #[inline]
    pub fn at(&self, offset: u64, len: u64) -> Result<Iova, OutOfCmbBounds> {
        self.check(offset, len)?;
        Ok(self.base.offset(offset))
    }

    /// Writes into the buffer.
    ///
    /// # Errors
    /// [`OutOfCmbBounds`]; nothing was written.
    #[inline]
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), OutOfCmbBounds> {
        self.check(offset, from.len() as u64)?;
        self.region.write(self.start + offset as usize, from);
        Ok(())
    }

    /// Reads from the buffer.
    ///
    /// # Errors
    /// [`OutOfCmbBounds`]; nothing was read.
    #[inline]
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfCmbBounds> {
        self.check(offset, into.len() as u64)?;
        self.region.read(self.start + offset as usize, into);
        Ok(())
    }

    /// Copies registered memory into the buffer.
    ///
    /// # Errors
    /// [`OutOfCmbBounds`]; nothing was copied.
    ///
    /// # Panics
    /// If the range is outside of `from`.
    #[inline]
    pub fn stage(
        &self,
        offset: u64,
        from: &SharedRegion,
        from_offset: usize,
        len: usize,
    ) -> Result<(), OutOfCmbBounds> {
        self.check(offset, len as u64)?;
        SharedRegion::copy(from, from_offset, &self.region, self.start + offset as usize, len);
        Ok(())
    }
}
