//! Handles over every kind of device: a file of the host, a drive on a thread of its own, nothing.

mod ends;
mod policies;
mod rests;
mod rig;
mod transfers;
