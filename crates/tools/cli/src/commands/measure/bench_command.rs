//! `sluice bench`.

use std::io;

use bench::{BenchError, BenchRequest, ExpectedMisses, Format, NamedValue, RunLength, Sink};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use crate::CliError;
use crate::args::BenchArgs;

impl From<BenchError> for CliError {
    fn from(error: BenchError) -> CliError {
        match error {
            BenchError::Usage(message) => CliError::Usage(message),
            BenchError::OutOfBounds(message) => CliError::Bounds(message),
            error => CliError::Other(format!("cannot measure: {error}")),
        }
    }
}

/// Runs `sluice bench …`.
///
/// # Errors
/// [`CliError`] for arguments that do not apply to the group, and for a measurement that failed;
/// [`CliError::Bounds`] if a result is outside of its bound and not in the list of expected misses.
pub fn run(args: &BenchArgs) -> Result<(), CliError> {
    let request = BenchRequest {
        group: args.group,
        parts: args.part.clone(),
        machine: args.machine,
        costs: args.costs,
        vary: args.vary.clone(),
        device: args.device.clone(),
        may_overwrite: args.destroy,
        length: if args.quick { RunLength::Quick } else { RunLength::Full },
    };
    request.check()?;
    let expected = ExpectedMisses::load(args.bounds.expected.as_deref())?;
    let mut out = io::stdout().lock();
    let mut sink = Sink::new(&mut out, if args.json { Format::Json } else { Format::Table });
    request.run(&mut sink)?;
    expected.judge(&sink.finish()?)?;
    Ok(())
}

/// Returns a parser of the names of values. Their descriptions are help texts.
pub(crate) fn named_value<T: NamedValue + Send + Sync>() -> impl TypedValueParser<Value = T> {
    let values = T::ALL
        .iter()
        .map(|value| PossibleValue::new(value.name()).help(value.about().trim_end_matches('.')));
    PossibleValuesParser::new(values)
        .try_map(|name| T::from_name(&name).ok_or_else(|| format!("there is no `{name}`")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_outside_of_their_bounds_have_an_exit_code_of_their_own() {
        let error = CliError::from(BenchError::OutOfBounds("ring, b, m: 1.5 ns".into()));
        assert_eq!(error.exit_code(), 3);
        assert!(error.render().contains("ring, b, m: 1.5 ns"));
        assert_eq!(CliError::from(BenchError::Usage("no".into())).exit_code(), 2);
        let error = CliError::from(BenchError::Thread("live drive"));
        assert_eq!(error.exit_code(), 1);
        assert!(error.render().contains("cannot measure: live drive"));
    }
}
