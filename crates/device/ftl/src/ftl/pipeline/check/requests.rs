//! Invariants of host requests.

use crate::Ftl;
use crate::check::Violation;

impl Ftl {
    pub(super) fn check_requests(&self) -> Result<(), Violation> {
        let waiters = self.mapping.waiting_reads(self.requests.reads());
        self.requests.check_invariants(&self.env, waiters)
    }
}
