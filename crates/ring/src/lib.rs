//! What host and drive share (rule R1): memory, and two rings in it.
//!
//! | file | noun |
//! |---|---|
//! | [`region`](Region) | a mapping: anonymous memory, or a file; the only unsafe code below `capi` |
//! | [`shared`](SharedMemoryError) | memory that two processes map, sealed so that neither can pull it away |
//! | [`view`](View) | such memory where it can only be read |
//! | [`word`](Word) | one word of either: whether somebody sleeps |
//! | [`table`](Table) | a large array of words on huge pages, zero until touched |
//! | [`iova`](AddressSpace) | the memory a drive may touch, by I/O virtual address |
//! | [`submission`](SubmissionHost) | the submission ring, host's end and drive's end |
//! | [`completion`](CompletionHost) | the completion ring, drive's end and host's end |
//! | [`shadow`](ShadowDoorbells) | doorbells in memory, and when their registers must be written all the same |
//! | `entries` | the memory of one ring, and its doorbell |
//! | `bell` | the host's end of a doorbell, wherever it is |
//! | [`function`](PciFunction) | a device with registers and an interrupt line |
//! | [`port`](Port) | one host's connection to a drive: address space, doorbells, interrupt vectors |
//! | [`bus`](Bus) | what a port to a real controller needs of the bus that it sits on |
//! | [`parts`](Parts) | what a port whose ends are in two processes is made of |
//! | [`wires`](Limits) | how such a port wakes either side; what its host may take |
//!
//! Rings hold real NVMe entries. Every word of a ring that both sides touch is an atomic; a ring
//! owned by one host thread and one drive thread needs no lock (rule R4).
//!
//! The other side may be another process, and hostile: what it can write, it may write at any
//! moment. Every value is read once and checked after it was read, memory is mapped only if it
//! cannot be taken away, and no wake-up blocks.

mod bell;
mod bus;
mod completion;
mod entries;
mod function;
mod iova;
mod owned;
mod parts;
mod port;
mod region;
mod shadow;
mod shared;
mod submission;
mod table;
mod view;
mod wires;
mod word;

pub use bus::{Bus, BusWindow, Doorbells, Hold, Reach};
pub use completion::{CompletionDrive, CompletionFull, CompletionHost};
pub use function::PciFunction;
pub use iova::{AddressSpace, Buffer, HandOver, Iova, RegisterError, Unregistered};
pub use owned::OwnedRegion;
pub use parts::{JoinError, Parts};
pub use port::{DOORBELL_STRIDE, MAX_QUEUES, Port};
pub use region::Region;
pub use shadow::{DoorbellCounts, ShadowDoorbells};
pub use shared::SharedMemoryError;
pub use submission::{InvalidDoorbell, SubmissionDrive, SubmissionFull, SubmissionHost};
pub use table::Table;
pub use view::View;
pub use wires::Limits;
pub use word::{SeenWord, Word};

/// Bytes of a memory page, the unit of PRP entries and of registration.
pub const PAGE: usize = 4096;
