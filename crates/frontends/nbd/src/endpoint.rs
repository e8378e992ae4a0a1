//! [`Endpoint`]: an address to listen on; and the listening socket, which removes its file on drop.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// Where a server listens: `unix:PATH` or `tcp:HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// A Unix socket at a path of at most 107 bytes.
    Unix(PathBuf),
    /// A TCP port. `host` is a name or an address, IPv6 without brackets; port 0 lets the system
    /// choose.
    Tcp {
        /// Name or address.
        host: String,
        /// Port.
        port: u16,
    },
}

/// Why a text is not an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// Neither `unix:` nor `tcp:`.
    #[error("`{0}` is not an endpoint: use unix:PATH or tcp:HOST:PORT")]
    Kind(String),
    /// No path, or one that a socket address cannot hold.
    #[error("a Unix socket's path has 1 to 107 bytes and no NUL: `{0}`")]
    Path(PathBuf),
    /// Not `HOST:PORT`.
    #[error("`{0}` is not HOST:PORT, as in 127.0.0.1:10809 or [::1]:10809")]
    HostPort(String),
}

/// Why an endpoint cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum EndpointBindError {
    /// The path is not valid for a socket.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// A file that is not a socket exists there; it is not removed.
    #[error("{0} exists and is not a socket; choose another path or remove it")]
    NotASocket(PathBuf),
    /// Another server listens there.
    #[error("another server already serves {0}; stop that server, or choose another endpoint")]
    InUse(Endpoint),
    /// The address is not a loopback address.
    #[error(
        "{address} is reachable from other machines, and NBD has no authentication; use a \
         loopback address (127.0.0.1, [::1]), or --allow-remote (`NbdConfig::allow_remote`)"
    )]
    NotLoopback {
        /// The address to which the host resolved.
        address: SocketAddr,
    },
    /// A system call failed.
    #[error("cannot listen on {endpoint}: {source}")]
    Io {
        /// The endpoint.
        endpoint: Endpoint,
        /// Cause.
        source: io::Error,
    },
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Endpoint, EndpointError> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = PathBuf::from(path);
            check_path(&path)?;
            return Ok(Endpoint::Unix(path));
        }
        let Some(rest) = text.strip_prefix("tcp:") else {
            return Err(EndpointError::Kind(text.into()));
        };
        let wrong = || EndpointError::HostPort(rest.into());
        let (host, port) = rest.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse().map_err(|_| wrong())?;
        let bracketed = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        let host = bracketed.unwrap_or(host);
        if host.is_empty() || (bracketed.is_none() && host.contains(':')) {
            return Err(wrong());
        }
        Ok(Endpoint::Tcp { host: host.into(), port })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Unix(path) => write!(f, "unix:{}", path.display()),
            Endpoint::Tcp { host, port } if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            Endpoint::Tcp { host, port } => write!(f, "tcp:{host}:{port}"),
        }
    }
}

fn check_path(path: &Path) -> Result<(), EndpointError> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.is_empty() || bytes.len() > 107 || bytes.contains(&0) {
        return Err(EndpointError::Path(path.into()));
    }
    Ok(())
}

/// A listening, non-blocking socket.
#[derive(Debug)]
pub(super) struct StreamListener {
    fd: OwnedFd,
    endpoint: Endpoint,
    /// Device and inode of the socket file, so that no other server's file is removed.
    file: Option<(u64, u64)>,
}

impl Endpoint {
    /// Checks whether the endpoint can be listened on, and leaves nothing behind. For reporting a
    /// bad endpoint before a long start-up.
    ///
    /// # Errors
    /// [`EndpointBindError`].
    pub fn check(&self, allow_remote: bool) -> Result<(), EndpointBindError> {
        StreamListener::bind(self, allow_remote).map(drop)
    }
}

impl StreamListener {
    /// Binds and listens. A stale socket file is replaced.
    pub(super) fn bind(
        endpoint: &Endpoint,
        allow_remote: bool,
    ) -> Result<StreamListener, EndpointBindError> {
        let refused = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => EndpointBindError::InUse(endpoint.clone()),
            _ => EndpointBindError::Io { endpoint: endpoint.clone(), source },
        };
        match endpoint {
            Endpoint::Unix(path) => {
                check_path(path)?;
                remove_stale(path, endpoint)?;
                let listener = UnixListener::bind(path).map_err(refused)?;
                listener.set_nonblocking(true).map_err(refused)?;
                let meta = std::fs::symlink_metadata(path).map_err(refused)?;
                Ok(StreamListener {
                    fd: listener.into(),
                    endpoint: endpoint.clone(),
                    file: Some((meta.dev(), meta.ino())),
                })
            }
            Endpoint::Tcp { host, port } => {
                let addresses: Vec<SocketAddr> =
                    (host.as_str(), *port).to_socket_addrs().map_err(refused)?.collect();
                if let Some(address) =
                    addresses.iter().find(|a| !allow_remote && !a.ip().is_loopback())
                {
                    return Err(EndpointBindError::NotLoopback { address: *address });
                }
                let listener = TcpListener::bind(addresses.as_slice()).map_err(refused)?;
                listener.set_nonblocking(true).map_err(refused)?;
                let bound = listener.local_addr().map_err(refused)?;
                let endpoint = Endpoint::Tcp { host: bound.ip().to_string(), port: bound.port() };
                Ok(StreamListener { fd: listener.into(), endpoint, file: None })
            }
        }
    }

    /// Returns the address, with the port that the system chose.
    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Accepts a waiting client. Its socket is non-blocking, with Nagle's algorithm off.
    pub(super) fn accept(&self) -> Result<OwnedFd, Errno> {
        let fd = rustix::net::accept_with(&self.fd, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)?;
        if matches!(self.endpoint, Endpoint::Tcp { .. }) {
            // A failure costs only latency.
            let _ = rustix::net::sockopt::set_tcp_nodelay(&fd, true);
        }
        Ok(fd)
    }
}

impl AsFd for StreamListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for StreamListener {
    fn drop(&mut self) {
        if let (Endpoint::Unix(path), Some(ours)) = (&self.endpoint, self.file)
            && let Ok(meta) = std::fs::symlink_metadata(path)
            && (meta.dev(), meta.ino()) == ours
        {
            // If the file cannot be removed, the next server replaces it.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Removes a socket file that a terminated server left behind.
fn remove_stale(path: &Path, endpoint: &Endpoint) -> Result<(), EndpointBindError> {
    let failed = |source: io::Error| EndpointBindError::Io { endpoint: endpoint.clone(), source };
    let meta = match std::fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(failed(e)),
    };
    if !meta.file_type().is_socket() {
        return Err(EndpointBindError::NotASocket(path.into()));
    }
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let probe = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(|e| failed(e.into()))?;
    let address = SocketAddrUnix::new(path).map_err(|e| failed(e.into()))?;
    match connect(&probe, &address) {
        Err(Errno::CONNREFUSED) => std::fs::remove_file(path).map_err(failed),
        Err(Errno::NOENT) => Ok(()),
        // Connected, or the backlog is full: a server is listening.
        Ok(()) | Err(Errno::AGAIN) => Err(EndpointBindError::InUse(endpoint.clone())),
        // A socket of another type, such as that of `sluice serve --socket`; it is not probed
        // further.
        Err(Errno::PROTOTYPE) => Err(EndpointBindError::InUse(endpoint.clone())),
        Err(e) => Err(failed(e.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read_and_printed_the_same() {
        for text in ["unix:/tmp/a.sock", "unix:relative", "tcp:127.0.0.1:10809", "tcp:[::1]:0"] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
        for (text, part) in [
            ("/tmp/a.sock", "unix:PATH or tcp:HOST:PORT"),
            ("unix:", "1 to 107 bytes"),
            ("tcp:localhost", "HOST:PORT"),
            ("tcp::1", "HOST:PORT"),
            ("tcp:::1:5", "HOST:PORT"),
            ("tcp:host:70000", "HOST:PORT"),
        ] {
            let error = text.parse::<Endpoint>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert!(format!("unix:/{}", "a".repeat(107)).parse::<Endpoint>().is_err());
    }

    #[test]
    fn only_a_dead_servers_socket_is_replaced_and_only_ours_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let endpoint = Endpoint::Unix(path.clone());
        let first = StreamListener::bind(&endpoint, false).unwrap();
        assert!(matches!(StreamListener::bind(&endpoint, false), Err(EndpointBindError::InUse(_))));
        assert!(matches!(endpoint.check(false), Err(EndpointBindError::InUse(_))));
        drop(first);
        assert!(endpoint.check(false).is_ok() && !path.exists(), "nothing is left");
        assert!(!path.exists(), "removed at exit");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "a dead server's socket stays behind");
        let second = StreamListener::bind(&endpoint, false).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "somebody's file").unwrap();
        drop(second);
        assert!(path.exists(), "not ours any more");
        assert!(matches!(
            StreamListener::bind(&endpoint, false),
            Err(EndpointBindError::NotASocket(_))
        ));
    }

    #[test]
    fn other_machines_are_let_in_only_when_told() {
        let any = Endpoint::Tcp { host: "0.0.0.0".into(), port: 0 };
        assert!(matches!(
            StreamListener::bind(&any, false),
            Err(EndpointBindError::NotLoopback { .. })
        ));
        assert!(StreamListener::bind(&any, true).is_ok());
        let local = Endpoint::Tcp { host: "127.0.0.1".into(), port: 0 };
        let listener = StreamListener::bind(&local, false).unwrap();
        assert!(matches!(listener.endpoint(), Endpoint::Tcp { port, .. } if *port != 0));
    }
}
