//! Real programs against the server, over a Unix socket and over TCP: `nbdinfo`, `nbdcopy`,
//! `qemu-img`, `qemu-io` and `fio`.

use crate::common;

use std::sync::atomic::{AtomicBool, Ordering};

use common::*;
use event::{IdlePolicy, RealClock};
use nbd::{Endpoint, NbdConfig, NbdServer};
use time::Nanos;

const BYTES: u64 = 64 << 20;

fn served() -> Served {
    let config = NbdConfig {
        name: "drive0".into(),
        description: "for tests".into(),
        ..NbdConfig::default()
    };
    Served::new(limits(4096, BYTES), config)
}

/// Returns a sparse image: data, holes, unaligned data.
fn image() -> Vec<u8> {
    let mut image = vec![0u8; BYTES as usize];
    let mut x = 12345u32;
    for (start, len) in [(0, 1 << 20), (5 << 20, 300_000), (33 << 20, 7_777_777), (60 << 20, 99)] {
        for byte in &mut image[start..start + len] {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = (x >> 24) as u8;
        }
    }
    image
}

#[test]
fn nbdinfo_sees_what_is_offered() {
    let served = served();
    let output =
        succeed(program("nbdinfo", "libnbd-bin").args(["--json", "--list", &served.uri()]));
    let info: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(info["protocol"], "newstyle-fixed");
    let export = &info["exports"][0];
    for (key, want) in [
        ("export-size", BYTES),
        ("block_size_minimum", 4096),
        ("block_size_preferred", 4096),
        ("block_size_maximum", 1 << 20),
    ] {
        assert_eq!(export[key], want, "{key}: {info:#}");
    }
    assert_eq!(export["export-name"], "drive0");
    assert_eq!(export["description"], "for tests");
    assert_eq!(export["contexts"][0], "base:allocation");
    for key in [
        "can_multi_conn",
        "can_trim",
        "can_zero",
        "can_fast_zero",
        "can_flush",
        "can_fua",
        "can_df",
    ] {
        assert_eq!(export[key], true, "{key}: {info:#}");
    }
    for key in ["is_read_only", "is_rotational", "can_cache"] {
        assert_eq!(export[key], false, "{key}: {info:#}");
    }
    let map = succeed(program("nbdinfo", "libnbd-bin").args(["--map", &served.uri()]));
    let map = String::from_utf8(map.stdout).unwrap();
    assert!(map.contains("67108864") && map.contains("hole"), "{map}");
    served.ends_well();
}

#[test]
fn nbdcopy_brings_an_image_in_and_out_byte_for_byte() {
    let served = served();
    served.cue(|c| (c.latency, c.scatter) = (Nanos::from_micros(50), true));
    let (from, to) = (served.file("in.img"), served.file("out.img"));
    std::fs::write(&from, image()).unwrap();
    let uri = served.uri();
    succeed(program("nbdcopy", "libnbd-bin").arg("--flush").arg(&from).arg(&uri));
    succeed(program("nbdcopy", "libnbd-bin").arg(&uri).arg(&to));
    assert!(std::fs::read(&to).unwrap() == image(), "the same image");
    assert!(served.cues.lock().unwrap().flushes > 0);
    assert!(served.stats().connections >= 3, "several connections at once");
    served.until("all said goodbye", |s| s.connections_open == 0);
    let stats = served.stats();
    assert_eq!((stats.clients_vanished, stats.clients_dropped, stats.errors_refused), (0, 0, 0));
}

#[test]
fn qemu_img_converts_compares_and_maps() {
    let served = served();
    let (from, to) = (served.file("in.img"), served.file("out.qcow2"));
    std::fs::write(&from, image()).unwrap();
    let uri = served.uri();
    let qemu_img = || program("qemu-img", "qemu-utils");
    // -n: the export exists.
    succeed(qemu_img().args(["convert", "-n", "-f", "raw", "-O", "raw"]).arg(&from).arg(&uri));
    succeed(qemu_img().args(["compare", "-f", "raw", "-F", "raw"]).arg(&from).arg(&uri));
    succeed(qemu_img().args(["convert", "-f", "raw", "-O", "qcow2"]).arg(&uri).arg(&to));
    succeed(qemu_img().args(["compare", "-f", "raw", "-F", "qcow2"]).arg(&from).arg(&to));
    let map = succeed(qemu_img().args(["map", "--output=json", "-f", "raw"]).arg(&uri));
    let map: serde_json::Value = serde_json::from_slice(&map.stdout).unwrap();
    let extents = map.as_array().unwrap();
    assert!(extents.len() > 4, "holes stay holes: {map:#}");
    assert!(extents.iter().any(|e| e["data"] == false && e["zero"] == true));
    let zeroed = "write -z -u 0 4M";
    let script = ["-c", "write -P 0xab 8M 1M", "-c", zeroed, "-c", "discard 33M 2M", "-c", "flush"];
    succeed(program("qemu-io", "qemu-utils").args(["-f", "raw"]).args(script).arg(&uri));
    let check = ["-c", "read -P 0xab 8M 1M", "-c", "read -P 0 0 4M", "-c", "read -P 0 33M 2M"];
    let out = succeed(program("qemu-io", "qemu-utils").args(["-f", "raw"]).args(check).arg(&uri));
    assert!(!String::from_utf8_lossy(&out.stdout).contains("failed"), "{out:?}");
    served.ends_well();
}

#[test]
fn fio_verifies_what_it_wrote() {
    let served = served();
    served.cue(|c| (c.latency, c.scatter) = (Nanos::from_micros(30), true));
    for (name, extra) in [
        ("random", &["--rw=randwrite", "--bs=4k", "--iodepth=32"][..]),
        ("sizes", &["--rw=randwrite", "--bsrange=4k-256k", "--blockalign=4k", "--iodepth=16"]),
        ("sequential", &["--rw=write", "--bs=1m", "--iodepth=4", "--fsync=8"]),
        ("mixed", &["--rw=randrw", "--bs=16k", "--iodepth=8"]),
        // fio does not wait for the trim of a block before it writes the block, and a server may
        // reorder them. Therefore one request at a time.
        ("trims", &["--rw=randtrimwrite", "--bs=4k", "--iodepth=1"]),
    ] {
        let mut fio = program("fio", "fio");
        fio.args(["--name=verify", "--ioengine=nbd", "--size=32m", "--output-format=json"]);
        fio.args(["--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0"]);
        fio.arg(format!("--uri={}", served.uri())).args(extra).current_dir(served.file(""));
        let output = succeed(&mut fio);
        // fio prints notes before its result.
        let text = String::from_utf8(output.stdout).unwrap();
        let json = &text[text.find('{').unwrap_or_else(|| panic!("no result: {text}"))..];
        let json: serde_json::Value = serde_json::from_str(json).unwrap();
        let job = &json["jobs"][0];
        assert_eq!(job["error"], 0, "{name}");
        assert!(job["write"]["total_ios"].as_u64().unwrap() > 0, "{name}");
    }
    let stats = served.ends_well();
    assert!(stats.trims > 0 && stats.flushes > 0, "{stats:?}");
    assert_eq!((stats.errors_device, stats.errors_refused), (0, 0));
}

#[test]
fn tcp_serves_the_same_and_two_endpoints_reach_one_device() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let endpoints = [Endpoint::Unix(path.clone()), "tcp:127.0.0.1:0".parse().unwrap()];
    let device = MemoryDevice::new(limits(512, 8 << 20));
    let mut server = NbdServer::new(device, &endpoints, NbdConfig::default()).unwrap();
    let Endpoint::Tcp { port, .. } = server.endpoints()[1] else { panic!("in the order given") };
    let (stop, waker) = (AtomicBool::new(false), server.waker());
    std::thread::scope(|scope| {
        let (stop, server) = (&stop, &mut server);
        let thread = scope.spawn(move || {
            server.run(RealClock::start(), IdlePolicy::default(), &mut NullComponent, stop)
        });
        let mut c = NbdClient::transmission(&path);
        c.write(0, &[0xcd; 65_536]).unwrap();
        c.disconnect();
        let uri = format!("nbd://127.0.0.1:{port}");
        let read = ["-f", "raw", "-c", "read -P 0xcd 0 64k"];
        let out = succeed(program("qemu-io", "qemu-utils").args(read).arg(uri));
        assert!(!String::from_utf8_lossy(&out.stdout).contains("failed"), "{out:?}");
        stop.store(true, Ordering::Relaxed);
        waker.wake();
        thread.join().unwrap().unwrap();
    });
    assert_eq!(server.stats().connections, 2);
    drop(server.into_device());
}
