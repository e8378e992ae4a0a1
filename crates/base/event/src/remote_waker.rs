//! [`RemoteWaker`]: a waker in another process, as the sleeper sees it.
//!
//! A remote waker is one end of a socket pair, and a flag in memory that both processes map. Each
//! process has its own open file description. Whatever the other process does to its end, a write
//! to this end does not block, and no other waker depends on it. An eventfd would have one
//! description for both: a peer could make its writer block, and could consume a wake-up.
//!
//! Invariants: a byte sent after the sleeper has set its flags ends its sleep. A peer that closes
//! or fills its end ends one sleep only (edge-triggered). A dropped remote waker leaves nothing
//! behind. Parking costs one store per remote waker.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::net::RecvFlags;

use crate::parker::ParkerState;

/// A flag that tells another process whether a runner is parked: the sleeper's side.
pub trait ParkedFlag: fmt::Debug + Send + Sync {
    /// Sets whether the sleeper is parked or about to park. A fence follows.
    fn set(&self, up: bool);
}

/// A flag that tells whether a runner in another process is parked: the waker's side, possibly
/// read-only.
pub trait ParkedFlagReader: fmt::Debug + Send + Sync {
    /// Whether the sleeper is parked. A fence precedes.
    fn is_set(&self) -> bool;
}

/// The connection of a waker in another process, until it is dropped; see
/// [`Waker::add_remote`](crate::Waker::add_remote).
#[derive(Debug)]
pub struct RemoteWaker {
    shared: Arc<ParkerState>,
    id: u64,
}

impl RemoteWaker {
    pub(crate) fn new(shared: Arc<ParkerState>, id: u64) -> RemoteWaker {
        RemoteWaker { shared, id }
    }
}

impl Drop for RemoteWaker {
    fn drop(&mut self) {
        if let Some(links) = self.shared.remotes() {
            links.remove(self.id);
        }
    }
}

/// All remote wakers of one sleeper.
#[derive(Debug)]
pub(crate) struct RemoteWakers {
    epoll: OwnedFd,
    members: Mutex<RemoteEntries>,
}

#[derive(Debug, Default)]
struct RemoteEntries {
    list: Vec<RemoteEntry>,
    next: u64,
}

#[derive(Debug)]
struct RemoteEntry {
    id: u64,
    socket: Arc<OwnedFd>,
    parked: Box<dyn ParkedFlag>,
}

/// Maximum number of wake-ups drained at once; further ones end the next sleep.
const DRAIN_EVENTS_MAX: usize = 32;

impl RemoteWakers {
    pub(crate) fn new() -> io::Result<RemoteWakers> {
        Ok(RemoteWakers { epoll: epoll::create(CreateFlags::CLOEXEC)?, members: Mutex::default() })
    }

    fn members(&self) -> MutexGuard<'_, RemoteEntries> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(
        &self,
        socket: Arc<OwnedFd>,
        parked: Box<dyn ParkedFlag>,
        is_parked: impl FnOnce() -> bool,
    ) -> io::Result<u64> {
        let mut members = self.members();
        let id = members.next;
        members.next += 1;
        let flags = EventFlags::IN | EventFlags::ET;
        epoll::add(&self.epoll, &socket, EventData::new_u64(id), flags)?;
        // Under the lock: a sleeper that parks now sets the flag again.
        parked.set(is_parked());
        members.list.push(RemoteEntry { id, socket, parked });
        Ok(id)
    }

    fn remove(&self, id: u64) {
        let mut members = self.members();
        if let Some(at) = members.list.iter().position(|m| m.id == id) {
            let member = members.list.swap_remove(at);
            // The socket is registered, or it is closed and the kernel has removed it.
            let _ = epoll::delete(&self.epoll, &member.socket);
            member.parked.set(false);
        }
    }

    /// Sets the flags of all remote wakers.
    pub(crate) fn set_parked(&self, up: bool) {
        for member in &self.members().list {
            member.parked.set(up);
        }
    }

    /// Reads the bytes that peers have sent.
    pub(crate) fn drain(&self) {
        let mut events = [const { std::mem::MaybeUninit::<Event>::uninit() }; DRAIN_EVENTS_MAX];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, Some(&now)) else { return };
        if events.is_empty() {
            return;
        }
        let members = self.members();
        for event in events {
            let id = event.data.u64();
            if let Some(member) = members.list.iter().find(|m| m.id == id) {
                // The rest of a flood has no meaning, and does not end another sleep.
                let mut bytes = [0u8; 256];
                let _ = rustix::net::recv(&member.socket, &mut bytes[..], RecvFlags::DONTWAIT);
            }
        }
    }
}

impl AsFd for RemoteWakers {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    use super::*;
    use time::Nanos;

    use crate::{Parker, Waker};

    #[derive(Clone, Debug, Default)]
    struct TestFlag(Arc<AtomicBool>);

    impl ParkedFlag for TestFlag {
        fn set(&self, up: bool) {
            self.0.store(up, Ordering::Relaxed);
        }
    }

    impl ParkedFlagReader for TestFlag {
        fn is_set(&self) -> bool {
            self.0.load(Ordering::Relaxed)
        }
    }

    fn pair() -> (Arc<OwnedFd>, Arc<OwnedFd>) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (a, b) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        (Arc::new(a), Arc::new(b))
    }

    /// Whether the parker stays parked for its whole timeout.
    fn sleeps_full_timeout(parker: &Parker) -> bool {
        let before = std::time::Instant::now();
        parker.prepare();
        parker.park(&[], Nanos::from_millis(20)).unwrap();
        before.elapsed().as_millis() >= 19
    }

    #[test]
    fn a_remote_waker_wakes_only_a_parked_runner() {
        let parker = Parker::new().unwrap();
        let (ours, theirs) = pair();
        let word = TestFlag::default();
        let link = parker.waker().add_remote(ours, Box::new(word.clone())).unwrap();
        let waker = Waker::remote(Box::new(word.clone()), theirs.clone());
        assert!(!sleeps_full_timeout(&parker), "looks again after the first link");
        assert!(!word.is_set());
        waker.wake();
        assert!(sleeps_full_timeout(&parker), "nothing was sent to who was awake");
        parker.prepare();
        assert!(word.is_set());
        waker.wake();
        parker.park(&[], Nanos::MAX).unwrap();
        assert!(!word.is_set());
        assert!(sleeps_full_timeout(&parker), "the wake-up was swallowed");
        drop(link);
        rustix::net::send(&theirs, &[1], rustix::net::SendFlags::NOSIGNAL).unwrap_err();
        assert!(sleeps_full_timeout(&parker));
    }

    #[test]
    fn a_remote_waker_added_while_parked_is_heard() {
        let parker = Parker::new().unwrap();
        let waker = parker.waker();
        let (ours, theirs) = pair();
        let word = TestFlag::default();
        parker.prepare();
        let link = waker.add_remote(ours, Box::new(word.clone())).unwrap();
        assert!(word.is_set(), "the sleeper sleeps already");
        Waker::remote(Box::new(word.clone()), theirs).wake();
        parker.park(&[], Nanos::MAX).unwrap();
        drop(link);
        assert!(!word.is_set());
    }

    #[test]
    fn a_flood_and_a_closed_end_cost_one_sleep_each() {
        let parker = Parker::new().unwrap();
        let (ours, theirs) = pair();
        let _link = parker.waker().add_remote(ours.clone(), Box::new(TestFlag::default())).unwrap();
        parker.unpark();
        while rustix::net::send(&theirs, &[7; 64], rustix::net::SendFlags::DONTWAIT).is_ok() {}
        assert!(!sleeps_full_timeout(&parker));
        assert!(sleeps_full_timeout(&parker), "what is left does not wake again");
        // Sends to a peer that never reads do not block either.
        let up = TestFlag(Arc::new(AtomicBool::new(true)));
        let waker = Waker::remote(Box::new(up), ours);
        (0..10_000).for_each(|_| waker.wake());
        drop(theirs);
        assert!(!sleeps_full_timeout(&parker));
        assert!(sleeps_full_timeout(&parker));
        waker.wake();
    }

    #[test]
    fn dropped_remote_wakers_are_removed() {
        let parker = Parker::new().unwrap();
        let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let (ours, _theirs) = pair();
        drop(parker.waker().add_remote(ours.clone(), Box::new(TestFlag::default())).unwrap());
        let before = descriptors();
        for _ in 0..1_000 {
            let link =
                parker.waker().add_remote(ours.clone(), Box::new(TestFlag::default())).unwrap();
            let twice = parker.waker().add_remote(ours.clone(), Box::new(TestFlag::default()));
            assert!(twice.is_err(), "one link per socket");
            drop(link);
        }
        // Other tests of this process open descriptors as well.
        assert!(descriptors() < before + 100);
        let far = Waker::remote(Box::new(TestFlag::default()), ours.clone());
        let refused = far.add_remote(ours, Box::new(TestFlag::default())).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::Unsupported);
    }
}
