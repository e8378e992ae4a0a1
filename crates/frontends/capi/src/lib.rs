//! The C interface: `include/sluice.h`, `libsluice.so` and `libsluice.a` over [`direct`]
//! (\[NVMeDirect16\]).
//!
//! `cbindgen` generates the header from this crate, and the pages in `docs/capi` are generated from
//! the header. A test compares both with the files in the repository, and rewrites these with
//! `UPDATE=1`.
//!
//! # Pointers
//!
//! The header's demands, on which every `unsafe` block here relies: A pointer to an object is
//! `NULL`, or was returned by the library and not destroyed yet. Any other pointer is `NULL`, or
//! aligned and valid for the length that the call states, until the call returns.
//!
//! A `NULL` where it is not allowed fails with `-EINVAL`, and two threads in one handle fail with
//! `-EBUSY`. Uses of a destroyed object, or of a buffer freed with requests outstanding, are not
//! detected.

#![allow(non_camel_case_types, reason = "names of C")]
#![allow(clippy::missing_safety_doc, reason = "what pointers must be is said once, above")]

mod buffer;
mod chunks;
mod device;
mod device_ref;
mod error;
mod event_fd;
mod handle;
mod handle_device;
mod handle_options;
mod io;
mod open;
mod options;
mod poller;
mod queue;
mod queue_binding;
mod queue_kind;
mod request;
mod single_thread;
mod stats;
mod vector;
mod vector_io;
mod vectored;
mod version;

pub use buffer::*;
pub use chunks::*;
pub use device::*;
pub use error::sluice_last_error;
pub use event_fd::*;
pub use handle::*;
pub use handle_options::*;
pub use io::*;
pub use poller::*;
pub use queue::*;
pub use request::*;
pub use single_thread::sluice_handle;
pub use stats::*;
pub use vector::*;
pub use vector_io::*;
pub use vectored::*;
pub use version::*;
