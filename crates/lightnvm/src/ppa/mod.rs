//! Physical addresses for applications (LightNVM paper sections 3 and 5.5; thesis chapter 6): the
//! library for a program that places its own data and schedules its own I/O.
//!
//! | file | noun |
//! |---|---|
//! | [`space`](Space) | addresses: generic, device, flat; counting with them |
//! | [`buffer`](Buffer) | registered memory for data and out-of-band bytes |
//! | [`bits`](FailedMask) | which addresses of a vector |
//! | [`vector`](Ended) | what is asked of a session, and how it ended |
//! | [`session`](Session) | a queue of one's own: vectors of any length, asynchronously |
//! | `requests` | vectors that are outstanding, and their pieces |
//! | [`blocking`](Blocking) | a session whose caller waits |
//! | [`free_chunks`](FreeChunks) | chunks to take, the least worn first |
//! | [`block`](VirtualBlock) | an append-only run of chunks over any parallel units |
//! | [`error`](PpaError) | what went wrong, and at which addresses |
//!
//! Who knows liblightnvm finds `nvm_dev` as [`Ssd`](crate::Ssd), `nvm_addr` as [`Address`] with
//! [`Space`], `nvm_cmd` as [`Session`] and [`Blocking`], `nvm_vblk` as [`VirtualBlock`].

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
    BlockError, BlockReader, BlockStats, CopyReport, FailedChunk, PadMode, RecoveryReport,
    UncorrectableSectors, UnwrittenSectors, VirtualBlock,
};
pub use blocking_session::BlockingSession;
pub use buffer::{Buffer, BufferRangeError, Buffers};
pub use error::{PpaError, RejectReason, Rejected, VectorError};
pub use failed_mask::FailedMask;
pub use free_chunks::FreeChunks;
pub use session::Session;
pub use space::{AddressError, PhysSector, PpaSpace, PuIndex};
pub use vector::{
    ADDRESSES_MAX, RequestCompletion, RequestId, SessionConfig, SessionStats, VectorKind,
    VectorOptions,
};
