//! [`ServerLiveness`]: whether the server of a remote device is present.
//!
//! A watcher thread of the device sleeps on the socket and is its only receiver; it passes replies
//! to the caller. When the server closes the connection, sends `Disconnect`, or is killed (the
//! kernel then closes its end), the watcher records the reason, sets a flag, and wakes every
//! sleeping handle.
//!
//! A queue checks the flag at each poll. That is one load of a rarely changed cache line and no
//! system call. No request is left waiting for a server that has ended.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use event::Waker;
use rustix::net::RecvFlags;

use super::error::RemovalReason;
use share_proto::Message;
use share_proto::Packet;
use share_proto::socket::{self, ReceivedPacket};

/// Whether the server is present.
#[derive(Debug, Default)]
pub(crate) struct ServerLiveness {
    disconnected: AtomicBool,
    reason: Mutex<Option<RemovalReason>>,
    /// Wakers by waiter id.
    waiters: Mutex<Vec<(u64, Waker)>>,
    next_waiter: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ServerLiveness {
    #[inline]
    pub(crate) fn is_disconnected(&self) -> bool {
        self.disconnected.load(Ordering::Acquire)
    }

    /// Returns why the server was disconnected, or `None` while it is present.
    pub(crate) fn removal_reason(&self) -> Option<RemovalReason> {
        self.is_disconnected()
            .then(|| lock(&self.reason).clone().unwrap_or(RemovalReason::ServerDied))
    }

    /// Allocates a waiter id.
    pub(super) fn new_waiter_id(&self) -> u64 {
        self.next_waiter.fetch_add(1, Ordering::Relaxed)
    }

    /// Sets the waker that a disconnect wakes for this waiter id; `None` removes it.
    pub(crate) fn set_waker(&self, queue: u64, waker: Option<Waker>) {
        let mut sleepers = lock(&self.waiters);
        sleepers.retain(|(of, _)| *of != queue);
        if let Some(waker) = waker {
            if self.is_disconnected() {
                waker.wake();
            }
            sleepers.push((queue, waker));
        }
    }

    fn disconnect(&self, why: RemovalReason) {
        lock(&self.reason).get_or_insert(why);
        self.disconnected.store(true, Ordering::Release);
        for (_, waker) in lock(&self.waiters).iter() {
            waker.wake();
        }
    }
}

/// Body of the watcher thread: receives until the server disconnects.
pub(super) fn watch_socket(socket: &OwnedFd, life: &Arc<ServerLiveness>, answers: &Sender<Packet>) {
    let why = loop {
        match socket::receive(socket, 0, RecvFlags::empty()) {
            Ok(ReceivedPacket::Packet(Packet { message: Message::Disconnect(refusal), .. }, _)) => {
                break RemovalReason::Disconnected(refusal);
            }
            Ok(ReceivedPacket::Packet(packet, _)) => {
                // The caller may have timed out.
                let _ = answers.send(packet);
            }
            Ok(ReceivedPacket::Malformed(error)) => break RemovalReason::Malformed(error),
            Ok(ReceivedPacket::Closed) | Err(_) => break RemovalReason::ServerDied,
        }
    };
    life.disconnect(why);
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use event::Parker;
    use time::Nanos;

    use super::*;
    use share_proto::{Code, ProtocolError};

    fn pair() -> (OwnedFd, OwnedFd) {
        let (family, kind) = (rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET);
        let flags = rustix::net::SocketFlags::CLOEXEC;
        rustix::net::socketpair(family, kind, flags, None).unwrap()
    }

    #[test]
    fn the_end_is_seen_told_and_wakes_who_sleeps() {
        let none = rustix::net::SendFlags::empty();
        for told in [false, true] {
            let (ours, theirs) = pair();
            let life = Arc::new(ServerLiveness::default());
            let (sender, answers) = channel();
            let (seen, socket) = (life.clone(), ours);
            let thread = std::thread::spawn(move || watch_socket(&socket, &seen, &sender));
            let parker = Parker::new().unwrap();
            let queue = life.new_waiter_id();
            life.set_waker(queue, Some(parker.waker()));
            let done = Packet { serial: 7, message: Message::Done { count: 3 } };
            socket::send(&theirs, &done, &[], none).unwrap();
            assert_eq!(answers.recv().unwrap(), done);
            assert!(!life.is_disconnected() && life.removal_reason().is_none());
            parker.prepare();
            let refusal = ProtocolError::new(Code::Kicked, "out");
            if told {
                let packet = Packet { serial: 0, message: Message::Disconnect(refusal.clone()) };
                socket::send(&theirs, &packet, &[], none).unwrap();
            } else {
                drop(theirs);
            }
            let begin = std::time::Instant::now();
            parker.park(&[], Nanos::from_secs(20)).unwrap();
            assert!(begin.elapsed().as_secs() < 10 && life.is_disconnected());
            let why =
                if told { RemovalReason::Disconnected(refusal) } else { RemovalReason::ServerDied };
            assert_eq!(life.removal_reason(), Some(why));
            // A waiter that registers later is woken at once.
            life.set_waker(queue, None);
            parker.prepare();
            life.set_waker(life.new_waiter_id(), Some(parker.waker()));
            parker.park(&[], Nanos::from_secs(20)).unwrap();
            assert!(begin.elapsed().as_secs() < 10);
            thread.join().unwrap();
        }
    }

    #[test]
    fn nonsense_ends_it_too() {
        let (ours, theirs) = pair();
        let life = Arc::new(ServerLiveness::default());
        socket::send_bytes(&theirs, b"nonsense", &[], rustix::net::SendFlags::empty()).unwrap();
        watch_socket(&ours, &life, &channel().0);
        assert!(matches!(life.removal_reason(), Some(RemovalReason::Malformed(_))));
    }
}
