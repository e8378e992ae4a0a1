//! [`ExplanationRecorder`]: the recording of a run's tracepoints, and what is made of it.

use tracepoint::{Record, Recorder};

use super::spans::{DriveSink, SpanTrace};
use super::{DriveRun, SimError};
use crate::explain::{
    BackgroundSpan, Bands, Breakdown, BusySpan, Explained, Explainer, ExplanationSink,
    SlowestRequests,
};

/// Why the requests of one drive took as long as they did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Explanation {
    /// The slowest requests, slowest first.
    pub slowest: Vec<Explained>,
    /// Where the time went, by job, operation and percentile.
    pub breakdowns: Vec<Breakdown>,
    /// The names of the jobs, clones counted one by one.
    pub jobs: Vec<String>,
    /// Bytes of a sector.
    pub sector_bytes: u32,
}

/// A recording of the thread that simulates.
pub(super) struct ExplanationRecorder {
    recorder: Recorder,
    records: Vec<Record>,
    drives: Vec<DriveExplainer>,
}

struct DriveExplainer {
    explainer: Explainer,
    slowest: SlowestRequests,
    bands: Bands,
}

/// Hands stories to those who want them.
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
    /// Starts to record; the `slowest` requests of each drive are kept.
    ///
    /// # Errors
    /// [`SimError::Recording`] when the thread records already.
    pub(super) fn start(
        slowest: usize,
        lanes: &[DriveRun],
    ) -> Result<ExplanationRecorder, SimError> {
        let drives = lanes.iter().map(|_| DriveExplainer {
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

    /// Goes through what was recorded since the last call.
    pub(super) fn collect(&mut self, mut trace: Option<&mut SpanTrace>) {
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

    /// What was found, by drive.
    pub(super) fn finish(self, lanes: &[DriveRun]) -> Vec<Explanation> {
        let all = self.drives.into_iter().zip(lanes).map(|(drive, lane)| Explanation {
            slowest: drive.slowest.into_requests(),
            breakdowns: drive.bands.finish(),
            jobs: lane.job_names(),
            sector_bytes: lane.sector_bytes(),
        });
        all.collect()
    }
}
