//! OpenSSD with drive-managed and with host-managed flash ([Thesis15 ch. 6 §6.1.3], figure 8 and
//! table 3), in virtual time: 128 MB of 4 KB requests on a clean drive, without garbage collection.
//!
//! *Greedy* is the preset `openssd-jasmine` as a drive with an FTL and without a write buffer: a
//! write completes when its 16 KB are programmed. *LightNVM* is the same drive under the sector
//! target (`rrpc`). It has 1 GB instead of 64 GB.
//!
//! **Depth.** Table 3 does not give the number of outstanding requests. In all of its eight rows
//! IOPS times mean latency is 2.0 (1630 × 1224 us, …), so that two were outstanding, as here.
//!
//! **Standard deviations.** Table 3 has a column "Std.Dev" without a unit. Of Greedy's random
//! writes it is 1415, twice their IOPS of 721. It may be that of the latency in us, which is the
//! row `latency_stddev`; `iops_stddev` is that of IOPS over intervals of 100 ms. Neither has a
//! reference.
//!
//! **Absolute values** are higher than the paper's. The preset has the times of the flash and of
//! the link, and none of the firmware on a processor of 2011. The reads of both sides therefore
//! differ by less than in the paper, where the host's translation saves time of that processor, and
//! where Greedy's sequential reads stay on one channel. The ratio of writes has the paper's value
//! as its minimum: a program of 16 KB contains one request with Greedy and four with LightNVM, and
//! LightNVM keeps more parallel units busy.

use time::Nanos;

use super::super::{BenchError, Measurement, RunLength, Sink};
use super::request_log::{deviation, mean};
use super::{BENCH, BenchJob, LightnvmHarness, OPENSSD, run_logged, sector_target};

/// Data per operation in bytes.
const BYTES: u64 = 128 << 20;
/// Interval of the standard deviation of IOPS; with 10 ms, a quick run has several.
const INTERVAL: Nanos = Nanos::from_millis(100);
const INTERVAL_QUICK: Nanos = Nanos::from_millis(10);

/// The rows of table 3: fio's name, description, IOPS and mean latency in us of Greedy and of
/// LightNVM.
const TABLE: [(&str, &str, [f64; 2], [f64; 2]); 4] = [
    ("randread", "random reads", [1630.0, 1224.0], [2082.0, 958.0]),
    ("read", "sequential reads", [1635.0, 1220.0], [4030.0, 494.0]),
    ("randwrite", "random writes", [721.0, 2768.0], [4058.0, 490.0]),
    ("write", "sequential writes", [522.0, 3823.0], [2032.0, 981.0]),
];

/// Measures table 3.
///
/// # Errors
/// As for [`run_parts`](super::run_parts).
pub fn run(length: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let greedy = format!(
        "[drive]\npreset = \"{OPENSSD}\"\ngeometry.chunks = 64\npersonality = \"block\"\n\
         data = \"none\"\n"
    );
    for (rw, operation, paper_greedy, paper_lightnvm) in TABLE {
        let case = |name: &str| format!("OpenSSD {name}, 4 KB {operation}, QD 2");
        let mut measure =
            |name, scenario: &str, paper| measure(length, &case(name), scenario, rw, paper, sink);
        let managed_by_drive = measure("Greedy", &greedy, paper_greedy)?;
        let managed_by_host = measure("LightNVM", &sector_target(OPENSSD, ""), paper_lightnvm)?;
        let (ratio, paper) =
            (managed_by_host / managed_by_drive, paper_lightnvm[0] / paper_greedy[0]);
        let row = Measurement::new(BENCH, case("LightNVM"), "times_greedy", ratio, "")
            .with_reference("paper", paper);
        sink.push(if rw.ends_with("write") { row.at_least(paper) } else { row })?;
    }
    Ok(())
}

/// Measures one operation on a clean drive; returns its IOPS.
fn measure(
    length: RunLength,
    case: &str,
    scenario: &str,
    rw: &str,
    [paper_iops, paper_latency]: [f64; 2],
    sink: &mut Sink<'_>,
) -> Result<f64, BenchError> {
    let mut harness = LightnvmHarness::new(scenario)?;
    if rw.ends_with("read") {
        let fill = format!("rw=write bs=256k iodepth=8 size={BYTES}");
        harness.run_in_zero_time(&[BenchJob("fill", &fill)])?;
    }
    let bytes = length.choose(BYTES, BYTES / 16);
    let log =
        run_logged(&mut harness, &format!("rw={rw} bs=4k iodepth=2 size={BYTES} io_size={bytes}"))?;
    let row = |metric, value, unit| Measurement::new(BENCH, case, metric, value, unit);
    let (iops, latencies) = (log.iops(), log.latencies_us());
    sink.push(row("iops", iops, "1/s").with_reference("paper", paper_iops))?;
    let latency = row("latency_mean", mean(&latencies), "us");
    sink.push(latency.with_reference("paper", paper_latency))?;
    sink.push(row("latency_stddev", deviation(&latencies), "us"))?;
    let rates = log.interval_iops(length.choose(INTERVAL, INTERVAL_QUICK));
    sink.push(row("iops_stddev", deviation(&rates), "1/s"))?;
    Ok(iops)
}
