//! [`BenchPart`]: the values of `sluice bench GROUP --part …`, for groups with parts.

use std::path::PathBuf;

use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};

/// The end of the help of commands that measure.
pub(super) const BENCH_EXIT_CODES: &str = "Exit codes: 0 when every result is within its bound or an expected miss, 3 when one is not, \
1 when something could not be measured, 2 when the request was wrong. An expected miss that is within its bound is told on \
standard error.";

/// Which results may be outside of their bounds.
#[derive(Clone, Debug, Args)]
pub struct BoundArgs {
    /// Results that are known to be outside of their bound (TOML: `[[miss]]` with `bench`, `case`, `metric`, `reason`), in
    /// place of the list that comes with Sluice.
    #[arg(long, value_name = "FILE")]
    pub expected: Option<PathBuf>,
}

/// A part of the group `direct`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DirectPart {
    /// Nanoseconds per command through queue, handle and policies (real time).
    Null,
    /// A file of the host, compared with fio's io_uring engine (real time).
    File,
    /// Polling periods: achieved IOPS and CPU time (real time).
    Polling,
    /// A drive in another process (real time).
    Processes,
    /// Priorities and rates: distribution of service over requests (virtual time).
    Service,
}

/// A part of the group `exec`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExecPart {
    /// Redis with an append-only file, YCSB's workload A (real time).
    Redis,
    /// SQLite with one transaction per insert (real time).
    Sqlite,
    /// RocksDB's db_bench: fill, and reads during writes (real time).
    Rocksdb,
}

/// A part of a group. Names are unique over all groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BenchPart {
    /// A part of the group `lightnvm`.
    Lightnvm(LightnvmPart),
    /// A part of the group `direct`.
    Direct(DirectPart),
    /// A part of the group `exec`.
    Exec(ExecPart),
}

impl BenchPart {
    const ALL: [BenchPart; 19] = [
        BenchPart::Lightnvm(LightnvmPart::Drive),
        BenchPart::Lightnvm(LightnvmPart::Mixed),
        BenchPart::Lightnvm(LightnvmPart::Predictable),
        BenchPart::Lightnvm(LightnvmPart::Steady),
        BenchPart::Lightnvm(LightnvmPart::Recovery),
        BenchPart::Lightnvm(LightnvmPart::Errors),
        BenchPart::Lightnvm(LightnvmPart::Active),
        BenchPart::Lightnvm(LightnvmPart::Limiter),
        BenchPart::Lightnvm(LightnvmPart::Overhead),
        BenchPart::Lightnvm(LightnvmPart::Shards),
        BenchPart::Lightnvm(LightnvmPart::Work),
        BenchPart::Direct(DirectPart::Null),
        BenchPart::Direct(DirectPart::File),
        BenchPart::Direct(DirectPart::Polling),
        BenchPart::Direct(DirectPart::Processes),
        BenchPart::Direct(DirectPart::Service),
        BenchPart::Exec(ExecPart::Redis),
        BenchPart::Exec(ExecPart::Sqlite),
        BenchPart::Exec(ExecPart::Rocksdb),
    ];

    /// Returns the group of the part.
    pub fn group(self) -> BenchGroup {
        match self {
            BenchPart::Lightnvm(_) => BenchGroup::Lightnvm,
            BenchPart::Direct(_) => BenchGroup::Direct,
            BenchPart::Exec(_) => BenchGroup::Exec,
        }
    }

    /// Returns the part of the group `lightnvm`, if it is one.
    pub fn lightnvm(self) -> Option<LightnvmPart> {
        match self {
            BenchPart::Lightnvm(part) => Some(part),
            BenchPart::Direct(_) | BenchPart::Exec(_) => None,
        }
    }

    /// Returns the part of the group `direct`, if it is one.
    pub fn direct(self) -> Option<DirectPart> {
        match self {
            BenchPart::Direct(part) => Some(part),
            BenchPart::Lightnvm(_) | BenchPart::Exec(_) => None,
        }
    }

    /// Returns the part of the group `exec`, if it is one.
    pub fn exec(self) -> Option<ExecPart> {
        match self {
            BenchPart::Exec(part) => Some(part),
            BenchPart::Lightnvm(_) | BenchPart::Direct(_) => None,
        }
    }
}

impl ValueEnum for BenchPart {
    fn value_variants<'a>() -> &'a [BenchPart] {
        &BenchPart::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            BenchPart::Lightnvm(part) => part.to_possible_value(),
            BenchPart::Direct(part) => part.to_possible_value(),
            BenchPart::Exec(part) => part.to_possible_value(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_has_a_name_of_its_own_and_is_in_the_list() {
        let parts = BenchPart::value_variants();
        let own = LightnvmPart::value_variants().len()
            + DirectPart::value_variants().len()
            + ExecPart::value_variants().len();
        assert_eq!(parts.len(), own);
        for (i, part) in parts.iter().enumerate() {
            let name = part.to_possible_value().unwrap();
            let again = BenchPart::from_str(name.get_name(), false).unwrap();
            assert_eq!(parts.iter().position(|p| *p == again), Some(i), "{}", name.get_name());
            let of = [part.lightnvm().is_some(), part.direct().is_some(), part.exec().is_some()];
            assert_eq!(of.iter().filter(|is| **is).count(), 1, "{}", name.get_name());
        }
    }
}

/// A part of the group `lightnvm`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LightnvmPart {
    /// Limits of the drive, and of pblk on it, without other load (virtual time).
    Drive,
    /// Reads concurrent with writes, by active parallel units (virtual time).
    Mixed,
    /// Reads concurrent with writes on separate parallel units (virtual time).
    Predictable,
    /// Change of the number of active parallel units within a run (virtual time).
    Active,
    /// Write amplification and stalls of a nearly full device (virtual time).
    Steady,
    /// Step response of both kinds of rate limiter (virtual time).
    Limiter,
    /// Reads of a recovery, by the drive's size (virtual time).
    Recovery,
    /// Data loss on failing media (virtual time).
    Errors,
    /// Overhead of pblk per request (real time).
    Overhead,
    /// One and two threads on one sharded device (real time).
    Shards,
    /// 4 KB random overwrites with garbage collection, in the drive and on the host (real time).
    Work,
}

/// Source of a modeled machine's costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum CostSource {
    /// Published values of one machine; the results are the same on every machine.
    #[default]
    Given,
    /// CPU time per request and cache-line transfers between two cores are measured on this
    /// machine; the other values are published ones.
    Measured,
}

/// A group of benchmarks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchGroup {
    /// Simulated I/Os per second of wall time.
    Sim,
    /// Real-time IOPS that an emulated drive sustains, and their lateness.
    Live,
    /// Nanoseconds per command through a queue pair.
    Ring,
    /// Real-time IOPS and CPU time per I/O of a real file through io_uring, compared with fio.
    Uring,
    /// Completion strategies for threads that wait: I/Os per second, handlers, context switches.
    Hiops,
    /// Nanoseconds per request through the block layer, and its scaling over cores.
    Block,
    /// User-level I/O (NVMeDirect): queues, handles and policies, compared with fio if it is
    /// installed.
    Direct,
    /// Evaluation of the LightNVM paper: an open-channel drive and pblk in virtual time, and the
    /// cost and throughput of the host's FTL in real time.
    Lightnvm,
    /// Unmodified programs on an emulated drive, through `sluice exec` and through the kernel:
    /// Redis, SQLite, RocksDB.
    Exec,
}
