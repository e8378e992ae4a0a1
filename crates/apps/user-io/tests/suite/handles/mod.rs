//! Handles over every kind of device: a file, a drive on its own thread, the null device.

mod device_sleep;
mod harness;
mod policies;
mod rules;
mod transfers;
mod wait_modes;
