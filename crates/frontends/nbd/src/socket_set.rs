//! [`SocketSet`]: the listeners of a server, and the epoll set of all its sockets.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll::{self, EventData, EventFlags};

use crate::connection::{Connection, ConnectionId};
use crate::endpoint::{Endpoint, StreamListener};

/// Marks the token of a listener; other tokens are connections.
pub(super) const LISTENER: u64 = 1 << 63;

/// Listeners, and the epoll set of all sockets.
#[derive(Debug)]
pub(super) struct SocketSet {
    /// The listeners, each with its index among those of all exports; empty for a server that does
    /// not listen.
    pub(super) listeners: Vec<(usize, StreamListener)>,
    /// The endpoints of the export.
    pub(super) endpoints: Vec<Endpoint>,
    pub(super) epoll: OwnedFd,
    /// Listeners were removed from the epoll set because no descriptor was left for a client.
    pub(super) accept_paused: bool,
}

impl SocketSet {
    /// Creates the set of a server of the export at `endpoints`.
    ///
    /// # Errors
    /// Those of `epoll_create1(2)` and `epoll_ctl(2)`.
    pub(super) fn new(
        listeners: Vec<(usize, StreamListener)>,
        endpoints: Vec<Endpoint>,
    ) -> io::Result<SocketSet> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut sockets = SocketSet { listeners, endpoints, epoll, accept_paused: true };
        sockets.resume_accept()?;
        Ok(sockets)
    }

    /// Removes the listeners from the epoll set.
    pub(super) fn pause_accept(&mut self) -> io::Result<()> {
        for (_, listener) in &self.listeners {
            epoll::delete(&self.epoll, listener)?;
        }
        self.accept_paused = true;
        Ok(())
    }

    /// Adds the listeners to the epoll set.
    pub(super) fn resume_accept(&mut self) -> io::Result<()> {
        for (i, (_, listener)) in self.listeners.iter().enumerate() {
            let token = EventData::new_u64(LISTENER | i as u64);
            epoll::add(&self.epoll, listener, token, EventFlags::IN)?;
        }
        self.accept_paused = false;
        Ok(())
    }

    /// Watches a client's socket. Edge-triggered: a client that is not read for lack of memory
    /// causes no events.
    pub(super) fn watch(&self, c: &Connection) -> rustix::io::Result<()> {
        let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(&self.epoll, c.as_fd(), token(c.id), flags)
    }

    /// Stops watching a client's socket, which another server will watch.
    pub(super) fn unwatch(&self, c: &Connection) -> rustix::io::Result<()> {
        epoll::delete(&self.epoll, c.as_fd())
    }

    /// Enables or disables notification when a client's socket becomes writable.
    pub(super) fn await_writable(&self, c: &mut Connection, wanted: bool) {
        if c.output.awaits_writable == wanted {
            return;
        }
        let mut flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        if wanted {
            flags |= EventFlags::OUT;
        }
        // Modifying an existing watch allocates nothing and cannot fail. It also reports the
        // current state at once, so that no transition is missed.
        let _ = epoll::modify(&self.epoll, c.as_fd(), token(c.id), flags);
        c.output.awaits_writable = wanted;
    }
}

fn token(id: ConnectionId) -> EventData {
    EventData::new_u64(u64::from(id.generation) << 32 | u64::from(id.slot))
}
