//! Drives with logical blocks of 512 bytes, whose flushes reach the host's device; and with atomic writes.

use std::ffi::CString;
use std::ptr::{null, null_mut};

use sluice_c::*;

#[test]
fn a_block_of_512_bytes_is_written_and_its_neighbors_stay() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("d.toml");
    let scenario = "[drive]\npreset = \"femu-default\"\ndata = \"file\"\nflush = \"host\"\n\
        path = \"d.img\"\nlba_bytes = 512\n\
        geometry = { channels = 2, pus = 2, chunks = 24, pages = 32 }\n";
    std::fs::write(&file, scenario).unwrap();
    let what = CString::new(file.to_str().unwrap()).unwrap();
    let (mut device, mut queue, mut handle) = (null_mut(), null_mut(), null_mut());
    let mut buffer = null_mut();
    ok!(sluice_open_version(SLUICE_VERSION, what.as_ptr(), null(), &mut device));
    ok!(sluice_queue_create(device, null(), &mut queue));
    ok!(sluice_handle_create(queue, null(), &mut handle));
    ok!(sluice_buffer_create(device, 4096, &mut buffer));
    // SAFETY: the buffer has that many bytes, and no request is in flight when they are accessed.
    let data =
        unsafe { std::slice::from_raw_parts_mut(sluice_buffer_data(buffer).cast::<u8>(), 4096) };
    data.fill(1);
    ok!(sluice_write(handle, 8, 8, buffer, 0, 0));
    data.fill(2);
    ok!(sluice_write(handle, 10, 1, buffer, 0, 0));
    ok!(sluice_flush(handle));
    ok!(sluice_read(handle, 8, 8, buffer, 0));
    for (block, bytes) in data.chunks(512).enumerate() {
        let expected = if block == 2 { 2 } else { 1 };
        assert!(bytes.iter().all(|byte| *byte == expected), "block {block}");
    }
    // SAFETY: nothing else uses the buffer.
    unsafe { sluice_buffer_destroy(buffer) };
    ok!(sluice_handle_destroy(handle));
    ok!(sluice_queue_destroy(queue));
    ok!(sluice_close(device));
}

// guarantee: D-59

#[test]
fn a_device_says_which_writes_are_atomic_and_refuses_others() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("d.toml");
    let scenario = "[drive]\npreset = \"femu-default\"\ndata = \"memory\"\natomic = true\n\
        geometry = { channels = 2, pus = 2, chunks = 24, pages = 32, page_bytes = 16384 }\n";
    std::fs::write(&file, scenario).unwrap();
    let what = CString::new(file.to_str().unwrap()).unwrap();
    let (mut device, mut queue, mut handle) = (null_mut(), null_mut(), null_mut());
    let mut buffer = null_mut();
    ok!(sluice_open_version(SLUICE_VERSION, what.as_ptr(), null(), &mut device));
    let mut info = options!(sluice_device_info {});
    ok!(sluice_device_get_info(device, &mut info));
    assert_eq!((info.atomic_sectors, info.atomic_boundary_sectors), (4, 0));
    ok!(sluice_queue_create(device, null(), &mut queue));
    ok!(sluice_handle_create(queue, null(), &mut handle));
    ok!(sluice_buffer_create(device, 8 * 4096, &mut buffer));
    ok!(sluice_write(handle, 3, 4, buffer, 0, SLUICE_ATOMIC));
    ok!(sluice_write(handle, 3, 4, buffer, 0, SLUICE_ATOMIC | SLUICE_FUA));
    expect!(sluice_write(handle, 3, 5, buffer, 0, SLUICE_ATOMIC), EINVAL, "invalid field");
    ok!(sluice_write(handle, 3, 5, buffer, 0, 0));
    // SAFETY: all-zero bytes are a valid value.
    let empty: sluice_request = unsafe { std::mem::zeroed() };
    let submit = |request: sluice_request| {
        // SAFETY: the pointers are to live objects.
        assert_eq!(unsafe { sluice_submit(handle, &request, 1) }, 1);
        // SAFETY: all-zero bytes are a valid value.
        let mut came: sluice_completion = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let count = unsafe { sluice_wait(handle, &mut came, 1, 1, SLUICE_TIMEOUT_INFINITE) };
        assert_eq!(count, 1);
        came.error
    };
    let write = sluice_request { op: SLUICE_OP_WRITE, flags: SLUICE_ATOMIC, buffer, ..empty };
    assert_eq!(submit(sluice_request { sectors: 4, ..write }), 0);
    assert_eq!(submit(sluice_request { sectors: 8, ..write }), -libc::EINVAL);
    let zeroes = sluice_request { op: SLUICE_OP_WRITE_ZEROES, sectors: 4, ..empty };
    assert_eq!(submit(sluice_request { flags: SLUICE_ATOMIC, ..zeroes }), 0);
    let may_unmap = SLUICE_ATOMIC | SLUICE_DEALLOCATE;
    assert_eq!(submit(sluice_request { flags: may_unmap, ..zeroes }), -libc::EINVAL);
    // SAFETY: nothing else uses the buffer.
    unsafe { sluice_buffer_destroy(buffer) };
    ok!(sluice_handle_destroy(handle));
    ok!(sluice_queue_destroy(queue));
    ok!(sluice_close(device));
}
