//! An AHCI controller with SATA drives: the hardware of HIOPS section 4 (one controller, six drives of
//! 32 tags each, one interrupt line, a shared uplink of 1.5 GB/s).
//!
//! | file | noun |
//! |---|---|
//! | [`config`](AhciConfig) | what describes the controller and its drives |
//! | [`controller`](AhciController) | the controller: registers, time, interrupts |
//! | `port` | a port: what is going on at it, and how that ends in its registers |
//! | `take` | taking a command out of host memory, and what its drive does with it |
//! | `regions` | where a command's data is, checked |
//! | `disk` | a SATA drive: service times, link, cache |
//! | `sectors` | what a drive stores |
//! | [`stats`](AhciStats) | what was done |
//!
//! Everything that a host writes, in registers and in memory, is checked; what is wrong ends in the
//! error bits that AHCI 1.3.1 section 6 has for it, never in a panic.

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
