//! [`RpcClient`]: one request and reply at a time, on a connection without another receiver. Used until a device
//! is open, and for administration.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags};
use time::Nanos;

use super::error::{RemoteDeviceError, RemovalReason};
use share_proto::Message;
use share_proto::Packet;
use share_proto::socket::{self, ReceivedPacket};

/// A blocking client.
#[derive(Debug)]
pub(super) struct RpcClient {
    socket: OwnedFd,
    serial: u32,
    /// Timeout of each reply.
    timeout: Nanos,
    /// Whether the server grants administration to the user.
    pub(super) admin: bool,
}

impl RpcClient {
    /// Connects and sends `Hello`; each reply may take `timeout`, which is more than 0.
    pub(super) fn connect(path: &Path, timeout: Nanos) -> Result<RpcClient, RemoteDeviceError> {
        let within = Duration::from_nanos(timeout.0.max(1));
        let socket =
            socket::connect_timeout(path, within).map_err(|source| match source.kind() {
                io::ErrorKind::WouldBlock => {
                    RemoteDeviceError::Timeout { what: "connecting", timeout }
                }
                _ => RemoteDeviceError::Connect { path: path.to_path_buf(), source },
            })?;
        let mut asker = RpcClient { socket, serial: 0, timeout, admin: false };
        match asker.call(Message::Hello, &[], 0)? {
            (Message::Welcome { admin, .. }, _) => asker.admin = admin,
            (answer, _) => {
                return Err(RemoteDeviceError::UnexpectedReply { reply: answer.title() });
            }
        }
        Ok(asker)
    }

    /// Sends a request and returns its reply, with at most `most` descriptors.
    pub(super) fn call(
        &mut self,
        message: Message,
        descriptors: &[BorrowedFd<'_>],
        most: usize,
    ) -> Result<(Message, Vec<OwnedFd>), RemoteDeviceError> {
        self.serial += 1;
        let (what, timeout) = (message.title(), self.timeout);
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::WouldBlock => RemoteDeviceError::Timeout { what, timeout },
            _ => RemoteDeviceError::Io(error),
        };
        let packet = Packet { serial: self.serial, message };
        // A server that has closed the connection may have sent the reason before.
        let sent = socket::send(&self.socket, &packet, descriptors, SendFlags::empty());
        if let Err(error) = &sent
            && error.kind() == io::ErrorKind::WouldBlock
        {
            return Err(RemoteDeviceError::Timeout { what, timeout });
        }
        loop {
            let received = socket::receive(&self.socket, most, RecvFlags::empty());
            return match (received.map_err(failed)?, &sent) {
                (ReceivedPacket::Malformed(error), _) => Err(error.into()),
                (ReceivedPacket::Closed, Err(e)) if e.kind() != io::ErrorKind::BrokenPipe => {
                    Err(RemoteDeviceError::Io(e.kind().into()))
                }
                (ReceivedPacket::Closed, _) => Err(RemovalReason::ServerDied.into()),
                (ReceivedPacket::Packet(Packet { message, serial }, descriptors), _) => {
                    match message {
                        Message::Refused(refusal) => Err(refusal.into()),
                        Message::Disconnect(refusal) => {
                            Err(RemovalReason::Disconnected(refusal).into())
                        }
                        // A reply to an earlier request that timed out.
                        _ if serial != self.serial => continue,
                        message => Ok((message, descriptors)),
                    }
                }
            };
        }
    }

    /// Returns the socket for another receiver, without a receive timeout.
    pub(super) fn into_socket(self) -> Result<OwnedFd, RemoteDeviceError> {
        let set = set_socket_timeout(&self.socket, Timeout::Recv, None);
        set.map_err(|e| RemoteDeviceError::Io(e.into()))?;
        Ok(self.socket)
    }
}

impl AsFd for RpcClient {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
