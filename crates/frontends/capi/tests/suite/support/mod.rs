//! Macros for calls and their results, and a device for tests.

use std::ffi::CStr;
use std::ptr::{null, null_mut};

use sluice_c::*;

pub(crate) fn last_error() -> String {
    // SAFETY: the text is valid until this thread's next failure.
    unsafe { CStr::from_ptr(sluice_last_error()) }.to_string_lossy().into_owned()
}

/// Checks a call's return value, and that the error text contains `$says`.
macro_rules! answered {
    ($answer:expr, $errno:ident, $says:expr) => {{
        let answer = $answer;
        let says = $crate::support::last_error();
        assert_eq!(i64::from(answer), -i64::from(libc::$errno), "{}: {says}", stringify!($answer));
        assert!(says.contains($says), "{}: {says}", stringify!($answer));
    }};
}

/// Makes a call that must fail with this error and message.
macro_rules! expect {
    ($call:expr, $errno:ident, $says:expr) => {{
        // SAFETY: pointers are NULL, or to live objects and memory of the test.
        let answer = unsafe { $call };
        answered!(answer, $errno, $says);
    }};
}

macro_rules! ok {
    ($call:expr) => {{
        // SAFETY: pointers are to live objects and memory of the test.
        let answer = unsafe { $call };
        assert_eq!(answer, 0, "{}: {}", stringify!($call), $crate::support::last_error());
    }};
}

/// Returns a struct with its size and the given members; all others are zero.
macro_rules! options {
    ($of:ident { $($field:ident: $value:expr),* $(,)? }) => {{
        // SAFETY: all-zero bytes are a valid value of every struct of the header.
        let mut value: $of = unsafe { std::mem::zeroed() };
        value.size = size_of::<$of>();
        $(value.$field = $value;)*
        value
    }};
}

/// A device with a queue, a handle and a buffer.
pub(crate) struct Stand {
    pub(crate) device: *mut sluice_device,
    pub(crate) queue: *mut sluice_queue,
    pub(crate) handle: *mut sluice_handle,
    pub(crate) buffer: *mut sluice_buffer,
}

impl Stand {
    pub(crate) fn new() -> Stand {
        let (mut device, mut queue, mut handle) = (null_mut(), null_mut(), null_mut());
        let mut buffer = null_mut();
        ok!(sluice_open_version(SLUICE_VERSION, c"null:1m".as_ptr(), null(), &mut device));
        ok!(sluice_queue_create(device, null(), &mut queue));
        ok!(sluice_handle_create(queue, null(), &mut handle));
        ok!(sluice_buffer_create(device, 8192, &mut buffer));
        Stand { device, queue, handle, buffer }
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        ok!(sluice_handle_destroy(self.handle));
        ok!(sluice_queue_destroy(self.queue));
        // SAFETY: no call uses these objects any more.
        unsafe {
            sluice_buffer_destroy(self.buffer);
            assert_eq!(sluice_close(self.device), 0);
        }
    }
}
