//! [`UioFunction`]: a PCI function of this process without an IOMMU (Linux
//! `Documentation/driver-api/uio-howto.rst`, `uio_pci_generic`).
//!
//! **Unsafe.** Nothing restricts the controller to registered memory: it writes to any address in a
//! command, and a failing controller or driver may write anywhere. If the process is killed, its
//! huge pages return to the system, and the kernel disables bus mastering when it closes the
//! function's file. In between, the controller may write to memory of others. Therefore this path
//! is opened explicitly, and only if there is no IOMMU.
//!
//! **Registers and interrupts.** Registers are the function's `resource0`, its configuration space
//! is `config`. The generic driver supports only the function's interrupt line. The line is
//! level-triggered, and the kernel masks it each time it is raised. It stays raised until
//! completions are released to the controller, which queues do with their next doorbell. The line
//! stays masked, and queues are polled.

// guarantee: C-14

mod frame;
mod memory;

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::ops::RangeInclusive;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use event::Waker;
use mem::{DmaMapper, DmaReach, DmaWindow, Iova, SharedRegion};
use nvme::register::{CAP, CC, CSTS};
use nvme::{Cap, Csts};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use transport::{ControllerOwnership, DmaBus};

use self::frame::{FrameError, PhysicalFrames};
use self::memory::{HugePageAllocator, HugePageError};
use super::command::{BUS_MASTER, COMMAND, INTX_DISABLED, MEMORY_SPACE};
use super::{PciAddress, PciDriver, PciError, SysfsPci};

/// Addresses of registrations. They are used in this process only, never in commands.
const IOVA_WINDOW: RangeInclusive<u64> = 1 << 32..=(1 << 47) - 1;

/// The remedy for too few huge pages.
pub(super) const HUGE_PAGES_HINT: &str =
    " (huge pages of 2 MiB: raise /proc/sys/vm/nr_hugepages, and `ulimit -l`)";

/// An open function without an IOMMU.
#[derive(Debug)]
pub struct UioFunction {
    address: PciAddress,
    registers: Arc<SharedRegion>,
    config: File,
    /// The kernel disables bus mastering when this file is closed.
    _uio: File,
    /// The `name` attribute of the generic driver's device; reading it fails once the device has
    /// been removed.
    name: File,
    removed: AtomicBool,
    memory: HugePageAllocator,
    window: DmaWindow,
}

impl UioFunction {
    /// Opens the NVMe controller at `address`, stops it, and enables its access to memory: to all
    /// of the machine's.
    ///
    /// # Errors
    /// [`PciError`].
    pub fn open(system: &SysfsPci, address: PciAddress) -> Result<UioFunction, PciError> {
        let slot = system.controller(address)?;
        if let Some(group) = slot.group {
            return Err(PciError::HasIommu { address, group });
        }
        if slot.bound_to() != Some(PciDriver::UioPciGeneric) {
            let wanted = PciDriver::UioPciGeneric;
            return Err(PciError::NotBound { address, driver: slot.driver, wanted });
        }
        let failed = |what: String| move |source| PciError::Io { address, what, source };
        let open = |path: std::path::PathBuf| {
            OpenOptions::new().read(true).write(true).open(&path).map_err(|e| match e.kind() {
                ErrorKind::PermissionDenied => PciError::Permission { path },
                _ => failed(format!("opening {}", path.display()))(e),
            })
        };
        let name = system.uio_name(address).ok_or(PciError::NoUio)?;
        let uio = open(system.dev.join(&name))?;
        // The kernel permits any number of processes.
        match rustix::fs::flock(&uio, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let users = system.openers_of_uio(&name);
                return Err(PciError::InUse { address, users });
            }
            Err(error) => return Err(failed(format!("locking /dev/{name}"))(error.into())),
        }
        let folder = system.device_dir(address);
        let what = folder.join("uio").join(&name).join("name");
        let name = File::open(&what).map_err(failed(format!("opening {}", what.display())))?;
        let config = open(folder.join("config"))?;
        let resource = open(folder.join("resource0"))?;
        let bytes = resource.metadata().map_or(0, |found| found.len() as usize);
        let unfit = |what| PciError::Unsupported { address, what };
        if bytes <= mem::PAGE_BYTES {
            return Err(unfit("has no registers that can be mapped"));
        }
        let registers = SharedRegion::device(&resource, 0, bytes)
            .map_err(failed("mapping its registers".into()))?;
        let frames =
            PhysicalFrames::open(system).map_err(failed("opening /proc/self/pagemap".into()))?;
        let memory = HugePageAllocator::new(frames).map_err(|error| match error {
            HugePageError::Pages(source) => PciError::NoHugePages { source },
            HugePageError::Frames(FrameError::Map(source)) => {
                failed("reading /proc/self/pagemap".into())(source)
            }
            HugePageError::Frames(error) => PciError::NoFrames { why: error.to_string() },
        })?;
        let window = DmaWindow::largest_range(&[IOVA_WINDOW])
            .ok_or_else(|| unfit("cannot access memory"))?;
        let lost = AtomicBool::new(false);
        let function = UioFunction {
            address,
            registers,
            config,
            _uio: uio,
            name,
            removed: lost,
            memory,
            window,
        };
        // An earlier process may have left the controller running on memory that now belongs to
        // others.
        let masters = |on| function.set_command(on).map_err(failed("writing to its config".into()));
        masters(false)?;
        // Not every function can be reset; its registers stop it in any case.
        let _ = std::fs::write(folder.join("reset"), "1");
        masters(false)?;
        function.stop()?;
        masters(true)?;
        Ok(function)
    }

    /// Writes the command register: enables the registers, disables the interrupt line, and enables
    /// access to memory if `masters`.
    fn set_command(&self, masters: bool) -> io::Result<()> {
        let mut word = [0; 2];
        self.config.read_exact_at(&mut word, COMMAND)?;
        let mut command = u16::from_le_bytes(word) | MEMORY_SPACE | INTX_DISABLED;
        command = if masters { command | BUS_MASTER } else { command & !BUS_MASTER };
        self.config.write_all_at(&command.to_le_bytes(), COMMAND)?;
        self.config.read_exact_at(&mut word, COMMAND)?;
        // A removed function reads as ones; a failed write leaves the old value.
        let set = u16::from_le_bytes(word);
        match set == u16::MAX || set & BUS_MASTER != command & BUS_MASTER {
            true => Err(io::Error::other("it did not take what was written")),
            false => Ok(()),
        }
    }

    /// Disables the controller and waits until it has stopped. It accesses no memory until then and
    /// forgets its queues.
    fn stop(&self) -> Result<(), PciError> {
        let unfit = |what| PciError::Unsupported { address: self.address, what };
        let read = |offset| self.registers.atomic_u32(offset).load(Ordering::Acquire);
        let low = u64::from(read(CAP));
        let capabilities = Cap::from_value(low | u64::from(read(CAP + 4)) << 32);
        let patience = 500 * u64::from(capabilities.timeout_500ms).max(1);
        self.registers.atomic_u32(CC).store(0, Ordering::Release);
        let begun = Instant::now();
        loop {
            match Csts::from_value(read(CSTS)) {
                None => return Err(unfit("has left the bus")),
                Some(status) if !status.ready => return Ok(()),
                Some(_) if begun.elapsed() > Duration::from_millis(patience) => {
                    return Err(unfit("does not stop, and might write to memory of others"));
                }
                Some(_) => super::progress(),
            }
        }
    }

    /// Returns the registers, the region of base address register 0.
    pub fn registers(&self) -> Arc<SharedRegion> {
        self.registers.clone()
    }

    /// Returns the range of addresses for registrations.
    pub fn window(&self) -> DmaWindow {
        self.window
    }
}

impl Drop for UioFunction {
    /// Disables bus mastering before the memory is freed, whether the controller was disabled or
    /// not. A function that was unbound has lost bus mastering and may belong to others, so it is
    /// not touched.
    fn drop(&mut self) {
        if self.ownership() == ControllerOwnership::Owned {
            let _ = self.set_command(false);
        }
    }
}

impl DmaMapper for UioFunction {
    fn map(&self, _: Iova, region: &SharedRegion) -> io::Result<DmaReach> {
        Ok(self.memory.reach(region))
    }

    fn is_paged(&self) -> bool {
        true
    }

    fn allocate(&self, len: usize) -> io::Result<Arc<SharedRegion>> {
        self.memory.provide(len).map_err(|error| match error {
            HugePageError::Pages(error) => error,
            error => io::Error::other(error),
        })
    }

    fn remediation(&self) -> &'static str {
        HUGE_PAGES_HINT
    }
}

impl DmaBus for UioFunction {
    fn vectors(&self) -> u16 {
        0
    }

    fn bind_vector(&self, _: u16, _: &Waker) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }

    /// The kernel does not notify this process when a function is unplugged, removed or unbound. It
    /// disables bus mastering and removes the driver's device, whose attributes cannot be read any
    /// more. The registers stay mapped, even if another process then has the function.
    fn ownership(&self) -> ControllerOwnership {
        if !self.removed.load(Ordering::Relaxed)
            && is_device_removed(self.name.read_at(&mut [0], 0))
        {
            self.removed.store(true, Ordering::Relaxed);
        }
        match self.removed.load(Ordering::Relaxed) {
            true => ControllerOwnership::Lost,
            false => ControllerOwnership::Owned,
        }
    }
}

/// Returns whether the result of reading an attribute shows that its device has been removed; no
/// other result does.
fn is_device_removed(read: io::Result<usize>) -> bool {
    match read {
        Ok(bytes) => bytes == 0,
        Err(error) => matches!(error.raw_os_error(), Some(libc::ENODEV | libc::EINVAL)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::super::system::tests::sample_sysfs;
    use super::*;

    /// Creates the sample's controller without an IOMMU, bound to the generic driver.
    fn bound(root: &Path) -> (SysfsPci, std::path::PathBuf) {
        let system = sample_sysfs(root);
        let folder = system.sys.join("bus/pci/devices/0000:04:00.0");
        let driver = system.sys.join("bus/pci/drivers/uio_pci_generic");
        fs::create_dir_all(&driver).unwrap();
        symlink(&driver, folder.join("driver")).unwrap();
        (system, folder)
    }

    fn open(system: &SysfsPci, address: &str) -> PciError {
        UioFunction::open(system, address.parse().unwrap()).unwrap_err()
    }

    #[test]
    fn what_cannot_be_opened_says_why() {
        let root = tempfile::tempdir().unwrap();
        let (system, folder) = bound(root.path());
        let iommu = open(&system, "02:00.0");
        assert!(matches!(iommu, PciError::HasIommu { group: 8, .. }), "{iommu}");
        assert!(iommu.to_string().contains("vfio:0000:02:00.0"), "{iommu}");
        assert!(matches!(open(&system, "03:00.0"), PciError::NotNvme { .. }));
        assert!(matches!(open(&system, "05:00.0"), PciError::NoSuchFunction { .. }));
        // Bound, but without a device of the driver.
        let module = open(&system, "04:00.0");
        assert!(module.to_string().contains("modprobe uio_pci_generic"), "{module}");
        fs::create_dir_all(folder.join("uio/uio3")).unwrap();
        let missing = open(&system, "04:00.0");
        assert!(missing.to_string().contains("dev/uio3"), "{missing}");
        fs::write(system.dev.join("uio3"), "").unwrap();
        let nameless = open(&system, "04:00.0");
        assert!(nameless.to_string().contains("uio/uio3/name"), "{nameless}");
        fs::write(folder.join("uio/uio3/name"), "uio_pci_generic\n").unwrap();
        fs::write(folder.join("config"), [0; 64]).unwrap();
        fs::write(folder.join("resource0"), "").unwrap();
        let registers = open(&system, "04:00.0");
        assert!(registers.to_string().contains("no registers"), "{registers}");
        // Two processes at a time.
        let held = File::open(system.dev.join("uio3")).unwrap();
        rustix::fs::flock(&held, FlockOperation::NonBlockingLockExclusive).unwrap();
        let busy = open(&system, "04:00.0");
        assert!(matches!(busy, PciError::InUse { .. }) && busy.is_usage_error(), "{busy}");
        drop(held);
        fs::remove_file(folder.join("driver")).unwrap();
        let unbound = open(&system, "04:00.0").to_string();
        assert!(unbound.contains("--driver uio_pci_generic"), "{unbound}");
    }

    #[test]
    fn only_a_removal_error_means_removed() {
        let error = |errno| Err(io::Error::from_raw_os_error(errno));
        for read in [Ok(0), error(libc::ENODEV), error(libc::EINVAL)] {
            assert!(is_device_removed(read));
        }
        for read in [Ok(1), error(libc::EINTR), error(libc::ENOMEM)] {
            assert!(!is_device_removed(read));
        }
    }

    #[test]
    fn without_huge_pages_or_their_places_it_is_not_opened() {
        let root = tempfile::tempdir().unwrap();
        let (system, folder) = bound(root.path());
        fs::create_dir_all(folder.join("uio/uio0")).unwrap();
        fs::write(folder.join("uio/uio0/name"), "uio_pci_generic\n").unwrap();
        fs::write(system.dev.join("uio0"), "").unwrap();
        fs::write(folder.join("config"), [0; 64]).unwrap();
        fs::write(folder.join("resource0"), vec![0; 0x2000]).unwrap();
        let map = open(&system, "04:00.0");
        assert!(map.to_string().contains("/proc/self/pagemap"), "{map}");
        fs::create_dir_all(system.proc.join("self")).unwrap();
        // A sparse file as large as all addresses need: every entry is zero.
        let pagemap = File::create(system.proc.join("self/pagemap")).unwrap();
        let error = match pagemap.set_len(1 << 39) {
            Ok(()) => open(&system, "04:00.0"),
            // The file system does not support files of that size.
            Err(_) => return,
        };
        match SharedRegion::huge(1) {
            Ok(_) => assert!(matches!(error, PciError::NoFrames { .. }), "{error}"),
            Err(_) => {
                assert!(error.to_string().contains("/proc/sys/vm/nr_hugepages"), "{error}");
            }
        }
        assert_eq!(fs::read(folder.join("config")).unwrap(), [0; 64], "it reaches no memory");
    }
}
