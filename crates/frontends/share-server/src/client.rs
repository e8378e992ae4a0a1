//! [`ClientConnection`]: one client's connection, credentials and open device.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use controller::PortStats;
use rustix::net::SendFlags;
use rustix::net::sockopt::socket_peercred;
use share_proto::{
    ClientEntry, ClientProcess, ClientTraffic, IntervalStats, ListEntry, Message, NamespaceEntry,
    Packet, Principal, SessionGrant, socket,
};
use transport::Port;

use super::partition_table::UserIds;
use super::server::{StatsFollower, StatsSource};

/// Credentials of the peer as the kernel reports them (`unix(7)`: `SO_PEERCRED`, as of the
/// connect).
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

    pub(super) fn user(&self) -> UserIds {
        UserIds { uid: self.uid, gid: self.gid }
    }
}

/// A client.
pub(super) struct ClientConnection {
    socket: OwnedFd,
    pub(super) peer: Peer,
    pub(super) greeted: bool,
    pub(super) device: Option<OpenDevice>,
    /// Snapshot of the list that it reads entry by entry.
    pub(super) listing: Vec<ListEntry>,
    /// Snapshot of the namespaces that it reads one by one, and the bytes that none of them has.
    pub(super) namespaces: (Vec<NamespaceEntry>, u64),
    /// Snapshot of a report about rules, which it reads part by part.
    pub(super) rules: Vec<u8>,
    /// Per drive or path: a follower that knows where this client's last statistics interval ended.
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

/// A partition that a client has open.
#[derive(Debug)]
pub(super) struct OpenDevice {
    pub(super) port: Arc<Port>,
    /// Index of the drive.
    pub(super) drive: usize,
    pub(super) grant: SessionGrant,
    /// Principal of the rule that granted access.
    pub(super) principal: Principal,
    /// Bytes of registered memory.
    pub(super) registered: u64,
    pub(super) opened_at: Instant,
}

impl ClientConnection {
    pub(super) fn new(socket: OwnedFd, peer: Peer) -> ClientConnection {
        ClientConnection {
            socket,
            peer,
            greeted: false,
            device: None,
            listing: Vec::new(),
            namespaces: (Vec::new(), 0),
            rules: Vec::new(),
            followers: BTreeMap::new(),
        }
    }

    pub(super) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Sends a reply. Returns whether it was sent; does not wait for a client that does not read.
    pub(super) fn send(&self, serial: u32, message: Message, descriptors: &[OwnedFd]) -> bool {
        let descriptors: Vec<_> = descriptors.iter().map(std::os::fd::AsFd::as_fd).collect();
        let packet = Packet { serial, message };
        socket::send(&self.socket, &packet, &descriptors, SendFlags::DONTWAIT).is_ok()
    }

    /// Returns the statistics of the drive or path with this index since this client's previous
    /// request, or since it is served.
    pub(super) fn interval(&mut self, index: usize, source: &StatsSource) -> Option<IntervalStats> {
        let follower = self.followers.entry(index).or_insert_with(|| source.follow());
        follower()
    }

    /// Returns the client's list entry.
    pub(super) fn entry(&self, stats: PortStats) -> Option<ListEntry> {
        let open = self.device.as_ref()?;
        Some(ListEntry::Client(ClientEntry {
            client: open.grant.client,
            process: ClientProcess { uid: self.peer.uid, gid: self.peer.gid, pid: self.peer.pid },
            device: open.grant.device,
            partition: open.grant.partition,
            queues_granted: open.grant.grant.queues,
            // Without the admin queue.
            queues: stats.queues.saturating_sub(1),
            traffic: ClientTraffic {
                commands: stats.commands,
                bytes: stats.bytes,
                refused: stats.refused,
                throttled: stats.throttled,
                outstanding: stats.outstanding,
                stalled: stats.stalled,
            },
            registered: open.registered,
            seconds: open.opened_at.elapsed().as_secs(),
        }))
    }
}
