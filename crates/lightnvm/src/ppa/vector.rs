//! What a vector is: its [kind](VectorKind) and [options](Options), its [ticket](RequestId) while it is
//! outstanding, and how it [ended](Ended); what a session [holds](SessionConfig) and has
//! [done](SessionStats).

use std::fmt;

use nvme::Status;

use super::{Buffer, FailedMask};

/// Addresses of one vector at most.
pub const ADDRESSES_MAX: usize = 1 << 20;

/// What a vector asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VectorKind {
    /// Sectors to memory.
    Read,
    /// Whether sectors can be read; nothing is transferred.
    Check,
    /// Memory to sectors.
    Write,
    /// Chunks are erased.
    Reset,
    /// Sectors to sectors, inside the drive.
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

/// How a read or write is carried out. More options may come: start from
/// [`Options::default`], which is what most want.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VectorOptions {
    /// Whether out-of-band bytes are transferred, on a drive that has some. Without, those of a
    /// write are zeros.
    pub oob: bool,
}

impl Default for VectorOptions {
    fn default() -> VectorOptions {
        VectorOptions { oob: true }
    }
}

impl VectorOptions {
    /// Leaves out-of-band bytes alone.
    #[must_use]
    pub fn without_oob(self) -> VectorOptions {
        VectorOptions { oob: false, ..self }
    }
}

/// What a session holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionConfig {
    /// Commands outstanding on the drive at most.
    pub queue_depth: u16,
    /// Vectors taken and not reaped at most.
    pub vectors: u16,
    /// Interrupt vector that the drive raises after completions.
    pub interrupt: Option<u16>,
    /// Whether sectors are copied inside the drive, if it can.
    pub allow_drive_copy: bool,
}

impl Default for SessionConfig {
    fn default() -> SessionConfig {
        SessionConfig { queue_depth: 128, vectors: 256, interrupt: None, allow_drive_copy: true }
    }
}

/// Names a vector of a session, among all sessions on the drive.
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

/// A vector that has ended.
#[derive(Debug)]
#[must_use = "a vector that has ended may have failed"]
pub struct RequestCompletion {
    /// Which.
    pub request: RequestId,
    /// What was asked.
    pub kind: VectorKind,
    /// How the first of its commands that failed ended; [`Status::SUCCESS`] if none did.
    pub status: Status,
    /// Which of its addresses failed.
    pub failed: FailedMask,
    /// Addresses that it had.
    pub addresses: u32,
    /// The buffer that came with it.
    pub buffer: Option<Buffer>,
}

impl RequestCompletion {
    /// Whether no address failed.
    pub fn is_success(&self) -> bool {
        self.status.is_success()
    }
}

/// What a session has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionStats {
    /// Vectors taken.
    pub vectors: u64,
    /// Commands that they took.
    pub commands: u64,
    /// Vectors that took more than one.
    pub split: u64,
    /// Vectors refused.
    pub rejected: u64,
    /// Vectors of which some address failed.
    pub failed: u64,
    /// Addresses that failed.
    pub failed_addresses: u64,
    /// Sectors asked to be read.
    pub sectors_read: u64,
    /// Sectors asked to be checked.
    pub sectors_checked: u64,
    /// Sectors asked to be written.
    pub sectors_written: u64,
    /// Sectors asked to be copied.
    pub sectors_copied: u64,
    /// Chunks asked to be reset.
    pub chunks_reset: u64,
}
