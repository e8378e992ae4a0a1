//! Vector commands ([LightNVM17 §3.3], [OC20 §4]): one command with 1 to 64 addresses, and a status
//! bit per address.

mod address;
mod memory;
mod queue;

pub use address::Addresses;
pub use memory::{MemoryError, register};
pub use queue::{DataSegments, VectorCompletion, VectorQueue};
