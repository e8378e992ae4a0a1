//! Clients and frontends on one drive at the same time: each reads its own data.

// guarantee: S-11, S-12

use std::process::Command;
use std::time::Duration;

use nvme::Address;
use ocssd::vector::DataSegments;
use open::OpenOptions;
use rng::Rng;
use share_proto::{AclRule, Grant, Principal, ResourceName};
use time::Nanos;
use user_io::{DeviceKind, IoDevice, QueueConfig, RemoteDeviceConfig, WaitMode};

use super::harness::*;

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
}

#[test]
fn two_users_and_nbd_share_a_drive() {
    let dir = tempfile::tempdir().unwrap();
    // With registers, each of the three initializes the drive for itself.
    let registers = SCENARIO.replacen("[drive]\n", "[drive]\ncontroller.registers = true\n", 1);
    assert_ne!(registers, SCENARIO);
    for (scenario, threads) in
        [(SCENARIO, "1"), (SCENARIO, "2"), (&registers, "1"), (&registers, "2")]
    {
        let nbd = dir.path().join("nbd.sock");
        let _ = std::fs::remove_file(&nbd);
        let nbd = format!("unix:{}", nbd.display());
        let server = Server::start(dir.path(), scenario, &["--nbd", &nbd, "--threads", threads]);
        // Another user's process if the test runs as root, otherwise another process of the same
        // user.
        let other = is_root().then_some(OTHER);
        if let Some(uid) = other {
            let (device, partition) =
                (ResourceName::new("drive0").unwrap(), ResourceName::new("left").unwrap());
            let subject = Principal::Uid(uid);
            let rule =
                AclRule { principal: subject, device, partition, grant: Grant::with_queues(2) };
            assert!(!server.admin().allow(rule).unwrap());
        }
        let left = ChildClient::start("verify", &server, "left", other);
        let socket = server.socket.clone();
        let right = std::thread::spawn(move || verify(&socket, "right", 2, 200));
        // NBD, as the kernel's client would use it.
        let (image, back) = (dir.path().join("image"), dir.path().join("back"));
        let mut bytes = vec![0; COUNT as usize * SECTOR];
        let mut rng = Rng::new(3);
        bytes.iter_mut().for_each(|b| *b = rng.next_u64() as u8);
        std::fs::write(&image, &bytes).unwrap();
        let uri = format!("nbd+unix:///?socket={}", &nbd["unix:".len()..]);
        let copy = |from: &std::ffi::OsStr, to: &std::ffi::OsStr| {
            run(Command::new("timeout").args(["120", "nbdcopy"]).args([from, to]));
        };
        for _ in 0..3 {
            copy(image.as_os_str(), uri.as_ref());
            copy(uri.as_ref(), back.as_os_str());
            assert!(std::fs::read(&back).unwrap() == bytes, "NBD must read the data that it wrote");
        }
        left.finish();
        let versions = right.join().unwrap();
        verify_again(&server.socket, "right", 2, &versions);
        copy(uri.as_ref(), back.as_os_str());
        assert!(std::fs::read(&back).unwrap() == bytes);
        server.stop();
    }
}

#[test]
fn a_served_drive_is_opened_like_anything_else() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), SCENARIO, &[]);
    let name = format!("sluice://{}#drive0/left", server.socket.display());
    let plain = OpenOptions::default();
    let device = open::open(&name, &plain).unwrap();
    assert_eq!((device.kind(), device.name()), (DeviceKind::Remote, "drive0/left"));
    let mut handle = handle(&device, WaitMode::Poll);
    let data = device.buffer(SECTOR).unwrap();
    data.write(0, &content(1, 0, 7));
    handle.write(0, &data, true).unwrap();
    let back = device.buffer(SECTOR).unwrap();
    handle.read(0, &back).unwrap();
    let mut bytes = vec![0; SECTOR];
    back.read(0, &mut bytes);
    assert!(bytes == content(1, 0, 7));
    for (options, option) in [
        (OpenOptions { depth: Some(0), ..plain.clone() }, "depth"),
        (OpenOptions { depth: Some(u16::MAX), ..plain.clone() }, "depth"),
    ] {
        let said = open::open(&name, &options).unwrap_err().to_string();
        assert!(said.contains(option), "{said}");
    }
    let options = OpenOptions { queues: Some(u16::MAX), ..plain.clone() };
    let said = open::open(&name, &options).unwrap_err().to_string();
    assert!(said.contains("queues"), "{said}");
    let nowhere = format!("sluice://{}#nowhere", server.socket.display());
    let said = open::open(&nowhere, &plain).unwrap_err().to_string();
    assert!(said.contains("nowhere"), "{said}");
    drop((data, back, handle, device));
    server.stop();
}

#[test]
fn what_was_flushed_is_there_after_the_servers_end() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &in_file(SCENARIO), &[]);
    let versions = verify(&server.socket, "left", 5, 100);
    server.stop();
    let mut server = Server::start(dir.path(), &in_file(SCENARIO), &[]);
    verify_again(&server.socket, "left", 5, &versions);
    let versions = verify(&server.socket, "right", 6, 100);
    server.kill();
    // A killed server leaves its socket, which the next server replaces.
    assert!(server.socket.exists());
    let server = Server::start(dir.path(), &in_file(SCENARIO), &[]);
    verify_again(&server.socket, "right", 6, &versions);
    // The socket of a running server is not replaced.
    let scenario = dir.path().join("scenario.toml");
    let second = Command::new(env!("CARGO_BIN_EXE_sluice"))
        .arg("serve")
        .arg(&scenario)
        .arg("--socket")
        .arg(&server.socket)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(!second.status.success(), "{said}");
    verify_again(&server.socket, "right", 6, &versions);
    server.stop();
}

#[test]
fn rates_are_over_all_of_a_users_connections() {
    let dir = tempfile::tempdir().unwrap();
    let me = rustix::process::geteuid().as_raw();
    let scenario = SCENARIO.replace(
        "name = \"left\"",
        &format!("name = \"left\"\nallow = [{{ user = \"uid:{me}\", queues = 4, iops = 2000 }}]"),
    );
    let server = Server::start(dir.path(), &scenario, &[]);
    // Three of four queues, and one: 1500 and 500 commands per second.
    let config = RemoteDeviceConfig::parse("drive0/left").unwrap();
    let open = |queues| {
        let config = RemoteDeviceConfig { queues: Some(queues), ..config };
        IoDevice::connect_with(&server.socket, config).unwrap()
    };
    let (three, one) = (open(3), open(1));
    for (device, expected) in [(&three, 1500), (&one, 500)] {
        let granted = device.session_grant().unwrap();
        assert_eq!(granted.grant.iops, Some(expected));
        assert_eq!(device.kind(), DeviceKind::Remote);
        let mut h = handle(device, user_io::WaitMode::Poll);
        let buffer = device.buffer(SECTOR).unwrap();
        let (begin, mut done) = (std::time::Instant::now(), 0);
        while begin.elapsed() < Duration::from_millis(500) {
            h.read(0, &buffer).unwrap();
            done += 1;
        }
        assert!(done <= expected / 2 + 50, "{done} commands in half a second");
        assert!(done > expected / 20, "{done} commands in half a second");
    }
    server.stop();
}

#[test]
fn parallel_units_of_an_open_channel_drive_are_shared() {
    let dir = tempfile::tempdir().unwrap();
    let scenario = "[drive]\npreset = \"femu-default\"\npersonality = \"open-channel\"\n\
        geometry = { channels = 2, chunks = 24, pages = 64 }\n\
        [[partition]]\nname = \"few\"\nfirst_pu = 3\npus = 2\n";
    let server = Server::start(dir.path(), scenario, &[]);
    let device = IoDevice::connect(&server.socket, Some("few")).unwrap();
    let media = device.drive_info().unwrap().open_channel.unwrap();
    let unit = media.geometry.ws_min;
    let mut queue = device.vector_queue(QueueConfig { depth: 16, interrupts: false }).unwrap();
    let buffer = device.buffer(unit as usize * SECTOR).unwrap();
    buffer.fill(0, buffer.len(), 0x77);
    for pu in 0..16 {
        let ppa = |sector| {
            let (group, pu) = (pu / media.geometry.pus, pu % media.geometry.pus);
            media.format.pack(Address { group, pu, chunk: 1, sector })
        };
        let all: Vec<_> = (0..unit).map(ppa).collect();
        let data = DataSegments::Contiguous(buffer.iova());
        queue.write(all.iter().copied(), data, None, u64::from(pu)).unwrap();
        queue.ring(false);
        let done = loop {
            if let Some(done) = queue.reap() {
                break done;
            }
            assert!(device.removal_reason().is_none());
            std::thread::yield_now();
        };
        assert_eq!(done.status.is_success(), (3..5).contains(&pu), "pu {pu}: {done:?}");
    }
    // Commands outstanding when the server ends are abandoned by the owner of their queue.
    assert!(device.removal_reason().is_none());
    server.stop();
    assert!(device.removal_reason().is_some());
    assert_eq!(queue.abandon(nvme::Status::HOST_PATH_ERROR), None);
}

#[test]
fn an_idle_server_uses_no_processor() {
    let dir = tempfile::tempdir().unwrap();
    let nbd = format!("unix:{}", dir.path().join("nbd.sock").display());
    let server = Server::start(dir.path(), SCENARIO, &["--nbd", &nbd]);
    let clients: Vec<_> = (0..3).map(|_| client(&server.socket, "left")).collect();
    for (device, handle) in clients {
        let (mut handle, buffer) = (handle, device.buffer(SECTOR).unwrap());
        handle.read(0, &buffer).unwrap();
        std::thread::sleep(Duration::from_millis(300));
        let before = server.ticks();
        std::thread::sleep(Duration::from_secs(1));
        let used = server.ticks() - before;
        assert!(used < 2, "{used} ticks of a second, with an idle client");
        // The idle client can still be woken.
        handle.set_wait(user_io::WaitMode::Interrupt).unwrap();
        handle.read(1, &buffer).unwrap();
        assert!(handle.sleep_stats().1 < Nanos::from_secs(5));
    }
    server.stop();
}
