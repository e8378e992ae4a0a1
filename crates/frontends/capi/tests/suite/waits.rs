//! Waiting: on a handle's descriptor, and until a time has passed.

use crate::harness;
use crate::support;

use std::ptr::{null, null_mut};

use controller::PersonalityKind;
use sluice_c::*;
use support::Stand;
use time::Nanos;

/// Sleeping elsewhere, on the handle's descriptor.
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
    // SAFETY: zeros are values.
    let mut request: sluice_request = unsafe { std::mem::zeroed() };
    (request.op, request.sectors, request.buffer) =
        (SLUICE_OP_READ, 4096 / info.sector_bytes, buffer);
    let (mut ended, mut slept) = (0, 0);
    for round in 0..50 {
        request.lba = round * u64::from(request.sectors);
        // SAFETY: everything is there until the request has ended.
        unsafe {
            assert_eq!(sluice_submit(handle, &request, 1), 1);
            let mut timeout = 0;
            while sluice_handle_outstanding(handle) > 0 {
                if sluice_handle_arm(handle, &mut timeout) == 1 {
                    let fd = sluice_handle_fd(handle);
                    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
                    assert_eq!(libc::poll(&mut poll, 1, 10_000), 1, "nobody woke the handle");
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
    assert!(slept >= 40, "it slept {slept} times");
    ok!(sluice_handle_destroy(handle));
    ok!(sluice_queue_destroy(queue));
    // SAFETY: nothing uses them any more.
    unsafe {
        sluice_buffer_destroy(buffer);
        assert_eq!(sluice_close(device), 0);
    }
}

/// A wait ends when its time has passed, and says that nothing has come.
#[test]
fn time_passes() {
    let stand = Stand::new();
    let (mut queue, mut handle) = (null_mut(), null_mut());
    // One write per second, so that the second of two waits.
    // SAFETY: zeros are a value.
    let mut group: sluice_group = unsafe { std::mem::zeroed() };
    group.writes_per_sec = 2;
    let options = options!(sluice_queue_options { groups: &group, group_count: 1 });
    ok!(sluice_queue_create(stand.device, &options, &mut queue));
    for how in [SLUICE_WAIT_POLL, SLUICE_WAIT_EVENT, SLUICE_WAIT_HYBRID] {
        let options = options!(sluice_handle_options { wait: how });
        ok!(sluice_handle_create(queue, &options, &mut handle));
        // SAFETY: zeros are values.
        let mut request: sluice_request = unsafe { std::mem::zeroed() };
        (request.op, request.sectors, request.buffer) = (SLUICE_OP_WRITE, 1, stand.buffer);
        // SAFETY: zeros are values.
        let mut came: [sluice_completion; 4] = unsafe { std::mem::zeroed() };
        let begin = std::time::Instant::now();
        // SAFETY: everything is there.
        unsafe {
            assert_eq!(sluice_submit(handle, [request; 3].as_ptr(), 3), 3);
            let first = sluice_wait(handle, came.as_mut_ptr(), 4, 3, 20_000_000);
            // The third is a second away: the wait has not gone on until then.
            assert!((0..3).contains(&first), "{first} at once");
            assert!(begin.elapsed().as_millis() >= 20);
            let left = 3 - first as usize;
            let rest = sluice_wait(handle, came.as_mut_ptr(), 4, 4, SLUICE_TIMEOUT_INFINITE);
            assert_eq!(rest as usize, left, "no more are outstanding");
        }
        ok!(sluice_handle_destroy(handle));
    }
    ok!(sluice_queue_destroy(queue));
}
