//! The side of the controller that hosts access: queues, arbitration, rights and the controller memory
//! buffer.

pub(crate) mod access;
mod arbiter;
pub(crate) mod cmb;
pub(crate) mod hosts;
mod queue_faults;
pub(crate) mod queues;
pub(crate) mod registers;
