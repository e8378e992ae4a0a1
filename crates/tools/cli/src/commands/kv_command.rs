//! `sluice kv bench`.

use std::io;
use std::path::Path;

use bench::kv::harness::{KvHarness, NamedHarnessError};
use bench::kv::{puts, ycsb};
use bench::{ExpectedMisses, Format, RunLength, Sink};
use kv::KvConfig;
use scenario::Scenario;
use scenario::choice::Impossible;
use stack::named_target::NamedError;
use stack::with_overlay;
use workload::ycsb::YcsbWorkload;

use crate::CliError;
use crate::args::{KvArgs, KvBenchArgs, KvWorkload};

/// Drive of the YCSB workloads if no scenario is given.
const DRIVE: &str = "[drive]\npreset = \"ocssd-mlc-128pu-small\"\ndata = \"memory\"\n";

/// Runs `sluice kv …`.
///
/// # Errors
/// [`CliError`] for invalid arguments or scenarios, and for a benchmark that cannot run.
pub fn run(args: &KvArgs) -> Result<(), CliError> {
    let KvArgs::Bench(args) = args;
    bench(args)
}

fn bench(args: &KvBenchArgs) -> Result<(), CliError> {
    let scenario = args.scenario.as_deref().map(crate::load_scenario).transpose()?;
    let own = Scenario::parse(Path::new("kv bench"), DRIVE)?;
    let plan = &scenario.as_ref().unwrap_or(&own).drives[0];
    if let Some(scenario) = &scenario
        && scenario.drives.len() > 1
    {
        let count = scenario.drives.len();
        return Err(CliError::Usage(format!("kv bench takes one drive, not {count}")));
    }
    Impossible::check_nvme(plan, "kv bench")
        .map_err(|why| CliError::Usage(format!("{why}: {}", why.help())))?;
    let named = plan.target.name();
    if let (Some(asked), Some(name)) = (&args.name, named)
        && asked != name
    {
        let drive = &plan.config.name;
        return Err(CliError::Usage(format!(
            "--name says target {asked} of drive {drive}, and the scenario's [target] says {name}"
        )));
    }
    let target = args.name.as_deref().or(named);
    if let (Some(name), KvWorkload::All | KvWorkload::Puts) = (target, args.workload) {
        return Err(CliError::Usage(format!(
            "target {name} keeps what a workload puts, and each begins with an empty one: say which, \
             --workload a to f"
        )));
    }
    let defaults = KvConfig::default();
    let config = KvConfig {
        active_pus: args.active_pus,
        over_provisioning: args.over_provisioning.unwrap_or(defaults.over_provisioning),
        queue_depth: 16_384,
        ..defaults
    };
    let expected = ExpectedMisses::load(args.bounds.expected.as_deref())?;
    let effort = if args.quick { RunLength::Quick } else { RunLength::Full };
    let run = ycsb::YcsbRun {
        records: args.records.unwrap_or(effort.choose(100_000, 20_000)),
        operations: args.operations.unwrap_or(effort.choose(100_000, 1_000)),
        value_bytes: args.value_bytes,
        depth: args.depth,
        real: args.real,
        seed: args.seed.unwrap_or(scenario.as_ref().map_or(own.seed, |s| s.seed)),
    };
    let mut out = io::stdout().lock();
    let mut sink = Sink::new(&mut out, if args.json { Format::Json } else { Format::Table });
    let workloads: &[YcsbWorkload] = match args.workload {
        KvWorkload::All => &YcsbWorkload::ALL,
        KvWorkload::Puts => &[],
        KvWorkload::One(workload) => &[workload],
    };
    for workload in workloads {
        let harness = match target {
            Some(name) => KvHarness::named(plan, name, config).map_err(|error| match error {
                NamedHarnessError::Named(NamedError::Scenario(e)) => CliError::Scenario(e),
                NamedHarnessError::Named(e) if e.is_usage() => CliError::Usage(e.to_string()),
                NamedHarnessError::NotEmpty { .. } => CliError::Usage(error.to_string()),
                error => CliError::Other(error.to_string()),
            })?,
            // Data on an image must not be overwritten.
            None => KvHarness::build(&with_overlay(plan), config)?,
        };
        ycsb::run(harness, *workload, &run, &mut sink)?;
    }
    if matches!(args.workload, KvWorkload::All | KvWorkload::Puts) {
        let given = scenario.as_ref().map(|s| with_overlay(&s.drives[0]));
        puts::run(given.as_ref(), config, effort, &mut sink)?;
    }
    expected.judge(&sink.finish()?)?;
    Ok(())
}
