//! Emulated storage media: NAND and PCM, with their rules, data, errors and wear (ARCHITECTURE.md,
//! R5).
//!
//! A medium is passive: it has no time and no queues. The drive reports the begin and end of each
//! operation; the medium checks it against the physical rules, and stores the data.
//!
//! [`NandConfig`] and [`PcmConfig`] describe a medium; [`Nand`] and [`Pcm`] implement it. The image
//! file is described in `docs/format/image.md`.

#![forbid(unsafe_code)]

mod chunk;
mod config;
mod error;
mod faults;
mod layout;
mod nand;
mod pcm;
mod stats;
mod storage;
#[cfg(test)]
mod testing;

pub use chunk::ChunkInfo;
pub use config::{
    CellType, DataStore, ErrorModel, MAX_SECTORS, MediaConfig, NandConfig, NandGeometry,
    NandTiming, PcmConfig,
};
pub use error::{MediaError, Operation};
pub use faults::fault_injection::InjectedFault;
pub use faults::fault_model::ErrorModelError;
pub use layout::{NandLayout, PhysAddress, UnitInChunk};
pub use nand::{Nand, ReadInfo};
pub use nvme::ChunkState;
pub use nvme::{ChunkId, PhysSector, PuId};
pub use pcm::{Pcm, PcmError, PcmStats};
pub use stats::{HostFlushStats, MediaStats, PowerLossReport, Wear};
pub use storage::file_lock::lock_holder;
pub use storage::image::{IMAGE_VERSION, OpenError};
pub use storage::pattern::{PatternMismatch, check_pattern, fill_pattern, fill_pattern_from};
pub use storage::sector_buffers::{BufferSlot, SectorBufferStats};
pub use storage::store::estimate_memory;
pub use storage::synced_records::SyncObserver;
