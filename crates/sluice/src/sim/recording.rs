//! [`Recording`]: what is written down while the jobs run.

use clock::Nanos;

use super::layer_trace::LayerTrace;
use super::spans::SpanTrace;
use super::stories::Stories;
use super::{Explanation, Lane, SimError, SimOptions};
use crate::scenario::Scenario;

/// What is written down while the jobs run.
pub(super) struct Recording {
    stories: Option<Stories>,
    spans: Option<SpanTrace>,
    layer: Option<LayerTrace>,
}

impl Recording {
    pub(super) fn start(
        scenario: &Scenario,
        options: &mut SimOptions<'_>,
        lanes: &mut [Lane],
    ) -> Result<Recording, SimError> {
        let dir = options.blktrace.as_deref();
        let output = options.trace.take();
        let spans = output.map(|output| SpanTrace::create(output, scenario, lanes));
        let mut spans = spans.transpose()?;
        let stories = match spans.is_some() || options.slowest > 0 {
            true => Some(Stories::start(options.slowest, lanes)?),
            false => None,
        };
        let layer = LayerTrace::create(dir, spans.as_mut().map(SpanTrace::file), lanes)?;
        Ok(Recording { stories, spans, layer })
    }

    /// Whether the run's events are looked at every thousand or so turns only.
    pub(super) fn is_coarse(&self) -> bool {
        self.spans.is_none() && self.layer.is_none()
    }

    /// Makes stories of what was recorded.
    pub(super) fn explain(&mut self) {
        if let Some(stories) = &mut self.stories {
            stories.collect(self.spans.as_mut());
        }
    }

    pub(super) fn is_pressed(&self, lanes: &mut [Lane]) -> bool {
        self.layer.as_ref().is_some_and(|layer| layer.is_pressed(lanes))
    }

    pub(super) fn collect(&mut self, now: Nanos, lanes: &mut [Lane]) -> Result<(), SimError> {
        if let Some(layer) = &mut self.layer {
            layer.collect(self.spans.as_mut().map(SpanTrace::file), lanes)?;
        }
        self.explain();
        if let Some(spans) = &mut self.spans {
            spans.count(now, lanes);
        }
        Ok(())
    }

    /// Completes the files; returns how many events are missing in them, and the stories of each drive.
    pub(super) fn finish(self, lanes: &mut [Lane]) -> Result<(u64, Vec<Explanation>), SimError> {
        let dropped = self.layer.map_or(Ok(0), |layer| layer.finish(lanes))?;
        self.spans.map_or(Ok(()), SpanTrace::finish)?;
        let explanations = self.stories.map(|stories| stories.finish(lanes)).unwrap_or_default();
        Ok((dropped, explanations))
    }
}
