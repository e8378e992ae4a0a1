//! Three statements about SSDs that [CIDR13 §2.3] calls myths, in virtual time, each with the numbers
//! that refute it and the closed forms of these numbers.
//!
//! 1. *SSDs behave as the non-volatile memory that they contain.* N chips have N times the rate of
//!    one only until another resource limits them: channels, or the link.
//! 2. *Random writes are very costly.* On a fresh drive with a page map they are as fast as
//!    sequential ones. In steady state collection costs 1 − 1/W of the rate, where W is the write
//!    amplification: the effect that the paper leaves to future work.
//! 3. *Reads are cheaper than writes.* Beside collection, writes end in the write buffer, and reads
//!    wait for programs and erases of their chip.

use sim::analytic::ClosedFormLimits;
use workload::Direction;

use super::super::{BenchError, Measurement, RunLength, Sink};
use super::chips::erase_time;
use super::{BENCH, BenchJob, LightnvmHarness, setup};

/// Bytes of a page, which is a sector.
const PAGE: u64 = 4096;

/// Lines of `[drive]` for space that collection needs.
const OVER_PROVISIONING: &str = "ftl = { over_provisioning = 0.28 }\n";

/// The flash of all drives. The erase of 3 ms is that of [CIDR13 §2.3], which has no other times.
const FLASH: &str = "data = \"none\"\ncell = \"slc\"\npage_register = false\n\
                     timing = { read = \"50us\", program = \"1300us\", erase = \"3ms\", channel = \"200MB/s\" }\n\
                     controller = { dma_bandwidth = \"2GB/s\" }\n";

/// Returns a scenario of a drive with this many channels, chips per channel and chunks per chip.
fn drive(channels: u32, chips: u32, chunks: u32, more: &str) -> String {
    format!(
        "[drive]\n{FLASH}geometry = {{ channels = {channels}, pus = {chips}, planes = 1, \
         chunks = {chunks}, pages = 256, page_bytes = {PAGE} }}\n{more}"
    )
}

/// Measures the three statements.
///
/// # Errors
/// As for [`run_parts`](super::run_parts).
pub fn run(length: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    chips_and_drives(sink)?;
    random_writes(length, sink)?;
    reads_beside_collection(length, sink)
}

/// The first statement: drives of 1 to 64 chips against that many times one chip.
fn chips_and_drives(sink: &mut Sink<'_>) -> Result<(), BenchError> {
    for (rw, what) in [("randread", "reads"), ("randwrite", "writes")] {
        let mut one = None;
        for (channels, chips, name) in [
            (1, 1, "1 chip on 1 channel"),
            (1, 4, "4 chips on 1 channel"),
            (4, 4, "16 chips on 4 channels"),
            (16, 4, "64 chips on 16 channels"),
        ] {
            let buffer = "write_buffer = { kind = \"none\" }\n";
            let mut harness = LightnvmHarness::new(&drive(channels, chips, 64, buffer))?;
            let limits = ClosedFormLimits::from_spec(&harness.spec);
            let (limit, direction) = match rw {
                "randread" => (limits.random_read, Direction::Read),
                _ => (limits.program, Direction::Write),
            };
            let limit = limit.ok_or_else(|| setup("a drive without a limit"))?;
            if direction == Direction::Read {
                harness.run_in_zero_time(&[BenchJob("fill", "rw=write bs=256k iodepth=8")])?;
            }
            let all = channels * chips;
            let (requests, depth) = (2000 * all, 32 * all);
            let options =
                format!("rw={rw} bs=4k iodepth={depth} norandommap=1 number_ios={requests}");
            let measured = harness.run(&[BenchJob("job", &options)])?;
            let iops = measured.jobs[0].direction(direction).iops();
            let first = *one.get_or_insert(iops);
            let case = format!("4 KB random {what}, {name}");
            let form = limit.iops() * limit.request_bytes as f64 / PAGE as f64;
            let row = Measurement::new(BENCH, case.clone(), "iops", iops, "1/s");
            let row = row.with_reference(format!("closed form: {}", limit.bound()), form);
            sink.push(row.within(0.05, form))?;
            let row = Measurement::new(BENCH, case, "times_one_chip", iops / first, "");
            sink.push(row.with_reference("chips", f64::from(all)))?;
        }
    }
    Ok(())
}

/// The second statement: random writes against sequential ones, on a fresh drive and in steady state.
fn random_writes(length: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let text = drive(4, 4, length.choose(64, 40), OVER_PROVISIONING);
    let requests = length.choose(100_000, 4000);
    let row =
        |what: &str, iops| Measurement::new(BENCH, format!("4 KB {what}"), "iops", iops, "1/s");
    let fresh = |rw: &str| {
        let mut harness = LightnvmHarness::new(&text)?;
        write(&mut harness, rw, requests / 10)?;
        write(&mut harness, rw, requests / 4)
    };
    let (sequential, random) = (fresh("write")?, fresh("randwrite")?);
    sink.push(row("sequential writes, fresh drive", sequential))?;
    sink.push(row("random writes, fresh drive", random).at_least(0.95 * sequential))?;

    let mut harness = LightnvmHarness::new(&text)?;
    overwrite(&mut harness, length.choose(3, 1))?;
    write(&mut harness, "randwrite", requests / 4)?;
    let before = harness.stack.ftl_stats();
    let steady = write(&mut harness, "randwrite", requests)?;
    let counted = harness.stack.ftl_stats().zip(before).map(|(after, before)| after.since(&before));
    let amplification = counted
        .and_then(|counted| counted.write_amplification())
        .ok_or_else(|| setup("a drive without writes"))?;
    let form = ClosedFormLimits::from_spec(&harness.spec).sustained.and_then(|rate| rate.limit);
    let form = form.ok_or_else(|| setup("a drive without a steady state"))?.iops();
    let what = "random writes, steady state";
    sink.push(row(what, steady).with_reference("closed form", form))?;
    let row = |metric, value| Measurement::new(BENCH, format!("4 KB {what}"), metric, value, "");
    sink.push(row("write_amplification", amplification))?;
    let share = row("share_of_sequential", steady / sequential)
        .with_reference("1 / write amplification", 1.0 / amplification);
    sink.push(match length {
        RunLength::Full => share.within(0.05, 1.0 / amplification),
        // A quick run does not reach the steady state.
        RunLength::Quick => share,
    })
}

/// The third statement: latencies of reads and of writes beside collection.
fn reads_beside_collection(length: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let buffer = "write_buffer = { kind = \"power-loss-protected\", size = \"2M\" }\n";
    let more = format!("{buffer}{OVER_PROVISIONING}");
    let mut harness = LightnvmHarness::new(&drive(4, 4, length.choose(64, 40), &more))?;
    overwrite(&mut harness, length.choose(3, 1))?;
    let alone = ClosedFormLimits::from_spec(&harness.spec).read_latency.as_micros_f64();
    let erase = erase_time(&harness.spec.config)?.as_micros_f64();
    let time = length.choose("time_based=1 runtime=20s", "time_based=1 runtime=4s");
    let result = harness.run(&[
        BenchJob("read", &format!("rw=randread bs=4k iodepth=1 {time}")),
        BenchJob("write", &format!("rw=randwrite bs=4k iodepth=1 rate=8m norandommap=1 {time}")),
    ])?;
    let read = &result.jobs[0].direction(Direction::Read).lat;
    let written = result.jobs[1].direction(Direction::Write).lat.mean() / 1e3;
    let row = |what: &str, value| {
        Measurement::new(BENCH, format!("4 KB {what}, beside collection"), "latency", value, "us")
    };
    sink.push(row("buffered writes, mean", written))?;
    let mean = row("reads, mean", read.mean() / 1e3).with_reference("alone", alone);
    sink.push(mean.at_least(written))?;
    let longest = row("reads, longest", read.max().as_micros_f64());
    sink.push(longest.with_reference("an erase", erase).at_least(erase))
}

/// Fills a drive and overwrites it at random, in no time.
fn overwrite(harness: &mut LightnvmHarness, times: u64) -> Result<(), BenchError> {
    let capacity = harness.spec.capacity.ok_or_else(|| setup("the drive has no flash"))?;
    let bytes = capacity.logical_sectors * PAGE * times;
    harness.run_in_zero_time(&[
        BenchJob("fill", "rw=write bs=256k iodepth=8"),
        BenchJob(
            "overwrite",
            &format!("rw=randwrite bs=4k iodepth=64 norandommap=1 io_size={bytes} stonewall=1"),
        ),
    ])?;
    Ok(())
}

/// Writes with many outstanding requests; returns the requests per second.
fn write(harness: &mut LightnvmHarness, rw: &str, requests: u64) -> Result<f64, BenchError> {
    let options = format!("rw={rw} bs=4k iodepth=512 norandommap=1 number_ios={requests}");
    let result = harness.run(&[BenchJob("write", &options)])?;
    Ok(result.jobs[0].direction(Direction::Write).iops())
}
