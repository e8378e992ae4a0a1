//! The file service of `sluice exec`: it owns a volume ([`store`]), and programs into which
//! `libsluice_preload.so` is loaded ask it for files, by slots in shared memory ([`slots`]). `docs/exec.md` says what
//! is covered and how.
//!
//! | file | noun |
//! |---|---|
//! | [`service`](Service) | the loop: calls in, requests to the store, answers out |
//! | `door` | connections: processes that introduce themselves, sockets that stand for open files, ends of both |
//! | `session` | the memory that one process shares with the service |
//! | `calls` | what each call asks of the store |
//! | `left` | writes that nobody waits for: their order, their room, their errors |
//! | `ends` | what becomes of requests that have ended |
//! | `under_way` | which calls wait for the store |
//! | `images` | files that programs map and share, as memory files |
//! | `passes` | going through a file that is mapped: into its image, and what has changed back |
//! | `patience` | how long the loop looks for work before it sleeps |
//! | `open_files` | open file descriptions: offset, flags |
//! | [`locks`] | record locks, and locks of whole files |
//! | [`program`] | which program is to run, and whether it can be |
//!
//! # What stands for an open file
//!
//! A program's descriptor is one end of a socket whose other end the service has. The kernel counts its
//! copies, whoever makes and closes them (`dup`, `fork`, `exec`, death), and the service hears of the last
//! one: there is no count of ours that could be wrong.

#![forbid(unsafe_code)]

mod adaptive_spin;
mod calls;
mod completion;
mod connections;
pub mod locks;
mod mapping_sync;
mod open_files;
mod pending_calls;
mod posted_writes;
pub mod program;
mod service;
mod session;
mod shared_mappings;

pub use connections::Address;
pub use service::{Service, ServiceError, ServiceStats, StopHandle};
