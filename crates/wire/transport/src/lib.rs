//! The queue-pair interface between host and drive (ARCHITECTURE.md, R1): two rings in shared
//! memory, their doorbells, and the port that connects the two sides.
//!
//! Rings hold real NVMe entries. A ring owned by one host thread and one drive thread needs no lock
//! (ARCHITECTURE.md, R4).
//!
//! # Invariants
//!
//! The other side may be another process, and hostile: it may change shared memory at any time.
//! Every value is read once and checked after the read. No wake-up blocks.
//!
//! # Concurrency
//!
//! Every word of a ring that both sides access is an atomic.

#![forbid(unsafe_code)]

mod completion;
mod dma_bus;
mod doorbell;
mod doorbell_stamp;
mod parked_flag;
mod pci_function;
mod port;
mod port_descriptor;
mod port_region;
mod remote_notify;
mod ring_memory;
mod shadow_doorbell;
mod submission;

pub use completion::{CompletionFull, CqConsumer, CqProducer};
pub use dma_bus::{ControllerOwnership, DmaBus, DoorbellLayout};
pub use doorbell_stamp::{DoorbellReading, DrivePolls};
pub use parked_flag::{SharedParkedFlag, SharedParkedFlagReader};
pub use pci_function::PciFunction;
pub use port::{DOORBELL_STRIDE, MAX_QUEUES, Port};
pub use port_descriptor::{JoinError, PortDescriptor};
pub use port_region::{PortRegion, RegionCosts, RegionCounters};
pub use remote_notify::PortLimits;
pub use shadow_doorbell::{DoorbellStats, ShadowDoorbells, ShadowPages};
pub use submission::{InvalidDoorbell, SqConsumer, SqProducer, SubmissionFull};
