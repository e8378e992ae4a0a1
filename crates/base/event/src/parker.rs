//! [`Parker`] and [`Waker`]: an idle runner parks, and a doorbell wakes it.
//!
//! A doorbell costs one load if the runner spins, and one system call if it is parked. The protocol
//! is that of a futex. The sleeper sets `parked`, checks for work once more, and then blocks. The
//! waker publishes its work, and then reads `parked`. Both sides execute a sequentially consistent
//! fence between their two steps, so that at least one sees the other. Of several wakers in this
//! process, only the first makes the system call: it clears the flag.
//!
//! A waker in another process has a [`RemoteWaker`](crate::RemoteWaker): a flag of its own in
//! shared memory, and a socket. The protocol is the same.

// guarantee: A-09

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::{fmt, io};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::net::SendFlags;

use crate::remote_waker::RemoteWakers;
use crate::{ParkedFlag, ParkedFlagReader, RemoteWaker};
use time::Nanos;

#[derive(Debug)]
pub(crate) struct ParkerState {
    parked: AtomicBool,
    event: OwnedFd,
    /// Wakers in other processes; allocated for the first one.
    remotes: OnceLock<RemoteWakers>,
}

impl ParkerState {
    pub(crate) fn is_parked(&self) -> bool {
        self.parked.load(Ordering::Relaxed)
    }

    pub(crate) fn remotes(&self) -> Option<&RemoteWakers> {
        self.remotes.get()
    }

    #[cold]
    fn signal(&self) {
        // A full counter already wakes the runner; a valid eventfd has no other write error.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }
}

/// The sleeper's side: one per runner.
#[derive(Debug)]
pub struct Parker {
    shared: Arc<ParkerState>,
}

/// The waker's side, which can be cloned.
#[derive(Clone, Debug)]
pub struct Waker {
    target: WakerTarget,
}

#[derive(Clone, Debug)]
enum WakerTarget {
    Local(Arc<ParkerState>),
    Remote(Arc<RemoteTarget>),
    Function(Arc<FunctionTarget>),
}

/// A function that is called instead of waking a sleeper.
struct FunctionTarget {
    call: Box<dyn Fn() + Send + Sync>,
    /// For [`AsFd`] alone.
    event: OwnedFd,
}

impl fmt::Debug for FunctionTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FunctionTarget").finish_non_exhaustive()
    }
}

/// A sleeper in another process.
#[derive(Debug)]
struct RemoteTarget {
    parked: Box<dyn ParkedFlagReader>,
    socket: Arc<OwnedFd>,
}

impl Parker {
    /// Creates a parker that is not parked.
    ///
    /// # Errors
    /// The error that `eventfd(2)` returns, usually the limit of open files.
    pub fn new() -> io::Result<Parker> {
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (parked, links) = (AtomicBool::new(false), OnceLock::new());
        Ok(Parker { shared: Arc::new(ParkerState { parked, event, remotes: links }) })
    }

    /// Returns a waker for this parker.
    pub fn waker(&self) -> Waker {
        Waker { target: WakerTarget::Local(self.shared.clone()) }
    }

    /// Announces that the runner is about to park. The caller must check for work once more and, if
    /// there is some, call [`unpark`](Parker::unpark) instead of parking.
    pub fn prepare(&self) {
        self.shared.parked.store(true, Ordering::Relaxed);
        if let Some(links) = self.shared.remotes.get() {
            links.set_parked(true);
        }
        fence(Ordering::SeqCst);
    }

    /// Withdraws [`prepare`](Parker::prepare) and discards a wake-up that arrived in the meantime.
    pub fn unpark(&self) {
        self.shared.parked.store(false, Ordering::Relaxed);
        if let Some(links) = self.shared.remotes.get() {
            links.set_parked(false);
            links.drain();
        }
        let mut buf = [0u8; 8];
        // Usually there is nothing to read; the descriptor is non-blocking.
        let _ = rustix::io::read(&self.shared.event, &mut buf);
    }

    /// Parks until woken, until one of `others` is readable, or for at most `timeout`
    /// ([`Nanos::MAX`]: no limit); then unparks.
    ///
    /// # Errors
    /// The error that `ppoll(2)` returns; an interruption by a signal counts as a wake-up.
    pub fn park(&self, others: &[BorrowedFd<'_>], timeout: Nanos) -> io::Result<()> {
        let mut fds = Vec::with_capacity(others.len() + 2);
        fds.push(PollFd::new(&self.shared.event, PollFlags::IN));
        if let Some(links) = self.shared.remotes.get() {
            fds.push(PollFd::from_borrowed_fd(links.as_fd(), PollFlags::IN));
        }
        fds.extend(others.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)));
        let limit = (timeout != Nanos::MAX).then_some(Timespec {
            tv_sec: (timeout.0 / 1_000_000_000) as i64,
            tv_nsec: (timeout.0 % 1_000_000_000) as i64,
        });
        let result = rustix::event::poll(&mut fds, limit.as_ref());
        self.unpark();
        match result {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

impl AsFd for Parker {
    /// Returns the eventfd, for a caller that waits in its own `epoll`. Wakers in other processes
    /// do not write to it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.event.as_fd()
    }
}

impl Waker {
    /// Creates the waker of a sleeper in another process. The sleeper sets the flag that `parked`
    /// reads while it is parked, and is woken by a byte on `link`, a socket whose other end it
    /// passed to [`add_remote`](Waker::add_remote).
    pub fn remote(parked: Box<dyn ParkedFlagReader>, link: Arc<OwnedFd>) -> Waker {
        Waker { target: WakerTarget::Remote(Arc::new(RemoteTarget { parked, socket: link })) }
    }

    /// Returns a waker that calls a function each time that it wakes: for an emulated device whose
    /// interrupts no thread of this machine waits for.
    ///
    /// # Errors
    /// The error that `eventfd(2)` returns, usually the limit of open files.
    pub fn calling(call: impl Fn() + Send + Sync + 'static) -> io::Result<Waker> {
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let target = FunctionTarget { call: Box::new(call), event };
        Ok(Waker { target: WakerTarget::Function(Arc::new(target)) })
    }

    /// Wakes the runner if it is parked. Callers publish their work first.
    #[inline]
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        match &self.target {
            WakerTarget::Local(shared) => {
                // The waker that clears the flag sends the only signal. A sleeper that parks again
                // sets the flag and then checks for work, so it sees the work of the other wakers.
                if shared.is_parked() && shared.parked.swap(false, Ordering::Relaxed) {
                    shared.signal();
                }
            }
            WakerTarget::Remote(far) => {
                if far.parked.is_set() {
                    far.signal();
                }
            }
            WakerTarget::Function(function) => (function.call)(),
        }
    }

    /// Allows another process to wake the runner until the returned value is dropped. A byte that
    /// arrives on `link`, one end of a socket pair, wakes the runner. The runner sets `parked`
    /// while it is parked; it may be parked already.
    ///
    /// # Errors
    /// The error of `epoll_create1(2)` or `epoll_ctl(2)`; `Unsupported` for the waker of a sleeper
    /// in another process.
    pub fn add_remote(
        &self,
        link: Arc<OwnedFd>,
        parked: Box<dyn ParkedFlag>,
    ) -> io::Result<RemoteWaker> {
        let WakerTarget::Local(shared) = &self.target else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let links = match shared.remotes.get() {
            Some(links) => links,
            None => {
                let new = RemoteWakers::new()?;
                shared.remotes.get_or_init(|| new)
            }
        };
        let id = links.add(link, parked, || shared.is_parked())?;
        // A parked runner does not wait on its first socket yet: make it park again.
        shared.signal();
        Ok(RemoteWaker::new(shared.clone(), id))
    }
}

impl RemoteTarget {
    #[cold]
    fn signal(&self) {
        // The flags are per call, because the other process may share the file status flags. A full
        // socket already wakes the peer, and a closed one has no peer.
        let _ = rustix::net::send(&self.socket, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}

impl AsFd for Waker {
    /// Returns the parker's eventfd, for a kernel that writes to it (io_uring, interrupts of a real
    /// device). The kernel writes even if the runner is not parked, so a later park can end once
    /// without cause. For a sleeper in another process, returns the socket; for a function, an
    /// eventfd whose writes do not call it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.target {
            WakerTarget::Local(shared) => shared.event.as_fd(),
            WakerTarget::Remote(far) => far.socket.as_fd(),
            WakerTarget::Function(function) => function.event.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn a_wake_between_prepare_and_park_is_not_lost() {
        let parker = Parker::new().unwrap();
        parker.prepare();
        parker.waker().wake();
        parker.park(&[], Nanos::MAX).unwrap();
    }

    #[test]
    fn a_wake_on_a_spinning_runner_leaves_nothing_behind() {
        let parker = Parker::new().unwrap();
        parker.waker().wake();
        parker.prepare();
        let before = std::time::Instant::now();
        parker.park(&[], Nanos::from_millis(5)).unwrap();
        assert!(before.elapsed().as_millis() >= 4, "slept for the whole timeout");
    }

    #[test]
    fn many_wakes_of_one_sleep_are_one_signal() {
        let parker = Parker::new().unwrap();
        for round in 0..3 {
            parker.prepare();
            (0..5).for_each(|_| parker.waker().wake());
            let mut count = [0u8; 8];
            rustix::io::read(&parker.shared.event, &mut count).unwrap();
            assert_eq!(u64::from_ne_bytes(count), 1, "round {round}");
            parker.unpark();
        }
    }

    #[test]
    fn a_function_is_called_at_each_wake() {
        let calls = Arc::new(AtomicU64::new(0));
        let counted = calls.clone();
        let waker = Waker::calling(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        let waker = waker.unwrap();
        waker.wake();
        waker.clone().wake();
        assert_eq!(calls.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn nothing_is_lost_when_many_wake_one() {
        const EACH: u64 = 5_000;
        let parker = Parker::new().unwrap();
        let published: Arc<[AtomicU64; 4]> = Arc::default();
        let wakers: Vec<_> = (0..4)
            .map(|which| {
                let (waker, published) = (parker.waker(), published.clone());
                std::thread::spawn(move || {
                    for n in 1..=EACH {
                        published[which].store(n, Ordering::Release);
                        waker.wake();
                        if n % 64 == which as u64 {
                            std::thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        let seen = || published.iter().map(|n| n.load(Ordering::Acquire)).sum::<u64>();
        let mut last = 0;
        while last < 4 * EACH {
            parker.prepare();
            let now = seen();
            match now > last {
                true => parker.unpark(),
                // No timeout: if a wake-up is lost, the test hangs.
                false => parker.park(&[], Nanos::MAX).unwrap(),
            }
            last = seen();
        }
        wakers.into_iter().for_each(|waker| waker.join().unwrap());
    }

    #[test]
    fn no_hand_over_is_lost_between_two_threads() {
        const ROUNDS: u64 = 20_000;
        let (ping, pong) = (Parker::new().unwrap(), Parker::new().unwrap());
        let (wake_ping, wake_pong) = (ping.waker(), pong.waker());
        let turn = Arc::new(AtomicU64::new(0));
        let await_turn = |parker: &Parker, turn: &AtomicU64, n: u64| {
            while turn.load(Ordering::Acquire) < n {
                parker.prepare();
                if turn.load(Ordering::Acquire) >= n {
                    parker.unpark();
                    break;
                }
                parker.park(&[], Nanos::MAX).unwrap();
            }
        };
        let theirs = turn.clone();
        let other = std::thread::spawn(move || {
            for round in 0..ROUNDS {
                await_turn(&pong, &theirs, 2 * round + 1);
                theirs.store(2 * round + 2, Ordering::Release);
                wake_ping.wake();
            }
        });
        for round in 0..ROUNDS {
            turn.store(2 * round + 1, Ordering::Release);
            wake_pong.wake();
            await_turn(&ping, &turn, 2 * round + 2);
        }
        other.join().unwrap();
        assert_eq!(turn.load(Ordering::Acquire), 2 * ROUNDS);
    }
}
