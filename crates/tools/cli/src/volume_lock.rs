//! [`VolumeLock`]: excludes other processes while one changes a volume, and writers while one reads
//! it.
//!
//! A volume on a file or block device of the host is locked (`flock(2)`). A volume on a served
//! drive is locked by an abstract socket name (`unix(7)`) of the server's socket and the partition,
//! which one process at a time can bind. The kernel releases locks and names when the process ends,
//! also across containers and reuse of process ids. The mark in the volume covers processes that do
//! not see the same file or name.

use std::fs::File;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;

use open::Target;
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::CliError;

/// Lock of a process on a volume's device while it uses the volume.
#[derive(Debug)]
pub(super) struct VolumeLock {
    exclusive: bool,
    _handle: LockHandle,
}

/// Kernel object of the lock; released when closed, and not inherited by programs.
#[derive(Debug)]
enum LockHandle {
    Nothing,
    Locked { _file: File },
    Named { _name: UnixListener },
}

/// Whether other processes may read meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LockMode {
    Shared,
    Exclusive,
}

impl VolumeLock {
    /// Locks the device for writing. A drive of a scenario needs no lock: its image is locked while
    /// it is open.
    ///
    /// # Errors
    /// [`CliError`] if another process has the lock; errors of the operating system.
    pub(super) fn acquire_exclusive(device: &str) -> Result<VolumeLock, CliError> {
        VolumeLock::acquire(device, LockMode::Exclusive)
    }

    /// Locks the device for reading, which excludes writers. A file or block device may have
    /// several readers, a served drive one.
    ///
    /// # Errors
    /// [`CliError`] if another process has the lock; errors of the operating system.
    pub(super) fn acquire_shared(device: &str) -> Result<VolumeLock, CliError> {
        VolumeLock::acquire(device, LockMode::Shared)
    }

    fn acquire(device: &str, for_what: LockMode) -> Result<VolumeLock, CliError> {
        let target: Target = device.parse().map_err(|e| CliError::Other(format!("{e}")))?;
        match target {
            Target::File(path) => {
                let _file = lock(&path, for_what)?;
                Ok(VolumeLock { exclusive: true, _handle: LockHandle::Locked { _file } })
            }
            Target::Scenario { .. } => {
                Ok(VolumeLock { exclusive: true, _handle: LockHandle::Nothing })
            }
            // A process that names the partition differently, or in another network namespace, is
            // detected by the mark.
            Target::Remote { socket, partition } => {
                let _name = bind_partition_name(&socket, partition.as_deref().unwrap_or_default())?;
                Ok(VolumeLock { exclusive: false, _handle: LockHandle::Named { _name } })
            }
            Target::Null { .. } | Target::Controller { .. } => {
                Ok(VolumeLock { exclusive: false, _handle: LockHandle::Nothing })
            }
        }
    }

    /// Returns whether no other process can be changing the volume, whatever the mark says.
    pub(super) fn is_exclusive(&self) -> bool {
        self.exclusive
    }
}

fn lock(path: &Path, for_what: LockMode) -> Result<File, CliError> {
    let failure = |why: String| CliError::Other(format!("{}: {why}", path.display()));
    let file = File::open(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => failure(format!(
            "{e}: name a scenario, a served drive (sluice:///run/x.sock), or a file or block device that is \
             there; `truncate -s 1G {}` makes a file",
            path.display()
        )),
        _ => failure(e.to_string()),
    })?;
    let operation = match for_what {
        LockMode::Shared => FlockOperation::NonBlockingLockShared,
        LockMode::Exclusive => FlockOperation::NonBlockingLockExclusive,
    };
    match rustix::fs::flock(&file, operation) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => {
            let holder = media::lock_holder(&file).map(|holder| format!(": {holder}"));
            Err(failure(format!(
                "the volume is in use by another process, which has its file locked{}",
                holder.unwrap_or_default()
            )))
        }
        Err(error) => Err(failure(format!("it cannot be locked: {error}"))),
    }
}

/// Maximum number of bytes of a partition's name in the socket name; longer names are truncated.
const PARTITION_NAME_BYTES_MAX: usize = 48;

/// Binds the name of a partition of the drive that is served at a socket. Two long names with a
/// common prefix count as one, which may refuse too much but never too little.
fn bind_partition_name(socket: &Path, partition: &str) -> Result<UnixListener, CliError> {
    let failure = |why: String| CliError::Other(format!("{}: {why}", socket.display()));
    let there = socket.metadata().map_err(|e| failure(e.to_string()))?;
    let (device, inode) = (there.dev(), there.ino());
    let mut name = format!("sluice-volume-{device:x}-{inode:x}-").into_bytes();
    name.extend(partition.bytes().take(PARTITION_NAME_BYTES_MAX));
    let claimed = SocketAddr::from_abstract_name(name).and_then(|at| UnixListener::bind_addr(&at));
    claimed.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            failure("the volume is in use by another process, which has claimed it".into())
        }
        _ => failure(format!("it cannot be claimed: {error}")),
    })
}
