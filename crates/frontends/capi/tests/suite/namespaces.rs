//! `sluice_namespace_list()` and others: namespaces of a drive that this program has opened.

// guarantee: B-42

use crate::support;

use std::ffi::CString;
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

/// Returns up to `count` namespaces, after a check that the drive has `expected`.
fn list(device: *mut sluice_device, count: usize, expected: i32) -> Vec<sluice_namespace> {
    let none = sluice_namespace {
        blocks: 0,
        used_blocks: 0,
        allocated_bytes: 0,
        nsid: 0,
        block_bytes: 0,
        attached: 7,
        reserved: 7,
        nguid: [0; 16],
    };
    let mut found = vec![none; count];
    // SAFETY: the array has `count` elements.
    let result = unsafe { sluice_namespace_list(device, null(), found.as_mut_ptr(), count) };
    assert_eq!(result, expected, "{}", support::last_error());
    found.truncate(expected as usize);
    found
}

#[test]
fn namespaces_change_and_refusals_have_codes() {
    let device = open(
        "[drive]\nname = \"d\"\npreset = \"femu-default\"\nnamespaces = [\"1M\", \"1M\"]\n\
         geometry = { channels = 2, pus = 2, chunks = 24, pages = 32 }\n",
    );
    let (d, mut nsid) = (c"d".as_ptr(), 0);
    let found = list(device, 1, 2);
    assert_eq!((found[0].nsid, found[0].blocks, found[0].block_bytes), (1, 256, 4096));
    assert_eq!((found[0].attached, found[0].reserved, found[0].used_blocks), (1, 0, 0));
    assert_eq!(list(device, 0, 2).len(), 0);
    ok!(sluice_namespace_create(device, d, 5000, &mut nsid));
    assert_eq!(nsid, 3);
    let third = list(device, 32, 3)[2];
    assert_eq!((third.blocks, third.attached), (2, 0));
    assert!(third.nguid != [0; 16] && third.allocated_bytes >= 8192);
    ok!(sluice_namespace_attach(device, null(), 3));
    expect!(sluice_namespace_attach(device, d, 3), EALREADY, "attached already");
    assert_eq!(list(device, 32, 3)[2].attached, 1);
    ok!(sluice_namespace_detach(device, d, 3));
    expect!(sluice_namespace_detach(device, d, 3), EALREADY, "is not attached");
    ok!(sluice_namespace_delete(device, d, 2));
    ok!(sluice_namespace_create(device, d, SLUICE_NAMESPACE_REST, &mut nsid));
    assert_eq!(nsid, 2);
    expect!(sluice_namespace_create(device, d, 1, &mut nsid), ENOSPC, "0 are unallocated");
    expect!(sluice_namespace_create(device, d, 0, &mut nsid), EINVAL, "at least one block");
    expect!(sluice_namespace_create(device, d, 1, null_mut()), EINVAL, "`nsid`");
    for absent in [0, 9, 33] {
        expect!(sluice_namespace_delete(device, d, absent), ENOENT, "it has: 1, 2, 3");
        expect!(sluice_namespace_attach(device, d, absent), ENOENT, "it has: 1, 2, 3");
    }
    expect!(sluice_namespace_attach(device, c"x".as_ptr(), 1), EINVAL, "there are: d");
    expect!(sluice_namespace_attach(null(), d, 1), EINVAL, "`device`");
    expect!(sluice_namespace_list(device, d, null_mut(), 1), EINVAL, "`namespaces`");
    expect!(
        sluice_fault_inject(device, d, c"uncorrectable lba=0 namespace=4".as_ptr()),
        EINVAL,
        "no namespace 4"
    );
    ok!(sluice_namespace_delete(device, d, SLUICE_NAMESPACE_ALL));
    assert!(list(device, 32, 0).is_empty());
    ok!(sluice_close(device));
    let open_channel = open("[drive]\npreset = \"ocssd-mlc-128pu-small\"\n");
    expect!(sluice_namespace_delete(open_channel, null(), 1), EOPNOTSUPP, "one namespace");
    assert_eq!(list(open_channel, 1, 1)[0].attached, 1);
    ok!(sluice_close(open_channel));
    let mut null_device = null_mut();
    ok!(sluice_open_version(SLUICE_VERSION, c"null:1M".as_ptr(), null(), &mut null_device));
    expect!(sluice_namespace_attach(null_device, null(), 1), EOPNOTSUPP, "emulated NVMe drive");
    ok!(sluice_close(null_device));
}
