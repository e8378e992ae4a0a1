//! Why requests took as long as they did: tracepoints of a run, put together to one story per request.
//!
//! An [`Explainer`] follows the records of one drive ([`tracepoint::Record`]) and hands each request, with
//! what it waited for ([`Wait`]), to a [`Sink`] when it ends. The waits are the request's critical path: of
//! several operations the one that ended last. They come in order, and their times add up to the latency
//! as the job counts it, from when it wanted the request to when it had handled the completion.
//!
//! Memory is that of open requests, and of what resources did while these were open.

mod bands;
mod critical_path;
mod explainer;
mod in_flight;
mod path;
mod rendering;
mod slowest_requests;
mod text;
mod timeline;
mod wait;

use clock::Nanos;
use tracepoint::{ArrayOp, Cause, RequestOp};

pub use bands::{Band, Bands, Breakdown};
pub use explainer::Explainer;
pub use rendering::{band_bar, breakdown_json, breakdown_title, request_bar, request_json};
pub use slowest_requests::SlowestRequests;
pub use text::{Names, WaitGroup, group_waits, op_name, render_bands, render_slowest};
pub use wait::{ResourceUser, Wait, WaitKind, cause_name};

/// A request that has ended, and its story.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explained {
    /// The serial number: requests are counted from 1 in the order in which they were issued.
    pub serial: u64,
    /// The job, clones counted one by one.
    pub job: u32,
    /// The slot of the job, below its depth.
    pub slot: u32,
    /// The operation.
    pub op: RequestOp,
    /// The first sector.
    pub lba: u64,
    /// Sectors.
    pub sectors: u32,
    /// When the job wanted it.
    pub start: Nanos,
    /// When the device had all of it.
    pub issued: Nanos,
    /// From `start` until the job had handled the completion.
    pub latency: Nanos,
    /// Whether it succeeded and counts in the job's results: not in its ramp.
    pub measured: bool,
    /// The waits, in order; their times add up to `latency`.
    pub waits: Vec<Wait>,
}

/// A stretch of time in which an array or a channel was busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusySpan {
    /// The array of a parallel unit, or a channel.
    pub on: FlashResource,
    /// The operation that it was busy for.
    pub op: ArrayOp,
    /// The beginning.
    pub start: Nanos,
    /// The end.
    pub end: Nanos,
    /// The purpose of the operation.
    pub cause: Cause,
    /// The serial number of the request that it was for.
    pub request: Option<u64>,
    /// The first logical sector, where it is known.
    pub lba: Option<u64>,
    /// The chunk, as a flat number.
    pub chunk: u32,
}

/// A resource of the flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlashResource {
    /// The array of a parallel unit.
    Pu(u32),
    /// A channel.
    Channel(u32),
}

/// Background work of an FTL that takes a stretch of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Background {
    /// Garbage collection of a line.
    Gc {
        /// The line.
        line: u32,
        /// Valid sectors that it had when it was chosen.
        valid: u32,
    },
    /// A checkpoint of the map.
    Checkpoint,
    /// A flush, from its arrival at the FTL to its end.
    Flush,
}

/// A stretch of background work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackgroundSpan {
    /// The work.
    pub work: Background,
    /// The beginning.
    pub start: Nanos,
    /// The end.
    pub end: Nanos,
}

/// Receives the stories of one drive.
pub trait ExplanationSink {
    /// A request has ended.
    fn request(&mut self, request: &Explained) {
        let _ = request;
    }

    /// An array or a channel was busy. Called in the order in which stretches end, those of a request
    /// before the request.
    fn busy(&mut self, span: &BusySpan) {
        let _ = span;
    }

    /// The FTL has finished a piece of background work.
    fn background(&mut self, span: &BackgroundSpan) {
        let _ = span;
    }
}
