//! Small collections, byte codecs and counters that several layers share. Everything is single-threaded, and
//! deterministic: no result depends on an address or on a hash-map order.

#![forbid(unsafe_code)]

#[doc(hidden)]
pub use serde;

mod bit_set;
mod clock_frames;
mod codec;
mod counters;
mod fast_divisor;
mod histogram;
mod id;
mod invariant;
mod min_tree;
mod seal;
mod slab;

pub use bit_set::BitSet;
pub use clock_frames::{ClockFrame, ClockFrames};
pub use codec::{PutBytes, Reader, SliceWriter, put_at, u16_at, u32_at, u64_at};
pub use fast_divisor::FastDivisor;
pub use histogram::{Bucket, Histogram};
pub use invariant::{BrokenInvariant, require_eq};
pub use min_tree::MinTree;
pub use seal::{HeaderError, Seal, SealError, SealedHeader};
pub use slab::Slab;
