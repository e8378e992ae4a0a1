//! What host and drive share (rule R1): memory, and two rings in it.
//!
//! | file | noun |
//! |---|---|
//! | [`region`](Region) | a mapping: anonymous memory, or a file; the only unsafe code below `capi` |
//! | [`shared`](SharedMemoryError) | memory that two processes map, sealed so that neither can pull it away |
//! | [`view`](ReadOnlyRegion) | such memory where it can only be read |
//! | [`word`](SharedParkedFlag) | one word of either: whether somebody sleeps |
//! | [`table`](Table) | a large array of words on huge pages, zero until touched |
//! | [`iova`](AddressSpace) | the memory a drive may touch, by I/O virtual address |
//! | [`submission`](SqProducer) | the submission ring, host's end and drive's end |
//! | [`completion`](CqConsumer) | the completion ring, drive's end and host's end |
//! | [`shadow`](ShadowDoorbells) | doorbells in memory, and when their registers must be written all the same |
//! | `entries` | the memory of one ring, and its doorbell |
//! | `bell` | the host's end of a doorbell, wherever it is |
//! | [`function`](PciFunction) | a device with registers and an interrupt line |
//! | [`port`](Port) | one host's connection to a drive: address space, doorbells, interrupt vectors |
//! | [`bus`](Bus) | what a port to a real controller needs of the bus that it sits on |
//! | [`parts`](PortDescriptor) | what a port whose ends are in two processes is made of |
//! | [`wires`](Limits) | how such a port wakes either side; what its host may take |
//!
//! Rings hold real NVMe entries. Every word of a ring that both sides touch is an atomic; a ring
//! owned by one host thread and one drive thread needs no lock (rule R4).
//!
//! The other side may be another process, and hostile: what it can write, it may write at any
//! moment. Every value is read once and checked after it was read, memory is mapped only if it
//! cannot be taken away, and no wake-up blocks.

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

/// Bytes of a memory page, the unit of PRP entries and of registration.
pub const PAGE_BYTES: usize = 4096;
