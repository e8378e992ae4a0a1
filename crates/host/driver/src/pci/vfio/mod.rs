//! [`VfioFunction`]: a PCI function of this process (Linux VFIO, type 1 IOMMU).
//!
//! A container has the IOMMU's translations. A group is the smallest set of functions that an IOMMU
//! can isolate, and the function belongs to a group. The function's file is closed first, so that
//! the kernel stops and resets the function. Only then the container's file is closed, and the
//! kernel frees the memory that the function could access.

#[allow(unsafe_code, reason = "VFIO is spoken by ioctl")]
mod call;

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use event::Waker;
use mem::{DmaMapper, DmaReach, DmaWindow, Iova, SharedRegion};
use rustix::event::EventfdFlags;
use transport::{ControllerOwnership, DmaBus};

use super::command::{BUS_MASTER, COMMAND, INTX_DISABLED, MEMORY_SPACE};
use super::{PciAddress, PciDriver, PciError, SysfsPci};

/// Regions of a PCI function: base address register 0, and its configuration space.
const BAR0: u32 = 0;
const CONFIG: u32 = 7;
/// Interrupts of a PCI function: MSI-X.
const MSIX: u32 = 2;
/// Further notifications of the kernel: a bus error, and a request to release the function because
/// it is unplugged or unbound.
const NOTIFICATION_IRQS: [u32; 2] = [3, 4];

/// Minimum address range of a type 1 IOMMU, if the kernel does not report it: 39 bits, without the
/// interrupt range below 4 GiB.
const IOVA_RANGE_MIN: RangeInclusive<u64> = 1 << 32..=(1 << 39) - 1;

/// An open function. Its fields are closed in order of declaration.
#[derive(Debug)]
pub struct VfioFunction {
    address: PciAddress,
    device: File,
    _group: File,
    container: File,
    /// The eventfd to which the kernel writes notifications.
    notification_fd: OwnedFd,
    release_requested: AtomicBool,
    vectors: u16,
    window: DmaWindow,
}

impl VfioFunction {
    /// Opens the NVMe controller at `address`, resets it, and enables its access to memory and up
    /// to `vectors` interrupts.
    ///
    /// # Errors
    /// [`PciError`].
    pub fn open(
        system: &SysfsPci,
        address: PciAddress,
        vectors: u16,
    ) -> Result<VfioFunction, PciError> {
        let slot = system.controller(address)?;
        let group = slot.group.ok_or(PciError::NoIommu { address })?;
        let wanted = PciDriver::VfioPci;
        if slot.bound_to() != Some(wanted) {
            return Err(PciError::NotBound { address, driver: slot.driver, wanted });
        }
        let failed = |what: &str| {
            let what = what.to_owned();
            move |source| PciError::Io { address, what, source }
        };
        let open = |name: &str| {
            let path = system.dev.join("vfio").join(name);
            OpenOptions::new().read(true).write(true).open(&path).map_err(|e| match e.kind() {
                ErrorKind::PermissionDenied => PciError::Permission { path },
                ErrorKind::NotFound => PciError::NoVfio,
                _ if e.raw_os_error() == Some(libc::EBUSY) => {
                    let users = system.openers_of_group(group);
                    PciError::Busy { address, group, users }
                }
                _ => failed(&format!("opening {}", path.display()))(e),
            })
        };
        let container = open("vfio")?;
        if !call::has_type1(container.as_fd()).map_err(failed("asking for the IOMMU"))? {
            return Err(PciError::NoType1);
        }
        let group_file = open(&group.to_string())?;
        if !call::is_viable(group_file.as_fd()).map_err(failed("asking for its group"))? {
            let others = system.others_of_group(group, address);
            return Err(PciError::GroupShared { address, group, others });
        }
        call::join(group_file.as_fd(), container.as_fd()).map_err(failed("joining its group"))?;
        let ranges =
            call::iova_ranges(container.as_fd()).map_err(failed("asking for addresses"))?;
        let ranges = if ranges.is_empty() { vec![IOVA_RANGE_MIN] } else { ranges };
        let unfit = |what| PciError::Unsupported { address, what };
        let window =
            DmaWindow::largest_range(&ranges).ok_or_else(|| unfit("cannot access memory"))?;
        let device = call::device(group_file.as_fd(), &address.to_string())
            .map_err(failed("opening the function"))?;
        let has = call::vectors(device.as_fd(), MSIX).map_err(failed("asking for interrupts"))?;
        let vectors = has.min(vectors.into()) as u16;
        if vectors < 2 {
            return Err(unfit("has no MSI-X interrupts"));
        }
        let notices = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| failed("creating its notification file")(e.into()))?;
        let function = VfioFunction {
            address,
            device: device.into(),
            _group: group_file,
            container,
            notification_fd: notices,
            release_requested: AtomicBool::new(false),
            vectors,
            window,
        };
        // If the kernel does not support a notification, the driver detects the event later in the
        // registers.
        for notice in NOTIFICATION_IRQS {
            let file = function.notification_fd.as_raw_fd();
            let _ = call::set_vectors(function.device.as_fd(), notice, 0, &[file]);
        }
        // A function that cannot be reset is stopped by its registers.
        let _ = call::reset(function.device.as_fd());
        function.start().map_err(failed("enabling its access to memory"))?;
        // Allocate all at once: before Linux 6.6 the number of vectors cannot be increased later.
        let nobody = vec![-1; usize::from(vectors)];
        call::set_vectors(function.device.as_fd(), MSIX, 0, &nobody)
            .map_err(failed("setting up interrupts"))?;
        Ok(function)
    }

    /// Sets memory space and bus master in the command register.
    fn start(&self) -> io::Result<()> {
        let config = call::region(self.device.as_fd(), CONFIG)?;
        let mut word = [0; 2];
        self.device.read_exact_at(&mut word, config.offset + COMMAND)?;
        let command = u16::from_le_bytes(word) | MEMORY_SPACE | BUS_MASTER | INTX_DISABLED;
        self.device.write_all_at(&command.to_le_bytes(), config.offset + COMMAND)
    }

    /// Returns the address of the function.
    pub fn address(&self) -> PciAddress {
        self.address
    }

    /// Returns the range of addresses by which the function can access memory.
    pub fn window(&self) -> DmaWindow {
        self.window
    }

    /// Returns the registers, the region of base address register 0.
    ///
    /// # Errors
    /// [`PciError::Unsupported`], [`PciError::Io`].
    pub fn registers(&self) -> Result<Arc<SharedRegion>, PciError> {
        let address = self.address;
        let failed =
            |source| PciError::Io { address, what: "mapping its registers".into(), source };
        let bar = call::region(self.device.as_fd(), BAR0).map_err(failed)?;
        let bytes = usize::try_from(bar.bytes).unwrap_or(0);
        if !bar.can_be_mapped || bytes <= mem::PAGE_BYTES {
            return Err(PciError::Unsupported {
                address,
                what: "has no registers that can be mapped",
            });
        }
        SharedRegion::device(&self.device, bar.offset, bytes).map_err(failed)
    }
}

impl DmaMapper for VfioFunction {
    fn map(&self, at: Iova, region: &SharedRegion) -> io::Result<DmaReach> {
        let (memory, bytes) = region.whole_pages();
        call::map(self.container.as_fd(), at.0, memory, bytes)?;
        Ok(DmaReach::Contiguous)
    }
}

impl DmaBus for VfioFunction {
    fn vectors(&self) -> u16 {
        self.vectors
    }

    fn bind_vector(&self, vector: u16, waker: &Waker) -> io::Result<()> {
        let file = waker.as_fd().as_raw_fd();
        call::set_vectors(self.device.as_fd(), MSIX, vector.into(), &[file])
    }

    fn ownership(&self) -> ControllerOwnership {
        if rustix::io::read(&self.notification_fd, &mut [0; 8]).is_ok() {
            self.release_requested.store(true, Ordering::Relaxed);
        }
        match self.release_requested.load(Ordering::Relaxed) {
            true => ControllerOwnership::ReleaseRequested,
            false => ControllerOwnership::Owned,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::system::tests::sample_sysfs;
    use super::*;

    #[test]
    fn what_cannot_be_opened_says_why() {
        let root = tempfile::tempdir().unwrap();
        let system = sample_sysfs(root.path());
        let open =
            |address: &str| VfioFunction::open(&system, address.parse().unwrap(), 8).unwrap_err();
        let error = open("01:00.0");
        assert!(error.to_string().contains("`sluice device bind 0000:01:00.0`"), "{error}");
        assert!(matches!(open("03:00.0"), PciError::NotNvme { .. }));
        assert!(matches!(open("04:00.0"), PciError::NoIommu { .. }));
        assert!(matches!(open("05:00.0"), PciError::NoSuchFunction { .. }));
        // Without VFIO's files, and with files that are not VFIO's.
        assert!(matches!(open("02:00.0"), PciError::NoVfio));
        fs::create_dir(system.dev.join("vfio")).unwrap();
        for name in ["vfio", "8"] {
            fs::write(system.dev.join("vfio").join(name), "").unwrap();
        }
        let error = open("02:00.0");
        assert!(matches!(error, PciError::Io { .. }), "{error}");
        assert!(!error.is_usage_error());
    }
}
