//! `sluice plot`: figures from results of `sluice bench`, as SVG files.

use std::fs;

use report::figures;

use crate::args::PlotArgs;
use crate::{CliError, print};

/// Runs `sluice plot FILE --dir DIR`.
///
/// # Errors
/// [`CliError`] if the file cannot be read or has no results, if no figure can be drawn, or if a
/// file cannot be written.
pub fn run(args: &PlotArgs) -> Result<(), CliError> {
    let from = args.results.display();
    let results = fs::read_to_string(&args.results)
        .map_err(|e| CliError::Usage(format!("cannot read {from}: {e}")))?;
    let drawn = figures::draw(&results).map_err(|e| CliError::Usage(format!("{from}: {e}")))?;
    if drawn.is_empty() {
        let what = "results of `sluice bench lightnvm --json`";
        return Err(CliError::Usage(format!("{from} has nothing to draw: it has no {what}")));
    }
    fs::create_dir_all(&args.dir)
        .map_err(|e| CliError::Other(format!("cannot make {}: {e}", args.dir.display())))?;
    let mut written = String::new();
    for figure in drawn {
        let path = args.dir.join(format!("{}.svg", figure.name));
        fs::write(&path, figure.svg)
            .map_err(|e| CliError::Other(format!("cannot write {}: {e}", path.display())))?;
        written += &format!("{}\n", path.display());
    }
    print(&written)
}
