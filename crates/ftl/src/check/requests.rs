//! Invariants of host requests.

use super::{Subject, Violation, require};
use crate::Ftl;

impl Ftl {
    pub(super) fn check_requests(&self) -> Result<(), Violation> {
        require!(
            self.prefetched <= self.write_queue.len(),
            Requests,
            "prefetched requests are queued",
            Subject::Part,
            format_args!("at most {}", self.write_queue.len()),
            self.prefetched
        );
        for (i, request) in (0..).zip(&self.write_queue) {
            require!(
                request.is_within(self.plan.logical),
                Requests,
                "a queued request has sectors left, all of them the host's",
                Subject::Index(i),
                format_args!("sectors below {}", self.plan.logical),
                format_args!("{request:?}")
            );
        }
        let waiters = self.pager.waiting_reads();
        self.host_reads.check(waiters.chain(self.fetches.waiting_reads(&self.host_reads)))
    }
}
