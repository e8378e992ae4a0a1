//! [`SpanTrace`]: what channels and parallel units did, as a trace that Perfetto opens.

use std::fs::File;
use std::path::PathBuf;

use clock::Nanos;
use drive::SpanKind;

use super::{Lane, SimError, TraceOutput};
use crate::scenario::Scenario;
use crate::trace_file::{TraceFile, Track};

/// A trace being written: a process per drive, a track per channel and per parallel unit, and
/// counters of free lines and write amplification.
pub(super) struct SpanTrace {
    path: PathBuf,
    file: TraceFile<File>,
}

/// Tracks of parallel units come behind those of channels.
const FIRST_PU: u32 = 1_000;

impl SpanTrace {
    pub(super) fn create(
        output: TraceOutput,
        scenario: &Scenario,
        lanes: &mut [Lane],
    ) -> Result<SpanTrace, SimError> {
        if output.truncate {
            let failed = |source| SimError::Trace { path: output.name.clone(), source };
            output.file.set_len(0).map_err(failed)?;
        }
        let mut file = TraceFile::new(output.file);
        for (i, lane) in lanes.iter_mut().enumerate() {
            let process = i as u32 + 1;
            file.name_process(process, &format!("{} ({})", lane.name, scenario.title));
            lane.drive.enable_trace();
            let stats = lane.drive.stats();
            for channel in 0..stats.channels.len() as u32 {
                let track = Track { process, thread: 1 + channel };
                file.name_track(track, &format!("channel {channel}"));
            }
            let per_channel = (stats.pus.len() / stats.channels.len().max(1)).max(1) as u32;
            for pu in 0..stats.pus.len() as u32 {
                let track = Track { process, thread: FIRST_PU + pu };
                let name = format!("PU {}/{}", pu / per_channel, pu % per_channel);
                file.name_track(track, &name);
            }
        }
        Ok(SpanTrace { path: output.name, file })
    }

    /// The file, for others who draw into it.
    pub(super) fn file(&mut self) -> &mut TraceFile<File> {
        &mut self.file
    }

    /// Writes what has happened since the last call.
    pub(super) fn collect(&mut self, now: Nanos, lanes: &mut [Lane]) -> Result<(), SimError> {
        for (i, lane) in lanes.iter_mut().enumerate() {
            let process = i as u32 + 1;
            for span in lane.drive.take_spans() {
                let (name, thread) = match span.kind {
                    SpanKind::Read => ("read", FIRST_PU + span.at),
                    SpanKind::Program => ("program", FIRST_PU + span.at),
                    SpanKind::Erase => ("erase", FIRST_PU + span.at),
                    SpanKind::Transfer => ("transfer", 1 + span.at),
                };
                self.file.span(Track { process, thread }, name, span.start, span.start + span.time);
            }
            if let Some((stats, free)) = lane.ftl_view() {
                let wa = stats.write_amplification();
                self.file.counter(process, "free lines", now, free);
                if let Some(wa) = wa {
                    self.file.counter(process, "write amplification", now, wa);
                }
            }
        }
        Ok(())
    }

    pub(super) fn finish(self) -> Result<(), SimError> {
        let path = self.path;
        self.file.finish().map_err(|source| SimError::Trace { path, source })
    }
}
