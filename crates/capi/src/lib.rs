//! The C interface: `include/sluice.h`, `libsluice.so` and `libsluice.a` over [`direct`], the library of
//! NVMeDirect (HotStorage 2016).
//!
//! | file | noun |
//! |---|---|
//! | `version` | which headers the library serves |
//! | `error` | why a call failed: `errno`, and a text for each thread; no panic leaves the library |
//! | `options` | structs that grow |
//! | `open` | from what a caller names to a device |
//! | `device`, `buffer` | what was opened, and memory that it may touch |
//! | `owner` | what everything made of one device has in common |
//! | `queue`, `floor` | a hardware queue, with a scheduler or not |
//! | `lane` | a handle's place at a queue |
//! | `handle`, `stack`, `inside` | a handle, what it is made of, and the one thread inside |
//! | `policy`, `sleep` | what a handle is told, and how it waits |
//! | `io`, `vectored` | one request after the other, by sectors and by addresses of memory |
//! | `request` | many at once |
//! | `poller` | a thread that looks for completions |
//! | `stats` | what a handle has done |
//! | `vector`, `vector_io` | queues for vector commands of physical addresses, and the commands |
//! | `chunks` | an open-channel drive's shape, and its chunks |
//!
//! The header is made of this crate by `cbindgen`, and the pages in `docs/capi` of the header; a test
//! compares both with what is checked in, and writes them anew with `UPDATE=1`.
//!
//! # Pointers
//!
//! What the header demands, and every `unsafe` block here stands on: a pointer to an object is `NULL` or one
//! that the library gave out and has not taken back; any other pointer is `NULL`, or aligned and good for as
//! much as the call says, until the call returns. `NULL` where it is not allowed is `-EINVAL`; two threads in
//! one handle are `-EBUSY`. An object that was destroyed, and a buffer given back with requests
//! outstanding, are not noticed.

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
