//! Group `ring`: nanoseconds per command through a queue pair in process, without the cost of the
//! drive.
//!
//! Bounds are ratios within the run. On one thread a queue pair, which has tags, costs at most 1.3 times what bare rings
//! cost. Between two threads it is faster than a condition variable, and carries more than a channel.

pub mod hand_off;
pub mod one_thread;
pub mod two_threads;

use event::AllowedCpus;

use super::{BenchError, Measurement, RunLength, Samples, Sink};

const BENCH: &str = "ring";

/// The largest cost of a queue pair, as a multiple of that of bare rings.
const TAGS_MAX: f64 = 1.3;

/// Measures the group.
///
/// # Errors
/// When the system refuses memory or threads, or the output fails.
pub fn run(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    for batch in [1, 8, 32] {
        one_thread::measure(effort, batch, sink)?;
    }
    let cores = AllowedCpus::allowed();
    if !cores.has_two() {
        eprintln!("one CPU only: host and drive cannot spin side by side, which is not measured");
        return Ok(());
    }
    two_threads::round_trip(effort, &cores, sink)?;
    for depth in [32, 128] {
        two_threads::throughput(effort, &cores, depth, sink)?;
    }
    Ok(())
}

/// Pushes the median of `samples` beside that of a reference, and how far apart the samples are; the median is at most
/// `most`.
fn push(
    sink: &mut Sink<'_>,
    case: &str,
    samples: &Samples,
    (what, reference): (&str, &Samples),
    most: Option<f64>,
) -> Result<(), BenchError> {
    let median = Measurement::median(BENCH, case, "ns_per_command", samples, "ns");
    let median = median.with_reference(what, reference.median());
    sink.push(match most {
        Some(most) => median.at_most(most),
        None => median,
    })?;
    let spread = samples.spread() * 100.0;
    sink.push(Measurement::new(BENCH, case, "ns_per_command_spread", spread, "%"))
}
