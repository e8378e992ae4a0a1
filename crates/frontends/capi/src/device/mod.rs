//! `sluice_device`: an opened device.

pub(crate) mod buffer;
pub(crate) mod chunks;
pub(crate) mod device_ref;
pub(crate) mod faults;
pub(crate) mod named_sectors;
pub(crate) mod namespaces;
pub(crate) mod open;
pub(crate) mod pmr;
pub(crate) mod rule_commands;
pub(crate) mod rules;

use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::{Arc, Mutex, mpsc};

use ::open::{DriveControl, RegionLog};
use time::Nanos;
use user_io::{DeviceKind, Features, IoDevice, RuleQueue};

use crate::device::device_ref::DeviceRef;
use crate::device::open::{DeviceOpenOptions, open_device};
use crate::error::{CallError, call, call_or};
use crate::options::{ExtensibleStruct, read_struct, write_struct};
use crate::version;

/// Open the file or block device read-only. Requests that would change it fail with `-EROFS`.
pub const SLUICE_OPEN_READ_ONLY: u32 = 1;
/// Use the host's page cache instead of direct I/O (`O_DIRECT`). Files and block devices only.
pub const SLUICE_OPEN_BUFFERED: u32 = 2;
/// Open a block device even if it is in use, for example by a mounted file system.
pub const SLUICE_OPEN_SHARED: u32 = 4;

/// A log in the whole persistent memory region of the drive.
pub const SLUICE_LOG_WHOLE_REGION: u64 = u64::MAX;

/// A null device: completes every request at once and stores no data.
pub const SLUICE_KIND_NULL: u32 = 0;
/// A file or block device of the host.
pub const SLUICE_KIND_FILE: u32 = 1;
/// An NVMe drive, simulated or real, with queue pairs.
pub const SLUICE_KIND_DRIVE: u32 = 2;
/// A target, which manages the flash of an open-channel drive on the host.
pub const SLUICE_KIND_TARGET: u32 = 3;
/// A drive, or a partition of one, that another process serves.
pub const SLUICE_KIND_REMOTE: u32 = 4;

/// The device has a volatile write cache: a completed write is durable after a flush.
pub const SLUICE_HAS_VOLATILE_CACHE: u32 = 1;
/// The device supports writes with force unit access (`SLUICE_FUA`).
pub const SLUICE_HAS_FUA: u32 = 2;
/// The device supports discards.
pub const SLUICE_HAS_DISCARD: u32 = 4;
/// The device supports Write Zeroes.
pub const SLUICE_HAS_WRITE_ZEROES: u32 = 8;

/// An opened device. Several threads may use it at the same time.
pub struct sluice_device {
    pub(crate) device: IoDevice,
    pub(crate) control: DriveControl,
    name: CString,
    /// The queue for commands to the rules of the drive, once one was sent.
    pub(crate) rule_queue: Mutex<Option<RuleQueue>>,
    pub(crate) owner: Arc<DeviceRef>,
}

impl sluice_device {
    /// Wraps a device that a Rust program has opened, for C code that the program calls. The
    /// pointer from [`Box::into_raw`] is a `struct sluice_device *`; `sluice_close()` frees it.
    pub fn from_device(device: IoDevice) -> Box<sluice_device> {
        Self::boxed(device, DriveControl::default(), DeviceRef::default())
    }

    pub(crate) fn boxed(
        device: IoDevice,
        control: DriveControl,
        owner: DeviceRef,
    ) -> Box<sluice_device> {
        let name = CString::new(device.name().replace('\0', " ")).unwrap_or_default();
        let (rule_queue, owner) = (Mutex::default(), Arc::new(owner));
        Box::new(sluice_device { device, control, name, rule_queue, owner })
    }
}

/// Options of `sluice_open()`. Set `size` to `sizeof(struct sluice_open_options)`. A member that is
/// 0 selects its default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sluice_open_options {
    /// `sizeof(struct sluice_open_options)`.
    pub size: usize,
    /// Bitwise OR of `SLUICE_OPEN_READ_ONLY`, `SLUICE_OPEN_BUFFERED` and `SLUICE_OPEN_SHARED`. All
    /// three apply to files and block devices only.
    pub flags: u32,
    /// Maximum number of outstanding requests per queue. Null device: 1 to 65535, default 1024.
    /// File or block device: 1 to 32768, default 128. Other devices have depths of their own; there
    /// it is the minimum depth that the device must support, or opening fails with `-EINVAL`.
    pub queue_depth: u32,
    /// Sector size of a file in bytes, a power of two from 512 to 65536; 0 for the smallest size
    /// that the file supports. Must be 0 for all other devices, which define their sector size
    /// (null device: 512).
    pub sector_bytes: u32,
    /// Minimum number of queues that can be created, 1 to 65535; 0 for what the device has. A drive
    /// has as many as its controller grants, a target has one, and other devices have any number. A
    /// `pblk` target is opened with this many shards of one queue each. Its image stores the
    /// number, and can only be opened with the same number afterwards.
    pub queues: u32,
    /// Timeout in milliseconds. For a served drive: time within which the server must reply, and
    /// within which its drive must create or destroy a queue; default 5000. A call that exceeds it
    /// fails with `-ETIMEDOUT`. Reads and writes have no timeout. For a real controller (`vfio:`,
    /// `uio:`): time after which the library aborts a command; default 30000. Must be 0 for all
    /// other devices.
    pub timeout_ms: u32,
    /// Reserved; must be 0.
    pub reserved: u32,
    /// Size in bytes of a log for small writes in the persistent memory region of a scenario's drive
    /// (`docs/scenario.md`): a multiple of 64, from 131328 to the size of the region, or
    /// `SLUICE_LOG_WHOLE_REGION`. 0 for the log that the scenario gives the path, if any; if it gives
    /// one, another size fails with `-EINVAL`. Must be 0 for all other devices.
    pub log_bytes: u64,
}

// SAFETY: begins with its size; numbers of 8 + 6 * 4 + 8 bytes, no padding.
unsafe impl ExtensibleStruct for sluice_open_options {
    const NAME: &'static str = "struct sluice_open_options";
}

/// Properties of a device. Set `size` to `sizeof(struct sluice_device_info)` before the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sluice_device_info {
    /// `sizeof(struct sluice_device_info)`.
    pub size: usize,
    /// `SLUICE_KIND_NULL`, `SLUICE_KIND_FILE`, `SLUICE_KIND_DRIVE`, `SLUICE_KIND_TARGET` or
    /// `SLUICE_KIND_REMOTE`.
    pub kind: u32,
    /// Bitwise OR of `SLUICE_HAS_VOLATILE_CACHE`, `SLUICE_HAS_FUA`, `SLUICE_HAS_DISCARD` and
    /// `SLUICE_HAS_WRITE_ZEROES`.
    pub features: u32,
    /// Capacity in sectors.
    pub sectors: u64,
    /// Sector size in bytes. Requests consist of whole sectors.
    pub sector_bytes: u32,
    /// Maximum number of sectors of a request.
    pub max_sectors: u32,
    /// Number of sectors that the media programs at once.
    pub optimal_sectors: u32,
    /// Maximum number of outstanding requests per queue.
    pub queue_depth: u32,
    /// Bytes of memory registered for buffers.
    pub buffer_bytes: u64,
    /// Bytes of `buffer_bytes` that are free.
    pub buffer_bytes_free: u64,
    /// Maximum number of sectors of a write that a power cut does not tear; 0 if the device promises
    /// nothing.
    pub atomic_sectors: u32,
    /// A write across a multiple of this many sectors is not atomic; 0 for no boundary.
    pub atomic_boundary_sectors: u32,
}

// SAFETY: begins with its size; numbers in places of their own size, no padding.
unsafe impl ExtensibleStruct for sluice_device_info {
    const NAME: &'static str = "struct sluice_device_info";
}

/// Returns a `flags` member if it has no unknown bits; otherwise the error names the `allowed`
/// flags.
pub(crate) fn flags(value: u32, known: u32, allowed: &'static str) -> Result<u32, CallError> {
    match value & !known {
        0 => Ok(value),
        _ => Err(CallError::Value { what: "flags", value: value.into(), allowed }),
    }
}

pub(crate) fn reserved(value: u32) -> Result<(), CallError> {
    match value {
        0 => Ok(()),
        _ => Err(CallError::Value { what: "reserved", value: value.into(), allowed: "0" }),
    }
}

/// Returns the object behind a pointer.
///
/// # Safety
/// `pointer` is `NULL`, or was returned by this library and not destroyed yet.
pub(crate) unsafe fn object_ref<'a, T>(
    name: &'static str,
    pointer: *const T,
) -> Result<&'a T, CallError> {
    // SAFETY: guaranteed by the caller; referenced objects change only through cells and locks.
    unsafe { pointer.as_ref() }.ok_or(CallError::Null(name))
}

/// Checks the pointer that receives a new object, and stores `NULL` there.
///
/// # Safety
/// `place` is `NULL` or writable.
pub(crate) unsafe fn init_out_pointer<T>(
    name: &'static str,
    place: *mut *mut T,
) -> Result<(), CallError> {
    if place.is_null() {
        return Err(CallError::Null(name));
    }
    // SAFETY: not NULL, and writable as guaranteed by the caller.
    unsafe { place.write(std::ptr::null_mut()) };
    Ok(())
}

/// Moves an object to the heap and stores its pointer.
///
/// # Safety
/// [`init_out_pointer`] has accepted `into`.
pub(crate) unsafe fn hand_out<T>(into: *mut *mut T, object: impl Into<Box<T>>) -> *mut T {
    let object = Box::into_raw(object.into());
    // SAFETY: not NULL and writable, as checked before and guaranteed by the caller.
    unsafe { into.write(object) };
    object
}

/// Returns a caller's string.
///
/// # Safety
/// `from` is `NULL` or a C string.
pub(crate) unsafe fn text<'a>(
    name: &'static str,
    from: *const c_char,
) -> Result<&'a str, CallError> {
    if from.is_null() {
        return Err(CallError::Null(name));
    }
    // SAFETY: not NULL, and a C string as guaranteed by the caller.
    unsafe { CStr::from_ptr(from) }.to_str().map_err(|_| CallError::Text(name))
}

/// Returns a caller's optional string.
///
/// # Safety
/// As for [`text`].
pub(crate) unsafe fn optional_text<'a>(
    name: &'static str,
    from: *const c_char,
) -> Result<Option<&'a str>, CallError> {
    // SAFETY: guaranteed by the caller.
    if from.is_null() { Ok(None) } else { unsafe { text(name, from) }.map(Some) }
}

fn open_options(from: &sluice_open_options) -> Result<DeviceOpenOptions, CallError> {
    let all = SLUICE_OPEN_READ_ONLY | SLUICE_OPEN_BUFFERED | SLUICE_OPEN_SHARED;
    reserved(from.reserved)?;
    let flags = flags(from.flags, all, "SLUICE_OPEN_READ_ONLY, _BUFFERED and _SHARED together")?;
    let number = |what, value: u32| {
        let allowed = "1 to 65535, or 0 for what the device has";
        let number = u16::try_from(value);
        let number = number.map_err(|_| CallError::Value { what, value: value.into(), allowed })?;
        Ok::<_, CallError>((number > 0).then_some(number))
    };
    Ok(DeviceOpenOptions {
        read_only: flags & SLUICE_OPEN_READ_ONLY != 0,
        buffered: flags & SLUICE_OPEN_BUFFERED != 0,
        shared: flags & SLUICE_OPEN_SHARED != 0,
        queue_depth: number("queue_depth", from.queue_depth)?,
        sector_bytes: (from.sector_bytes > 0).then_some(from.sector_bytes),
        queues: number("queues", from.queues)?,
        timeout: (from.timeout_ms > 0).then_some(Nanos::from_millis(from.timeout_ms.into())),
        log: match from.log_bytes {
            0 => None,
            SLUICE_LOG_WHOLE_REGION => Some(RegionLog::Whole),
            bytes => Some(RegionLog::Bytes(bytes)),
        },
    })
}

/// Opens a device for a program compiled with a header of version `version`. Programs call
/// `sluice_open()`, which passes `SLUICE_VERSION`.
///
/// `what` is one of:
///
/// * `null`, `null:SIZE`: acknowledges everything and stores no data. 1 TiB by default; a size is
///   in whole sectors of 512 bytes: `null:64G`.
/// * `scenario.toml`, `scenario.toml#NAME`: the drive of a scenario, or the path if it names paths;
///   `NAME` selects one of several.
///   It runs in this process, on a thread of its own, in real time. It is recovered and
///   preconditioned before the call returns. With `[target]` the call opens the target.
/// * `sluice:///SOCKET`, `sluice:///SOCKET#PARTITION`, `sluice:///SOCKET#DEVICE/PARTITION`: a
///   partition of a drive that another process serves (`sluice serve --socket`).
/// * `vfio:0000:01:00.0`, `vfio:0000:01:00.0#2`: a real NVMe controller that is bound to vfio-pci
///   (`sluice device bind`); its first namespace, or the one with that number.
/// * `uio:0000:01:00.0?unsafe=1`, `uio:0000:01:00.0?unsafe=1#2`: a real NVMe controller without an
///   IOMMU, bound to uio_pci_generic. Unsafe: the controller reaches all memory of the machine. It
///   raises no interrupts.
/// * anything else: the path of a file or block device of the host; `./null` is a file.
///
/// @param version `SLUICE_VERSION`.
/// @param what Name of the device to open.
/// @param options Options, or `NULL` for the defaults.
/// @param device Receives the device, or `NULL` if the call fails.
///
/// # Returns
///
/// 0, or
///
/// * `-ELIBBAD`: header and library have incompatible versions.
/// * `-EINVAL`: an invalid argument or option; a file that is empty or not whole sectors; a
///   scenario that is invalid (`sluice_last_error()` has the line), or has several drives and none
///   was named.
/// * `-E2BIG`: an option of a later version.
/// * `-ENOENT`, `-EACCES`, ...: the system's error for the path; `-ENOTBLK` for a directory, a pipe
///   or the like; `-EBUSY` for a block device in use.
/// * `-EACCES`, `-EUSERS`, `-EBUSY`: the server refuses the user, more queues or connections, or
///   has granted the partition to others; `-ECONNREFUSED`, `-ECONNRESET`: there is no server, or it
///   stops.
/// * `-ETIMEDOUT`: the server does not reply, because it is stopped or overloaded.
/// * `-EIO`: a scenario's drive cannot be opened, for example because its image is damaged or
///   belongs to another drive.
/// * `-EOPNOTSUPP`: a controller without IOMMU, or a kernel without VFIO.
/// * `-ENOSYS`, `-EPERM`: io_uring is not available.
///
/// # Threads
///
/// Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_open_version(
    version: u32,
    what: *const c_char,
    options: *const sluice_open_options,
    device: *mut *mut sluice_device,
) -> c_int {
    call(|| {
        // SAFETY: pointers are as the header demands.
        unsafe { init_out_pointer("device", device) }?;
        version::check(version)?;
        // SAFETY: as above.
        let what = unsafe { text("what", what) }?;
        // SAFETY: as above.
        let options = open_options(&unsafe { read_struct(options) }?)?;
        let (closed, hears) = mpsc::channel();
        let (opened, control) = open_device(what, &options, Some(closed))?;
        let owner = DeviceRef::with_close_receiver(hears);
        let opened = sluice_device::boxed(opened, control, owner);
        // SAFETY: accepted above.
        unsafe { hand_out(device, opened) };
        Ok(0)
    })
}

/// Closes a device.
///
/// Queues, handles and buffers of the device remain usable. If queues exist, the device stays open
/// until the last queue or vector queue is destroyed; the call that destroys it then waits for the
/// shutdown and returns its result.
///
/// A file is not flushed. The drive of a scenario is shut down cleanly, and the call waits for
/// that: outstanding requests complete, a target is flushed and writes a checkpoint, the drive
/// writes its write buffer to the media, and its image is synced.
///
/// @param device The device; it must not be used after the call. `NULL` has no effect.
///
/// # Returns
///
/// 0, or `-EIO` if the drive of a scenario was not shut down cleanly; data flushed before is
/// durable, as after a power cut. The device is closed in both cases.
///
/// # Threads
///
/// Any thread. No other call may use the pointer at the same time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_close(device: *mut sluice_device) -> c_int {
    call(|| {
        if !device.is_null() {
            // SAFETY: made by `hand_out`, and the caller gives it up.
            let device = unsafe { Box::from_raw(device) };
            let owner = device.owner.clone();
            owner.release(device)?;
        }
        Ok(0)
    })
}

/// Returns the name of a device: the serial number or name of a drive, the path of a file, or
/// `null`.
///
/// @param device The device.
///
/// # Returns
///
/// The name, valid until the device is closed; an empty string if `device` is `NULL`.
///
/// # Threads
///
/// Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_device_name(device: *const sluice_device) -> *const c_char {
    call_or(c"".as_ptr(), || {
        // SAFETY: the pointer is as the header demands.
        Ok(unsafe { object_ref("device", device) }?.name.as_ptr())
    })
}

fn features(of: Features, volatile_cache: bool) -> u32 {
    let has = |yes: bool, flag| if yes { flag } else { 0 };
    has(volatile_cache, SLUICE_HAS_VOLATILE_CACHE)
        | has(of.fua, SLUICE_HAS_FUA)
        | has(of.discard, SLUICE_HAS_DISCARD)
        | has(of.write_zeroes, SLUICE_HAS_WRITE_ZEROES)
}

/// Returns the properties of a device.
///
/// @param device The device.
/// @param info Receives the properties, up to `info->size` bytes.
///
/// # Returns
///
/// 0, or `-EINVAL` if an argument is `NULL` or `info->size` is not a size of any version, or
/// `-E2BIG` if it is larger than 4096.
///
/// # Threads
///
/// Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_device_get_info(
    device: *const sluice_device,
    info: *mut sluice_device_info,
) -> c_int {
    call(|| {
        // SAFETY: the pointer is as the header demands.
        let device = &unsafe { object_ref("device", device) }?.device;
        let limits = *device.limits();
        let (buffer_bytes, buffer_bytes_free) = device.buffer_bytes();
        let value = sluice_device_info {
            size: 0,
            kind: match device.kind() {
                DeviceKind::Null => SLUICE_KIND_NULL,
                DeviceKind::File | DeviceKind::Passthrough => SLUICE_KIND_FILE,
                DeviceKind::Drive | DeviceKind::Controller => SLUICE_KIND_DRIVE,
                DeviceKind::Target => SLUICE_KIND_TARGET,
                DeviceKind::Remote => SLUICE_KIND_REMOTE,
            },
            features: features(device.features(), limits.volatile_cache),
            sectors: limits.sectors,
            sector_bytes: limits.sector_bytes,
            max_sectors: limits.max_sectors,
            optimal_sectors: limits.optimal_sectors,
            queue_depth: limits.queue_depth,
            buffer_bytes,
            buffer_bytes_free,
            atomic_sectors: limits.atomic.sectors,
            atomic_boundary_sectors: limits.atomic.boundary_sectors,
        };
        // SAFETY: as above.
        unsafe { write_struct("info", info, &value) }?;
        Ok(0)
    })
}
