//! Group `exec`: programs as they are, with their files on an emulated drive, through `sluice exec` and through
//! the kernel, in turns (NVMeDirect, HotStorage 2016, table 2, is such a comparison of Redis).
//!
//! | file | noun |
//! |---|---|
//! | [`redis`] | Redis with an append-only file under YCSB's workload A, 10 clients |
//! | [`sqlite`] | SQLite, a transaction per insert |
//! | [`rocksdb`] | RocksDB's `db_bench`: fill, fill with syncs, reads while somebody writes |
//! | `bed` | a drive, or a file of the host, and both ways to it |
//! | `server` | `sluice serve`: the drive, which both ways share |
//! | `mount` | the kernel's way: ext4, a loop device, FUSE, NBD |
//! | `companion` | programs that run beside the measurement and end with it |
//! | `ycsb` | clients of Redis |
//! | `spent` | CPU time and context switches of processes |
//! | `rows` | samples of both ways as results |
//!
//! The kernel here has no driver for a drive that a process emulates, so its way to one is long:
//! `docs/exec.md` counts copies, processes and switches of either. The bed `host file` is without any of that.
//!
//! Everything happens in a mount namespace of its own, and every program gets a signal when this one ends:
//! however it ends, mounts and loop devices go with it.

mod child_process;
mod harness;
mod mount;
pub mod redis;
mod resource_usage;
pub mod rocksdb;
mod rows;
mod server;
pub mod sqlite;
mod ycsb;

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use super::{BenchError, BenchFn, RunLength, Sink};
use crate::cli::args::ExecPart;

const BENCH: &str = "exec";

/// Says that the mount namespace is this run's own.
const ENV_OWN_MOUNTS: &str = "SLUICE_BENCH_OWN_MOUNTS";

/// The parts, in the order in which they are measured.
const PARTS: &[(ExecPart, BenchFn)] = &[
    (ExecPart::Redis, redis::run),
    (ExecPart::Sqlite, sqlite::run),
    (ExecPart::Rocksdb, rocksdb::run),
];

/// Measures the group. The process becomes `unshare`, and that one this program again with the same arguments:
/// for the command line only.
///
/// # Errors
/// Programs that are not installed, a user who may not mount, whatever fails in a measurement, the output.
pub fn run(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    run_parts(&[], effort, sink)
}

/// Measures these parts of the group; all of them if none is named.
///
/// # Errors
/// As for [`run`].
pub fn run_parts(
    parts: &[ExecPart],
    effort: RunLength,
    sink: &mut Sink<'_>,
) -> Result<(), BenchError> {
    own_mounts()?;
    child_process::find("nbdfuse", "ext4 on the drive is measured beside", "libnbd-bin")?;
    child_process::find("mkfs.ext4", "ext4 on the drive is measured beside", "e2fsprogs")?;
    child_process::find("losetup", "ext4 on the drive is measured beside", "mount")?;
    child_process::find("setpriv", "what runs beside ends with it", "util-linux")?;
    for (part, program, package) in [
        (ExecPart::Redis, "redis-server", "redis-server"),
        (ExecPart::Sqlite, "sqlite3", "sqlite3"),
        (ExecPart::Rocksdb, "db_bench", "rocksdb-tools"),
    ] {
        // Before anything is measured: the last part's program should not be missed after minutes.
        if parts.is_empty() || parts.contains(&part) {
            child_process::find(program, "it is measured", package)?;
        }
    }
    harness::remove_stale_scratch();
    super::run_parts(PARTS, parts, effort, sink)
}

/// A mount namespace that ends with this process.
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

/// What fails in setting a measurement up.
fn setup(error: impl std::fmt::Display) -> BenchError {
    BenchError::Io(io::Error::other(error.to_string()))
}
