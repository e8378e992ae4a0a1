//! Vector commands on a drive that another process serves: a partition of parallel units, and a
//! server that is killed.

// guarantee: A-14

use std::ffi::CString;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use sluice_c::*;

use super::{DRIVE, Vectors, lives, many, request};
use crate::serving::{Server, serve_if_asked};
use crate::support::last_error;

/// A partition of two of the eight parallel units.
const PART: &str = "[[partition]]\nname = \"few\"\nfirst_pu = 3\npus = 2\n";

/// The server process.
#[test]
fn child() {
    serve_if_asked();
}

/// Opens a partition of a drive served by another process.
fn open(shares: &str, partition: &str, wait: u32) -> (Server, Vectors) {
    let folder = tempfile::tempdir().unwrap();
    let scenario = folder.path().join("served.toml");
    std::fs::write(&scenario, format!("{DRIVE}{shares}")).unwrap();
    let server = Server::start(testkit::test_path!(child), folder.path(), &scenario, partition);
    let what = CString::new(server.device(partition)).unwrap();
    let vectors = Vectors::open(&what, wait, folder);
    (server, vectors)
}

#[test]
fn a_served_drive_is_written_read_copied_and_erased() {
    for wait in [SLUICE_WAIT_POLL, SLUICE_WAIT_EVENT] {
        let (server, vectors) = open("", "rest", wait);
        lives(vectors);
        drop(server);
    }
}

#[test]
fn many_at_once_end_once_each_over_a_served_drive() {
    for wait in [SLUICE_WAIT_POLL, SLUICE_WAIT_EVENT] {
        let (server, vectors) = open("", "rest", wait);
        many(vectors);
        drop(server);
    }
}

#[test]
fn of_a_part_of_the_units_others_are_refused_by_the_drive() {
    let (server, v) = open(PART, "few", SLUICE_WAIT_POLL);
    assert_eq!((v.geometry.first_pu, v.geometry.pu_count), (3, 2));
    let unit = v.geometry.ws_min;
    v.fill(0x5a);
    for pu in 0..8 {
        let addresses = v.run(pu, 1, 0, unit);
        let mut failed = 0;
        // SAFETY: the pointers are to live objects.
        let answer = unsafe {
            sluice_vector_write(v.queue, addresses.as_ptr(), unit, v.buffer, 0, &mut failed)
        };
        let own = (3..5).contains(&pu);
        assert_eq!(answer == 0, own, "pu {pu}: {}", last_error());
        assert_eq!(failed == 0, own, "pu {pu}: {failed:#x}");
    }
    // An address outside the partition fails the command, and its bit is set in `failed`.
    let mixed = [v.run(3, 1, 0, 1)[0], v.run(5, 1, 0, 1)[0], v.run(4, 1, 0, 1)[0]];
    let read = |list: &[u64]| {
        let mut failed = 0;
        let (count, at) = (list.len() as u32, list.as_ptr());
        // SAFETY: the pointers are to live objects.
        let answer = unsafe { sluice_vector_read(v.queue, at, count, v.buffer, 0, &mut failed) };
        (answer, failed)
    };
    let (answer, failed) = read(&mixed);
    assert!(answer < 0 && failed & 0b010 != 0, "{answer}, {failed:#b}");
    assert_eq!(read(&[mixed[0], mixed[2]]), (0, 0));
    drop(server);
}

/// Commands outstanding when the server is killed complete once with an error, and so do later
/// ones. No call waits forever.
#[test]
fn when_the_server_is_killed_every_command_ends_with_an_error() {
    for wait in [SLUICE_WAIT_POLL, SLUICE_WAIT_EVENT] {
        let (server, v) = open("", "rest", wait);
        let unit = v.geometry.ws_min;
        let lists: Vec<Vec<u64>> = (0..8).map(|pu| v.run(pu, 3, 0, unit)).collect();
        let requests: Vec<_> = (0u64..)
            .zip(&lists)
            .map(|(user_data, list)| sluice_vector_request {
                buffer: v.buffer,
                user_data,
                ..request(SLUICE_VECTOR_WRITE, list)
            })
            .collect();
        // SAFETY: the pointers are to live objects.
        assert_eq!(unsafe { sluice_vector_submit(v.queue, requests.as_ptr(), 8) }, 8);
        server.signal("KILL");
        let begin = Instant::now();
        // SAFETY: all-zero bytes are a valid value of the struct.
        let mut ended: Vec<sluice_vector_completion> = vec![unsafe { std::mem::zeroed() }; 8];
        let mut seen = [0; 8];
        while seen.contains(&0) {
            // SAFETY: the pointers are to live objects.
            let count = unsafe {
                sluice_vector_wait(v.queue, ended.as_mut_ptr(), 8, 1, SLUICE_TIMEOUT_INFINITE)
            };
            assert!(count > 0, "{count}: {}", last_error());
            for done in &ended[..count as usize] {
                assert!([0, -libc::ECONNRESET].contains(&done.error), "{}", done.error);
                seen[done.user_data as usize] += 1;
            }
        }
        assert_eq!(seen, [1; 8]);
        for _ in 0..3 {
            let mut failed = 0;
            expect!(
                sluice_vector_write(v.queue, lists[0].as_ptr(), unit, null_mut(), 0, &mut failed),
                ECONNRESET,
                ""
            );
        }
        assert!(
            begin.elapsed() < Duration::from_secs(10),
            "the calls must return soon after the server is killed"
        );
    }
}
