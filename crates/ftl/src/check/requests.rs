//! Invariants of host requests.

use super::{Subject, Violation, require, require_eq};
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
        let mut free = vec![false; self.host_reads.len()];
        for &index in &self.free_host_reads {
            let twice = std::mem::replace(&mut free[index as usize], true);
            require!(!twice, Requests, "a free read is free once", Subject::Index(index), 1, 2);
        }
        let mut waiting = vec![0u32; self.host_reads.len()];
        let waiters =
            self.pager.waiting_reads().chain(self.fetches.waiting_reads(&self.host_reads));
        for index in waiters {
            waiting[index as usize] += 1;
        }
        for (index, read) in (0..).zip(&self.host_reads) {
            let (is_free, waits) = (free[index as usize], waiting[index as usize]);
            require!(
                is_free || read.outstanding() > 0,
                Requests,
                "a read in progress has something outstanding",
                Subject::Index(index),
                "at least 1",
                read.outstanding()
            );
            let most = u32::from(!is_free);
            require!(
                waits <= most,
                Requests,
                "a read waits for one translation page at most",
                Subject::Index(index),
                format_args!("at most {most}"),
                waits
            );
            if !is_free {
                let waits_for_page = !read.is_looked_up();
                require_eq!(
                    Requests,
                    "a read that is not looked up waits for a translation page",
                    Subject::Index(index),
                    u32::from(waits_for_page),
                    waits
                );
            }
        }
        Ok(())
    }
}
