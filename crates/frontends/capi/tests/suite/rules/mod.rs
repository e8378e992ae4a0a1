//! `sluice_rules_install()` and others: rules of a drive that this program has opened.

// guarantee: B-115

use std::ffi::{CStr, CString, c_char};
use std::ptr::{null, null_mut};

use sluice_c::*;

const APP: &str = "app db { units = 0-3, spare = 0.05 }\ntable map: addr[db.sectors] durable\n";

const LOAD: &str = "rule load\n  when channel.app == db and header.read\n  \
    do header.addr = map[header.lba]; insert lun\n";

const STORE: &str = "rule store\n  when channel.app == db and header.write\n  \
    set map[header.lba] = next_addr(db.host)\n  do header.addr = map[header.lba]; insert lun\n";

fn open(folder: &std::path::Path, keys: &str) -> *mut sluice_device {
    let file = folder.join("d.toml");
    let drive = "[drive]\nname = \"d\"\npreset = \"femu-default\"\n\
        geometry = { channels = 2, pus = 2, chunks = 24, pages = 32 }\n";
    std::fs::write(&file, format!("{drive}{keys}")).unwrap();
    let what = CString::new(file.to_str().unwrap()).unwrap();
    let mut device = null_mut();
    ok!(sluice_open_version(SLUICE_VERSION, what.as_ptr(), null(), &mut device));
    device
}

/// Returns the number of classes of misses, and the first one.
fn missed(device: *mut sluice_device) -> (i32, sluice_rule_misses) {
    let none: sluice_rule_misses = sluice_rule_misses {
        op: [0; 16],
        misses: 0,
        parked: 0,
        released: 0,
        rejected: 0,
        timed_out: 0,
        refused: 0,
        aborted: 0,
        lba: 0,
    };
    let mut found = [none];
    // SAFETY: the array has one element.
    let classes = unsafe { sluice_rules_misses(device, null(), found.as_mut_ptr(), 1) };
    (classes, found[0])
}

#[test]
fn rules_are_installed_and_refusals_have_codes() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("load.rules"), format!("{APP}{LOAD}")).unwrap();
    let keys =
        "personality = \"rules\"\nrules = { program = \"load.rules\", miss_timeout = \"10ms\" }\n";
    let device = open(folder.path(), keys);
    assert_eq!(missed(device).0, 0);
    let (mut queue, mut handle) = (null_mut(), null_mut());
    ok!(sluice_queue_create(device, null(), &mut queue));
    ok!(sluice_handle_create(queue, null(), &mut handle));
    let data = [7_u8; 4096];
    // SAFETY: the handle is open and the data is readable.
    let written = unsafe { sluice_pwrite(handle, data.as_ptr().cast(), data.len(), 8192) };
    assert!(written < 0, "no rule matches");
    let (classes, writes) = missed(device);
    // SAFETY: the name ends with a zero.
    let op = unsafe { CStr::from_ptr(writes.op.as_ptr()) };
    assert_eq!((classes, op, writes.misses), (1, c"write", 1));
    assert_eq!((writes.timed_out, writes.parked, writes.lba), (1, 0, 2));

    let mut number = 9;
    ok!(sluice_rules_reject(device, null(), c"write".as_ptr(), &mut number));
    assert_eq!(number, 0, "the command is over");
    ok!(sluice_rules_reject(device, null(), null(), null_mut()));
    let whole = CString::new(format!("{APP}{LOAD}{STORE}")).unwrap();
    number = 9;
    ok!(sluice_rules_install(device, c"d".as_ptr(), whole.as_ptr(), &mut number));
    assert_eq!(number, 0);
    // SAFETY: as above.
    let written = unsafe { sluice_pwrite(handle, data.as_ptr().cast(), data.len(), 8192) };
    assert_eq!(written, 4096);

    let bad: *const c_char = c"rule x".as_ptr();
    expect!(sluice_rules_install(device, null(), bad, null_mut()), EINVAL, "program:1:");
    expect!(sluice_rules_install(device, null(), null(), null_mut()), EINVAL, "source");
    expect!(sluice_rules_install(device, c"e".as_ptr(), bad, null_mut()), EINVAL, "there are: d");
    expect!(sluice_rules_misses(device, null(), null_mut(), 1), EINVAL, "misses");
    ok!(sluice_handle_destroy(handle));
    ok!(sluice_queue_destroy(queue));
    ok!(sluice_close(device));

    let block = open(folder.path(), "");
    expect!(
        sluice_rules_misses(block, null(), null_mut(), 0),
        EOPNOTSUPP,
        "the drive has no rules"
    );
    ok!(sluice_close(block));
}
