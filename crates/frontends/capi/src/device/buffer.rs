//! `sluice_buffer`: memory registered with the device.
//!
//! [`BufferRegistry`] maps addresses of this process to buffers, so that transfers by address
//! (`sluice_pread`) avoid a copy where possible.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, PoisonError, RwLock};

use mem::Iova;
use user_io::Buffer;

use crate::device::device_ref::DeviceRef;
use crate::device::{hand_out, init_out_pointer, object_ref, sluice_device};
use crate::error::{CallError, call, call_or};

/// A buffer found by address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FoundBuffer {
    len: usize,
    iova: Iova,
    /// The addresses of its device's [`DeviceRef`] and of the object.
    owner: usize,
    object: usize,
}

/// Buffers of all devices, by address in this process.
#[derive(Debug, Default)]
pub(crate) struct BufferRegistry {
    by_address: RwLock<BTreeMap<usize, FoundBuffer>>,
}

static BUFFERS: BufferRegistry = BufferRegistry { by_address: RwLock::new(BTreeMap::new()) };

impl BufferRegistry {
    fn add(&self, address: usize, found: FoundBuffer) {
        self.by_address.write().unwrap_or_else(PoisonError::into_inner).insert(address, found);
    }

    fn remove(&self, address: usize) {
        self.by_address.write().unwrap_or_else(PoisonError::into_inner).remove(&address);
    }

    /// Returns the buffer that contains all `bytes` at `address`, and their offset in it.
    fn find(&self, address: usize, bytes: usize) -> Option<(FoundBuffer, usize)> {
        let map = self.by_address.read().unwrap_or_else(PoisonError::into_inner);
        let (begin, found) = map.range(..=address).next_back()?;
        let offset = address - begin;
        let inside = offset <= found.len && bytes <= found.len - offset;
        inside.then_some((*found, offset))
    }
}

/// Returns the device address of `bytes` at `address`, if they are all in one buffer of `owner`.
pub(crate) fn registered_iova(
    owner: &Arc<DeviceRef>,
    address: usize,
    bytes: usize,
) -> Option<Iova> {
    let (found, offset) = BUFFERS.find(address, bytes)?;
    (found.owner == Arc::as_ptr(owner) as usize).then(|| found.iova.offset(offset as u64))
}

/// Memory that is registered with a device. Several threads may use it at the same time; the
/// application synchronizes accesses to its contents.
pub struct sluice_buffer {
    pub(crate) buffer: Buffer,
    pub(crate) owner: Arc<DeviceRef>,
}

impl Drop for sluice_buffer {
    fn drop(&mut self) {
        BUFFERS.remove(self.buffer.pointer() as usize);
    }
}

/// Allocates registered memory: whole pages, page-aligned. The initial contents are unspecified;
/// they may be data of an earlier buffer.
///
/// @param device The device whose requests will use the buffer.
/// @param bytes Size in bytes, at least 1.
/// @param buffer Receives the buffer, or `NULL` if the call fails.
///
/// # Returns
///
/// 0, or `-EINVAL` if a pointer is `NULL` or `bytes` is 0, or `-ENOMEM`.
///
/// # Threads
///
/// Any thread. The call takes a lock of the device: allocate buffers in advance.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_buffer_create(
    device: *const sluice_device,
    bytes: usize,
    buffer: *mut *mut sluice_buffer,
) -> c_int {
    call(|| {
        // SAFETY: pointers are as the header demands.
        let device = unsafe {
            init_out_pointer("buffer", buffer)?;
            object_ref("device", device)?
        };
        if bytes == 0 {
            let allowed = "1 or more";
            return Err(CallError::Value { what: "bytes", value: 0, allowed });
        }
        let taken = device.device.buffer(bytes)?;
        let (address, len, at) = (taken.pointer() as usize, taken.len(), taken.iova());
        let taken = sluice_buffer { buffer: taken, owner: device.owner.clone() };
        // SAFETY: accepted above.
        let object = unsafe { hand_out(buffer, taken) } as usize;
        let owner = Arc::as_ptr(&device.owner) as usize;
        BUFFERS.add(address, FoundBuffer { len, iova: at, owner, object });
        Ok(0)
    })
}

/// Frees a buffer; its memory stays registered, for other buffers of the device.
///
/// @param buffer The buffer; it must not be used after the call, and no outstanding request may
/// refer to it. `NULL` has no effect.
///
/// # Threads
///
/// Any thread. No other call may use the pointer at the same time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_buffer_destroy(buffer: *mut sluice_buffer) {
    call_or((), || {
        if !buffer.is_null() {
            // SAFETY: made by `hand_out`, and the caller gives it up.
            drop(unsafe { Box::from_raw(buffer) });
        }
        Ok(())
    });
}

/// Returns the buffer that contains a memory range, for programs that only know addresses.
///
/// @param memory Address of the first byte.
/// @param bytes Size of the range in bytes; the buffer must contain all of it.
/// @param buffer Receives the buffer, or `NULL` if the call fails. The caller may pass it to
/// `sluice_buffer_destroy()`.
/// @param offset Receives the offset of `memory` in the buffer, in bytes. May be `NULL`.
///
/// # Returns
///
/// 0, or `-ENOENT` if no buffer contains the whole range, or `-EINVAL` if `buffer` is `NULL`.
///
/// # Threads
///
/// Any thread. The call takes a lock of the process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_buffer_find(
    memory: *const c_void,
    bytes: usize,
    buffer: *mut *mut sluice_buffer,
    offset: *mut u64,
) -> c_int {
    call(|| {
        // SAFETY: pointers are as the header demands.
        unsafe { init_out_pointer("buffer", buffer) }?;
        let (found, at) = BUFFERS.find(memory as usize, bytes).ok_or(CallError::NoBuffer)?;
        // SAFETY: accepted above; and not NULL, and writable as the header demands.
        unsafe {
            buffer.write(found.object as *mut sluice_buffer);
            if !offset.is_null() {
                offset.write(at as u64);
            }
        }
        Ok(0)
    })
}

/// Returns the address of a buffer.
///
/// @param buffer The buffer.
///
/// # Returns
///
/// The page-aligned address of the first byte, valid until the buffer is destroyed; `NULL` if
/// `buffer` is `NULL`.
///
/// # Threads
///
/// Any thread. While a request that uses the buffer is outstanding, the device accesses its data:
/// the application must neither access the data of a read nor change the data of a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_buffer_data(buffer: *const sluice_buffer) -> *mut c_void {
    call_or(std::ptr::null_mut(), || {
        // SAFETY: the pointer is as the header demands.
        Ok(unsafe { object_ref("buffer", buffer) }?.buffer.pointer().cast())
    })
}

/// Returns the size of a buffer.
///
/// @param buffer The buffer.
///
/// # Returns
///
/// The size in bytes that was passed to `sluice_buffer_create()`; 0 if `buffer` is `NULL`.
///
/// # Threads
///
/// Any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_buffer_size(buffer: *const sluice_buffer) -> usize {
    call_or(0, || {
        // SAFETY: the pointer is as the header demands.
        Ok(unsafe { object_ref("buffer", buffer) }?.buffer.len())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_inside_of_one_buffer_are_found() {
        let buffers = BufferRegistry::default();
        let a = FoundBuffer { len: 4096, iova: Iova(0), owner: 1, object: 2 };
        let b = FoundBuffer { len: 10_000, iova: Iova(1 << 20), owner: 1, object: 3 };
        buffers.add(0x10_000, a);
        buffers.add(0x20_000, b);
        assert_eq!(buffers.find(0x10_000, 4096), Some((a, 0)));
        assert_eq!(buffers.find(0x10_000, 4097), None);
        assert_eq!(buffers.find(0x20_200, 9488), Some((b, 512)));
        assert_eq!(buffers.find(0x20_200, 9489), None);
        assert_eq!(buffers.find(0x20_000 + 10_000, 0), Some((b, 10_000)));
        assert_eq!(buffers.find(0x20_000 + 10_001, 0), None);
        assert_eq!(buffers.find(64, 1), None);
        assert_eq!(buffers.find(usize::MAX, usize::MAX), None);
        buffers.remove(0x10_000);
        assert_eq!(buffers.find(0x10_000, 1), None, "given back");
    }
}
