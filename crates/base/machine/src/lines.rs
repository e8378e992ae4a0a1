//! [`CoherenceDirectory`]: the location of every cache line, and the cost of a transfer.
//!
//! A line has one owner and any number of sharers; a write invalidates all other copies. Requests
//! for a line are served one at a time, in order of arrival, each for the full time of its
//! transfer. This is the assumption of the published analysis of spin locks \[Locks12\]. Every
//! request is ordered at the home of the line. The home is the socket whose thread opened the layer
//! and so allocated its memory (socket 0). A transfer takes as long as the farther of the copies
//! and the home. With [`SnoopPolicy::Filtered`], a socket's cache responds for lines that its cores
//! have, without the home.

use crate::costs::LineCosts;
use crate::topology::{CORES_MAX, Distance, Machine};

/// Index of a cache line, by first touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheLineId(pub u32);

/// The responder to a request for a line that a core of the same socket has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SnoopPolicy {
    /// The home of the line, as for every other line.
    #[default]
    Home,
    /// The socket's own cache, if it is inclusive and no other socket has the line.
    Filtered,
}

/// Home of all memory: the socket of the core that opened the layer.
const HOME: usize = 0;

const WORDS: usize = CORES_MAX.div_ceil(64) as usize;

/// A set of cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CoreSet([u64; WORDS]);

impl CoreSet {
    fn only(core: usize) -> CoreSet {
        let mut cores = CoreSet([0; WORDS]);
        cores.add(core);
        cores
    }

    fn add(&mut self, core: usize) {
        self.0[core / 64] |= 1 << (core % 64);
    }

    fn contains(&self, core: usize) -> bool {
        self.0[core / 64] & 1 << (core % 64) != 0
    }

    fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..WORDS).flat_map(|word| {
            let mut bits = self.0[word];
            std::iter::from_fn(move || {
                let bit = bits.trailing_zeros() as usize;
                bits &= bits.checked_sub(1)?;
                Some(word * 64 + bit)
            })
        })
    }
}

#[derive(Clone, Debug)]
struct Line {
    /// Last core that wrote the line.
    owner: usize,
    /// Whether no core has read the line since.
    modified: bool,
    /// All cores that have the line, and their number.
    cores: CoreSet,
    count: u32,
    /// End of the current transfer.
    busy_until: u64,
    /// Per socket: the time until which the socket's cache is busy with the line. Empty if unused.
    busy_until_in_socket: Vec<u64>,
}

/// Counts of line transfers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Transfers within a socket.
    pub in_socket: u64,
    /// Transfers that involved another socket of the board.
    pub on_board: u64,
    /// Transfers that involved another board.
    pub across: u64,
    /// Time in picoseconds for which the link between boards was occupied.
    pub link_ps: u64,
}

/// All lines.
#[derive(Debug)]
pub(crate) struct CoherenceDirectory {
    machine: Machine,
    costs: LineCosts,
    snoops: SnoopPolicy,
    lines: Vec<Option<Line>>,
    /// Time until which the link between boards is occupied, in picoseconds.
    link: u64,
    traffic: Traffic,
}

impl CoherenceDirectory {
    pub(crate) fn new(
        machine: Machine,
        costs: LineCosts,
        snoops: SnoopPolicy,
    ) -> CoherenceDirectory {
        let (lines, traffic) = (Vec::new(), Traffic::default());
        CoherenceDirectory { machine, costs, snoops, lines, link: 0, traffic }
    }

    pub(crate) fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// Resets the traffic counters.
    pub(crate) fn reset_traffic(&mut self) {
        self.traffic = Traffic::default();
    }

    /// Returns a line. A line that no core has touched belongs to `core`, because effects of
    /// opening the layer are short-lived and must not count.
    fn line(&mut self, line: CacheLineId, core: usize) -> &mut Line {
        let index = line.0 as usize;
        if index >= self.lines.len() {
            self.lines.resize(index + 1, None);
        }
        self.lines[index].get_or_insert_with(|| Line {
            owner: core,
            modified: true,
            cores: CoreSet::only(core),
            count: 1,
            busy_until: 0,
            busy_until_in_socket: Vec::new(),
        })
    }

    /// Reads or writes a line for a core that requests it at `now`; returns the time of completion.
    pub(crate) fn touch(&mut self, core: usize, line: CacheLineId, write: bool, now: u64) -> u64 {
        let (machine, costs, snoops) = (self.machine, self.costs, self.snoops);
        // Hardware threads of a core share its caches.
        let core = core % machine.cores();
        let it = self.line(line, core);
        if it.cores.contains(core) && !(write && it.count > 1) {
            it.modified |= write;
            return now + costs.hit.0;
        }
        // Cores that must invalidate their copy or supply the line.
        let socket = machine.socket(core);
        let inside = |other: usize| machine.socket(other) == socket;
        let others = it.cores.iter().filter(|other| *other != core);
        let mut farthest = Distance::Socket;
        let mut filtered = snoops == SnoopPolicy::Filtered;
        if write {
            for other in others {
                farthest = farthest.max(machine.distance(core, other));
            }
            filtered &= farthest == Distance::Socket;
        } else {
            farthest = machine.distance(core, it.owner);
            filtered &= others.into_iter().any(inside);
        }
        let end = if filtered {
            let shared = !write && !it.modified;
            let take =
                if shared { costs.socket_shared.0 } else { costs.fetch(Distance::Socket, write) };
            it.busy_until_in_socket.resize(machine.sockets(), 0);
            let busy = &mut it.busy_until_in_socket[socket];
            *busy = now.max(*busy).max(it.busy_until) + take;
            let end = *busy;
            self.traffic.in_socket += 1;
            end
        } else {
            let farthest = farthest.max(machine.distance(core, HOME));
            let wait = self.cross(now, farthest);
            let it = self.line(line, core);
            it.busy_until = it.busy_until.max(now + wait) + costs.fetch(farthest, write);
            it.busy_until
        };
        let it = self.line(line, core);
        it.modified = write;
        if write {
            it.owner = core;
            (it.cores, it.count) = (CoreSet::only(core), 1);
        } else {
            it.count += u32::from(!it.cores.contains(core));
            it.cores.add(core);
        }
        end
    }

    /// Counts a transfer; returns its wait for the link between boards. On two boards, every
    /// request is broadcast to both.
    fn cross(&mut self, now: u64, farthest: Distance) -> u64 {
        match farthest {
            Distance::Socket => self.traffic.in_socket += 1,
            Distance::Board => self.traffic.on_board += 1,
            Distance::Boards => self.traffic.across += 1,
        }
        if !self.machine.has_boards() {
            return 0;
        }
        self.traffic.link_ps += self.costs.link_ps;
        let start = self.link.max(now * 1000);
        self.link = start + self.costs.link_ps;
        (start - now * 1000) / 1000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: CacheLineId = CacheLineId(3);

    fn directory(snoops: SnoopPolicy) -> CoherenceDirectory {
        CoherenceDirectory::new(Machine::new(8, 10).unwrap(), LineCosts::WESTMERE_EX, snoops)
    }

    #[test]
    fn a_line_costs_what_it_must_travel() {
        let mut lines = directory(SnoopPolicy::Home);
        assert_eq!(lines.touch(0, LINE, true, 0), 2, "it begins with who touches it first");
        assert_eq!(lines.touch(1, LINE, false, 100), 151);
        assert_eq!(lines.touch(1, LINE, false, 200), 202, "it has it");
        assert_eq!(lines.touch(1, LINE, true, 300), 354, "it must have it alone");
        assert_eq!(lines.touch(10, LINE, true, 400), 550);
        assert_eq!(lines.touch(11, LINE, true, 600), 750, "by way of its home on socket 0");
        assert_eq!(lines.touch(40, LINE, true, 800), 1002);
        assert_eq!(lines.touch(41, LINE, true, 1100), 1302, "by way of the other board");
        let traffic = lines.traffic();
        assert_eq!((traffic.in_socket, traffic.on_board, traffic.across), (2, 2, 2));
        assert_eq!(traffic.link_ps, 6 * 1875);
    }

    #[test]
    fn a_filter_keeps_a_sockets_lines_to_itself() {
        let mut lines = directory(SnoopPolicy::Filtered);
        assert_eq!(lines.touch(40, LINE, true, 0), 2);
        assert_eq!(lines.touch(41, LINE, true, 300), 354);
        assert_eq!(lines.touch(42, LINE, false, 400), 451);
        assert_eq!(lines.touch(43, LINE, false, 500), 521, "shared on the socket already");
        assert_eq!(lines.touch(0, LINE, true, 600), 802, "everybody gives it up");
        assert_eq!(lines.touch(40, LINE, false, 900), 1088);
    }

    #[test]
    fn requests_for_one_line_queue_and_those_for_others_do_not() {
        let machine = Machine::new(1, 10).unwrap();
        let mut lines = CoherenceDirectory::new(machine, LineCosts::WESTMERE_EX, SnoopPolicy::Home);
        lines.touch(0, LINE, true, 0);
        lines.touch(0, CacheLineId(9), true, 0);
        let ends: Vec<u64> = (1..5).map(|core| lines.touch(core, LINE, true, 0)).collect();
        assert_eq!(ends, [54, 108, 162, 216]);
        assert_eq!(lines.touch(1, CacheLineId(9), true, 0), 54);
    }

    #[test]
    fn boards_share_a_link() {
        let mut lines = directory(SnoopPolicy::Home);
        for line in 0..100 {
            lines.touch(0, CacheLineId(line), true, 0);
        }
        let last = (0..100).map(|line| lines.touch(1, CacheLineId(line), true, 0)).last();
        assert_eq!(last, Some(54 + 99 * 1875 / 1000), "lines of their own, one link");
    }
}
