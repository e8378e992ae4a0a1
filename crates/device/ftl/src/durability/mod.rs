//! Durability: flushes, trims, checkpoints, lost sectors, and the journal.

pub(crate) mod barriers;
pub(crate) mod checkpoint;
pub(crate) mod device_l2p;
pub(crate) mod flush;
pub mod journal;
pub(crate) mod loss;
pub(crate) mod snapshot;
pub(crate) mod trims;
