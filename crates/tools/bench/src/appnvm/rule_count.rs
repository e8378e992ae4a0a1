//! Commands by the number of rules that are tried before the one that matches, with and without misses.
//!
//! An operation of the engine takes 10 ns here, so that the engine bounds the rate: the closed form is
//! `engines / (operations of a command × 10 ns)`. The CPU time is that of the emulator, in which
//! operations take no time.

use std::fmt::Write as _;

use controller::DriveRuleStats;
use sim::SimOutcome;

use super::{BENCH, RECLAIM, STORE_AND_LOAD, drive, iops_of, outcome, setup};
use crate::{BenchError, Measurement, RunLength, Sink};

/// Nanoseconds of an operation.
const OP_NS: f64 = 10.0;

const DRIVE: &str = "preset = \"femu-default\"\ndata = \"none\"\n\
    geometry = { channels = 2, pus = 2, chunks = 64, pages = 64 }\n\
    timing = { read = 0, program = 0, erase = 0, channel = 0 }\n";

/// Numbers of rules.
const COUNTS: [u32; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
const QUICK_COUNTS: [u32; 3] = [1, 16, 256];

/// Returns a program whose `count` rules for reads are tried one after the other; the last one matches, if
/// the read begins in the first half of the drive.
fn program(count: u32) -> String {
    let mut text = format!("{STORE_AND_LOAD}{RECLAIM}");
    text = text.replace("header.read\n", "header.read and header.lba < db.sectors / 2\n");
    for rule in 1..count {
        let _ = write!(
            text,
            "rule never_{rule} priority {rule}\n  when channel.app == db and header.read and \
             header.lba == 1000000000000 + {rule}\n  do complete invalid\n"
        );
    }
    text
}

/// Runs reads of the first half of a drive, and `missing` outstanding reads of the second half, which
/// miss.
fn reads(
    count: u32,
    engines: u32,
    missing: u32,
    length: RunLength,
) -> Result<SimOutcome, BenchError> {
    let program = program(count);
    let mut text = drive(DRIVE, Some(&program));
    let _ = write!(
        text,
        "rules.engines = {engines}\nrules.op = \"10ns\"\nrules.miss_timeout = \"0\"\n\
         [precondition]\nfill = \"sequential\"\n\
         [[job]]\nname = \"reads\"\nrw = \"randread\"\nbs = \"4k\"\niodepth = 64\nsize = \"40%\"\n\
         norandommap = true\ntime_based = true\nruntime = \"{}\"\n",
        length.choose("20ms", "2ms")
    );
    if missing > 0 {
        let _ = write!(
            text,
            "[[job]]\nname = \"missing\"\nrw = \"randread\"\nbs = \"4k\"\niodepth = {missing}\n\
             offset = \"60%\"\nsize = \"40%\"\nnorandommap = true\ntime_based = true\n\
             runtime = \"{}\"\ncontinue_on_error = \"all\"\n",
            length.choose("20ms", "2ms")
        );
    }
    outcome(&text, Some(&program))
}

/// Returns the counters of the rules of the drive.
fn stats(outcome: &SimOutcome) -> Result<&DriveRuleStats, BenchError> {
    let drive = outcome.drives.first().and_then(|drive| drive.drive.rules.as_ref());
    drive.ok_or_else(|| setup("the drive has no rules"))
}

/// Measures the rates.
///
/// # Errors
/// As for [`run_parts`](super::run_parts).
pub(super) fn run(length: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    for count in *length.choose(&&COUNTS[..], &&QUICK_COUNTS[..]) {
        for engines in [1, 4] {
            let outcome = reads(*count, engines, 0, length)?;
            let stats = stats(&outcome)?;
            let ops = stats.ops as f64 / stats.inputs as f64;
            let form = f64::from(engines) * 1e9 / (ops * OP_NS);
            let case = format!("{count} rules, {engines} engines");
            let row = Measurement::new(BENCH, &case, "iops", iops_of(&outcome, "reads"), "1/s");
            sink.push(row.with_reference("closed form", form).within(0.01, form))?;
            let row = Measurement::new(BENCH, &case, "operations_per_command", ops, "");
            sink.push(row)?;
        }
        // A ninth of the commands misses: they wait for the engine in the order of arrival.
        let outcome = reads(*count, 4, 8, length)?;
        let case = format!("{count} rules, 4 engines, 8 outstanding reads miss beside 64");
        let row = |metric, value| Measurement::new(BENCH, &case, metric, value, "1/s");
        sink.push(row("iops", iops_of(&outcome, "reads")))?;
        let seconds = outcome.elapsed.as_secs_f64();
        sink.push(row("misses_per_second", stats(&outcome)?.misses as f64 / seconds))?;
    }
    Ok(())
}
