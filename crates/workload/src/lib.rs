//! What runs on a block device, and what it measured: jobs in fio's words, traces, and results in
//! fio's format.
//!
//! | file | noun |
//! |---|---|
//! | [`job`](JobSpec) | one job as described, with fio's meaning of every word |
//! | `parse`, [`units`] | fio job files, option by option, their numbers, and the page of all words: [`fio_reference`] |
//! | [`trace`](TraceReader) | fio iologs, MSR Cambridge and MQSim traces, streamed |
//! | `source`, `pattern`, `area` | what a job does next, where, and in which part of the device |
//! | [`host`](Host), `worker` | runs jobs on a device, in virtual or real time; one job's CPU and slots |
//! | `memory`, `ready` | memory that jobs need; when each job wants to run |
//! | `verify` | what was written where, and whether it comes back |
//! | [`histogram`](Histogram), [`series`](TimeSeries), [`latency_series`](LatencySeries), `recorder` | latencies; throughput over time; latencies over time; all of one job |
//! | `log` | fio's logs over time |
//! | [`result`](RunResult), [`fio_json`](to_fio_json) | the numbers, and fio 3.33's JSON of them |
//! | [`ycsb`] | YCSB's core workloads: what a key-value store is asked next |
//! | `error` | what can be wrong with a job, a trace or a run |

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
