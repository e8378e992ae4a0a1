//! The queue-pair interface between host and drive (ARCHITECTURE.md, R1): shared memory, and two
//! rings in it.
//!
//! Rings hold real NVMe entries. A ring owned by one host thread and one drive thread needs no lock
//! (ARCHITECTURE.md, R4).
//!
//! # Invariants
//!
//! The other side may be another process, and hostile: it may change shared memory at any time.
//! Every value is read once and checked after the read. Memory is mapped only if the other process
//! cannot truncate it. No wake-up blocks.
//!
//! # Concurrency
//!
//! Every word of a ring that both sides access is an atomic.

mod completion;
mod dma_bus;
mod doorbell;
mod huge_array;
mod iova;
mod memfd;
mod owned_region;
mod parked_flag;
mod pci_function;
mod port;
mod port_descriptor;
mod read_only_region;
mod region;
mod remote_notify;
mod ring_memory;
mod shadow_doorbell;
mod submission;

pub use completion::{CompletionFull, CqConsumer, CqProducer};
pub use dma_bus::{ControllerOwnership, DmaBus, DmaReach, DmaWindow, DoorbellLayout};
pub use huge_array::HugeArray;
pub use iova::{AddressSpace, Iova, IovaSlice, NotRegistered, RegisterError, RegistrationExporter};
pub use memfd::SharedMemoryError;
pub use owned_region::OwnedRegion;
pub use parked_flag::{SharedParkedFlag, SharedParkedFlagReader};
pub use pci_function::PciFunction;
pub use port::{DOORBELL_STRIDE, MAX_QUEUES, Port};
pub use port_descriptor::{JoinError, PortDescriptor};
pub use read_only_region::ReadOnlyRegion;
pub use region::SharedRegion;
pub use remote_notify::PortLimits;
pub use shadow_doorbell::{DoorbellStats, ShadowDoorbells};
pub use submission::{InvalidDoorbell, SqConsumer, SqProducer, SubmissionFull};

/// Size of a memory page in bytes, the unit of PRP entries and of registration.
pub const PAGE_BYTES: usize = 4096;
