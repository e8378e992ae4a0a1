//! Misuse: every call with `NULL`, objects of several devices, objects in use, two threads in one
//! handle, values out of range. Each returns a negative `errno`, and the message says what is
//! allowed.

use crate::support;

use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};

use sluice_c::*;
use support::{Stand, last_error};

#[test]
fn null_is_refused_where_it_is_not_allowed_and_destroys_nothing() {
    let stand = Stand::new();
    let Stand { device, queue, handle, buffer } = stand;
    let mut taken: *mut sluice_device = null_mut();
    expect!(sluice_open_version(SLUICE_VERSION, null(), null(), &mut taken), EINVAL, "`what`");
    expect!(
        sluice_open_version(SLUICE_VERSION, c"null".as_ptr(), null(), null_mut()),
        EINVAL,
        "`device`"
    );
    let mut odd: *mut sluice_queue = queue;
    expect!(sluice_queue_create(null(), null(), &mut odd), EINVAL, "`device`");
    assert!(odd.is_null(), "a failed call must set the object pointer to NULL");
    expect!(sluice_queue_create(device, null(), null_mut()), EINVAL, "`queue`");
    expect!(sluice_handle_create(null(), null(), &mut null_mut()), EINVAL, "`queue`");
    expect!(sluice_handle_create(queue, null(), null_mut()), EINVAL, "`handle`");
    expect!(sluice_handle_create_mq(null(), 1, null(), &mut null_mut()), EINVAL, "`queues`");
    expect!(
        sluice_handle_create_mq([null_mut()].as_ptr(), 1, null(), &mut null_mut()),
        EINVAL,
        "`queues`"
    );
    expect!(sluice_buffer_create(null(), 1, &mut null_mut()), EINVAL, "`device`");
    expect!(sluice_buffer_create(device, 1, null_mut()), EINVAL, "`buffer`");
    expect!(sluice_buffer_find(null(), 1, null_mut(), null_mut()), EINVAL, "`buffer`");
    expect!(
        sluice_buffer_find(null(), 1, &mut null_mut(), null_mut()),
        ENOENT,
        "sluice_buffer_create"
    );
    expect!(sluice_device_get_info(device, null_mut()), EINVAL, "`info`");
    expect!(sluice_device_get_info(null(), null_mut()), EINVAL, "`device`");
    expect!(sluice_handle_set_wait(null_mut(), 0, 0, 0), EINVAL, "`handle`");
    expect!(sluice_handle_outstanding(null()), EINVAL, "`handle`");
    expect!(sluice_handle_fd(null()), EINVAL, "`handle`");
    expect!(sluice_handle_arm(null_mut(), null_mut()), EINVAL, "`handle`");
    expect!(sluice_handle_disarm(null_mut()), EINVAL, "`handle`");
    expect!(sluice_handle_get_stats(null(), null_mut()), EINVAL, "`handle`");
    expect!(sluice_handle_get_stats(handle, null_mut()), EINVAL, "`stats`");
    expect!(sluice_read(null_mut(), 0, 1, buffer, 0), EINVAL, "`handle`");
    expect!(sluice_read(handle, 0, 1, null_mut(), 0), EINVAL, "`buffer`");
    expect!(sluice_write(handle, 0, 1, null(), 0, 0), EINVAL, "`buffer`");
    expect!(sluice_flush(null_mut()), EINVAL, "`handle`");
    expect!(sluice_discard(null_mut(), 0, 1), EINVAL, "`handle`");
    expect!(sluice_write_zeroes(null_mut(), 0, 1, 0), EINVAL, "`handle`");
    expect!(sluice_pread(handle, null_mut(), 512, 0), EINVAL, "`memory`");
    expect!(sluice_pwrite(null_mut(), null(), 512, 0), EINVAL, "`handle`");
    expect!(sluice_preadv(null_mut(), null(), 0, 0), EINVAL, "`handle`");
    expect!(sluice_preadv(handle, null(), 1, 0), EINVAL, "`pieces`");
    expect!(sluice_pwritev(handle, null(), 1, 0), EINVAL, "`pieces`");
    let nowhere = libc::iovec { iov_base: null_mut(), iov_len: 512 };
    expect!(sluice_pwritev(handle, &nowhere, 1, 0), EINVAL, "`memory`");
    expect!(sluice_submit(handle, null(), 1), EINVAL, "`requests`");
    expect!(sluice_reap(handle, null_mut(), 1), EINVAL, "`completions`");
    expect!(sluice_wait(handle, null_mut(), 1, 1, 0), EINVAL, "`completions`");
    expect!(sluice_poller_create(null(), null(), &mut null_mut()), EINVAL, "`device`");
    expect!(sluice_poller_watch(null_mut(), queue), EINVAL, "`poller`");
    expect!(sluice_poller_unwatch(null_mut(), queue), EINVAL, "`poller`");
    expect!(sluice_poller_hint(null_mut(), 0), EINVAL, "`poller`");
    expect!(sluice_poller_get_stats(null(), null_mut()), EINVAL, "`poller`");
    // SAFETY: all pointers are NULL.
    unsafe {
        assert_eq!(CStr::from_ptr(sluice_device_name(null())), c"");
        assert!(sluice_buffer_data(null()).is_null());
        assert_eq!(sluice_buffer_size(null()), 0);
        sluice_buffer_destroy(null_mut());
        assert_eq!(sluice_close(null_mut()), 0);
        assert_eq!(sluice_queue_destroy(null_mut()), 0);
        assert_eq!(sluice_handle_destroy(null_mut()), 0);
        assert_eq!(sluice_poller_destroy(null_mut()), 0);
        assert_eq!(sluice_submit(handle, null(), 0), 0);
        assert_eq!(sluice_reap(handle, null_mut(), 0), 0);
        assert_eq!(sluice_pread(handle, null_mut(), 0, 0), 0);
        assert_eq!(sluice_preadv(handle, null(), 0, 0), 0);
        let empty = libc::iovec { iov_base: null_mut(), iov_len: 0 };
        assert_eq!(sluice_pwritev(handle, &empty, 1, 0), 0);
    }
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let stand = Stand::new();
    let open = |options: sluice_open_options, what: &CStr| {
        let mut device = null_mut();
        // SAFETY: the pointers are to live objects.
        let answer =
            unsafe { sluice_open_version(SLUICE_VERSION, what.as_ptr(), &options, &mut device) };
        assert!(device.is_null());
        answer
    };
    let null = c"null:1m";
    answered!(open(options!(sluice_open_options { flags: 8 }), null), EINVAL, "flags = 8");
    answered!(open(options!(sluice_open_options { queue_depth: 65_536 }), null), EINVAL, "65535");
    answered!(
        open(options!(sluice_open_options { sector_bytes: 512 }), null),
        EINVAL,
        "only files"
    );
    for (set, name) in [
        (SLUICE_OPEN_READ_ONLY, "SLUICE_OPEN_READ_ONLY"),
        (SLUICE_OPEN_BUFFERED, "SLUICE_OPEN_BUFFERED"),
        (SLUICE_OPEN_SHARED, "SLUICE_OPEN_SHARED"),
    ] {
        answered!(open(options!(sluice_open_options { flags: set }), null), EINVAL, name);
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    let path = std::ffi::CString::new(file.path().to_str().unwrap()).unwrap();
    answered!(open(options!(sluice_open_options { sector_bytes: 513 }), &path), EINVAL, "513");
    answered!(
        open(options!(sluice_open_options { queues: 65_536 }), null),
        EINVAL,
        "queues = 65536"
    );
    answered!(
        open(options!(sluice_open_options { timeout_ms: 9 }), null),
        EINVAL,
        "timeout_ms = 9"
    );
    answered!(open(options!(sluice_open_options { reserved: 1 }), null), EINVAL, "reserved = 1");
    answered!(
        open(options!(sluice_open_options { log_bytes: 65_536 }), null),
        EINVAL,
        "log_bytes = 65536"
    );
    answered!(open(options!(sluice_open_options {}), c"null:x"), EINVAL, "null:64G");
    answered!(open(options!(sluice_open_options {}), c"vfio:7ffffff0:01:00.0"), ENODEV, "no such");
    answered!(open(options!(sluice_open_options {}), c"/nonexistent/a.toml"), ENOENT, "a.toml");
    answered!(open(options!(sluice_open_options { size: 4 }), null), EINVAL, "sizeof");
    answered!(open(options!(sluice_open_options { size: 1 << 20 }), null), E2BIG, "first 40 bytes");
    answered!(open(options!(sluice_open_options {}), c"null:\xff"), EINVAL, "UTF-8");
    answered!(open(options!(sluice_open_options {}), c"/nonexistent"), ENOENT, "/nonexistent");

    let handle = |options: sluice_handle_options| {
        let mut queue = null_mut();
        ok!(sluice_queue_create(stand.device, std::ptr::null(), &mut queue));
        let mut made = null_mut();
        // SAFETY: the pointers are to live objects.
        let answer = unsafe { sluice_handle_create(queue, &options, &mut made) };
        assert!(made.is_null());
        let says = last_error();
        ok!(sluice_queue_destroy(queue));
        assert_eq!(last_error(), says, "a successful call must not change the error text");
        answer
    };
    macro_rules! refused {
        ($says:expr, $($fields:tt)*) => {
            answered!(handle(options!(sluice_handle_options { $($fields)* })), EINVAL, $says)
        };
    }
    refused!("SLUICE_WAIT_POLL", wait: 3);
    refused!("1 to 99", wait: SLUICE_WAIT_HYBRID, hybrid_percent: 100);
    refused!("without SLUICE_WAIT_HYBRID", hybrid_percent: 50);
    refused!("without SLUICE_WAIT_HYBRID", wait: SLUICE_WAIT_EVENT, hybrid_late_ns: 1);
    refused!("scheduler", group: 1);
    refused!("0 to 65535", group: 1 << 16);
    refused!("0 with one queue", selector: SLUICE_SELECT_BY_DIRECTION);
    refused!("SLUICE_SELECT_ROUND_ROBIN", selector: 4);
    refused!("`select`", selector: SLUICE_SELECT_CALLBACK);
    refused!("SLUICE_SELECT_CALLBACK", select_arg: std::ptr::dangling_mut::<c_void>());
    refused!("without SLUICE_SELECT_BY_SIZE", select_sectors: 1);
    refused!("without `cache_bytes`", cache_flags: SLUICE_CACHE_CLOCK);
    refused!("without `cache_bytes`", cache_depth: 1);
    refused!("cache_flags = 8", cache_bytes: 1 << 20, cache_flags: 8);
    refused!("64 units", cache_bytes: 4096);
    refused!("machine has memory", cache_bytes: 1 << 42);
    refused!("1 to 90", cache_bytes: 1 << 20, cache_dirty_percent: 91);
    refused!("1 to 90", cache_bytes: 1 << 20, cache_dirty_percent: 300);
    refused!("background_percent", cache_bytes: 1 << 20, cache_background_percent: 60);
    refused!("WRITE_THROUGH", cache_bytes: 1 << 20, cache_flags: 1, cache_dirty_percent: 10);
    refused!("NO_READ_AHEAD", cache_bytes: 1 << 20, cache_flags: 4, cache_read_ahead: 10);
    refused!("quarter", cache_bytes: 1 << 20, cache_read_ahead: 65);

    let queue = |options: sluice_queue_options| {
        // SAFETY: the pointers are to live objects.
        unsafe { sluice_queue_create(stand.device, &options, &mut null_mut()) }
    };
    macro_rules! refused {
        ($says:expr, $($fields:tt)*) => {
            answered!(queue(options!(sluice_queue_options { $($fields)* })), EINVAL, $says)
        };
    }
    refused!("flags = 4", flags: 4);
    refused!("drives only", flags: SLUICE_QUEUE_NO_INTERRUPTS);
    refused!("`queue_depth`", depth: 3);
    refused!("without a scheduler", device_depth: 3);
    refused!("without a scheduler", scheduler_depth: 3);
    refused!("`groups`", group_count: 1);
    refused!("1024 at most", groups: std::ptr::dangling(), group_count: 1025);
    refused!("`bfq`", scheduler: c"bfq".as_ptr());
    refused!("device_depth", scheduler: c"none".as_ptr(), device_depth: 65_536);

    let poller = |options: sluice_poller_options| {
        // SAFETY: the pointers are to live objects.
        unsafe { sluice_poller_create(stand.device, &options, &mut null_mut()) }
    };
    macro_rules! refused {
        ($says:expr, $($fields:tt)*) => {
            answered!(poller(options!(sluice_poller_options { $($fields)* })), EINVAL, $says)
        };
    }
    refused!("SLUICE_PERIOD_DYNAMIC", period: 3);
    refused!("up to a second", period: SLUICE_PERIOD_FIXED);
    refused!("up to a second", period: SLUICE_PERIOD_FIXED, period_ns: 2_000_000_000);
    refused!("SLUICE_PERIOD_BUSY_POLL", period: SLUICE_PERIOD_BUSY_POLL, period_ns: 1);
    refused!("without SLUICE_PERIOD_DYNAMIC", period: SLUICE_PERIOD_FIXED, period_ns: 1, late_ns: 1);
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    let stand = Stand::new();
    let Stand { handle, buffer, .. } = stand;
    let other = Stand::new();
    // SAFETY: all-zero bytes are a valid value.
    let read: sluice_request =
        sluice_request { op: SLUICE_OP_READ, sectors: 1, buffer, ..unsafe { std::mem::zeroed() } };
    let submit = |request: sluice_request| {
        // SAFETY: the pointers are to live objects.
        unsafe { sluice_submit(handle, &request, 1) }
    };
    macro_rules! refused {
        ($errno:ident, $says:expr, $($fields:tt)*) => {
            answered!(submit(sluice_request { $($fields)*, ..read }), $errno, $says)
        };
    }
    refused!(EINVAL, "op = 0", op: 0, buffer: null());
    refused!(EINVAL, "op = 6", op: 6, buffer: null());
    refused!(EINVAL, "SLUICE_FUA with a write", flags: SLUICE_FUA);
    refused!(EINVAL, "flags", op: SLUICE_OP_WRITE, flags: SLUICE_DEALLOCATE);
    refused!(EINVAL, "2^63", user_data: 1 << 63);
    refused!(EINVAL, "reserved", reserved: 1);
    refused!(EINVAL, "512", buffer_offset: 8);
    refused!(EINVAL, "inside of the buffer", buffer_offset: 8192);
    refused!(EINVAL, "inside of the buffer", buffer_offset: !511);
    refused!(EINVAL, "inside of the buffer", sectors: 17);
    refused!(EINVAL, "inside of the buffer", sectors: u32::MAX);
    refused!(EXDEV, "another device", buffer: other.buffer);
    refused!(EINVAL, "moves no data", op: SLUICE_OP_DISCARD);
    refused!(EINVAL, "of everything", op: SLUICE_OP_FLUSH, buffer: null());

    // Of two requests the second is invalid: the first is accepted.
    let two = [read, sluice_request { op: 9, ..read }];
    // SAFETY: the pointers are to live objects.
    assert_eq!(unsafe { sluice_submit(handle, two.as_ptr(), 2) }, 1);
    // Errors that only the device detects are reported in the completion.
    assert_eq!(submit(sluice_request { lba: 1 << 40, user_data: 7, ..read }), 1);
    assert_eq!(submit(sluice_request { sectors: 0, user_data: 8, ..read }), 1);
    // SAFETY: all-zero bytes are a valid value.
    let mut came: [sluice_completion; 8] = unsafe { std::mem::zeroed() };
    // SAFETY: the pointers are to live objects.
    assert_eq!(unsafe { sluice_wait(handle, came.as_mut_ptr(), 8, 8, SLUICE_TIMEOUT_INFINITE) }, 3);
    let error = |name: u64| came[..3].iter().find(|c| c.user_data == name).map(|c| c.error);
    let errors = (error(0), error(7), error(8));
    assert_eq!(errors, (Some(0), Some(-libc::ERANGE), Some(-libc::EINVAL)));

    expect!(sluice_read(handle, 0, 17, buffer, 0), EINVAL, "inside of the buffer");
    expect!(sluice_read(handle, 2048, 1, buffer, 0), ERANGE, "LBA out of range");
    expect!(sluice_read(handle, u64::MAX, 2, buffer, 0), ERANGE, "LBA out of range");
    expect!(sluice_read(handle, 0, 1, other.buffer, 0), EXDEV, "another device");
    expect!(sluice_write(handle, 0, 1, buffer, 0, 8), EINVAL, "SLUICE_FUA, SLUICE_ATOMIC, both");
    expect!(sluice_write(handle, 0, 1, buffer, 0, SLUICE_ATOMIC), EINVAL, "invalid field");
    expect!(sluice_write_zeroes(handle, 0, 1, 1), EINVAL, "SLUICE_DEALLOCATE or 0");
    expect!(sluice_discard(handle, 2048, 1), ERANGE, "out of range");
    let mut memory = [0u8; 1024];
    let into = memory.as_mut_ptr().cast();
    expect!(sluice_pread(handle, into, 100, 0), EINVAL, "sector size");
    expect!(sluice_pread(handle, into, 512, 100), EINVAL, "sector size");
    expect!(sluice_pread(handle, into, 1024, (1 << 20) - 512), ERANGE, "out of range");
    expect!(sluice_pwrite(handle, into, 512, u64::MAX - 511), ERANGE, "out of range");
    let pieces = [100, 412, 1 << 9].map(|iov_len| libc::iovec { iov_base: into, iov_len });
    expect!(sluice_preadv(handle, pieces.as_ptr(), 1, 0), EINVAL, "sector size");
    expect!(sluice_preadv(handle, pieces.as_ptr(), 2, 100), EINVAL, "sector size");
    expect!(sluice_preadv(handle, pieces.as_ptr(), -1, 0), EINVAL, "0 to 1024");
    expect!(sluice_preadv(handle, pieces.as_ptr(), 1025, 0), EINVAL, "0 to 1024");
    expect!(sluice_preadv(handle, pieces.as_ptr(), 3, (1 << 20) - 512), ERANGE, "out of range");
    let huge = [usize::MAX, 513].map(|iov_len| libc::iovec { iov_base: into, iov_len });
    expect!(sluice_pwritev(handle, huge.as_ptr(), 2, 0), EINVAL, "below 2^63");
    expect!(sluice_wait(handle, null_mut(), 0, 1, 0), EINVAL, "room = 0");
    let mut stats = options!(sluice_handle_stats {});
    ok!(sluice_handle_get_stats(handle, &mut stats));
    assert_eq!(stats.errors, 9, "errors reported by the device");
}

#[test]
fn what_is_in_use_stays() {
    let stand = Stand::new();
    expect!(sluice_queue_destroy(stand.queue), EBUSY, "destroy them first");
    expect!(
        sluice_handle_create(stand.queue, null(), &mut null_mut()),
        EBUSY,
        "SLUICE_QUEUE_SHARED"
    );
    let twice = [stand.queue; 2];
    let mut handle = null_mut();
    expect!(sluice_handle_create_mq(twice.as_ptr(), 2, null(), &mut handle), EBUSY, "SHARED");
    expect!(sluice_handle_create_mq(twice.as_ptr(), 0, null(), &mut handle), EINVAL, "count = 0");
    let other = Stand::new();
    let both = [stand.queue, other.queue];
    expect!(
        sluice_handle_create_mq(both.as_ptr(), 2, null(), &mut handle),
        EXDEV,
        "another device"
    );

    let (mut queue, mut poller, mut second) = (null_mut(), null_mut(), null_mut());
    let shared = options!(sluice_queue_options { flags: SLUICE_QUEUE_SHARED });
    ok!(sluice_queue_create(stand.device, &shared, &mut queue));
    ok!(sluice_poller_create(stand.device, null(), &mut poller));
    ok!(sluice_poller_create(stand.device, null(), &mut second));
    expect!(sluice_poller_watch(poller, stand.queue), EINVAL, "SLUICE_QUEUE_SHARED");
    expect!(sluice_poller_unwatch(poller, queue), EBUSY, "does not watch");
    ok!(sluice_poller_watch(poller, queue));
    expect!(sluice_poller_watch(second, queue), EBUSY, "already");
    expect!(sluice_poller_unwatch(second, queue), EBUSY, "does not watch");
    expect!(sluice_queue_destroy(queue), EBUSY, "sluice_poller_unwatch");
    ok!(sluice_handle_create(queue, null(), &mut handle));
    expect!(sluice_poller_destroy(poller), EBUSY, "destroy them first");
    expect!(sluice_poller_unwatch(poller, queue), EBUSY, "destroy them first");
    ok!(sluice_handle_destroy(handle));
    ok!(sluice_poller_unwatch(poller, queue));
    ok!(sluice_poller_watch(second, queue));
    let mut stats = options!(sluice_poller_stats {});
    ok!(sluice_poller_get_stats(second, &mut stats));
    ok!(sluice_poller_destroy(second));
    ok!(sluice_poller_destroy(poller));
    ok!(sluice_queue_destroy(queue));
}

static INSIDE: AtomicBool = AtomicBool::new(false);
static LEAVE: AtomicBool = AtomicBool::new(false);
static HANDLE: AtomicPtr<sluice_handle> = AtomicPtr::new(null_mut());
static ANSWER: AtomicI32 = AtomicI32::new(0);

/// Tries to use the handle whose callback it is, then blocks inside this call until `LEAVE` is set.
unsafe extern "C" fn stay(_: *mut c_void, _: u32, _: u64, _: u32, _: usize) -> usize {
    // SAFETY: the handle is live, because it is executing this callback.
    let answer = unsafe { sluice_flush(HANDLE.load(Ordering::Acquire)) };
    ANSWER.store(answer, Ordering::Release);
    INSIDE.store(true, Ordering::Release);
    while !LEAVE.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    0
}

#[test]
fn one_thread_is_in_a_handle_at_a_time() {
    let stand = Stand::new();
    let (mut queues, mut handle) = ([null_mut(); 2], null_mut());
    for queue in &mut queues {
        ok!(sluice_queue_create(stand.device, null(), queue));
    }
    let options =
        options!(sluice_handle_options { selector: SLUICE_SELECT_CALLBACK, select: Some(stay) });
    ok!(sluice_handle_create_mq(queues.as_ptr(), 2, &options, &mut handle));
    HANDLE.store(handle, Ordering::Release);
    // SAFETY: the handle is live until the thread has ended.
    let first =
        std::thread::spawn(|| unsafe { sluice_discard(HANDLE.load(Ordering::Acquire), 0, 8) });
    while !INSIDE.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    assert_eq!(
        ANSWER.load(Ordering::Acquire),
        -libc::EBUSY,
        "the callback may not use its own handle"
    );
    expect!(sluice_flush(handle), EBUSY, "one thread at a time");
    expect!(sluice_reap(handle, null_mut(), 0), EBUSY, "one thread at a time");
    expect!(sluice_handle_destroy(handle), EBUSY, "another call uses the handle");
    LEAVE.store(true, Ordering::Release);
    assert_eq!(first.join().unwrap(), 0);
    ok!(sluice_flush(handle));
    ok!(sluice_handle_destroy(handle));
    for queue in queues {
        ok!(sluice_queue_destroy(queue));
    }
}

#[test]
fn objects_may_be_given_back_in_any_order() {
    let Stand { device, queue, handle, buffer } = *std::mem::ManuallyDrop::new(Stand::new());
    ok!(sluice_close(device));
    ok!(sluice_write(handle, 0, 16, buffer, 0, SLUICE_FUA));
    ok!(sluice_handle_destroy(handle));
    ok!(sluice_handle_create(queue, null(), &mut { null_mut() }));
    expect!(sluice_queue_destroy(queue), EBUSY, "destroy them first");
    // SAFETY: no call uses the buffer any more.
    unsafe { sluice_buffer_destroy(buffer) };
}
