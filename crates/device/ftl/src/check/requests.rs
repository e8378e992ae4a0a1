//! Invariants of host requests.

use super::Violation;
use crate::Ftl;

impl Ftl {
    pub(super) fn check_requests(&self) -> Result<(), Violation> {
        self.requests.write_queue.check(self.env.plan.logical)?;
        let waiters = self.mapping.waiting_reads(&self.requests.host_reads);
        self.requests.host_reads.check(waiters)
    }
}
