//! `sluice drive show`, `sluice drive presets` and `sluice drive precondition`.

use std::path::Path;

use scenario::Scenario;
use scenario::format::{bytes_binary, printable};
use scenario::presets;
use scenario::presets::Preset;
use sim::analytic::summary::summary;
use stack::{PrepareError, PrepareEvent, StateUse, keep_states};

use crate::args::{DriveArgs, DrivePreconditionArgs, DriveShowArgs};
use crate::progress::Progress;
use crate::{CliError, print};

impl From<PrepareError> for CliError {
    fn from(error: PrepareError) -> CliError {
        match error.is_usage() {
            true => CliError::Usage(error.to_string()),
            false => CliError::Other(error.to_string()),
        }
    }
}

/// Runs `sluice drive …`.
///
/// # Errors
/// [`CliError`] for an invalid scenario or an unknown preset.
pub fn run(args: &DriveArgs) -> Result<(), CliError> {
    match args {
        DriveArgs::Presets => print(&presets::listing()),
        DriveArgs::Show(args) => {
            let scenario = load(args)?;
            let sheets: Vec<String> = scenario.drives.iter().map(summary).collect();
            print(&sheets.join("\n"))
        }
        DriveArgs::Precondition(args) => precondition(args),
    }
}

/// Preconditions the drives of a scenario and keeps their states.
fn precondition(args: &DrivePreconditionArgs) -> Result<(), CliError> {
    let mut scenario = crate::load_scenario(&args.scenario)?;
    if let Some(seed) = args.seed {
        scenario.set_seed(seed);
    }
    args.states.apply_always(&mut scenario)?;
    let mut bar: Option<Progress> = None;
    let mut lines = String::new();
    let mut failed = None;
    keep_states(&scenario, &mut |event| match event {
        PrepareEvent::Preconditioning(name, part) => {
            let what = format!("preconditioning {name}");
            if bar.as_ref().is_none_or(|bar| bar.what() != what) {
                bar = Some(Progress::new(what));
            }
            if let Some(line) = bar.as_mut().and_then(|bar| bar.set(part)) {
                eprintln!("{}", printable(&line));
            }
        }
        PrepareEvent::ImageKept(_) => {}
        PrepareEvent::State(name, used) => {
            bar = None;
            match used {
                StateUse::Loaded(path) => lines += &format!("{name}: {}\n", path.display()),
                StateUse::Kept(path, bytes) => {
                    lines += &format!("{name}: {} ({})\n", path.display(), bytes_binary(*bytes));
                }
                StateUse::NotKept(why) => {
                    failed =
                        failed.take().or(Some(format!("{name}: the state is not kept: {why}")));
                }
            }
        }
    })?;
    print(&lines)?;
    failed.map_or(Ok(()), |message| Err(CliError::Other(message)))
}

fn load(args: &DriveShowArgs) -> Result<Scenario, CliError> {
    match (&args.scenario, &args.preset) {
        (Some(file), _) => match file.to_str().and_then(presets::find) {
            Some(preset) if !file.exists() => preset_scenario(preset),
            _ => Ok(crate::load_scenario(file)?),
        },
        (None, Some(name)) => match presets::find(name) {
            Some(preset) => preset_scenario(preset),
            None => Err(CliError::Usage(format!("no preset `{}`", printable(name)))),
        },
        (None, None) => Err(CliError::Usage("name a scenario or a preset".into())),
    }
}

/// Returns a scenario with only a preset.
fn preset_scenario(preset: &Preset) -> Result<Scenario, CliError> {
    let text = format!("[drive]\npreset = \"{}\"\n", preset.name);
    Ok(Scenario::parse(Path::new(&preset.file_name()), &text)?)
}
