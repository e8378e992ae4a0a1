//! [`ExplanationRecorder`]: records the tracepoints of a run and derives explanations from them.

use report::explain::{
    BackgroundSpan, Bands, Breakdown, BusySpan, Explained, Explainer, ExplanationSink,
    SlowestRequests,
};
use tracepoint::{Record, Recorder};

use crate::SimError;
use crate::recording::spans::{DriveSink, SpanTrace};
use crate::sim_run::{PathRun, SimRun};

/// Explanation of the latencies of one path's requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Explanation {
    /// The slowest requests, slowest first.
    pub slowest: Vec<Explained>,
    /// Latency breakdowns by job, operation and percentile.
    pub breakdowns: Vec<Breakdown>,
    /// The names of the jobs, with clones counted one by one.
    pub jobs: Vec<String>,
    /// Sector size in bytes.
    pub sector_bytes: u32,
}

/// A recording of the simulating thread.
pub(crate) struct ExplanationRecorder {
    recorder: Recorder,
    records: Vec<Record>,
    drives: Vec<DriveExplainer>,
}

struct DriveExplainer {
    explainer: Explainer,
    slowest: SlowestRequests,
    bands: Bands,
}

/// Forwards explanations to several sinks.
struct SinkTee<'a> {
    slowest: &'a mut SlowestRequests,
    bands: &'a mut Bands,
    trace: Option<DriveSink<'a>>,
}

impl ExplanationSink for SinkTee<'_> {
    fn request(&mut self, request: &Explained) {
        if request.measured {
            self.slowest.add(request);
            self.bands.add(request);
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
    /// Starts to record. The `slowest` slowest requests of each drive are kept.
    ///
    /// # Errors
    /// [`SimError::Recording`] if the thread already records.
    pub(crate) fn start(slowest: usize, run: &SimRun) -> Result<ExplanationRecorder, SimError> {
        let drives = run.drives.iter().map(|_| DriveExplainer {
            explainer: Explainer::default(),
            slowest: SlowestRequests::new(slowest),
            bands: Bands::default(),
        });
        Ok(ExplanationRecorder {
            drives: drives.collect(),
            recorder: Recorder::start().ok_or(SimError::Recording)?,
            records: Vec::new(),
        })
    }

    /// Processes the events recorded since the last call.
    pub(crate) fn collect(&mut self, mut trace: Option<&mut SpanTrace>) {
        self.records.clear();
        self.recorder.drain_into(&mut self.records);
        for record in &self.records {
            let index = usize::from(record.drive);
            let Some(drive) = self.drives.get_mut(index) else { continue };
            let mut sink = SinkTee {
                slowest: &mut drive.slowest,
                bands: &mut drive.bands,
                trace: trace.as_deref_mut().map(|trace| trace.drive_sink(index)),
            };
            drive.explainer.feed(record, &mut sink);
        }
    }

    /// Returns the explanation of each path; a drive has the events of one.
    pub(crate) fn finish(self, run: &SimRun) -> Vec<Option<Explanation>> {
        let mut drives: Vec<Option<DriveExplainer>> = self.drives.into_iter().map(Some).collect();
        let of_path = |path: &PathRun| {
            let drive = drives.get_mut(path.drives[0])?.take()?;
            Some(Explanation {
                slowest: drive.slowest.into_requests(),
                breakdowns: drive.bands.finish(),
                jobs: path.job_names(),
                sector_bytes: path.sector_bytes(),
            })
        };
        run.paths.iter().map(of_path).collect()
    }
}
