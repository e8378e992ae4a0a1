//! What stores the bits: NAND, PCM, or nothing, with rules, data, errors and wear (rule R5).
//!
//! A medium is passive: it knows no time and has no queues. A drive tells it when an operation
//! begins and ends; it says whether physics allows that, and keeps what was written.
//!
//! | file | noun |
//! |---|---|
//! | [`config`](NandConfig) | the shape, timing and error model of a medium |
//! | [`layout`](Layout) | flat numbers of sectors and chunks, and where they are |
//! | [`nand`](Nand) | NAND: program, erase, read with retries, power cut |
//! | [`chunk`](ChunkInfo) | what is known of a chunk, in one word |
//! | `pairing` | when a programmed page can be read |
//! | `draw` | failures and bit errors, drawn from the seed |
//! | [`fault`](Fault) | failures on cue |
//! | [`error`](MediaError) | why an operation was refused or failed |
//! | [`stats`](MediaStats) | what was done and suffered |
//! | `store` | where sectors are kept |
//! | [`image`](OpenError) | the image file: `docs/format/image.md` |
//! | [`pcm`](Pcm) | phase-change memory |
//! | [`pattern`](fill_pattern) | what a medium that keeps no data reads |

#![forbid(unsafe_code)]

mod chunk;
mod config;
mod error;
mod fault_injection;
mod fault_model;
mod file_lock;
mod image;
mod layout;
mod nand;
mod paired_pages;
mod pattern;
mod pcm;
mod stats;
mod store;
#[cfg(test)]
mod testing;

pub use chunk::ChunkInfo;
pub use config::{
    CellType, DataStore, ErrorModel, MAX_SECTORS, MediaConfig, NandConfig, NandGeometry,
    NandTiming, PcmConfig,
};
pub use error::{MediaError, Operation};
pub use fault_injection::InjectedFault;
pub use fault_model::ErrorModelError;
pub use file_lock::lock_holder;
pub use image::{IMAGE_VERSION, OpenError};
pub use layout::{ChunkIndex, NandLayout, PhysAddress, PhysSector};
pub use nand::{Nand, ReadInfo};
pub use nvme::ChunkState;
pub use pattern::{PatternMismatch, check_pattern, fill_pattern, fill_pattern_from};
pub use pcm::{Pcm, PcmError, PcmStats};
pub use stats::{MediaStats, PowerLossReport, Wear};
pub use store::estimate_memory;
