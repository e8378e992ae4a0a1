//! The health of the flash: refresh of lines, chunks that go offline, static wear leveling.

pub(crate) mod finish_line;
pub(crate) mod refresh;

use crate::env::Env;
use refresh::RefreshState;

/// Refresh of lines, and parallel units with read errors.
#[derive(Clone, Debug)]
pub(crate) struct Health {
    pub(crate) refresh: RefreshState,
    /// By parallel unit, whether something on it could not be read.
    pub(crate) pus_with_read_errors: Vec<bool>,
}

impl Health {
    /// Healthy flash.
    pub(crate) fn new(env: &Env) -> Health {
        Health {
            refresh: RefreshState::default(),
            pus_with_read_errors: vec![false; env.geometry.pus as usize],
        }
    }
}
