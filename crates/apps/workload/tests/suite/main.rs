//! The integration tests of this crate: one binary, because linking takes longer than compiling.

mod common;
mod compressed_traces;
mod fio_json;
mod host;
mod job_text;
mod keys;
mod logs;
mod parse;
mod properties;
mod real_fio;
mod replay;
mod trace_text;
mod verify;
mod words;
mod write_stream;
