//! The integration tests of this crate: one binary, because linking takes longer than compiling.

mod allocations;
mod common;
mod completion;
mod completion_ahci;
mod exactly_once;
mod limits;
#[path = "../../../driver/tests/suite/common/mod.rs"]
mod mock_drive;
mod notify;
mod plug;
mod raw;
mod reads;
mod sched;
mod sched_allocations;
mod trace_blktrace;
