//! Group `scale`: the CPU time of a simulated I/O by the size of the simulation.
//!
//! Each part varies one parameter and keeps the others, so that the outstanding requests, the capacity
//! and the requests are equal at all points of a curve:
//!
//! | part | varies | random overwrites, too |
//! |---|---|---|
//! | `queue-depth` | outstanding requests of one job | yes |
//! | `jobs` | jobs that share a number of outstanding requests | no |
//! | `pus` | parallel units of a drive | yes |
//! | `drives` | drives that share a capacity and a number of outstanding requests | no |
//! | `capacity` | chunks of each parallel unit | yes |
//! | `lines` | lines of a drive, by the parallel units that are written at a time | overwrites only |
//!
//! The time is that of one thread on its processor, in which waiting for another process does not count. An overwrite
//! costs what the sectors cost that are programmed for it: the curves of overwrites are in nanoseconds per programmed
//! sector, because write amplification is a result of the drive's design in virtual time, and differs between the points
//! of a curve.
//!
//! Every point has a bound: the cost at the first point, plus a share of it (`GROWTH_PER_DOUBLING`)
//! per doubling. The cost may grow with the logarithm of the parameter, and with cache misses, but not linearly.

mod curve;
mod drive_set;
mod simulated_drive;

use super::groups::ScalePart;
use super::{BenchError, BenchFn, Measurement, RunLength, Sink};
use curve::ScalingCurve;
use simulated_drive::{DriveShape, JobLoad, SimulatedDrive};

const BENCH: &str = "scale";

/// Samples per point.
const SAMPLES: usize = 5;
/// Share of a drive that is overwritten before overwrites are measured: garbage collection begins
/// when the spare 7.5 % are written.
const OVERWRITTEN: f64 = 0.1;
/// Outstanding requests where they are not the parameter.
const OUTSTANDING: u32 = 1024;

const READS: &str = "4 KB random reads";
const OVERWRITES: &str = "4 KB random overwrites";

/// The parts in their order.
const PARTS: [(ScalePart, BenchFn); 6] = [
    (ScalePart::QueueDepth, queue_depth),
    (ScalePart::Jobs, jobs),
    (ScalePart::Pus, pus),
    (ScalePart::Drives, drives),
    (ScalePart::Lines, lines),
    (ScalePart::Capacity, capacity),
];

/// Measures the named parts, or all of them if none is named.
///
/// # Errors
/// When the system refuses memory, or the output fails.
pub fn run_parts(
    named: &[ScalePart],
    length: RunLength,
    sink: &mut Sink<'_>,
) -> Result<(), BenchError> {
    super::run_parts(&PARTS, named, length, sink)
}

/// A drive of 64 GiB, or of 1 GiB for a quick run, with 64 parallel units.
fn usual_shape(length: RunLength) -> DriveShape {
    DriveShape {
        channels: 8,
        pus: 8,
        chunks: length.choose(4096, 64),
        pages: 16,
        active_pus: 0,
        write_buffer: length.choose(64, 8),
    }
}

/// Requests per sample, if each reads or writes one sector.
fn ios(length: RunLength, rw: &str) -> u64 {
    match rw {
        "randread" => length.choose(400_000, 20_000),
        _ => length.choose(100_000, 5_000),
    }
}

/// The curves of a drive: reads, and overwrites unless the part has none.
struct DriveCurves {
    reads: ScalingCurve,
    overwrites: ScalingCurve,
}

impl DriveCurves {
    fn new(axis: &'static str) -> DriveCurves {
        DriveCurves {
            reads: ScalingCurve::new(axis, READS, "cpu_per_io"),
            overwrites: ScalingCurve::new(axis, OVERWRITES, "cpu_per_programmed_sector"),
        }
    }

    fn finish(self, sink: &mut Sink<'_>) -> Result<(), BenchError> {
        self.reads.finish(sink)?;
        self.overwrites.finish(sink)
    }

    fn measure_reads(
        &mut self,
        n: u64,
        drive: &mut SimulatedDrive,
        load: JobLoad,
        sink: &mut Sink<'_>,
    ) -> Result<(), BenchError> {
        let cost = drive.measure(load, SAMPLES)?;
        self.reads.push(n, &cost.per_io, sink)
    }

    fn measure_overwrites(
        &mut self,
        n: u64,
        drive: &mut SimulatedDrive,
        load: JobLoad,
        sink: &mut Sink<'_>,
    ) -> Result<(), BenchError> {
        let cost = drive.measure(load, SAMPLES)?;
        self.overwrites.push(n, &cost.per_sector, sink)?;
        let case = self.overwrites.case(n);
        sink.push(Measurement::median(BENCH, &case, "cpu_per_io", &cost.per_io, "ns"))?;
        match cost.write_amplification {
            Some(wa) => sink.push(Measurement::new(BENCH, case, "write_amplification", wa, "")),
            None => Ok(()),
        }
    }
}

fn queue_depth(length: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let depths: &[u32] = length.choose(&[1, 4, 16, 64, 256, 1024, 4096], &[1, 64]);
    let shape = usual_shape(length);
    let mut curves = DriveCurves::new("queue depth");
    let mut drive = SimulatedDrive::filled(&shape)?;
    let load = |rw, depth| JobLoad { rw, jobs: 1, depth, ios: ios(length, rw) };
    for &depth in depths {
        curves.measure_reads(depth.into(), &mut drive, load("randread", depth), sink)?;
    }
    let mut drive = drive.overwritten(&shape, OVERWRITTEN)?;
    for &depth in depths {
        curves.measure_overwrites(depth.into(), &mut drive, load("randwrite", depth), sink)?;
    }
    curves.finish(sink)
}

fn jobs(length: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let counts: &[u32] = length.choose(&[1, 4, 16, 64, 256, 1024], &[1, 64]);
    let mut curve = ScalingCurve::new("jobs", READS, "cpu_per_io");
    let mut drive = SimulatedDrive::filled(&usual_shape(length))?;
    for &jobs in counts {
        let rw = "randread";
        let load = JobLoad { rw, jobs, depth: OUTSTANDING / jobs, ios: ios(length, rw) };
        curve.push(jobs.into(), &drive.measure(load, SAMPLES)?.per_io, sink)?;
    }
    curve.finish(sink)
}

fn pus(length: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let usual = usual_shape(length);
    let total = usual.channels * usual.pus * usual.chunks;
    let sizes: &[(u32, u32)] =
        length.choose(&[(4, 4), (8, 8), (16, 16), (32, 32), (64, 64)], &[(4, 4), (8, 8)]);
    let mut curves = DriveCurves::new("parallel units");
    for &(channels, pus) in sizes {
        let chunks = total / (channels * pus);
        let write_buffer = length.choose(256, 8);
        let shape = DriveShape { channels, pus, chunks, write_buffer, ..usual };
        let mut drive = SimulatedDrive::filled(&shape)?;
        let load = |rw| JobLoad { rw, jobs: 1, depth: OUTSTANDING, ios: ios(length, rw) };
        let count = u64::from(channels * pus);
        curves.measure_reads(count, &mut drive, load("randread"), sink)?;
        let mut drive = drive.overwritten(&shape, OVERWRITTEN)?;
        curves.measure_overwrites(count, &mut drive, load("randwrite"), sink)?;
    }
    curves.finish(sink)
}

fn drives(length: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let counts: &[u32] = length.choose(&[1, 4, 16, 64], &[1, 4]);
    let usual = usual_shape(length);
    let mut curve = ScalingCurve::new("drives", READS, "cpu_per_io");
    for &count in counts {
        let shape = DriveShape { chunks: usual.chunks / count, ..usual };
        let rw = "randread";
        let load = JobLoad { rw, jobs: 1, depth: OUTSTANDING, ios: 2 * ios(length, rw) };
        curve.push(count.into(), &drive_set::measure(count, &shape, load, SAMPLES)?, sink)?;
    }
    curve.finish(sink)
}

fn lines(length: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let actives: &[u32] = length.choose(&[64, 16, 4, 1], &[64, 1]);
    let usual = usual_shape(length);
    let mut curves = DriveCurves::new("lines");
    for &active_pus in actives {
        let shape = DriveShape { active_pus, ..usual };
        let mut drive = SimulatedDrive::filled(&shape)?.overwritten(&shape, OVERWRITTEN)?;
        let rw = "randwrite";
        let load = JobLoad { rw, jobs: 1, depth: OUTSTANDING, ios: ios(length, rw) };
        let lines = shape.channels * shape.pus * shape.chunks / active_pus;
        curves.measure_overwrites(lines.into(), &mut drive, load, sink)?;
    }
    curves.finish(sink)
}

fn capacity(length: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let capacities: &[u32] = length.choose(&[16, 64, 256, 1024, 4096, 8192], &[1, 2]);
    // The preset has 2,048 chunks of 256 pages per plane for 512 GiB.
    let (chunks_per_gib, pages) = length.choose((4, 256), (64, 16));
    let mut curves = DriveCurves::new("GiB");
    for &gib in capacities {
        let shape = DriveShape { chunks: gib * chunks_per_gib, pages, ..usual_shape(length) };
        let mut drive = SimulatedDrive::filled(&shape)?;
        let load = |rw| JobLoad { rw, jobs: 1, depth: OUTSTANDING, ios: ios(length, rw) };
        curves.measure_reads(gib.into(), &mut drive, load("randread"), sink)?;
        let mut drive = drive.overwritten(&shape, OVERWRITTEN)?;
        curves.measure_overwrites(gib.into(), &mut drive, load("randwrite"), sink)?;
    }
    curves.finish(sink)
}
