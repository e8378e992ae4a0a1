//! The server of shared drives, in this process: clients that send arbitrary messages, and the
//! rules file.
//!
//! `SLUICE_SEED=n` replays. The clients are the body of the fuzz target `socket_server` (`fuzz/`).
#![allow(unreachable_pub, reason = "modules of one test, shared with the fuzz targets")]

mod acl;
mod harness;
mod registers;
mod rude;
mod settings;
mod stats;

use testkit::choices::{Choices, seed};

fn rude(rounds: u64) {
    let server = harness::Server::start(harness::table());
    for seed in seed()..seed() + rounds {
        eprintln!("SLUICE_SEED={seed}");
        rude::talk(&server, Choices::seeded(seed));
    }
}

#[test]
fn clients_that_send_anything_do_not_disturb_others() {
    rude(100);
    for bytes in [&b""[..], &[0; 100], &[0xff; 400]] {
        rude::fuzz(bytes);
    }
}

#[test]
#[ignore = "long: clients that say anything, by seeds"]
fn fuzz_the_server() {
    rude(30_000);
}
