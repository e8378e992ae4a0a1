//! [`IoHooks`]: a core's hooks that record trace events of requests.

use nvme::Status;
use time::Nanos;

use crate::StagedRequest;
use crate::trace::{Action, TraceEvent, Tracer};

/// The queue index of an event before a hardware queue is chosen.
pub(crate) const NO_QUEUE: u16 = u16::MAX;

/// The trace hooks of one core.
#[derive(Debug)]
pub(crate) struct IoHooks {
    pub(crate) tracer: Option<Tracer>,
    pub(crate) core: u16,
}

impl IoHooks {
    /// Returns whether tracing is enabled.
    #[inline(always)]
    pub(crate) fn is_enabled(&self) -> bool {
        self.tracer.is_some()
    }

    #[inline]
    pub(crate) fn record(&mut self, action: Action, at: Nanos, staged: &StagedRequest, queue: u16) {
        self.record_completion(action, at, staged, queue, Status::SUCCESS);
    }

    #[inline]
    pub(crate) fn record_completion(
        &mut self,
        action: Action,
        at: Nanos,
        staged: &StagedRequest,
        queue: u16,
        status: Status,
    ) {
        if let Some(tracer) = &mut self.tracer {
            let request = &staged.request;
            tracer.record(TraceEvent {
                at,
                action,
                op: request.op,
                fua: request.fua,
                lba: request.lba,
                sectors: request.sectors,
                submitter: staged.submitter,
                core: self.core,
                queue,
                status,
            });
        }
    }
}
