//! The block layer of one drive: [`BlockLayerDevice`], and its counters [`BlockLayerCounts`].

mod counts;
mod device;

pub use counts::{BlockLayerCounts, CoreCounts, DispatchCounts, StagingCounts};
pub use device::BlockLayerDevice;
