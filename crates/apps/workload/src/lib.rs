//! Workloads on a block device and their results: jobs with fio's options, traces, YCSB operations,
//! and results in fio's JSON format.
//!
//! [`parse_job_file`] reads a job file into [`JobSpec`]s. [`JobRunner`] runs them on a device in
//! virtual or real time and returns a [`RunResult`], which [`to_fio_json`] prints as fio 3.33 does.
//! [`TraceReader`] streams fio iologs, MSR Cambridge traces and MQSim traces. [`ycsb`] generates
//! the operations of YCSB's core workloads.

#![forbid(unsafe_code)]

mod error;
mod fio_json;
mod histogram;
mod io_range;
mod job;
mod job_log;
mod job_runner;
mod latency_recorder;
mod latency_series;
mod memory;
mod parse;
mod pattern;
mod ready_times;
mod result;
mod source;
mod time_series;
mod trace;
pub mod units;
mod verify;
mod worker;
pub mod ycsb;

pub use error::{InvalidJob, JobError, JobProblem, JobSource, RunError, SourceLocation};
pub use fio_json::{FIO_VERSION, to_fio_json};
pub use histogram::{Bucket, Histogram};
pub use job::{
    Access, BlockSizes, ContinueOnError, DEFAULT_PERCENTILES, Direction, Distribution, JobSpec,
    LatencyTarget, LogSpec, Rate, Replay, Skip, Zone,
};
pub use job_runner::{IoCpuCosts, JobRunner, check_jobs, job_index_of_tag};
pub use latency_series::{IntervalLatency, LATENCY_INTERVALS_MAX, LatencySeries};
pub use memory::available_memory;
pub use parse::{JobFile, JobOption, fio_reference, parse_job_file, parse_jobs};
pub use result::{
    DEPTH_LEVELS, DepthSearchResult, DirectionResult, ErrorCause, FAILURES_MAX, IoFailure,
    JobResult, RunResult,
};
pub use time_series::{INTERVALS_MAX, Interval, TimeSeries};
pub use trace::{
    Due, TraceAction, TraceAdjustments, TraceError, TraceFormat, TraceOp, TraceReader,
};
pub use verify::Mismatch;
