//! [`ExplanationRecorder`]: records the tracepoints of a run and derives explanations from them.

use report::explain::{
    BackgroundSpan, Bands, Breakdown, BusySpan, Explained, Explainer, ExplanationSink,
    SlowestRequests,
};
use tracepoint::{Record, Recorder};

use crate::SimError;
use crate::recording::spans::{DriveSink, SpanTrace};
use crate::sim_run::SimRun;

/// Explanation of the latencies of one path's requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Explanation {
    /// The slowest requests, slowest first.
    pub slowest: Vec<Explained>,
    /// Latency breakdowns by job, operation and percentile.
    pub breakdowns: Vec<Breakdown>,
    /// The names of the jobs on the drive, with clones counted one by one; those of other paths have
    /// the name of the path in front.
    pub jobs: Vec<String>,
    /// Sector size in bytes.
    pub sector_bytes: u32,
}

/// A recording of the simulating thread.
pub(crate) struct ExplanationRecorder {
    recorder: Recorder,
    records: Vec<Record>,
    /// Explainer of each drive.
    explainers: Vec<Explainer>,
    /// Results of each path.
    paths: Vec<PathResults>,
}

/// Explained requests of one path.
struct PathResults {
    slowest: SlowestRequests,
    bands: Bands,
}

/// Forwards explanations of one drive to several sinks.
struct SinkTee<'a> {
    paths: &'a mut [PathResults],
    trace: Option<DriveSink<'a>>,
}

impl ExplanationSink for SinkTee<'_> {
    fn request(&mut self, request: &Explained) {
        if request.measured
            && let Some(path) = self.paths.get_mut(usize::from(request.path))
        {
            path.slowest.add(request);
            path.bands.add(request);
        }
        if let Some(trace) = &mut self.trace {
            trace.request(request);
        }
    }

    fn busy(&mut self, span: &BusySpan) {
        if let Some(trace) = &mut self.trace {
            trace.busy(span);
        }
    }

    fn background(&mut self, span: &BackgroundSpan) {
        if let Some(trace) = &mut self.trace {
            trace.background(span);
        }
    }
}

impl ExplanationRecorder {
    /// Starts to record. The `slowest` slowest requests of each path are kept.
    ///
    /// # Errors
    /// [`SimError::Recording`] if the thread already records.
    pub(crate) fn start(slowest: usize, run: &SimRun) -> Result<ExplanationRecorder, SimError> {
        let explainer = |drive| {
            let first_jobs = run.paths_of(drive).scan(0, |next, path| {
                let first = *next;
                *next += run.paths[path].job_names().len() as u32;
                Some((path as u16, first))
            });
            Explainer::with_paths(first_jobs)
        };
        let results =
            |_| PathResults { slowest: SlowestRequests::new(slowest), bands: Bands::default() };
        let recorder = Recorder::start().ok_or(SimError::Recording)?;
        if run.paths.iter().any(|path| !path.hosted_names.is_empty()) {
            tracepoint::set_clock(machine::now);
        }
        Ok(ExplanationRecorder {
            explainers: (0..run.drives.len()).map(explainer).collect(),
            paths: run.paths.iter().map(results).collect(),
            recorder,
            records: Vec::new(),
        })
    }

    /// Processes the events recorded since the last call.
    pub(crate) fn collect(&mut self, mut trace: Option<&mut SpanTrace>) {
        self.records.clear();
        self.recorder.drain_into(&mut self.records);
        for record in &self.records {
            let index = usize::from(record.drive);
            let Some(explainer) = self.explainers.get_mut(index) else { continue };
            let mut sink = SinkTee {
                paths: &mut self.paths,
                trace: trace.as_deref_mut().map(|trace| trace.drive_sink(index)),
            };
            explainer.feed(record, &mut sink);
        }
    }

    /// Returns the explanation of each path.
    pub(crate) fn finish(self, run: &SimRun) -> Vec<Explanation> {
        let of_path = |(index, results): (usize, PathResults)| {
            let path = &run.paths[index];
            Explanation {
                slowest: results.slowest.into_requests(),
                breakdowns: results.bands.finish(),
                jobs: run.job_names(path.drives[0], index),
                sector_bytes: path.sector_bytes(),
            }
        };
        self.paths.into_iter().enumerate().map(of_path).collect()
    }
}
