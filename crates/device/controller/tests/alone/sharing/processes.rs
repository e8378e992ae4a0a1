//! Hosts in other processes, in real time, on a drive whose runner has a thread of its own.

// guarantee: S-01, S-03, S-04, S-08

use std::os::fd::OwnedFd;
use std::process::Child;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use controller::{AccessPolicy, AccessScope, Controller, DriveConfig};
use driver::ControllerHandle;
use event::{IdlePolicy, Parker, RealClock, RealRunner, StopHandle, Waker};
use nvme::{SglDescriptor, Sqe, Status};
use rng::Rng;
use rustix::time::{ClockId, clock_gettime};
use testkit::PollBudget;
use testkit::choices::Choices;
use testkit::two_processes::{self as socket, kind};
use time::{Component, Nanos};
use transport::{Port, PortLimits};

use super::detach::fds_and_mappings;
use super::garbage::Garbage;
use super::harness::{SECTOR, block, null};

/// Serializes the tests, because they count descriptors and measure time.
static SERIAL_LOCK: Mutex<()> = Mutex::new(());

const COUNT: u64 = 400;

/// Runs as the other process.
#[test]
fn child() {
    // The process must end with the test process.
    let signal = rustix::process::Signal::KILL;
    rustix::process::set_parent_process_death_signal(Some(signal)).unwrap();
    match std::env::var(socket::ROLE).as_deref() {
        Ok("verify") => verify(),
        Ok("write") => write(),
        Ok("sleep") => sleep(),
        Ok("garbage") => hostile(),
        // The test runs as a normal test, not as a host's process.
        _ => rustix::process::set_parent_process_death_signal(None).unwrap(),
    }
}

fn number(name: &str) -> u64 {
    std::env::var(name).unwrap().parse().unwrap()
}

// ---- The hosts' processes.

/// Writes and reads at random, with many commands in flight, and checks every byte.
fn verify() {
    let (seed, rounds) = (number("SEED"), number("ROUNDS"));
    let port = socket::join();
    let progress = &mut std::thread::yield_now;
    let mut controller = ControllerHandle::connect(port.clone(), progress, u64::MAX).unwrap();
    assert_eq!(controller.info().sectors, COUNT);
    let mut pair = controller.create_queue_pair(33, Some(1), progress).unwrap();
    let parker = Parker::new().unwrap();
    port.set_vector(1, parker.waker()).unwrap();
    let (memory, at) = port.memory().allocate_registered(32 * SECTOR).unwrap();
    let mut rng = Rng::new(seed);
    let value = |lba: u64, version: u64| (lba << 32 | version).wrapping_mul(seed | 1);
    let mut versions = vec![0u64; COUNT as usize];
    // Another host may have used the partition before.
    pair.submit(Sqe::write_zeroes(1, 0, COUNT as u32, true), 0).unwrap();
    pair.ring();
    let zeroed = loop {
        if let Some(completed) = pair.reap() {
            break completed.status;
        }
        std::thread::yield_now();
    };
    assert_eq!(zeroed, Status::SUCCESS);
    for _ in 0..rounds {
        // Submits a batch of commands to different sectors at once.
        let first = rng.below(COUNT - 32);
        let writes = rng.chance(0.5);
        for slot in 0..32u64 {
            let lba = first + slot;
            let offset = slot as usize * SECTOR;
            let address = at.offset(offset as u64).0;
            let mut sqe = if writes {
                versions[lba as usize] += 1;
                for i in 0..SECTOR / 8 {
                    let word = value(lba, versions[lba as usize]) ^ i as u64;
                    memory.write(offset + 8 * i, &word.to_le_bytes());
                }
                Sqe::write(1, lba, 1, false)
            } else {
                memory.fill(offset, SECTOR, 0xee);
                Sqe::read(1, lba, 1)
            };
            sqe.set_sgl(SglDescriptor::DataBlock { address, length: SECTOR as u32 });
            pair.submit(sqe, slot).unwrap();
        }
        pair.ring();
        let (mut left, mut prepared) = (32, false);
        while left > 0 {
            let Some(completed) = pair.reap() else {
                // The host finds no completion twice before it sleeps: once before it announces
                // that it sleeps, and once after.
                match prepared {
                    false => parker.prepare(),
                    true => parker.park(&[], Nanos::from_secs(20)).unwrap(),
                }
                prepared = !prepared;
                continue;
            };
            if std::mem::take(&mut prepared) {
                parker.unpark();
            }
            assert_eq!(completed.status, Status::SUCCESS);
            left -= 1;
            if !writes {
                let lba = first + completed.user;
                let version = versions[lba as usize];
                for i in 0..SECTOR / 8 {
                    let mut word = [0; 8];
                    memory.read(completed.user as usize * SECTOR + 8 * i, &mut word);
                    let expected = if version == 0 { 0 } else { value(lba, version) ^ i as u64 };
                    assert_eq!(u64::from_le_bytes(word), expected, "sector {lba} word {i}");
                }
            }
            pair.release();
        }
    }
    assert_eq!(pair.spurious_completions(), 0);
}

/// Reports when it has started, and writes until it is killed.
fn write() {
    let port = socket::join();
    let progress = &mut std::thread::yield_now;
    let mut controller = ControllerHandle::connect(port.clone(), progress, u64::MAX).unwrap();
    let mut pair = controller.create_queue_pair(65, None, progress).unwrap();
    let (memory, at) = port.memory().allocate_registered(SECTOR).unwrap();
    memory.fill(0, SECTOR, 0xab);
    let (mut sent, mut said) = (0u64, false);
    for _ in 0..100_000 {
        let mut sqe = Sqe::write(1, sent % COUNT, 1, false);
        sqe.set_sgl(SglDescriptor::DataBlock { address: at.0, length: SECTOR as u32 });
        while pair.submit(sqe, 0).is_err() {
            pair.ring();
            while pair.reap().is_some() {}
        }
        sent += 1;
        if sent == 100 && !std::mem::replace(&mut said, true) {
            socket::send(std::io::stdin(), kind::NOTE, b"begun", &[]).unwrap();
        }
    }
    // Wait to be killed.
    loop {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Executes one read per request of the drive's process, and reports the time that it took.
fn sleep() {
    let port = socket::join();
    let progress = &mut std::thread::yield_now;
    let mut controller = ControllerHandle::connect(port.clone(), progress, u64::MAX).unwrap();
    let mut pair = controller.create_queue_pair(8, Some(1), progress).unwrap();
    let parker = Parker::new().unwrap();
    port.set_vector(1, parker.waker()).unwrap();
    socket::send(std::io::stdin(), kind::NOTE, &0u64.to_le_bytes(), &[]).unwrap();
    while let Some((kind::NOTE, ..)) = socket::receive(std::io::stdin()) {
        let begin = Instant::now();
        let mut sqe = Sqe::read(1, 0, 1);
        sqe.set_sgl(SglDescriptor::BitBucket { length: SECTOR as u32 });
        pair.submit(sqe, 0).unwrap();
        pair.ring();
        while pair.reap().is_none() {
            parker.park(&[], Nanos::from_millis(1)).unwrap();
            assert!(begin.elapsed() < Duration::from_secs(10), "the drive did not wake up");
        }
        pair.release();
        let took = begin.elapsed().as_micros() as u64;
        socket::send(std::io::stdin(), kind::NOTE, &took.to_le_bytes(), &[]).unwrap();
    }
}

fn hostile() {
    let port = socket::join();
    let mut garbage = Garbage::new(port, Choices::seeded(number("SEED")), true);
    socket::send(std::io::stdin(), kind::NOTE, b"begun", &[]).unwrap();
    loop {
        garbage.step();
    }
}

// ---- The drive's process.

type Job = Box<dyn FnOnce(&mut Controller) + Send>;

/// A drive with its own thread, which also executes closures from other threads.
struct DriveService {
    drive: Controller,
    jobs: Receiver<Job>,
}

impl Component for DriveService {
    fn poll(&mut self, now: Nanos) -> bool {
        let mut moved = false;
        while let Ok(job) = self.jobs.try_recv() {
            job(&mut self.drive);
            moved = true;
        }
        moved | self.drive.poll(now)
    }
    fn deadline(&self) -> Nanos {
        self.drive.deadline()
    }
}

struct Server {
    jobs: Sender<Job>,
    waker: Waker,
    stopper: StopHandle,
    thread: JoinHandle<()>,
}

/// A host's process, and the thread that serves its socket.
struct Client {
    child: Child,
    port: Arc<Port>,
    socket: Arc<OwnedFd>,
    control: JoinHandle<()>,
    notes: Receiver<Vec<u8>>,
}

impl Server {
    fn start(config: DriveConfig) -> Server {
        let drive = Controller::new(config).unwrap();
        let runner = RealRunner::new(RealClock::start(), IdlePolicy::default()).unwrap();
        let (waker, stopper) = (runner.waker(), runner.stop_handle());
        let (jobs, receiver) = channel();
        let mut served = DriveService { drive, jobs: receiver };
        let thread = std::thread::spawn(move || runner.run(&mut served).unwrap());
        Server { jobs, waker, stopper, thread }
    }

    fn call<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Controller) -> T + Send + 'static,
    ) -> T {
        let (answer, answered) = channel();
        let job: Job = Box::new(move |drive| answer.send(job(drive)).unwrap());
        self.jobs.send(job).unwrap();
        self.waker.wake();
        answered.recv().unwrap()
    }

    fn client(&self, role: &str, access: AccessPolicy, environment: &[(&str, String)]) -> Client {
        let limits = PortLimits { vectors: 4, regions: 16, bytes: 4 << 20 };
        let port = Port::shared(limits).unwrap();
        let theirs = port.clone();
        self.call(move |drive| drive.attach_as(&theirs, access)).unwrap();
        port.set_drive_waker(self.waker.clone()).unwrap();
        let (child, socket) = socket::spawn(testkit::test_path!(child), role, |command| {
            command.envs(environment.iter().map(|(key, value)| (key, value)));
        });
        socket::send_port(&socket, &port);
        let (theirs, stream) = (port.clone(), socket.clone());
        let (note, notes) = channel();
        let control = std::thread::spawn(move || {
            socket::serve(&stream, &theirs, |bytes| {
                let _ = note.send(bytes.to_vec());
            });
        });
        Client { child, port, socket, control, notes }
    }

    /// Waits until a host's process has ended, and reaps it.
    fn finish(&self, mut client: Client) -> bool {
        let success = client.child.wait().unwrap().success();
        client.control.join().unwrap();
        let port = client.port.clone();
        self.call(move |drive| drive.detach(&port)).unwrap();
        success
    }

    fn wait_until_idle(&self) {
        PollBudget::every(Duration::from_millis(1), Duration::from_secs(20)).poll_until(
            || self.call(|drive| drive.is_idle()),
            || "commands that do not complete".into(),
        );
    }

    fn stop(self) {
        self.stopper.stop();
        self.thread.join().unwrap();
    }
}

fn sector_access(number: u64) -> AccessPolicy {
    let part = AccessScope::Sectors { first: number * (COUNT + 7), count: COUNT };
    AccessPolicy { queues: 4, queue_depth: 128, ..AccessPolicy::for_scope(part) }
}

fn serialize_tests() -> impl Drop {
    SERIAL_LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

fn environment(seed: u64, rounds: u64) -> [(&'static str, String); 2] {
    [("SEED", seed.to_string()), ("ROUNDS", rounds.to_string())]
}

#[test]
fn two_processes_share_a_drive() {
    let _turn = serialize_tests();
    let server = Server::start(block());
    let before = fds_and_mappings();
    for round in 0..2 {
        let clients: Vec<_> = (0..2)
            .map(|n| {
                server.client("verify", sector_access(2 * round + n), &environment(n + 1, 400))
            })
            .collect();
        for client in clients {
            let stats = client.port.clone();
            assert!(server.finish(client), "a process read data that it had not written");
            assert_eq!(Arc::strong_count(&stats), 1);
        }
    }
    assert_eq!(server.call(|drive| drive.host_count()), 0);
    server.wait_until_idle();
    // Concurrent tests of this process open and close descriptors.
    let after = fds_and_mappings();
    assert!(after.0 < before.0 + 100, "{before:?} became {after:?}");
    server.stop();
}

#[test]
fn hostile_processes_do_not_disturb_others() {
    let _turn = serialize_tests();
    let server = Server::start(block());
    let (mut commands, mut refused) = (0, 0);
    for seed in 0..20 {
        let mut bad = server.client("garbage", sector_access(1), &environment(seed, 0));
        assert!(bad.notes.recv_timeout(Duration::from_secs(20)).is_ok());
        let good = server.client("verify", sector_access(0), &environment(seed + 100, 200));
        assert!(server.finish(good), "seed {seed}");
        assert!(bad.child.try_wait().unwrap().is_none(), "the hostile process has ended early");
        let port = bad.port.clone();
        let stats = server.call(move |drive| drive.port_stats(&port)).unwrap();
        assert!(stats.stalled <= 5 * 128 && stats.queues <= 5, "{stats:?}");
        (commands, refused) = (commands + stats.commands, refused + stats.refused);
        bad.child.kill().unwrap();
        assert!(!server.finish(bad));
        // A hostile host that breaks its queues at once, or gets no CPU time, has tested nothing.
        if seed >= 2 && commands > 300 && refused > 0 {
            break;
        }
    }
    assert!(commands > 300 && refused > 0, "{commands} {refused}");
    server.wait_until_idle();
    server.stop();
}

#[test]
fn processes_that_are_killed_leave_nothing() {
    let _turn = serialize_tests();
    let server = Server::start(block());
    let mut rng = Rng::new(9);
    let mut before = (0, 0);
    for round in 0..100 {
        if round == 5 {
            before = fds_and_mappings();
        }
        let mut client = server.client("write", sector_access(round % 3), &[]);
        assert!(client.notes.recv_timeout(Duration::from_secs(20)).is_ok());
        std::thread::sleep(Duration::from_micros(rng.below(5_000)));
        client.child.kill().unwrap();
        let port = client.port.clone();
        assert!(!server.finish(client), "the killed process must not report success");
        server.wait_until_idle();
        assert_eq!(Arc::strong_count(&port), 1, "the drive must release the host's memory");
        assert!(port.memory().remaining_bytes() < 4 << 20);
    }
    assert_eq!(server.call(|drive| drive.host_count()), 0);
    let after = fds_and_mappings();
    assert!(after.0 < before.0 + 50 && after.1 < before.1 + 100, "{before:?} became {after:?}");
    // The drive works normally.
    let good = server.client("verify", sector_access(3), &environment(1, 50));
    assert!(server.finish(good));
    server.stop();
}

#[test]
fn an_idle_drive_uses_no_processor_and_wakes() {
    let _turn = serialize_tests();
    let server = Server::start(null(Nanos::from_micros(5)));
    let access = sector_access(0);
    let clients: Vec<_> = (0..3).map(|_| server.client("sleep", access, &[])).collect();
    for client in &clients {
        assert!(
            client.notes.recv_timeout(Duration::from_secs(20)).is_ok(),
            "the client must report that it is ready"
        );
    }
    let used = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    for round in 0..20 {
        // The calls take CPU time, and so does spinning before the runner parks.
        let before = server.call(move |_| used());
        std::thread::sleep(Duration::from_millis(50));
        let spent = server.call(move |_| used()) - before;
        assert!(spent < Duration::from_millis(5), "round {round}: {spent:?} of 50 ms");
        let client = &clients[round % 3];
        std::thread::sleep(Duration::from_millis(2));
        socket::send(&client.socket, kind::NOTE, b"go", &[]).unwrap();
        let took = client.notes.recv_timeout(Duration::from_secs(20)).unwrap();
        assert!(took.len() == 8);
    }
    for client in clients {
        let port = client.port.clone();
        rustix::net::shutdown(&client.socket, rustix::net::Shutdown::Both).unwrap();
        assert!(server.finish(client));
        assert_eq!(Arc::strong_count(&port), 1);
    }
    server.stop();
}
