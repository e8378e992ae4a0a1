//! [`Recording`]: traces and time series that are recorded while the jobs run.

pub(crate) mod block_layer_trace;
pub(crate) mod explanations;
pub(crate) mod spans;
pub(crate) mod time_series;

use machine::CoreSegment;
use scenario::Scenario;
use time::Nanos;

use crate::recording::block_layer_trace::BlockLayerTrace;
use crate::recording::explanations::ExplanationRecorder;
use crate::recording::spans::SpanTrace;
use crate::sim_run::SimRun;
use crate::{Explanation, SimError, SimOptions};

/// Traces and time series that are recorded while the jobs run.
pub(crate) struct Recording {
    explanations: Option<ExplanationRecorder>,
    spans: Option<SpanTrace>,
    block_layer: Option<BlockLayerTrace>,
}

impl Recording {
    pub(crate) fn start(
        scenario: &Scenario,
        options: &mut SimOptions<'_>,
        is_followed: bool,
        run: &mut SimRun,
    ) -> Result<Recording, SimError> {
        let dir = options.blktrace.as_deref();
        let output = options.trace.take();
        let spans = output.map(|output| SpanTrace::create(output, scenario, run));
        let mut spans = spans.transpose()?;
        let explains = is_followed && (spans.is_some() || options.slowest > 0);
        let stories = match explains {
            true => Some(ExplanationRecorder::start(options.slowest, run)?),
            false => None,
        };
        let layer = BlockLayerTrace::create(dir, spans.as_mut().map(SpanTrace::file), run)?;
        Ok(Recording { explanations: stories, spans, block_layer: layer })
    }

    /// Returns whether the events of the run are processed only about every thousand steps.
    pub(crate) fn is_coarse(&self) -> bool {
        self.spans.is_none() && self.block_layer.is_none()
    }

    /// Returns whether anything is recorded.
    pub(crate) fn is_on(&self) -> bool {
        !self.is_coarse() || self.explains()
    }

    /// Returns whether spans are written.
    pub(crate) fn has_spans(&self) -> bool {
        self.spans.is_some()
    }

    /// Returns whether requests are followed.
    pub(crate) fn explains(&self) -> bool {
        self.explanations.is_some()
    }

    /// Draws what the hardware threads of a modeled machine did; `tasks` has the names of its tasks.
    pub(crate) fn draw_machine(&mut self, tasks: &[String], segments: &[CoreSegment]) {
        if let Some(spans) = &mut self.spans {
            spans.draw_machine(tasks, segments);
        }
    }

    /// Processes what is left when the threads of a modeled machine have ended.
    pub(crate) fn collect_hosted(&mut self, run: &mut SimRun) -> Result<(), SimError> {
        match &mut self.block_layer {
            Some(layer) => {
                layer.collect_hosted(self.spans.as_mut().map(SpanTrace::file), run, true)
            }
            None => Ok(()),
        }
    }

    /// Derives explanations from the recorded events.
    pub(crate) fn explain(&mut self) {
        if let Some(stories) = &mut self.explanations {
            stories.collect(self.spans.as_mut());
        }
    }

    pub(crate) fn is_buffer_low(&self, run: &mut SimRun) -> bool {
        self.block_layer.as_ref().is_some_and(|layer| layer.is_buffer_low(run))
    }

    pub(crate) fn collect(&mut self, now: Nanos, run: &mut SimRun) -> Result<(), SimError> {
        if let Some(layer) = &mut self.block_layer {
            layer.collect(self.spans.as_mut().map(SpanTrace::file), run)?;
        }
        self.explain();
        if let Some(spans) = &mut self.spans {
            spans.count(now, run);
        }
        Ok(())
    }

    /// Completes the files; returns the number of events that they lack, and the explanation of
    /// each path; none if requests were not followed.
    pub(crate) fn finish(self, run: &mut SimRun) -> Result<(u64, Vec<Explanation>), SimError> {
        let dropped = self.block_layer.map_or(Ok(0), |layer| layer.finish(run))?;
        self.spans.map_or(Ok(()), SpanTrace::finish)?;
        let explanations = self.explanations.map(|stories| stories.finish(run)).unwrap_or_default();
        Ok((dropped, explanations))
    }
}
