//! Misbehaving clients of the file service: random words in slots, exits during calls, a thousand
//! connections. Other clients are served meanwhile. After such a client nothing remains: no
//! descriptor, open file or session.
//!
//! A failing seed is printed; replay it with `SLUICE_SEED=n cargo test -p sluice-exec --test
//! alone`.

// guarantee: D-15, D-18

use crate::common;

mod client;

use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use common::{Ram, formatted, tick};
use event::RealClock;
use exec::{Service, ServiceAddress, ServiceStats};
use exec_proto::{Call, CallOp, posted};
use rng::Rng;
use testkit::{PollBudget, test_path};
use volume::{BlockingVolume, FsckOptions, Options};

use client::{Client, TIMEOUT, address, hello, named, welcome};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const ROLE: &str = "SLUICE_HOSTILE_ROLE";
const NAME: &str = "SLUICE_HOSTILE_NAME";
const SEED: &str = "SLUICE_HOSTILE_SEED";

/// One service at a time, because descriptors are counted.
static SERIAL: Mutex<()> = Mutex::new(());

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn start(role: &str, name: &str, seed: u64) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test_path!(child), "--nocapture", "--test-threads=1"])
        .stdout(Stdio::null());
    command.env(ROLE, role).env(NAME, name).env(SEED, seed.to_string()).spawn().unwrap()
}

/// Runs a client in its own process, which must succeed.
fn run(role: &str, name: &str, seed: u64) {
    let status = start(role, name, seed).wait().unwrap();
    assert!(status.success(), "{role}: {status}; replay with SLUICE_SEED={seed}");
}

/// Returns the number of descriptors after one client and two concurrent ones. The service keeps
/// the memory of ended processes for later ones, up to the maximum number at a time.
fn usual_descriptors(name: &str) -> usize {
    run("good", name, 0);
    // The service may not have closed all descriptors of the last client yet.
    let (mut last, mut since) = (descriptors(), Instant::now());
    while since.elapsed() < Duration::from_millis(100) {
        std::thread::sleep(Duration::from_millis(1));
        let now = descriptors();
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    last + 1
}

/// Waits until the service has closed the descriptors.
fn wait_for_descriptors(wanted: usize) {
    PollBudget::within(TIMEOUT).poll_until(
        || descriptors() <= wanted,
        || format!("{} descriptors, {wanted} before", descriptors()),
    );
}

/// Serves while `clients` runs on another thread; the volume must be consistent afterwards.
fn serve(name: &str, clients: impl FnOnce(&str) + Send + 'static) -> ServiceStats {
    let _alone = SERIAL.lock().unwrap_or_else(PoisonError::into_inner);
    let name = format!("sluice-hostile-{name}-{}", std::process::id());
    let address = ServiceAddress { name: name.clone(), token: TOKEN.into() };
    let session =
        BlockingVolume::open(formatted(4096, 4096), Options::default(), tick as fn(&mut Ram) -> _)
            .unwrap();
    let service = Service::new(session.into_volume(), &address).unwrap();
    let stop = service.stop();
    let clients = std::thread::spawn(move || {
        // Stops the service after a panic too, because nothing else stops it.
        let clients = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| clients(&name)));
        stop.stop();
        clients
    });
    let (mut ram, counters) = service.run(RealClock::start()).unwrap();
    clients.join().unwrap().unwrap();
    let report = volume::fsck(&mut ram, FsckOptions::default(), tick).unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    counters
}

fn seeds(default: u64) -> std::ops::Range<u64> {
    match std::env::var("SLUICE_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 0..default,
    }
}

#[test]
fn random_words_in_slots_are_answered() {
    let counters = serve("garbage", |name| {
        let before = usual_descriptors(name);
        for seed in seeds(8) {
            let mut hostile = start("garbage", name, seed);
            // A well-behaved client runs at the same time.
            run("good", name, seed);
            assert!(hostile.wait().unwrap().success(), "replay with SLUICE_SEED={seed}");
        }
        wait_for_descriptors(before);
    });
    let rounds = seeds(8).count() as u64;
    assert!(counters.refused > 100 * rounds && counters.calls > 8000 * rounds, "{counters:?}");
    assert!(counters.posted_writes > 2000 * rounds, "{counters:?}");
}

#[test]
fn clients_that_die_in_the_middle_leave_nothing() {
    let counters = serve("dies", |name| {
        let before = usual_descriptors(name);
        for seed in seeds(40) {
            let _ = start("dies", name, seed).wait().unwrap();
        }
        wait_for_descriptors(before);
        run("room", name, 0);
    });
    assert!(counters.opened > seeds(40).count() as u64, "{counters:?}");
}

/// The error of a posted write is reported once, by the next sync; reservations are released when
/// the process ends.
#[test]
fn errors_of_posted_writes_are_reported_by_the_next_sync() {
    let counters = serve("errors", |name| {
        run("errors", name, 0);
        run("room", name, 0);
    });
    assert_eq!((counters.posted_writes, counters.writeback_failures), (4, 1), "{counters:?}");
}

#[test]
fn a_thousand_connections_leave_nothing() {
    let counters = serve("connects", |name| {
        let before = usual_descriptors(name);
        let mut hostile = start("connects", name, 0);
        run("good", name, 1);
        assert!(hostile.wait().unwrap().success());
        wait_for_descriptors(before);
        run("good", name, 2);
    });
    assert!(counters.sessions >= 1003, "{counters:?}");
}

// Child processes.

#[test]
fn child() {
    let (Ok(role), Ok(name)) = (std::env::var(ROLE), std::env::var(NAME)) else { return };
    let seed = std::env::var(SEED).unwrap().parse().unwrap();
    match &role[..] {
        "good" => good(&name, seed),
        "garbage" => garbage(&name, seed),
        "dies" => dies(&name, seed),
        "room" => reservations(&name),
        "errors" => errors(&name),
        "connects" => connects(&name),
        _ => panic!("{role}"),
    }
}

const CREATE: u64 = 0o100;
const READ_WRITE: u64 = 2;

/// Writes, reads and deletes a file.
fn good(name: &str, seed: u64) {
    let client = Client::new(name, TOKEN);
    let path = format!("good-{seed}");
    for round in 0..50u64 {
        let (socket, file) = client.open(&path, CREATE | READ_WRITE);
        let bytes = common::pattern(seed + round, 5000);
        let written = client.call(CallOp::WriteAt, file, [round * 10, 0, 0, 0], &bytes);
        assert_eq!(written & !posted::MAY_POST, 5000);
        assert_eq!(client.call(CallOp::Sync, file, [0; 4], &[]), 0);
        client.slots.fill(exec_proto::data_offset(0), 5000, 0);
        let call =
            Call { op: CallOp::ReadAt, handle: file, args: [round * 10, 0, 0, 0], len: 5000 };
        client.submit(0, call.words());
        assert_eq!(client.answer(0), 5000);
        let mut read = vec![0; 5000];
        client.slots.read(exec_proto::data_offset(0), &mut read);
        assert!(read == bytes, "round {round}");
        drop(socket);
    }
    assert_eq!(client.call(CallOp::Unlink, 0, [0; 4], path.as_bytes()), 0);
}

/// Fills all slots repeatedly with random words, and with calls that have random arguments.
fn garbage(name: &str, seed: u64) {
    let client = Client::new(name, TOKEN);
    let mut rng = Rng::new(seed);
    let mut sockets: Vec<_> = (0..8).map(|_| named(name)).collect();
    let mut left = [false; exec_proto::SLOTS];
    for _ in 0..400 {
        for (slot, left) in left.iter_mut().enumerate() {
            let path: Vec<u8> = (0..64).map(|_| b"ab/.\0\xff"[rng.below(6) as usize]).collect();
            client.slots.write(exec_proto::data_offset(slot), &path);
            let mut number = || match rng.below(4) {
                0 => rng.below(8),
                1 => sockets[rng.below(8) as usize].1,
                2 => u64::MAX - rng.below(5000),
                _ => rng.next_u64() >> rng.below(64),
            };
            let mut words = [(); exec_proto::CALL_WORDS].map(|()| number());
            if rng.chance(0.8) {
                (words[0], words[6]) = (1 + rng.below(26), rng.below(70));
            }
            // The lengths are limited, so that the other clients find free blocks.
            if [CallOp::Allocate as u64, CallOp::Write as u64, CallOp::WriteAt as u64]
                .contains(&words[0])
            {
                words[4] %= 100_000;
            }
            *left = rng.chance(0.3);
            if *left {
                client.post_write(slot, words);
            } else {
                client.submit(slot, words);
            }
        }
        // Also sets bits without slots, marks slots without calls, and takes reservations that were
        // never granted.
        for word in [exec_proto::SUBMITTED_BITS, exec_proto::POSTED_WRITE_BITS] {
            client.slots.atomic_u64(word).fetch_or(rng.next_u64() << 32, Ordering::AcqRel);
        }
        client
            .slots
            .atomic_u64(exec_proto::RESERVED_BLOCKS)
            .store(rng.next_u64() >> rng.below(64), Ordering::Relaxed);
        client.ring_doorbell();
        for (slot, left) in left.into_iter().enumerate() {
            if left {
                client.wait_until_free(slot);
            } else {
                client.answer(slot);
            }
        }
        if rng.chance(0.1) {
            sockets[rng.below(8) as usize] = named(name);
        }
    }
    // Remove its files, or the volume fills up.
    sockets.clear();
}

/// Opens a file, deletes it, writes to it, and exits at some point.
fn dies(name: &str, seed: u64) {
    let client = Client::new(name, TOKEN);
    let mut rng = Rng::new(seed);
    let path = format!("dies-{seed}");
    let (_socket, file) = client.open(&path, CREATE | READ_WRITE);
    client.call(CallOp::Unlink, 0, [0; 4], path.as_bytes());
    for slot in 0..exec_proto::SLOTS {
        let args = [slot as u64 * exec_proto::DATA_BYTES as u64, 0, 0, 0];
        match slot % 4 {
            3 => client.submit(
                slot,
                Call { op: CallOp::Sync, handle: file, args: [0; 4], len: 0 }.words(),
            ),
            kind => {
                let call =
                    Call { op: CallOp::WriteAt, handle: file, args, len: exec_proto::DATA_BYTES }
                        .words();
                if kind == 0 { client.post_write(slot, call) } else { client.submit(slot, call) }
            }
        }
    }
    let until = Instant::now();
    while until.elapsed().as_micros() < u128::from(rng.below(300)) {
        std::hint::spin_loop();
    }
    std::process::abort();
}

/// Posts writes that must fail (file too long, file opened read-only), and checks the reported
/// errors.
fn errors(name: &str) {
    let client = Client::new(name, TOKEN);
    let (_socket, file) = client.open("errors", CREATE | READ_WRITE);
    let (_reads, read_only) = client.open("errors", 0);
    let leave = |handle, at, len| {
        let call = Call { op: CallOp::WriteAt, handle, args: [at, 0, 0, 0], len };
        client.post_write(1, call.words());
        client.ring_doorbell();
        client.wait_until_free(1);
    };
    let sync = |handle| client.call(CallOp::Sync, handle, [0; 4], &[]);
    leave(file, i64::MAX as u64 - 10, 10);
    assert_eq!((sync(file), sync(file)), (-27, 0), "the sync reports EFBIG once");
    leave(read_only, 0, 10);
    assert_eq!((sync(read_only), sync(read_only)), (-9, 0), "the sync reports EBADF once");
    leave(file, 0, 10);
    assert_eq!(sync(file), 0);
    // The client exits without collecting the error of this write.
    leave(file, i64::MAX as u64 - 10, 10);
}

/// Allocates most of the volume; succeeds only if the blocks of ended processes are free again.
fn reservations(name: &str) {
    let client = Client::new(name, TOKEN);
    let (_socket, file) = client.open("room", CREATE | READ_WRITE);
    let size = 10u64 << 20;
    assert_eq!(client.call(CallOp::Allocate, file, [0, 0, size, 0], &[]), 0);
    assert_eq!(client.call(CallOp::Unlink, 0, [0; 4], b"room"), 0);
}

/// Opens connections that close at once, send a wrong token, stay silent or represent no file, and
/// opens sessions.
fn connects(name: &str) {
    use std::os::unix::net::UnixStream;
    for _ in 0..1000 {
        drop(UnixStream::connect_addr(&address(name)).unwrap());
        drop(named(name));
    }
    for _ in 0..100 {
        let lie = hello(name, "00000000000000000000000000000000");
        assert!(welcome(&lie).is_none(), "the service accepted a wrong token");
        let short = hello(name, "0123");
        assert!(welcome(&short).is_none());
    }
    // More connections than the service keeps.
    let silent: Vec<_> =
        (0..500).map(|_| UnixStream::connect_addr(&address(name)).unwrap()).collect();
    let files: Vec<_> = (0..300).map(|_| named(name)).collect();
    // Each replaces the previous one.
    for _ in 0..1000 {
        let stream = hello(name, TOKEN);
        assert_eq!(welcome(&stream).expect("a session").len(), 2);
    }
    good(name, 3);
    drop((silent, files));
}
