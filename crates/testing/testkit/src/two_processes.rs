//! A port between two processes, for tests. The test binary runs itself as the other process, with
//! a socket as its standard input; port descriptors and memory are sent over that socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use mem::{RegistrationExporter, SharedRegion};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use transport::{Port, PortDescriptor};

/// Environment variable that tells the binary that it is the other process, and its role.
pub const ROLE: &str = "SLUICE_SHARED_PORT_ROLE";

/// Maximum number of descriptors per message.
const DESCRIPTORS: usize = PortDescriptor::MAX_DESCRIPTORS;

/// Values of a message's first byte.
pub mod kind {
    /// The port, from the drive's process.
    pub const PORT: u8 = b'P';
    /// A registration, from the host's process.
    pub const MEMORY: u8 = b'M';
    /// The registration is made.
    pub const DONE: u8 = b'D';
    /// The registration is refused.
    pub const REFUSED: u8 = b'R';
    /// A message of the test itself.
    pub const NOTE: u8 = b'N';
}

/// Sends a message with descriptors.
pub fn send(socket: impl AsFd, kind: u8, bytes: &[u8], fds: &[OwnedFd]) -> io::Result<()> {
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    }
    let message = [&[kind], bytes].concat();
    rustix::net::sendmsg(socket, &[IoSlice::new(&message)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a message; `None` if the other process is gone.
pub fn receive(socket: impl AsFd) -> Option<(u8, Vec<u8>, Vec<OwnedFd>)> {
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; 64];
    let mut into = [IoSliceMut::new(&mut bytes)];
    let received =
        rustix::net::recvmsg(socket, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC).ok()?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    let (kind, rest) = bytes[..received.bytes].split_first()?;
    Some((*kind, rest.to_vec(), fds))
}

/// Runs the test with the path `test` of this binary as another process, which holds the other end of the socket
/// ([`test_path!`](crate::test_path)). `configure` may add to its environment.
pub fn spawn(
    test: &str,
    role: &str,
    configure: impl FnOnce(&mut Command),
) -> (Child, Arc<OwnedFd>) {
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null());
    configure(&mut command);
    let child = command.spawn().unwrap();
    (child, Arc::new(ours))
}

/// Sends the host's process its port.
pub fn send_port(socket: impl AsFd, port: &Port) {
    let (header, fds) = port.take_descriptor().unwrap().into_message();
    send(socket, kind::PORT, &header, &fds).unwrap();
}

/// Registers the memory that the host sends, until it is gone. Passes its other messages to `note`.
pub fn serve(socket: impl AsFd, port: &Port, mut note: impl FnMut(&[u8])) {
    while let Some((kind, bytes, mut fds)) = receive(&socket) {
        if kind != kind::MEMORY {
            note(&bytes);
            continue;
        }
        let adopt = || -> Option<()> {
            let slot = u64::from_le_bytes(bytes.try_into().ok()?) as usize;
            let region = SharedRegion::import(fds.pop()?, port.memory().remaining_bytes()).ok()?;
            port.memory().register_at(slot, &region).ok().map(drop)
        };
        let answer = adopt().map_or(kind::REFUSED, |()| kind::DONE);
        if send(&socket, answer, &[], &[]).is_err() {
            return;
        }
    }
}

/// Exports the host's registrations over the socket.
#[derive(Debug)]
struct SocketExporter(Mutex<()>);

impl RegistrationExporter for SocketExporter {
    fn export_region(&self, slot: usize, region: &SharedRegion) -> io::Result<()> {
        let _turn = self.0.lock().unwrap();
        let memory = region.backing().ok_or(io::ErrorKind::InvalidInput)?.try_clone()?;
        send(io::stdin(), kind::MEMORY, &(slot as u64).to_le_bytes(), &[memory.into()])?;
        match receive(io::stdin()) {
            Some((kind::DONE, ..)) => Ok(()),
            Some(_) => Err(io::ErrorKind::QuotaExceeded.into()),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

/// Joins the port of this process, which is a host.
pub fn join() -> Arc<Port> {
    let (kind, header, fds) = receive(io::stdin()).unwrap();
    assert_eq!(kind, kind::PORT);
    let parts = PortDescriptor::from_message(header.try_into().unwrap(), fds).unwrap();
    Port::join(parts, Box::new(SocketExporter(Mutex::default()))).unwrap()
}
