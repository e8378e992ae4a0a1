//! Time of a 4 KB request by component ([Thesis15 ch. 6 §6.1.2], table 2), in real time.
//!
//! The components are differences of medians of paths that take turns: the driver alone, the block
//! layer over it, and the block layer over the target. Each has a submission, until the doorbell is
//! rung, and a completion. A write is complete when the target has it in its buffer; the program of
//! it is counted where it happens. The submission of a write thus contains its share of the
//! commands to the drive.
//!
//! | component | paper, reads | paper, writes |
//! |---|---|---|
//! | block layer, submission (map, insert, schedule) | 61 + 125 + 86 ns | 61 + 125 + 86 ns |
//! | block layer, completion | 61 ns | 61 ns |
//! | target, submission (translation) | 45 ns | 211 ns |
//! | target, completion | 93 ns | 97 ns |
//!
//! The paper's sums are 333 ns for the block layer, 308 ns for writes of the target, and 138 ns for
//! its reads, where its text has 133 ns. That text is the reference of the sum.

use event::AllowedCpus;

use super::super::{BenchError, Measurement, RunLength, Samples, Sink, interleave, on_first_cpu};
use super::BENCH;
use super::echo_path::{EchoLoad, EchoPath, EchoPaths, HostCost};

/// Nanoseconds of a request by component.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestComponents {
    layer_submission: u64,
    layer_completion: u64,
    write_translation: u64,
    write_completion: u64,
}

/// Table 2.
pub(super) const PAPER: RequestComponents = RequestComponents {
    layer_submission: 61 + 125 + 86,
    layer_completion: 61,
    write_translation: 211,
    write_completion: 97,
};

impl RequestComponents {
    /// Returns the host's nanoseconds to submit a write.
    pub(super) fn write_submission(&self) -> u64 {
        self.layer_submission + self.write_translation
    }

    /// Returns the host's nanoseconds to complete a write.
    pub(super) fn write_completion(&self) -> u64 {
        self.layer_completion + self.write_completion
    }
}

/// The paths in the order of measurement.
const PATHS: [(EchoPath, &str); 3] = [
    (EchoPath::Driver, "driver"),
    (EchoPath::WithoutTarget, "block layer and driver"),
    (EchoPath::WithTarget, "block layer, target and driver"),
];

/// Measures reads and writes.
///
/// # Errors
/// As for [`run_parts`](super::run_parts).
pub fn run(length: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let rows = on_first_cpu(&AllowedCpus::allowed(), || measure(length))?;
    rows.into_iter().try_for_each(|row| sink.push(row))
}

/// Medians of a path.
struct PathMedians {
    submission: f64,
    completion: f64,
    total: f64,
}

fn measure(length: RunLength) -> Result<Vec<Measurement>, BenchError> {
    let mut paths = EchoPaths::new(length)?;
    let mut rows = Vec::new();
    let layer = [PAPER.layer_submission as f64, PAPER.layer_completion as f64, 333.0];
    let writes = [PAPER.write_translation as f64, PAPER.write_completion as f64, 308.0];
    for (what, write_percent, target) in [("read", 0, [45.0, 93.0, 133.0]), ("write", 100, writes)]
    {
        let load = EchoLoad { sectors: 1, write_percent };
        let taken = interleave(length.choose(301, 3), PATHS.len(), |which| {
            paths.sample(PATHS[which].0, load)
        })?;
        let mut medians = Vec::new();
        for ((_, path), costs) in PATHS.iter().zip(taken) {
            let case = format!("request, 4 KB {what}, {path}");
            medians.push(path_rows(&case, &costs, &mut rows)?);
        }
        let [driver, without, with] = &medians[..] else {
            return Err(BenchError::Thread("interleaved measuring"));
        };
        for (component, above, below, paper) in
            [("block layer", without, driver, layer), ("target", with, without, target)]
        {
            let differences = [
                above.submission - below.submission,
                above.completion - below.completion,
                above.total - below.total,
            ];
            let case = format!("request, 4 KB {what}, {component}");
            let metrics = ["submission_adds", "completion_adds", "total_adds"];
            for ((metric, value), paper) in metrics.into_iter().zip(differences).zip(paper) {
                let row = Measurement::new(BENCH, &case, metric, value, "ns");
                rows.push(row.with_reference("paper", paper));
            }
        }
    }
    Ok(rows)
}

fn path_rows(
    case: &str,
    costs: &[HostCost],
    rows: &mut Vec<Measurement>,
) -> Result<PathMedians, BenchError> {
    let mut median = |metric, of: fn(&HostCost) -> f64| {
        let none = || BenchError::NoValue { case: case.into(), metric };
        let samples = Samples::new(costs.iter().map(of).collect()).ok_or_else(none)?;
        rows.push(Measurement::median(BENCH, case, metric, &samples, "ns"));
        Ok::<_, BenchError>(samples.median())
    };
    Ok(PathMedians {
        submission: median("submission", |cost| cost.submission_ns)?,
        completion: median("completion", |cost| cost.completion_ns)?,
        total: median("total", |cost| cost.total_ns())?,
    })
}
