//! Transactions of durability: barriers, checkpoints, trims, lost sectors.

mod checkpoint;
mod device_l2p;
mod flush;
mod loss;
