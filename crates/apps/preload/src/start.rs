//! Initialization when the library is loaded: reads the addresses of the service and of the volume
//! from the environment, and adopts descriptors inherited through `exec`.

use std::ffi::CStr;
use std::sync::OnceLock;

use libc::{c_char, c_int};

use crate::{
    Errno, descriptors::fd_table, descriptors::streams, gate, libc_fns, mmap::mappings,
    namespace::paths, session,
};

/// Address of the service, and the mount point.
#[derive(Debug)]
struct Service {
    name: Vec<u8>,
    token: Vec<u8>,
    mount_point: Vec<u8>,
}

static SERVICE: OnceLock<Service> = OnceLock::new();

#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

extern "C" fn loaded() {
    libc_fns::find_all();
    let Some(service) = from_environment() else { return };
    gate::prepare();
    if !session::prepare() || !mappings::prepare() || SERVICE.set(service).is_err() {
        return;
    }
    adopt_descriptors();
    for fd in 0..3 {
        // SAFETY: no code has used the standard streams yet.
        unsafe { streams::replace_standard(fd) };
    }
    if let Some(cwd) = variable(exec_proto::ENV_CWD) {
        paths::restore_cwd(&cwd);
    }
}

fn variable(name: &str) -> Option<Vec<u8>> {
    use std::os::unix::ffi::OsStringExt;
    std::env::var_os(name).map(OsStringExt::into_vec)
}

fn from_environment() -> Option<Service> {
    let text = String::from_utf8(variable(exec_proto::ENV_SERVICE)?).ok()?;
    let mut words = text.split(' ');
    let (name, token) = (words.next()?.into(), words.next()?.into());
    Some(Service { name, token, mount_point: variable(exec_proto::ENV_MOUNT)? })
}

/// Returns the mount point; `None` outside `sluice exec`.
#[inline]
pub(crate) fn mount_point() -> Option<&'static [u8]> {
    SERVICE.get().map(|service| &service.mount_point[..])
}

pub(crate) fn token() -> &'static [u8] {
    SERVICE.get().map_or(b"", |service| &service.token)
}

/// Returns whether the service listens. The kernel removes the socket's name when the service dies,
/// even before it is waited for, and independently of its process id. A service with a full backlog
/// counts as alive.
pub(crate) fn is_service_alive() -> bool {
    let Some(service) = SERVICE.get() else { return false };
    // SAFETY: an address on the stack; a descriptor of this library; `errno` is preserved.
    unsafe {
        let errno = *libc::__errno_location();
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let socket = libc::socket(libc::AF_UNIX, kind, 0);
        let (to, len) = address(&service.name);
        let gone = socket >= 0
            && gate::connect(socket, (&raw const to).cast(), len) != 0
            && *libc::__errno_location() == libc::ECONNREFUSED;
        if socket >= 0 {
            gate::close(socket);
        }
        *libc::__errno_location() = errno;
        !gone
    }
}

/// Returns the address of an abstract socket name, and its length.
fn address(name: &[u8]) -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: all fields are numbers.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as _;
    let room = address.sun_path.len() - 1;
    for (to, byte) in address.sun_path[1..].iter_mut().zip(name) {
        *to = *byte as c_char;
    }
    let len = size_of::<libc::sa_family_t>() + 1 + name.len().min(room);
    (address, len as _)
}

/// Connects to the service; with an autobind name if the socket will represent a file.
pub(crate) fn connect(named: bool) -> Result<c_int, Errno> {
    let service = SERVICE.get().ok_or(libc::EIO)?;
    // SAFETY: addresses on the stack; the descriptor is this library's until it is returned.
    unsafe {
        let socket = libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        if socket < 0 {
            return Err(*libc::__errno_location());
        }
        let (to, len) = address(&service.name);
        let (own, own_len) = (address(b"").0, size_of::<libc::sa_family_t>() as u32);
        let mut failed = named && gate::bind(socket, (&raw const own).cast(), own_len) != 0;
        while !failed && gate::connect(socket, (&raw const to).cast(), len) != 0 {
            failed = *libc::__errno_location() != libc::EINTR;
        }
        if failed {
            gate::close(socket);
            gate::end_unsupervised();
            return Err(libc::EIO);
        }
        Ok(socket)
    }
}

/// Returns the number in a socket's autobind name.
pub(crate) fn socket_number(socket: c_int) -> Option<u64> {
    // SAFETY: an address on the stack.
    unsafe {
        let mut name: libc::sockaddr_un = std::mem::zeroed();
        let mut len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
        if libc::getsockname(socket, (&raw mut name).cast(), &mut len) != 0
            || len as usize != size_of::<libc::sa_family_t>() + 6
        {
            return None;
        }
        let digits: [u8; 5] = std::array::from_fn(|i| name.sun_path[i + 1] as u8);
        let number = u64::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?;
        Some(exec_proto::FILE_HANDLE_BASE + number)
    }
}

/// Finds the volume's descriptors among those inherited by the process.
fn adopt_descriptors() {
    let Some(service) = SERVICE.get() else { return };
    let (mine, mine_len) = address(&service.name);
    let path: &CStr = c"/proc/self/fd";
    // SAFETY: buffers on the stack with their lengths; records are read where the kernel put them.
    unsafe {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
        let dir = libc_fns::open()(path.as_ptr(), flags, 0);
        let mut records = [0u64; 512];
        loop {
            let len = size_of_val(&records);
            let got = libc::syscall(libc::SYS_getdents64, dir, records.as_mut_ptr(), len);
            if got <= 0 {
                break;
            }
            let mut at = 0;
            while at < got as usize {
                let record = records.as_ptr().cast::<u8>().add(at);
                at += usize::from(record.add(16).cast::<u16>().read_unaligned());
                let name = CStr::from_ptr(record.add(19).cast());
                let Some(fd) = name.to_str().ok().and_then(|n| n.parse::<c_int>().ok()) else {
                    continue;
                };
                let mut peer: libc::sockaddr_un = std::mem::zeroed();
                let mut len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
                let is_socket = libc::getpeername(fd, (&raw mut peer).cast(), &mut len) == 0;
                let same = is_socket
                    && len == mine_len
                    && peer.sun_family == mine.sun_family
                    && peer.sun_path == mine.sun_path;
                if let Some(number) = socket_number(fd).filter(|_| same) {
                    fd_table::set(fd, number);
                }
            }
        }
        gate::close(dir);
    }
}
