//! The socket protocol of shared drives (arbitrary messages, malicious servers), and completion
//! rings written by broken drives.
//!
//! `SLUICE_SEED=n` replays. The bodies are those of the fuzz targets `socket_message`,
//! `socket_client` and `completion_ring` (`fuzz/`).

mod completions;
mod liar;
#[allow(unreachable_pub, reason = "shared with the fuzz targets")]
mod message;

use std::sync::atomic::{AtomicBool, Ordering};

use block::BlockDevice as _;
use nvme::Status;
use testkit::choices::{Choices, seed};
use time::{Component as _, Nanos};

fn messages(rounds: u64) {
    let seed = seed();
    let mut choices = Choices::seeded(seed);
    let (mut refused, mut others) = (0, 0);
    eprintln!("SLUICE_SEED={seed}");
    for _ in 0..rounds {
        match message::survives(&mut choices) {
            true => others += 1,
            false => refused += 1,
        }
    }
    assert!(refused > rounds / 4 && others > rounds / 20, "{refused} refused, {others} others");
}

#[test]
fn messages_survive_the_wire_and_damage_does_not() {
    messages(20_000);
    for bytes in [&b""[..], b"SLSK", &[0; 400]] {
        message::fuzz(bytes);
    }
}

#[test]
#[ignore = "long: the messages of the socket, by seeds"]
fn fuzz_the_socket_codec() {
    messages(20_000_000);
}

fn lies(rounds: u64) {
    let seed = seed();
    let (mut opened, mut refused) = (0, 0);
    for round in 0..rounds {
        eprintln!("SLUICE_SEED={}", seed + round);
        match liar::talk(Choices::seeded(seed + round)) {
            true => opened += 1,
            false => refused += 1,
        }
    }
    // Mostly invalid replies; sometimes everything needed to open a device.
    assert!(refused > rounds / 2, "{refused} refused, {opened} opened");
}

#[test]
fn a_server_that_lies_is_an_error() {
    lies(150);
    for bytes in [&b""[..], &[0; 64], &[0xff; 64]] {
        liar::fuzz(bytes);
    }
}

#[test]
#[ignore = "long: servers that say anything, by seeds"]
fn fuzz_the_client() {
    lies(50_000);
}

fn broken_rings(rounds: u64, steps: u32) {
    let seed = seed();
    let (mut ended, mut strays) = (0, 0);
    for round in 0..rounds {
        eprintln!("SLUICE_SEED={}", seed + round);
        let seen = completions::broken(Choices::seeded(seed + round), steps);
        (ended, strays) = (ended + seen.completed, strays + seen.strays);
    }
    let steps = rounds * u64::from(steps);
    assert!(ended > steps / 50 && strays > steps / 50, "{ended} ended, {strays} strays");
}

#[test]
fn a_drive_that_completes_anything_ends_every_request_once() {
    broken_rings(300, 600);
    for bytes in [&b""[..], &[0; 64], &[0xff; 400], &[2; 900]] {
        completions::fuzz(bytes);
    }
}

#[test]
#[ignore = "long: completion rings of broken drives, by seeds"]
fn fuzz_the_completion_ring() {
    broken_rings(100_000, 2_000);
}

/// The ring changes while the host reads: results are not predicted, but every request completes
/// once.
#[test]
fn a_ring_that_changes_while_it_is_read_ends_every_request_once() {
    let mut harness = completions::Harness::new(33);
    let mut choices = Choices::seeded(seed());
    let (stop, ring) = (AtomicBool::new(false), harness.ring());
    let mut outstanding = std::collections::BTreeSet::new();
    let (mut tag, mut ended) = (0u64, 0u64);
    std::thread::scope(|scope| {
        let mut theirs = Choices::seeded(seed() + 1);
        let stop = &stop;
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let (slot, cid) = (theirs.below(33) as u16, theirs.below(40));
                // Either phase.
                let word = theirs.below(33) | 1 << 16 | cid << 32 | theirs.below(2) << 48;
                completions::put(&ring, slot, [theirs.next_u64(), word]);
            }
        });
        let begin = std::time::Instant::now();
        for step in 0.. {
            // The other thread may have to wait for a core.
            if ended >= 5_000 || begin.elapsed().as_secs() > 60 {
                break;
            }
            let request = harness.request(&mut choices, tag);
            if harness.raw.submit(Nanos(step), request).is_ok() {
                outstanding.insert(tag);
                tag += 1;
            }
            harness.raw.poll(Nanos(step));
            while let Some(done) = harness.raw.reap() {
                assert!(outstanding.remove(&done.tag), "request {} completed twice", done.tag);
                ended += 1;
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    let (mut queue, left) = harness.raw.into_queue();
    left.for_each(|done| assert!(outstanding.remove(&done.tag)));
    while let Some(done) = queue.orphan_next(Status::ABORTED) {
        assert!(outstanding.remove(&done.user));
    }
    assert!(outstanding.is_empty() && ended >= 5_000, "{ended} of {tag} ended");
}
