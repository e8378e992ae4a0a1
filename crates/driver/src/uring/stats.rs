//! [`UringStats`]: what a queue counts.

/// Counts of a queue since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UringStats {
    /// Entries given to the kernel: commands, continued commands, cancellations.
    pub entries: u64,
    /// System calls made to give them and to fetch completions.
    pub system_calls: u64,
    /// Answers taken from the kernel.
    pub completions: u64,
    /// Transfers that the kernel did in part, and that were continued.
    pub short_transfers: u64,
    /// Commands that the kernel asked to be given again (`EAGAIN`).
    pub retries: u64,
    /// Requests to cancel a command.
    pub cancellations: u64,
    /// Regions that the kernel has pinned.
    pub registered_regions: u32,
    /// Regions that it has not, and that are looked up for every command.
    pub unregistered_regions: u32,
    /// Transfers in one piece of memory that is not pinned.
    pub unregistered_transfers: u64,
    /// Answers to nothing that was asked.
    pub spurious_completions: u64,
}
