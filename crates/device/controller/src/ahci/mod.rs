//! An AHCI controller with SATA drives: the hardware of [HIOPS14 §4]. It has six drives of 32 tags
//! each, one interrupt line, and a shared uplink of 1.5 GB/s.
//!
//! The controller checks everything that a host writes to registers and memory. Invalid values set
//! the error bits of [AHCI1.3 §6] and never panic.

mod config;
mod controller;
mod disk;
mod fetch;
mod port;
mod prd_table;
mod stats;
mod storage;

pub use config::{AhciConfig, AhciConfigError, SataData, SataDriveConfig};
pub use controller::AhciController;
pub use disk::InjectedSectorError;
pub use stats::{AhciStats, SataDriveStats};
