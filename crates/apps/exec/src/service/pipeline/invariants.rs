//! Invariants of the service: those of each part, and those between parts.

use block::BlockDevice;

use crate::Service;
use crate::invariants::{ServicePart, ServiceViolation, require_eq};
use crate::service::CallId;

impl<D: BlockDevice> Service<D> {
    /// Checks the invariants of every part between two iterations.
    pub(crate) fn check_invariants(&mut self) -> Result<(), ServiceViolation> {
        self.calls.pending.check_invariants()?;
        self.locks.check_invariants()?;
        self.posted_writes.check_invariants()?;
        self.shared_mappings.check_invariants()?;
        self.mapping_sync.check_invariants()?;
        // A check allocates nothing, because it is part of each sleep.
        let mut due = std::mem::take(&mut self.scratch.due_slots);
        due.clear();
        due.resize(self.sessions.len(), 0);
        let result = self.check_slots(&mut due);
        self.scratch.due_slots = due;
        result
    }

    /// Checks the invariants of the volume, too; takes time proportional to its metadata.
    pub(crate) fn check_all_invariants(&mut self) -> Result<(), ServiceViolation> {
        self.check_invariants()?;
        self.volume.check_invariants().map_err(|violation| ServiceViolation {
            part: ServicePart::Volume,
            invariant: violation.invariant,
            subject: format!("{}, {}", violation.part, violation.subject),
            expected: violation.expected,
            found: violation.found,
        })
    }

    /// Every slot that was taken has one call or posted write that waits or is in flight.
    /// `due` has a word of zeros for each session.
    fn check_slots(&self, due: &mut [u64]) -> Result<(), ServiceViolation> {
        let pending = self.calls.pending.iter().map(|call| call.from);
        let deferred = self.calls.deferred.iter().map(|call| call.from);
        let posted = self.posted_writes.waiting();
        for from in pending.chain(deferred).chain(posted).chain(self.mapping_sync.callers()) {
            let CallId { session, slot } = from;
            let is_listed = due[session] >> slot & 1 != 0;
            let subject = format_args!("slot {slot} of session {session}");
            let invariant = "a call waits once";
            require_eq(ServicePart::Calls, invariant, subject, false, is_listed)?;
            due[session] |= 1 << slot;
        }
        for (session, due) in self.sessions.iter().zip(due) {
            session.check_invariants(*due)?;
        }
        Ok(())
    }
}
