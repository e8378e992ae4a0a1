//! `sluice drive show` and `sluice drive presets`.

use std::path::Path;

use scenario::Scenario;
use scenario::format::printable;
use scenario::presets;
use scenario::presets::Preset;
use sim::analytic::summary::summary;

use crate::args::{DriveArgs, DriveShowArgs};
use crate::{CliError, print};

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
    }
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
