//! Settings of FTLs and namespaces that administrators change, and faults that they inject.

// guarantee: B-33, B-42, B-65

use share_proto::{
    Code, LimiterSetting, ListEntry, Message, NamespaceAction, SettingChange, SettingsEntry,
    VictimSetting,
};
use user_io::remote::Admin;

use super::harness::{Server, name, table};

fn in_force(admin: &mut Admin) -> Vec<SettingsEntry> {
    let entries = admin.list().unwrap().into_iter();
    let settings = entries.filter_map(|entry| match entry {
        ListEntry::Settings(settings) => Some(settings),
        _ => None,
    });
    settings.collect()
}

#[test]
fn a_change_is_answered_with_the_settings_in_force() {
    let server = Server::start(table());
    let mut admin = Admin::connect(&server.socket).unwrap();
    let pid = LimiterSetting::Pid { kp: 0.5, ki: 0.0, kd: 99.0 };
    let mut expected = SettingsEntry {
        device: name("f"),
        shards: 1,
        active_pus: 8,
        active_pus_max: 8,
        rate_limiter: LimiterSetting::Proportional,
        victim_policy: VictimSetting::Greedy,
    };
    assert_eq!(in_force(&mut admin), [expected], "a drive without an FTL has no entry");
    for change in [
        SettingChange::ActivePus(3),
        SettingChange::RateLimiter(pid),
        SettingChange::VictimPolicy(VictimSetting::CostBenefit),
        SettingChange::VictimPolicy(VictimSetting::Fifo),
        SettingChange::VictimPolicy(VictimSetting::CostWear),
    ] {
        match change {
            SettingChange::ActivePus(count) => expected.active_pus = count,
            SettingChange::RateLimiter(kind) => expected.rate_limiter = kind,
            SettingChange::VictimPolicy(kind) => expected.victim_policy = kind,
        }
        assert_eq!(admin.set(name("f"), change).unwrap(), expected);
        assert_eq!(in_force(&mut Admin::connect(&server.socket).unwrap()), [expected]);
    }
    for (device, code, says) in [
        ("f", Code::Setting, "f: 9 active parallel units, but the layer was opened with 8"),
        ("d", Code::Setting, "d: the device has no FTL"),
        ("a", Code::Unknown, "no drive or target a is served; there are: f, d"),
    ] {
        let error = admin.set(name(device), SettingChange::ActivePus(9)).unwrap_err();
        let refused = error.protocol_error().unwrap();
        assert_eq!(refused.code, code, "{error}");
        assert!(refused.text.starts_with(says), "{error}");
    }
    assert_eq!(in_force(&mut admin), [expected]);
}

#[test]
fn a_change_comes_after_hello_and_entries_from_the_server_only() {
    let server = Server::start(table());
    let set = Message::Set { device: name("f"), change: SettingChange::ActivePus(3) };
    let answer = server.ask(&[Message::Hello, set.clone()]);
    assert!(matches!(answer, Message::Entry(ListEntry::Settings(_))), "{answer:?}");
    for messages in [&[set][..], &[Message::Hello, answer]] {
        match server.ask(messages) {
            Message::Disconnect(refusal) => assert_eq!(refusal.code, Code::Order),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_drive_and_a_server_that_end_meanwhile_are_told() {
    let mut server = Server::start(table());
    let mut admin = Admin::connect(&server.socket).unwrap();
    server.stop_drive();
    let change = SettingChange::ActivePus(1);
    let error = admin.set(name("d"), change).unwrap_err();
    let refused = error.protocol_error().unwrap();
    assert_eq!((refused.code, &refused.text[..]), (Code::Drive, "d: the drive is being shut down"));
    // Other FTLs do not depend on it.
    assert_eq!(admin.set(name("f"), change).unwrap().active_pus, 1);
    drop(server);
    let error = admin.set(name("f"), change).unwrap_err();
    assert_eq!(error.protocol_error().map(|r| r.code), Some(Code::Stopping), "{error}");
}

#[test]
fn a_fault_reaches_the_drive_or_is_refused() {
    let mut server = Server::start(table());
    let mut admin = Admin::connect(&server.socket).unwrap();
    admin.inject_fault(name("d"), "cut").unwrap();
    for (device, text, code, says) in [
        ("d", "die", Code::Fault, "d: the drive has no flash for die-failure"),
        ("d", "x", Code::Fault, "d: no fault x"),
        ("f", "cut", Code::Unknown, "no emulated NVMe drive f is served; there are: d"),
    ] {
        let error = admin.inject_fault(name(device), text).unwrap_err();
        let refused = error.protocol_error().unwrap();
        assert_eq!((refused.code, &refused.text[..]), (code, says));
    }
    server.stop_drive();
    let error = admin.inject_fault(name("d"), "cut").unwrap_err();
    assert_eq!(error.protocol_error().map(|r| r.code), Some(Code::Drive), "{error}");
}

/// The drive has no FTL: it lists its one namespace, and refuses changes.
#[test]
fn namespaces_of_a_drive_without_an_ftl_do_not_change() {
    let mut server = Server::start(table());
    let mut admin = Admin::connect(&server.socket).unwrap();
    let (namespaces, unallocated) = admin.namespaces(name("d")).unwrap();
    let [only] = namespaces[..] else { panic!("{namespaces:?}") };
    assert_eq!((only.nsid, only.blocks, only.block_bytes, unallocated), (1, 256, 4096, 0));
    assert!(only.is_attached);
    for action in [
        NamespaceAction::Create { bytes: Some(4096) },
        NamespaceAction::Delete(None),
        NamespaceAction::Attach(1),
        NamespaceAction::Detach(1),
    ] {
        let error = admin.change_namespaces(name("d"), action).unwrap_err();
        let refused = error.protocol_error().unwrap();
        assert_eq!(refused.code, Code::Namespace, "{error}");
        assert!(refused.text.starts_with("d: the drive has one namespace"), "{error}");
    }
    assert_eq!(admin.namespaces(name("d")).unwrap(), (namespaces, unallocated));
    let says = "no emulated NVMe drive f is served; there are: d";
    let unknown = [
        admin.change_namespaces(name("f"), NamespaceAction::Attach(1)).unwrap_err(),
        admin.namespaces(name("f")).unwrap_err(),
    ];
    for error in unknown {
        let refused = error.protocol_error().unwrap();
        assert_eq!((refused.code, &refused.text[..]), (Code::Unknown, says));
    }
    server.stop_drive();
    let stopped = [
        admin.change_namespaces(name("d"), NamespaceAction::Attach(1)).unwrap_err(),
        admin.namespaces(name("d")).unwrap_err(),
    ];
    for error in stopped {
        assert_eq!(error.protocol_error().map(|r| r.code), Some(Code::Drive), "{error}");
    }
}
