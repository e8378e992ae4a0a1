//! The descriptors that represent files of the volume. Each is a socket that the kernel copies,
//! inherits and closes. The table only caches which file a socket represents, and is rebuilt from
//! the sockets after `exec`.

use std::sync::atomic::{AtomicU32, Ordering};

use libc::c_int;

/// Number of descriptors that can represent files of the volume.
const TABLE_LEN: usize = 1 << 16;

static TABLE: [AtomicU32; TABLE_LEN] = [const { AtomicU32::new(0) }; TABLE_LEN];

/// Bit of an entry: writes may be posted ([`exec_proto::posted`]). A copied descriptor starts without
/// it.
const MAY_POST: u32 = 1 << 31;

/// Returns the handle of a descriptor of the volume.
#[inline]
pub(crate) fn handle(fd: c_int) -> Option<u64> {
    let entry = TABLE.get(usize::try_from(fd).ok()?)?.load(Ordering::Acquire);
    (entry != 0).then_some((entry & !MAY_POST).into())
}

/// Returns whether writes may be posted, if the descriptor still represents this handle.
#[inline]
pub(crate) fn can_post(fd: c_int, handle: u64) -> bool {
    let entry = usize::try_from(fd).ok().and_then(|fd| TABLE.get(fd));
    entry.is_some_and(|e| e.load(Ordering::Relaxed) == handle as u32 | MAY_POST)
}

/// Records that writes may be posted.
pub(crate) fn allow_posting(fd: c_int, handle: u64) {
    if let Some(entry) = usize::try_from(fd).ok().and_then(|fd| TABLE.get(fd)) {
        let (from, to) = (handle as u32, handle as u32 | MAY_POST);
        let _ = entry.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Returns whether a descriptor fits into the table.
pub(crate) fn is_in_range(fd: c_int) -> bool {
    usize::try_from(fd).is_ok_and(|fd| fd < TABLE_LEN)
}

/// Sets the handle of a descriptor; 0 if it does not belong to the volume.
pub(crate) fn set(fd: c_int, handle: u64) {
    if let Some(entry) = usize::try_from(fd).ok().and_then(|fd| TABLE.get(fd)) {
        entry.store(handle as u32, Ordering::Release);
    }
}

/// Removes a descriptor; returns its handle.
pub(crate) fn clear(fd: c_int) -> Option<u64> {
    let entry = TABLE.get(usize::try_from(fd).ok()?)?;
    if entry.load(Ordering::Acquire) == 0 {
        return None;
    }
    let handle = entry.swap(0, Ordering::AcqRel) & !MAY_POST;
    (handle != 0).then_some(handle.into())
}

/// Returns the volume's descriptors in a range.
pub(crate) fn descriptors_within(first: u32, last: u32) -> impl Iterator<Item = c_int> {
    let last = (last as usize).min(TABLE_LEN - 1);
    (first as usize..=last)
        .filter(|fd| TABLE[*fd].load(Ordering::Relaxed) != 0)
        .map(|fd| fd as c_int)
}
