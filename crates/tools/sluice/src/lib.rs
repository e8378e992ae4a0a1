//! Sluice: a software-defined SSD and the user-space I/O stack that drives it.
//!
//! A scenario names a drive and jobs. [`sim::simulate`] runs it in virtual time: the same text gives the same bytes.
//!
//! ```
//! use sluice::scenario::Scenario;
//! use sluice::sim::{SimOptions, simulate};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let text = r#"
//!     drive.preset = "femu-default"   # 8 channels of 8 parallel units
//!     drive.geometry.chunks = 16
//!     precondition.fill = "sequential"
//!     job = [{ name = "reader", rw = "randread", bs = "4k", size = "4m" }]
//! "#;
//! let scenario = Scenario::parse("first.toml".as_ref(), text)?;
//! let outcome = simulate(&scenario, SimOptions::default())?;
//! let reads = &outcome.paths[0].run.jobs[0].directions[0];
//! println!("{} reads, {} ns each", reads.ios, reads.clat.mean());
//! assert_eq!((reads.ios, reads.clat.mean()), (1024, 40_000.0));
//! # Ok(())
//! # }
//! ```
//!
//! [`open()`] opens a drive of a scenario, a served drive, a real controller or a file for this program, in real
//! time. A queue of it, with a policy on top if you choose one, is driven by a handle:
//!
//! ```
//! use sluice::user_io::{Handle, QueueConfig};
//! use sluice::open::{OpenOptions, open_scenario};
//! use sluice::scenario::Scenario;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let text = "drive = { preset = \"femu-default\", geometry = { chunks = 16 } }";
//! let scenario = Scenario::parse("first.toml".as_ref(), text)?;
//! let (device, _) = open_scenario(&scenario, None, &OpenOptions::default())?;
//! let queue = device.create_queue(QueueConfig::default())?;
//! let mut handle = Handle::new(&device, queue)?;
//! let sector = device.buffer(4096)?; // memory that the drive may access
//! sector.fill(0, 4096, 7);
//! handle.write(0, &sector, false)?;
//! handle.flush()?;
//! # Ok(())
//! # }
//! ```
//!
//! The programs in `examples/` have one idea each: a block cache, waiting strategies, statistics, `pblk`, keys and
//! values, physical addresses, power cuts, a target and a victim policy of one's own.
//!
//! The library re-exports its crates under their own names: [`scenario`] has the keys and presets, [`sim`] and
//! [`analytic`] simulation and closed forms, [`report`] and [`trace_file`] results, [`user_io`] queues and
//! handles, and the others the parts of a drive and of the host's stack. The command line, its server and the
//! benches are crates of their own (`sluice-cli`, `sluice-bench`).

#![forbid(unsafe_code)]

pub use ::open;
pub use ::open::open;
pub use ::report;
pub use ::report::{explain, trace_file};
pub use ::scenario;
pub use ::scenario::{format, presets};
pub use ::sim;
pub use ::sim::analytic;
pub use ::stack;
pub use {
    block, controller, driver, event, ftl, kv, lnvm, media, mem, nvme, ocssd, pblk, share_proto,
    speculate, time, transport, user_io, workload,
};
