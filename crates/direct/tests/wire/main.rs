//! What is said on the socket of a shared drive: messages of any content, and servers that say anything.
//!
//! `SLUICE_SEED=n` replays. The bodies are those of the fuzz targets `socket_message` and `socket_client`
//! (`fuzz/`).

#[path = "../../../rng/tests/choices/mod.rs"]
mod choices;
mod liar;
#[allow(unreachable_pub, reason = "shared with the fuzz targets")]
mod message;

use choices::{Choices, seed};

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
    // Mostly it says what cannot be; sometimes all that is needed to open a device.
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
