//! YCSB's core workloads (Cooper et al., "Benchmarking Cloud Serving Systems with YCSB", SoCC 2010):
//! what a key-value store is asked next.
//!
//! | file | noun |
//! |---|---|
//! | [`mix`](Mix) | the six standard workloads: shares of operations, and who is popular |
//! | [`generator`](Ycsb) | operation after operation |
//! | [`record`](record_key) | names of records, as the published client makes them |

mod generator;
mod mix;
mod record;

pub use generator::{Operation, OperationKind, Ycsb};
pub use mix::{Mix, Popularity, YcsbWorkload};
pub use record::{KEY_BYTES, RecordKey, fnv64, record_key};
