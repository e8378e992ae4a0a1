//! [`AddressSpace`]: the memory that a drive may access on behalf of one host.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::{fmt, io};

use crate::{DmaMapper, DmaReach, DmaWindow, PAGE_BYTES, SharedRegion};

/// An I/O virtual address, as in PRP and SGL entries. It consists of a registration index and an
/// offset, so that a look-up is one shift and one bounds check. The offset has 40 bits, except for
/// a real controller, whose addressable range determines the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Iova(pub u64);

impl Iova {
    /// Returns the address `bytes` bytes further on.
    #[inline]
    #[must_use]
    pub fn offset(self, bytes: u64) -> Iova {
        Iova(self.0.wrapping_add(bytes))
    }
}

impl fmt::Display for Iova {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

const SLOT_SHIFT: u32 = 40;
const MAX_REGIONS: usize = 1024;

/// The registered memory of one host. Memory is registered once and named by an I/O virtual
/// address; the drive checks every address against the registrations of the queue's owner
/// (ARCHITECTURE.md, R1).
///
/// A registration lasts as long as the address space, because a drive may use an address until a
/// command completes. An in-process host that wants its memory back drops the whole port. Look-ups
/// take no lock.
///
/// If host and drive are in two processes, each has an address space. The host calls
/// [`register`](AddressSpace::register), which exports the region. The drive's side calls
/// [`register_at`](AddressSpace::register_at) for each received region, within its limits.
#[derive(Clone, Debug)]
pub struct AddressSpace {
    regions: Arc<[OnceLock<Arc<SharedRegion>>]>,
    /// Number of offset bits, and the number of unused registration indexes before the first.
    shift: u32,
    base_slot: usize,
    /// Commands do not use addresses of this space, but those of [`AddressSpace::bus_address`].
    paged: bool,
    peer: Arc<Peer>,
}

/// Sends registrations to the drive's side in another process, outside of the data path, over a
/// transport that carries descriptors.
pub trait RegistrationExporter: fmt::Debug + Send + Sync {
    /// Sends the region (its [`backing`](SharedRegion::backing)) to the other process, to be
    /// registered as `slot`. Returns after the other process has registered it.
    ///
    /// # Errors
    /// The error of the other process, or of the transport.
    fn export_region(&self, slot: usize, region: &SharedRegion) -> io::Result<()>;
}

/// The memory that a host in another process may register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegistrationLimits {
    /// Maximum number of memory regions.
    pub regions: usize,
    /// Maximum total size of the regions in bytes; the memory may be charged to the drive's
    /// process.
    pub bytes: u64,
}

impl Default for RegistrationLimits {
    /// Returns limits of 64 regions and 256 MiB.
    fn default() -> RegistrationLimits {
        RegistrationLimits { regions: 64, bytes: 256 << 20 }
    }
}

/// The state of an address space whose other side is another process or a real controller.
#[derive(Debug, Default)]
struct Peer {
    /// Set on the host's side.
    exporter: Option<Box<dyn RegistrationExporter>>,
    /// Set on the drive's side: the limits of its host, and the host's usage.
    limits: Option<RegistrationLimits>,
    /// Set if the drive is a real controller.
    bus: Option<Arc<dyn DmaMapper>>,
    /// For a controller that accesses memory by pages: how it accesses each registration.
    reach: Box<[OnceLock<DmaReach>]>,
    used: Mutex<RegisteredUsage>,
}

#[derive(Debug, Default)]
struct RegisteredUsage {
    regions: usize,
    bytes: u64,
}

/// A checked range of registered memory.
#[derive(Clone, Copy, Debug)]
pub struct IovaSlice<'a> {
    /// The region.
    pub region: &'a Arc<SharedRegion>,
    /// Offset of the range in the region.
    pub offset: usize,
    /// Index of the registration, below [`CAPACITY`](AddressSpace::CAPACITY). A driver uses it to
    /// index its own state of the region.
    pub slot: usize,
}

/// The error for a range that is not, or not completely, registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bytes {iova}..+{len} are not registered memory")]
pub struct NotRegistered {
    /// The address.
    pub iova: Iova,
    /// Length in bytes.
    pub len: u64,
}

/// The reason for which a registration was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// All registrations are in use.
    #[error("all memory registrations of this port are in use")]
    Full,
    /// The region exceeds the maximum size of a registration.
    #[error("a region of {len} bytes exceeds the maximum of {max_bytes} per registration")]
    TooLong {
        /// Size in bytes.
        len: usize,
        /// Maximum size in bytes.
        max_bytes: u64,
    },
    /// The memory cannot be pinned and mapped for a real controller.
    #[error("mapping {len} bytes for a controller: {kind}{}", match kind {
        io::ErrorKind::OutOfMemory =>
            " (pinned memory counts against the limit on locked memory: raise `ulimit -l`)",
        _ => "",
    })]
    Map {
        /// Size in bytes.
        len: usize,
        /// The error of the operating system.
        kind: io::ErrorKind,
    },
    /// Out of memory for a region.
    #[error("no memory for a region of {len} bytes: {kind}")]
    Memory {
        /// Size in bytes.
        len: usize,
        /// The error of the operating system.
        kind: io::ErrorKind,
    },
    /// The memory that a real controller needs is not available.
    #[error("no memory for {len} bytes that the controller can access: {kind}{remediation}")]
    Reachable {
        /// Size in bytes.
        len: usize,
        /// The error of the operating system.
        kind: io::ErrorKind,
        /// Advice for the user.
        remediation: &'static str,
    },
    /// The other side is another process, which cannot map this region.
    #[error("the drive is in another process: only shared memory can be registered with it")]
    NotShared,
    /// The region could not be sent to the other process.
    #[error("cannot send memory to the drive's process: {kind}")]
    Export {
        /// The kind of the error.
        kind: io::ErrorKind,
    },
    /// The registration index is out of range or in use.
    #[error("memory registration {slot} is in use or out of range")]
    Slot {
        /// The index.
        slot: usize,
    },
    /// The host has reached its registration limit.
    #[error("the host has reached its limit of {regions} regions and {bytes} bytes")]
    Limit {
        /// Maximum number of regions.
        regions: usize,
        /// Maximum total size in bytes.
        bytes: u64,
    },
}

impl Default for AddressSpace {
    fn default() -> AddressSpace {
        AddressSpace::with_peer(Peer::default())
    }
}

impl AddressSpace {
    /// Maximum number of registrations.
    pub const CAPACITY: usize = MAX_REGIONS;

    /// Returns whether both are handles to one address space, so that an address of one is the same
    /// memory in the other.
    pub fn is_same(&self, other: &AddressSpace) -> bool {
        Arc::ptr_eq(&self.regions, &other.regions)
    }

    fn with_peer(beyond: Peer) -> AddressSpace {
        let regions = (0..MAX_REGIONS).map(|_| OnceLock::new()).collect();
        AddressSpace {
            regions,
            shift: SLOT_SHIFT,
            base_slot: 1,
            paged: false,
            peer: Arc::new(beyond),
        }
    }

    /// Creates the address space of a real controller: registrations are mapped for it, in the
    /// spans of `window`.
    pub fn on_bus(window: DmaWindow, bus: Arc<dyn DmaMapper>) -> AddressSpace {
        let regions = (0..window.spans).map(|_| OnceLock::new()).collect();
        let base_slot = (window.first >> window.shift) as usize;
        let paged = bus.is_paged();
        let places = if paged { window.spans } else { 0 };
        let reach = (0..places).map(|_| OnceLock::new()).collect();
        let peer = Arc::new(Peer { bus: Some(bus), reach, ..Peer::default() });
        AddressSpace { regions, shift: window.shift, base_slot, paged, peer }
    }

    /// Returns the address of a registration's first byte. Address 0 stays invalid, so that a
    /// zeroed entry is an error.
    fn address(&self, slot: usize) -> Iova {
        Iova(((slot + self.base_slot) as u64) << self.shift)
    }

    /// Creates the drive's side of an address space whose host is another process. `queues` is
    /// registered first and does not count toward the limits.
    pub fn for_remote_host(
        limits: RegistrationLimits,
        queues: &Arc<SharedRegion>,
    ) -> (AddressSpace, Iova) {
        let space = AddressSpace::with_peer(Peer { limits: Some(limits), ..Peer::default() });
        let at = space.register_admin_queues(queues);
        (space, at)
    }

    /// Creates the host's side of an address space whose drive is in another process, which has
    /// already registered `queues`.
    pub fn with_exporter(
        hand_over: Box<dyn RegistrationExporter>,
        queues: &Arc<SharedRegion>,
    ) -> (AddressSpace, Iova) {
        let beyond = Peer { exporter: Some(hand_over), ..Peer::default() };
        let space = AddressSpace::with_peer(beyond);
        let at = space.register_admin_queues(queues);
        (space, at)
    }

    fn register_admin_queues(&self, queues: &Arc<SharedRegion>) -> Iova {
        // The space is not shared yet, so slot 0 is free.
        let _ = self.regions[0].set(queues.clone());
        self.address(0)
    }

    /// Registers a region and returns the address of its first byte, after the drive's side has
    /// registered it.
    ///
    /// # Errors
    /// [`RegisterError`].
    pub fn register(&self, region: &Arc<SharedRegion>) -> Result<Iova, RegisterError> {
        self.check_length(region.len())?;
        if self.needs_shared() && !region.is_shared() {
            return Err(RegisterError::NotShared);
        }
        for (i, slot) in self.regions.iter().enumerate() {
            if slot.get().is_none() && slot.set(region.clone()).is_ok() {
                if let Some(beyond) = &self.peer.exporter {
                    // On failure the slot stays in use, because the other side may have the region.
                    let given = beyond.export_region(i, region);
                    given.map_err(|e| RegisterError::Export { kind: e.kind() })?;
                }
                if let Some(bus) = &self.peer.bus {
                    // On failure the slot stays in use, because registrations are never withdrawn.
                    let mapped = bus.map(self.address(i), region);
                    let len = region.len();
                    let reach = mapped.map_err(|e| RegisterError::Map { len, kind: e.kind() })?;
                    if let Some(place) = self.peer.reach.get(i) {
                        // The slot is reserved by this call, and is set once.
                        let _ = place.set(reach);
                    }
                }
                return Ok(self.address(i));
            }
        }
        Err(RegisterError::Full)
    }

    fn check_length(&self, len: usize) -> Result<(), RegisterError> {
        let most = 1 << self.shift;
        if len as u64 > most {
            Err(RegisterError::TooLong { len, max_bytes: most })
        } else {
            Ok(())
        }
    }

    /// Whether only memory that other processes can map ([`SharedRegion::memfd`]) can be
    /// registered, because the drive is in another process.
    pub fn needs_shared(&self) -> bool {
        self.peer.exporter.is_some()
    }

    /// Allocates and registers a zeroed region that the drive's side can access, wherever it is.
    ///
    /// # Errors
    /// [`RegisterError`].
    pub fn allocate_registered(
        &self,
        len: usize,
    ) -> Result<(Arc<SharedRegion>, Iova), RegisterError> {
        let region =
            match &self.peer.bus {
                Some(bus) if self.paged => bus.allocate(len).map_err(|e| {
                    RegisterError::Reachable { len, kind: e.kind(), remediation: bus.remediation() }
                }),
                _ if self.needs_shared() => SharedRegion::memfd(len).map_err(no_memory(len)),
                _ => SharedRegion::anonymous(len).map_err(no_memory(len)),
            }?;
        let at = self.register(&region)?;
        Ok((region, at))
    }

    /// Whether commands name memory by page with other addresses than those of this space
    /// ([`bus_address`](AddressSpace::bus_address)); the drive cannot access all memory then.
    #[inline]
    pub fn is_paged(&self) -> bool {
        self.paged
    }

    /// Returns the address by which commands name the byte at `at`, valid up to the end of its
    /// page; `None` if the drive cannot access it. Unregistered addresses are passed through for
    /// the drive to refuse, unless it accesses memory by pages.
    #[inline]
    pub fn bus_address(&self, at: Iova) -> Option<u64> {
        if self.paged { self.page_bus_address(at) } else { Some(at.0) }
    }

    fn page_bus_address(&self, at: Iova) -> Option<u64> {
        let IovaSlice { offset, slot, .. } = self.find(at, 1).ok()?;
        match self.peer.reach.get(slot)?.get()? {
            DmaReach::Contiguous => Some(at.0),
            DmaReach::Paged(pages) => {
                Some(pages.get(offset / PAGE_BYTES)? + (offset % PAGE_BYTES) as u64)
            }
            DmaReach::Unreachable => None,
        }
    }

    /// Returns the address by which commands name `len` bytes at `at` that must be contiguous for
    /// the drive; `None` if they are not.
    pub fn contiguous_bus_address(&self, at: Iova, len: u64) -> Option<u64> {
        let first = self.bus_address(at)?;
        if self.paged {
            let pages = (at.0 % PAGE_BYTES as u64 + len).div_ceil(PAGE_BYTES as u64);
            let next = |page: u64| at.offset(page * PAGE_BYTES as u64 - at.0 % PAGE_BYTES as u64);
            let begin = first - at.0 % PAGE_BYTES as u64;
            let follows =
                |page: u64| self.bus_address(next(page)) == Some(begin + page * PAGE_BYTES as u64);
            return (1..pages).all(follows).then_some(first);
        }
        Some(first)
    }

    /// Registers a region received from the host in another process, at the index that the host has
    /// chosen. Returns the address that the host uses for it.
    ///
    /// # Errors
    /// [`RegisterError`]; the address space does not change on error.
    pub fn register_at(
        &self,
        slot: usize,
        region: &Arc<SharedRegion>,
    ) -> Result<Iova, RegisterError> {
        let len = region.len();
        self.check_length(len)?;
        let Some(place) = self.regions.get(slot) else {
            return Err(RegisterError::Slot { slot });
        };
        let mut used = self.peer.used.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(RegistrationLimits { regions, bytes }) = self.peer.limits
            && (used.regions >= regions || len as u64 > bytes - used.bytes)
        {
            return Err(RegisterError::Limit { regions, bytes });
        }
        place.set(region.clone()).map_err(|_| RegisterError::Slot { slot })?;
        used.regions += 1;
        used.bytes += len as u64;
        Ok(self.address(slot))
    }

    /// Returns the bytes that the host in another process may still register.
    pub fn remaining_bytes(&self) -> u64 {
        let used = self.peer.used.lock().unwrap_or_else(PoisonError::into_inner);
        match self.peer.limits {
            Some(limits) if used.regions < limits.regions => limits.bytes - used.bytes,
            Some(_) => 0,
            None => u64::MAX,
        }
    }

    /// Finds `len` bytes at `iova`.
    ///
    /// # Errors
    /// [`NotRegistered`].
    #[inline]
    pub fn find(&self, iova: Iova, len: u64) -> Result<IovaSlice<'_>, NotRegistered> {
        let offset = iova.0 & ((1 << self.shift) - 1);
        let slot = ((iova.0 >> self.shift) as usize).wrapping_sub(self.base_slot);
        match self.regions.get(slot).and_then(OnceLock::get) {
            Some(region) if offset.saturating_add(len) <= region.len() as u64 => {
                Ok(IovaSlice { region, offset: offset as usize, slot })
            }
            _ => Err(NotRegistered { iova, len }),
        }
    }

    /// Copies registered bytes out.
    ///
    /// # Errors
    /// [`NotRegistered`].
    pub fn read(&self, iova: Iova, into: &mut [u8]) -> Result<(), NotRegistered> {
        let buffer = self.find(iova, into.len() as u64)?;
        buffer.region.read(buffer.offset, into);
        Ok(())
    }

    /// Copies bytes into registered memory.
    ///
    /// # Errors
    /// [`NotRegistered`].
    pub fn write(&self, iova: Iova, from: &[u8]) -> Result<(), NotRegistered> {
        let buffer = self.find(iova, from.len() as u64)?;
        buffer.region.write(buffer.offset, from);
        Ok(())
    }
}

fn no_memory(len: usize) -> impl Fn(io::Error) -> RegisterError {
    move |e| RegisterError::Memory { len, kind: e.kind() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct LoopbackExporter(AddressSpace);

    impl RegistrationExporter for LoopbackExporter {
        fn export_region(&self, slot: usize, region: &SharedRegion) -> io::Result<()> {
            let memory = region.backing().ok_or(io::ErrorKind::InvalidInput)?.try_clone()?.into();
            let region =
                SharedRegion::import(memory, self.0.remaining_bytes()).map_err(io::Error::other)?;
            let at = self.0.register_at(slot, &region);
            at.map(drop).map_err(|_| io::ErrorKind::QuotaExceeded.into())
        }
    }

    #[test]
    fn both_sides_name_a_region_alike_and_the_drive_keeps_its_limits() {
        let queues = SharedRegion::memfd(4096).unwrap();
        let limits = RegistrationLimits { regions: 3, bytes: 3 * 8192 };
        let (drive, first) = AddressSpace::for_remote_host(limits, &queues);
        let (host, same) =
            AddressSpace::with_exporter(Box::new(LoopbackExporter(drive.clone())), &queues);
        assert_eq!(first, same);
        let (region, at) = host.allocate_registered(8192).unwrap();
        assert!(region.is_shared());
        host.write(at.offset(8000), b"hello").unwrap();
        let mut out = [0; 5];
        drive.read(at.offset(8000), &mut out).unwrap();
        assert_eq!(&out, b"hello");
        assert_eq!(drive.remaining_bytes(), 2 * 8192);
        let anonymous = SharedRegion::anonymous(4096).unwrap();
        assert_eq!(host.register(&anonymous), Err(RegisterError::NotShared));
        // Too many bytes: refused when the other process checks how much it may map.
        let refused = RegisterError::Export { kind: io::ErrorKind::Other };
        assert_eq!(host.allocate_registered(2 * 8192 + 1).unwrap_err(), refused);
        host.allocate_registered(1).unwrap();
        host.allocate_registered(1).unwrap();
        assert_eq!(drive.remaining_bytes(), 0, "too many regions");
        assert!(host.allocate_registered(1).is_err());
        let more = SharedRegion::memfd(1).unwrap();
        let limit = RegisterError::Limit { regions: 3, bytes: 3 * 8192 };
        assert_eq!(drive.register_at(9, &more), Err(limit));
    }

    #[test]
    fn numbers_that_cannot_be_are_refused() {
        let queues = SharedRegion::memfd(4096).unwrap();
        let (drive, _) = AddressSpace::for_remote_host(RegistrationLimits::default(), &queues);
        let region = SharedRegion::memfd(4096).unwrap();
        for slot in [0, MAX_REGIONS, usize::MAX] {
            assert_eq!(drive.register_at(slot, &region), Err(RegisterError::Slot { slot }));
        }
        drive.register_at(7, &region).unwrap();
        assert_eq!(drive.register_at(7, &region), Err(RegisterError::Slot { slot: 7 }));
        assert_eq!(AddressSpace::default().remaining_bytes(), u64::MAX);
    }

    #[test]
    fn only_registered_bytes_are_found() {
        let space = AddressSpace::default();
        let (a, b) =
            (SharedRegion::anonymous(4096).unwrap(), SharedRegion::anonymous(8192).unwrap());
        let (ia, ib) = (space.register(&a).unwrap(), space.register(&b).unwrap());
        assert_ne!(ia, ib);
        space.write(ib.offset(8190), b"ab").unwrap();
        let mut out = [0; 2];
        b.read(8190, &mut out);
        assert_eq!(&out, b"ab");
        for (iova, len) in [
            (Iova(0), 1),
            (Iova(4096), 1),
            (ia.offset(4095), 2),
            (ia.offset(0), u64::MAX),
            (ib.offset(8193), 0),
            (Iova(u64::MAX), 1),
        ] {
            assert_eq!(space.find(iova, len).unwrap_err(), NotRegistered { iova, len });
        }
        assert!(space.find(ib.offset(8192), 0).is_ok());
    }

    #[test]
    fn registrations_run_out() {
        let space = AddressSpace::default();
        let region = SharedRegion::anonymous(1).unwrap();
        for _ in 0..MAX_REGIONS {
            space.register(&region).unwrap();
        }
        assert_eq!(space.register(&region), Err(RegisterError::Full));
    }
}
