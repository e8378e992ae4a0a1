//! [`Traced`]: what a trace is of, as its files need to know it.

use super::record::COMM_BYTES;
use super::{DeviceNumber, WriteError};
use crate::Submitter;

/// The format's sector.
pub(super) const UNIT_BYTES: u32 = 512;

/// A submitter as tools know it: a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceProcess {
    /// The submitter.
    pub submitter: Submitter,
    /// Its process number. btt calls 0 `kernel`, whatever its name.
    pub pid: u32,
    /// Its name, at most 15 bytes. btt shows what is before a slash.
    pub comm: String,
}

/// What is traced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedDevice {
    /// The device's name, which the files' names begin with.
    pub name: String,
    /// Its number. btt takes the major numbers 9, 253 and 254 for devices that remap, and counts
    /// elsewhere; 259 is what an NVMe drive has.
    pub number: DeviceNumber,
    /// Bytes of its sectors, a multiple of 512.
    pub sector_bytes: u32,
    /// How many cores there are: a file each, although there may be nothing in it.
    pub cores: u16,
    /// All submitters.
    pub processes: Vec<TraceProcess>,
    /// Wall clock time at [`clock::Nanos::ZERO`], since 1970: seconds and nanoseconds. Zeros for a run in
    /// virtual time.
    pub started: (u32, u32),
}

impl TracedDevice {
    /// Process numbers by submitter, if the format can hold the description.
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
