//! Packets with descriptors over a Unix socket (`unix(7)`: `SOCK_SEQPACKET`, `SCM_RIGHTS`).
//!
//! A packet is whole or it is refused: one that is longer than the longest message, or that brings
//! more descriptors than were expected, is an error, and its descriptors are closed.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use super::wire::{MESSAGE_BYTES_MAX, Packet, WireError};

/// Something came, or did not.
#[derive(Debug)]
pub enum ReceivedPacket {
    /// A message.
    Packet(Packet, Vec<OwnedFd>),
    /// Something that is none.
    Malformed(WireError),
    /// The other side has closed.
    Closed,
}

/// A socket for packets, which no child inherits.
///
/// # Errors
/// What `socket(2)` returns.
pub fn socket() -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    Ok(rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?)
}

/// A connection to a server.
///
/// # Errors
/// What `connect(2)` returns: `NotFound` and `ConnectionRefused` when there is no server,
/// `PermissionDenied` when the socket's mode keeps us out.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    connect_from(socket()?, path)
}

/// The same, where neither connecting nor any packet from then on takes longer than that, each.
///
/// # Errors
/// As [`connect`]; `WouldBlock` from a server that accepts nobody in time.
pub fn connect_timeout(path: &Path, timeout: Duration) -> io::Result<OwnedFd> {
    let socket = socket()?;
    for which in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&socket, which, Some(timeout))?;
    }
    connect_from(socket, path)
}

fn connect_from(socket: OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Sends a packet.
///
/// # Errors
/// What `sendmsg(2)` returns.
pub fn send(
    socket: impl AsFd,
    packet: &Packet,
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<()> {
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    send_bytes(socket, packet.encode(&mut bytes), descriptors, flags)
}

/// Sends any bytes as a packet.
///
/// # Errors
/// What `sendmsg(2)` returns; `InvalidInput` for more descriptors than a packet carries.
pub fn send_bytes(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<()> {
    let room = rustix::cmsg_space!(ScmRights(descriptors.len()));
    let mut space = vec![MaybeUninit::uninit(); room];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = flags | SendFlags::NOSIGNAL;
    loop {
        let sent =
            rustix::net::sendmsg(socket.as_fd(), &[IoSlice::new(bytes)], &mut control, flags);
        match sent {
            Err(rustix::io::Errno::INTR) => {}
            sent => return Ok(sent.map(drop)?),
        }
    }
}

/// Waits for a packet, with `most` descriptors at most.
///
/// # Errors
/// What `recvmsg(2)` returns: `WouldBlock` for what has not come in time.
pub fn receive(socket: impl AsFd, most: usize, flags: RecvFlags) -> io::Result<ReceivedPacket> {
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(most + 1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; MESSAGE_BYTES_MAX + 1];
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let mut reset = false;
    let received = loop {
        let mut into = [IoSliceMut::new(&mut bytes)];
        match rustix::net::recvmsg(socket.as_fd(), &mut into, &mut control, flags) {
            Err(rustix::io::Errno::INTR) => {}
            // It has closed without reading all that it was sent; what it said before comes next.
            Err(rustix::io::Errno::CONNRESET) if !reset => reset = true,
            Err(rustix::io::Errno::CONNRESET) => return Ok(ReceivedPacket::Closed),
            received => break received?,
        }
    };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.bytes == 0 && descriptors.is_empty() {
        return Ok(ReceivedPacket::Closed);
    }
    let found = descriptors.len();
    if received.flags.contains(ReturnFlags::CTRUNC) || found > most {
        return Ok(ReceivedPacket::Malformed(WireError::Descriptors { found }));
    }
    // One that is too long has lost its end: its length is not what its kind's is.
    Ok(match Packet::decode(&bytes[..received.bytes.min(bytes.len())]) {
        Ok(packet) => ReceivedPacket::Packet(packet, descriptors),
        Err(error) => ReceivedPacket::Malformed(error),
    })
}
