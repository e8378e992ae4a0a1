//! `sluice_rules_install()` and others: rules of a drive that this program has opened.

// guarantee: B-115
// guarantee: B-106

use std::ffi::{CStr, CString, c_char};
use std::ptr::{null, null_mut};

use sluice_c::*;

const APP: &str = "app db { units = 0-3, spare = 0.05 }\ntable map: addr[db.sectors] durable\n";

const LOAD: &str = "rule load\n  when channel.app == db and header.read\n  \
    do header.addr = map[header.lba]; insert lun\n";

const STORE: &str = "rule store\n  when channel.app == db and header.write\n  \
    set map[header.lba] = next_addr(db.host)\n  do header.addr = map[header.lba]; insert lun\n";

fn open(folder: &std::path::Path, keys: &str) -> *mut sluice_device {
    open_with_planes(folder, 1, keys)
}

fn open_with_planes(folder: &std::path::Path, planes: u32, keys: &str) -> *mut sluice_device {
    let file = folder.join("d.toml");
    let drive = "[drive]\nname = \"d\"\npreset = \"femu-default\"\n";
    let geometry = format!(
        "geometry = {{ channels = 2, pus = 2, chunks = 24, pages = 32, planes = {planes} }}\n"
    );
    std::fs::write(&file, format!("{drive}{geometry}{keys}")).unwrap();
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

#[test]
fn the_rules_of_a_target_are_reached_by_the_thread_with_the_handle() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("load.rules"), format!("{APP}{LOAD}")).unwrap();
    let keys = "personality = \"open-channel\"\n[target]\nkind = \"rules\"\n\
        program = \"load.rules\"\nover_provisioning = 0.3\n";
    let device = open(folder.path(), keys);
    let (mut queue, mut handle) = (null_mut(), null_mut());
    ok!(sluice_queue_create(device, null(), &mut queue));
    ok!(sluice_handle_create(queue, null(), &mut handle));
    let data = [7_u8; 4096];
    // SAFETY: the handle is open and the data is readable.
    let write = || unsafe { sluice_pwrite(handle, data.as_ptr().cast(), data.len(), 8192) };
    assert!(write() < 0, "no rule matches");
    let (classes, writes) = missed(device);
    assert_eq!((classes, writes.misses, writes.parked, writes.lba), (1, 1, 0, 2));
    expect!(sluice_rules_reject(device, null(), null(), null_mut()), EINVAL, "parks no request");
    let table = "table seen: set<u16>[8] volatile\n";
    let whole = CString::new(format!("{APP}{table}{LOAD}{STORE}")).unwrap();
    let mut number = 9;
    ok!(sluice_rules_install(device, c"d".as_ptr(), whole.as_ptr(), &mut number));
    assert_eq!((number, write(), missed(device).0), (0, 4096, 0));
    // SAFETY: all bytes of the structure are numbers.
    let mut apps: [sluice_rule_app; 1] = unsafe { std::mem::zeroed() };
    // SAFETY: the device is open and the array has an element.
    assert_eq!(unsafe { sluice_rules_apps(device, null(), apps.as_mut_ptr(), 1) }, 1);
    // SAFETY: the name ends with a zero.
    let name = unsafe { CStr::from_ptr(apps[0].name.as_ptr()) };
    assert_eq!((name, apps[0].inputs, apps[0].misses), (c"db", 1, 0));

    let (add, remove) = (SLUICE_RULE_TABLE_ADD, SLUICE_RULE_TABLE_REMOVE);
    let (keys, values) = ([3_u64, 5], null());
    ok!(sluice_rule_table_edit(device, 1, add, keys.as_ptr(), values, 2));
    ok!(sluice_rule_table_edit(device, 1, remove, keys.as_ptr(), values, 1));
    let mut has = [9_u64; 3];
    ok!(sluice_rule_table_read(device, 1, 3, has.as_mut_ptr(), 3));
    assert_eq!(has, [0, 0, 1]);
    expect!(sluice_rule_table_read(device, 9, 3, has.as_mut_ptr(), 3), EINVAL, "table");
    expect!(sluice_rule_table_edit(device, 0, add, keys.as_ptr(), values, 1), EINVAL, "map");
    ok!(sluice_handle_destroy(handle));
    ok!(sluice_queue_destroy(queue));
    ok!(sluice_close(device));
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

/// Returns the rules of two applications, each with two parallel units.
fn two_applications() -> String {
    let of = |app: &str, units: &str| {
        let rules =
            format!("{STORE}{LOAD}").replace("rule ", "rule db_").replace("map[", "db_map[");
        let declared = APP.replace("0-3", units).replace("table map", "table db.db_map");
        format!("{declared}{rules}").replace("db", app)
    };
    of("db", "0-1") + &of("log", "2-3")
}

/// Opens an application of the drive in `d.toml`.
fn open_application(folder: &std::path::Path, app: &str) -> [*mut std::ffi::c_void; 3] {
    let what = CString::new(format!("{}#{app}", folder.join("d.toml").display())).unwrap();
    let (mut device, mut queue, mut handle) = (null_mut(), null_mut(), null_mut());
    ok!(sluice_open_version(SLUICE_VERSION, what.as_ptr(), null(), &mut device));
    ok!(sluice_queue_create(device, null(), &mut queue));
    ok!(sluice_handle_create(queue, null(), &mut handle));
    [device.cast(), queue.cast(), handle.cast()]
}

fn close_application([device, queue, handle]: [*mut std::ffi::c_void; 3]) {
    ok!(sluice_handle_destroy(handle.cast()));
    ok!(sluice_queue_destroy(queue.cast()));
    ok!(sluice_close(device.cast()));
}

#[test]
fn an_application_is_opened_by_its_name_and_has_its_own_counters() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("apps.rules"), two_applications()).unwrap();
    let drive = "[drive]\nname = \"d\"\npreset = \"femu-default\"\ndata = \"file\"\npath = \"d.img\"\n\
        geometry = { channels = 2, pus = 2, chunks = 24, pages = 32 }\n\
        personality = \"rules\"\nrules = { program = \"apps.rules\" }\n";
    std::fs::write(folder.path().join("d.toml"), drive).unwrap();
    for (app, value) in [("db", 1_u8), ("log", 2), ("db", 1), ("log", 2)] {
        let opened = open_application(folder.path(), app);
        let [device, _, handle] = opened;
        let mut read = [9_u8; 4096];
        // SAFETY: the handle is open and the buffer is writable.
        let count =
            unsafe { sluice_pread(handle.cast(), read.as_mut_ptr().cast(), read.len(), 8192) };
        assert_eq!(count, 4096);
        // The other application's block of the same number is another one.
        assert!(read == [0; 4096] || read == [value; 4096], "{app}: {}", read[0]);
        let data = [value; 4096];
        // SAFETY: the handle is open and the data is readable.
        let count = unsafe { sluice_pwrite(handle.cast(), data.as_ptr().cast(), data.len(), 8192) };
        assert_eq!(count, 4096);

        // SAFETY: all bytes of the structure are numbers.
        let mut apps: [sluice_rule_app; 2] = unsafe { std::mem::zeroed() };
        // SAFETY: the device is open and the array has two elements.
        let count = unsafe { sluice_rules_apps(device.cast(), null(), apps.as_mut_ptr(), 2) };
        assert_eq!(count, 2);
        let names = apps.map(|app| {
            // SAFETY: the name ends with a zero.
            unsafe { CStr::from_ptr(app.name.as_ptr()) }.to_str().unwrap().to_owned()
        });
        assert_eq!(names, ["db", "log"]);
        let own = usize::from(app == "log");
        assert_eq!((apps[own].inputs, apps[1 - own].inputs), (2, 0), "{app}");
        assert!(apps[own].ops > 0 && apps[1 - own].ops == 0 && apps[own].misses == 0);
        let none: *mut sluice_rule_app = null_mut();
        expect!(sluice_rules_apps(device.cast(), null(), none, 1), EINVAL, "apps");
        close_application(opened);
    }
    let what = CString::new(format!("{}#other", folder.path().join("d.toml").display())).unwrap();
    let mut device = null_mut();
    expect!(sluice_open_version(SLUICE_VERSION, what.as_ptr(), null(), &mut device), EINVAL, "log");
}

const NAMES: &str = "app db { units = 0-3, spare = 0.05 }\n\
    table forward: map<u64, u64>[512] volatile\n\
    rule store when channel.app == db and header.write\n  \
    do header.addr = next_addr(db.host); header.tag = header.arg0; insert lun\n\
    rule load when channel.app == db and header.read\n  \
    do header.addr = name(header.arg0); header.tag = header.arg1; insert lun\n\
    rule free when channel.app == db and header.op == trim\n  \
    do header.addr = name(header.arg0); insert lun\n\
    rule moved when moved(db)\n  set forward[header.arg0] = header.arg1\n  \
    do post migrated, header.arg0, header.arg1, header.tag\n\
    rule tell when channel.app == db and header.op == user2\n  \
    do post migrated, 1, 2, header.arg0; complete ok\n";

#[test]
fn sectors_with_names_are_written_read_and_freed() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("n.rules"), NAMES).unwrap();
    let keys = "data = \"file\"\npath = \"n.img\"\npersonality = \"rules\"\n\
        rules = { program = \"n.rules\" }\n";
    let mut names = Vec::new();
    let none = sluice_rule_reply { value: 0, bytes: 0, status: 0 };
    let free = c"free".as_ptr();
    for powered_on in 0..2 {
        let device = open_with_planes(folder.path(), 4, keys);
        let mut buffer = null_mut();
        ok!(sluice_buffer_create(device, 4096, &mut buffer));
        let mut reply = none;
        // Names that the drive has found are those of the last time.
        let mut found = [sluice_found_name { name: 0, tag: 0 }; 64];
        // SAFETY: the array has 64 elements.
        let count = unsafe { sluice_found_names(device, 0, found.as_mut_ptr(), 64) };
        let of_found = found.iter().take(count as usize).map(|found| (found.name, found.tag));
        let mut of_found: Vec<(u64, u64)> = of_found.collect();
        of_found.sort_by_key(|(_, tag)| *tag);
        assert_eq!(of_found, names);
        for (name, tag) in std::mem::take(&mut names) {
            ok!(sluice_named_command(device, c"read".as_ptr(), name, tag, buffer, &mut reply));
            // SAFETY: the buffer has 4096 bytes, and no command is outstanding.
            let first = unsafe { sluice_buffer_data(buffer).cast::<u64>().read() };
            assert_eq!((reply.status, first), (0, tag));
            ok!(sluice_named_command(device, free, name, 0, null(), &mut reply));
            assert_eq!(reply.status, 0);
            ok!(sluice_named_command(device, free, name, 0, null(), &mut reply));
            assert_eq!(reply.status, 0x7c1, "not found");
        }
        for tag in 100 * powered_on..100 * powered_on + 20 {
            // SAFETY: as above.
            unsafe { sluice_buffer_data(buffer).cast::<u64>().write(tag) };
            ok!(sluice_named_command(device, c"write".as_ptr(), tag, 0, buffer, &mut reply));
            assert_eq!(reply.status, 0);
            names.push((reply.value, tag));
        }
        // An event.
        let request = sluice_rule_request { lba: 0, sectors: 1, arg0: 77, arg1: 0 };
        ok!(sluice_rule_command(device, c"user2".as_ptr(), &request, null(), &mut reply));
        let mut events = [sluice_rule_event { kind: 0, values: [0; 3] }; 126];
        let mut lost = 9;
        // SAFETY: the array has 126 elements.
        let count = unsafe { sluice_rule_events(device, events.as_mut_ptr(), 126, &mut lost) };
        assert_eq!((count, lost, events[0].kind), (1, 0, SLUICE_RULE_EVENT_MIGRATED));
        assert_eq!(events[0].values, [1, 2, 77]);
        // SAFETY: as above.
        let count = unsafe { sluice_rule_events(device, events.as_mut_ptr(), 126, null_mut()) };
        assert_eq!(count, 0);
        expect!(sluice_rule_events(device, events.as_mut_ptr(), 125, null_mut()), EINVAL, "126");
        expect!(sluice_rule_events(device, null_mut(), 126, null_mut()), EINVAL, "events");
        expect!(sluice_found_names(device, 0, found.as_mut_ptr(), 0), EINVAL, "capacity");
        expect!(sluice_found_names(device, 0, null_mut(), 1), EINVAL, "names");
        let other = c"trim".as_ptr();
        expect!(sluice_named_command(device, other, 0, 0, null(), &mut reply), EINVAL, "free");
        expect!(sluice_named_command(device, free, 0, 0, buffer, &mut reply), EINVAL, "buffer");
        let write = c"write".as_ptr();
        expect!(sluice_named_command(device, write, 0, 0, null(), &mut reply), EINVAL, "buffer");
        expect!(sluice_named_command(device, free, 0, 0, null(), null_mut()), EINVAL, "reply");
        // SAFETY: no command uses it any more.
        unsafe { sluice_buffer_destroy(buffer) };
        ok!(sluice_close(device));
    }
    let block = open(folder.path(), "");
    let mut reply = none;
    ok!(sluice_named_command(block, free, 1, 0, null(), &mut reply));
    assert_eq!(reply.status, 1, "invalid opcode");
    ok!(sluice_close(block));
}
