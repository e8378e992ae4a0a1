//! Memory that host and drive, or several processes, share: regions, and the address space in which
//! a host registers them (ARCHITECTURE.md, R1).
//!
//! # Invariants
//!
//! The other side may be another process, and hostile: it may change shared memory at any time. A
//! region copies bytes and hands out no references to them; words are atomics. Memory is mapped only
//! if the other process cannot truncate it.

mod dma;
mod huge_array;
mod iova;
mod memfd;
mod owned_region;
mod persistent;
mod read_only_region;
mod region;
mod saved_region;
mod words;

pub use dma::{DmaMapper, DmaReach, DmaWindow};
pub use huge_array::HugeArray;
pub use iova::{
    AddressSpace, Iova, IovaSlice, NotRegistered, RegisterError, RegistrationExporter,
    RegistrationLimits,
};
pub use memfd::SharedMemoryError;
pub use owned_region::OwnedRegion;
pub use persistent::{PersistentMemory, PersistentMemoryError, SharedImages};
pub use read_only_region::ReadOnlyRegion;
pub use region::SharedRegion;
pub use words::{SharedWord, WordArray};

/// Size of a memory page in bytes, the unit of PRP entries and of registration.
pub const PAGE_BYTES: usize = 4096;
