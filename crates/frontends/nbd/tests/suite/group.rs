//! Several servers of one export: which server gets a client, limits and counters of the export, polls of a
//! sleeping server's queue for another one, and the end of all.

// guarantee: B-20

use crate::common;

use std::collections::VecDeque;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use block::{BlockDevice, Completion, Limits, Op, QueueFull, Request};
use common::*;
use event::{IdlePolicy, RealClock, Waker};
use mem::AddressSpace;
use nbd::{Endpoint, NbdConfig, NbdError, NbdServer, NbdStats, NbdStatsReader};
use nvme::Status;
use testkit::PollBudget;
use time::{Component, Nanos};

/// The part of a queue that its neighbors write.
#[derive(Debug, Default)]
struct Inbox {
    /// Requests of other queues, with their queue.
    requests: VecDeque<(usize, u64, Status)>,
    completions: VecDeque<Completion>,
}

#[derive(Debug, Default)]
struct Peer {
    inbox: Mutex<Inbox>,
    waker: OnceLock<Waker>,
}

/// A queue whose requests are executed by the next queue's polls, as fragments are by the owner of a
/// shard. It keeps no data.
#[derive(Debug)]
struct RelayQueue {
    limits: Limits,
    memory: AddressSpace,
    index: usize,
    peers: Arc<[Peer]>,
    /// The status of flushes.
    flush: Status,
}

impl RelayQueue {
    fn device(queues: usize) -> Vec<RelayQueue> {
        let peers: Arc<[Peer]> = (0..queues).map(|_| Peer::default()).collect();
        let queue = |index| RelayQueue {
            limits: limits(512, 16 << 20),
            memory: AddressSpace::default(),
            index,
            peers: peers.clone(),
            flush: Status::SUCCESS,
        };
        (0..queues).map(queue).collect()
    }

    fn send(&self, to: usize, put: impl FnOnce(&mut Inbox)) {
        put(&mut self.peers[to].inbox.lock().unwrap());
        if let Some(waker) = self.peers[to].waker.get() {
            waker.wake();
        }
    }
}

impl Component for RelayQueue {
    fn poll(&mut self, _: Nanos) -> bool {
        let requests = std::mem::take(&mut self.peers[self.index].inbox.lock().unwrap().requests);
        let moved = !requests.is_empty();
        for (from, tag, status) in requests {
            let completion = Completion { tag, status, result: 0 };
            self.send(from, |inbox| inbox.completions.push_back(completion));
        }
        moved
    }

    fn deadline(&self) -> Nanos {
        Nanos::MAX
    }
}

impl BlockDevice for RelayQueue {
    block::answer_block_device!(can_wake: true, enable_sharing: {}, can_wait: false,
        visit_layers: {});

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&mut self, _: Nanos, request: Request) -> Result<(), QueueFull> {
        let status = if request.op == Op::Flush { self.flush } else { Status::SUCCESS };
        let (from, tag) = (self.index, request.tag);
        let next = (self.index + 1) % self.peers.len();
        self.send(next, |inbox| inbox.requests.push_back((from, tag, status)));
        Ok(())
    }

    fn reap(&mut self) -> Option<Completion> {
        self.peers[self.index].inbox.lock().unwrap().completions.pop_front()
    }

    fn memory(&self) -> &AddressSpace {
        &self.memory
    }

    fn set_waker(&mut self, waker: Waker) {
        let _ = self.peers[self.index].waker.set(waker);
    }
}

/// The servers of an export, each on its own thread.
struct Group {
    path: PathBuf,
    stats: NbdStatsReader,
    stop: Arc<AtomicBool>,
    wakers: Vec<Waker>,
    threads: Vec<JoinHandle<io::Result<()>>>,
    _dir: tempfile::TempDir,
}

impl Group {
    fn new(devices: Vec<RelayQueue>, config: NbdConfig) -> Group {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nbd.sock");
        let endpoints = [Endpoint::Unix(path.clone())];
        let servers = NbdServer::group(devices, &endpoints, config).unwrap();
        assert!(servers.iter().all(|server| server.endpoints() == endpoints));
        let stats = servers[0].stats_reader();
        let wakers = servers.iter().map(NbdServer::waker).collect();
        let (clock, stop) = (RealClock::start(), Arc::new(AtomicBool::new(false)));
        let run = |mut server: NbdServer<RelayQueue>| {
            let told = stop.clone();
            std::thread::spawn(move || {
                server.run(clock, IdlePolicy::default(), &mut NullComponent, &told)
            })
        };
        let threads = servers.into_iter().map(run).collect();
        Group { path, stats, stop, wakers, threads, _dir: dir }
    }

    fn until(&self, what: &str, ok: impl Fn(&[NbdStats]) -> bool) {
        let stats = || self.stats.snapshots();
        PollBudget::every(Duration::from_millis(2), Duration::from_secs(20))
            .poll_until(|| ok(&stats()), || format!("never: {what}; {:?}", stats()));
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.wakers.iter().for_each(Waker::wake);
    }

    /// Stops all servers; returns their results.
    fn end(self) -> Vec<io::Result<()>> {
        self.stop();
        let results = self.threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(!self.path.exists(), "the socket is removed");
        let stats = self.stats.snapshot();
        assert_eq!((stats.connections_open, stats.memory_bytes), (0, 0));
        results
    }
}

fn open(stats: &[NbdStats]) -> Vec<u64> {
    stats.iter().map(|server| server.connections_open).collect()
}

#[test]
fn a_client_goes_to_the_server_with_the_fewest() {
    let group = Group::new(RelayQueue::device(3), NbdConfig::default());
    let mut clients = Vec::new();
    for expected in [[1, 0, 0], [1, 1, 0], [1, 1, 1], [2, 1, 1]] {
        clients.push(NbdClient::transmission(&group.path));
        assert_eq!(open(&group.stats.snapshots()), expected);
    }
    // Each request is counted by the server of its client.
    for client in &mut clients {
        client.write(0, &[1; 512]).unwrap();
        client.flush().unwrap();
    }
    let writes = |stats: &[NbdStats]| stats.iter().map(|server| server.writes).collect::<Vec<_>>();
    assert_eq!(writes(&group.stats.snapshots()), [2, 1, 1]);
    assert_eq!((group.stats.snapshot().writes, group.stats.snapshot().flushes), (4, 4));
    clients.remove(1).disconnect();
    group.until("a client of the second server left", |stats| open(stats) == [2, 0, 1]);
    clients.push(NbdClient::transmission(&group.path));
    assert_eq!(open(&group.stats.snapshots()), [2, 1, 1]);
    drop(clients);
    assert!(group.end().iter().all(Result::is_ok));
}

#[test]
fn the_limit_of_connections_is_that_of_the_export() {
    let config = NbdConfig { connections_max: 90, ..NbdConfig::default() };
    let group = Group::new(RelayQueue::device(4), config);
    let mut clients: Vec<_> = (0..100).map(|_| NbdClient::connect(&group.path)).collect();
    group.until("all were looked at", |stats| {
        stats.iter().map(|s| s.connections_open + s.connections_refused).sum::<u64>() == 100
    });
    let stats = group.stats.snapshot();
    assert_eq!((stats.connections_open, stats.connections_refused), (90, 10));
    assert_eq!(open(&group.stats.snapshots()), [23, 23, 22, 22]);
    assert!(clients.split_off(90).iter_mut().all(NbdClient::is_dropped));
    drop(clients);
    group.until("all have gone", |stats| open(stats) == [0; 4]);
    let mut client = NbdClient::transmission(&group.path);
    client.write(0, &[1; 4096]).unwrap();
    drop(client);
    assert!(group.end().iter().all(Result::is_ok));
}

#[test]
fn a_silent_client_times_out_on_every_server() {
    let config = NbdConfig { handshake_timeout: Nanos::from_millis(200), ..NbdConfig::default() };
    let group = Group::new(RelayQueue::device(3), config);
    let mut silent: Vec<_> = (0..3).map(|_| NbdClient::connect(&group.path)).collect();
    let start = Instant::now();
    assert!(silent.iter_mut().all(NbdClient::is_dropped));
    assert!(start.elapsed() >= Duration::from_millis(150), "{:?}", start.elapsed());
    group.until("each has dropped one", |stats| stats.iter().all(|s| s.clients_dropped == 1));
    assert!(group.end().iter().all(Result::is_ok));
}

/// A request on one queue completes although the server whose queue executes it has no client and
/// sleeps.
#[test]
fn a_sleeping_server_polls_its_queue_for_others() {
    let group = Group::new(RelayQueue::device(4), NbdConfig::default());
    let mut client = NbdClient::transmission(&group.path);
    assert_eq!(open(&group.stats.snapshots()), [1, 0, 0, 0]);
    let start = Instant::now();
    for i in 0..50 {
        // Longer than a server spins before it sleeps.
        std::thread::sleep(Duration::from_millis(2));
        client.write(i * 4096, &[1; 4096]).unwrap();
    }
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    drop(client);
    assert!(group.end().iter().all(Result::is_ok));
}

/// No server ends before the flush of every other, which needs its polls; the others end well.
#[test]
fn all_end_together_and_a_failed_flush_is_the_error_of_its_server() {
    for failing in 0..3 {
        let mut devices = RelayQueue::device(3);
        devices[failing].flush = Status::WRITE_FAULT;
        let group = Group::new(devices, NbdConfig::default());
        let results = group.end();
        for (index, result) in results.iter().enumerate() {
            let error = result.as_ref().err().map(ToString::to_string);
            assert_eq!(error.is_some(), index == failing, "{index}: {error:?}");
            assert!(error.is_none_or(|error| error.contains("the last flush failed")));
        }
    }
}

/// Clients that are on their way to a server when the export stops are closed.
#[test]
fn a_stop_while_clients_are_handed_over_leaves_none_open() {
    for round in 0..20 {
        let group = Group::new(RelayQueue::device(3), NbdConfig::default());
        let done = AtomicBool::new(false);
        let mut connected: Vec<UnixStream> = std::thread::scope(|scope| {
            let connector = scope.spawn(|| {
                let mut sockets = Vec::new();
                while !done.load(Ordering::Relaxed) && sockets.len() < 200 {
                    sockets.extend(UnixStream::connect(&group.path));
                }
                sockets
            });
            std::thread::sleep(Duration::from_micros(300 * round));
            group.stop();
            std::thread::sleep(Duration::from_millis(1));
            done.store(true, Ordering::Relaxed);
            connector.join().unwrap()
        });
        assert!(group.end().iter().all(Result::is_ok));
        for socket in &mut connected {
            // Nothing else in this process has the server's ends, so each is at its end.
            socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let mut rest = Vec::new();
            match io::Read::read_to_end(socket, &mut rest) {
                Ok(_) => assert!(rest.len() <= 18, "no more than the greeting"),
                Err(e) => assert_eq!(e.kind(), io::ErrorKind::ConnectionReset),
            }
        }
    }
}

#[test]
fn queues_of_different_devices_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let endpoints = [Endpoint::Unix(dir.path().join("s"))];
    let none = NbdServer::<RelayQueue>::group(Vec::new(), &endpoints, NbdConfig::default());
    assert!(matches!(none, Err(NbdError::NoDevice)));
    let mut devices = RelayQueue::device(2);
    devices[1].limits.sectors -= 1;
    let mixed = NbdServer::group(devices, &endpoints, NbdConfig::default());
    assert!(matches!(mixed, Err(NbdError::Queues { queue: 1 })));
    assert!(!dir.path().join("s").exists(), "nothing listens");
}
