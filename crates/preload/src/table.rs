//! Which descriptors are the volume's. Each is a socket that the kernel copies, inherits and closes; the
//! table only remembers what the sockets stand for, and is read again from the sockets after `exec`.

use std::sync::atomic::{AtomicU32, Ordering};

use libc::c_int;

/// Descriptors that can be the volume's.
const LEN: usize = 1 << 16;

static TABLE: [AtomicU32; LEN] = [const { AtomicU32::new(0) }; LEN];

/// Of an entry: writes may be left ([`slots::left`]). Whoever copies the descriptor learns that anew.
const MAY_LEAVE: u32 = 1 << 31;

/// What a descriptor stands for, if it is the volume's.
#[inline]
pub(crate) fn handle(fd: c_int) -> Option<u64> {
    let entry = TABLE.get(usize::try_from(fd).ok()?)?.load(Ordering::Acquire);
    (entry != 0).then_some((entry & !MAY_LEAVE).into())
}

/// Whether writes may be left, by the descriptor if it still stands for that.
#[inline]
pub(crate) fn may_leave(fd: c_int, handle: u64) -> bool {
    let entry = usize::try_from(fd).ok().and_then(|fd| TABLE.get(fd));
    entry.is_some_and(|e| e.load(Ordering::Relaxed) == handle as u32 | MAY_LEAVE)
}

/// Notes that they may.
pub(crate) fn let_leave(fd: c_int, handle: u64) {
    if let Some(entry) = usize::try_from(fd).ok().and_then(|fd| TABLE.get(fd)) {
        let (from, to) = (handle as u32, handle as u32 | MAY_LEAVE);
        let _ = entry.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Whether a descriptor can be in the table.
pub(crate) fn has_place(fd: c_int) -> bool {
    usize::try_from(fd).is_ok_and(|fd| fd < LEN)
}

/// Notes what a descriptor stands for from now on: 0 for nothing of the volume.
pub(crate) fn set(fd: c_int, handle: u64) {
    if let Some(entry) = usize::try_from(fd).ok().and_then(|fd| TABLE.get(fd)) {
        entry.store(handle as u32, Ordering::Release);
    }
}

/// Forgets what a descriptor stood for; returns that.
pub(crate) fn forget(fd: c_int) -> Option<u64> {
    let entry = TABLE.get(usize::try_from(fd).ok()?)?;
    if entry.load(Ordering::Acquire) == 0 {
        return None;
    }
    let handle = entry.swap(0, Ordering::AcqRel) & !MAY_LEAVE;
    (handle != 0).then_some(handle.into())
}

/// The volume's descriptors in a range.
pub(crate) fn within(first: u32, last: u32) -> impl Iterator<Item = c_int> {
    let last = (last as usize).min(LEN - 1);
    (first as usize..=last)
        .filter(|fd| TABLE[*fd].load(Ordering::Relaxed) != 0)
        .map(|fd| fd as c_int)
}
