//! [`AhciStats`]: the counters of an AHCI controller and its drives (ARCHITECTURE.md, R10).

use time::Nanos;

use crate::Lateness;

/// The counters of a controller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AhciStats {
    /// Number of times that the interrupt line was raised.
    pub interrupts: u64,
    /// Transfer time of the uplink.
    pub uplink_busy: Nanos,
    /// Lateness of completions in real time (ARCHITECTURE.md, R6).
    pub late: Lateness,
    /// Counters per port.
    pub drives: Vec<SataDriveStats>,
}

/// The counters of a drive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SataDriveStats {
    /// Reads completed with success.
    pub reads: u64,
    /// Writes completed with success.
    pub writes: u64,
    /// Other commands completed with success.
    pub others: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Commands that the drive completed with an error.
    pub errors: u64,
    /// Commands dropped because another one failed, or because of a reset.
    pub dropped: u64,
    /// Errors of the controller: unregistered addresses, and invalid commands.
    pub fatal_errors: u64,
    /// Resets of the port (COMRESET).
    pub resets: u64,
    /// Transfer time of the link.
    pub link_busy: Nanos,
}
