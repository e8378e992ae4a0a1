//! [`BlockLayerTrace`]: the events of requests in the block layers. Writes files for blkparse, and
//! tracks beside the drives' tracks in a Perfetto trace.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use block::trace::blktrace::{BlktraceWriter, DeviceNumber, TraceProcess, TracedDevice};
use block::trace::{TraceEvent, merge_by_time};
use block::{BlockDevice, Submitter};
use report::trace_file::{BlockTracks, NamedSubmitter, TraceFile};
use stack::{BlockLayerQueue, CoreQueues};

use crate::SimError;
use crate::sim_run::SimRun;

/// Minimum number of events of one core that are buffered between two collections.
const EVENTS: usize = 1 << 16;
/// Events of one request, including the events of a batch with only that request.
const EVENTS_PER_REQUEST: usize = 8;

/// Events of every path's block layer.
pub(crate) struct BlockLayerTrace {
    dir: Option<PathBuf>,
    /// Writer per path; `None` if not requested, and for paths without a block layer.
    writers: Vec<Option<BlktraceWriter<BufWriter<File>>>>,
    tracks: Vec<Option<BlockTracks>>,
}

impl BlockLayerTrace {
    /// Starts to trace: into `dir` for blkparse, and into `file` for Perfetto. Returns `None` if
    /// neither is requested, or if no path has a block layer.
    pub(crate) fn create(
        dir: Option<&Path>,
        mut file: Option<&mut TraceFile<File>>,
        run: &mut SimRun,
    ) -> Result<Option<BlockLayerTrace>, SimError> {
        if dir.is_none() && file.is_none() {
            return Ok(None);
        }
        if let Some(dir) = dir {
            std::fs::create_dir_all(dir)
                .map_err(|source| SimError::Trace { path: dir.to_path_buf(), source })?;
        }
        let count = run.drives.len() as u32;
        let mut trace = BlockLayerTrace {
            dir: dir.map(Path::to_path_buf),
            writers: Vec::new(),
            tracks: Vec::new(),
        };
        let mut any = false;
        for (i, lane) in run.paths.iter_mut().enumerate() {
            let name = lane.name.clone();
            let layered = lane.device_mut().filter(|device| device.block_layer().is_some());
            let Some(device) = layered else {
                trace.writers.push(None);
                trace.tracks.push(None);
                continue;
            };
            any = true;
            let limits = *device.limits();
            let cores = device.cores() as u16;
            for queue in device.block_layer_queues() {
                queue.trace(EVENTS.max(limits.queue_depth as usize * EVENTS_PER_REQUEST));
            }
            let writer = dir.map(|dir| {
                let process = |core: u16| TraceProcess {
                    submitter: Submitter(core),
                    // 0 would be the kernel.
                    pid: u32::from(core) + 1,
                    comm: format!("core{core}"),
                };
                let traced = TracedDevice {
                    name: name.clone(),
                    number: DeviceNumber { major: 259, minor: i as u32 },
                    sector_bytes: limits.sector_bytes,
                    cores,
                    processes: (0..cores).map(process).collect(),
                    started: (0, 0),
                };
                BlktraceWriter::create(dir, &traced)
                    .map_err(|source| SimError::Blktrace { dir: dir.to_path_buf(), source })
            });
            trace.writers.push(writer.transpose()?);
            let tracks = file.as_deref_mut().map(|file| {
                let names: Vec<String> = (0..cores).map(|core| format!("core {core}")).collect();
                let submitters: Vec<NamedSubmitter<'_>> = (0..cores)
                    .map(Submitter)
                    .zip(&names)
                    .map(|(submitter, name)| NamedSubmitter { submitter, name })
                    .collect();
                let process = count + i as u32 + 1;
                BlockTracks::new(file, process, &format!("block layer of {name}"), &submitters)
            });
            trace.tracks.push(tracks);
        }
        Ok(any.then_some(trace))
    }

    /// Returns whether the event buffer of a core is nearly full.
    pub(crate) fn is_buffer_low(&self, run: &mut SimRun) -> bool {
        run.paths.iter_mut().any(|lane| {
            let queues = lane.device_mut().into_iter().flat_map(CoreQueues::block_layer_queues);
            queues.filter_map(BlockLayerQueue::tracer).any(|t| t.events().len() > EVENTS / 2)
        })
    }

    /// Writes the events since the last call.
    pub(crate) fn collect(
        &mut self,
        mut file: Option<&mut TraceFile<File>>,
        run: &mut SimRun,
    ) -> Result<(), SimError> {
        self.collect_hosted(file.as_deref_mut(), run, false)?;
        for (i, lane) in run.paths.iter_mut().enumerate() {
            let Some(device) = lane.device_mut() else { continue };
            let mut queues: Vec<_> = device.block_layer_queues().collect();
            if let Some(writer) = &mut self.writers[i] {
                for (core, queue) in queues.iter_mut().enumerate() {
                    let Some(tracer) = queue.tracer() else { continue };
                    let dir = self.dir.clone().unwrap_or_default();
                    writer
                        .write(core as u16, tracer.events())
                        .map_err(|source| SimError::Blktrace { dir, source })?;
                }
            }
            if let (Some(tracks), Some(file)) = (&mut self.tracks[i], file.as_deref_mut()) {
                let events: Vec<&[TraceEvent]> = queues
                    .iter_mut()
                    .filter_map(|q| q.tracer().map(|tracer| tracer.events()))
                    .collect();
                tracks.draw(file, &merge_by_time(&events));
            }
            for queue in queues {
                if let Some(tracer) = queue.tracer() {
                    tracer.clear();
                }
            }
        }
        Ok(())
    }

    /// Writes the events since the last call of the paths whose queues belong to threads of a modeled
    /// machine, which may have stopped.
    pub(crate) fn collect_hosted(
        &mut self,
        mut file: Option<&mut TraceFile<File>>,
        run: &SimRun,
        has_stopped: bool,
    ) -> Result<(), SimError> {
        for (i, lane) in run.paths.iter().enumerate() {
            let Some(hosted) = &lane.hosted else { continue };
            let events = hosted.take_events(has_stopped);
            if let Some(writer) = &mut self.writers[i] {
                for (core, events) in events.iter().enumerate() {
                    let dir = self.dir.clone().unwrap_or_default();
                    writer
                        .write(core as u16, events)
                        .map_err(|source| SimError::Blktrace { dir, source })?;
                }
            }
            if let (Some(tracks), Some(file)) = (&mut self.tracks[i], file.as_deref_mut()) {
                let events: Vec<&[TraceEvent]> = events.iter().map(Vec::as_slice).collect();
                tracks.draw(file, &merge_by_time(&events));
            }
        }
        Ok(())
    }

    /// Completes the files; returns the number of events that were dropped because a buffer was
    /// full.
    pub(crate) fn finish(self, run: &mut SimRun) -> Result<u64, SimError> {
        for writer in self.writers.into_iter().flatten() {
            let dir = self.dir.clone().unwrap_or_default();
            writer.finish().map_err(|source| SimError::Blktrace { dir, source })?;
        }
        let mut dropped = 0;
        for lane in &mut run.paths {
            let Some(device) = lane.device_mut() else { continue };
            for queue in device.block_layer_queues() {
                dropped += queue.tracer().map_or(0, |tracer| tracer.dropped());
            }
        }
        Ok(dropped)
    }
}
