//! AHCI and SATA as they are on the wire: layouts and bits, no input or output, no allocation.
//!
//! | file | noun | from |
//! |---|---|---|
//! | [`hba`] | the registers of the controller as a whole | AHCI 1.3.1 section 3.1 |
//! | [`port`] | the registers of a port | AHCI 1.3.1 section 3.3 |
//! | [`list`](CommandHeader) | command list, command table, physical region descriptors | AHCI 1.3.1 section 4.2 |
//! | [`fis`](RegisterH2d) | frame information structures, and where the received ones are kept | Serial ATA 3.2 section 10.5, AHCI 1.3.1 section 4.2.1 |
//! | [`ata`] | commands, status and error bits, trim ranges, the NCQ error log | ATA/ATAPI Command Set 3 |
//! | [`identify`](Identify) | what a drive says about itself | ATA/ATAPI Command Set 3, IDENTIFY DEVICE |
//!
//! Multi-byte fields are little endian. Whatever comes from the other side is decoded without
//! panic: every bit pattern is a value of every structure here.

#![forbid(unsafe_code)]

pub mod ata;
mod fis;
pub mod hba;
mod identify;
mod list;
pub mod port;

pub use fis::{PioSetup, RegisterD2h, RegisterH2d, SetDeviceBits, received};
pub use identify::Identify;
pub use list::{CommandHeader, CommandTable, PrdtEntry};

/// Command slots, and NCQ tags, of a port at most (AHCI 1.3.1 section 3.1.1).
pub const COMMAND_SLOTS_MAX: usize = 32;

/// Ports of a controller at most (AHCI 1.3.1 section 3.1.1).
pub const PORTS_MAX: usize = 32;
