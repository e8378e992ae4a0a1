//! [`Asker`]: one question at a time over a connection that nobody else receives from: until a device
//! is open, and for administrators.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags};

use super::message::Message;
use super::refusal::{Gone, ServedError};
use super::socket::{self, Received};
use super::wire::Packet;

/// How long a server may take for an answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// Asks and waits.
#[derive(Debug)]
pub(super) struct Asker {
    socket: OwnedFd,
    serial: u32,
    /// Whether the server says that the user may administrate.
    pub(super) admin: bool,
}

impl Asker {
    /// Connects, and greets.
    pub(super) fn connect(path: &Path) -> Result<Asker, ServedError> {
        let refused = |source| ServedError::Connect { path: path.to_path_buf(), source };
        let socket = socket::connect(path).map_err(refused)?;
        for which in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&socket, which, Some(PATIENCE)).map_err(|e| refused(e.into()))?;
        }
        let mut asker = Asker { socket, serial: 0, admin: false };
        match asker.ask(Message::Hello, &[], 0)? {
            (Message::Welcome { admin, .. }, _) => asker.admin = admin,
            (answer, _) => return Err(ServedError::Answer { answer: answer.title() }),
        }
        Ok(asker)
    }

    /// The answer, with `most` descriptors at most.
    pub(super) fn ask(
        &mut self,
        message: Message,
        descriptors: &[BorrowedFd<'_>],
        most: usize,
    ) -> Result<(Message, Vec<OwnedFd>), ServedError> {
        self.serial += 1;
        let packet = Packet { serial: self.serial, message };
        // A server that has hung up may have said why before.
        let sent = socket::send(&self.socket, &packet, descriptors, SendFlags::empty());
        loop {
            let received = socket::receive(&self.socket, most, RecvFlags::empty());
            return match (received.map_err(ServedError::Ask)?, &sent) {
                (Received::Wrong(error), _) => Err(error.into()),
                (Received::Closed, Err(e)) if e.kind() != io::ErrorKind::BrokenPipe => {
                    Err(ServedError::Ask(e.kind().into()))
                }
                (Received::Closed, _) => Err(Gone::Died.into()),
                (Received::Packet(Packet { message, serial }, descriptors), _) => match message {
                    Message::Refused(refusal) => Err(refusal.into()),
                    Message::Ending(refusal) => Err(Gone::Ended(refusal).into()),
                    // To a question that was given up.
                    _ if serial != self.serial => continue,
                    message => Ok((message, descriptors)),
                },
            };
        }
    }

    /// The connection, for who receives from now on; without the time-outs.
    pub(super) fn into_socket(self) -> Result<OwnedFd, ServedError> {
        for which in [Timeout::Recv, Timeout::Send] {
            let set = set_socket_timeout(&self.socket, which, None);
            set.map_err(|e| ServedError::Ask(e.into()))?;
        }
        Ok(self.socket)
    }
}

impl AsFd for Asker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
