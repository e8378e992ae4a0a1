//! A page-mapped drive of three rules [Thesis15 ch. 7 table 1] beside the block personality, in real time:
//! one host thread and one drive thread, on media that take no time.

use scenario::Scenario;

use super::{BENCH, RECLAIM, STORE_AND_LOAD, drive, scenario};
use crate::real_time::run_live;
use crate::samples::interleaved;
use crate::{BenchError, Measurement, RunLength, Sink};

/// Share of the rate of the block personality that a drive with rules must reach.
const SHARE: f64 = 0.95;

/// Commands per second that the engine is to decide about.
const AIM: f64 = 5e6;

const DRIVE: &str = "preset = \"femu-default\"\ndata = \"none\"\n\
    geometry = { channels = 2, pus = 2, chunks = 64, pages = 64 }\n\
    timing = { read = 0, program = 0, erase = 0, channel = 0 }\n";

/// Measures reads and writes.
///
/// # Errors
/// As for [`run_parts`](super::run_parts).
pub(super) fn run(length: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let program = format!("{STORE_AND_LOAD}{RECLAIM}");
    let text =
        |program| format!("{}[precondition]\nfill = \"sequential\"\n", drive(DRIVE, program));
    let block = scenario(&text(None), None)?;
    let rules = scenario(&text(Some(&program)), Some(&program))?;
    let times = length.choose(["2s", "200ms"], ["50ms", "10ms"]);
    for (rw, depth) in [("randread", 256), ("randwrite", 64)] {
        let rate = |scenario: &Scenario| Ok(run_live(scenario, rw, depth, times)?.iops);
        let rounds = length.choose(5, 1);
        let [of_block, of_rules] =
            interleaved(rounds, [&mut || rate(&block), &mut || rate(&rules)])?;
        let load = format!("4 KB {rw}, QD {depth}");
        for (name, samples) in [("block", &of_block), ("rules", &of_rules)] {
            let row = Measurement::median(BENCH, format!("{name}, {load}"), "iops", samples, "1/s");
            sink.push(row.with_reference("aim", AIM))?;
        }
        let share = of_rules.median() / of_block.median();
        let row = Measurement::new(BENCH, format!("rules, {load}"), "share_of_block", share, "");
        let row = row.with_reference("block personality", 1.0);
        sink.push(match length {
            RunLength::Full => row.at_least(SHARE),
            RunLength::Quick => row,
        })?;
    }
    Ok(())
}
