//! The side of the controller that hosts access: queues, arbitration, rights, the controller memory
//! buffer and the persistent memory region.

pub(crate) mod access;
mod arbiter;
pub(crate) mod cmb;
pub(crate) mod device_memory;
pub(crate) mod hosts;
pub(crate) mod pmr;
mod queue_faults;
pub(crate) mod queues;
pub(crate) mod registers;
