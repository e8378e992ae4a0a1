//! [`Stories`]: the recording of a run's tracepoints, and what is made of it.

use tracepoint::{Record, Recorder};

use super::spans::{DriveSink, SpanTrace};
use super::{Lane, SimError};
use crate::explain::{
    BackgroundSpan, Bands, Breakdown, BusySpan, Explained, Explainer, Sink, Slowest,
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
pub(super) struct Stories {
    recorder: Recorder,
    records: Vec<Record>,
    drives: Vec<DriveStories>,
}

struct DriveStories {
    explainer: Explainer,
    slowest: Slowest,
    bands: Bands,
}

/// Hands stories to those who want them.
struct Both<'a> {
    slowest: &'a mut Slowest,
    bands: &'a mut Bands,
    trace: Option<DriveSink<'a>>,
}

impl Sink for Both<'_> {
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

impl Stories {
    /// Starts to record; the `slowest` requests of each drive are kept.
    ///
    /// # Errors
    /// [`SimError::Recording`] when the thread records already.
    pub(super) fn start(slowest: usize, lanes: &[Lane]) -> Result<Stories, SimError> {
        let drives = lanes.iter().map(|_| DriveStories {
            explainer: Explainer::default(),
            slowest: Slowest::new(slowest),
            bands: Bands::default(),
        });
        Ok(Stories {
            drives: drives.collect(),
            recorder: Recorder::start().ok_or(SimError::Recording)?,
            records: Vec::new(),
        })
    }

    /// Goes through what was recorded since the last call.
    pub(super) fn collect(&mut self, mut trace: Option<&mut SpanTrace>) {
        self.records.clear();
        self.recorder.take(&mut self.records);
        for record in &self.records {
            let index = usize::from(record.drive);
            let Some(drive) = self.drives.get_mut(index) else { continue };
            let mut sink = Both {
                slowest: &mut drive.slowest,
                bands: &mut drive.bands,
                trace: trace.as_deref_mut().map(|trace| trace.of_drive(index)),
            };
            drive.explainer.feed(record, &mut sink);
        }
    }

    /// What was found, by drive.
    pub(super) fn finish(self, lanes: &[Lane]) -> Vec<Explanation> {
        let all = self.drives.into_iter().zip(lanes).map(|(drive, lane)| Explanation {
            slowest: drive.slowest.into_requests(),
            breakdowns: drive.bands.finish(),
            jobs: lane.job_names(),
            sector_bytes: lane.sector_bytes(),
        });
        all.collect()
    }
}
