//! Channels and chips ([CIDR13 fig. 1]), in virtual time: four reads of four chips on one channel wait
//! for the channel, and four writes for the chips.
//!
//! The drive is that of `demo/four-chips.toml`, which shows the operations in Perfetto. A read of a
//! page takes the chip tR, then the channel the transfer; a write takes the channel first, then the
//! chip tPROG. Of four requests at once, the closed forms of the i-th completion are
//! `tR + i × transfer` and `i × transfer + tPROG`, and the measured times are equal to them. Of many
//! requests, reads have the rate `1 / transfer`, writes `4 / (transfer + tPROG)`.

use controller::DriveConfig;
use media::MediaConfig;
use time::Nanos;

use super::super::{BenchError, Measurement, RunLength, Sink};
use super::{BENCH, BenchJob, LightnvmHarness, run_logged, setup};

/// The drive, and jobs that this bench does not use.
const SCENARIO: &str = include_str!("../../../../../demo/four-chips.toml");

/// Number of chips, and of requests at once.
const CHIPS: u64 = 4;

/// The times of a page on this drive.
#[derive(Clone, Copy, Debug)]
struct PageTimes {
    read: Nanos,
    program: Nanos,
    transfer: Nanos,
}

impl PageTimes {
    fn of(config: &DriveConfig) -> Result<PageTimes, BenchError> {
        let MediaConfig::Nand(nand) = &config.media else {
            return Err(setup("the drive has no flash"));
        };
        let bytes = u64::from(nand.geometry.page_bytes);
        Ok(PageTimes {
            read: nand.timing.read[0],
            program: nand.timing.program[0],
            transfer: Nanos::transfer(bytes, nand.timing.channel_bytes_per_sec),
        })
    }
}

/// Returns the time of an erase of a drive with flash.
///
/// # Errors
/// If the drive has none.
pub(super) fn erase_time(config: &DriveConfig) -> Result<Nanos, BenchError> {
    match &config.media {
        MediaConfig::Nand(nand) => Ok(nand.timing.erase),
        _ => Err(setup("the drive has no flash")),
    }
}

/// Measures four requests at once, and many.
///
/// # Errors
/// As for [`run_parts`](super::run_parts).
pub fn run(length: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let mut harness = LightnvmHarness::new(SCENARIO)?;
    let times = PageTimes::of(&harness.spec.config)?;
    let last = Nanos(CHIPS * times.transfer.0);
    let transfers = |i: u64| Nanos(i * times.transfer.0);
    // The FTL logs that it opens a line: the first writes wait for that.
    harness.run(&[BenchJob("first", "rw=write bs=4k iodepth=4 number_ios=4")])?;
    for (rw, what, bound, total) in [
        ("write", "four writes of four chips", "chips", last + times.program),
        ("read", "four reads of four chips", "channel", times.read + last),
    ] {
        let log = run_logged(&mut harness, &format!("rw={rw} bs=4k iodepth=4 number_ios=4"))?;
        let measured = log.latencies_us();
        for (i, measured) in (1..=CHIPS).zip(&measured) {
            let form = match rw {
                "write" => transfers(i) + times.program,
                _ => times.read + transfers(i),
            };
            let case = format!("{what}, number {i}");
            let row = Measurement::new(BENCH, case, "completion", *measured, "us");
            let form = form.as_micros_f64();
            sink.push(row.with_reference("closed form", form).within(0.0, form))?;
        }
        let share = last.0 as f64 / total.0 as f64;
        sink.push(Measurement::new(BENCH, what, "channel_busy", 100.0 * share, "%"))?;
        rate(length, &mut harness, rw, bound, times, sink)?;
    }
    Ok(())
}

/// Measures many requests. The rate is the one that the bottleneck allows.
fn rate(
    length: RunLength,
    harness: &mut LightnvmHarness,
    rw: &str,
    bound: &str,
    times: PageTimes,
    sink: &mut Sink<'_>,
) -> Result<(), BenchError> {
    let requests = length.choose(4000, 400);
    let options = format!("rw={rw} bs=4k iodepth=32 number_ios={requests}");
    let iops = run_logged(harness, &options)?.iops();
    let seconds = |time: Nanos| time.as_secs_f64();
    let (channel, chips) = (
        1.0 / seconds(times.transfer),
        CHIPS as f64
            / match rw {
                "write" => seconds(times.transfer + times.program),
                _ => seconds(times.read + times.transfer),
            },
    );
    let form = channel.min(chips);
    let case = format!("many {rw}s of four chips, bound by the {bound}");
    let row = |metric, value| Measurement::new(BENCH, case.clone(), metric, value, "1/s");
    sink.push(row("iops", iops).with_reference("closed form", form).within(0.02, form))?;
    sink.push(row("channel_limit", channel))?;
    sink.push(row("chip_limit", chips))
}
