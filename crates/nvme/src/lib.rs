//! NVMe as it is on the wire. No I/O, and no allocation on the hot path.
//!
//! Specifications cited: *NVMe* is the NVM Express Base Specification 1.4 (with the NVM command set,
//! which that revision contains); *OC* is the Open-Channel Solid State Drives Specification,
//! revision 2.0 (January 2018), the successor of the interface in section 3 of the LightNVM paper.
//!
//! | file | noun |
//! |---|---|
//! | [`sqe`](Sqe) | the 64-byte submission queue entry |
//! | [`cqe`](Cqe) | the 16-byte completion queue entry |
//! | [`status`](Status) | status codes: generic, command-specific, media, vendor |
//! | [`opcode`] | what an entry asks for |
//! | [`geometry`](Geometry) | groups, parallel units, chunks, sectors; write sizes |
//! | [`ppa`](Ppa) | physical page addresses and their bit-field format, with holes |

#![forbid(unsafe_code)]

mod cqe;
mod geometry;
pub mod opcode;
mod ppa;
mod sqe;
mod status;

pub use cqe::Cqe;
pub use geometry::{Address, Geometry, GeometryError};
pub use ppa::{InvalidPpa, Ppa, PpaFormat};
pub use sqe::{DataPointer, SglDescriptor, Sqe};
pub use status::{Status, StatusType};
