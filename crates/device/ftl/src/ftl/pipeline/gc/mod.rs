//! Transactions of garbage collection.

mod collect;
mod defer;
mod victim_p2l;
