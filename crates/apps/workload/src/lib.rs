//! Workloads and their results: jobs with fio's options on a block device or on a key-value target,
//! traces, YCSB, and results in fio's JSON format.
//!
//! [`parse_job_file`] reads a job file into [`JobSpec`]s. [`JobRunner`] runs them on a [`JobDevice`]
//! in virtual or real time and returns a [`RunResult`], which [`to_fio_json`] prints as fio 3.33 does.
//! [`TraceReader`] streams fio iologs, MSR Cambridge traces and MQSim traces. [`ycsb`] generates
//! the operations of YCSB's core workloads.

#![forbid(unsafe_code)]

mod device;
mod error;
mod io_range;
mod job;
mod key_spec;
mod parse;
mod results;
mod runner;
mod trace;
mod unit_spec;
pub mod units;
pub mod ycsb;

pub use collections::{Bucket, Histogram};
pub use device::key_value::KeyValueDevice;
pub use device::parallel_units::ParallelUnits;
pub use device::{
    Addressing, JobDevice, JobLimits, JobOperation, KeyLimits, RecordOp, RecordRequest,
};
pub use error::{InvalidJob, JobError, JobProblem, JobSource, RunError, SourceLocation};
pub use job::{
    BlockSizes, ContinueOnError, DEFAULT_PERCENTILES, Direction, Distribution, IntegritySpec,
    IoPattern, JobSpec, LatencyTarget, LogSpec, PaceSpec, PatternSpec, RangeSpec, Rate,
    ReplayOptions, ReportSpec, ScheduleSpec, Skip, Zone,
};
pub use key_spec::{KeySpec, YcsbPhase};
pub use parse::{JobFile, JobOption, fio_reference, parse_job_file, parse_jobs};
pub use results::fio_json::{FIO_VERSION, to_fio_json};
pub use results::latency_series::{IntervalLatency, LATENCY_INTERVALS_MAX, LatencySeries};
pub use results::result::{
    DEPTH_LEVELS, DepthSearchResult, DirectionResult, ErrorCause, FAILURES_MAX, IoFailure,
    JobCounts, JobResult, RunResult,
};
pub use results::time_series::{INTERVALS_MAX, Interval, TimeSeries};
pub use runner::job_runner::{
    IoCpuCosts, JobPart, JobRunner, check_jobs, check_jobs_on, job_index_of_tag,
};
pub use runner::memory::available_memory;
pub use runner::stages::JobStages;
pub use runner::unit_source::UnitSourceError;
pub use runner::verify::Mismatch;
pub use runner::write_stream::{JobWrite, WriteStream};
pub use trace::{
    Due, TraceAction, TraceAdjustments, TraceError, TraceFormat, TraceOp, TraceReader,
};
pub use unit_spec::{UnitLimits, UnitSpec};
