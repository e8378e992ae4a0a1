//! `sluice drive show` and `sluice drive presets`.

use std::path::Path;

use super::args::{DriveArgs, DriveShowArgs};
use super::{Failure, print};
use crate::limits::sheet::sheet;
use crate::presets;
use crate::presets::Preset;
use crate::scenario::Scenario;
use crate::text::printable;

/// Runs `sluice drive …`.
///
/// # Errors
/// A scenario that is wrong, a preset that is not there.
pub fn run(args: &DriveArgs) -> Result<(), Failure> {
    match args {
        DriveArgs::Presets => print(&presets::listing()),
        DriveArgs::Show(args) => {
            let scenario = load(args)?;
            let sheets: Vec<String> = scenario.drives.iter().map(sheet).collect();
            print(&sheets.join("\n"))
        }
    }
}

fn load(args: &DriveShowArgs) -> Result<Scenario, Failure> {
    match (&args.scenario, &args.preset) {
        (Some(file), _) => match file.to_str().and_then(presets::find) {
            Some(preset) if !file.exists() => of_preset(preset),
            _ => Ok(Scenario::load(file)?),
        },
        (None, Some(name)) => match presets::find(name) {
            Some(preset) => of_preset(preset),
            None => Err(Failure::Usage(format!("no preset `{}`", printable(name)))),
        },
        (None, None) => Err(Failure::Usage("name a scenario or a preset".into())),
    }
}

/// A scenario that is a preset and nothing else.
fn of_preset(preset: &Preset) -> Result<Scenario, Failure> {
    let text = format!("[drive]\npreset = \"{}\"\n", preset.name);
    Ok(Scenario::parse(Path::new(&preset.file_name()), &text)?)
}
