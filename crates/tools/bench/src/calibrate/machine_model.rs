//! The sheet of this machine, for `[host] machine` of a scenario: what can be measured from a
//! program, each number with how it was measured.

use std::fmt::Write as _;
use std::hint::black_box;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Instant;

use block::Step;
use event::AllowedCpus;
use time::Nanos;

use super::MachineCosts;
use crate::multicore::{Compute, MeasuredCosts};
use crate::{BenchError, RunLength, Samples, on_first_cpu};

/// Number of entries of the list whose traversal measures the first-level cache: 4 KiB.
const LIST: usize = 512;

/// Description of a machine whose file has no fixed place.
pub const ABOUT: &str = "the machine on which `sluice calibrate --sheet` ran";

/// Measures what the sheet needs beside `machine`, and returns the sheet (TOML) with a description
/// (`about`), which has neither `"` nor `\`.
///
/// # Errors
/// [`BenchError`] if a thread cannot be started, the block layer cannot be opened, or the system does
/// not say the clock rate.
pub fn measure(
    effort: RunLength,
    machine: &MachineCosts,
    about: &str,
) -> Result<String, BenchError> {
    let cpus = AllowedCpus::allowed();
    let ghz = clock_rate()?;
    let MeasuredCosts { compute, transfer } = MeasuredCosts::measure(effort, &cpus)?;
    let hit = on_first_cpu(&cpus, move || Ok(hit(effort)))?;
    let switch = switch(effort, &cpus)?;
    let instructions: u32 =
        Compute::OWNED_STEPS.iter().chain(&[Step::Poll]).map(|step| step.instructions()).sum();
    let per_instruction = compute.owned.time.0 as f64 * ghz / f64::from(instructions);
    let line = transfer.map_or(hit, |transfer| (transfer.0 as f64).max(hit));
    let wake = machine.threads.wake.p50.since(Nanos(switch as u64));
    let count = cpus.count();
    let mut text = String::new();
    let mut push = |line: String| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{line}");
    };
    let number = |key: &str, unit: &str, value: f64, source: &str| {
        format!("{key} = {{ {unit} = {value:.3}, source = \"{source}\" }}")
    };
    push("name = \"this\"".to_owned());
    push(format!("about = \"{about}\""));
    push("\n[processor]".to_owned());
    push(number("sockets", "value", 1.0, "assumed: not measured"));
    push(number("cores", "value", count as f64, "CPUs that the process may use"));
    let alone = "assumed: which CPUs share a core is not measured";
    push(number("threads_per_core", "value", 1.0, alone));
    push(number("ghz", "value", ghz, "/proc/cpuinfo, during the measurement"));
    let of_request = format!(
        "measured: {} ns for the {instructions} instructions of a request of the block layer",
        compute.owned.time.0
    );
    push(number("cycles_per_instruction", "value", per_instruction, &of_request));
    push(number("smt_percent", "value", 100.0, alone));
    push("\n[lines]".to_owned());
    push(number("hit", "ns", hit, "measured: a list in the first-level cache"));
    let transferred = match transfer {
        Some(_) => "measured: a line that two CPUs write in turn, half a round",
        None => "one CPU: as a hit",
    };
    for key in ["read_socket", "write_socket", "socket_shared"] {
        push(number(key, "ns", line, transferred));
    }
    push("\n[threads]".to_owned());
    push(number("switch", "ns", switch, "measured: two threads of one CPU that wait in turn"));
    let woken = "measured: the wake-up of a thread on another CPU, without the switch";
    push(number("remote_wake", "ns", wake.0 as f64, woken));
    Ok(text)
}

/// Returns the clock rate of the first CPU in GHz.
fn clock_rate() -> Result<f64, BenchError> {
    let text = std::fs::read_to_string("/proc/cpuinfo")?;
    let line = text.lines().find(|line| line.starts_with("cpu MHz"));
    let rate = line.and_then(|line| line.split(':').nth(1)?.trim().parse::<f64>().ok());
    let why = || BenchError::Setup("/proc/cpuinfo does not say the clock rate".to_owned());
    rate.map(|mhz| mhz / 1000.0).filter(|ghz| ghz.is_finite() && *ghz > 0.0).ok_or_else(why)
}

/// Returns the time of a load that depends on the one before, in nanoseconds.
fn hit(effort: RunLength) -> f64 {
    let list: Vec<usize> = (0..LIST).map(|index| (index + 1) % LIST).collect();
    let loads = effort.choose(1_000_000, 10_000);
    let samples = (0..9).map(|_| {
        let (start, mut at) = (Instant::now(), 0);
        for _ in 0..loads {
            at = black_box(&list)[at];
        }
        black_box(at);
        start.elapsed().as_nanos() as f64 / f64::from(loads)
    });
    Samples::new(samples.collect()).map_or(0.0, |samples| samples.median())
}

/// Returns the time from one thread of a CPU to another that waits for it, in nanoseconds.
fn switch(effort: RunLength, cpus: &AllowedCpus) -> Result<f64, BenchError> {
    let rounds = effort.choose(2_000u32, 50);
    on_first_cpu(cpus, move || {
        let (ping, pinged) = sync_channel::<()>(0);
        let (pong, ponged) = sync_channel::<()>(0);
        thread::scope(|scope| {
            // It inherits the CPU of this thread.
            let other = thread::Builder::new().spawn_scoped(scope, move || {
                while pinged.recv().is_ok() && pong.send(()).is_ok() {}
            })?;
            let mut times = Vec::new();
            for _ in 0..9 {
                let start = Instant::now();
                for _ in 0..rounds {
                    if ping.send(()).is_err() || ponged.recv().is_err() {
                        return Err(BenchError::Thread("the other thread"));
                    }
                }
                times.push(start.elapsed().as_nanos() as f64 / f64::from(2 * rounds));
            }
            drop(ping);
            other.join().map_err(|_| BenchError::Thread("the other thread"))?;
            Ok(Samples::new(times).map_or(0.0, |samples| samples.median()))
        })
    })
}

#[cfg(test)]
mod tests {
    use machine::MachineModel;

    use super::*;

    #[test]
    fn the_model_of_this_machine_parses() {
        let machine = MachineCosts::measure(RunLength::Quick).unwrap();
        let text = measure(RunLength::Quick, &machine, ABOUT).unwrap();
        let model = MachineModel::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!((model.name(), model.about()), ("this", ABOUT));
        assert!(model.costs().switch > Nanos::ZERO && model.has_thread_costs());
        assert!(model.costs().steps.picos(Step::Submit) > 0);
    }
}
