//! [`CallError`]: the reason why a call failed, as `errno` and as text.
//!
//! Every call runs inside [`call`]. A failure becomes `-errno`, and its text is stored for the
//! calling thread ([`sluice_last_error`]). A panic is caught here, because unwinding into C is
//! undefined.

// guarantee: S-14

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use block::sched::SchedError;
use controller::{DriveRulesError, NamespaceError};
use nvme::{Address, Status};
use open::{CloseError, DriveControlError, TargetOpenError};
use scenario::ScenarioError;
pub(crate) use user_io::status_errno;
use user_io::{DirectError, IoError};

use crate::version::{SLUICE_VERSION, Version};

/// Reason why a call failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// A pointer is `NULL` where the call does not allow it.
    #[error("`{0}` is NULL")]
    Null(&'static str),
    /// An argument or member has an invalid value.
    #[error("{what} = {value}: {allowed}")]
    Value { what: &'static str, value: u64, allowed: &'static str },
    /// A string is not valid UTF-8.
    #[error("`{0}` is not UTF-8")]
    Text(&'static str),
    /// A struct has members that this library does not know, and they are not zero.
    #[error(
        "`size` = {size} of {name}: this library knows its first {known} bytes, and those after it \
         must be 0"
    )]
    TooNew { name: &'static str, size: usize, known: usize },
    /// A struct has a size that no version of it had.
    #[error(
        "`size` = {size} of {name}: set it to sizeof, {known} with this library's header; multiples \
         of 8 from 8 on are sizes"
    )]
    Size { name: &'static str, size: usize, known: usize },
    /// The header has an incompatible version.
    #[error(
        "the program was compiled with sluice.h {header} and runs with the library {library}: allowed \
         is a header of the same minor version as the library; compile it again, or install the \
         library that it was compiled for",
        library = Version(SLUICE_VERSION)
    )]
    Version { header: Version },
    /// The queue is full.
    #[error("the queue is full: reap completions, then submit again")]
    Busy,
    /// Another call or object uses the object.
    #[error("{0}")]
    InUse(&'static str),
    /// The arguments belong to different devices.
    #[error("`{0}` is of another device")]
    Foreign(&'static str),
    /// The memory is not in a buffer.
    #[error("the memory is not, or not all of it, in a buffer of sluice_buffer_create()")]
    NoBuffer,
    /// The device did not complete the outstanding requests in time.
    #[error(
        "{outstanding} requests did not complete within {seconds} s: the device does not respond"
    )]
    Timeout { outstanding: u32, seconds: u64 },
    /// The library panicked.
    #[error("internal error: {0}")]
    Panicked(String),
    /// A previous call on the object panicked.
    #[error("the handle was lost to an internal error: destroy it")]
    Poisoned,
    /// The device could not be opened.
    #[error(transparent)]
    Open(#[from] TargetOpenError),
    /// The drive was not shut down cleanly.
    #[error(transparent)]
    Close(#[from] CloseError),
    /// The text of a fault is invalid.
    #[error("{}", .0.problem_text())]
    FaultText(#[from] ScenarioError),
    /// A fault was not injected, or namespaces were not changed.
    #[error(transparent)]
    Control(#[from] DriveControlError),
    /// A queue, handle, buffer or poller could not be created.
    #[error(transparent)]
    Direct(#[from] DirectError),
    /// The configuration of the scheduler is invalid.
    #[error(transparent)]
    Sched(#[from] SchedError),
    /// A request failed.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The drive has no sector with this address.
    #[error("the drive has no sector {0} (group/parallel unit/chunk/sector)")]
    NoSector(Address),
    /// The drive does not support copy.
    #[error("the drive copies nothing by itself (SLUICE_VECTOR_CAN_COPY): read and write instead")]
    NoCopies,
    /// A vector command failed, or some of its addresses did.
    #[error("vector {what} of {count} addresses: {status} (failed: {failed:#x})")]
    Vector {
        /// Name of the operation.
        what: &'static str,
        /// Number of addresses.
        count: u32,
        /// Failed addresses: one bit per address.
        failed: u64,
        /// Status of the command.
        status: Status,
    },
}

impl CallError {
    pub(crate) fn errno(&self) -> c_int {
        match self {
            CallError::Null(_)
            | CallError::Value { .. }
            | CallError::Text(_)
            | CallError::Size { .. }
            | CallError::Sched(_) => libc::EINVAL,
            CallError::TooNew { .. } => libc::E2BIG,
            CallError::Version { .. } => libc::ELIBBAD,
            CallError::Busy => libc::EAGAIN,
            CallError::InUse(_) => libc::EBUSY,
            CallError::Foreign(_) => libc::EXDEV,
            CallError::NoBuffer => libc::ENOENT,
            CallError::NoSector(_) => libc::ERANGE,
            CallError::NoCopies => libc::EOPNOTSUPP,
            CallError::Timeout { .. } => libc::ETIMEDOUT,
            CallError::Panicked(_) | CallError::Poisoned => libc::ENOTRECOVERABLE,
            CallError::Open(error) => error.errno(),
            CallError::Close(_) => libc::EIO,
            CallError::FaultText(_) => libc::EINVAL,
            CallError::Control(error) => control_errno(error),
            CallError::Direct(error) => error.errno(),
            CallError::Io(IoError::Status { status, .. }) | CallError::Vector { status, .. } => {
                status_errno(*status)
            }
            CallError::Io(IoError::Busy(_)) => libc::EAGAIN,
            CallError::Io(IoError::Length { .. } | IoError::Segments { .. }) => libc::EINVAL,
        }
    }
}

fn control_errno(error: &DriveControlError) -> c_int {
    match error {
        DriveControlError::NotEmulated
        | DriveControlError::Rules(DriveRulesError::NoRules)
        | DriveControlError::Namespaces(NamespaceError::NotManaged) => libc::EOPNOTSUPP,
        DriveControlError::Stopped(_) => libc::ENODEV,
        DriveControlError::Namespaces(error) => match error {
            NamespaceError::Capacity { .. } | NamespaceError::TooMany => libc::ENOSPC,
            NamespaceError::Unknown { .. } => libc::ENOENT,
            NamespaceError::Attached { .. } | NamespaceError::NotAttached { .. } => libc::EALREADY,
            NamespaceError::Refused { status } => status_errno(*status),
            NamespaceError::Unfinished { .. } => libc::ETIMEDOUT,
            _ => libc::EINVAL,
        },
        _ => libc::EINVAL,
    }
}

/// Text of a thread's last error.
enum LastError {
    Text(&'static CStr),
    Owned(CString),
}

thread_local! {
    static LAST: RefCell<LastError> = const { RefCell::new(LastError::Text(c"")) };
}

/// Stores the error's text for the thread. Frequent errors are stored without formatting.
fn remember(error: &CallError) {
    let last = match error {
        CallError::Busy | CallError::Io(IoError::Busy(_)) => {
            LastError::Text(c"the queue is full: reap completions, then submit again")
        }
        error => {
            let text = error.to_string().replace('\0', " ");
            CString::new(text).map_or(LastError::Text(c"an error without text"), LastError::Owned)
        }
    };
    // A thread that is ending may have dropped the place; it makes no further call.
    let _ = LAST.try_with(|place| {
        if let Ok(mut place) = place.try_borrow_mut() {
            *place = last;
        }
    });
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".into())
}

/// Runs a call; returns `-errno` if it fails or panics.
pub(crate) fn call<T: From<c_int>>(body: impl FnOnce() -> Result<T, CallError>) -> T {
    let error = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => return value,
        Ok(Err(error)) => error,
        Err(panic) => CallError::Panicked(text_of(&*panic)),
    };
    remember(&error);
    T::from(-error.errno())
}

/// Runs a call that returns a pointer or a number without error values; returns `otherwise` if it
/// fails.
pub(crate) fn call_or<T>(otherwise: T, body: impl FnOnce() -> Result<T, CallError>) -> T {
    let error = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => return value,
        Ok(Err(error)) => error,
        Err(panic) => CallError::Panicked(text_of(&*panic)),
    };
    remember(&error);
    otherwise
}

/// Returns the text of the calling thread's last error.
///
/// A successful call does not change the text.
///
/// # Returns
///
/// One line of English text that says what is wrong and what is allowed; an empty string if no call
/// of this thread has failed. The string is valid until the thread's next call that fails. Never
/// `NULL`.
///
/// # Threads
///
/// Any thread. Each thread has its own text.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_last_error() -> *const c_char {
    let none = c"".as_ptr();
    LAST.try_with(|last| match &*last.borrow() {
        LastError::Text(text) => text.as_ptr(),
        LastError::Owned(text) => text.as_ptr(),
    })
    .unwrap_or(none)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last() -> String {
        // SAFETY: the text is valid until this thread's next failure.
        unsafe { CStr::from_ptr(sluice_last_error()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_failure_is_a_number_and_a_text_of_its_own_thread() {
        assert_eq!(last(), "");
        let answer: c_int = call(|| Err(CallError::Null("device")));
        assert_eq!((answer, last().as_str()), (-libc::EINVAL, "`device` is NULL"));
        let answer: i64 = call(|| Ok(7));
        assert_eq!((answer, last().as_str()), (7, "`device` is NULL"));
        std::thread::spawn(|| assert_eq!(last(), "")).join().unwrap();
        let answer: c_int = call(|| Err(CallError::Busy));
        assert_eq!(answer, -libc::EAGAIN);
        assert!(last().contains("full"));
    }

    #[test]
    fn a_panic_does_not_leave_the_library() {
        let answer: c_int = call(|| panic!("on {}", "purpose"));
        assert_eq!(answer, -libc::ENOTRECOVERABLE);
        assert_eq!(last(), "internal error: on purpose");
        assert_eq!(call_or(5, || panic!("again")), 5);
        assert_eq!(last(), "internal error: again");
    }

    #[test]
    fn statuses_read_as_errno() {
        for (status, errno) in [
            (Status::SUCCESS, 0),
            (Status::INVALID_FIELD.do_not_retry(), libc::EINVAL),
            (Status::LBA_OUT_OF_RANGE, libc::ERANGE),
            (Status::CAPACITY_EXCEEDED, libc::ENOSPC),
            (Status::WRITE_PROTECTED, libc::EROFS),
            (Status::UNRECOVERED_READ, libc::EIO),
            (Status::WRITE_FAULT, libc::EIO),
            (Status::GUARD_CHECK, libc::EILSEQ),
            (Status::APPLICATION_TAG_CHECK, libc::EILSEQ),
            (Status::REFERENCE_TAG_CHECK, libc::EILSEQ),
            (Status::INVALID_PROTECTION.do_not_retry(), libc::EILSEQ),
            (Status::UNWRITTEN, libc::ENODATA),
            (Status::OUT_OF_ORDER_WRITE, libc::ESPIPE),
            (Status::INVALID_RESET, libc::EINVAL),
            (Status::OFFLINE_CHUNK, libc::EIO),
            (block::STATUS_REMOVED, libc::ENODEV),
            (Status::NOT_READY, libc::EBUSY),
            (Status::ABORTED, libc::ECANCELED),
            (Status::from_bits(0x7ff), libc::EIO),
        ] {
            assert_eq!(status_errno(status), errno, "{status:?}");
        }
    }
}
