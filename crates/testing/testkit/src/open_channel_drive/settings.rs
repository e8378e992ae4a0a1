//! Faults, properties and counters of a [`MockOpenChannelDrive`](super::MockOpenChannelDrive).

use std::collections::BTreeSet;

use mem::AddressSpace;

/// Failures that a test injects.
#[derive(Debug, Default)]
pub struct MockOpenChannelDriveFaults {
    /// Probability that a program fails.
    pub program_fail: f64,
    /// Probability that a copy cannot read its sources, which later reads can.
    pub copy_fail: f64,
    /// Probability that an erase fails.
    pub erase_fail: f64,
    /// Unreadable sectors.
    pub unreadable: BTreeSet<u64>,
    /// Number of commands after which power is cut: all later commands are aborted.
    pub cut_after: Option<u64>,
    /// Whether the drive completes nothing.
    pub dead: bool,
}

/// Properties of the controller.
#[derive(Debug)]
pub struct MockOpenChannelDriveOptions {
    /// Whether reads may overtake programs and erases.
    pub reads_first: bool,
    /// Maximum transfer in sectors.
    pub mdts_sectors: u32,
    /// Number of I/O queues.
    pub io_queues: u16,
    /// Whether it copies sectors, with new out-of-band bytes.
    pub can_copy: bool,
    /// Memory of the host that it connects to, which other drives may share; `None` for its own.
    pub space: Option<AddressSpace>,
}

/// Counters.
#[derive(Debug, Default)]
pub struct MockOpenChannelDriveStats {
    /// Hash of all operations, in order.
    pub history: u64,
    /// Number of fetched commands.
    pub fetched: u64,
    /// Number of programs that did not fail.
    pub programs: u64,
    /// Number of programs by a copy.
    pub copies: u64,
    /// Number of copies that failed because a source could not be read.
    pub failed_copies: u64,
    /// Number of stored programs that begin with padding.
    pub padding: u64,
    /// Number of executed erases.
    pub erases: u64,
    /// Number of read commands with more than one data block.
    pub scattered: u64,
    /// Number of read commands with more than one address.
    pub vectors: u64,
    /// Number of doorbell writes.
    pub doorbells: u64,
}
