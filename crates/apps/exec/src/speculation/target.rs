//! [`SendTarget`]: a socket or a pipe to which the supervisor sends data for a program.

use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use output_gate::{DataSend, copy_descriptor};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags, fcntl_getfl, fstat, open, statfs};
use rustix::io::Errno;
use rustix::net::sockopt::{socket_domain, socket_linger, socket_type};
use rustix::net::{AddressFamily, SendFlags, SocketType, getpeername, send};

/// Identifies a socket or a pipe, also among copies of its descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FileId {
    device: u64,
    inode: u64,
}

/// The file of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OpenFile {
    pub(super) id: FileId,
    /// It has `O_NONBLOCK`.
    pub(super) is_non_blocking: bool,
}

impl OpenFile {
    /// Returns the file of a descriptor of a stopped thread.
    pub(super) fn of(thread: u32, descriptor: i32) -> Option<OpenFile> {
        let copy = copy_descriptor(thread, descriptor).ok()?;
        let stat = fstat(&copy).ok()?;
        let id = FileId { device: stat.st_dev, inode: stat.st_ino };
        let is_non_blocking = fcntl_getfl(&copy).ok()?.contains(OFlags::NONBLOCK);
        Some(OpenFile { id, is_non_blocking })
    }
}

/// `f_type` of `statfs(2)` of file systems that tell no server of a close: ext2 to ext4, XFS, Btrfs,
/// tmpfs, overlayfs, SquashFS, EROFS, proc and sysfs.
const LOCAL_FILE_SYSTEMS: [i64; 9] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0x0102_1994,
    0x794c_7630,
    0x7371_7368,
    0xe0f5_e1e2,
    0x9fa0,
    0x6265_6572,
];

/// The kernel's information about a descriptor of a stopped thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct DescriptorInfo {
    flags: OFlags,
    /// Whether its process has locked the file.
    is_locked: bool,
}

impl DescriptorInfo {
    /// Reads it; `None` if there is no such descriptor.
    pub(super) fn read(thread: u32, descriptor: i32) -> Option<DescriptorInfo> {
        let info = std::fs::read_to_string(format!("/proc/{thread}/fdinfo/{descriptor}")).ok()?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
        let flags = OFlags::from_bits_retain(u32::from_str_radix(flags.trim(), 8).ok()?);
        let is_locked = info.lines().any(|line| line.starts_with("lock:"));
        Some(DescriptorInfo { flags, is_locked })
    }

    /// Whether the file is open for reading only: no later protection makes a mapping of it writable.
    pub(super) fn is_reader(&self) -> bool {
        self.flags & (OFlags::RWMODE | OFlags::PATH) == OFlags::RDONLY
    }
}

/// Returns whether a descriptor of a stopped thread is of a regular file that is open for reading
/// only, on a local file system, and that its process has not locked: a close releases locks.
pub(super) fn is_unlocked_reader(thread: u32, descriptor: i32) -> bool {
    let info = DescriptorInfo::read(thread, descriptor);
    let is_reader = info.is_some_and(|info| info.is_reader() && !info.is_locked);
    let file = format!("/proc/{thread}/fd/{descriptor}");
    let is_file = std::fs::metadata(&file).is_ok_and(|metadata| metadata.is_file());
    let is_local = statfs(&file).is_ok_and(|fs| LOCAL_FILE_SYSTEMS.contains(&fs.f_type));
    is_reader && is_file && is_local
}

/// Whether a target takes data now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TargetState {
    Writable,
    /// The peer has not read the data that was sent before.
    Full,
    /// The peer has gone, or the target has an error.
    Broken,
}

/// A connected stream socket or the writing end of a pipe. Sends never block the supervisor, and
/// the flags of the program's open file are not changed.
#[derive(Debug)]
pub(super) struct SendTarget {
    pub(super) id: FileId,
    descriptor: OwnedFd,
    is_socket: bool,
    /// The program's call returns `EAGAIN` rather than block.
    pub(super) is_non_blocking: bool,
    flags: SendFlags,
}

impl SendTarget {
    /// Returns the target of a call; `None` if its data cannot be sent later. The reasons are in
    /// docs/speculation.md.
    pub(super) fn of(thread: u32, call: &DataSend) -> Option<SendTarget> {
        let descriptor = copy_descriptor(thread, call.descriptor).ok()?;
        let stat = fstat(&descriptor).ok()?;
        let id = FileId { device: stat.st_dev, inode: stat.st_ino };
        let flags = fcntl_getfl(&descriptor).ok()?;
        let is_non_blocking = flags.contains(OFlags::NONBLOCK);
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Socket => {
                let wanted = SendFlags::from_bits_retain(call.flags.unwrap_or(0));
                let known = SendFlags::NOSIGNAL | SendFlags::DONTWAIT | SendFlags::MORE;
                if !known.contains(wanted) || !is_connected_stream(&descriptor) {
                    return None;
                }
                let is_non_blocking = is_non_blocking || wanted.contains(SendFlags::DONTWAIT);
                let flags = wanted | SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
                Some(SendTarget { id, descriptor, is_socket: true, is_non_blocking, flags })
            }
            FileType::Fifo if call.flags.is_none() && flags & OFlags::RWMODE != OFlags::RDONLY => {
                let descriptor = reopen(&descriptor, flags)?;
                let flags = SendFlags::empty();
                Some(SendTarget { id, descriptor, is_socket: false, is_non_blocking, flags })
            }
            _ => None,
        }
    }

    /// Returns whether the target takes data now.
    pub(super) fn state(&self) -> TargetState {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut end = [PollFd::new(self, PollFlags::OUT)];
        if poll(&mut end, Some(&now)).is_err() {
            return TargetState::Broken;
        }
        let [end] = end;
        let events = end.revents();
        if events.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) {
            TargetState::Broken
        } else if events.contains(PollFlags::OUT) {
            TargetState::Writable
        } else {
            TargetState::Full
        }
    }

    /// Sends as much as the target takes, with the flags of the call. Returns the number of bytes.
    ///
    /// # Errors
    /// `AGAIN` if the target is full; the kernel's error otherwise.
    pub(super) fn send(&self, bytes: &[u8], flags: SendFlags) -> Result<usize, Errno> {
        rustix::io::retry_on_intr(|| match self.is_socket {
            true => send(self, bytes, flags),
            false => rustix::io::write(self, bytes),
        })
    }

    /// Returns the flags with which the call sends.
    pub(super) fn flags(&self) -> SendFlags {
        self.flags
    }
}

impl AsFd for SendTarget {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Returns whether a socket is a connected stream, and closing it does not block.
fn is_connected_stream(socket: &OwnedFd) -> bool {
    let families = [AddressFamily::UNIX, AddressFamily::INET, AddressFamily::INET6];
    socket_type(socket) == Ok(SocketType::STREAM)
        && socket_domain(socket).is_ok_and(|family| families.contains(&family))
        && socket_linger(socket) == Ok(None)
        && getpeername(socket).is_ok()
}

/// Opens a pipe again for writing, so that only this open file does not block.
fn reopen(pipe: &OwnedFd, flags: OFlags) -> Option<OwnedFd> {
    let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
    // With `O_DIRECT` each write is a packet.
    let packets = flags & OFlags::DIRECT;
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | packets;
    open(path, flags, Mode::empty()).ok()
}
