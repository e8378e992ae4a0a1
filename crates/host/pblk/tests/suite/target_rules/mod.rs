//! Targets whose requests and victims rules decide about.

mod background;
pub(crate) mod programs;
mod refused;
mod requests;
