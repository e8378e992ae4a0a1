//! [`PacketListener`]: the listening socket. It replaces a socket file without a listener, never one with a listener,
//! and removes only its own file on drop.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, SocketFlags, accept_with, bind, listen};
use share_proto::socket;

/// Length of the accept queue.
const BACKLOG: i32 = 1024;
/// Maximum bytes of a socket path (`unix(7)`), without the terminating zero.
const PATH_BYTES: usize = 107;

/// Why a path cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Empty, or longer than a socket address can hold.
    #[error("a socket's path has 1 to {PATH_BYTES} bytes: {0}")]
    Path(PathBuf),
    /// A file that is not a socket exists there; it is not removed.
    #[error("{0} exists and is not a socket; choose another path or remove it")]
    NotASocket(PathBuf),
    /// Another server listens there.
    #[error("another server already serves {0}; stop that server, or choose another path")]
    InUse(PathBuf),
    /// A system call failed.
    #[error("cannot listen at {path}: {source}")]
    Io {
        /// The path.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
}

/// A non-blocking listening socket for packets.
#[derive(Debug)]
pub(super) struct PacketListener {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and inode of the socket file.
    file: (u64, u64),
    /// A reserve descriptor, released briefly to reject a client when no descriptor is left.
    spare: Option<OwnedFd>,
}

/// Checks whether `path` can be listened on with permissions `mode`, and leaves nothing behind.
///
/// # Errors
/// [`ListenError`].
pub fn check(path: &Path, mode: u32) -> Result<(), ListenError> {
    PacketListener::bind(path, mode).map(drop)
}

impl PacketListener {
    /// Listens on `path`, which has permissions `mode` before any client can connect.
    pub(super) fn bind(path: &Path, mode: u32) -> Result<PacketListener, ListenError> {
        let failed = |source: io::Error| ListenError::Io { path: path.to_path_buf(), source };
        if !(1..=PATH_BYTES).contains(&path.as_os_str().as_bytes().len()) {
            return Err(ListenError::Path(path.to_path_buf()));
        }
        remove_stale(path)?;
        let address = SocketAddrUnix::new(path).map_err(|e| failed(e.into()))?;
        let socket = socket::socket().map_err(failed)?;
        bind(&socket, &address).map_err(|e| match e {
            Errno::ADDRINUSE => ListenError::InUse(path.to_path_buf()),
            e => failed(e.into()),
        })?;
        let ready = || -> io::Result<(u64, u64)> {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
            fcntl_setfl(&socket, fcntl_getfl(&socket)? | OFlags::NONBLOCK)?;
            listen(&socket, BACKLOG)?;
            let meta = std::fs::symlink_metadata(path)?;
            Ok((meta.dev(), meta.ino()))
        };
        let file = ready().map_err(|e| {
            let _ = std::fs::remove_file(path);
            failed(e)
        })?;
        Ok(PacketListener { socket, path: path.to_path_buf(), file, spare: spare() })
    }

    /// Accepts a waiting client with a non-blocking socket. If no descriptor is left, the client is
    /// rejected, so that it does not wait and does not keep the thread awake.
    pub(super) fn accept(&mut self) -> Option<OwnedFd> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        match accept_with(&self.socket, flags) {
            Ok(socket) => Some(socket),
            Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                self.spare = None;
                if accept_with(&self.socket, flags).is_err() {
                    // Only a descriptor freed elsewhere can help.
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                self.spare = spare();
                None
            }
            Err(_) => None,
        }
    }
}

fn spare() -> Option<OwnedFd> {
    std::fs::File::open("/dev/null").ok().map(OwnedFd::from)
}

/// Removes a socket file without a listener.
fn remove_stale(path: &Path) -> Result<(), ListenError> {
    let failed = |source: io::Error| ListenError::Io { path: path.to_path_buf(), source };
    match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(failed(e)),
        Ok(meta) if !meta.file_type().is_socket() => {
            return Err(ListenError::NotASocket(path.to_path_buf()));
        }
        Ok(_) => {}
    }
    match socket::connect(path) {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(failed)
        }
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Err(failed(e)),
        // A server answers, is busy, or uses another socket type (EPROTOTYPE).
        _ => Err(ListenError::InUse(path.to_path_buf())),
    }
}

impl AsFd for PacketListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for PacketListener {
    fn drop(&mut self) {
        if let Ok(meta) = std::fs::symlink_metadata(&self.path)
            && (meta.dev(), meta.ino()) == self.file
        {
            // If the file cannot be removed, the next server replaces it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dead_is_replaced_and_what_lives_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let first = PacketListener::bind(&path, 0o600).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(matches!(PacketListener::bind(&path, 0o600), Err(ListenError::InUse(_))));
        // As after SIGKILL: the file remains without a listener.
        let meta = std::fs::symlink_metadata(&path).unwrap();
        let PacketListener { socket, .. } = &first;
        drop(socket.try_clone().unwrap());
        std::fs::rename(&path, dir.path().join("kept")).unwrap();
        drop(first);
        std::fs::rename(dir.path().join("kept"), &path).unwrap();
        assert_eq!(std::fs::symlink_metadata(&path).unwrap().ino(), meta.ino());
        let again = PacketListener::bind(&path, 0o666).unwrap();
        drop(again);
        assert!(!path.exists(), "removed at the end");
        // A listener of another socket type, and a regular file.
        let _stream = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert!(matches!(PacketListener::bind(&path, 0o600), Err(ListenError::InUse(_))));
        let file = dir.path().join("file");
        std::fs::write(&file, "x").unwrap();
        assert!(matches!(PacketListener::bind(&file, 0o600), Err(ListenError::NotASocket(_))));
        let long = dir.path().join("x".repeat(108));
        assert!(matches!(PacketListener::bind(&long, 0o600), Err(ListenError::Path(_))));
        let nowhere = dir.path().join("no/where");
        assert!(matches!(PacketListener::bind(&nowhere, 0o600), Err(ListenError::Io { .. })));
    }
}
