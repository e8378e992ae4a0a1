//! [`AhciStats`]: what a controller and its drives have done (rule R10).

use clock::Nanos;

use crate::Lateness;

/// What a controller has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AhciStats {
    /// How often the interrupt line was raised.
    pub interrupts: u64,
    /// Time that the uplink transferred.
    pub uplink_busy: Nanos,
    /// How late completions were, in real time (rule R6).
    pub late: Lateness,
    /// Per port.
    pub drives: Vec<SataDriveStats>,
}

/// What a drive has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SataDriveStats {
    /// Reads that ended well.
    pub reads: u64,
    /// Writes that ended well.
    pub writes: u64,
    /// Other commands that ended well.
    pub others: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Commands that the drive ended with an error.
    pub errors: u64,
    /// Commands that it dropped because another one failed, or because of a reset.
    pub dropped: u64,
    /// Errors of the controller: addresses that are nobody's, commands that are none.
    pub fatal_errors: u64,
    /// Resets of the port (COMRESET).
    pub resets: u64,
    /// Time that the link transferred.
    pub link_busy: Nanos,
}
