//! Chunks and lines: which are free, which are written, and what lines say of themselves.

pub(crate) mod active_pus;
pub(crate) mod chunk;
pub(crate) mod line_meta;
pub(crate) mod line_meta_writer;
pub(crate) mod lines;
pub(crate) mod open_line;
pub(crate) mod programs;
