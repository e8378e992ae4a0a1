//! [`TracedDevice`]: the description of a traced device in its trace files.

use super::record::COMM_BYTES;
use super::{DeviceNumber, WriteError};
use crate::Submitter;

/// Sector size of the format.
pub(super) const UNIT_BYTES: u32 = 512;

/// A submitter, which tools see as a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceProcess {
    /// The submitter.
    pub submitter: Submitter,
    /// Process number. btt calls 0 `kernel`, whatever its name.
    pub pid: u32,
    /// Process name, at most 15 bytes. btt shows the part before a slash.
    pub comm: String,
}

/// The description of a traced device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedDevice {
    /// Name of the device, with which the file names begin.
    pub name: String,
    /// Device number. btt takes the major numbers 9, 253 and 254 for remapping devices and counts
    /// their events differently; an NVMe drive has 259.
    pub number: DeviceNumber,
    /// Sector size in bytes, a multiple of 512.
    pub sector_bytes: u32,
    /// Number of cores. Each has a file, which may be empty.
    pub cores: u16,
    /// All submitters.
    pub processes: Vec<TraceProcess>,
    /// Wall clock time at [`time::Nanos::ZERO`] since 1970: seconds and nanoseconds. Zeros for a
    /// run in virtual time.
    pub started: (u32, u32),
}

impl TracedDevice {
    /// Checks that the format can hold the description. Returns the process numbers by submitter.
    pub(super) fn check(&self) -> Result<Vec<Option<u32>>, WriteError> {
        let name = &self.name;
        if name.is_empty() || name.contains('/') || name.contains(".blktrace.") {
            return Err(WriteError::Name { name: name.clone() });
        }
        if !self.number.is_valid() {
            return Err(WriteError::Number { number: self.number });
        }
        if self.sector_bytes == 0 || !self.sector_bytes.is_multiple_of(UNIT_BYTES) {
            return Err(WriteError::SectorBytes { sector_bytes: self.sector_bytes });
        }
        let mut pids = Vec::new();
        for TraceProcess { submitter, pid, comm } in &self.processes {
            if comm.len() >= COMM_BYTES || comm.contains('\0') {
                return Err(WriteError::Comm { comm: comm.clone() });
            }
            let index = usize::from(submitter.0);
            pids.resize(pids.len().max(index + 1), None);
            if pids[index].replace(*pid).is_some() {
                return Err(WriteError::TwoProcesses { submitter: *submitter });
            }
        }
        Ok(pids)
    }
}
