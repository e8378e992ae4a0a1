//! [`KeySpec`]: the records of a job on a device that is addressed by keys, and its YCSB workload.

use crate::job::{Direction, IoPattern, JobSpec};
use crate::ycsb::{Mix, YcsbWorkload};

/// Maximum number of records of a job.
pub(crate) const RECORDS_MAX: u64 = 1 << 32;

/// Size of a value of a YCSB job without `bs`, in bytes: ten fields of 100 bytes \[YCSB10\].
pub(crate) const YCSB_VALUE_BYTES: u64 = 1000;

/// A phase of YCSB: the option `ycsb`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum YcsbPhase {
    /// Inserts all records.
    Load,
    /// Runs one of the core workloads.
    Run(YcsbWorkload),
}

impl YcsbPhase {
    /// The values of the option.
    pub const NAMES: &'static [&'static str] = &["load", "a", "b", "c", "d", "e", "f"];

    /// Parses a value of the option.
    pub fn parse(text: &str) -> Option<YcsbPhase> {
        match text {
            "load" => Some(YcsbPhase::Load),
            _ => text.parse().ok().map(YcsbPhase::Run),
        }
    }

    /// Returns the mix of the operations; `None` for the load phase.
    pub fn mix(self) -> Option<Mix> {
        match self {
            YcsbPhase::Load => None,
            YcsbPhase::Run(workload) => Some(workload.mix()),
        }
    }

    /// Returns whether the phase inserts records beyond the first `recordcount`.
    pub(crate) fn has_inserts(self) -> bool {
        self.mix().is_some_and(|mix| mix.insert > 0.0)
    }
}

/// The records of a job on keys. Names of options are those of YCSB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeySpec {
    /// Phase of YCSB; `None` for a job whose operations follow its `rw`.
    pub ycsb: Option<YcsbPhase>,
    /// Number of records at the start, or to load (`recordcount`).
    pub record_count: u64,
    /// Number of operations of a phase that runs a workload (`operationcount`).
    pub operation_count: Option<u64>,
}

impl KeySpec {
    /// Returns the number of records that a job of `numjobs` clones can address, inserted ones
    /// included.
    pub(crate) fn addressed_records(&self, numjobs: u32) -> u64 {
        let inserts = match self.ycsb {
            Some(phase) if phase.has_inserts() => self.operation_count.unwrap_or(0),
            _ => 0,
        };
        self.record_count.saturating_add(inserts.saturating_mul(numjobs.into()))
    }
}

/// Memory of an outstanding operation in values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyBuffers {
    /// Values that are read. A value to write uses the first of them, unless `written` has its own.
    pub(crate) read: u32,
    /// Values that are written while others are read.
    pub(crate) written: u32,
}

impl JobSpec {
    /// Returns the size of a value in bytes of a job on keys.
    pub(crate) fn value_bytes(&self) -> u64 {
        self.pattern.block_sizes[0].first().map_or(0, |(bytes, _)| *bytes)
    }

    /// Returns the memory of an outstanding operation of a job on keys.
    ///
    /// Values of a scan that is not verified overwrite each other. A job that is not verified never
    /// puts a value that it got: its verify header would be that of another record.
    pub(crate) fn key_buffers(&self) -> KeyBuffers {
        let verify = self.integrity.verify;
        let mix = self.keys.and_then(|keys| keys.ycsb).and_then(YcsbPhase::mix);
        let scans = mix.filter(|mix| mix.scan > 0.0 && verify);
        let modifies = mix.is_some_and(|mix| mix.read_modify_write > 0.0);
        let access = &self.pattern.access;
        let mixed = access.uses(Direction::Read) && access.uses(Direction::Write);
        KeyBuffers {
            read: scans.map_or(1, |mix| mix.scan_records_max.max(1)),
            written: u32::from(modifies || mixed && !verify),
        }
    }

    /// Returns whether every request of the job has memory for its data.
    pub(crate) fn has_payloads(&self) -> bool {
        self.integrity.verify || self.keys.is_some()
    }

    /// Returns the bytes of a request's payload; 0 without payloads.
    pub(crate) fn payload_bytes(&self) -> u64 {
        match &self.keys {
            Some(_) => {
                let values = self.key_buffers();
                self.value_bytes() * u64::from(values.read + values.written)
            }
            None if self.integrity.verify => crate::io_range::largest_block(self),
            None => 0,
        }
    }

    /// Sets the directions of a YCSB job to those of its mix.
    pub(crate) fn set_ycsb_directions(&mut self) {
        let Some(phase) = self.keys.and_then(|keys| keys.ycsb) else { return };
        let (reads, writes) = match phase.mix() {
            None => (false, true),
            Some(mix) => {
                (mix.read + mix.scan > 0.0, mix.update + mix.insert + mix.read_modify_write > 0.0)
            }
        };
        let mut uses = [false; 3];
        (uses[Direction::Read as usize], uses[Direction::Write as usize]) = (reads, writes);
        self.pattern.access = IoPattern { uses, random: phase != YcsbPhase::Load };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_have_their_names_and_their_memory() {
        for name in YcsbPhase::NAMES {
            let ycsb = YcsbPhase::parse(name);
            assert!(ycsb.is_some(), "{name}");
            let keys = KeySpec { ycsb, record_count: 100, operation_count: Some(10) };
            let values = |verify| {
                let mut spec = JobSpec::new("j");
                (spec.keys, spec.integrity.verify) = (Some(keys), verify);
                spec.set_ycsb_directions();
                let buffers = spec.key_buffers();
                (buffers.read, buffers.written)
            };
            let expected = match *name {
                "load" | "c" => [(1, 0), (1, 0)],
                "e" => [(1, 1), (100, 0)],
                "f" => [(1, 1), (1, 1)],
                _ => [(1, 1), (1, 0)],
            };
            assert_eq!([values(false), values(true)], expected, "{name}");
            let inserts = if matches!(*name, "d" | "e") { 30 } else { 0 };
            assert_eq!(keys.addressed_records(3), 100 + inserts, "{name}");
        }
        assert_eq!([YcsbPhase::parse("g"), YcsbPhase::parse("")], [None, None]);
    }
}
