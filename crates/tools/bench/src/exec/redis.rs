//! Redis with an append-only file under YCSB's workload A with 10 clients: \[NVMeDirect16\], table 2
//! (throughput +15 %, read latency −13 %, update latency −20 %, relative to the kernel).
//!
//! With `appendfsync always` the gains of the paper are bounds of the results. The paper's drive
//! used the kernel's own driver; only the device `host file` is comparable.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use time::Nanos;

use super::child_process::ChildProcess;
use super::harness::{BackingDevice, ExecHarness, IoPath, ProgramDir};
use super::rows::{Metric, PairedSamples, Rows, pair, without_bound};
use super::ycsb::{Clients, Measured};
use super::{resource_usage, setup};
use crate::{BenchError, Measurement, RunLength, Sink, interleave};

/// As in the paper.
pub(super) const CLIENTS: usize = 10;
/// YCSB's `recordcount`.
const RECORDS: u64 = 1000;

/// Measurements of one run of a server.
pub(super) struct Sample {
    measured: Measured,
    usage: resource_usage::ResourceUsage,
}

impl Sample {
    /// Returns operations per second.
    pub(super) fn rate(&self) -> f64 {
        self.measured.operations as f64 * 1e9 / self.measured.time.0 as f64
    }

    fn per_operation(&self, what: f64) -> f64 {
        what / self.measured.operations as f64
    }
}

/// Measures the part.
///
/// # Errors
/// Whatever fails in setting a drive up or in the server.
pub fn run(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    for below in BackingDevice::ALL {
        let harness = ExecHarness::new(below)?;
        for policy in ["always", "everysec"] {
            let mut number = 0;
            let samples = interleave(effort.choose(5, 1), IoPath::ALL.len(), |which| {
                number += 1;
                sample(effort, harness.scratch(), harness.dir(IoPath::ALL[which]), policy, number)
            })?;
            report(sink, harness.backing, policy, &pair(samples)?)?;
        }
    }
    Ok(())
}

/// Runs a server with its files in a directory, and its socket in `scratch`.
///
/// # Errors
/// If it fails.
pub(super) fn sample(
    effort: RunLength,
    scratch: &Path,
    place: &ProgramDir,
    policy: &str,
    number: u32,
) -> Result<Sample, BenchError> {
    let socket: PathBuf = scratch.join("redis.sock");
    let mut command = place.command("redis-server")?;
    command.args(["--port", "0", "--unixsocket"]).arg(&socket).arg("--dir").arg(&place.directory);
    command.args(["--appendonly", "yes", "--appendfsync", policy, "--save", ""]);
    command.args(["--appenddirname", &format!("appends-{policy}-{number}")]);
    command.args(["--daemonize", "no", "--auto-aof-rewrite-percentage", "0"]);
    let mut server = ChildProcess::start(&mut command)?;
    // A socket exists before the server listens on it.
    server.wait_until(|| UnixStream::connect(&socket).is_ok())?;
    let mut clients = Clients::connect(&socket, CLIENTS, RECORDS)?;
    clients.load()?;
    let mut processes = place.processes.clone();
    processes.push(server.process());
    let itself = process(&clients.ask(&[b"INFO", b"server"])?)?;
    if itself != server.process() {
        processes.push(itself);
    }
    let before = resource_usage::usage_of(&processes);
    let measured = clients.run(effort.choose(Nanos::from_millis(3000), Nanos::from_millis(200)))?;
    let spent = resource_usage::usage_of(&processes) - before;
    // The server ends without a reply.
    let _ = clients.ask(&[b"SHUTDOWN", b"NOSAVE"]);
    let status = server.wait()?;
    if !status.success() {
        return Err(setup(format!("redis-server: {status}")));
    }
    Ok(Sample { measured, usage: spent })
}

/// Returns the id of the server's process from its own information.
fn process(info: &[u8]) -> Result<u32, BenchError> {
    let info = String::from_utf8_lossy(info);
    let number =
        info.lines().find_map(|line| line.strip_prefix("process_id:")?.trim().parse().ok());
    number.ok_or_else(|| setup("the server does not say its process"))
}

fn report(
    sink: &mut Sink<'_>,
    below: BackingDevice,
    policy: &str,
    samples: &PairedSamples<Sample>,
) -> Result<(), BenchError> {
    let case = format!("redis, YCSB A, {CLIENTS} clients, appendfsync {policy}");
    let mut rows = Rows { sink, case, backing: below };
    let paper = policy == "always";
    let more =
        |row: Measurement, kernel: f64| if paper { row.at_least(kernel * 1.15) } else { row };
    let less = |share: f64| {
        move |row: Measurement, kernel: f64| if paper { row.at_most(kernel * share) } else { row }
    };
    let (us, nanos) = (1e-3, |n: Nanos| n.0 as f64 * 1e-3);
    rows.push(Metric("throughput", "1/s"), samples, Sample::rate, more)?;
    rows.spread("throughput_spread", samples, Sample::rate)?;
    rows.push(Metric("read_mean", "us"), samples, |s| s.measured.read.mean() * us, less(0.87))?;
    rows.push(Metric("update_mean", "us"), samples, |s| s.measured.update.mean() * us, less(0.80))?;
    rows.push(
        Metric("read_p99", "us"),
        samples,
        |s| nanos(s.measured.read.percentile(99.0)),
        without_bound,
    )?;
    rows.push(
        Metric("update_p99", "us"),
        samples,
        |s| nanos(s.measured.update.percentile(99.0)),
        without_bound,
    )?;
    rows.push(
        Metric("cpu_per_op", "us"),
        samples,
        |s| s.per_operation(nanos(s.usage.cpu)),
        without_bound,
    )?;
    rows.push(
        Metric("sleeps_per_op", "1"),
        samples,
        |s| s.per_operation(s.usage.sleeps as f64),
        without_bound,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_says_its_process() {
        assert_eq!(process(b"$9\r\n# Server\r\nprocess_id:4711\r\ntcp_port:0\r\n").unwrap(), 4711);
        assert!(process(b"$0\r\n\r\n").is_err());
    }
}
