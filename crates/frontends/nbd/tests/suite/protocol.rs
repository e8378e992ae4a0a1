//! Protocol conformance, tested by a client that shares no code with the server.

use crate::common;

use std::collections::HashMap;
use std::os::unix::net::UnixStream;

use common::*;
use nbd::{Endpoint, NbdConfig, NbdError, NbdServer};
use nvme::Status;
use time::Nanos;

fn named() -> NbdConfig {
    NbdConfig { name: "drive0".into(), description: "a drive".into(), ..NbdConfig::default() }
}

#[test]
fn options_are_answered_as_the_specification_says() {
    let served = Served::new(limits(4096, 16 << 20), named());
    let mut c = NbdClient::greeted(&served.path);
    let mut entry = 6u32.to_be_bytes().to_vec();
    entry.extend_from_slice(b"drive0a drive");
    assert_eq!(c.option(3, &[]), [(REP_SERVER, entry), (ACK, vec![])]);
    assert_eq!(c.option(3, b"x").last().unwrap().0, ERR_INVALID);
    assert_eq!(c.option(5, &[]).last().unwrap().0, ERR_UNSUP, "STARTTLS");
    assert_eq!(c.option(4242, b"whatever").last().unwrap().0, ERR_UNSUP);
    assert_eq!(c.option(6, &info_data("nobody", &[])).last().unwrap().0, ERR_UNKNOWN);
    assert_eq!(c.option(6, &[0, 0]).last().unwrap().0, ERR_INVALID);
    assert_eq!(c.option(10, &meta_data("", &["base:allocation"])).last().unwrap().0, ERR_INVALID);
    assert_eq!(c.option(8, b"x").last().unwrap().0, ERR_INVALID);
    assert_eq!(c.option(7, &info_data("drive0", &[])).last().unwrap().0, ERR_BLOCK_SIZE_REQD);

    let infos = c.option(6, &info_data("", &[1, 2, 3, 77]));
    assert_eq!(infos.last(), Some(&(ACK, vec![])));
    let of = |kind: u16| {
        let found = infos.iter().find(|(r, d)| *r == REP_INFO && be16(d) == kind);
        found.map(|(_, d)| d[2..].to_vec()).unwrap_or_else(|| panic!("no information {kind}"))
    };
    assert_eq!(be64(&of(0)), 16 << 20);
    let flags = be16(&of(0)[8..]);
    assert_eq!(flags, 0b1001_0110_1101, "no SEND_DF before structured replies");
    assert_eq!((of(1), of(2)), (b"drive0".to_vec(), b"a drive".to_vec()));
    let sizes: Vec<u32> = of(3).chunks(4).map(be32).collect();
    assert_eq!(sizes, [4096, 4096, 1 << 20]);

    assert_eq!(c.option(8, &[]), [(ACK, vec![])]);
    let mut context = 0u32.to_be_bytes().to_vec();
    context.extend_from_slice(b"base:allocation");
    for queries in [&[][..], &["base:"], &["base:allocation", "x-y:z"]] {
        let got = c.option(9, &meta_data("drive0", queries));
        assert_eq!(got, [(REP_META_CONTEXT, context.clone()), (ACK, vec![])], "{queries:?}");
    }
    assert_eq!(c.option(9, &meta_data("", &["qemu:"])), [(ACK, vec![])]);
    assert_eq!(c.option(10, &meta_data("", &[])), [(ACK, vec![])], "zero queries select nothing");
    let go = c.option(7, &info_data("drive0", &[3]));
    assert_eq!(go.last(), Some(&(ACK, vec![])));
    let export = go.iter().find(|(r, d)| *r == REP_INFO && be16(d) == 0).unwrap();
    assert_eq!(be16(&export.1[10..]), flags | 1 << 7, "SEND_DF with structured replies");
    c.structured = true;
    assert_eq!(c.block_status(0, 0, 4096), Err(EINVAL), "no context was selected");
    c.disconnect();

    let mut c = NbdClient::greeted(&served.path);
    assert_eq!(c.option(2, &[]), [(ACK, vec![])]);
    assert!(c.is_dropped(), "ABORT ends the session");
    served.until("nobody vanished", |s| s.connections_open == 0);
    assert_eq!(served.stats().clients_vanished, 0);
}

#[test]
fn export_name_enters_transmission_with_and_without_padding() {
    let served = Served::new(limits(512, 1 << 20), named());
    for (flags, padding) in [(1u32, 124), (3, 0)] {
        let mut c = NbdClient::connect(&served.path);
        c.take(18).unwrap();
        c.give(&flags.to_be_bytes());
        c.send_option(1, 6, b"drive0");
        let reply = c.take(10 + padding).unwrap();
        assert_eq!(be64(&reply), 1 << 20);
        assert!(reply[10..].iter().all(|b| *b == 0));
        assert_eq!(c.read(0, 512).unwrap(), [0; 512]);
        c.disconnect();
    }
    let mut c = NbdClient::greeted(&served.path);
    c.send_option(1, 5, b"other");
    assert!(c.is_dropped());
    served.ends_well();
}

#[test]
fn what_is_written_is_read_in_every_form_and_size() {
    let served = Served::new(limits(512, 64 << 20), NbdConfig::default());
    let data = |len: usize, seed: usize| -> Vec<u8> {
        (0..len).map(|i| (i / 512 + i * seed) as u8).collect()
    };
    for structured in [false, true] {
        let mut c = match structured {
            true => NbdClient::transmission(&served.path),
            false => NbdClient::simple(&served.path),
        };
        for (seed, len) in
            [512, 4096, 61_440, 61_952, 65_536, 300_032, 1 << 20].into_iter().enumerate()
        {
            let bytes = data(len, seed + 3);
            c.write(512 * seed as u64, &bytes).unwrap();
            assert!(c.read(512 * seed as u64, len as u32).unwrap() == bytes, "{len} bytes");
        }
        assert_eq!(c.read(0, 2 << 20), Err(EINVAL), "over the size that it asked for");
        c.disconnect();
    }
    // A client that did not ask for block sizes may use 32 MiB at a time.
    let mut c = NbdClient::greeted(&served.path);
    assert_eq!(c.option(7, &info_data("", &[])).last(), Some(&(ACK, vec![])));
    let bytes = data(32 << 20, 5);
    c.write(512, &bytes).unwrap();
    assert!(c.read(512, 32 << 20).unwrap() == bytes);
    c.disconnect();
    let stats = served.ends_well();
    assert_eq!(stats.errors_refused, 2);
    assert_eq!(stats.errors_device, 0);
}

#[test]
fn many_requests_are_in_flight_and_each_reply_names_its_own() {
    let served = Served::small();
    served.cue(|c| (c.latency, c.scatter) = (Nanos::from_micros(300), true));
    let mut c = NbdClient::transmission(&served.path);
    let writer = c.socket.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        let mut out = Vec::new();
        for i in 0..1000u64 {
            out.extend(request(WRITE, 0, i, i * 4096, 4096));
            out.extend(vec![i as u8 ^ 0x5a; 4096]);
        }
        std::io::Write::write_all(&mut &writer, &out).unwrap();
    });
    let mut order = Vec::new();
    for _ in 0..1000 {
        match c.reply().unwrap() {
            Reply::Simple { error: 0, cookie } => order.push(cookie),
            other => panic!("{other:?}"),
        }
    }
    sender.join().unwrap();
    assert!(!order.is_sorted(), "the device answers out of order, and so does the server");
    order.sort_unstable();
    assert!(order.into_iter().eq(0..1000), "each once");

    let all: Vec<u8> = (0..1000u64).flat_map(|i| request(READ, DF, i, i * 4096, 4096)).collect();
    c.give(&all);
    let mut seen = HashMap::new();
    for _ in 0..1000 {
        let Reply::Chunk { flags: 1, kind: 1, cookie, payload } = c.reply().unwrap() else {
            panic!("one data chunk each");
        };
        assert_eq!(be64(&payload), cookie * 4096);
        assert!(payload[8..].iter().all(|b| *b == cookie as u8 ^ 0x5a), "read {cookie}");
        assert!(seen.insert(cookie, ()).is_none());
    }
    c.disconnect();
    served.ends_well();
}

#[test]
fn a_flush_on_one_connection_covers_the_other_and_fua_is_passed_on() {
    let served = Served::small();
    let (mut a, mut b) = (NbdClient::transmission(&served.path), NbdClient::simple(&served.path));
    a.write(0, &[7; 512]).unwrap();
    b.flush().unwrap();
    assert_eq!(b.read(0, 512).unwrap(), [7; 512]);
    a.write_with(FUA, 512, &[8; 512]).unwrap();
    {
        let cues = served.cues.lock().unwrap();
        assert_eq!((cues.flushes, cues.fua_writes), (1, 1));
    }
    a.command(TRIM, 0, 0, 512).unwrap();
    assert_eq!(served.cues.lock().unwrap().flushes, 1);
    a.command(TRIM, FUA, 0, 512).unwrap();
    a.command(WRITE_ZEROES, FUA, 0, 512).unwrap();
    assert_eq!(served.cues.lock().unwrap().flushes, 3, "a durable trim is flushed");
    drop((a, b));
    served.ends_well();
}

#[test]
fn block_status_tells_holes_from_data() {
    let served = Served::small();
    let mut c = NbdClient::transmission(&served.path);
    const ALL: u32 = 16 << 20;
    assert_eq!(c.block_status(0, 0, ALL).unwrap(), [(ALL, 3)], "queries are put together");
    c.write(4096, &[1; 8192]).unwrap();
    c.write(3 << 20, &[1; 512]).unwrap();
    let (a, b) = ((3 << 20) - 12_288, ALL - (3 << 20) - 512);
    assert_eq!(
        c.block_status(0, 0, ALL).unwrap(),
        [(4096, 3), (8192, 0), (a, 3), (512, 0), (b, 3)]
    );
    assert_eq!(c.block_status(REQ_ONE, 0, ALL).unwrap(), [(4096, 3)]);
    assert_eq!(c.block_status(REQ_ONE, 12_288, ALL - 12_288).unwrap(), [(a, 3)]);
    assert_eq!(c.block_status(0, 4608, 512).unwrap(), [(512, 0)]);
    c.command(TRIM, 0, 4096, 4096).unwrap();
    c.command(WRITE_ZEROES, 0, 8192, 4096).unwrap();
    assert_eq!(c.block_status(REQ_ONE, 0, 1 << 20).unwrap(), [(1 << 20, 3)]);
    c.command(WRITE_ZEROES, NO_HOLE, 0, 4096).unwrap();
    assert_eq!(c.block_status(REQ_ONE, 0, 1 << 20).unwrap(), [(4096, 0)], "provisioned");
    assert_eq!(c.read(0, 4096).unwrap(), [0; 4096]);
    // More extents than one answer of the device holds.
    for i in 0..1000 {
        c.write((8 << 20) + i * 1024, &[1; 512]).unwrap();
    }
    let got = c.block_status(0, 8 << 20, 1 << 20).unwrap();
    assert!(got.len() > 512, "{}", got.len());
    assert!(got.iter().zip([0, 3].into_iter().cycle()).all(|((n, s), t)| *n >= 512 && *s == t));
    assert_eq!(c.block_status(0, u64::from(ALL), 512), Err(EINVAL));
    c.disconnect();
    served.ends_well();
}

#[test]
fn errors_of_the_device_become_errors_of_the_protocol() {
    let served = Served::small();
    let (mut c, mut s) = (NbdClient::transmission(&served.path), NbdClient::simple(&served.path));
    for (sector, status, read, write) in [
        (100, Status::UNRECOVERED_READ, EIO, EIO),
        (200, Status::WRITE_PROTECTED, EPERM, EPERM),
        (300, Status::CAPACITY_EXCEEDED, ENOSPC, ENOSPC),
        (400, Status::INTERNAL.do_not_retry(), EIO, EIO),
        (500, Status::LBA_OUT_OF_RANGE, EINVAL, ENOSPC),
    ] {
        served.cue(|c| c.fail.extend([(sector, status)]));
        let offset = sector * 512;
        for c in [&mut c, &mut s] {
            assert_eq!(c.read(offset - 512, 4096), Err(read), "{status}");
            assert_eq!(c.write(offset, &[1; 512]), Err(write), "{status}");
            assert_eq!(c.read(offset + 512, 512).unwrap(), [0; 512], "the neighbour is well");
        }
    }
    served.cue(|c| c.fail.clear());
    c.write(0, &[1; 4096]).unwrap();
    served.cue(|c| c.full = true);
    assert_eq!(c.write(1 << 20, &[1; 512]), Err(ENOSPC));
    c.write(0, &[2; 4096]).unwrap();
    c.command(TRIM, 0, 0, 4096).unwrap();
    assert_eq!(c.read(0, 512).unwrap(), [0; 512], "a full drive reads and trims");
    served.cue(|c| c.full = false);
    c.write(1 << 20, &[1; 512]).unwrap();
    assert_eq!(c.command(WRITE_ZEROES, NO_HOLE | FAST_ZERO, 0, 512), Err(ENOTSUP));
    c.command(WRITE_ZEROES, FAST_ZERO, 0, 512).unwrap();
    drop((c, s));
    let stats = served.ends_well();
    assert_eq!((stats.errors_device, stats.errors_refused), (21, 1));
}

#[test]
fn an_error_in_the_middle_of_a_split_request_fails_it_once() {
    let served = Served::new(limits(512, 64 << 20), NbdConfig::default());
    served.cue(|c| c.fail.extend([(40_000, Status::UNRECOVERED_READ)]));
    let mut c = NbdClient::greeted(&served.path);
    assert_eq!(c.option(8, &[]), [(ACK, vec![])]);
    assert_eq!(c.option(7, &info_data("", &[])).last(), Some(&(ACK, vec![])));
    c.structured = true;
    assert_eq!(c.read(0, 32 << 20), Err(EIO));
    assert_eq!(c.command(TRIM, 0, 0, 64 << 20), Err(EIO));
    c.disconnect();
    served.ends_well();
}

#[test]
fn a_read_only_export_refuses_changes() {
    let config = NbdConfig { read_only: true, ..NbdConfig::default() };
    let served = Served::new(limits(512, 1 << 20), config);
    let mut c = NbdClient::transmission(&served.path);
    assert_eq!(c.write(0, &[1; 100_000 / 512 * 512]), Err(EPERM));
    assert_eq!(c.command(TRIM, 0, 0, 512), Err(EPERM));
    assert_eq!(c.command(WRITE_ZEROES, 0, 0, 512), Err(EPERM));
    assert_eq!(c.read(0, 512).unwrap(), [0; 512]);
    c.flush().unwrap();
    c.disconnect();
}

#[test]
fn a_stopped_server_completes_requests_in_flight_and_flushes() {
    let served = Served::small();
    let cues = served.cues.clone();
    served.cue(|c| c.latency = Nanos::from_millis(100));
    let mut c = NbdClient::transmission(&served.path);
    let cookie = c.request(READ, 0, 0, 4096);
    served.until("it is under way", |s| s.reads == 1);
    let path = served.path.clone();
    let stopped = std::thread::spawn(move || drop(served));
    assert_eq!(c.result(cookie).unwrap().len(), 8 + 4096);
    assert!(c.is_dropped());
    stopped.join().unwrap();
    assert_eq!(cues.lock().unwrap().flushes, 1);
    assert!(UnixStream::connect(path).is_err());
}

#[test]
fn what_cannot_be_served_is_said_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = [Endpoint::Unix(dir.path().join("s"))];
    let new = |sector: u32, endpoints: &[Endpoint], config: NbdConfig| {
        let limits = limits(sector, 1 << 20);
        NbdServer::new(MemoryDevice::new(limits), endpoints, config).map(drop)
    };
    let config = NbdConfig::default;
    assert!(matches!(new(520, &endpoint, config()), Err(NbdError::SectorSize(520))));
    assert!(matches!(new(512, &[], config()), Err(NbdError::NoEndpoint)));
    let long = NbdConfig { name: "n".repeat(5000), ..config() };
    assert!(matches!(new(512, &endpoint, long), Err(NbdError::TooLong { bytes: 5000, .. })));
    let busy = [endpoint[0].clone(), endpoint[0].clone()];
    assert!(matches!(new(512, &busy, config()), Err(NbdError::Bind(_))));
    new(512, &endpoint, config()).unwrap();
    assert!(!dir.path().join("s").exists(), "nothing is left listening");
}

#[test]
fn a_small_pool_serves_shorter_requests_one_after_another() {
    let config = NbdConfig { pool_bytes: 2 << 20, ..NbdConfig::default() };
    let served = Served::new(limits(512, 16 << 20), config);
    served.cue(|c| c.latency = Nanos::from_micros(500));
    let all: Vec<u8> = (0..64u64).flat_map(|i| request(READ, 0, i, i * 131_072, 131_072)).collect();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut c = NbdClient::transmission(&served.path);
                c.give(&all);
                let mut seen = 0u64;
                for _ in 0..64 {
                    let Reply::Chunk { kind: 1, cookie, payload, .. } = c.reply().unwrap() else {
                        panic!("all are answered");
                    };
                    assert_eq!(payload.len(), 8 + 131_072);
                    seen |= 1 << cookie;
                }
                assert_eq!(seen, u64::MAX);
            });
        }
    });
    assert!(served.ends_well().memory_waits > 0);
}
