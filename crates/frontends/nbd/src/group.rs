//! [`GroupMember`]: a server's place among the servers of a group of exports.
//!
//! Each server of an export owns one queue of the device, its clients and its payload memory. The
//! servers of an export share its name, its limit of connections, and its end. Exports at one
//! endpoint share a listener, which is that of the first server of the first of them.
//!
//! The listening server gives each client to the server of its export with the fewest, through a
//! mailbox that only the arrival of a client locks. A client that selects another export is moved to
//! a server of that one in the same way. A request touches nothing of this file except one flag per
//! iteration, which a server without new clients only reads.
//!
//! Invariants: a client is counted by exactly one server from its arrival until it is closed. No
//! server ends before every server of its end group has finished, because a request on one queue may
//! need polls of another, such as that of a shard, or of a drive that another server polls. When the
//! last server was dropped, no mailbox has a client.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use event::Waker;

use crate::connection::Connection;
use crate::stats::NbdStatsReader;

/// A client that another server gives to a server.
#[derive(Debug)]
pub(super) enum AssignedClient {
    /// A client that has connected at the listener with this index.
    Arrived(OwnedFd, usize),
    /// A client that has selected an export of the server.
    Negotiated(Box<Connection>),
}

/// The part of a server that the other servers see.
#[derive(Debug)]
struct SharedMember {
    /// Index of its export.
    export: usize,
    /// The servers with this number end together.
    end_group: usize,
    /// Clients that are open or in the mailbox. The acceptor adds, the server subtracts.
    clients: AtomicUsize,
    /// Whether the mailbox may have clients.
    has_assigned: AtomicBool,
    mailbox: Mutex<Vec<AssignedClient>>,
    /// Whether the server needs no other server any more.
    has_finished: AtomicBool,
    waker: Waker,
}

/// A server's place in its group. Dropping it finishes the server, so that a server that panicked
/// keeps no other from its end.
#[derive(Debug)]
pub(super) struct GroupMember {
    index: usize,
    own: Arc<SharedMember>,
    all: Arc<[Arc<SharedMember>]>,
    /// Whether the server takes no more clients.
    is_stopping: bool,
    /// The counters of all servers of the export.
    stats: NbdStatsReader,
}

impl GroupMember {
    /// Creates the places of a group's servers, in the order of their wakers, each with the index of
    /// its export and the number of its end group. `stats` has the readers of the exports.
    pub(super) fn group(
        wakers: impl IntoIterator<Item = (Waker, usize, usize)>,
        stats: &[NbdStatsReader],
    ) -> Vec<GroupMember> {
        let member = |(waker, export, end_group)| {
            Arc::new(SharedMember {
                export,
                end_group,
                clients: AtomicUsize::new(0),
                has_assigned: AtomicBool::new(false),
                mailbox: Mutex::default(),
                has_finished: AtomicBool::new(false),
                waker,
            })
        };
        let all: Arc<[_]> = wakers.into_iter().map(member).collect();
        let place = |(index, own): (usize, &Arc<SharedMember>)| GroupMember {
            index,
            own: own.clone(),
            all: all.clone(),
            is_stopping: false,
            stats: stats[own.export].clone(),
        };
        all.iter().enumerate().map(place).collect()
    }

    /// Returns the reader of the counters of all servers of the export.
    pub(super) fn stats(&self) -> &NbdStatsReader {
        &self.stats
    }

    /// Returns the index of the server's export.
    pub(super) fn export(&self) -> usize {
        self.own.export
    }

    /// Returns the number of clients of all servers of an export, with those in mailboxes.
    pub(super) fn clients_of(&self, export: usize) -> usize {
        let members = self.all.iter().filter(|member| member.export == export);
        members.map(|member| member.clients.load(Ordering::Relaxed)).sum()
    }

    /// Returns the number of clients of this server, with those in its mailbox.
    #[cfg(debug_assertions)]
    pub(super) fn clients(&self) -> usize {
        self.own.clients.load(Ordering::Relaxed)
    }

    /// Gives a client to the server of an export with the fewest, of equals to the first. Returns the
    /// client if that is this server, or if no server of the export takes clients any more; it is
    /// then counted by this server.
    pub(super) fn assign(&self, client: AssignedClient, export: usize) -> Option<AssignedClient> {
        let fewest = self
            .all
            .iter()
            .filter(|member| member.export == export)
            .filter(|member| !member.has_finished.load(Ordering::Relaxed))
            .min_by_key(|member| member.clients.load(Ordering::Relaxed))
            .unwrap_or(&self.own);
        fewest.clients.fetch_add(1, Ordering::Relaxed);
        if Arc::ptr_eq(fewest, &self.own) {
            return Some(client);
        }
        let mut mailbox = fewest.mailbox.lock().unwrap_or_else(PoisonError::into_inner);
        mailbox.push(client);
        fewest.has_assigned.store(true, Ordering::Release);
        drop(mailbox);
        fewest.waker.wake();
        None
    }

    /// Returns whether the mailbox may have clients.
    #[inline]
    pub(super) fn has_assigned(&self) -> bool {
        self.own.has_assigned.load(Ordering::Relaxed)
    }

    /// Takes the clients out of the mailbox.
    #[cold]
    pub(super) fn take_assigned(&self) -> Vec<AssignedClient> {
        let mut mailbox = self.own.mailbox.lock().unwrap_or_else(PoisonError::into_inner);
        self.own.has_assigned.store(false, Ordering::Relaxed);
        std::mem::take(&mut *mailbox)
    }

    /// Closes the clients in the mailbox.
    pub(super) fn discard_assigned(&self) {
        for client in self.take_assigned() {
            drop(client);
            self.on_closed();
        }
    }

    /// Records that a client of this server was closed.
    pub(super) fn on_closed(&self) {
        let before = self.own.clients.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(
            before > 0,
            "nbd: server {} closed a client that it did not have",
            self.index
        );
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping
    }

    pub(super) fn begin_stop(&mut self) {
        self.is_stopping = true;
    }

    /// Wakes the other servers, for instance after setting their stop flag.
    pub(super) fn wake_others(&self) {
        for member in self.all.iter().filter(|member| !Arc::ptr_eq(member, &self.own)) {
            member.waker.wake();
        }
    }

    /// Records that this server needs no other server any more.
    pub(super) fn finish(&self) {
        if !self.own.has_finished.swap(true, Ordering::Release) {
            self.wake_others();
        }
    }

    /// Returns whether every server of the end group has finished.
    pub(super) fn have_all_finished(&self) -> bool {
        let mut members = self.all.iter().filter(|one| one.end_group == self.own.end_group);
        members.all(|member| member.has_finished.load(Ordering::Acquire))
    }
}

impl Drop for GroupMember {
    fn drop(&mut self) {
        self.finish();
        self.discard_assigned();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use event::Parker;

    use super::*;

    fn group(servers: usize) -> (Vec<Parker>, Vec<GroupMember>) {
        let parkers: Vec<Parker> = (0..servers).map(|_| Parker::new().unwrap()).collect();
        let wakers = parkers.iter().map(|parker| (parker.waker(), 0, 0));
        let members = GroupMember::group(wakers, &[NbdStatsReader::new(&[])]);
        (parkers, members)
    }

    fn client() -> (AssignedClient, UnixStream) {
        let (server, client) = UnixStream::pair().unwrap();
        (AssignedClient::Arrived(server.into(), 0), client)
    }

    fn clients(members: &[GroupMember]) -> Vec<usize> {
        members.iter().map(|member| member.own.clients.load(Ordering::Relaxed)).collect()
    }

    #[test]
    fn a_client_goes_to_the_server_with_the_fewest_of_equals_to_the_first() {
        let (_parkers, members) = group(3);
        let mut others = Vec::new();
        for expected in [[1, 0, 0], [1, 1, 0], [1, 1, 1], [2, 1, 1]] {
            let (fd, other) = client();
            others.push(other);
            let kept = members[0].assign(fd, 0);
            assert_eq!(clients(&members), expected);
            assert_eq!(kept.is_some(), others.len() % 3 == 1);
        }
        assert!(members[2].has_assigned() && members[2].take_assigned().len() == 1);
        assert!(!members[2].has_assigned());
        members[2].on_closed();
        let (fd, _other) = client();
        assert!(members[0].assign(fd, 0).is_none());
        assert_eq!(clients(&members), [2, 1, 1]);
        assert_eq!(members[1].clients_of(0), 4);
    }

    /// Two exports with two servers each; the first export ends alone.
    #[test]
    fn a_client_of_another_export_is_moved_and_exports_end_apart() {
        let parkers: Vec<Parker> = (0..4).map(|_| Parker::new().unwrap()).collect();
        let wakers = parkers.iter().enumerate().map(|(i, parker)| (parker.waker(), i / 2, i / 2));
        let stats = [NbdStatsReader::new(&[]), NbdStatsReader::new(&[])];
        let members = GroupMember::group(wakers, &stats);
        let (fd, _other) = client();
        let Some(moved) = members[0].assign(fd, 0) else { panic!("the first server has none") };
        members[0].on_closed();
        assert!(members[0].assign(moved, 1).is_none());
        assert_eq!(clients(&members), [0, 0, 1, 0]);
        assert_eq!((members[3].clients_of(0), members[3].clients_of(1)), (0, 1));
        members[0].finish();
        assert!(!members[0].have_all_finished());
        members[1].finish();
        assert!(members[0].have_all_finished() && !members[2].have_all_finished());
        let (fd, _other) = client();
        assert!(members[2].assign(fd, 0).is_some(), "the export has ended");
    }

    #[test]
    fn no_client_stays_in_a_mailbox_after_the_end() {
        let (_parkers, mut members) = group(2);
        let mut pairs: Vec<UnixStream> = Vec::new();
        for _ in 0..4 {
            let (fd, other) = client();
            pairs.push(other);
            drop(members[0].assign(fd, 0));
        }
        members[1].finish();
        assert!(!members[0].have_all_finished());
        let (fd, _other) = client();
        assert!(members[0].assign(fd, 0).is_some(), "a finished server is given no client");
        drop(members.remove(1));
        members[0].finish();
        assert!(members[0].have_all_finished());
        for mut pair in pairs {
            pair.set_nonblocking(true).unwrap();
            let read = std::io::Read::read(&mut pair, &mut [0]);
            assert_eq!(read.unwrap(), 0, "the socket was closed");
        }
    }
}
