//! Physical addressing for applications ([LightNVM17 §3, §5.5], [Thesis15 ch. 6]): the library for
//! programs that place their own data and schedule their own I/O.
//!
//! Equivalents in liblightnvm: `nvm_dev` is [`OpenChannelSsd`](crate::OpenChannelSsd), `nvm_addr`
//! is [`Address`] with [`PpaSpace`], `nvm_cmd` is [`Session`] and [`BlockingSession`], `nvm_vblk`
//! is [`VirtualBlock`].

mod block;
mod blocking_session;
mod buffer;
mod error;
mod failed_mask;
mod free_chunks;
mod requests;
mod session;
mod space;
mod vector;

pub use nvme::{Address, Ppa};

pub use crate::pu_set::{PuSet, PuSetError};

pub use block::{
    BlockReader, BlockStats, CopyReport, FailedChunk, PadMode, RecoveryReport,
    UncorrectableSectors, UnwrittenSectors, VirtualBlock, VirtualBlockError,
};
pub use blocking_session::BlockingSession;
pub use buffer::{BufferRangeError, VectorBuffer, VectorBufferPool};
pub use error::{PpaError, RejectReason, Rejected, VectorError};
pub use failed_mask::FailedMask;
pub use free_chunks::FreeChunkPool;
pub use nvme::PuId;
pub use session::Session;
pub use space::{AddressError, FlatSector, PpaSpace};
pub use vector::{
    ADDRESSES_MAX, RequestCompletion, RequestId, SessionConfig, SessionStats, VectorKind,
    VectorOptions,
};
