//! Vector commands (LightNVM paper section 3.3; OC section 4): one command, 1 to 64 addresses, a
//! status bit per address.
//!
//! | file | noun |
//! |---|---|
//! | [`VectorQueue`] | a queue pair that takes vector commands |
//! | [`address`](Addresses) | flat sector numbers to physical page addresses |
//! | [`memory`](register) | memory that the drive may touch: address lists per command |

mod address;
mod memory;
mod queue;

pub use address::Addresses;
pub use memory::{MemoryError, register};
pub use queue::{DataSegments, VectorCompletion, VectorQueue};
