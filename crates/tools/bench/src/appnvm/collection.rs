//! Garbage collection by a rule, beside the policy of the drive, in virtual time.

use sim::SimOutcome;

use super::{BENCH, RECLAIM, STORE_AND_LOAD, drive, outcome, setup};
use crate::{BenchError, Measurement, RunLength, Sink};

const DRIVE: &str = "preset = \"femu-default\"\ndata = \"none\"\nwrite_buffer.size = \"1M\"\n\
    geometry = { channels = 2, pus = 2, chunks = 64, pages = 32 }\n";

/// Measures the collection of random overwrites.
///
/// # Errors
/// As for [`run_parts`](super::run_parts).
pub(super) fn run(length: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let random = format!(
        "[precondition]\nfill = \"sequential\"\n\
         [[job]]\nname = \"writes\"\nrw = \"randwrite\"\nbs = \"4k\"\niodepth = 32\n\
         norandommap = true\nio_size = \"{}%\"\n",
        length.choose(1000, 200)
    );
    let program = format!("{STORE_AND_LOAD}{RECLAIM}");
    let policy = write_amplification(&run_one(None, &random)?)?;
    let rule = write_amplification(&run_one(Some(&program), &random)?)?;
    let case = "4 KB random overwrites";
    let row = |name: &str, value| {
        let case = format!("{case}, greedy {name}");
        Measurement::new(BENCH, case, "write_amplification", value, "")
    };
    sink.push(row("policy", policy))?;
    sink.push(row("rule", rule).with_reference("policy", policy).within(0.01, policy))
}

/// Runs jobs on the drive, with a program if there is one.
fn run_one(program: Option<&str>, jobs: &str) -> Result<SimOutcome, BenchError> {
    outcome(&format!("{}{jobs}", drive(DRIVE, program)), program)
}

/// Returns the programmed sectors per written sector.
pub(super) fn write_amplification(outcome: &SimOutcome) -> Result<f64, BenchError> {
    let ftl = outcome.paths.first().and_then(|path| path.ftl);
    let amplification = ftl.and_then(|ftl| ftl.write_amplification());
    amplification.ok_or_else(|| setup("the drive wrote nothing"))
}
