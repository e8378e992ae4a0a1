//! A file of the host through `direct`, interleaved with fio's io_uring engine on that file
//! (\[NVMeDirect16\], figure 2).
//!
//! The load is 4 KB random reads that bypass the page cache, with registered buffers and a
//! registered file on both sides. The kernel polls for completions if the file supports it.
//!
//! Sluice is measured with a handle that sleeps until it is woken, as fio does, and with one that
//! busy-polls. CPU is user and system time per read: fio's own report, and the complete process of
//! Sluice. A busy-polling handle uses the complete CPU, so its CPU time has no bound. The sleeping
//! handle is also measured for every mode in which the kernel processes completions ([`TaskWork`]).
//! Another variant passes all submissions to the kernel at once ([`UringConfig::submit_batch`]; fio
//! passes them one by one). Only the default mode of opening devices has bounds. fio's commands are
//! printed to standard error. Without fio, a row says so, and the results have no reference.

use std::path::Path;
use std::process::Command;

use driver::{Polling, TaskWork, Uring, UringConfig};
use open::{FileOptions, OpenOptions};
use serde_json::Value;
use time::Nanos;
use user_io::{Handle, IoDevice, QueueConfig, WaitMode};

use super::super::uring::{cpu_time, test_files::ScratchFile};
use super::super::{BenchError, Measurement, RunLength, Samples, Sink, interleave};
use super::load::{Load, LoadArea};
use super::{BENCH, setup};

/// Wait mode, kernel completion mode, and submission batch.
type UringVariant = (WaitMode, TaskWork, u16);

/// The defaults come first.
const VARIANTS: [(&str, UringVariant); 5] = [
    ("sleeping", (WaitMode::Interrupt, TaskWork::Cooperative, UringConfig::PLUG_THRESHOLD)),
    ("looking all the time", (WaitMode::Poll, TaskWork::Cooperative, UringConfig::PLUG_THRESHOLD)),
    ("sleeping, given at once", (WaitMode::Interrupt, TaskWork::Cooperative, u16::MAX)),
    (
        "sleeping, task work by interrupt",
        (WaitMode::Interrupt, TaskWork::Interrupt, UringConfig::PLUG_THRESHOLD),
    ),
    (
        "sleeping, deferred task work",
        (WaitMode::Interrupt, TaskWork::Deferred, UringConfig::PLUG_THRESHOLD),
    ),
];
/// Number of variants with bounds.
const BOUND_VARIANTS: usize = 2;
/// Size of a read in bytes.
const BLOCK: u32 = 4096;
/// Numbers of outstanding reads.
const DEPTHS: [u16; 4] = [1, 4, 16, 64];
/// Minimum IOPS as a share of fio's.
const IOPS_MIN: f64 = 0.95;
/// Maximum mean latency as a multiple of fio's.
const MEAN_MAX: f64 = 1.05;
/// Maximum 99th percentile as a multiple of fio's.
const P99_MAX: f64 = 1.25;
/// Maximum CPU time per read as a multiple of fio's, for the sleeping handle.
const CPU_MAX: f64 = 1.1;

/// Measurements of reads.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Reads {
    iops: f64,
    mean_us: f64,
    p99_us: f64,
    /// CPU time per read.
    cpu_ns: f64,
}

/// Measures the file.
///
/// # Errors
/// If the system refuses the file or a ring, if fio fails, or if the output fails.
pub fn run(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let file = ScratchFile::new(effort.choose(1 << 30, 16 << 20))?;
    measure(effort, "fio", file.path(), sink)
}

fn measure(
    effort: RunLength,
    fio: &'static str,
    path: &Path,
    sink: &mut Sink<'_>,
) -> Result<(), BenchError> {
    let probing = UringConfig { read_only: true, ..UringConfig::default() };
    let polled = Uring::open(path, UringConfig { polling: Polling::WhereSupported, ..probing })?;
    let polled = polled.is_polled();
    let row = |metric, value: bool| {
        Measurement::new(BENCH, "file", metric, f64::from(u8::from(value)), "")
    };
    sink.push(row("polled_in_the_kernel", polled))?;
    let there = is_installed(fio)?;
    if !there {
        eprintln!("{fio} is not installed (apt-get install fio): nothing to stand beside");
    }
    sink.push(row("fio_is_there", there))?;
    let time = effort.choose(Nanos::from_millis(400), Nanos::from_millis(50));
    for depth in effort.choose(&DEPTHS[..], &DEPTHS[..2]) {
        let arguments = arguments(path, *depth, time, polled);
        if there {
            eprintln!("{fio} {}", arguments.join(" "));
        }
        // The variants are the same in every round; without fio, there is one fewer.
        let ways = VARIANTS.len() + usize::from(there);
        let said = interleave(effort.choose(11, 1), ways, |which| match VARIANTS.get(which) {
            Some(&(_, way)) => ours(path, *depth, time, (polled, way)),
            None => theirs(fio, &arguments),
        })?;
        rows(*depth, &said, sink)?;
    }
    Ok(())
}

fn rows(depth: u16, said: &[Vec<Reads>], sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let median = |which: usize, value: &dyn Fn(&Reads) -> f64| -> Result<Option<f64>, BenchError> {
        let Some(said) = said.get(which) else { return Ok(None) };
        let none = || BenchError::NoValue { case: format!("QD {depth}"), metric: "file" };
        Ok(Some(Samples::new(said.iter().map(value).collect()).ok_or_else(none)?.median()))
    };
    for (which, (name, (wait, ..))) in VARIANTS.into_iter().enumerate() {
        let case = format!("file, 4 KB random reads, QD {depth}, {name}");
        let (asleep, bound) = (wait == WaitMode::Interrupt, which < BOUND_VARIANTS);
        let mut push = |metric, unit, value: &dyn Fn(&Reads) -> f64, least, most: Option<f64>| {
            let Some(ours) = median(which, value)? else { return Ok(()) };
            let row = Measurement::new(BENCH, case.clone(), metric, ours, unit);
            let Some(fio) = median(VARIANTS.len(), value)? else { return sink.push(row) };
            let row = row.with_reference("fio io_uring", fio);
            sink.push(match (least, most) {
                (Some(least), _) if bound => row.at_least(fio * least),
                (None, Some(most)) if bound => row.at_most(fio * most),
                _ => row,
            })
        };
        push("iops", "1/s", &|r| r.iops, Some(IOPS_MIN), None)?;
        push("latency_mean", "us", &|r| r.mean_us, None, Some(MEAN_MAX))?;
        push("latency_p99", "us", &|r| r.p99_us, None, Some(P99_MAX))?;
        push("cpu_per_io", "ns", &|r| r.cpu_ns, None, asleep.then_some(CPU_MAX))?;
    }
    Ok(())
}

/// Reads the file through a queue and a handle.
fn ours(
    path: &Path,
    depth: u16,
    time: Nanos,
    (polled, (wait, task_work, submit_batch)): (bool, UringVariant),
) -> Result<Reads, BenchError> {
    let polling = if polled { Polling::Required } else { Polling::Off };
    let file = FileOptions { polling, task_work, submit_batch, ..FileOptions::default() };
    let options =
        OpenOptions { depth: Some(depth), read_only: true, file, ..OpenOptions::default() };
    let target = open::Target::File(path.to_owned());
    let device: IoDevice = open::open_target(&target, &options).map_err(setup)?;
    let queue = device.create_queue(QueueConfig::default()).map_err(setup)?;
    let mut handle = Handle::new(&device, queue).map_err(setup)?;
    // If the kernel finds completions only when polled, it wakes no sleeping handle.
    handle.set_wait(if polled { WaitMode::Poll } else { wait }).map_err(setup)?;
    let mut load = Load::new(
        &device,
        LoadArea { block_bytes: BLOCK, bytes: u64::MAX },
        depth.into(),
        true,
        1,
    )?;
    // Use every slot once, which pins its memory.
    load.run(&mut handle, depth.into())?;
    let before = cpu_time();
    let stretch = load.run_for(&mut handle, time)?;
    let cpu = cpu_time().since(before);
    Ok(Reads {
        iops: stretch.iops(),
        mean_us: stretch.latency.mean() / 1e3,
        p99_us: stretch.latency.percentile(99.0).as_micros_f64(),
        cpu_ns: cpu.0 as f64 / stretch.requests as f64,
    })
}

/// Returns whether a program can be run.
fn is_installed(program: &str) -> Result<bool, BenchError> {
    match Command::new(program).arg("--version").output() {
        Ok(out) => Ok(out.status.success()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns fio's arguments.
fn arguments(path: &Path, depth: u16, time: Nanos, polled: bool) -> Vec<String> {
    let mut arguments: Vec<String> = [
        "--name=reads",
        "--rw=randread",
        "--direct=1",
        "--norandommap",
        "--time_based",
        "--readonly",
        "--ioengine=io_uring",
        "--fixedbufs=1",
        "--registerfiles=1",
        "--lat_percentiles=1",
        "--clat_percentiles=0",
        "--output-format=json",
    ]
    .map(str::to_owned)
    .into();
    arguments.push(format!("--filename={}", path.display()));
    arguments.push(format!("--bs={BLOCK}"));
    arguments.push(format!("--iodepth={depth}"));
    arguments.push(format!("--runtime={}ms", time.0 / 1_000_000));
    if polled {
        arguments.push("--hipri=1".into());
    }
    arguments
}

/// Reads the file with fio.
fn theirs(program: &str, arguments: &[String]) -> Result<Reads, BenchError> {
    let out = Command::new(program).args(arguments).output()?;
    let failed = |said: &str| BenchError::Io(std::io::Error::other(format!("{program}: {said}")));
    if !out.status.success() {
        return Err(failed(String::from_utf8_lossy(&out.stderr).trim()));
    }
    parse(&String::from_utf8_lossy(&out.stdout)).ok_or_else(|| failed("no result"))
}

/// Parses fio's results of its only job. Warnings may precede the JSON.
fn parse(text: &str) -> Option<Reads> {
    let said: Value = serde_json::from_str(text.get(text.find('{')?..)?).ok()?;
    let job = said.get("jobs")?.get(0)?;
    let number = |value: &Value, key: &str| value.get(key).and_then(Value::as_f64);
    let read = job.get("read")?;
    let latency = read.get("lat_ns")?;
    let share = (number(job, "usr_cpu")? + number(job, "sys_cpu")?) / 100.0;
    let cpu_ns = share * number(job, "job_runtime")? * 1e6 / number(read, "total_ios")?;
    let reads = Reads {
        iops: number(read, "iops")?,
        mean_us: number(latency, "mean")? / 1e3,
        p99_us: number(latency.get("percentile")?, "99.000000")? / 1e3,
        cpu_ns,
    };
    (reads.iops > 0.0 && reads.cpu_ns.is_finite()).then_some(reads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fio_says_is_understood() {
        let text = "fio: a warning\n{\"jobs\": [{\"job_runtime\": 1000, \"usr_cpu\": 10.0, \
            \"sys_cpu\": 30.0, \"read\": {\"iops\": 50000.0, \"total_ios\": 50000, \"lat_ns\": \
            {\"mean\": 20000.0, \"percentile\": {\"99.000000\": 41000}}}}]}";
        let reads = Reads { iops: 50_000.0, mean_us: 20.0, p99_us: 41.0, cpu_ns: 8_000.0 };
        assert_eq!(parse(text), Some(reads));
        for text in ["", "fio: error", "{}", "{\"jobs\": []}"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_missing_fio_is_a_row_and_ours_stands_alone() {
        let file = ScratchFile::new(3 << 20).unwrap();
        let mut out = Vec::new();
        let mut sink = Sink::new(&mut out, crate::Format::Json);
        measure(RunLength::Quick, "fio-that-is-not-there", file.path(), &mut sink).unwrap();
        sink.finish().unwrap();
        let lines: Vec<Value> = std::str::from_utf8(&out)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let there = lines.iter().find(|line| line["metric"] == "fio_is_there").unwrap();
        assert_eq!(there["value"], 0.0);
        let iops = lines.iter().filter(|line| line["metric"] == "iops").count();
        assert_eq!(iops, 2 * VARIANTS.len());
        assert!(lines.iter().all(|line| line.get("reference").is_none()));
    }
}
