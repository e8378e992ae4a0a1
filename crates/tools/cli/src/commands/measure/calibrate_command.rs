//! `sluice calibrate`.

use bench::RunLength;
use bench::calibrate::{MachineCosts, drive_run, machine_model, report, verdict};

use crate::args::CalibrateArgs;
use crate::output::{Output, is_standard};
use crate::{CliError, load_scenario, print_or_stderr};

/// Runs `sluice calibrate …`.
///
/// # Errors
/// [`CliError`] for an invalid scenario, a failed measurement, or a file that cannot be written.
pub fn run(args: &CalibrateArgs) -> Result<(), CliError> {
    // Report errors in the scenario before the measurement.
    let scenario = args.scenario.as_deref().map(load_scenario).transpose()?;
    let mut output = args.json.as_deref().map(Output::open).transpose()?;
    let mut model_output = args.machine_model.as_deref().map(Output::open).transpose()?;
    let effort = if args.quick { RunLength::Quick } else { RunLength::Full };
    let machine = MachineCosts::measure(effort)?;
    let judged = scenario.as_ref().map(|scenario| {
        let clock_read = machine.threads.clock_read;
        let measure = |plan| drive_run::measure(effort, plan, clock_read);
        let costs: Vec<_> = scenario.drives.iter().map(measure).collect();
        let verdicts = verdict::judge(scenario, &machine, &costs);
        (scenario, costs, verdicts)
    });
    let judged =
        judged.as_ref().map(|(scenario, costs, verdicts)| (*scenario, &costs[..], &verdicts[..]));
    if let Some(output) = &mut model_output {
        output.write(&machine_model::measure(effort, &machine, machine_model::ABOUT)?)?;
    }
    let outputs = [&args.json, &args.machine_model];
    let is_taken = outputs.iter().any(|path| path.as_deref().is_some_and(is_standard));
    let told = print_or_stderr(&report::text(&machine, judged), is_taken);
    match &mut output {
        Some(output) => told.and(output.write(&format!("{:#}\n", report::json(&machine, judged)))),
        None => told,
    }
}
