//! The end of a server's run: the last flush, and polls for the other servers of the group until they have
//! flushed as well.

use std::io;

use block::{BlockDevice, Request};
use event::{IdlePolicy, IdleWait, RealClock};
use time::{Component, Nanos};

use crate::server::NbdServer;

/// The last flush of a server.
#[derive(Debug, Default)]
struct LastFlush {
    is_submitted: bool,
    /// `None` until it completes.
    result: Option<io::Result<()>>,
}

impl<D: BlockDevice> NbdServer<D> {
    /// Drops all clients and completes the requests in flight, after the sockets have failed.
    pub(super) fn abandon_clients(&mut self, clock: RealClock, with: &mut dyn Component) {
        self.begin_stop(clock.now());
        for id in self.connections.ids() {
            if let Some(c) = self.connections.take(id) {
                self.drop_client(c, "the server failed");
            }
        }
        while !self.in_flight.is_empty() {
            if !self.poll_once(clock.now(), clock, with) {
                std::thread::yield_now();
            }
        }
    }

    /// Flushes the device, and polls it until every server of the group has flushed.
    pub(super) fn end_run(
        &mut self,
        clock: RealClock,
        idle: IdlePolicy,
        with: &mut dyn Component,
    ) -> io::Result<()> {
        let mut wait = IdleWait::new(idle);
        let mut flush = LastFlush::default();
        loop {
            let now = clock.now();
            let moved = self.poll_end(now, with, &mut flush);
            if flush.result.is_some() && self.group.have_all_finished() {
                break;
            }
            if moved {
                wait.reset();
                continue;
            }
            if wait.must_spin(now, || self.device.deadline().min(with.deadline())) {
                std::hint::spin_loop();
                continue;
            }
            self.parker.prepare();
            if self.poll_end(clock.now(), with, &mut flush) || self.group.have_all_finished() {
                self.parker.unpark();
                wait.reset();
                continue;
            }
            let now = clock.now();
            let deadline = self.device.deadline().min(with.deadline());
            if self.parker.park(&[], wait.park_timeout(now, deadline)).is_err() {
                // The other servers need this queue polled, also without sleep.
                std::thread::yield_now();
            }
            wait.reset();
        }
        // No server gives clients to another any more.
        self.group.discard_assigned();
        self.counters.memory_bytes.set(self.pool.in_use());
        flush.result.unwrap_or(Ok(()))
    }

    /// Polls the device, which has no request but the last flush. Returns whether there was
    /// progress.
    fn poll_end(&mut self, now: Nanos, with: &mut dyn Component, flush: &mut LastFlush) -> bool {
        let mut moved = false;
        if self.group.has_assigned() {
            self.group.discard_assigned();
        }
        if !flush.is_submitted {
            flush.is_submitted = self.device.submit(now, Request::flush(u64::MAX)).is_ok();
            moved |= flush.is_submitted;
        }
        moved |= self.device.poll(now);
        moved |= with.poll(now);
        if let Some(completion) = self.device.reap() {
            moved = true;
            flush.result = Some(if completion.status.is_success() {
                Ok(())
            } else {
                Err(io::Error::other(format!("the last flush failed: {}", completion.status)))
            });
            self.group.finish();
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use testkit::memory_device::MemoryDevice;

    use super::*;
    use crate::{Endpoint, NbdConfig};

    struct NoDrive;

    impl Component for NoDrive {
        fn poll(&mut self, _: Nanos) -> bool {
            false
        }
        fn deadline(&self) -> Nanos {
            Nanos::MAX
        }
    }

    /// A server whose sockets fail ends the others of its group, closes its clients, and is the only
    /// one with an error.
    #[test]
    fn a_server_whose_sockets_fail_ends_the_group() {
        for failing in 0..2 {
            let dir = tempfile::tempdir().expect("a folder");
            let path = dir.path().join("s");
            let devices = vec![MemoryDevice::new(64), MemoryDevice::new(64)];
            let endpoints = [Endpoint::Unix(path.clone())];
            let config = NbdConfig::default();
            let mut servers = NbdServer::group(devices, &endpoints, config).expect("a group");
            let (clock, stop) = (RealClock::start(), AtomicBool::new(false));
            // No epoll descriptor: the next poll of the sockets fails.
            let (broken, _other) = UnixStream::pair().expect("sockets");
            servers[failing].sockets.epoll = OwnedFd::from(broken);
            let run = |server: &mut NbdServer<MemoryDevice>| {
                server.run(clock, IdlePolicy::default(), &mut NoDrive, &stop)
            };
            let results: Vec<_> = thread::scope(|scope| {
                let threads = servers.iter_mut().map(|server| scope.spawn(|| run(server)));
                let threads: Vec<_> = threads.collect();
                threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
            });
            for (index, result) in results.iter().enumerate() {
                assert_eq!(result.is_err(), index == failing, "{result:?}");
            }
            assert!(!path.exists(), "nothing listens");
            let flushes = servers.into_iter().map(|server| server.into_device().durable);
            assert_eq!(flushes.collect::<Vec<_>>(), [1, 1]);
        }
    }
}
