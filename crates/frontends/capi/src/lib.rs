//! The C interface: `include/sluice.h`, `libsluice.so` and `libsluice.a` over [`user_io`]
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
//! A call with a `NULL` that is not allowed fails with `-EINVAL`. A call on a handle or vector queue
//! during another call on it fails with `-EBUSY`. The use of a destroyed object, or of a buffer that
//! was freed with requests outstanding, is not detected.

#![allow(non_camel_case_types, reason = "names of C")]
#![allow(clippy::missing_safety_doc, reason = "what pointers must be is said once, above")]

mod device;
mod error;
mod handle;
mod options;
mod queue;
mod request;
mod vector;
mod version;

pub use device::buffer::*;
pub use device::chunks::*;
pub use device::faults::*;
pub use device::named_sectors::*;
pub use device::namespaces::*;
pub use device::pmr::*;
pub use device::rule_commands::*;
pub use device::rules::*;
pub use device::*;
pub use error::sluice_last_error;
pub use handle::event_fd::*;
pub use handle::options::*;
pub use handle::single_thread::sluice_handle;
pub use handle::stats::*;
pub use handle::*;
pub use queue::poller::*;
pub use queue::*;
pub use request::blocking::*;
pub use request::vectored::*;
pub use request::*;
pub use vector::io::*;
pub use vector::*;
pub use version::*;
