//! [`SpanTrace`]: writes requests, and the activity of channels, parallel units and FTL, as a
//! Perfetto trace.
//!
//! A drive has a process, and each path to it one. The drive's process has a track per channel and
//! per parallel unit, tracks for GC, checkpoints and flushes, and counters. FTLs in the host have
//! tracks and counters of their own there if several paths lead to the drive. The process of a path
//! has a track per slot of each job: a slice per request, in it a slice per wait, and arrows to the
//! array operations that it caused. A modeled machine has a process with a track per hardware thread.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::PathBuf;

use ftl::FtlStats;
use machine::{CoreSegment, CoreState};
use report::explain::{
    Background, BackgroundSpan, BusySpan, Explained, ExplanationSink, FlashResource, Names,
    cause_name, op_name,
};
use report::trace_file::{Argument, TraceFile, Track, TrackTime};
use scenario::Scenario;
use time::Nanos;
use tracepoint::ArrayOp;

use crate::sim_run::{PathRun, SimRun, drive_ftl_snapshot};
use crate::{SimError, TraceOutput};

/// A trace that is being written.
pub(crate) struct SpanTrace {
    path: PathBuf,
    file: TraceFile<File>,
    drives: Vec<DriveTracks>,
    /// Names of slices of a modeled machine, by task and state.
    slices: BTreeMap<(usize, CoreState), String>,
    /// Next id of an arrow or background slice.
    next_id: u64,
}

/// Tracks of one drive.
struct DriveTracks {
    /// Process of the drive.
    drive: u32,
    /// Tracks of the paths to it.
    paths: Vec<PathTracks>,
    pus_per_channel: u32,
    /// Array operations of in-flight requests: the request, the track and the start.
    operations: Vec<(u64, Track, Nanos)>,
}

/// Tracks of the jobs of one path.
struct PathTracks {
    /// Index of the path.
    path: usize,
    /// Process of the jobs.
    jobs: u32,
    job_names: Vec<String>,
    /// First track of the background work of the path's FTL.
    background: u32,
    /// Slots that have a track.
    slots: BTreeSet<(u32, u32)>,
}

/// First track of parallel units, after the tracks of channels.
const FIRST_PU: u32 = 1_000;
/// First track of background work, after the tracks of parallel units.
const BACKGROUND: u32 = 1_000_000;
/// Tracks of the background work of an FTL.
const BACKGROUND_TRACKS: [&str; 3] = ["GC", "checkpoints", "flushes"];
/// First process of jobs, after those of drives and block layers.
const JOBS: u32 = 10_000;
/// Process of the modeled machine, after those of jobs.
const HOST: u32 = 1_000_000;

impl SpanTrace {
    pub(crate) fn create(
        output: TraceOutput,
        scenario: &Scenario,
        run: &mut SimRun,
    ) -> Result<SpanTrace, SimError> {
        if output.truncate {
            let failed = |source| SimError::Trace { path: output.name.clone(), source };
            output.file.set_len(0).map_err(failed)?;
        }
        let mut file = TraceFile::new(output.file);
        let mut drives = Vec::new();
        // Process of a further path to a drive.
        let mut further = JOBS + run.drives.len() as u32;
        for i in 0..run.drives.len() {
            let process = i as u32 + 1;
            let of_drive: Vec<usize> = run.paths_of(i).collect();
            // An FTL of a shared drive is the drive's own, and one of a path is in the host.
            let is_shared = of_drive.len() > 1;
            let has_ftl = match run.path_of(i) {
                Some(path) => run.ftl_snapshot(path).is_some(),
                None => is_shared && drive_ftl_snapshot(run.device_of(i)).is_some(),
            };
            let has_host_ftl: Vec<bool> = of_drive
                .iter()
                .map(|path| is_shared && run.ftl_snapshot(*path).is_some())
                .collect();
            let lane = &run.drives[i];
            file.name_process(process, &format!("{} ({})", lane.name, scenario.title));
            let stats = run.device_of(i).stats(&lane.name);
            for channel in 0..stats.channels.len() as u32 {
                let track = Track { process, thread: 1 + channel };
                file.name_track(track, &format!("channel {channel}"));
            }
            let pus_per_channel = (stats.pus.len() / stats.channels.len().max(1)).max(1) as u32;
            for pu in 0..stats.pus.len() as u32 {
                let track = Track { process, thread: FIRST_PU + pu };
                let name = format!("PU {}/{}", pu / pus_per_channel, pu % pus_per_channel);
                file.name_track(track, &name);
            }
            if has_ftl {
                name_background(&mut file, process, BACKGROUND, "");
            }
            let mut paths = Vec::new();
            for (n, (&path, has_host_ftl)) in of_drive.iter().zip(has_host_ftl).enumerate() {
                let name = &run.paths[path].name;
                let jobs = match n {
                    0 => JOBS + process,
                    _ => {
                        further += 1;
                        further
                    }
                };
                let mut background = BACKGROUND;
                if has_host_ftl {
                    background += (1 + n as u32) * BACKGROUND_TRACKS.len() as u32;
                    name_background(&mut file, process, background, &format!("{name}: "));
                }
                file.name_process(jobs, &format!("{name}: jobs"));
                let job_names = run.job_names(i, path);
                paths.push(PathTracks {
                    path,
                    jobs,
                    job_names,
                    background,
                    slots: BTreeSet::new(),
                });
            }
            if paths.is_empty() {
                file.name_process(JOBS + process, &format!("{}: jobs", lane.name));
            }
            let operations = Vec::new();
            drives.push(DriveTracks { drive: process, paths, pus_per_channel, operations });
        }
        if let Some(host) = &scenario.host.machine {
            file.name_process(HOST, &format!("host: {}", host.model.name()));
            for core in 0..host.model.hardware_threads() as u32 {
                file.name_track(hardware_thread(core), &format!("hardware thread {core}"));
            }
        }
        let slices = BTreeMap::new();
        Ok(SpanTrace { path: output.name, file, drives, slices, next_id: 0 })
    }

    /// Returns the file, for other writers.
    pub(crate) fn file(&mut self) -> &mut TraceFile<File> {
        &mut self.file
    }

    /// Returns the sink of one drive's explanations.
    pub(crate) fn drive_sink(&mut self, drive: usize) -> DriveSink<'_> {
        DriveSink { trace: self, drive }
    }

    /// Draws what the hardware threads of a modeled machine did: a slice per state, with the name of
    /// the task; an idle hardware thread has none. `tasks` has the names of the tasks.
    pub(crate) fn draw_machine(&mut self, tasks: &[String], segments: &[CoreSegment]) {
        for CoreSegment { core, task, state, from, to } in segments {
            let name = self.slices.entry((task.index(), *state)).or_insert_with(|| {
                let task = tasks.get(task.index()).map_or("?", String::as_str);
                format!("{task} ({})", state.word().replace('_', " "))
            });
            self.file.span(hardware_thread(*core as u32), name, *from, *to);
        }
    }

    /// Writes the current values of the counters.
    pub(crate) fn count(&mut self, now: Nanos, run: &mut SimRun) {
        for (i, tracks) in self.drives.iter().enumerate() {
            // As in the table, counters exclude preconditioning.
            let mut draw = |of: &str, (stats, free): (FtlStats, f64), before: Option<FtlStats>| {
                self.file.counter(tracks.drive, &format!("{of}free lines"), now, free);
                let stats = before.map_or(stats, |before| stats.since(&before));
                if let Some(wa) = stats.write_amplification() {
                    self.file.counter(tracks.drive, &format!("{of}write amplification"), now, wa);
                }
            };
            if let Some(path) = run.path_of(i) {
                if let Some(ftl) = run.ftl_snapshot(path) {
                    draw("", ftl, run.paths[path].ftl_before);
                }
                continue;
            }
            if let (Some(ftl), false) =
                (drive_ftl_snapshot(run.device_of(i)), tracks.paths.is_empty())
            {
                draw("", ftl, run.drives[i].ftl_before);
            }
            for PathTracks { path, .. } in &tracks.paths {
                if let Some(ftl) = run.ftl_snapshot(*path) {
                    let PathRun { name, ftl_before, .. } = &run.paths[*path];
                    draw(&format!("{name}: "), ftl, *ftl_before);
                }
            }
        }
    }

    pub(crate) fn finish(self) -> Result<(), SimError> {
        let path = self.path;
        self.file.finish().map_err(|source| SimError::Trace { path, source })
    }
}

/// Draws the activity of one drive and its jobs.
pub(crate) struct DriveSink<'a> {
    trace: &'a mut SpanTrace,
    drive: usize,
}

impl ExplanationSink for DriveSink<'_> {
    fn request(&mut self, request: &Explained) {
        let trace = &mut *self.trace;
        let (file, tracks) = (&mut trace.file, &mut trace.drives[self.drive]);
        let paths = &mut tracks.paths;
        let path = paths.iter_mut().find(|tracks| tracks.path == usize::from(request.path));
        let Some(path) = path else { return };
        let track = path.slot(file, request.job, request.slot);
        let end = request.start + request.latency;
        let arguments = [
            Argument::number("request", request.serial),
            Argument::number("lba", request.lba),
            Argument::number("sectors", request.sectors.into()),
        ];
        file.span_with(track, op_name(request.op), request.start, end, &arguments);
        let names = Names {
            jobs: &path.job_names,
            pus_per_channel: tracks.pus_per_channel,
            sector_bytes: 0,
        };
        for wait in &request.waits {
            let name = names.reason(wait.kind, wait.pu);
            file.span(track, &name, wait.start, wait.start + wait.time);
        }
        let mut i = 0;
        while i < tracks.operations.len() {
            if tracks.operations[i].0 != request.serial {
                i += 1;
                continue;
            }
            let (_, to, then) = tracks.operations.swap_remove(i);
            trace.next_id += 1;
            let from = TrackTime { track, at: request.start.max(request.issued) };
            file.arrow(trace.next_id, from, TrackTime { track: to, at: then });
        }
    }

    fn busy(&mut self, span: &BusySpan) {
        let trace = &mut *self.trace;
        let tracks = &mut trace.drives[self.drive];
        let (name, thread) = match (span.on, span.op) {
            (FlashResource::Channel(channel), _) => ("transfer", 1 + channel),
            (FlashResource::Pu(pu), ArrayOp::Read) => ("read", FIRST_PU + pu),
            (FlashResource::Pu(pu), ArrayOp::Program) => ("program", FIRST_PU + pu),
            (FlashResource::Pu(pu), ArrayOp::Erase) => ("erase", FIRST_PU + pu),
        };
        let track = Track { process: tracks.drive, thread };
        let mut arguments = [Argument::number("", 0); 4];
        let facts = [
            Some(Argument::text("cause", cause_name(span.cause))),
            Some(Argument::number("chunk", span.chunk.into())),
            span.request.map(|request| Argument::number("request", request)),
            span.lba.map(|lba| Argument::number("lba", lba)),
        ];
        let mut count = 0;
        for fact in facts.into_iter().flatten() {
            arguments[count] = fact;
            count += 1;
        }
        trace.file.span_with(track, name, span.start, span.end, &arguments[..count]);
        if let (FlashResource::Pu(_), Some(request)) = (span.on, span.request) {
            tracks.operations.push((request, track, span.start));
        }
    }

    fn background(&mut self, span: &BackgroundSpan) {
        let trace = &mut *self.trace;
        let tracks = &trace.drives[self.drive];
        let path = span.path.map(usize::from);
        let path = tracks.paths.iter().find(|tracks| Some(tracks.path) == path);
        let first = path.map_or(BACKGROUND, |path| path.background);
        trace.next_id += 1;
        let id = trace.next_id;
        let (thread, name, arguments) = match span.work {
            Background::Gc { line, valid } => {
                let valid = vec![
                    Argument::number("line", line.into()),
                    Argument::number("valid sectors", valid.into()),
                ];
                (first, "GC of a line", valid)
            }
            Background::Checkpoint => (first + 1, "checkpoint", Vec::new()),
            Background::Flush => (first + 2, "flush", Vec::new()),
        };
        let track = Track { process: tracks.drive, thread };
        trace.file.begin_async_with(track, "ftl", name, id, span.start, &arguments);
        trace.file.end_async(track, "ftl", name, id, span.end);
    }
}

/// Returns the track of a hardware thread of the modeled machine.
fn hardware_thread(index: u32) -> Track {
    Track { process: HOST, thread: 1 + index }
}

/// Names the tracks of the background work of an FTL, from `first`.
fn name_background(file: &mut TraceFile<File>, process: u32, first: u32, of: &str) {
    for (thread, name) in (first..).zip(BACKGROUND_TRACKS) {
        file.name_track(Track { process, thread }, &format!("{of}{name}"));
    }
}

impl PathTracks {
    /// Returns the track of a job's slot, and names it at its first use.
    fn slot(&mut self, file: &mut TraceFile<File>, job: u32, slot: u32) -> Track {
        // There are fewer than 65,536 slots, and fewer than 4,096 jobs with clones.
        let track = Track { process: self.jobs, thread: job << 16 | slot };
        if self.slots.insert((job, slot)) {
            let name = self.job_names.get(job as usize).map_or("?", String::as_str);
            file.name_track(track, &format!("{name}, slot {slot}"));
        }
        track
    }
}
