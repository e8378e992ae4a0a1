//! The low-level driver of an AHCI controller and its SATA drives (HIOPS section 4: "our custom AHCI
//! HAL LLD").
//!
//! | file | noun |
//! |---|---|
//! | [`host`](AhciHost) | bring-up, and the controller as a low-level driver: queue `i` is drive `i` |
//! | [`port`](AhciPort) | a drive's hardware queue: 32 tags, each an NCQ tag and a command slot |
//! | `recovery` | what a port does when a command fails or the link is lost |
//! | `command` | the FIS and the physical regions of a request |
//! | `memory` | what the controller reads and writes of a port, besides payloads |
//! | [`line`](AhciInterrupt) | the controller's one interrupt: pending ports, acknowledge, mask |
//! | [`error`](AhciError) | why a controller cannot be used |
//!
//! Host and controller share registers, one line and registered memory ([`ring::PciFunction`]);
//! neither calls the other. A controller is not trusted: bits that it clears were issued or are
//! nothing, and what it says about itself is checked.

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
pub use port::{AhciPort, PortStats};
