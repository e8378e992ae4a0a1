//! [`Life`]: whether the server of a device is still there, as everybody sees it who waits for it.
//!
//! A thread of the device's sleeps on the socket, and is the only one that receives: answers go from it
//! to who has asked. When the server closes, says that it ends, or its process is killed (the kernel
//! closes its end then), that thread notes why, raises one flag, and wakes every handle that sleeps
//! for completions. A queue looks at the flag when it is polled: one load of a word that never
//! changes until then, no system call, and no request is left waiting for who is not there.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clock::Waker;
use rustix::net::RecvFlags;

use super::message::Message;
use super::refusal::Gone;
use super::socket::{self, Received};
use super::wire::Packet;

/// Whether the server is there.
#[derive(Debug, Default)]
pub(crate) struct Life {
    gone: AtomicBool,
    why: Mutex<Option<Gone>>,
    /// By queue: who sleeps for its completions.
    sleepers: Mutex<Vec<(u64, Waker)>>,
    next: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Life {
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Why it is over, if it is.
    pub(crate) fn why(&self) -> Option<Gone> {
        self.is_over().then(|| lock(&self.why).clone().unwrap_or(Gone::Died))
    }

    /// A number for a queue.
    pub(super) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// From now on the end wakes this one when it waits for this queue; nobody any more with `None`.
    pub(crate) fn set_sleeper(&self, queue: u64, waker: Option<Waker>) {
        let mut sleepers = lock(&self.sleepers);
        sleepers.retain(|(of, _)| *of != queue);
        if let Some(waker) = waker {
            if self.is_over() {
                waker.wake();
            }
            sleepers.push((queue, waker));
        }
    }

    fn end(&self, why: Gone) {
        lock(&self.why).get_or_insert(why);
        self.gone.store(true, Ordering::Release);
        for (_, waker) in lock(&self.sleepers).iter() {
            waker.wake();
        }
    }
}

/// The thread's work, until the server is gone.
pub(super) fn watch(socket: &OwnedFd, life: &Arc<Life>, answers: &Sender<Packet>) {
    let why = loop {
        match socket::receive(socket, 0, RecvFlags::empty()) {
            Ok(Received::Packet(Packet { message: Message::Ending(refusal), .. }, _)) => {
                break Gone::Ended(refusal);
            }
            Ok(Received::Packet(packet, _)) => {
                // Nobody may wait for it any more.
                let _ = answers.send(packet);
            }
            Ok(Received::Wrong(error)) => break Gone::Nonsense(error),
            Ok(Received::Closed) | Err(_) => break Gone::Died,
        }
    };
    life.end(why);
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use clock::{Nanos, Parker};

    use super::*;
    use crate::served::refusal::{Code, Refusal};

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
            let life = Arc::new(Life::default());
            let (sender, answers) = channel();
            let (seen, socket) = (life.clone(), ours);
            let thread = std::thread::spawn(move || watch(&socket, &seen, &sender));
            let parker = Parker::new().unwrap();
            let queue = life.number();
            life.set_sleeper(queue, Some(parker.waker()));
            let done = Packet { serial: 7, message: Message::Done { count: 3 } };
            socket::send(&theirs, &done, &[], none).unwrap();
            assert_eq!(answers.recv().unwrap(), done);
            assert!(!life.is_over() && life.why().is_none());
            parker.prepare();
            let refusal = Refusal::new(Code::Kicked, "out");
            if told {
                let packet = Packet { serial: 0, message: Message::Ending(refusal.clone()) };
                socket::send(&theirs, &packet, &[], none).unwrap();
            } else {
                drop(theirs);
            }
            let begin = std::time::Instant::now();
            parker.park(&[], Nanos::from_secs(20)).unwrap();
            assert!(begin.elapsed().as_secs() < 10 && life.is_over());
            let why = if told { Gone::Ended(refusal) } else { Gone::Died };
            assert_eq!(life.why(), Some(why));
            // Who comes later is woken at once.
            life.set_sleeper(queue, None);
            parker.prepare();
            life.set_sleeper(life.number(), Some(parker.waker()));
            parker.park(&[], Nanos::from_secs(20)).unwrap();
            assert!(begin.elapsed().as_secs() < 10);
            thread.join().unwrap();
        }
    }

    #[test]
    fn nonsense_ends_it_too() {
        let (ours, theirs) = pair();
        let life = Arc::new(Life::default());
        socket::send_bytes(&theirs, b"nonsense", &[], rustix::net::SendFlags::empty()).unwrap();
        watch(&ours, &life, &channel().0);
        assert!(matches!(life.why(), Some(Gone::Nonsense(_))));
    }
}
