//! AHCI and SATA wire formats: structures and bits, without I/O and without allocation.
//!
//! [`hba`] and [`port`] have the registers, [`ata`] the commands and status bits. The structures
//! are [`CommandHeader`] and [`PrdtEntry`] (command lists), [`RegisterH2d`] and other FISes, and
//! [`Identify`].
//!
//! Multi-byte fields are little endian. Decoding never panics: every bit pattern is a valid value
//! of every structure.
//!
//! References: AHCI 1.3.1 [AHCI1.3 §3, §4], Serial ATA 3.2 [SATA3.2 §10.5], ATA/ATAPI Command Set 3
//! \[ACS3\].

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

/// Maximum number of command slots, and of NCQ tags, per port [AHCI1.3 §3.1.1].
pub const COMMAND_SLOTS_MAX: usize = 32;

/// Maximum number of ports per controller [AHCI1.3 §3.1.1].
pub const PORTS_MAX: usize = 32;
