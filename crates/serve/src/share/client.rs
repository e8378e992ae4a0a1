//! [`Connection`]: one client's: whose it is, and what it has open.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use direct::remote::{
    ClientEntry, IntervalStats, ListEntry, Message, Packet, Principal, SessionGrant, socket,
};
use drive::PortStats;
use ring::Port;
use rustix::net::SendFlags;
use rustix::net::sockopt::socket_peercred;

use super::server::{StatsFollower, StatsSource};

/// Who is at the other end, as the kernel says it (`unix(7)`: `SO_PEERCRED`, of when it connected).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) pid: u32,
}

impl Peer {
    pub(super) fn from_socket(socket: &OwnedFd) -> Option<Peer> {
        let found = socket_peercred(socket).ok()?;
        let pid = u32::try_from(found.pid.as_raw_nonzero().get()).unwrap_or(0);
        Some(Peer { uid: found.uid.as_raw(), gid: found.gid.as_raw(), pid })
    }

    pub(super) fn user(&self) -> (u32, u32) {
        (self.uid, self.gid)
    }
}

/// A client.
pub(super) struct ClientConnection {
    socket: OwnedFd,
    pub(super) peer: Peer,
    pub(super) greeted: bool,
    pub(super) device: Option<OpenDevice>,
    /// What it is told line by line.
    pub(super) listing: Vec<ListEntry>,
    /// Of each drive that it has asked the statistics of: where its last interval ended.
    followers: BTreeMap<usize, StatsFollower>,
}

impl fmt::Debug for ClientConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("peer", &self.peer)
            .field("greeted", &self.greeted)
            .field("open", &self.device)
            .finish_non_exhaustive()
    }
}

/// A part of a drive that a client has.
#[derive(Debug)]
pub(super) struct OpenDevice {
    pub(super) port: Arc<Port>,
    /// The drive's place.
    pub(super) drive: usize,
    pub(super) grant: SessionGrant,
    /// By whose rule.
    pub(super) principal: Principal,
    /// Bytes.
    pub(super) registered: u64,
    pub(super) opened_at: Instant,
}

impl ClientConnection {
    pub(super) fn new(socket: OwnedFd, peer: Peer) -> ClientConnection {
        let (listing, followers) = (Vec::new(), BTreeMap::new());
        ClientConnection { socket, peer, greeted: false, device: None, listing, followers }
    }

    pub(super) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Sends an answer; whether it could. Who does not read what was asked for is not waited for.
    pub(super) fn send(&self, serial: u32, message: Message, descriptors: &[OwnedFd]) -> bool {
        let descriptors: Vec<_> = descriptors.iter().map(std::os::fd::AsFd::as_fd).collect();
        let packet = Packet { serial, message };
        socket::send(&self.socket, &packet, &descriptors, SendFlags::DONTWAIT).is_ok()
    }

    /// What a drive has done since this client asked before, or since it is served.
    pub(super) fn interval(&mut self, drive: usize, source: &StatsSource) -> Option<IntervalStats> {
        let follower = self.followers.entry(drive).or_insert_with(|| source.follow());
        follower()
    }

    /// The line about it in a list.
    pub(super) fn entry(&self, stats: PortStats) -> Option<ListEntry> {
        let open = self.device.as_ref()?;
        Some(ListEntry::Client(ClientEntry {
            client: open.grant.client,
            uid: self.peer.uid,
            gid: self.peer.gid,
            pid: self.peer.pid,
            device: open.grant.device,
            partition: open.grant.partition,
            queues_granted: open.grant.grant.queues,
            // Without the admin queue's.
            queues: stats.queues.saturating_sub(1),
            commands: stats.commands,
            bytes: stats.bytes,
            refused: stats.refused,
            throttled: stats.throttled,
            outstanding: stats.outstanding,
            stalled: stats.stalled,
            registered: open.registered,
            seconds: open.opened_at.elapsed().as_secs(),
        }))
    }
}
