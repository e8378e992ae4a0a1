//! `--log`: events of the control plane, on standard error.
//!
//! Every layer reports its decisions (a line opened, a victim chosen, a checkpoint, a reset, a
//! refused client) as events of the `tracing` crate. An event has a level, a target (the module that
//! decides) and fields; in virtual time the field `at` is the time of the drive. Requests are not
//! reported: traces and `--slowest` show these.

use std::str::FromStr;

use tracing_subscriber::filter::{ParseError, Targets};
use tracing_subscriber::fmt::time::uptime;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Environment variable with the filter, if there is no `--log`.
const VARIABLE: &str = "SLUICE_LOG";

/// Events to print: a level, or levels by target, as `warn,ftl=debug`.
#[derive(Clone, Debug, PartialEq)]
pub struct LogFilter(Targets);

impl FromStr for LogFilter {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<LogFilter, ParseError> {
        text.parse().map(LogFilter)
    }
}

/// Prints the events that the filter selects, or else those that `SLUICE_LOG` selects.
///
/// # Errors
/// The text of the problem, if the variable is not a filter.
pub(crate) fn start(filter: Option<LogFilter>) -> Result<(), String> {
    let filter = match (filter, std::env::var(VARIABLE)) {
        (Some(filter), _) => filter,
        (None, Ok(text)) if !text.is_empty() => {
            text.parse().map_err(|error| format!("{VARIABLE}: {error}"))?
        }
        (None, _) => return Ok(()),
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_timer(uptime())
        .with_ansi(false)
        .with_writer(std::io::stderr);
    // Another subscriber can only be that of a program that calls this library.
    let _ = tracing_subscriber::registry().with(filter.0).with(lines).try_init();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

    #[test]
    fn filters_are_levels_and_levels_by_target() {
        let LogFilter(filter) = "warn,ftl=debug".parse().unwrap();
        assert!(filter.would_enable("ftl::gc", &Level::DEBUG));
        assert!(!filter.would_enable("ftl::gc", &Level::TRACE));
        assert!(filter.would_enable("block", &Level::WARN));
        assert!(!filter.would_enable("block", &Level::INFO));
        assert!("a=b=c".parse::<LogFilter>().is_err());
        assert!("ftl=loud".parse::<LogFilter>().is_err());
    }
}
