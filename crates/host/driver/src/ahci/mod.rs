//! The low-level driver of an AHCI controller and its SATA drives ([HIOPS14 §4]: "our custom AHCI
//! HAL LLD").
//!
//! [`AhciHost`] initializes the controller; its hardware queue `i`, an [`AhciPort`], is drive `i`.
//! [`AhciInterrupt`] is the controller's interrupt.
//!
//! Host and controller share registers, one interrupt line and registered memory
//! ([`transport::PciFunction`]); neither calls the other.
//!
//! Invariant: the driver does not trust a controller. It ignores cleared bits of commands that it
//! did not issue, and checks what the controller reports about itself.

mod command;
mod error;
mod host;
mod irq_line;
mod memory;
mod port;
mod recovery;

pub use error::AhciError;
pub use host::{AhciHost, DriveIdentity};
pub use irq_line::AhciInterrupt;
pub use port::{AhciPort, AhciPortStats};
