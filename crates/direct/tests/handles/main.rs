//! Handles over every kind of device: a file of the host, a drive on a thread of its own, nothing.

mod device_sleep;
mod policies;
mod rig;
mod transfers;
mod wait_modes;
