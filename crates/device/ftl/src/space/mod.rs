//! Chunks and lines: which are free, which are written, and what lines say of themselves.

pub(crate) mod active_pus;
pub(crate) mod chunk;
pub(crate) mod line_meta;
pub(crate) mod line_meta_writer;
pub(crate) mod line_refresh;
pub(crate) mod lines;
pub(crate) mod open_line;
pub(crate) mod programs;

use crate::env::Env;
use crate::ftl::STREAM_COUNT;
use line_meta_writer::LineMetaWriter;
use lines::LineTable;
use open_line::OpenLine;
use programs::ProgramsInFlight;

/// Chunks, lines, and where write units go.
#[derive(Clone, Debug)]
pub(crate) struct Space {
    pub(crate) lines: LineTable,
    /// Open lines by stream: the host's (and all data without hot/cold separation), relocated data,
    /// cold data that static wear leveling relocates, translation pages.
    pub(crate) open_lines: [Vec<OpenLine>; STREAM_COUNT],
    /// Parallel units that a stream is written to at a time, of those that a line has.
    pub(crate) active_pus: u32,
    pub(crate) programs: ProgramsInFlight,
    pub(crate) line_meta_writer: LineMetaWriter,
    /// The line that is padded until it is full, so that it can be relocated.
    pub(crate) finishing: Option<OpenLine>,
}

impl Space {
    /// Space without any chunk.
    pub(crate) fn new(env: &Env) -> Space {
        Space {
            lines: LineTable::new(env.geometry, &env.plan, &env.config),
            open_lines: Default::default(),
            active_pus: env.plan.active_pus,
            programs: ProgramsInFlight::new(env.geometry.pus),
            line_meta_writer: LineMetaWriter::new(&env.plan),
            finishing: None,
        }
    }

    /// The lines and chunks, for other parts to read.
    #[inline]
    pub(crate) fn table(&self) -> &LineTable {
        &self.lines
    }
}
