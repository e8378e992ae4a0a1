//! `sluice_fault_inject()`: faults of a drive that this program has opened.

// guarantee: B-65, B-97

use crate::support;

use std::ffi::CString;
use std::ptr::{null, null_mut};

use sluice_c::*;

/// A drive that stores its data, and is full of it.
const SCENARIO: &str = "[drive]\nname = \"d\"\npreset = \"femu-default\"\ndata = \"memory\"\n\
    geometry = { channels = 2, pus = 2, chunks = 24, pages = 32 }\n\
    [precondition]\nfill = \"sequential\"\n";

// guarantee: B-84, B-85

#[test]
fn a_format_and_sanitize_leave_zeros() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("d.toml");
    std::fs::write(&file, SCENARIO).unwrap();
    let what = CString::new(file.to_str().unwrap()).unwrap();
    let (mut device, mut queue, mut handle) = (null_mut(), null_mut(), null_mut());
    let mut buffer = null_mut();
    // SAFETY: the pointers are valid, the buffer has the size of a sector, and the objects are
    // destroyed at the end.
    unsafe {
        assert_eq!(sluice_open_version(SLUICE_VERSION, what.as_ptr(), null(), &mut device), 0);
        assert_eq!(sluice_queue_create(device, null(), &mut queue), 0);
        assert_eq!(sluice_handle_create(queue, null(), &mut handle), 0);
        assert_eq!(sluice_buffer_create(device, 4096, &mut buffer), 0);
        let data = sluice_buffer_data(buffer).cast::<u8>();
        for fault in [
            c"format erase=true",
            c"format",
            c"sanitize action=block-erase",
            c"sanitize action=overwrite",
        ] {
            data.write_bytes(0x55, 4096);
            assert_eq!(sluice_write(handle, 9, 1, buffer, 0, 0), 0);
            assert_eq!(sluice_fault_inject(device, null(), fault.as_ptr()), 0);
            let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
            loop {
                assert!(std::time::Instant::now() < end, "{fault:?} does not end");
                match sluice_read(handle, 9, 1, buffer, 0) {
                    0 => break,
                    error => assert_eq!(error, -libc::EBUSY),
                }
            }
            assert!((0..4096).all(|at| data.add(at).read() == 0), "{fault:?}");
        }
        sluice_buffer_destroy(buffer);
        assert_eq!(sluice_handle_destroy(handle), 0);
        assert_eq!(sluice_queue_destroy(queue), 0);
    }
    let crypto = c"sanitize action=crypto-erase".as_ptr();
    expect!(sluice_fault_inject(device, null(), crypto), EINVAL, "overwrite");
    expect!(sluice_fault_inject(device, null(), c"sanitize".as_ptr()), EINVAL, "`action`");
    // SAFETY: nothing else uses the object.
    assert_eq!(unsafe { sluice_close(device) }, 0);
}

#[test]
fn faults_reach_the_drive_and_others_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("d.toml");
    std::fs::write(&file, SCENARIO).unwrap();
    let what = CString::new(file.to_str().unwrap()).unwrap();
    let (mut device, mut queue, mut handle) = (null_mut(), null_mut(), null_mut());
    let mut buffer = null_mut();
    // SAFETY: the pointers are valid, and the objects are destroyed below.
    unsafe {
        assert_eq!(sluice_open_version(SLUICE_VERSION, what.as_ptr(), null(), &mut device), 0);
        assert_eq!(sluice_queue_create(device, null(), &mut queue), 0);
        assert_eq!(sluice_handle_create(queue, null(), &mut handle), 0);
        assert_eq!(sluice_buffer_create(device, 4096, &mut buffer), 0);
        let read = |lba| sluice_read(handle, lba, 1, buffer, 0);
        assert_eq!(read(9), 0);
        assert_eq!(sluice_fault_inject(device, null(), c"uncorrectable lba=9".as_ptr()), 0);
        assert_eq!(read(9), -libc::EIO);
        assert_eq!(read(8), 0);
        // Far from sector 9: the drive relocates the line with the uncorrectable sector, and its own
        // read would meet the failure.
        assert_eq!(
            sluice_fault_inject(device, c"d".as_ptr(), c"read-failure lba=1000".as_ptr()),
            0
        );
        assert_eq!((read(1000), read(1000)), (-libc::EIO, 0));
    }
    let d = c"d".as_ptr();
    expect!(sluice_fault_inject(null(), d, c"power-cut".as_ptr()), EINVAL, "`device`");
    expect!(sluice_fault_inject(device, d, null()), EINVAL, "`fault`");
    expect!(sluice_fault_inject(device, d, c"".as_ptr()), EINVAL, "die-failure");
    expect!(sluice_fault_inject(device, d, c"die-failure".as_ptr()), EINVAL, "`pu`");
    expect!(sluice_fault_inject(device, d, c"die-failure pu=4".as_ptr()), EINVAL, "there are 4");
    expect!(sluice_fault_inject(device, d, c"die-failure pu".as_ptr()), EINVAL, "pu");
    expect!(
        sluice_fault_inject(device, c"x".as_ptr(), c"power-cut".as_ptr()),
        EINVAL,
        "there are: d"
    );
    // SAFETY: nothing else uses the objects.
    unsafe {
        sluice_buffer_destroy(buffer);
        assert_eq!(sluice_handle_destroy(handle), 0);
        assert_eq!(sluice_queue_destroy(queue), 0);
        assert_eq!(sluice_close(device), 0);
        let mut null_device = null_mut();
        let what = c"null:1M".as_ptr();
        assert_eq!(sluice_open_version(SLUICE_VERSION, what, null(), &mut null_device), 0);
        let refused = sluice_fault_inject(null_device, null(), c"power-cut".as_ptr());
        assert_eq!(refused, -libc::EOPNOTSUPP, "{}", support::last_error());
        assert_eq!(sluice_close(null_device), 0);
    }
}

#[test]
fn corrupted_data_is_an_error_with_protection_information() {
    let folder = tempfile::tempdir().unwrap();
    for is_protected in [false, true] {
        let protection = if is_protected { "type1" } else { "none" };
        let keys = format!("[drive]\nprotection = \"{protection}\"\n");
        let text = SCENARIO.replacen("[drive]\n", &keys, 1).replacen(
            "geometry = {",
            "geometry = { oob_bytes = 24,",
            1,
        );
        let file = folder.path().join("p.toml");
        std::fs::write(&file, text).unwrap();
        let what = CString::new(file.to_str().unwrap()).unwrap();
        let (mut device, mut queue, mut handle) = (null_mut(), null_mut(), null_mut());
        let mut buffer = null_mut();
        // SAFETY: the pointers are valid, and the objects are destroyed below.
        unsafe {
            assert_eq!(sluice_open_version(SLUICE_VERSION, what.as_ptr(), null(), &mut device), 0);
            assert_eq!(sluice_queue_create(device, null(), &mut queue), 0);
            assert_eq!(sluice_handle_create(queue, null(), &mut handle), 0);
            assert_eq!(sluice_buffer_create(device, 4096, &mut buffer), 0);
            let read = |lba| sluice_read(handle, lba, 1, buffer, 0);
            assert_eq!(sluice_fault_inject(device, null(), c"corrupted-data lba=9".as_ptr()), 0);
            assert_eq!(read(9), if is_protected { -libc::EILSEQ } else { 0 });
            assert_eq!(read(8), 0);
            let reference = c"corrupted-data lba=8 what=reference-tag".as_ptr();
            if is_protected {
                assert_eq!(sluice_fault_inject(device, null(), reference), 0);
                assert_eq!(read(8), -libc::EILSEQ);
            } else {
                answered!(sluice_fault_inject(device, null(), reference), EINVAL, "protection");
            }
            sluice_buffer_destroy(buffer);
            assert_eq!(sluice_handle_destroy(handle), 0);
            assert_eq!(sluice_queue_destroy(queue), 0);
            assert_eq!(sluice_close(device), 0);
        }
    }
}
