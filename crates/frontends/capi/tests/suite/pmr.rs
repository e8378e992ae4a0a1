//! `sluice_pmr_…`: the persistent memory region of a drive that this program has opened.

// guarantee: B-101

use std::ffi::{CString, c_void};
use std::path::Path;
use std::ptr::{null, null_mut};

use sluice_c::*;

/// Writes a scenario to a folder, and returns its name for `sluice_open()`.
fn scenario_file(folder: &Path, text: &str) -> CString {
    let file = folder.join("d.toml");
    std::fs::write(&file, text).unwrap();
    CString::new(file.to_str().unwrap()).unwrap()
}

fn open(scenario: &str) -> *mut sluice_device {
    let folder = tempfile::tempdir().unwrap();
    let what = scenario_file(folder.path(), scenario);
    let mut device = null_mut();
    ok!(sluice_open_version(SLUICE_VERSION, what.as_ptr(), null(), &mut device));
    device
}

fn pointer(data: &[u8]) -> *const c_void {
    data.as_ptr().cast()
}

#[test]
fn what_was_persisted_survives_a_power_cut() {
    let device = open(
        "[drive]\npreset = \"femu-default\"\ngeometry = { chunks = 16 }\n\
         pmr = { size = \"64k\", store = \"10ns\", persist = \"1us\" }\n",
    );
    let mut bytes = 0;
    ok!(sluice_pmr_size(device, &mut bytes));
    assert_eq!(bytes, 64 << 10);
    ok!(sluice_pmr_store(device, 60, pointer(b"durable!"), 8));
    ok!(sluice_pmr_persist(device, 60, 8));
    ok!(sluice_fault_inject(device, null(), c"power-cut".as_ptr()));
    let mut found = [0u8; 8];
    let into = found.as_mut_ptr().cast::<c_void>();
    ok!(sluice_pmr_read(device, 60, into, 8));
    assert_eq!(&found, b"durable!");
    expect!(sluice_pmr_read(device, (64 << 10) - 7, into, 8), ERANGE, "65536");
    expect!(sluice_pmr_store(device, u64::MAX, into, 8), ERANGE, "65536");
    expect!(sluice_pmr_persist(device, 64 << 10, 1), ERANGE, "65536");
    expect!(sluice_pmr_size(null(), &mut bytes), EINVAL, "`device`");
    expect!(sluice_pmr_size(device, null_mut()), EINVAL, "`bytes`");
    expect!(sluice_pmr_read(device, 0, null_mut(), 8), EINVAL, "`into`");
    expect!(sluice_pmr_store(device, 0, null(), 8), EINVAL, "`data`");
    expect!(sluice_pmr_persist(null(), 0, 8), EINVAL, "`device`");
    ok!(sluice_close(device));
}

#[test]
fn a_drive_without_a_region_says_so() {
    let device = open("[drive]\npreset = \"femu-default\"\ngeometry = { chunks = 16 }\n");
    let mut bytes = 0;
    expect!(sluice_pmr_size(device, &mut bytes), EOPNOTSUPP, "no persistent memory region");
    expect!(sluice_pmr_persist(device, 0, 0), EOPNOTSUPP, "`pmr`");
    ok!(sluice_close(device));
}

// guarantee: B-50

/// A durable write is in the log, and in that of the next opening. Sizes that are not possible are refused.
#[test]
fn an_option_gives_a_device_a_log() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let drive = format!(
        "[drive]\npreset = \"femu-default\"\ngeometry = {{ chunks = 16 }}\n\
         data = \"file\"\npath = {image:?}\n"
    );
    let with = scenario_file(folder.path(), &format!("{drive}pmr = {{ size = \"256k\" }}\n"));
    let other = tempfile::tempdir().unwrap();
    let without = scenario_file(other.path(), &drive);
    let mut device = null_mut();
    let log = |bytes| options!(sluice_open_options { log_bytes: bytes });
    for (what, bytes, says) in [
        (&with, 64, "log_bytes = 64 for"),
        (&with, 65_537, "multiples of 64 bytes"),
        (&with, 131_264, "need at least 131328"),
        (&with, (256 << 10) + 64, "up to 262144"),
        (&with, u64::MAX - 1, "up to 262144"),
        (&without, 65_536, "no persistent memory region for a log"),
        (&without, SLUICE_LOG_WHOLE_REGION, "no persistent memory region for a log"),
    ] {
        let what = what.as_ptr();
        expect!(sluice_open_version(SLUICE_VERSION, what, &log(bytes), &mut device), EINVAL, says);
    }
    for round in 0..2 {
        let (mut queue, mut handle) = (null_mut(), null_mut());
        // The same bytes: the whole region.
        let options = log(if round == 0 { 256 << 10 } else { SLUICE_LOG_WHOLE_REGION });
        ok!(sluice_open_version(SLUICE_VERSION, with.as_ptr(), &options, &mut device));
        ok!(sluice_queue_create(device, null(), &mut queue));
        ok!(sluice_handle_create(queue, null(), &mut handle));
        let mut data = [0u8; 4096];
        if round == 0 {
            // SAFETY: the handle is open and the data is readable.
            let wrote = unsafe { sluice_pwrite(handle, [7u8; 4096].as_ptr().cast(), 4096, 4096) };
            assert_eq!(wrote, 4096);
            ok!(sluice_flush(handle));
        }
        // SAFETY: the handle is open and the buffer is writable.
        let read = unsafe { sluice_pread(handle, data.as_mut_ptr().cast(), 4096, 4096) };
        assert_eq!((read, data[0], data[4095]), (4096, 7, 7));
        let mut magic = [0u8; 8];
        ok!(sluice_pmr_read(device, 0, magic.as_mut_ptr().cast(), 8));
        assert_eq!(&magic, b"SLUICLOG");
        ok!(sluice_handle_destroy(handle));
        ok!(sluice_queue_destroy(queue));
        ok!(sluice_close(device));
    }
    let what = with.as_ptr();
    expect!(sluice_open_version(SLUICE_VERSION, what, null(), &mut device), EIO, "its own log");
}
