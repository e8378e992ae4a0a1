//! Waiting on a handle's descriptor, and waiting with a timeout.

use crate::harness;
use crate::support;

use std::ptr::{null, null_mut};

use controller::PersonalityKind;
use sluice_c::*;
use support::Stand;
use time::Nanos;

/// Sleeps in poll(2) on the handle's descriptor.
#[test]
fn a_descriptor_becomes_readable_when_something_has_come() {
    let latency = Nanos::from_millis(3);
    let mut config = harness::config(PersonalityKind::Null);
    config.null.latency = latency;
    let device = Box::into_raw(sluice_device::from_device(harness::over(config)));
    let (mut queue, mut handle, mut buffer) = (null_mut(), null_mut(), null_mut());
    ok!(sluice_queue_create(device, null(), &mut queue));
    ok!(sluice_handle_create(queue, null(), &mut handle));
    ok!(sluice_buffer_create(device, 4096, &mut buffer));
    expect!(sluice_handle_arm(handle, null_mut()), EINVAL, "SLUICE_WAIT_EVENT");
    ok!(sluice_handle_set_wait(handle, SLUICE_WAIT_EVENT, 0, 0));
    let mut info = options!(sluice_device_info {});
    ok!(sluice_device_get_info(device, &mut info));
    assert_eq!((info.kind, info.sector_bytes), (SLUICE_KIND_DRIVE, 4096));
    // SAFETY: all-zero bytes are a valid value.
    let mut request: sluice_request = unsafe { std::mem::zeroed() };
    (request.op, request.sectors, request.buffer) =
        (SLUICE_OP_READ, 4096 / info.sector_bytes, buffer);
    let (mut ended, mut slept) = (0, 0);
    for round in 0..50 {
        request.lba = round * u64::from(request.sectors);
        // SAFETY: the pointers are to objects that live until the request has completed.
        unsafe {
            assert_eq!(sluice_submit(handle, &request, 1), 1);
            let mut timeout = 0;
            while sluice_handle_outstanding(handle) > 0 {
                if sluice_handle_arm(handle, &mut timeout) == 1 {
                    let fd = sluice_handle_fd(handle);
                    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
                    assert_eq!(
                        libc::poll(&mut poll, 1, 10_000),
                        1,
                        "poll(2) on the handle timed out"
                    );
                    assert_eq!(sluice_handle_disarm(handle), 0);
                    slept += 1;
                }
                let mut came: sluice_completion = std::mem::zeroed();
                if sluice_reap(handle, &mut came, 1) == 1 {
                    assert_eq!(came.error, 0);
                    ended += 1;
                }
            }
        }
    }
    assert_eq!(ended, 50);
    assert!(slept >= 40, "the handle slept {slept} times");
    ok!(sluice_handle_destroy(handle));
    ok!(sluice_queue_destroy(queue));
    // SAFETY: no call uses these objects any more.
    unsafe {
        sluice_buffer_destroy(buffer);
        assert_eq!(sluice_close(device), 0);
    }
}

/// A wait ends at its timeout, and returns that no request has completed.
#[test]
fn time_passes() {
    let stand = Stand::new();
    let (mut queue, mut handle) = (null_mut(), null_mut());
    // Two writes per second, so that the third waits.
    // SAFETY: all-zero bytes are a valid value.
    let mut group: sluice_group = unsafe { std::mem::zeroed() };
    group.writes_per_sec = 2;
    let options = options!(sluice_queue_options { groups: &group, group_count: 1 });
    ok!(sluice_queue_create(stand.device, &options, &mut queue));
    for how in [SLUICE_WAIT_POLL, SLUICE_WAIT_EVENT, SLUICE_WAIT_HYBRID] {
        let options = options!(sluice_handle_options { wait: how });
        ok!(sluice_handle_create(queue, &options, &mut handle));
        // SAFETY: all-zero bytes are a valid value.
        let mut request: sluice_request = unsafe { std::mem::zeroed() };
        (request.op, request.sectors, request.buffer) = (SLUICE_OP_WRITE, 1, stand.buffer);
        // SAFETY: all-zero bytes are a valid value.
        let mut came: [sluice_completion; 4] = unsafe { std::mem::zeroed() };
        let begin = std::time::Instant::now();
        // SAFETY: the pointers are to live objects.
        unsafe {
            assert_eq!(sluice_submit(handle, [request; 3].as_ptr(), 3), 3);
            let first = sluice_wait(handle, came.as_mut_ptr(), 4, 3, 20_000_000);
            // The rate limit delays the third write; the wait ends before it.
            assert!((0..3).contains(&first), "{first} completed within the timeout");
            assert!(begin.elapsed().as_millis() >= 20);
            let left = 3 - first as usize;
            let rest = sluice_wait(handle, came.as_mut_ptr(), 4, 4, SLUICE_TIMEOUT_INFINITE);
            assert_eq!(rest as usize, left, "the wait returns all outstanding requests");
        }
        ok!(sluice_handle_destroy(handle));
    }
    ok!(sluice_queue_destroy(queue));
}
