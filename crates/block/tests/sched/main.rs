//! Schedulers, judged by numbers: each does what it is for, in virtual time, before a small device.

mod deadline;
mod fair;
mod kyber;
mod model;
mod properties;
mod throttle;

use sluice_block::sched::{Scheduler, SchedulerConfig};

/// A scheduler with its defaults.
fn build(name: &str, depth: u16) -> Box<dyn Scheduler> {
    name.parse::<SchedulerConfig>().unwrap().build(depth).unwrap()
}
