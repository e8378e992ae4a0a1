//! Rates of the open-channel drive, alone and under pblk ([LightNVM17 §5.1], table 1).
//!
//! Table 1 was measured by vector I/O to one parallel unit, without queue depths. 4 KB commands are
//! issued at depth 1, as the text says of its 4 KB reads ("we only perform one read at a time"). 64
//! KB commands are issued at depth 4, the minimum to keep a unit busy. The bound is 5 %, also for
//! the bandwidths of the complete drive.
//!
//! Of section 5.1, bandwidths and mean latencies have bounds. "4GB/s using sequential reads" has 15
//! %, because the drive of table 1 reads 4.5 GB/s; the others have 5 %. Its 99th percentiles and
//! steady state have no bound: they depend on parts of the drive that the paper does not describe.

use nvme::Address;
use time::Nanos;
use workload::{Direction, DirectionResult};

use super::super::{BenchError, MeasuredInterval, Measurement, RunLength, Sink};
use super::harness::{BenchJob, LightnvmHarness};
use super::vector_io::{Stream, VectorIoHost};
use super::{BENCH, PRESET};

/// Maximum relative difference of a parallel unit from table 1.
const TOLERANCE: f64 = 0.05;

/// Table 1, per parallel unit: writes, random, KB, depth, MB/s.
const TABLE: [(bool, bool, u32, u32, f64); 5] = [
    (true, false, 64, 4, 47.0),
    (false, false, 4, 1, 105.0),
    (false, false, 64, 4, 280.0),
    (false, true, 4, 1, 56.0),
    (false, true, 64, 4, 273.0),
];

/// Returns a scenario of pblk with these lines in addition to the drive's preset and the target's
/// kind.
pub(super) fn pblk(drive: &str, target: &str) -> String {
    format!("[drive]\n{PRESET}{drive}\n[target]\nkind = \"pblk\"\n{target}\n")
}

/// Measures table 1, section 5.1, and the drive's and pblk's write bandwidths.
///
/// # Errors
/// As for [`run_parts`](super::run_parts).
pub fn run(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    one_unit(effort, sink)?;
    all_units(effort, sink)?;
    pblk_reads(effort, sink)?;
    pblk_writes(effort, sink)
}

fn megabytes(case: String, bytes_per_sec: f64, paper: f64) -> Measurement {
    Measurement::new(BENCH, case, "bandwidth", bytes_per_sec / 1e6, "MB/s")
        .with_reference("paper", paper)
}

fn one_unit(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let mut direct = VectorIoHost::new(&format!("[drive]\n{PRESET}"))?;
    let pu = [direct.striped(0)];
    let filled = 4;
    direct.fill(&pu, filled)?;
    let mut fresh = filled;
    let spans = MeasuredInterval {
        ramp: Nanos::from_millis(20),
        time: effort.choose(Nanos::from_millis(800), Nanos::from_millis(80)),
    };
    for (writes, random, kib, depth, paper) in TABLE {
        let chunks = if writes { (fresh, 8) } else { (0, filled) };
        fresh += if writes { 8 } else { 0 };
        let sectors = kib * 1024 / direct.info().geometry.sector_bytes;
        let reached =
            direct.measure(&pu, Stream { writes, random, sectors, depth, chunks }, spans)?;
        let what = match (writes, random) {
            (true, _) => "writes",
            (false, false) => "sequential reads",
            (false, true) => "random reads",
        };
        let case = format!("vector I/O, one PU, {kib} KB {what}, QD {depth}");
        let row = megabytes(case, reached.bytes_per_sec, paper);
        sink.push(row.within(TOLERANCE, paper))?;
    }
    Ok(())
}

fn all_units(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let mut direct = VectorIoHost::new(&format!("[drive]\n{PRESET}"))?;
    let pus: Vec<Address> =
        (0..direct.info().geometry.total_pus()).map(|pu| direct.striped(pu)).collect();
    direct.fill(&pus, 1)?;
    let spans = MeasuredInterval {
        ramp: Nanos::from_millis(20),
        time: effort.choose(Nanos::from_millis(500), Nanos::from_millis(20)),
    };
    for (writes, what, chunks, paper) in
        [(true, "writes", (1, 8), 4000.0), (false, "sequential reads", (0, 1), 4500.0)]
    {
        let stream = Stream { writes, random: false, sectors: 16, depth: 4, chunks };
        let reached = direct.measure(&pus, stream, spans)?;
        let case = format!("vector I/O, {} PUs, 64 KB {what}, QD 4 each", pus.len());
        sink.push(megabytes(case, reached.bytes_per_sec, paper).within(TOLERANCE, paper))?;
    }
    Ok(())
}

/// Section 5.1: sequential reads through pblk.
fn pblk_reads(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let mut harness = LightnvmHarness::new(&pblk("", ""))?;
    let size = effort.choose("16g", "1g");
    harness.run(&[BenchJob("fill", &format!("rw=write bs=256k iodepth=8 size={size}"))])?;
    let settled = harness.now() + Nanos::from_millis(500);
    harness.run_until(settled)?;
    let time = effort.choose("runtime=1s", "runtime=40ms");
    for (bs, what, depth, tolerance, [bandwidth, mean, p99]) in [
        ("256k", "256 KB", 16, 0.15, [4000.0, 970.0, 1200.0]),
        ("4k", "4 KB", 1, TOLERANCE, [105.0, 40.0, 400.0]),
    ] {
        let options = format!("rw=read bs={bs} iodepth={depth} size={size} time_based=1 {time}");
        let result = harness.run(&[BenchJob("read", &options)])?;
        let read = result.jobs[0].direction(Direction::Read);
        let case = format!("pblk, {what} sequential reads, QD {depth}");
        let row = megabytes(case.clone(), read.bandwidth(), bandwidth);
        sink.push(row.within(tolerance, bandwidth))?;
        let micros = |metric, ns: f64, paper| {
            let row = Measurement::new(BENCH, case.clone(), metric, ns / 1e3, "us");
            row.with_reference("paper", paper)
        };
        sink.push(micros("latency_mean", read.lat.mean(), mean).within(TOLERANCE, mean))?;
        sink.push(micros("latency_p99", read.lat.percentile(99.0).0 as f64, p99))?;
    }
    Ok(())
}

/// Table 1: pblk's writes on an empty drive and in steady state. The table does not give the access
/// pattern of the latter; the other figures of the section are sequential.
fn pblk_writes(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let mut harness = LightnvmHarness::new(&pblk("", ""))?;
    let time = effort.choose("ramp_time=100ms runtime=1s", "ramp_time=20ms runtime=30ms");
    let write = |harness: &mut LightnvmHarness,
                 rw: &str,
                 bs: &str|
     -> Result<DirectionResult, BenchError> {
        let options = format!("rw={rw} bs={bs} iodepth=16 time_based=1 norandommap=1 {time}");
        let result = harness.run(&[BenchJob("write", &options)])?;
        Ok(result.jobs[0].direction(Direction::Write).clone())
    };
    let fresh = write(&mut harness, "write", "256k")?;
    let case = "pblk, 256 KB sequential writes, QD 16, fresh";
    sink.push(megabytes(case.into(), fresh.bandwidth(), 4000.0))?;
    if effort == RunLength::Quick {
        // Steady state needs a drive that has been written once completely.
        harness = LightnvmHarness::new(&pblk("geometry.chunks = 12\ngeometry.pages = 16", ""))?;
    }
    harness.run_in_zero_time(&[
        BenchJob("fill", "rw=write bs=256k iodepth=8"),
        BenchJob("again", "rw=write bs=256k iodepth=8 stonewall=1"),
    ])?;
    for (rw, what, paper) in [("write", "sequential", Some(3200.0)), ("randwrite", "random", None)]
    {
        let before = harness.stack.ftl_stats();
        let steady = write(&mut harness, rw, "256k")?;
        let case = format!("pblk, 256 KB {what} writes, QD 16, steady state");
        let row = Measurement::new(BENCH, &case, "bandwidth", steady.bandwidth() / 1e6, "MB/s");
        sink.push(match paper {
            Some(paper) => row.with_reference("paper", paper),
            None => row.with_reference("fresh", fresh.bandwidth() / 1e6),
        })?;
        if let (Some(before), Some(after)) = (before, harness.stack.ftl_stats())
            && let Some(wa) = after.since(&before).write_amplification()
        {
            sink.push(Measurement::new(BENCH, case, "write_amplification", wa, ""))?;
        }
    }
    Ok(())
}
