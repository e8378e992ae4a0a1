//! `sluice_preadv()` and `sluice_pwritev()`: the number of requests of a call, and its result.

use crate::support;

use std::ffi::c_void;

use libc::iovec;
use sluice_c::*;
use support::Stand;

/// Returns the number of requests that a write of the segments issues.
fn writes(stand: &Stand, segments: &[iovec]) -> u64 {
    let count = || {
        let mut stats = options!(sluice_handle_stats {});
        ok!(sluice_handle_get_stats(stand.handle, &mut stats));
        (stats.writes, stats.written_bytes)
    };
    let (before, bytes_before) = count();
    let sum: usize = segments.iter().map(|segment| segment.iov_len).sum();
    // SAFETY: the segments are live memory.
    let done = unsafe { sluice_pwritev(stand.handle, segments.as_ptr(), segments.len() as i32, 0) };
    assert_eq!(done, sum as i64, "{}", support::last_error());
    let (after, bytes_after) = count();
    assert_eq!(bytes_after - bytes_before, sum as u64);
    after - before
}

#[test]
fn segments_that_the_device_reaches_are_one_request() {
    let stand = Stand::new();
    // SAFETY: the buffer is live, and has 8192 bytes.
    let data = unsafe { sluice_buffer_data(stand.buffer) }.cast::<u8>();
    let inside = |at: usize, iov_len: usize| {
        let iov_base: *mut c_void = data.wrapping_add(at).cast();
        iovec { iov_base, iov_len }
    };
    let mut memory = vec![7u8; 1 << 20];
    let mut outside = |iov_len: usize| iovec { iov_base: memory.as_mut_ptr().cast(), iov_len };
    for (segments, requests) in [
        (vec![], 0),
        (vec![inside(0, 512)], 1),
        (vec![inside(4096, 512), inside(0, 1024), inside(0, 0), inside(512, 512)], 1),
        // In the buffer, but not aligned to the device's segments.
        (vec![inside(8, 512), inside(0, 100), inside(1024, 412)], 1),
        (vec![outside(100), outside(412), outside(512)], 1),
        (vec![inside(0, 512), outside(100), outside(412), inside(0, 512)], 3),
        // The device could reach the second segment, but it does not begin at a sector boundary.
        (vec![outside(100), inside(0, 512), outside(412)], 1),
        (vec![inside(0, 512); 256], 1),
        (vec![inside(0, 512); 257], 2),
        (vec![inside(0, 512); 1024], 4),
        (vec![inside(0, 8192); 128], 1),
        (vec![outside(1 << 20)], 4),
    ] {
        assert_eq!(writes(&stand, &segments), requests, "{} segments", segments.len());
    }
    let two = [inside(0, 512), inside(0, 512)];
    let last = (1 << 20) - 512;
    expect!(sluice_pwritev(stand.handle, two.as_ptr(), 2, last), ERANGE, "out of range");
    expect!(sluice_preadv(stand.handle, two.as_ptr(), 2, u64::MAX - 511), ERANGE, "out of range");
}

/// Transfers longer than the device's longest request are split there, also inside a segment.
#[test]
fn what_is_too_long_for_one_request_is_several() {
    let stand = Stand::new();
    let mut info = options!(sluice_device_info {});
    ok!(sluice_device_get_info(stand.device, &mut info));
    let most = info.max_sectors as usize * info.sector_bytes as usize;
    let (mut device, mut queue) = (std::ptr::null_mut(), std::ptr::null_mut());
    let (mut handle, mut buffer) = (std::ptr::null_mut(), std::ptr::null_mut());
    let plain = std::ptr::null;
    ok!(sluice_open_version(SLUICE_VERSION, c"null:1g".as_ptr(), plain(), &mut device));
    ok!(sluice_queue_create(device, std::ptr::null(), &mut queue));
    ok!(sluice_handle_create(queue, std::ptr::null(), &mut handle));
    ok!(sluice_buffer_create(device, 2 * most, &mut buffer));
    let large = Stand { device, queue, handle, buffer };
    // SAFETY: the buffer is live.
    let iov_base = unsafe { sluice_buffer_data(buffer) };
    let segment = |iov_len: usize| iovec { iov_base, iov_len };
    assert_eq!(writes(&large, &[segment(most)]), 1);
    assert_eq!(writes(&large, &[segment(most + 512)]), 2);
    assert_eq!(writes(&large, &[segment(512), segment(most), segment(most - 512)]), 2);
    assert_eq!(writes(&large, &[segment(2 * most), segment(2 * most), segment(512)]), 5);
}
