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

const SEARCH: &str = "table wanted: set<u32>[1000] volatile\n\
    record Word = { value: u32 }\n\
    rule search when channel.app == db and header.op == scan\n  set found = 0\n  \
    do for s in header.range up to 4 { for w: Word in s { \
    if w.value in wanted { emit w; found = found + 1 } } } complete ok value found\n\
    rule lookup when channel.app == db and header.op == user2\n  \
    do if header.arg0 in wanted { complete ok value header.arg0 + header.arg1 } complete not_found\n";

#[test]
fn commands_to_rules_return_records_and_values() {
    let folder = tempfile::tempdir().unwrap();
    let program = format!("{APP}{SEARCH}{LOAD}{STORE}");
    std::fs::write(folder.path().join("search.rules"), program).unwrap();
    let keys = "personality = \"rules\"\nrules = { program = \"search.rules\", ops = 1000000 }\n";
    let device = open(folder.path(), keys);
    let (mut queue, mut handle, mut buffer) = (null_mut(), null_mut(), null_mut());
    ok!(sluice_queue_create(device, null(), &mut queue));
    ok!(sluice_handle_create(queue, null(), &mut handle));
    ok!(sluice_buffer_create(device, 4096, &mut buffer));
    let data: Vec<u8> = (0..1024_u32).flat_map(u32::to_le_bytes).collect();
    // SAFETY: the handle is open and the data is readable.
    let written = unsafe { sluice_pwrite(handle, data.as_ptr().cast(), data.len(), 0) };
    assert_eq!(written, 4096);
    let wanted = [3_u64, 1000, 5000];
    let (add, table, values) = (SLUICE_RULE_TABLE_ADD, 1, null());
    ok!(sluice_rule_table_edit(device, table, add, wanted.as_ptr(), values, 3));

    let request = sluice_rule_request { lba: 0, sectors: 1, arg0: 1000, arg1: 5 };
    let mut reply = sluice_rule_reply { value: 9, bytes: 9, status: 9 };
    ok!(sluice_rule_command(device, c"scan".as_ptr(), &request, buffer, &mut reply));
    assert_eq!((reply.value, reply.bytes, reply.status), (2, 8, 0));
    // SAFETY: the buffer has 4096 bytes, and the drive wrote 8 of them.
    let found = unsafe { sluice_buffer_data(buffer).cast::<[u8; 8]>().read() };
    assert_eq!(found, [3, 0, 0, 0, 0xe8, 3, 0, 0]);
    ok!(sluice_rule_command(device, c"user2".as_ptr(), &request, null(), &mut reply));
    assert_eq!((reply.value, reply.bytes, reply.status), (1005, 0, 0));
    let mut has = [9_u64; 4];
    ok!(sluice_rule_table_read(device, table, 999, has.as_mut_ptr(), 3));
    assert_eq!(has, [0, 1, 0, 9]);
    ok!(sluice_rule_table_read(device, table, 999, null_mut(), 0));
    expect!(sluice_rule_table_read(device, table, 0, null_mut(), 1), EINVAL, "values");
    expect!(sluice_rule_table_read(device, 300, 0, has.as_mut_ptr(), 1), EINVAL, "table");
    expect!(sluice_rule_table_read(device, 9, 0, has.as_mut_ptr(), 1), EIO, "invalid field");
    let remove = SLUICE_RULE_TABLE_REMOVE;
    ok!(sluice_rule_table_edit(device, table, remove, wanted.as_ptr(), values, 3));
    ok!(sluice_rule_command(device, c"user2".as_ptr(), &request, null(), &mut reply));
    assert_eq!(reply.status, 0x7c1, "not found");

    let large = [1_u64 << 32];
    let edit = |table, action, keys: *const u64| {
        // SAFETY: `keys` is NULL or has one element.
        unsafe { sluice_rule_table_edit(device, table, action, keys, null(), 1) }
    };
    for (table, action, keys, error) in [
        (table, add, large.as_ptr(), libc::EIO),
        (9, add, large.as_ptr(), libc::EIO),
        (300, add, large.as_ptr(), libc::EINVAL),
        (table, 7, large.as_ptr(), libc::EINVAL),
        (table, add, null(), libc::EINVAL),
        (table, SLUICE_RULE_TABLE_SET, large.as_ptr(), libc::EINVAL),
    ] {
        assert_eq!(edit(table, action, keys), -error, "{table}, {action}");
    }
    let command = |op: &CStr, request: &sluice_rule_request, buffer| {
        let mut reply = sluice_rule_reply { value: 0, bytes: 0, status: 0 };
        // SAFETY: all pointers are those of live objects, or NULL.
        unsafe { sluice_rule_command(device, op.as_ptr(), request, buffer, &mut reply) }
    };
    let empty = sluice_rule_request { sectors: 0, ..request };
    let no_buffer: *const sluice_buffer = null();
    assert_eq!(command(c"read", &request, no_buffer), -libc::EINVAL);
    assert_eq!(command(c"scan", &empty, no_buffer), -libc::EINVAL);
    assert_eq!(command(c"user2", &request, buffer), -libc::EINVAL);
    // SAFETY: the buffer is not used any more.
    unsafe { sluice_buffer_destroy(buffer) };
    ok!(sluice_handle_destroy(handle));
    ok!(sluice_queue_destroy(queue));
    ok!(sluice_close(device));
}
