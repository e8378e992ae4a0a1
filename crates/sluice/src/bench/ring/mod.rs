//! Group `ring`: nanoseconds per command through a queue pair in process, without the cost of the
//! drive.

pub mod hand_off;
pub mod one_thread;
pub mod two_threads;

use super::{AllowedCpus, BenchError, Measurement, RunLength, Samples, Sink};

const BENCH: &str = "ring";

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

/// Writes the median of `samples` with its reference, and the spread of the samples.
fn push(
    sink: &mut Sink<'_>,
    case: &str,
    samples: &Samples,
    (what, reference): (&str, &Samples),
) -> Result<(), BenchError> {
    let median = Measurement::new(BENCH, case, "ns_per_command", samples.median(), "ns");
    sink.push(median.with_reference(what, reference.median()))?;
    let spread = samples.spread() * 100.0;
    sink.push(Measurement::new(BENCH, case, "ns_per_command_spread", spread, "%"))
}
