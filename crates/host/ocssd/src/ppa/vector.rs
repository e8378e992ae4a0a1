//! Types of a vector request: its [kind](VectorKind), [options](VectorOptions), [id](RequestId) and
//! [completion](RequestCompletion); [configuration](SessionConfig) and [counters](SessionStats) of
//! a session.

use std::fmt;

use nvme::Status;

use super::{FailedMask, VectorBuffer};

/// Maximum number of addresses of a vector.
pub const ADDRESSES_MAX: usize = 1 << 20;

/// The operation of a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VectorKind {
    /// Reads sectors into memory.
    Read,
    /// Checks whether sectors are readable, without transfer.
    Check,
    /// Writes sectors from memory.
    Write,
    /// Erases chunks.
    Reset,
    /// Copies sectors within the drive.
    Copy,
}

impl fmt::Display for VectorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            VectorKind::Read => "read",
            VectorKind::Check => "check",
            VectorKind::Write => "write",
            VectorKind::Reset => "reset",
            VectorKind::Copy => "copy",
        })
    }
}

/// Options of a read or write. Further options may be added: start from [`VectorOptions::default`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VectorOptions {
    /// Whether out-of-band bytes are transferred, on a drive that has some. If not, a write sets
    /// them to zeros.
    pub oob: bool,
}

impl Default for VectorOptions {
    fn default() -> VectorOptions {
        VectorOptions { oob: true }
    }
}

impl VectorOptions {
    /// Disables the transfer of out-of-band bytes.
    #[must_use]
    pub fn without_oob(self) -> VectorOptions {
        VectorOptions { oob: false, ..self }
    }
}

/// Configuration of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionConfig {
    /// Maximum number of outstanding commands on the drive.
    pub queue_depth: u16,
    /// Maximum number of vectors accepted and not reaped.
    pub vectors: u16,
    /// Interrupt vector of completions, if any.
    pub interrupt: Option<u16>,
    /// Whether sectors are copied within the drive, if it supports this.
    pub allow_drive_copy: bool,
}

impl Default for SessionConfig {
    fn default() -> SessionConfig {
        SessionConfig { queue_depth: 128, vectors: 256, interrupt: None, allow_drive_copy: true }
    }
}

/// Identifies a vector among all vectors of all sessions on the drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId {
    pub(super) session: u32,
    pub(super) seq: u64,
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vector #{}.{}", self.session, self.seq)
    }
}

/// A completed vector.
#[derive(Debug)]
#[must_use = "a vector that has ended may have failed"]
pub struct RequestCompletion {
    /// Id of the vector.
    pub request: RequestId,
    /// Operation.
    pub kind: VectorKind,
    /// Status of the first failed command; [`Status::SUCCESS`] if none failed.
    pub status: Status,
    /// Mask of the failed addresses.
    pub failed: FailedMask,
    /// Number of addresses of the vector.
    pub addresses: u32,
    /// The vector's buffer, if any.
    pub buffer: Option<VectorBuffer>,
}

impl RequestCompletion {
    /// Returns whether no address failed.
    pub fn is_success(&self) -> bool {
        self.status.is_success()
    }
}

/// Counters of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionStats {
    /// Vectors accepted.
    pub vectors: u64,
    /// Commands submitted for them.
    pub commands: u64,
    /// Vectors that took more than one command.
    pub split: u64,
    /// Vectors rejected.
    pub rejected: u64,
    /// Vectors with failed addresses.
    pub failed: u64,
    /// Failed addresses.
    pub failed_addresses: u64,
    /// Sectors requested to be read.
    pub sectors_read: u64,
    /// Sectors requested to be checked.
    pub sectors_checked: u64,
    /// Sectors requested to be written.
    pub sectors_written: u64,
    /// Sectors requested to be copied.
    pub sectors_copied: u64,
    /// Chunks requested to be reset.
    pub chunks_reset: u64,
}
