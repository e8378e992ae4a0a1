//! A host with many cores in virtual time: what the host's software costs, on the software's own
//! code.
//!
//! An [`Engine`] runs tasks on the hardware threads of a [`Machine`]. A task has the body that a
//! thread has on this machine. What it does takes the time that [`Costs`] say: [`work`],
//! accesses to memory that other cores have written, locks, switches between threads, interrupts.
//! Everything else takes none. Each hardware thread has a [`CoreTimes`] of its time, which sums to the
//! time elapsed.
//!
//! # Scheduling
//!
//! | context | rule |
//! |---|---|
//! | hard interrupt | interrupts everything but hard interrupts, and cores that hold or wait for a lock (locks are taken with interrupts off) |
//! | soft interrupt | runs when no hard interrupt does; after 10 rounds or 2 ms it continues as a thread |
//! | FIFO thread | by priority; runs until it waits |
//! | fair thread | least run time first, with the constants of Linux's CFS; a wake-up interrupts a thread that has run 1 ms more |
//!
//! A thread runs on its core if it has one; else on the core of its last run if that is idle, else
//! on the lowest idle core of that socket, else on the core of its last run. There is no periodic
//! balancing between cores.
//!
//! # What is approximated
//!
//! - An idle look at a queue moves no cache lines, and the looks between two events are not
//!   executed one by one: a task that looks continues at the first whole round after something
//!   happened. [`EngineConfig::exact_spins`] executes each.
//! - Whether the other hardware thread of a core works is judged at the start of each piece of work.
//! - Time slices end when they end, not at the next timer tick.
//! - A task that is interrupted while it switches switches again.
//! - Misses of the caches are charged for lines that cores share, and for data that a device has
//!   written; no others.
//!
//! # Devices
//!
//! A [`Device`] is hardware: it is polled at its deadlines and after each doorbell, and takes no
//! processor time.
//!
//! # Watchers
//!
//! An [`EngineWatcher`] is called at instants at which everything before has happened and nothing
//! at them, to observe the machine or to change it; it takes no time, and observing changes no
//! result. With [`EngineConfig::records_segments`] it gets what each hardware thread did, and for
//! which task.
//!
//! # Back ends
//!
//! Tasks are coroutines ([`BackEnd::Coroutines`]), or threads of this machine, one of them at a
//! time ([`BackEnd::Threads`], for sanitizers). Both give the same results.
//!
//! # Invariants
//!
//! Results depend on the tasks, the devices and the costs only (ARCHITECTURE.md, R3): events of one
//! instant occur in the order in which they were scheduled, and cache lines are numbered by first
//! access, not by address.

#![forbid(unsafe_code)]

mod back_end;
mod core_times;
mod costs;
mod engine;
mod lines;
mod machine_model;
mod memory;
mod modeled;
mod ticket_lock;
mod topology;
mod variation;

pub use back_end::BackEnd;
pub use core_times::{CoreState, CoreTimes};
pub use costs::{Costs, LineCosts, StepCosts};
pub use engine::calls::{
    SpinStart, begin_measurement, begin_spin, compute, current, doorbell, is_stopping, notify, now,
    park, raise, sleep_until, sleep_until_timer, spin_until, stop, this_core, unpark, work,
};
pub use engine::{
    CoreSegment, Device, Engine, EngineConfig, EngineError, EngineReport, EngineWatcher, TaskClass,
    TaskId, TaskReport, TaskSpec,
};
pub use lines::{SnoopPolicy, Traffic};
pub use machine_model::{MachineModel, MachineModelError, SourcedNumber};
pub use modeled::{Modeled, ModeledGuard, ModeledLock, ModeledThread};
pub use topology::{CORES_MAX, Distance, Machine, MachineError};
pub use variation::{Variation, VariationError};
