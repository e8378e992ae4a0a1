//! MariaDB and PostgreSQL with and without their second write of a page, on a drive with atomic
//! writes: what the protection against torn pages costs in bytes that the drive is asked to write, and
//! in transactions per second (`docs/double-writes.md`). The protected side is the reference.
//!
//! The drive is emulated in the process of `sluice exec`, with its data in an image. A database is
//! made once; every sample starts from a copy of that image and ends with a shutdown that writes all
//! changed pages. The bytes of a start and a shutdown without a load are subtracted.

// guarantee: B-113

mod database;

use std::path::Path;

use database::{DatabaseImage, DatabaseLoad};

use super::harness::Scratch;
use super::rows::Metric;
use super::{BENCH, setup, sql};
use crate::{BenchError, Measurement, RunLength, Samples, Sink, interleave};

/// The programs and their packages.
pub(super) const PROGRAMS: [(&str, &str); 7] = {
    let [server, install, admin, client, sysbench] = sql::PROGRAMS;
    // `pgbench` on the path belongs to the client's package; the server's has the program that it calls.
    let postgresql = ("pg_ctlcluster", "postgresql");
    [server, install, admin, client, sysbench, postgresql, ("pgbench", "postgresql-client-common")]
};

/// Least throughput without the second write, as a multiple of that with it.
const SPEEDUP_MIN: f64 = 1.3;
/// Most bytes per transaction without the second write, as a share of those with it.
const BYTES_SHARE_MAX: f64 = 0.6;

/// Whether the database writes a changed page a second time, elsewhere, against torn pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SecondWrite {
    On,
    Off,
}

impl SecondWrite {
    /// In the order of samples.
    const ALL: [SecondWrite; 2] = [SecondWrite::On, SecondWrite::Off];

    /// Returns the value of the server's option.
    fn value(self) -> &'static str {
        match self {
            SecondWrite::On => "on",
            SecondWrite::Off => "off",
        }
    }
}

/// Times of the drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DriveTimes {
    /// The preset's times of NAND: 0.64 ms and 1.86 ms to program a lower and an upper page.
    Nand,
    /// No times, while the database is made.
    None,
}

/// Returns the drive: one die of `consumer-nvme`, whose programs take as long as those of NAND, with
/// atomic writes and a small write buffer. The buffer survives a loss of power, so that a durable
/// write waits for space in it and not for a program of its own: what the database writes costs its
/// bytes. A write unit is 32 KiB, so that the drive keeps pages of 8 KiB and 16 KiB whole.
fn drive(times: DriveTimes, image: &Path) -> String {
    let timing = match times {
        DriveTimes::Nand => "",
        DriveTimes::None => {
            "[drive.timing]\nread = 0\nprogram = 0\nerase = 0\nchannel = 0\n\
             [drive.controller]\nfetch_latency = 0\ncompletion_latency = 0\ndma_bandwidth = 0\n"
        }
    };
    format!(
        "[drive]\npreset = \"consumer-nvme\"\natomic = true\ndata = \"file\"\npath = {image:?}\n\
         [drive.geometry]\nchannels = 1\npus = 1\nchunks = 64\n\
         [drive.write_buffer]\nsize = \"1M\"\n{timing}"
    )
}

/// Sizes of a run.
#[derive(Clone, Copy, Debug)]
struct DatabaseLoadSize {
    /// Rows of sysbench's two tables, each.
    rows: u32,
    /// Scale of pgbench's tables: 100,000 accounts each.
    scale: u32,
    end: LoadEnd,
}

/// End of a load.
#[derive(Clone, Copy, Debug)]
enum LoadEnd {
    /// After a time in seconds.
    Seconds(u32),
    /// After a number of transactions of all connections together: also on a machine on which
    /// connecting takes seconds.
    Transactions(u32),
}

/// Result of a load.
#[derive(Clone, Copy, Debug, PartialEq)]
struct TransactionCount {
    transactions: f64,
    /// Transactions per second.
    rate: f64,
}

/// Result of a load, and the bytes that it caused the drive to be asked to write.
#[derive(Clone, Copy, Debug, PartialEq)]
struct DoubleWriteSample {
    rate: f64,
    bytes_per_transaction: f64,
}

impl DoubleWriteSample {
    /// `bytes` and `idle_bytes` are those of a run with and without the load. `None` if nothing
    /// was measured.
    fn new(count: TransactionCount, bytes: u64, idle_bytes: u64) -> Option<DoubleWriteSample> {
        let TransactionCount { transactions, rate } = count;
        let bytes = bytes.checked_sub(idle_bytes).filter(|bytes| *bytes > 0)? as f64;
        let is_measured = transactions > 0.0 && rate > 0.0;
        let bytes_per_transaction = bytes / transactions;
        is_measured.then_some(DoubleWriteSample { rate, bytes_per_transaction })
    }
}

/// Measures the part.
///
/// # Errors
/// Any failure of a program or in setting a drive up.
pub fn run(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let size = effort.choose(
        DatabaseLoadSize { rows: 100_000, scale: 5, end: LoadEnd::Seconds(10) },
        DatabaseLoadSize { rows: 2000, scale: 1, end: LoadEnd::Transactions(320) },
    );
    for load in DatabaseLoad::ALL {
        let scratch = Scratch::new()?;
        let image = DatabaseImage::make(load, scratch.path(), size)?;
        let mut idle_bytes = [0; 2];
        for (second, bytes) in SecondWrite::ALL.into_iter().zip(&mut idle_bytes) {
            (*bytes, ()) = image.run(second, |_| Ok(()))?;
        }
        let sides = SecondWrite::ALL;
        let samples = interleave(effort.choose(3, 1), sides.len(), |which| {
            let (bytes, count) = image.run(sides[which], |running| running.load(size))?;
            let sample = DoubleWriteSample::new(count, bytes, idle_bytes[which]);
            sample.ok_or_else(|| setup(format!("{}: nothing was measured", load.name())))
        })?;
        report(sink, load, &samples)?;
    }
    Ok(())
}

/// Writes the rows of a load: of the protected side, then of the other one with its bounds.
fn report(
    sink: &mut Sink<'_>,
    load: DatabaseLoad,
    samples: &[Vec<DoubleWriteSample>],
) -> Result<(), BenchError> {
    type Number = fn(&DoubleWriteSample) -> f64;
    type Bound = fn(Measurement, f64) -> Measurement;
    let metrics: [(Metric, Number, Bound); 2] = [
        (Metric("throughput", "1/s"), |s| s.rate, |row, on| row.at_least(SPEEDUP_MIN * on)),
        (
            Metric("bytes_per_transaction", "B"),
            |s| s.bytes_per_transaction,
            |row, on| row.at_most(BYTES_SHARE_MAX * on),
        ),
    ];
    for (Metric(metric, unit), number, bound) in metrics {
        let mut protected = None;
        for (second, samples) in SecondWrite::ALL.into_iter().zip(samples) {
            let side = |second: SecondWrite| format!("{} {}", load.option(), second.value());
            let case = format!("{}, {}", load.name(), side(second));
            let values = Samples::new(samples.iter().map(number).collect())
                .ok_or_else(|| BenchError::NoValue { case: case.clone(), metric })?;
            let row = Measurement::median(BENCH, &case, metric, &values, unit);
            let on = *protected.get_or_insert(values.median());
            sink.push(match second {
                SecondWrite::On => row,
                SecondWrite::Off => bound(row.with_reference(side(SecondWrite::On), on), on),
            })?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use controller::WriteBuffer;
    use media::MediaConfig;
    use scenario::Scenario;
    use serde_json::Value;

    use super::*;
    use crate::Format;

    #[test]
    fn the_drive_keeps_pages_whole_and_only_times_differ() {
        let [nand, fast] = [DriveTimes::Nand, DriveTimes::None].map(|times| {
            let text = drive(times, Path::new("/a \"b\"/drive.img"));
            let parsed = Scenario::parse(Path::new("bench"), &text).unwrap();
            let config = &parsed.drives[0].config;
            let MediaConfig::Nand(nand) = &config.media else { panic!() };
            assert!(matches!(config.write_buffer, WriteBuffer::PowerLossProtected { .. }));
            let unit = nand.geometry.planes * nand.geometry.page_bytes;
            assert!(unit >= 16 << 10, "MariaDB's page");
            (format!("{:?}", nand.geometry), format!("{:?}", nand.timing))
        });
        assert_eq!(nand.0, fast.0);
        assert_ne!(nand.1, fast.1);
    }

    #[test]
    fn bytes_without_a_load_do_not_count() {
        let count = TransactionCount { transactions: 10.0, rate: 5.0 };
        let sample = DoubleWriteSample::new(count, 1100, 100).unwrap();
        assert_eq!((sample.rate, sample.bytes_per_transaction), (5.0, 100.0));
        for (count, bytes) in [
            (count, 100),
            (count, 99),
            (TransactionCount { transactions: 0.0, ..count }, 1100),
            (TransactionCount { rate: 0.0, ..count }, 1100),
        ] {
            assert_eq!(DoubleWriteSample::new(count, bytes, 100), None, "{count:?} {bytes}");
        }
    }

    fn rows(off: DoubleWriteSample) -> Vec<Value> {
        let mut out = Vec::new();
        let mut sink = Sink::new(&mut out, Format::Json);
        let on = DoubleWriteSample { rate: 100.0, bytes_per_transaction: 1000.0 };
        report(&mut sink, DatabaseLoad::PostgreSqlPgbench, &[vec![on], vec![off]]).unwrap();
        sink.finish().unwrap();
        let text = String::from_utf8(out).unwrap();
        text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
    }

    #[test]
    fn the_unprotected_side_is_compared_and_each_bound_can_fail() {
        for (rate, bytes, verdicts) in [
            (130.0, 600.0, ["pass", "pass"]),
            (129.0, 600.0, ["fail", "pass"]),
            (130.0, 601.0, ["pass", "fail"]),
        ] {
            let rows = rows(DoubleWriteSample { rate, bytes_per_transaction: bytes });
            let [on_rate, off_rate, on_bytes, off_bytes] = rows.as_slice() else { panic!() };
            for on in [on_rate, on_bytes] {
                assert_eq!((on.get("reference"), on.get("verdict")), (None, None), "{on}");
            }
            for (off, verdict) in [off_rate, off_bytes].into_iter().zip(verdicts) {
                assert_eq!(off["verdict"], verdict, "{off}");
                assert_eq!(off["reference"]["what"], "full_page_writes on");
            }
            assert_eq!(off_bytes["metric"], "bytes_per_transaction");
        }
    }

    #[test]
    fn a_side_without_samples_is_an_error() {
        let mut out = Vec::new();
        let mut sink = Sink::new(&mut out, Format::Json);
        assert!(report(&mut sink, DatabaseLoad::MariaDbSysbench, &[vec![], vec![]]).is_err());
    }
}
