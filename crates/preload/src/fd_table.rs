//! Which descriptors are the volume's. Each is a socket that the kernel copies, inherits and closes; the
//! table only remembers what the sockets stand for, and is read again from the sockets after `exec`.

use std::sync::atomic::{AtomicU32, Ordering};

use libc::c_int;

/// Descriptors that can be the volume's.
const TABLE_LEN: usize = 1 << 16;

static TABLE: [AtomicU32; TABLE_LEN] = [const { AtomicU32::new(0) }; TABLE_LEN];

/// Of an entry: writes may be left ([`slots::left`]). Whoever copies the descriptor learns that anew.
const MAY_POST: u32 = 1 << 31;

/// What a descriptor stands for, if it is the volume's.
#[inline]
pub(crate) fn handle(fd: c_int) -> Option<u64> {
    let entry = TABLE.get(usize::try_from(fd).ok()?)?.load(Ordering::Acquire);
    (entry != 0).then_some((entry & !MAY_POST).into())
}

/// Whether writes may be left, by the descriptor if it still stands for that.
#[inline]
pub(crate) fn can_post(fd: c_int, handle: u64) -> bool {
    let entry = usize::try_from(fd).ok().and_then(|fd| TABLE.get(fd));
    entry.is_some_and(|e| e.load(Ordering::Relaxed) == handle as u32 | MAY_POST)
}

/// Notes that they may.
pub(crate) fn allow_posting(fd: c_int, handle: u64) {
    if let Some(entry) = usize::try_from(fd).ok().and_then(|fd| TABLE.get(fd)) {
        let (from, to) = (handle as u32, handle as u32 | MAY_POST);
        let _ = entry.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Whether a descriptor can be in the table.
pub(crate) fn is_in_range(fd: c_int) -> bool {
    usize::try_from(fd).is_ok_and(|fd| fd < TABLE_LEN)
}

/// Notes what a descriptor stands for from now on: 0 for nothing of the volume.
pub(crate) fn set(fd: c_int, handle: u64) {
    if let Some(entry) = usize::try_from(fd).ok().and_then(|fd| TABLE.get(fd)) {
        entry.store(handle as u32, Ordering::Release);
    }
}

/// Forgets what a descriptor stood for; returns that.
pub(crate) fn clear(fd: c_int) -> Option<u64> {
    let entry = TABLE.get(usize::try_from(fd).ok()?)?;
    if entry.load(Ordering::Acquire) == 0 {
        return None;
    }
    let handle = entry.swap(0, Ordering::AcqRel) & !MAY_POST;
    (handle != 0).then_some(handle.into())
}

/// The volume's descriptors in a range.
pub(crate) fn descriptors_within(first: u32, last: u32) -> impl Iterator<Item = c_int> {
    let last = (last as usize).min(TABLE_LEN - 1);
    (first as usize..=last)
        .filter(|fd| TABLE[*fd].load(Ordering::Relaxed) != 0)
        .map(|fd| fd as c_int)
}
