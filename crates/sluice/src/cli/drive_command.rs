//! `sluice drive show` and `sluice drive presets`.

use std::path::Path;

use super::args::{DriveArgs, DriveShowArgs};
use super::{Failure, print};
use crate::limits::sheet::sheet;
use crate::presets;
use crate::scenario::{Scenario, nearest};
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
        (Some(file), _) => Ok(Scenario::load(file)?),
        (None, Some(name)) => {
            let preset = presets::find(name).ok_or_else(|| {
                let names: Vec<&str> = presets::all().iter().map(|p| p.name).collect();
                let meant = nearest(name, &names);
                let meant = meant.map_or_else(String::new, |n| format!("; did you mean `{n}`?"));
                let (name, names) = (printable(name), names.join(", "));
                Failure::Usage(format!("no preset `{name}`{meant}; there are {names}"))
            })?;
            Ok(Scenario::parse(
                Path::new(&preset.file_name()),
                &format!("[drive]\npreset = \"{}\"\n", preset.name),
            )?)
        }
        (None, None) => Err(Failure::Usage("name a scenario or a preset".into())),
    }
}
