//! [`ClientSession`]: the client's side of a connection with an open partition.
//!
//! After the open, the connection carries only the memory that the client registers
//! ([`RegistrationExporter`]). Guarantee: every call returns a reply, a refusal, or the removal
//! reason; no call waits forever.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use mem::{RegistrationExporter, SharedRegion};
use rustix::net::{SendFlags, Shutdown};
use time::Nanos;
use transport::{Port, PortDescriptor};

use super::error::{RemoteDeviceError, RemovalReason};
use super::liveness::{ServerLiveness, watch_socket};
use super::rpc_client::RpcClient;
use share_proto::Packet;
use share_proto::socket;
use share_proto::{Message, SessionGrant};

/// A connection with an open partition. Dropping it closes the connection; the server then releases
/// everything that it had registered and created.
#[derive(Debug)]
pub(crate) struct ClientSession {
    socket: Arc<OwnedFd>,
    pub(crate) grant: SessionGrant,
    liveness: Arc<ServerLiveness>,
    /// One call at a time.
    rpc: Mutex<RpcState>,
    /// The last registration error; `ring` carries only its kind.
    register_error: Mutex<Option<RemoteDeviceError>>,
    /// Timeout of each reply.
    timeout: Nanos,
    watcher: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct RpcState {
    serial: u32,
    replies: Receiver<Packet>,
}

impl ClientSession {
    /// Sends `open` and joins the granted port.
    pub(super) fn open(
        mut asker: RpcClient,
        open: Message,
        timeout: Nanos,
    ) -> Result<(Arc<ClientSession>, Arc<Port>), RemoteDeviceError> {
        let (answer, descriptors) = asker.call(open, &[], PortDescriptor::MAX_DESCRIPTORS)?;
        let Message::Granted(granted) = answer else {
            return Err(RemoteDeviceError::UnexpectedReply { reply: answer.title() });
        };
        let parts = PortDescriptor::from_message(granted.port, descriptors)?;
        let socket = Arc::new(asker.into_socket()?);
        let (life, (sender, answers)) = (Arc::new(ServerLiveness::default()), channel());
        let (theirs, seen) = (socket.clone(), life.clone());
        let watcher = std::thread::Builder::new()
            .name("sluice-watch".into())
            .spawn(move || watch_socket(&theirs, &seen, &sender))
            .map_err(RemoteDeviceError::Io)?;
        // Serials of earlier calls were smaller.
        let asking = Mutex::new(RpcState { serial: 1 << 16, replies: answers });
        let (untaken, watcher) = (Mutex::default(), Some(watcher));
        let session = Arc::new(ClientSession {
            socket,
            grant: granted,
            liveness: life,
            rpc: asking,
            register_error: untaken,
            timeout,
            watcher,
        });
        let port = Port::join(parts, Box::new(MemoryRegistrar(session.clone())))?;
        Ok((session, port))
    }

    pub(crate) fn liveness(&self) -> &Arc<ServerLiveness> {
        &self.liveness
    }

    /// Takes the error of the last registration.
    pub(crate) fn take_register_error(&self) -> Option<RemoteDeviceError> {
        self.register_error.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Registers a region with the server.
    fn register(&self, slot: usize, region: &SharedRegion) -> Result<(), RemoteDeviceError> {
        let memory = region.backing().ok_or(io::ErrorKind::InvalidInput);
        let memory = memory.map_err(|kind| RemoteDeviceError::Io(kind.into()))?;
        let mut asking = self.rpc.lock().unwrap_or_else(PoisonError::into_inner);
        asking.serial = asking.serial.wrapping_add(1);
        let serial = asking.serial;
        let message = Message::Register { slot: slot as u32, bytes: region.len() as u64 };
        let gone = || {
            RemoteDeviceError::Removed(
                self.liveness.removal_reason().unwrap_or(RemovalReason::ServerDied),
            )
        };
        let packet = Packet { serial, message };
        let sent = socket::send(&*self.socket, &packet, &[memory.as_fd()], SendFlags::empty());
        let (what, timeout) = (packet.message.title(), self.timeout);
        let unanswered = RemoteDeviceError::Timeout { what, timeout };
        match sent {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(unanswered),
            Err(_) => return Err(gone()),
        }
        loop {
            match asking.replies.recv_timeout(Duration::from_nanos(timeout.0)) {
                Ok(packet) if packet.serial != serial => {}
                Ok(Packet { message: Message::Done { .. }, .. }) => return Ok(()),
                Ok(Packet { message: Message::Refused(refusal), .. }) => {
                    return Err(refusal.into());
                }
                Ok(Packet { message, .. }) => {
                    return Err(RemoteDeviceError::UnexpectedReply { reply: message.title() });
                }
                Err(RecvTimeoutError::Disconnected) => return Err(gone()),
                Err(RecvTimeoutError::Timeout) => return Err(unanswered),
            }
        }
    }
}

impl Drop for ClientSession {
    fn drop(&mut self) {
        // Wakes the watcher thread and the server; fails harmlessly if the server has ended.
        let _ = rustix::net::shutdown(&*self.socket, Shutdown::Both);
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
    }
}

/// Exports the client's registered memory to the server.
#[derive(Debug)]
struct MemoryRegistrar(Arc<ClientSession>);

impl RegistrationExporter for MemoryRegistrar {
    fn export_region(&self, slot: usize, region: &SharedRegion) -> io::Result<()> {
        self.0.register(slot, region).map_err(|error| {
            let kind = match &error {
                RemoteDeviceError::Refused(_) => io::ErrorKind::QuotaExceeded,
                RemoteDeviceError::Timeout { .. } => io::ErrorKind::TimedOut,
                RemoteDeviceError::Removed(_) => io::ErrorKind::BrokenPipe,
                RemoteDeviceError::Io(source) => source.kind(),
                _ => return io::Error::other(error),
            };
            if matches!(error, RemoteDeviceError::Refused(_) | RemoteDeviceError::Timeout { .. }) {
                let mut last = self.0.register_error.lock().unwrap_or_else(PoisonError::into_inner);
                *last = Some(error);
            }
            kind.into()
        })
    }
}
