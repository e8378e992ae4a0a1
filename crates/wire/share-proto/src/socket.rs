//! Packets with descriptors over a Unix socket (`unix(7)`: `SOCK_SEQPACKET`, `SCM_RIGHTS`).
//!
//! A packet is accepted as a whole or refused. A packet that exceeds the longest message, or
//! carries more descriptors than expected, is an error, and its descriptors are closed.

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

use crate::wire::{MESSAGE_BYTES_MAX, Packet, WireError};

/// Result of a receive.
#[derive(Debug)]
pub enum ReceivedPacket {
    /// A message.
    Packet(Packet, Vec<OwnedFd>),
    /// A malformed packet.
    Malformed(WireError),
    /// The other side has closed.
    Closed,
}

/// Creates a packet socket with `FD_CLOEXEC`.
///
/// # Errors
/// Those of `socket(2)`.
pub fn socket() -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    Ok(rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?)
}

/// Connects to a server.
///
/// # Errors
/// Those of `connect(2)`: `NotFound` and `ConnectionRefused` without a server, `PermissionDenied`
/// if the mode of the socket denies access.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    connect_from(socket()?, path)
}

/// Connects to a server, with a timeout for the connect and for each later packet.
///
/// # Errors
/// As for [`connect`]; `WouldBlock` if the server does not accept in time.
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
/// Those of `sendmsg(2)`.
pub fn send(
    socket: impl AsFd,
    packet: &Packet,
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<()> {
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    send_bytes(socket, packet.encode(&mut bytes), descriptors, flags)
}

/// Sends arbitrary bytes as a packet.
///
/// # Errors
/// Those of `sendmsg(2)`; `InvalidInput` for more descriptors than a packet can carry.
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

/// Waits for a packet with at most `most` descriptors.
///
/// # Errors
/// Those of `recvmsg(2)`: `WouldBlock` after the timeout.
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
            // The peer closed with unread input; packets that it sent before follow.
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
    // A packet that is too long was truncated, so its length does not match its kind.
    Ok(match Packet::decode(&bytes[..received.bytes.min(bytes.len())]) {
        Ok(packet) => ReceivedPacket::Packet(packet, descriptors),
        Err(error) => ReceivedPacket::Malformed(error),
    })
}
