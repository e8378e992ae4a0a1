//! `sluice admin fault`: a fault of a drive while it is served.

use std::path::Path;

use scenario::parse_fault;
use share_proto::{FAULT_BYTES_MAX, ResourceName};
use user_io::remote::Admin;

use crate::{CliError, print};

/// Runs `sluice admin fault`.
///
/// # Errors
/// [`CliError`] for keys or values that a scenario would not accept, if no server runs, or if the
/// drive cannot have the fault.
pub(super) fn run(
    socket: &Path,
    name: ResourceName,
    kind: &str,
    keys: &[String],
) -> Result<(), CliError> {
    let text = [kind].into_iter().chain(keys.iter().map(String::as_str)).collect::<Vec<_>>();
    let text = text.join(" ");
    if text.len() > FAULT_BYTES_MAX {
        let message = format!("a fault has at most {FAULT_BYTES_MAX} bytes");
        return Err(CliError::Usage(message));
    }
    parse_fault(&text).map_err(|error| CliError::Usage(error.problem_text()))?;
    Admin::connect(socket)?.inject_fault(name, &text)?;
    print(&format!("{name}: {text}\n"))
}
