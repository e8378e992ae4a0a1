//! Drives with rules: verdicts, victims, the time of engines, misses, and programs that are refused.

mod applications;
mod background;
mod commands;
mod durable;
mod fetches;
pub(crate) mod harness;
mod isolation;
mod lookups;
mod misses;
mod named;
mod refused;
mod rule_commands;
mod scans;
mod thin;
mod victims;
