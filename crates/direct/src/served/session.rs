//! [`Session`]: a connection with a part of a drive open, on the client's side.
//!
//! What goes over it after the opening is memory that the client registers ([`HandOver`]): commands
//! and data do not. Guarantee: whoever asks gets an answer, a refusal, or the news that the server is
//! gone; nobody waits for ever.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use clock::Nanos;
use ring::{HandOver, Parts, Port, Region};
use rustix::net::{SendFlags, Shutdown};

use super::ask::Asker;
use super::life::{Life, watch};
use super::message::{Granted, Message};
use super::refusal::{Gone, ServedError};
use super::socket;
use super::wire::Packet;

/// A connection with a part of a drive open. Closed when it is dropped, and everything that it had
/// registered and made is gone with it.
#[derive(Debug)]
pub(crate) struct Session {
    socket: Arc<OwnedFd>,
    pub(crate) granted: Granted,
    life: Arc<Life>,
    /// One question at a time.
    asking: Mutex<Asking>,
    /// Why the server did not take the last region that it did not: `ring` carries only the kind.
    untaken: Mutex<Option<ServedError>>,
    /// How long the server may take for an answer.
    timeout: Nanos,
    watcher: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Asking {
    serial: u32,
    answers: Receiver<Packet>,
}

impl Session {
    /// Opens, as `open` says, and puts the port together.
    pub(super) fn open(
        mut asker: Asker,
        open: Message,
        timeout: Nanos,
    ) -> Result<(Arc<Session>, Arc<Port>), ServedError> {
        let (answer, descriptors) = asker.ask(open, &[], Parts::MAX_DESCRIPTORS)?;
        let Message::Granted(granted) = answer else {
            return Err(ServedError::Answer { answer: answer.title() });
        };
        let parts = Parts::from_message(granted.port, descriptors)?;
        let socket = Arc::new(asker.into_socket()?);
        let (life, (sender, answers)) = (Arc::new(Life::default()), channel());
        let (theirs, seen) = (socket.clone(), life.clone());
        let watcher = std::thread::Builder::new()
            .name("sluice-watch".into())
            .spawn(move || watch(&theirs, &seen, &sender))
            .map_err(ServedError::Ask)?;
        // Questions before the port's had smaller numbers.
        let asking = Mutex::new(Asking { serial: 1 << 16, answers });
        let (untaken, watcher) = (Mutex::default(), Some(watcher));
        let session =
            Arc::new(Session { socket, granted, life, asking, untaken, timeout, watcher });
        let port = Port::join(parts, Box::new(Courier(session.clone())))?;
        Ok((session, port))
    }

    pub(crate) fn life(&self) -> &Arc<Life> {
        &self.life
    }

    /// Why the server did not take the last region, once.
    pub(crate) fn take_untaken(&self) -> Option<ServedError> {
        self.untaken.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Lets the server map a region.
    fn register(&self, slot: usize, region: &Region) -> Result<(), ServedError> {
        let memory = region.backing().ok_or(io::ErrorKind::InvalidInput);
        let memory = memory.map_err(|kind| ServedError::Ask(kind.into()))?;
        let mut asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        asking.serial = asking.serial.wrapping_add(1);
        let serial = asking.serial;
        let message = Message::Register { slot: slot as u32, bytes: region.len() as u64 };
        let gone = || ServedError::Gone(self.life.why().unwrap_or(Gone::Died));
        let packet = Packet { serial, message };
        let sent = socket::send(&*self.socket, &packet, &[memory.as_fd()], SendFlags::empty());
        let (what, timeout) = (packet.message.title(), self.timeout);
        let unanswered = ServedError::Unanswered { what, timeout };
        match sent {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(unanswered),
            Err(_) => return Err(gone()),
        }
        loop {
            match asking.answers.recv_timeout(Duration::from_nanos(timeout.0)) {
                Ok(packet) if packet.serial != serial => {}
                Ok(Packet { message: Message::Done { .. }, .. }) => return Ok(()),
                Ok(Packet { message: Message::Refused(refusal), .. }) => {
                    return Err(refusal.into());
                }
                Ok(Packet { message, .. }) => {
                    return Err(ServedError::Answer { answer: message.title() });
                }
                Err(RecvTimeoutError::Disconnected) => return Err(gone()),
                Err(RecvTimeoutError::Timeout) => return Err(unanswered),
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The thread is woken by it, and the server. One that is gone need not be told.
        let _ = rustix::net::shutdown(&*self.socket, Shutdown::Both);
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
    }
}

/// Hands the client's memory over.
#[derive(Debug)]
struct Courier(Arc<Session>);

impl HandOver for Courier {
    fn hand_over(&self, slot: usize, region: &Region) -> io::Result<()> {
        self.0.register(slot, region).map_err(|error| {
            let kind = match &error {
                ServedError::Refused(_) => io::ErrorKind::QuotaExceeded,
                ServedError::Unanswered { .. } => io::ErrorKind::TimedOut,
                ServedError::Gone(_) => io::ErrorKind::BrokenPipe,
                ServedError::Ask(source) => source.kind(),
                _ => return io::Error::other(error),
            };
            if matches!(error, ServedError::Refused(_) | ServedError::Unanswered { .. }) {
                let mut last = self.0.untaken.lock().unwrap_or_else(PoisonError::into_inner);
                *last = Some(error);
            }
            kind.into()
        })
    }
}
