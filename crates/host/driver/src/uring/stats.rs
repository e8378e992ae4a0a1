//! [`UringStats`]: the counters of a queue.

/// Counters of a queue since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UringStats {
    /// Entries submitted to the kernel: commands, continued commands, cancellations.
    pub entries: u64,
    /// System calls for submissions and completions.
    pub system_calls: u64,
    /// Results taken from the kernel.
    pub completions: u64,
    /// Partial transfers that were continued.
    pub short_transfers: u64,
    /// Commands reissued after `EAGAIN`.
    pub retries: u64,
    /// Requests to cancel a command.
    pub cancellations: u64,
    /// Regions that the kernel has pinned.
    pub registered_regions: u32,
    /// Regions that the kernel has not pinned, and looks up for every command.
    pub unregistered_regions: u32,
    /// Transfers of contiguous memory that is not pinned.
    pub unregistered_transfers: u64,
    /// Results that match no command.
    pub spurious_completions: u64,
}
