//! Two checkpoints of a process's memory, for the costs that [Spec14 §4.2] asks about.
//!
//! [`fork_checkpoint`] clones the process, as the paper does: the clone is the checkpoint. The kernel
//! copies all page tables, so that the cost grows with the memory of the process.
//!
//! [`IncrementalCheckpoint`] protects a range of memory against writes with `userfaultfd(2)`, and
//! keeps a copy of it. The kernel removes the protection of a page at its first write. The next
//! checkpoint copies and protects only the pages that were written since. [`IncrementalCheckpoint`]
//! finds them by one call (`PAGEMAP_SCAN`, Linux 6.7).
//!
//! # Unsafe code
//!
//! The crate maps memory and calls the kernel. [`PageMemory`] is the only owner of its mapping.

mod fork;
mod incremental;
mod memory;

pub use fork::{ForkTimes, fork_checkpoint};
pub use incremental::IncrementalCheckpoint;
pub use memory::{PageMemory, PageSize};

use std::io;

/// Why a checkpoint cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The kernel does not have a function.
    #[error("the kernel does not have {feature}: {source}")]
    Unsupported {
        /// The function, and the version that has it.
        feature: &'static str,
        /// Cause.
        source: io::Error,
    },
    /// A system call failed.
    #[error("{call}: {source}")]
    Call {
        /// The call.
        call: &'static str,
        /// Cause.
        source: io::Error,
    },
}

impl CheckpointError {
    fn last(call: &'static str) -> CheckpointError {
        CheckpointError::Call { call, source: io::Error::last_os_error() }
    }
}
