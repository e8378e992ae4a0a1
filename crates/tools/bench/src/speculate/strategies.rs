//! [Spec14 fig. 1] in virtual time: which strategy wins, by the latency of the device and the work of
//! the program between its writes.
//!
//! A write costs the core what it does besides the work of programs: polls, switches, checkpoints, the
//! stack. While the program waits asleep, another one works. Closed forms, with the device's time D, the window W in which the program may go on, the
//! checkpoint's time S and the two switches Y that giving the core away takes:
//!
//! | strategy | cost | wins against blocking | wins against yielding |
//! |---|---|---|---|
//! | block | D | | D < Y |
//! | yield | Y | D > Y | |
//! | speculate | S + max(0, D − W) | D > S, if S < W | D < W + Y − S |
//!
//! The classes of programs are those of [Spec14 table 2], by their instructions from a write to the next
//! effect. A program whose files are a part of what goes on passes its writes, and stops at outputs only.

use std::path::Path;

use machine::MachineModel;
use scenario::Scenario;
use sim::{SimOptions, SimOutcome, simulate};
use time::Nanos;

use super::BENCH;
use crate::{BenchError, Measurement, RunLength, Sink};

const MACHINE: &str = "i7-4770";

/// A class of programs: its name, and its instructions from a write to the next effect.
struct Class {
    name: &'static str,
    instructions: u32,
}

const CLASSES: [Class; 3] = [
    Class { name: "pure I/O", instructions: 100 },
    Class { name: "I/O intensive", instructions: 10_000 },
    Class { name: "compute intensive", instructions: 1_000_000 },
];

/// Latencies of the device, in nanoseconds.
const LATENCIES: [u64; 16] = [
    100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000,
    1_000_000, 2_000_000, 5_000_000, 10_000_000,
];
const QUICK_LATENCIES: [u64; 3] = [500, 10_000, 1_000_000];

/// Writes of a run that searches for a crossing: in the first ones the scheduler still gives the other
/// program its share.
const CROSSING_WRITES: u32 = 4000;

/// Latencies of [Spec14]: 5 to 20 us.
const MICROSECONDS: [u64; 3] = [5_000, 10_000, 20_000];

/// The entry of a hardware transaction takes less than 20 ns [Spec14 §4.3].
const TRANSACTION: u64 = 20;

/// Writes from one output to the next, of a program whose files are a part of what goes on.
const OUTPUTS: u32 = 10;

/// A strategy with its parameters.
#[derive(Clone, Copy)]
struct Variant {
    name: &'static str,
    strategy: &'static str,
    checkpoint_ns: u64,
    outputs: u32,
}

const BLOCK: Variant = Variant { name: "block", strategy: "block", checkpoint_ns: 0, outputs: 1 };
const YIELD: Variant = Variant { name: "yield", strategy: "yield", checkpoint_ns: 0, outputs: 1 };
const SPECULATE: Variant =
    Variant { name: "speculate", strategy: "speculate", checkpoint_ns: 0, outputs: 1 };
const IN_TRANSACTIONS: Variant =
    Variant { name: "speculate, in transactions", checkpoint_ns: TRANSACTION, ..SPECULATE };
const PAST_WRITES: Variant =
    Variant { name: "speculate, past writes", outputs: OUTPUTS, ..SPECULATE };

/// Measures the strategies.
///
/// # Errors
/// If a scenario cannot be run, or the output fails.
pub(super) fn run(length: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let writes = length.choose(4000, 400);
    let latencies: &[u64] = length.choose(&LATENCIES, &QUICK_LATENCIES);
    for class in &CLASSES {
        for latency in latencies {
            for variant in [BLOCK, YIELD, SPECULATE, PAST_WRITES] {
                let case = case(class, *latency, variant);
                let row = |metric, value, unit| Measurement::new(BENCH, &case, metric, value, unit);
                let lost = lost_ns(class, variant, *latency, writes)?;
                sink.push(row("core_time_per_write", lost, "ns"))?;
                let rate = writes_per_second(class, variant, *latency, writes)?;
                sink.push(row("writes_per_second", rate, "1/s"))?;
            }
        }
        crossings(class, sink)?;
    }
    let class = &CLASSES[1];
    for latency in MICROSECONDS {
        let rate = |variant| writes_per_second(class, variant, latency, writes);
        let best = f64::max(rate(BLOCK)?, rate(YIELD)?);
        for (variant, least) in [(SPECULATE, None), (PAST_WRITES, Some(1.3))] {
            let times = rate(variant)? / best;
            let row =
                Measurement::new(BENCH, case(class, latency, variant), "times_the_best", times, "");
            let row = row.with_reference("better of block and yield", 1.0);
            sink.push(match least {
                Some(least) => row.at_least(least),
                None => row,
            })?;
        }
    }
    Ok(())
}

fn case(class: &Class, latency: u64, variant: Variant) -> String {
    format!("{}, device {} us, {}", class.name, latency as f64 / 1000.0, variant.name)
}

/// Measures the latencies at which two variants cost the same.
fn crossings(class: &Class, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let model = MachineModel::built_in(MACHINE).ok_or_else(|| setup("no such machine"))?;
    let costs = model.costs();
    let given_away = Nanos(2 * costs.switch.0) + costs.interrupt_entry + costs.interrupt_exit;
    let (window, given_away) =
        (model.instructions(class.instructions.into()).0 as f64, given_away.0 as f64);
    let transaction = TRANSACTION as f64;
    for (first, second, form) in [
        (BLOCK, YIELD, Some(given_away)),
        (SPECULATE, YIELD, Some(window + given_away)),
        (IN_TRANSACTIONS, YIELD, Some(window + given_away - transaction)),
        (IN_TRANSACTIONS, BLOCK, (transaction < window).then_some(transaction)),
    ] {
        let Some(form) = form else { continue };
        let lost = |variant, latency| lost_ns(class, variant, latency, CROSSING_WRITES);
        let (mut low, mut high) = ((form / 4.0) as u64, (4.0 * form) as u64);
        let is_first =
            |latency| Ok::<_, BenchError>(lost(first, latency)? < lost(second, latency)?);
        let is_first_below = is_first(low)?;
        while high - low > 1 {
            let middle = u64::midpoint(low, high);
            match is_first(middle)? == is_first_below {
                true => low = middle,
                false => high = middle,
            }
        }
        let case = format!("{}, {} against {}", class.name, first.name, second.name);
        let row = Measurement::new(BENCH, case, "crossing", high as f64, "ns");
        sink.push(row.with_reference("closed form", form).within(0.1, form))?;
    }
    Ok(())
}

/// Returns the writes per second of a program that is alone on its core.
fn writes_per_second(
    class: &Class,
    variant: Variant,
    latency: u64,
    writes: u32,
) -> Result<f64, BenchError> {
    let outcome = simulated(&program(class, variant, latency, writes))?;
    Ok(f64::from(writes) * 1e9 / outcome.elapsed.0.max(1) as f64)
}

/// Returns the time of a core per write besides the work of programs, in nanoseconds. Another program
/// works whenever this one does not.
fn lost_ns(class: &Class, variant: Variant, latency: u64, writes: u32) -> Result<f64, BenchError> {
    let model = MachineModel::built_in(MACHINE).ok_or_else(|| setup("no such machine"))?;
    let compute = model.instructions(class.instructions.into()).0;
    // It ends after the program.
    let time = 2 * u64::from(writes) * (compute + latency + 20_000);
    let other = format!(
        "[[process]]\npath = \"other\"\nrw = \"write\"\nbs = \"4k\"\nnumber_ios = 1\n\
         strategy = \"block\"\ncompute = \"{time}ns\"\ncore = 0\n"
    );
    let outcome = simulated(&(program(class, variant, latency, writes) + &other))?;
    let machine = outcome.diagnostics.machine.as_ref();
    let machine = machine.ok_or_else(|| setup("a run without its machine"))?;
    let processes = outcome.paths.iter().flat_map(|path| machine.processes(&path.name));
    let worked: u64 = processes.flatten().map(|process| process.compute.0).sum();
    let busy: u64 = machine.core_times().iter().map(|times| times.busy().0).sum();
    Ok(busy.saturating_sub(worked) as f64 / f64::from(writes))
}

/// Returns the scenario of a program in one variant on a device of one latency, with a path for another
/// program.
fn program(class: &Class, variant: Variant, latency: u64, writes: u32) -> String {
    let Variant { strategy, checkpoint_ns, outputs, .. } = variant;
    let drive = |name: &str, latency: u64| {
        format!(
            "[[drive]]\nname = \"{name}\"\npersonality = \"null\"\ncapacity = \"64M\"\n\
             null = {{ latency = \"{latency}ns\" }}\n[[path]]\nname = \"{name}\"\nover = \"{name}\"\n"
        )
    };
    let speculates = match strategy {
        "speculate" => format!("checkpoint = \"{checkpoint_ns}ns\"\noutputs = {outputs}\n"),
        _ => String::new(),
    };
    format!(
        "{}{}[host]\nmachine = \"{MACHINE}\"\nkernel = \"linux-nvme-2012\"\n\
         [[process]]\npath = \"main\"\nrw = \"randwrite\"\nbs = \"4k\"\nsize = \"64m\"\n\
         norandommap = true\nnumber_ios = {writes}\ncore = 0\nstrategy = \"{strategy}\"\n\
         compute = {}\n{speculates}",
        drive("main", latency),
        drive("other", 0),
        class.instructions,
    )
}

fn simulated(text: &str) -> Result<SimOutcome, BenchError> {
    let scenario = Scenario::parse(Path::new("strategies"), text).map_err(setup)?;
    simulate(&scenario, SimOptions::default()).map_err(setup)
}

fn setup(problem: impl std::fmt::Display) -> BenchError {
    BenchError::Setup(problem.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::Format;

    fn rows() -> Vec<Value> {
        let mut out = Vec::new();
        let mut sink = Sink::new(&mut out, Format::Json);
        run(RunLength::Quick, &mut sink).unwrap();
        sink.finish().unwrap();
        let text = String::from_utf8(out).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn results_are_repeatable_and_the_variants_cross_where_their_closed_forms_do() {
        let rows = rows();
        assert_eq!(rows, super::tests::rows());
        let crossings = rows.iter().filter(|row| row["metric"] == "crossing").count();
        assert_eq!(crossings, 4 + 4 + 3);
        for row in &rows {
            assert_ne!(row["verdict"], "fail", "{row}");
        }
    }
}
