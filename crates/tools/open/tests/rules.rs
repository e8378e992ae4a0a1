//! `DriveControl` of a program that has opened a target with rules itself.

// guarantee: B-130

use std::sync::atomic::{AtomicBool, Ordering};

use controller::{DriveRulesError, RuleTableEdit};
use scenario::Scenario;
use sluice_open::{DriveControl, DriveControlError, OpenOptions, open_scenario};
use user_io::{DeviceKind, Handle, IoDevice, Queue, QueueConfig};

const SECTOR: usize = 4096;

const APP: &str = "app db { units = 0-7, spare = 0.05 }\ntable map: addr[db.sectors] durable\n\
    table seen: set<u16>[8] volatile\n";
const LOAD: &str = "rule load\n  when channel.app == db and header.read\n  \
    do header.addr = map[header.lba]; insert lun\n";
const STORE: &str = "rule store\n  when channel.app == db and header.write\n  \
    set map[header.lba] = next_addr(db.host)\n  do header.addr = map[header.lba]; insert lun\n";

/// Returns the keys of a drive, and its target with these keys.
fn drive(name: &str, target: &str) -> String {
    format!(
        "[[drive]]\nname = \"{name}\"\npreset = \"femu-default\"\npersonality = \"open-channel\"\n\
         geometry = {{ channels = 2, pus = 4, chunks = 40, pages = 16 }}\n\
         target = {{ over_provisioning = 0.3, {target} }}\n"
    )
}

fn opened(text: &str, name: Option<&str>) -> (IoDevice, DriveControl) {
    let scenario = Scenario::parse("drive.toml".as_ref(), text).unwrap_or_else(|e| panic!("{e}"));
    open_scenario(&scenario, name, &OpenOptions::default()).unwrap_or_else(|e| panic!("{e}"))
}

fn handle(device: &IoDevice) -> Handle<Queue> {
    let queue = device.create_queue(QueueConfig::default()).expect("a queue");
    Handle::new(device, queue).expect("a handle")
}

fn install(control: &DriveControl, drive: Option<&str>, rules: &str) {
    let source = format!("{APP}{rules}");
    let installed = control.install_rules(drive, "p.rules", source.as_bytes());
    assert_eq!(installed.unwrap_or_else(|e| panic!("{e}")), 0, "a target parks nothing");
}

fn names(control: &DriveControl, drive: Option<&str>) -> Vec<String> {
    let rules = control.rules(drive).expect("rules").stats.rules;
    rules.into_iter().map(|rule| rule.name).collect()
}

#[test]
fn the_thread_with_the_handle_replaces_the_program_of_its_target() {
    let (device, control) =
        opened(&drive("d", "kind = \"rules\", template = \"throughput\""), None);
    assert_eq!(device.kind(), DeviceKind::Target);
    // Before there is any queue, and while a queue has no handle.
    assert_eq!(control.rules(None).expect("rules").units, 8);
    let mut handle = handle(&device);
    let data = device.buffer(SECTOR).expect("a buffer");
    data.fill(0, SECTOR, 7);
    handle.write(3, &data, false).expect("a write");
    install(&control, Some("d"), LOAD);
    assert_eq!(names(&control, None), ["load"]);
    data.fill(0, SECTOR, 0);
    handle.read(3, &data).expect("a read");
    let mut found = vec![0; SECTOR];
    data.read(0, &mut found);
    assert!(found.iter().all(|byte| *byte == 7), "{}", found[0]);
    let missed = handle.write(3, &data, false).expect_err("no rule for writes");
    assert!(missed.to_string().contains("no rule"), "{missed}");

    let stats = control.rules(Some("d")).expect("rules").stats;
    assert_eq!((stats.installations, stats.misses, stats.inputs), (1, 1, 2));
    assert_eq!((stats.apps[0].name.as_str(), stats.apps[0].inputs), ("db", 2));
    assert_eq!((stats.missed[0].op.as_str(), stats.missed[0].lba), ("write", 3));
    for op in [None, Some("write")] {
        let refused = control.reject_misses(None, op).expect_err("nothing is parked");
        assert!(matches!(refused, DriveControlError::TargetRules(_)), "{refused}");
        assert!(refused.to_string().contains("a target parks no request"), "{refused}");
    }

    let edits = [3, 5].map(|key| RuleTableEdit::Add { key });
    control.edit_rule_table(None, "seen", edits.to_vec()).expect("keys that fit");
    assert_eq!(control.rule_table_values(None, "seen", 3, 3).expect("values"), [1, 0, 1]);
    let remove = vec![RuleTableEdit::Remove { key: 3 }];
    control.edit_rule_table(None, 1, remove).expect("the table with this number");
    assert_eq!(control.rule_table_values(None, 1, 3, 3).expect("values"), [0, 0, 1]);
    let unknown = control.rule_table_values(None, "other", 0, 1).expect_err("no such table");
    assert!(unknown.to_string().contains("other"), "{unknown}");

    // A program that is refused changes nothing.
    let posts = format!("{APP}{LOAD}rule tell when idle(db) do post migrated, 1, 2, 3\n");
    let refused = control.install_rules(None, "p.rules", posts.as_bytes());
    assert!(matches!(refused, Err(DriveControlError::TargetRules(_))), "{refused:?}");
    let refused = control.install_rules(None, "p.rules", b"rule x");
    assert!(matches!(refused, Err(DriveControlError::RuleSource(_))), "{refused:?}");
    assert_eq!(names(&control, None), ["load"]);

    drop((handle, device, data));
    let closed = control.rules(None).expect_err("the target is closed");
    assert!(matches!(closed, DriveControlError::Stopped(_)), "{closed}");
}

#[test]
fn a_program_is_replaced_between_requests_of_another_thread() {
    let (device, control) =
        opened(&drive("d", "kind = \"rules\", template = \"throughput\""), None);
    let ended = AtomicBool::new(false);
    let installations = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut handle = handle(&device);
            let data = device.buffer(SECTOR).expect("a buffer");
            let mut found = vec![0; SECTOR];
            for round in 0..400_u64 {
                data.fill(0, SECTOR, round as u8);
                handle.write(round % 50, &data, false).expect("a write");
                data.fill(0, SECTOR, 0xee);
                handle.read(round % 50, &data).expect("a read");
                data.read(0, &mut found);
                assert!(found.iter().all(|byte| *byte == round as u8), "{round}");
            }
            ended.store(true, Ordering::Relaxed);
        });
        let mut installations = 0;
        while !ended.load(Ordering::Relaxed) && !writer.is_finished() {
            let store = STORE.replace("rule store", &format!("rule store{}", installations % 2));
            install(&control, None, &format!("{store}{LOAD}"));
            installations += 1;
        }
        installations
    });
    let stats = control.rules(None).expect("rules").stats;
    assert_eq!((stats.installations, stats.misses), (installations, 0));
    assert!(installations > 0 && stats.missed.is_empty());
}

#[test]
fn each_target_of_a_set_has_its_rules() {
    let own = "kind = \"rules\", template = \"throughput\"";
    let mut text = drive("a", own) + &drive("p", "kind = \"pblk\"") + &drive("b", own);
    text += "[[set]]\nname = \"s\"\nmembers = [\"a\", \"p\", \"b\"]\nstripe = \"4k\"\n";
    for path in ["", "[path]\nqueue_model = \"mq\"\ncores = 2\n"] {
        let (device, control) = opened(&format!("{text}{path}"), Some("s"));
        let several = control.rules(None).expect_err("a drive must be named");
        assert!(matches!(several, DriveControlError::Several { .. }), "{several}");
        let own_rules = format!("{LOAD}{STORE}").replace("rule ", "rule own_");
        install(&control, Some("b"), &own_rules);
        assert_eq!(names(&control, Some("b")), ["own_load", "own_store"]);
        assert!(!names(&control, Some("a")).contains(&"own_load".to_owned()));
        let none = control.rules(Some("p")).expect_err("pblk has no rules");
        assert!(matches!(none, DriveControlError::Rules(DriveRulesError::NoRules)), "{none}");
        let mut handle = handle(&device);
        let data = device.buffer(3 * SECTOR).expect("a buffer");
        handle.write(0, &data, false).expect("a write");
        let inputs = |drive| control.rules(Some(drive)).expect("rules").stats.inputs;
        assert_eq!((inputs("a"), inputs("b")), (1, 1));
    }
}
