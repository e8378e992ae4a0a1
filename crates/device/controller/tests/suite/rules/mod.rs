//! Drives with rules: verdicts, victims, the time of engines, and programs that are refused.

mod commands;
mod harness;
mod refused;
mod victims;
