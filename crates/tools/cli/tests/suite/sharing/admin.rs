//! `sluice admin`, and refused requests, whose messages say what is allowed.

// guarantee: B-33, B-34, S-12

use std::process::Output;

use serde_json::Value;
use share_proto::{AclRule, Code, Grant, KickTarget, Principal, ResourceName};
use user_io::remote::RemovalReason;
use user_io::{DirectError, IoDevice, RemoteDeviceConfig, RemoteDeviceError};

use super::harness::*;

fn refused(result: Result<IoDevice, DirectError>) -> (Code, String) {
    match result.unwrap_err() {
        DirectError::Remote(error) => {
            let refusal = error.protocol_error().unwrap_or_else(|| panic!("{error}"));
            (refusal.code, refusal.text.clone())
        }
        other => panic!("{other}"),
    }
}

fn output_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn refusals_say_what_is_allowed() {
    let dir = tempfile::tempdir().unwrap();
    let nowhere = dir.path().join("nobody");
    let error = IoDevice::connect(&nowhere, None).unwrap_err();
    assert!(
        matches!(&error, DirectError::Remote(e @ RemoteDeviceError::Connect { .. }) if e.is_disconnected())
    );
    assert!(error.to_string().contains("nobody"), "{error}");
    let nbd = format!("unix:{}", dir.path().join("nbd.sock").display());
    let server = Server::start(dir.path(), SCENARIO, &["--nbd", &nbd]);
    let open = |what| refused(IoDevice::connect(&server.socket, what));
    let me = rustix::process::geteuid().as_raw();
    let all = "drive0/left, drive0/right, drive0/rest";
    let (code, text) = open(Some("middle"));
    assert_eq!(code, Code::NotAllowed);
    assert_eq!(text, format!("uid {me} may not use middle; it may use: {all}"));
    let (code, text) = open(Some("drive7/left"));
    assert_eq!(code, Code::NotAllowed);
    assert!(text.contains("drive7/left") && text.ends_with(all), "{text}");
    let (code, text) = open(Some("net"));
    assert_eq!(code, Code::Taken);
    assert!(text.contains("served over NBD"), "{text}");
    let (code, text) = open(None);
    assert_eq!(code, Code::NotAllowed);
    assert!(text.starts_with("say which") && text.ends_with(all), "{text}");
    assert!(matches!(
        IoDevice::connect(&server.socket, Some("no such name")),
        Err(DirectError::Remote(RemoteDeviceError::Name(_)))
    ));
    // The limit of queues applies to all connections of a user.
    let subject = Principal::Uid(me);
    let (device, partition) =
        (ResourceName::new("drive0").unwrap(), ResourceName::new("left").unwrap());
    let rule = AclRule { principal: subject, device, partition, grant: Grant::with_queues(3) };
    server.admin().allow(rule).unwrap();
    let config = RemoteDeviceConfig::parse("left").unwrap();
    let with = |queues| {
        IoDevice::connect_with(
            &server.socket,
            RemoteDeviceConfig { queues: Some(queues), ..config },
        )
    };
    let (code, text) = refused(with(4));
    assert_eq!(code, Code::Queues);
    assert!(text.contains(&format!("uid {me} may have 3")) && text.ends_with("allowed now: 3"));
    let first = with(2).unwrap();
    let (code, text) = refused(with(2));
    assert_eq!(code, Code::Queues);
    assert!(text.contains("has 2") && text.ends_with("allowed now: 1"), "{text}");
    // A device has as many queues as were granted.
    let queues: Vec<_> = (0..2).map(|_| handle(&first, user_io::WaitMode::Poll)).collect();
    let error = first.create_queue(Default::default()).unwrap_err();
    assert!(error.to_string().contains('2'), "{error}");
    drop(queues);
    // Without an explicit number, the device gets the remaining queues.
    let second = IoDevice::connect(&server.socket, Some("left")).unwrap();
    assert_eq!(second.session_grant().unwrap().grant.queues, 1);
    let (code, _) = refused(IoDevice::connect(&server.socket, Some("left")));
    assert_eq!(code, Code::Queues);
    drop((first, second));
    server.wait_for_clients(0);
    assert_eq!(with(3).unwrap().session_grant().unwrap().grant.queues, 3);
    // A connection may register a limited amount of memory.
    let device = with(1).unwrap();
    let most = device.session_grant().unwrap().bytes;
    let error = device.buffer(most as usize).unwrap_err();
    match &error {
        DirectError::Remote(RemoteDeviceError::Refused(refusal)) => {
            assert_eq!(refusal.code, Code::Memory);
            assert!(refusal.text.contains(&most.to_string()), "{error}");
        }
        other => panic!("{other}"),
    }
    assert!(device.buffer(SECTOR).is_ok(), "a smaller buffer must be possible");
    assert!(device.reconnect().is_ok());
    let null = IoDevice::null(*device.limits());
    assert!(matches!(
        null.reconnect(),
        Err(DirectError::Remote(RemoteDeviceError::NotRemote { .. }))
    ));
    server.stop();
}

#[test]
fn other_users_may_what_they_were_allowed_and_no_more() {
    if !is_root() {
        testkit::skip!("not root: there is no other user to be had");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), SCENARIO, &[]);
    let user = Some(OTHER);
    let mut other = ChildClient::start("refused", &server, "left", user);
    let error = format!("the server refuses: uid {OTHER} may not use left; it may use: nothing");
    assert_eq!(other.line(), error);
    let error = other.line();
    assert!(error.contains("only the user who runs the server, and root"), "{error}");
    let owner = rustix::process::geteuid().as_raw();
    let refused = format!("uid {OTHER} may not administrate; uid {owner} and root may");
    assert_eq!(other.line(), refused);
    other.finish();
    let args = ["allow", &format!("gid:{OTHER}"), "--device", "drive0", "--partition", "right"];
    assert!(server.sluice_admin(&args).status.success());
    let mut other = ChildClient::start("refused", &server, "left", user);
    assert!(other.line().ends_with("it may use: drive0/right"));
    other.finish();
    ChildClient::start("verify", &server, "right", user).finish();
    server.stop();
}

#[test]
fn the_table_is_changed_while_the_server_runs() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), SCENARIO, &[]);
    let me = format!("uid:{}", rustix::process::geteuid().as_raw());
    let on = ["--device", "drive0", "--partition", "left"];
    let allow = |more: &[&str]| {
        let args = [&["allow", &me], &on[..], more].concat();
        output_text(&server.sluice_admin(&args))
    };
    let text = allow(&["--queues", "2", "--iops", "5000", "--bandwidth", "100MB/s"]);
    let expected = format!("{me} may use drive0/left: 2 queues, 5,000 commands/s, 100 MB/s\n");
    assert_eq!(text, expected);
    assert!(
        allow(&["--read-only"])
            .ends_with("4 queues, read only, in place of what was allowed before\n")
    );
    let (device, mut h) = client(&server.socket, "left");
    let buffer = device.buffer(SECTOR).unwrap();
    h.read(0, &buffer).unwrap();
    let error = h.write(0, &buffer, false).unwrap_err();
    assert!(error.status().unwrap().is(nvme::Status::WRITE_PROTECTED) && !error.is_removed());
    let error = h.read(COUNT, &buffer).unwrap_err();
    assert!(error.status().unwrap().is(nvme::Status::LBA_OUT_OF_RANGE), "{error}");
    let list: Value =
        serde_json::from_slice(&server.sluice_admin(&["list", "--json"]).stdout).unwrap();
    assert_eq!(list["partitions"].as_array().unwrap().len(), 4);
    assert_eq!(list["partitions"][1]["count"], 2000);
    assert_eq!(
        (&list["rules"][0]["user"], &list["rules"][0]["write"]),
        (&me.clone().into(), &false.into())
    );
    let c = &list["clients"][0];
    assert_eq!((&c["device"], &c["partition"]), (&"drive0".into(), &"left".into()));
    assert_eq!((&c["queues"], &c["queues_granted"]), (&1.into(), &4.into()));
    assert_eq!(c["pid"], std::process::id());
    assert!(c["commands"].as_u64().unwrap() >= 3 && c["bytes"].as_u64().unwrap() >= 4096, "{c}");
    assert!(c["refused"].as_u64().unwrap() >= 1, "{c}");
    assert!(c["registered_bytes"].as_u64().unwrap() >= 4 << 20, "{c}");
    let sheet = output_text(&server.sluice_admin(&["list"]));
    assert!(sheet.contains("drive0/left") && sheet.contains("sectors 2000..+2000"), "{sheet}");
    // Denying the rule disconnects the client that depends on it.
    let output = server.sluice_admin(&[&["deny", &me[..]], &on[..2]].concat());
    assert_eq!(output_text(&output), format!("{me} denied: 1 rule removed\n"));
    assert!(h.read(0, &buffer).unwrap_err().is_removed());
    match device.removal_reason().unwrap() {
        RemovalReason::Disconnected(refusal) => assert_eq!(refusal.code, Code::Denied),
        other => panic!("{other}"),
    }
    // Errors of the caller have exit code 2 and a message.
    for (args, part) in [
        (vec!["deny", &me, "--device", "drive0"], "there is no rule for"),
        (vec!["allow", &me, "--device", "drive0", "--partition", "x"], "there are: drive0/left"),
        (vec!["allow", &me, "--device", "x", "--partition", "left"], "is not there"),
        (vec!["allow", "nobody at all", "--device", "d", "--partition", "p"], "/etc/passwd"),
        (vec!["kick", "99999"], "there are: none"),
    ] {
        let output = server.sluice_admin(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(output_text(&output).contains(part), "{args:?}: {}", output_text(&output));
    }
    server.stop();
}

/// Rates of a rule hold for the clients that rely on it already; its other permissions for later
/// ones.
#[test]
fn rates_change_for_connected_clients() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), SCENARIO, &[]);
    let me = format!("uid:{}", rustix::process::geteuid().as_raw());
    let allow = |partition: &str, more: &[&str]| {
        let args = ["allow", &me, "--device", "drive0", "--partition", partition];
        let output = server.sluice_admin(&[&args[..], more].concat());
        assert!(output.status.success(), "{}", output_text(&output));
    };
    allow("left", &["--queues", "8"]);
    allow("right", &["--queues", "8"]);
    let config = RemoteDeviceConfig::parse("left").unwrap();
    let config = RemoteDeviceConfig { queues: Some(2), ..config };
    let device = IoDevice::connect_with(&server.socket, config).unwrap();
    let mut h = handle(&device, user_io::WaitMode::Poll);
    let (beside, mut other) = client(&server.socket, "right");
    let buffer = device.buffer(SECTOR).unwrap();
    let mut read = |count: u64| {
        let start = std::time::Instant::now();
        (0..count).for_each(|lba| h.read(lba, &buffer).unwrap());
        start.elapsed().as_secs_f64()
    };
    let held = || {
        let list = server.sluice_admin(&["list", "--json"]).stdout;
        let list: Value = serde_json::from_slice(&list).unwrap();
        let clients = list["clients"].as_array().unwrap().iter();
        let clients = clients.map(|c| (c["partition"].clone(), c["held"].as_u64().unwrap()));
        let of = |name: &str| clients.clone().find(|(part, _)| part == name).unwrap().1;
        (of("left"), of("right"))
    };
    read(100);
    assert_eq!(held(), (0, 0));
    // Two of eight queues: a quarter of the rate.
    allow("left", &["--queues", "8", "--iops", "200"]);
    let took = read(20);
    assert!(took > 0.3, "20 reads in {took} s, at 50 per second");
    let (left, right) = held();
    assert!(left > 0 && right == 0, "{left} {right}");
    // With a rule for fewer queues than it has, the client has all of the rate, and no more.
    allow("left", &["--queues", "1", "--iops", "50", "--read-only"]);
    let took = read(20);
    assert!(took > 0.3, "20 reads in {took} s, at 50 per second");
    // By bytes: five sectors per second and queue.
    allow("left", &["--queues", "8", "--bandwidth", "80KB/s"]);
    let took = read(4);
    assert!(took > 0.5, "4 reads in {took} s, at 20 KB/s");
    // Without a rate again, nothing is held back.
    allow("left", &["--queues", "8"]);
    let before = held();
    read(500);
    assert_eq!(held(), before);
    let written = beside.buffer(SECTOR).unwrap();
    other.write(0, &written, false).unwrap();
    server.stop();
}

#[test]
fn who_is_kicked_in_the_middle_of_it_hears_why_and_may_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), SCENARIO, &[]);
    let me = rustix::process::geteuid().as_raw();
    for round in 0..6 {
        let (device, mut h) = client(&server.socket, "left");
        if round % 2 == 1 {
            h.set_wait(user_io::WaitMode::Interrupt).unwrap();
        }
        let buffer = device.buffer(SECTOR).unwrap();
        let (socket, number) = (server.socket.clone(), device.session_grant().unwrap().client);
        let whom = if round < 3 {
            KickTarget::Client(number)
        } else {
            KickTarget::Subject(Principal::Uid(me))
        };
        let kick = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(20));
            user_io::remote::Admin::connect(&socket).unwrap().kick(whom).unwrap()
        });
        let (mut submitted, mut ended, mut lost) = (0u64, 0u64, 0u64);
        while lost == 0 {
            while h
                .submit(user_io::Request::write(submitted % 64, 1, buffer.payload(), submitted))
                .is_ok()
            {
                submitted += 1;
            }
            let done = h.wait().unwrap();
            ended += 1;
            lost += u64::from(!done.status.is_success());
            assert!(lost == 0 || done.status.is(nvme::Status::HOST_PATH_ERROR), "{done:?}");
        }
        while h.outstanding() > 0 {
            let done = h.wait().unwrap();
            ended += 1;
            assert!(done.status.is_success() || done.status.is(nvme::Status::HOST_PATH_ERROR));
        }
        assert_eq!(ended, submitted, "each request must complete exactly once");
        assert_eq!(kick.join().unwrap(), 1);
        match device.removal_reason().unwrap() {
            RemovalReason::Disconnected(refusal) => assert_eq!(refusal.code, Code::Kicked),
            other => panic!("{other}"),
        }
        // The removed device creates no queues and buffers; the client can reconnect.
        let gone = |e: DirectError| matches!(e, DirectError::Remote(RemoteDeviceError::Removed(_)));
        assert!(gone(device.create_queue(Default::default()).unwrap_err()));
        assert!(gone(device.buffer(64 << 20).unwrap_err()));
        let again = device.reconnect().unwrap();
        assert!(again.removal_reason().is_none());
        handle(&again, user_io::WaitMode::Poll).read(0, &again.buffer(SECTOR).unwrap()).unwrap();
    }
    server.stop();
}

#[test]
fn drives_that_cannot_be_shared_say_why() {
    let dir = tempfile::tempdir().unwrap();
    let nbd = format!("unix:{}", dir.path().join("nbd.sock").display());
    let pblk = SCENARIO.split("[[partition]]").next().unwrap().replace(
        "[drive]\n",
        "[drive]\npersonality = \"open-channel\"\ntarget = { kind = \"pblk\", over_provisioning = 0.3 }\n",
    );
    let with = |share: &str| format!("{SCENARIO}[[partition]]\nname = \"more\"\n{share}");
    for (scenario, nbd, says) in [
        (pblk.clone(), Some(&nbd), "managed by pblk on the host"),
        (pblk, None, "managed by pblk on the host"),
        (with("first = 3999\nsectors = 2\n"), None, "partitions right and more of drive0 overlap"),
        (with("first = 10\nsectors = 99999999\n"), None, "it has "),
        (with("first = 6000\nsize = 5000\n"), None, "no whole sectors of 4096"),
        (with("pus = 1\n"), None, "it manages its own media"),
        (with("first = 6000\nsectors = 1\nnbd = true\n"), Some(&nbd), "NBD serves one partition"),
    ] {
        let more = nbd.map_or(vec![], |nbd| vec!["--nbd", nbd]);
        let mut server = Server::launch(dir.path(), &scenario, &more);
        let status = server.child.wait().unwrap();
        let error = server.stderr();
        assert!(status.code() == Some(2) && error.contains(says), "{status} {says}: {error}");
    }
}
