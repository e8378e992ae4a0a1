//! [`StateArgs`]: where commands keep the states of preconditioned drives.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use scenario::{Scenario, StateFolder};

use crate::CliError;

/// Least time that preconditioning must have taken for its state to be kept in the folder of the
/// user.
const WORTH: Duration = Duration::from_secs(5);

/// The folder of kept states.
#[derive(Clone, Debug, Default, Args)]
pub struct StateArgs {
    /// Keep the states of preconditioned drives in this folder, and start from those kept there. By
    /// default it is that of the scenario (`states`), or else `sluice/states` in `$XDG_CACHE_HOME`
    /// or `~/.cache` for states that take longer than five seconds.
    #[arg(long, value_name = "DIR", conflicts_with = "no_state_cache")]
    pub state_cache: Option<PathBuf>,
    /// Maximum size of all kept states; those that were not used for the longest time are removed.
    /// By default that of the scenario (`states_max`), or else 16G.
    #[arg(long, value_name = "SIZE", conflicts_with = "no_state_cache",
        value_parser = crate::commands::volume_command::size)]
    pub state_cache_size: Option<u64>,
    /// Precondition drives each time, and keep no states.
    #[arg(long)]
    pub no_state_cache: bool,
}

impl StateArgs {
    /// Gives the scenario its folder of states.
    pub(crate) fn apply(&self, scenario: &mut Scenario) {
        self.choose(&mut scenario.precondition.states);
    }

    /// Chooses the folder of states; `states` is that of the scenario.
    pub(crate) fn choose(&self, states: &mut Option<StateFolder>) {
        if self.no_state_cache {
            *states = None;
            return;
        }
        if let Some(path) = &self.state_cache {
            let bytes_max = states.as_ref().map_or(StateFolder::BYTES_MAX, |given| given.bytes_max);
            *states = Some(StateFolder { path: path.clone(), bytes_max, worth: Duration::ZERO });
        } else if states.is_none() {
            *states = user_cache("states").map(|path| StateFolder {
                path,
                bytes_max: StateFolder::BYTES_MAX,
                worth: WORTH,
            });
        }
        if let (Some(folder), Some(bytes)) = (states, self.state_cache_size) {
            folder.bytes_max = bytes;
        }
    }

    /// Gives the scenario a folder in which every state is kept.
    ///
    /// # Errors
    /// A usage error if there is no folder.
    pub(crate) fn apply_always(&self, scenario: &mut Scenario) -> Result<(), CliError> {
        self.apply(scenario);
        match &mut scenario.precondition.states {
            Some(folder) => {
                folder.worth = Duration::ZERO;
                Ok(())
            }
            None => {
                let message = "there is no folder for the states: give --state-cache DIR";
                Err(CliError::Usage(message.into()))
            }
        }
    }
}

/// Returns a folder of the user's cache; `None` if the environment names none.
pub(crate) fn user_cache(name: &str) -> Option<PathBuf> {
    let folder = |name: &str| {
        // As the XDG specification says, a relative path is ignored.
        std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
    };
    let cache = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))?;
    Some(cache.join("sluice").join(name))
}
