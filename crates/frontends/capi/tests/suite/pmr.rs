//! `sluice_pmr_…`: the persistent memory region of a drive that this program has opened.

// guarantee: B-101

use std::ffi::{CString, c_void};
use std::ptr::{null, null_mut};

use sluice_c::*;

fn open(scenario: &str) -> *mut sluice_device {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("d.toml");
    std::fs::write(&file, scenario).unwrap();
    let what = CString::new(file.to_str().unwrap()).unwrap();
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
