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
//! | [`histogram`](Histogram), [`series`](Series), [`latency_series`](LatencySeries), `recorder` | latencies; throughput over time; latencies over time; all of one job |
//! | `log` | fio's logs over time |
//! | [`result`](RunResult), [`fio_json`](to_fio_json) | the numbers, and fio 3.33's JSON of them |
//! | [`ycsb`] | YCSB's core workloads: what a key-value store is asked next |
//! | `error` | what can be wrong with a job, a trace or a run |

#![forbid(unsafe_code)]

mod area;
mod error;
mod fio_json;
mod histogram;
mod host;
mod job;
mod latency_series;
mod log;
mod memory;
mod parse;
mod pattern;
mod ready;
mod recorder;
mod result;
mod series;
mod source;
mod trace;
pub mod units;
mod verify;
mod worker;
pub mod ycsb;

pub use error::{HostError, InvalidJob, JobError, JobProblem, JobSource, Place};
pub use fio_json::{FIO_VERSION, to_fio_json};
pub use histogram::{Bucket, Histogram};
pub use host::{Host, HostCosts, check_jobs, job_of_tag};
pub use job::{
    Access, BlockSizes, DEFAULT_PERCENTILES, Direction, Distribution, JobSpec, LatencyTarget,
    LogSpec, Rate, Replay, Skip, Tolerance, Zone,
};
pub use latency_series::{IntervalLatency, LatencySeries, MAX_LATENCY_INTERVALS};
pub use memory::available_memory;
pub use parse::{JobOption, Jobs, fio_reference, parse_job_file, parse_jobs};
pub use result::{
    Cause, DEPTH_LEVELS, DepthFound, DirectionResult, Failure, JobResult, MAX_FAILURES, RunResult,
};
pub use series::{Interval, MAX_INTERVALS, Series};
pub use trace::{Due, TraceAction, TraceError, TraceFit, TraceFormat, TraceOp, TraceReader};
pub use verify::Mismatch;
