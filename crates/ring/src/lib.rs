//! What host and drive share (rule R1): memory, and two rings in it.
//!
//! | file | noun |
//! |---|---|
//! | [`region`](Region) | a mapping: anonymous memory, or a file; the only unsafe code below `capi` |
//! | [`table`](Table) | a large array of words on huge pages, zero until touched |
//! | [`iova`](AddressSpace) | the memory a drive may touch, by I/O virtual address |
//! | [`submission`](SubmissionHost) | the submission ring, host's end and drive's end |
//! | [`completion`](CompletionHost) | the completion ring, drive's end and host's end |
//! | `entries` | the memory of one ring, and its doorbell |
//! | [`function`](PciFunction) | a device with registers and an interrupt line |
//! | [`port`](Port) | one host's connection to a drive: address space, doorbells, interrupt vectors |
//!
//! Rings hold real NVMe entries. Every word of a ring that both sides touch is an atomic; a ring
//! owned by one host thread and one drive thread needs no lock (rule R4).

mod completion;
mod entries;
mod function;
mod iova;
mod port;
mod region;
mod submission;
mod table;

pub use completion::{CompletionDrive, CompletionFull, CompletionHost};
pub use function::PciFunction;
pub use iova::{AddressSpace, Buffer, Iova, RegisterError, Unregistered};
pub use port::{DOORBELL_STRIDE, MAX_QUEUES, Port};
pub use region::Region;
pub use submission::{InvalidDoorbell, SubmissionDrive, SubmissionFull, SubmissionHost};
pub use table::Table;

/// Bytes of a memory page, the unit of PRP entries and of registration.
pub const PAGE: usize = 4096;
