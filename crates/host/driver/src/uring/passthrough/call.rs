//! System calls on the kernel's NVMe devices. All `unsafe` code of `passthrough` is in this module.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::entry::{ADMIN, CommandEntry};

/// `_IO('N', 0x40)`: returns the namespace identifier.
const NSID: u64 = 0x4e40;

/// Returns the identifier of the file's namespace.
pub(super) fn nsid(file: BorrowedFd<'_>) -> io::Result<u32> {
    // SAFETY: the call takes no argument; the kernel writes nothing.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), NSID as _) };
    u32::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Sends an admin command, waits for its completion, and returns its status field (0: success). The
/// command transfers to or from `data`, whose length is the command's.
///
/// # Errors
/// The kernel's error for a command that it does not send, or that timed out.
pub(super) fn admin(
    file: BorrowedFd<'_>,
    command: &mut CommandEntry,
    data: &mut [u8],
) -> io::Result<u16> {
    let length = u32::try_from(data.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let address = if data.is_empty() { 0 } else { data.as_mut_ptr().expose_provenance() };
    command.set_data(address as u64, length);
    let words = command.words();
    // SAFETY: the argument is a `struct nvme_passthru_cmd` (72 bytes, in `entry`) that lives
    // through the call. It names `data`, which is exclusively borrowed for the call, and its
    // length, which the kernel does not exceed. All transfers have finished when the call returns.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), ADMIN.into(), words.as_mut_ptr()) };
    match result {
        0.. => Ok(result as u16),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn files_that_are_no_nvme_devices_are_refused() {
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(nsid(null.as_fd()).is_err());
        let mut command = CommandEntry::new(&nvme::Sqe::flush(1));
        assert!(admin(null.as_fd(), &mut command, &mut [0; 64]).is_err());
        assert!(admin(null.as_fd(), &mut command, &mut []).is_err());
    }
}
