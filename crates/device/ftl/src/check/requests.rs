//! Invariants of host requests.

use super::Violation;
use crate::Ftl;

impl Ftl {
    pub(super) fn check_requests(&self) -> Result<(), Violation> {
        self.write_queue.check(self.plan.logical)?;
        let waiters = self.pager.waiting_reads();
        self.host_reads.check(waiters.chain(self.fetches.waiting_reads(&self.host_reads)))
    }
}
