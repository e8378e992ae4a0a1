//! YCSB's core workloads \[YCSB10\]: the operations on a key-value store.

mod generator;
mod mix;
mod record;

pub use generator::{OperationKind, Ycsb, YcsbOperation};
pub use mix::{Mix, Popularity, YcsbWorkload};
pub use record::{KEY_BYTES, RecordKey, fnv64, record_key};
