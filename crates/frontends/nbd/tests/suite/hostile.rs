//! Clients that send garbage or wrong lengths, stall, or disconnect. Each gets the protocol's error
//! or is dropped; memory is freed, and other clients are served.

use crate::common;

use std::net::Shutdown;
use std::time::{Duration, Instant};

use common::*;
use nbd::NbdConfig;
use time::Nanos;

/// A small deterministic generator, for reproducible failures.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.next().is_multiple_of(n)
    }
}

#[test]
fn garbage_is_dropped() {
    let served = Served::small();
    let mut random = Random(42);
    for i in 0..60 {
        let mut c = NbdClient::connect(&served.path);
        if i % 3 > 0 {
            c.take(18).unwrap();
            c.give(&3u32.to_be_bytes());
        }
        let mut c = if i % 3 > 1 { NbdClient::transmission(&served.path) } else { c };
        let junk: Vec<u8> = (0..200).map(|_| random.next() as u8).collect();
        c.give(&junk);
        assert!(c.is_dropped());
    }
    let mut c = NbdClient::connect(&served.path);
    c.give(&8u32.to_be_bytes());
    assert!(c.is_dropped(), "an unknown client flag");
    let mut c = NbdClient::greeted(&served.path);
    c.give(b"IHAVEOPS\0\0\0\x03\0\0\0\0");
    assert!(c.is_dropped(), "a bad option magic");
    let mut c = NbdClient::transmission(&served.path);
    c.give(&request(READ, 0, 1, 0, 512)[1..]);
    c.give(&[0; 28]);
    assert!(c.is_dropped(), "a stream out of step");
    assert!(served.ends_well().clients_dropped >= 60);
}

#[test]
fn lengths_that_lie_are_refused_or_dropped() {
    let served = Served::small();
    let mut c = NbdClient::greeted(&served.path);
    c.send_option(6, u32::MAX, b"");
    assert!(c.is_dropped());
    let mut c = NbdClient::greeted(&served.path);
    c.send_option(1, 100_000, b"");
    assert!(c.is_dropped(), "EXPORT_NAME has no error reply");
    let mut c = NbdClient::greeted(&served.path);
    c.send_option(10, 300_000, &vec![b'x'; 300_000]);
    assert_eq!(c.option_replies(10).last().unwrap().0, ERR_TOO_BIG);
    assert_eq!(c.option(3, &[]).last().unwrap().0, ACK, "still in step");
    for data in [&[0xff; 10][..], &[0, 0, 0, 200, b'a'], &[0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]] {
        for option in [6, 7, 9, 10] {
            assert!(c.option(option, data).last().unwrap().0 >> 31 == 1, "{option} {data:?}");
        }
    }
    drop(c);
    let mut c = NbdClient::transmission(&served.path);
    c.request(WRITE, 0, 0, u32::MAX);
    assert!(c.is_dropped(), "a payload of 4 GiB");
    let mut c = NbdClient::transmission(&served.path);
    c.request(WRITE, 0, 0, (32 << 20) + 1);
    assert!(c.is_dropped());
    let mut c = NbdClient::transmission(&served.path);
    assert_eq!(c.read(0, !511), Err(EINVAL));
    assert_eq!(c.write(0, &vec![1; 20 << 20]), Err(ENOSPC), "20 MiB into 16 MiB");
    assert_eq!(c.write((16 << 20) - 512, &[1; 1024]), Err(ENOSPC));
    assert_eq!(c.write(u64::MAX - 511, &[1; 1024]), Err(ENOSPC));
    assert_eq!(c.write(1, &[1; 512]), Err(EINVAL));
    assert_eq!(c.write(0, &[1; 100]), Err(EINVAL));
    assert_eq!(c.write(0, &[]), Err(EINVAL));
    assert_eq!(c.read(0, 0), Err(EINVAL));
    assert_eq!(c.read(16 << 20, 512), Err(EINVAL));
    assert_eq!(c.read(3, 512), Err(EINVAL));
    assert_eq!(c.command(TRIM, 0, 0, 17 << 20), Err(EINVAL));
    assert_eq!(c.command(TRIM, 0x100, 0, 512), Err(EINVAL), "an unknown flag");
    assert_eq!(c.command(99, 0, 0, 512), Err(EINVAL), "an unknown command");
    assert_eq!(c.command(5, 0, 0, 512), Err(EINVAL), "CACHE was not offered");
    assert_eq!(c.command(FLUSH, 0, 0, 512), Err(EINVAL));
    c.write(0, &[1; 512]).unwrap();
    c.disconnect();
    assert_eq!(served.ends_well().errors_refused, 15);
}

#[test]
fn clients_that_die_in_the_middle_leave_nothing_behind() {
    let served = Served::small();
    served.cue(|c| c.latency = Nanos::from_millis(20));
    let greet = NbdClient::greeted(&served.path);
    drop(greet);
    let mut c = NbdClient::greeted(&served.path);
    c.send_option(7, 100, b"not all of it");
    drop(c);
    for length in [4096u32, 65_536, 1 << 20] {
        let mut c = NbdClient::transmission(&served.path);
        c.request(WRITE, 0, 0, length);
        c.give(&vec![9; length as usize / 2]);
        drop(c);
    }
    let mut c = NbdClient::transmission(&served.path);
    c.give(&request(READ, 0, 1, 0, 512)[..20]);
    drop(c);
    for _ in 0..3 {
        let mut c = NbdClient::transmission(&served.path);
        for i in 0..40 {
            c.request(READ, 0, i * 4096, 131_072);
        }
        drop(c);
    }
    let mut c = NbdClient::transmission(&served.path);
    c.request(WRITE, 0, 0, 17 << 20);
    c.give(&[1; 100_000]);
    drop(c);
    let stats = served.ends_well();
    assert_eq!(stats.bytes_written, 4096, "only of the client that was well");
    assert!(stats.clients_vanished >= 9, "{stats:?}");
    assert!(stats.replies_discarded > 0, "{stats:?}");
}

#[test]
fn a_half_open_client_gets_its_replies() {
    let served = Served::small();
    served.cue(|c| c.latency = Nanos::from_millis(30));
    let mut c = NbdClient::transmission(&served.path);
    let cookie = c.request(READ, 0, 0, 1 << 20);
    c.socket.shutdown(Shutdown::Write).unwrap();
    assert_eq!(c.result(cookie).unwrap().len(), 8 + (1 << 20));
    assert!(c.is_dropped(), "and then is let go");
    // Shut down in the other direction: requests are executed without replies.
    let mut c = NbdClient::transmission(&served.path);
    c.socket.shutdown(Shutdown::Read).unwrap();
    c.request(WRITE, 0, 0, 512);
    c.give(&[5; 512]);
    served.until("it was done", |s| s.bytes_written == 512);
    drop(c);
    served.ends_well();
}

#[test]
fn three_hundred_connections_are_too_many_and_do_no_harm() {
    let served = Served::small();
    let mut clients: Vec<_> = (0..300).map(|_| NbdClient::connect(&served.path)).collect();
    served.until("all were looked at", |s| s.connections + s.connections_refused == 300);
    let stats = served.stats();
    assert_eq!((stats.connections_open, stats.connections_refused), (256, 44));
    let mut dropped = clients.split_off(256);
    assert!(dropped.iter_mut().all(NbdClient::is_dropped));
    for c in &mut clients {
        c.take(18).unwrap();
        c.give(&3u32.to_be_bytes());
        assert_eq!(c.option(7, &info_data("", &[3])).last(), Some(&(ACK, vec![])));
    }
    for (i, c) in clients.iter_mut().enumerate() {
        c.write(i as u64 * 4096, &[i as u8; 4096]).unwrap();
    }
    for (i, c) in clients.iter_mut().enumerate() {
        assert_eq!(c.read(i as u64 * 4096, 4096).unwrap(), [i as u8; 4096]);
    }
    drop(clients);
    served.until("all have gone", |s| s.connections_open == 0);
    served.ends_well();
}

#[test]
fn a_handshake_that_drips_is_cut_off() {
    let config = NbdConfig { handshake_timeout: Nanos::from_millis(300), ..NbdConfig::default() };
    let served = Served::new(limits(512, 1 << 20), config);
    let mut served_client = NbdClient::transmission(&served.path);
    let mut silent = NbdClient::connect(&served.path);
    let start = Instant::now();
    assert!(silent.is_dropped());
    assert!(start.elapsed() >= Duration::from_millis(200));
    let mut c = NbdClient::greeted(&served.path);
    let mut dripped = 0;
    while std::io::Write::write_all(&mut c.socket, b"I").is_ok() {
        std::thread::sleep(Duration::from_millis(50));
        dripped += 1;
        assert!(dripped < 100);
    }
    served_client.write(0, &[1; 512]).unwrap();
    drop(served_client);
    assert_eq!(served.ends_well().clients_dropped, 2, "one that is through may take its time");
}

#[test]
fn clients_that_do_not_read_hold_up_nobodys_small_requests() {
    let served = Served::small();
    let mut deaf: Vec<_> = (0..12).map(|_| NbdClient::transmission(&served.path)).collect();
    for (n, c) in deaf.iter_mut().enumerate() {
        // More than may be in flight, of one size per client.
        let length = if n % 2 == 0 { 1 << 20 } else { 65_536 };
        let all: Vec<u8> = (0..200u64).flat_map(|i| request(READ, 0, i, 0, length)).collect();
        c.give(&all);
    }
    served.until("the medium memory is gone", |s| s.memory_waits > 0);
    let mut other = NbdClient::transmission(&served.path);
    let start = Instant::now();
    for i in 0..100 {
        other.write(i * 65_536, &[3; 65_536]).unwrap();
        assert_eq!(other.read(i * 65_536, 4096).unwrap(), [3; 4096]);
        assert_eq!(other.read(i * 65_536, 65_536).unwrap(), [3; 65_536]);
    }
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert_eq!(served.stats().clients_dropped, 0);
    // Their replies were not lost.
    for c in &mut deaf {
        let Reply::Chunk { kind: 1, payload, .. } = c.reply().unwrap() else { panic!() };
        assert!(payload.len() > 65_536);
    }
    drop((deaf, other));
    served.ends_well();
}

#[test]
fn a_client_that_hoards_memory_is_dropped_when_others_need_it() {
    let config = NbdConfig { stall_timeout: Nanos::from_millis(400), ..NbdConfig::default() };
    let served = Served::new(limits(512, 64 << 20), config);
    let unsized_client = || {
        let mut c = NbdClient::greeted(&served.path);
        assert_eq!(c.option(7, &info_data("", &[])).last(), Some(&(ACK, vec![])));
        c
    };
    let mut hoarder = unsized_client();
    hoarder.request(WRITE, 0, 0, 32 << 20);
    hoarder.give(&[1; 100_000]);
    served.until("it has the memory", |s| s.memory_bytes >= 32 << 20);
    // Short requests have their own size class.
    let mut short = NbdClient::transmission(&served.path);
    let waits = served.stats().memory_waits;
    short.write(0, &vec![7; 1 << 20]).unwrap();
    assert_eq!(served.stats().memory_waits, waits, "it waits for no memory");
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(served.stats().clients_dropped, 0, "nobody needs it");
    let mut c = unsized_client();
    c.write(0, &vec![2; 20 << 20]).unwrap();
    assert!(hoarder.is_dropped());
    drop((c, short));
    let stats = served.ends_well();
    assert_eq!((stats.clients_dropped, stats.memory_waits), (1, 1));
}

#[test]
fn long_requests_of_many_clients_take_turns_without_deadlock() {
    let served = Served::new(limits(512, 64 << 20), NbdConfig::default());
    std::thread::scope(|scope| {
        for n in 0..6u8 {
            let path = &served.path;
            scope.spawn(move || {
                let mut c = NbdClient::greeted(path);
                assert_eq!(c.option(7, &info_data("", &[])).last(), Some(&(ACK, vec![])));
                let at = u64::from(n) << 20;
                for round in 0..4 {
                    let len = if n % 2 == 0 { 24 << 20 } else { 1 << 20 };
                    c.write(at, &vec![n ^ round; len]).unwrap();
                    assert_eq!(c.read(at, len as u32).unwrap().len(), len);
                }
                c.disconnect();
            });
        }
    });
    served.ends_well();
}

#[test]
fn random_sessions_never_stop_the_server() {
    let served = Served::small();
    let mut random = Random(7);
    for _ in 0..150 {
        let mut c = NbdClient::transmission(&served.path);
        let mut out = Vec::new();
        for _ in 0..random.next() % 20 {
            let kind = (random.next() % 9) as u16;
            let flags = if random.one_in(4) { random.next() as u16 & 31 } else { 0 };
            let offset = (random.next() % 70_000) * 256;
            let length = (random.next() % 300) as u32 * 256;
            out.extend(request(kind, flags, random.next(), offset, length));
            if kind == WRITE && !random.one_in(8) {
                out.extend(vec![1; length as usize]);
            }
        }
        if random.one_in(3) && !out.is_empty() {
            let at = random.next() as usize % out.len();
            out[at] ^= 1 << (random.next() % 8);
        }
        out.truncate(200_000);
        // The server may close during the write.
        c.socket.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
        let _ = std::io::Write::write_all(&mut c.socket, &out);
        if random.one_in(2) {
            let _ = c.socket.shutdown(Shutdown::Write);
            c.is_dropped();
        }
    }
    served.ends_well();
}
