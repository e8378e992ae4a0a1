//! Group `exec`: unmodified programs with their files on an emulated drive, through `sluice exec`.
//!
//! | part | figure | compared |
//! |---|---|---|
//! | [`redis`] | \[NVMeDirect16\], table 2 | `sluice exec`, interleaved with the kernel's path |
//! | [`sqlite`], [`rocksdb`] | none | as `redis` |
//! | [`nosql`] | \[LightNVM17\], figure 6 | pblk with 128 and 4 active parallel units, and an NVMe SSD |
//! | [`sql`] | \[LightNVM17\], figure 7 | as `nosql` |
//! | [`logged`] | none | a log in persistent memory, and a drive without timing |
//! | [`atomic`] | none | databases with and without their second write of a page, with atomic writes |
//!
//! The kernel has no driver for a drive that a process emulates, so its path is long.
//! `docs/exec.md` counts the copies, processes and context switches of both paths. The device `host
//! file` has none of these.
//!
//! Parts that mount run in a mount namespace of their own, and every program receives a signal when
//! this process ends. Thus mounts and loop devices are removed in any case.

pub mod atomic;
mod child_process;
mod flash;
mod harness;
pub mod logged;
mod mount;
pub mod nosql;
pub mod redis;
mod resource_usage;
pub mod rocksdb;
mod rows;
mod server;
pub(crate) mod speculated;
pub mod sql;
pub mod sqlite;
mod ycsb;

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use super::{BenchError, BenchFn, ExecPart, RunLength, Sink};

const BENCH: &str = "exec";

/// Environment variable that marks the mount namespace as this run's own.
const ENV_OWN_MOUNTS: &str = "SLUICE_BENCH_OWN_MOUNTS";

/// The parts in the order of measurement.
const PARTS: &[(ExecPart, BenchFn)] = &[
    (ExecPart::Redis, redis::run),
    (ExecPart::Sqlite, sqlite::run),
    (ExecPart::Rocksdb, rocksdb::run),
    (ExecPart::Nosql, nosql::run),
    (ExecPart::Sql, sql::run),
    (ExecPart::Log, logged::run),
    (ExecPart::Atomic, atomic::run),
];

/// Parts that compare with ext4 on a loop device, which only the superuser may mount.
const MOUNTING: [ExecPart; 3] = [ExecPart::Redis, ExecPart::Sqlite, ExecPart::Rocksdb];

/// Measures these parts of the group, or all of them if the list is empty. For parts that mount,
/// this process executes `unshare`, which executes this program again with the same arguments; the
/// function is therefore for the command line only.
///
/// # Errors
/// If programs are not installed, if the user may not mount, if a measurement fails, or if the
/// output fails.
pub fn run_parts(
    parts: &[ExecPart],
    effort: RunLength,
    sink: &mut Sink<'_>,
) -> Result<(), BenchError> {
    let is_selected = |part: &ExecPart| parts.is_empty() || parts.contains(part);
    // Check all programs before the measurement, so that a missing one is reported early.
    if MOUNTING.iter().any(is_selected) {
        own_mounts()?;
        child_process::find("nbdfuse", "ext4 on the drive is measured beside", "libnbd-bin")?;
        child_process::find("mkfs.ext4", "ext4 on the drive is measured beside", "e2fsprogs")?;
        child_process::find("losetup", "ext4 on the drive is measured beside", "mount")?;
    }
    child_process::find("setpriv", "what runs beside ends with it", "util-linux")?;
    let programs = [
        (ExecPart::Redis, &[("redis-server", "redis-server")][..]),
        (ExecPart::Sqlite, &[("sqlite3", "sqlite3")]),
        (ExecPart::Rocksdb, &[("db_bench", "rocksdb-tools")]),
        (ExecPart::Nosql, &[("db_bench", "rocksdb-tools")]),
        (ExecPart::Sql, &sql::PROGRAMS),
        (ExecPart::Log, &logged::PROGRAMS),
        (ExecPart::Atomic, &atomic::PROGRAMS),
    ];
    for (part, programs) in programs {
        for (program, package) in programs.iter().filter(|_| is_selected(&part)) {
            child_process::find(program, "it is measured", package)?;
        }
    }
    harness::remove_stale_scratch();
    super::run_parts(PARTS, parts, effort, sink)
}

/// Enters a mount namespace that ends with this process.
fn own_mounts() -> Result<(), BenchError> {
    if std::env::var_os(ENV_OWN_MOUNTS).is_some() {
        return Ok(());
    }
    if !rustix::process::geteuid().is_root() {
        return Err(setup(
            "ext4 on a loop device is measured beside, which only the superuser may mount",
        ));
    }
    child_process::find("unshare", "mounts are to end with the measurement", "util-linux")?;
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let mut own = Command::new("unshare");
    own.args(["--mount", "--propagation", "private", "--"]).arg(std::env::current_exe()?);
    Err(own.args(arguments).env(ENV_OWN_MOUNTS, "1").exec().into())
}

/// Converts an error of setting up a measurement.
fn setup(error: impl std::fmt::Display) -> BenchError {
    BenchError::Io(io::Error::other(error.to_string()))
}
