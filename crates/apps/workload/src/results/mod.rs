//! Measurements of a run, and their output as JSON and as log files.

pub(crate) mod fio_json;
pub(crate) mod job_log;
pub(crate) mod latency_recorder;
pub(crate) mod latency_series;
pub(crate) mod result;
pub(crate) mod time_series;
