//! \[LightNVM17\], figure 7: MariaDB with sysbench's transactions (OLTP) and aggregates over ranges
//! (OLAP) on each of three drives (`flash.rs`).
//!
//! The server's files are on the volume; its socket and temporary files, and sysbench, are not. Its
//! buffer pool is smaller than the tables, so that the drive is read. InnoDB counts syncs and
//! written data.

use std::path::Path;
use std::process::{Command, Stdio};

use super::child_process::{ChildProcess, command_killed_with_parent, run_to_end};
use super::flash::{DriveSamples, FlashDrive, by_drive, push_rows};
use super::harness::{ProgramDir, Scratch};
use super::rows::Metric;
use super::setup;
use crate::{BenchError, RunLength, Sink, interleave};

/// The programs of the part and their Debian packages.
pub(super) const PROGRAMS: [(&str, &str); 5] = [
    ("mariadbd", "mariadb-server"),
    ("mariadb-install-db", "mariadb-server"),
    ("mariadb-admin", "mariadb-client"),
    ("mariadb", "mariadb-client"),
    ("sysbench", "sysbench"),
];

/// Makes the server's own tables in the directory `$0` and becomes the server. Options of both
/// follow.
const SERVE: &str = "mkdir -p \"$0\" && mariadb-install-db --no-defaults --datadir=\"$0\" \
    --auth-root-authentication-method=normal --skip-test-db \"$@\" && \
    exec mariadbd --no-defaults --datadir=\"$0\" --skip-networking --skip-log-bin \
    --innodb-flush-method=O_DIRECT --innodb-buffer-pool-size=16M \"$@\"";

/// Number of syncs per GB written that the paper counted for OLTP: 44,000 for 10 GB.
const PAPER_SYNCS_PER_GB: f64 = 4400.0;

/// A load: its name in results, and sysbench's arguments.
struct Load {
    case: &'static str,
    arguments: &'static [&'static str],
    writes: bool,
}

const LOADS: [Load; 3] = [
    Load { case: "sql, OLTP, reads and writes", arguments: &["oltp_read_write"], writes: true },
    Load { case: "sql, OLTP, writes", arguments: &["oltp_write_only"], writes: true },
    Load {
        case: "sql, OLAP, aggregates over 10000 rows",
        arguments: &[
            "oltp_read_only",
            "--skip_trx=on",
            "--point_selects=0",
            "--simple_ranges=0",
            "--range_size=10000",
        ],
        writes: false,
    },
];

/// Sizes of a run: rows of each of the two tables, and an end of each load, which comes with the
/// first of both limits.
#[derive(Clone, Copy)]
struct RunSize {
    rows: u32,
    seconds: u32,
    /// Number of transactions; 0 for no limit.
    transactions: u32,
}

/// Results of one load. Latencies are in microseconds.
#[derive(Debug, PartialEq)]
struct Sample {
    rate: f64,
    mean: f64,
    p95: f64,
    max: f64,
    /// Number of syncs during the load.
    syncs: f64,
    /// Bytes that InnoDB wrote during the load.
    written_bytes: f64,
}

/// Measures the part.
///
/// # Errors
/// Any failure of a program or in setting a drive up.
pub fn run(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let size = effort.choose(
        RunSize { rows: 100_000, seconds: 5, transactions: 0 },
        RunSize { rows: 1000, seconds: 5, transactions: 20 },
    );
    let samples = interleave(effort.choose(3, 1), FlashDrive::ALL.len(), |which| {
        sample(FlashDrive::ALL[which], size)
    })?;
    report(sink, &by_drive(samples)?)
}

fn report(sink: &mut Sink<'_>, samples: &DriveSamples<[Sample; 3]>) -> Result<(), BenchError> {
    for (which, Load { case, writes, .. }) in LOADS.iter().enumerate() {
        let mut push = |metric, number: fn(&Sample) -> f64, paper| {
            push_rows(sink, case, metric, samples, |s| number(&s[which]), [paper; 3], |_, row| row)
        };
        push(Metric("throughput", "1/s"), |s| s.rate, None)?;
        push(Metric("latency_mean", "us"), |s| s.mean, None)?;
        push(Metric("latency_p95", "us"), |s| s.p95, None)?;
        push(Metric("latency_max", "us"), |s| s.max, None)?;
        push(Metric("syncs", "1"), |s| s.syncs, None)?;
        if *writes {
            let per_gb = |s: &Sample| s.syncs / (s.written_bytes / 1e9);
            push(Metric("syncs_per_gb", "1"), per_gb, Some(PAPER_SYNCS_PER_GB))?;
        }
    }
    Ok(())
}

fn sample(drive: FlashDrive, size: RunSize) -> Result<[Sample; 3], BenchError> {
    let scratch = Scratch::new()?;
    let socket = scratch.path().join("sql.sock");
    let mut server = serve(&drive.program_dir(scratch.path())?, scratch.path(), &socket)?;
    query(&socket, "CREATE DATABASE sbtest")?;
    sysbench(&socket, size, &LOADS[0], "prepare")?;
    let mut samples = Vec::with_capacity(LOADS.len());
    for load in &LOADS {
        let before = counters(&socket)?;
        let text = sysbench(&socket, size, load, "run")?;
        let after = counters(&socket)?;
        let changed = [after[0] - before[0], after[1] - before[1]];
        let sample = parse(&text, changed);
        samples.push(sample.ok_or_else(|| setup(format!("sysbench: no result: {text}")))?);
    }
    run_to_end(&mut client("mariadb-admin", &socket, &["shutdown"]))?;
    let status = server.wait()?;
    if !status.success() {
        return Err(setup(format!("mariadbd on {}: {status}", drive.name())));
    }
    samples.try_into().map_err(|_| setup("sysbench: not every load was run"))
}

/// Starts the server and waits until it answers.
fn serve(dir: &ProgramDir, scratch: &Path, socket: &Path) -> Result<ChildProcess, BenchError> {
    let mut command = dir.command("sh")?;
    command.arg("-c").arg(SERVE).arg(dir.directory.join("sql"));
    let option = |name: &str, path: &Path| format!("--{name}={}", path.display());
    command.args([
        option("socket", socket),
        option("pid-file", &scratch.join("sql.pid")),
        option("tmpdir", scratch),
        // io_uring and Linux's asynchronous I/O bypass the C library's calls on files.
        "--innodb-use-native-aio=0".to_owned(),
    ]);
    if rustix::process::geteuid().is_root() {
        command.arg("--user=root");
    }
    let mut server = ChildProcess::start(&mut command)?;
    server.wait_until(|| {
        let mut ping = client("mariadb-admin", socket, &["ping"]);
        ping.stdout(Stdio::null()).stderr(Stdio::null());
        socket.exists() && ping.status().is_ok_and(|status| status.success())
    })?;
    Ok(server)
}

fn client(program: &str, socket: &Path, arguments: &[&str]) -> Command {
    let mut command = command_killed_with_parent(program);
    command.args(["--no-defaults", "--user=root"]);
    command.arg(format!("--socket={}", socket.display())).args(arguments);
    command
}

fn query(socket: &Path, statement: &str) -> Result<String, BenchError> {
    let arguments = ["--batch", "--skip-column-names", "--execute", statement];
    let out = run_to_end(&mut client("mariadb", socket, &arguments))?;
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Returns the number of syncs and of bytes written since the server's start.
fn counters(socket: &Path) -> Result<[f64; 2], BenchError> {
    let text = query(socket, "SHOW GLOBAL STATUS LIKE 'Innodb_%'")?;
    let value = |name: &str| -> Result<f64, BenchError> {
        let line = |line: &str| line.strip_prefix(name)?.strip_prefix('\t')?.parse().ok();
        let found = text.lines().find_map(line);
        found.ok_or_else(|| setup(format!("mariadbd has no counter {name}")))
    };
    let written = value("Innodb_data_written")? + value("Innodb_os_log_written")?;
    Ok([value("Innodb_data_fsyncs")?, written])
}

fn sysbench(socket: &Path, size: RunSize, load: &Load, action: &str) -> Result<String, BenchError> {
    let mut command = command_killed_with_parent("sysbench");
    command.args(["--db-driver=mysql", "--mysql-user=root", "--threads=4", "--tables=2"]);
    command.args([
        format!("--mysql-socket={}", socket.display()),
        format!("--table-size={}", size.rows),
        format!("--time={}", size.seconds),
        format!("--events={}", size.transactions),
    ]);
    let out = run_to_end(command.args(load.arguments).arg(action))?;
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Parses the results of a load, whose latencies are in milliseconds; `changed` is the change of
/// [`counters`]. `None` if a number is missing or no transaction was made.
fn parse(text: &str, changed: [f64; 2]) -> Option<Sample> {
    let [syncs, written_bytes] = changed;
    let value = |name: &str| {
        let line = |line: &str| Some(line.trim().strip_prefix(name)?.trim().to_owned());
        text.lines().find_map(line)
    };
    let us = |name| Some(value(name)?.parse::<f64>().ok()? * 1e3);
    let transactions = value("transactions:")?;
    let rate = transactions.split_once('(')?.1.split_once(' ')?.0.parse().ok()?;
    let sample = Sample {
        rate,
        mean: us("avg:")?,
        p95: us("95th percentile:")?,
        max: us("max:")?,
        syncs,
        written_bytes,
    };
    (rate > 0.0).then_some(sample)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of sysbench, shortened.
    const TEXT: &str = "    transactions:                        2128   (407.85 per sec.)
    queries:                             42560  (8157.03 per sec.)
    total time:                          5.2164s
Latency (ms):
         min:                                    2.37
         avg:                                    9.74
         max:                                  275.48
         95th percentile:                       19.65
         sum:                                20727.35
    events (avg/stddev):           532.0000/21.81
";

    #[test]
    fn results_are_in_microseconds() {
        let sample = parse(TEXT, [44.0, 1e7]).unwrap();
        assert_eq!((sample.rate, sample.syncs, sample.written_bytes), (407.85, 44.0, 1e7));
        let [mean, p95, max] = [sample.mean, sample.p95, sample.max].map(f64::round);
        assert_eq!([mean, p95, max], [9740.0, 19_650.0, 275_480.0]);
    }

    #[test]
    fn a_load_without_transactions_is_no_result() {
        for (from, to) in [("407.85", "0.00"), ("avg:", "mean:"), ("95th", "99th")] {
            assert!(parse(&TEXT.replacen(from, to, 1), [0.0; 2]).is_none(), "{from}");
        }
    }
}
