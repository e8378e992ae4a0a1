//! A job beside a flood of commands that no rule matches. Those that are parked wait for the timeout,
//! and the others end at once: none of them keeps the flash busy.

use std::fmt::Write as _;

use sim::SimOutcome;

use super::{BENCH, RECLAIM, STORE_AND_LOAD, drive, iops_of, outcome, p99_of};
use crate::{BenchError, Measurement, RunLength, Sink};

/// Share of its rate that a flood may cost a job.
const COST: f64 = 0.02;

const DRIVE: &str = "preset = \"femu-default\"\ndata = \"none\"\n\
    geometry = { channels = 2, pus = 2, chunks = 64, pages = 64 }\n";

/// Rates of missed commands per second.
const FLOODS: [u32; 3] = [10_000, 100_000, 500_000];

/// Runs reads of the first half of a drive, beside `flood` reads a second that miss.
fn reads(flood: u32, length: RunLength) -> Result<SimOutcome, BenchError> {
    let rules = format!("{STORE_AND_LOAD}{RECLAIM}");
    let program = rules.replace("header.read\n", "header.read and header.lba < db.sectors / 2\n");
    let runtime = length.choose("200ms", "20ms");
    let mut text = drive(DRIVE, Some(&program));
    let _ = write!(
        text,
        "rules.engines = 4\nrules.op = \"1ns\"\nrules.parked = 16\nrules.miss_timeout = \"10ms\"\n\
         [precondition]\nfill = \"sequential\"\n\
         [path]\nqueue_model = \"mq\"\ncores = 2\n\
         [[job]]\nname = \"reads\"\nrw = \"randread\"\nbs = \"4k\"\niodepth = 8\nsize = \"40%\"\n\
         norandommap = true\ntime_based = true\nruntime = \"{runtime}\"\n"
    );
    if flood > 0 {
        let _ = write!(
            text,
            "[[job]]\nname = \"missing\"\nrw = \"randread\"\nbs = \"4k\"\niodepth = 64\n\
             offset = \"60%\"\nsize = \"40%\"\nnorandommap = true\ntime_based = true\n\
             runtime = \"{runtime}\"\nrate_iops = {flood}\ncontinue_on_error = \"all\"\n"
        );
    }
    outcome(&text, Some(&program))
}

/// Measures the job alone, and beside floods.
///
/// # Errors
/// As for [`run_parts`](super::run_parts).
pub(super) fn run(length: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let alone = reads(0, length)?;
    let (iops, p99) = (iops_of(&alone, "reads"), p99_of(&alone, "reads"));
    let case = "reads, QD 8, alone";
    sink.push(Measurement::new(BENCH, case, "iops", iops, "1/s"))?;
    sink.push(Measurement::new(BENCH, case, "latency_p99", p99, "ns"))?;
    for flood in FLOODS {
        let beside = reads(flood, length)?;
        let case = format!("reads, QD 8, beside {flood} misses a second");
        let missed = beside.drives[0].drive.rules.as_ref().map_or(0, |rules| rules.misses);
        let rate = missed as f64 / beside.elapsed.as_secs_f64();
        sink.push(Measurement::new(BENCH, &case, "misses_per_second", rate, "1/s"))?;
        let row = Measurement::new(BENCH, &case, "iops", iops_of(&beside, "reads"), "1/s");
        let row = row.with_reference("alone", iops);
        sink.push(match length {
            RunLength::Full => row.at_least((1.0 - COST) * iops),
            RunLength::Quick => row,
        })?;
        let row = Measurement::new(BENCH, &case, "latency_p99", p99_of(&beside, "reads"), "ns");
        let row = row.with_reference("alone", p99);
        sink.push(match length {
            RunLength::Full => row.at_most((1.0 + COST) * p99),
            RunLength::Quick => row,
        })?;
    }
    Ok(())
}
