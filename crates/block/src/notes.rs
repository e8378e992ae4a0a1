//! [`Notes`]: where a core writes down what happens to requests, if anybody wants to know.

use clock::Nanos;
use nvme::Status;

use crate::Staged;
use crate::trace::{Action, TraceEvent, Tracer};

/// No hardware queue yet.
pub(crate) const NO_QUEUE: u16 = u16::MAX;

/// A core's notes.
#[derive(Debug)]
pub(crate) struct Notes {
    pub(crate) tracer: Option<Tracer>,
    pub(crate) core: u16,
}

impl Notes {
    /// Whether anybody wants to know.
    #[inline(always)]
    pub(crate) fn is_on(&self) -> bool {
        self.tracer.is_some()
    }

    #[inline]
    pub(crate) fn note(&mut self, action: Action, at: Nanos, staged: &Staged, queue: u16) {
        self.note_end(action, at, staged, queue, Status::SUCCESS);
    }

    #[inline]
    pub(crate) fn note_end(
        &mut self,
        action: Action,
        at: Nanos,
        staged: &Staged,
        queue: u16,
        status: Status,
    ) {
        if let Some(tracer) = &mut self.tracer {
            let request = &staged.request;
            tracer.note(TraceEvent {
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
