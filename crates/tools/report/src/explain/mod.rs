//! Explanation of request latencies: derives the waits of each request from the tracepoints of a
//! run.
//!
//! An [`Explainer`] processes the records of one drive ([`tracepoint::Record`]). When a request
//! completes, it passes the request with its waits ([`Wait`]) to an [`ExplanationSink`]. The waits
//! are the request's critical path: of several operations, the one that completed last. They are in
//! order, and their times add up to the latency that the job measures: from the time at which the
//! request is due until the job has processed its completion.
//!
//! Memory is bounded by the open requests and by the activity of resources while these were open.

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

use time::Nanos;
use tracepoint::{ArrayOp, Cause, RequestOp};

pub use bands::{Band, Bands, Breakdown};
pub use explainer::Explainer;
pub use rendering::{band_bar, breakdown_json, breakdown_title, request_bar, request_json};
pub use slowest_requests::SlowestRequests;
pub use text::{Names, WaitGroup, group_waits, op_name, render_bands, render_slowest};
pub use wait::{ResourceUser, Wait, WaitKind, cause_name};

/// A completed request with its waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explained {
    /// Serial number of the request on its drive, from 1 in the order of issue.
    pub serial: u64,
    /// The path of the job ([`tracepoint::Record::path`]).
    pub path: u16,
    /// Number of the job among those of all paths of the drive, with clones counted one by one.
    pub job: u32,
    /// Slot of the job, less than its depth.
    pub slot: u32,
    /// The operation.
    pub op: RequestOp,
    /// First sector.
    pub lba: u64,
    /// Number of sectors.
    pub sectors: u32,
    /// Time at which the request was due.
    pub start: Nanos,
    /// Time at which the device had all of it.
    pub issued: Nanos,
    /// Time from `start` until the job had processed the completion.
    pub latency: Nanos,
    /// Whether it succeeded and counts in the job's results; requests of the ramp do not.
    pub measured: bool,
    /// The waits in order; their times add up to `latency`.
    pub waits: Vec<Wait>,
}

/// A time interval in which an array or a channel was busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusySpan {
    /// The busy resource.
    pub on: FlashResource,
    /// The operation that used the resource.
    pub op: ArrayOp,
    /// Start of the interval.
    pub start: Nanos,
    /// End of the interval.
    pub end: Nanos,
    /// Purpose of the operation.
    pub cause: Cause,
    /// Serial number on the drive of the request that it served.
    pub request: Option<u64>,
    /// First logical sector, if known.
    pub lba: Option<u64>,
    /// Flat index of the chunk.
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

/// Background work of an FTL that takes time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Background {
    /// Garbage collection of a line.
    Gc {
        /// Index of the line.
        line: u32,
        /// Number of its valid sectors when it was selected.
        valid: u32,
    },
    /// A checkpoint of the map.
    Checkpoint,
    /// A flush, from its arrival at the FTL to its completion.
    Flush,
}

/// A time interval of background work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackgroundSpan {
    /// The work.
    pub work: Background,
    /// The path of an FTL in the host; `None` for the FTL of the drive.
    pub path: Option<u16>,
    /// Start of the interval.
    pub start: Nanos,
    /// End of the interval.
    pub end: Nanos,
}

/// Receives the explanations of one drive.
pub trait ExplanationSink {
    /// Processes a completed request.
    fn request(&mut self, request: &Explained) {
        let _ = request;
    }

    /// Processes a busy interval of an array or channel. Intervals arrive in the order of their
    /// ends, those of a request before the request.
    fn busy(&mut self, span: &BusySpan) {
        let _ = span;
    }

    /// Processes completed background work of the FTL.
    fn background(&mut self, span: &BackgroundSpan) {
        let _ = span;
    }
}
