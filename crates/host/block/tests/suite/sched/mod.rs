//! Schedulers meet their numeric targets, in virtual time, in front of a small device.

// guarantee: B-09, B-10, B-11, B-12

mod deadline;
mod fair;
mod kyber;
mod model;
mod properties;
mod throttle;

use sluice_block::sched::{Scheduler, SchedulerConfig};

/// Builds a scheduler with its defaults.
fn build(name: &str, depth: u16) -> Box<dyn Scheduler> {
    name.parse::<SchedulerConfig>().unwrap().build(depth).unwrap()
}
