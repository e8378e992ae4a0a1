//! Invariants of [`ShardHandle`].

use std::collections::BTreeSet;

use super::ShardHandle;
use crate::invariants::{PblkViolation, require, require_eq};

impl ShardHandle {
    /// Checks the core's requests, its ends of the rings to other cores, and its shard; not the
    /// shard's FTL, which [`Ftl::check_invariants`](ftl::Ftl::check_invariants) checks. May be
    /// called between any two calls of the handle's methods. Takes time proportional to the queue
    /// depth; for tests.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn check_invariants(&self) -> Result<(), PblkViolation> {
        self.pblk.check_invariants()?;
        self.parents.check_invariants(self.stripes.shards())?;
        let (accepted, depth) =
            (self.parents.outstanding() + self.completed.len(), self.limits.queue_depth);
        require!(
            accepted <= depth as usize,
            Fragments,
            "the queue depth bounds the requests",
            "all requests",
            format_args!("at most {depth}"),
            accepted
        );
        self.check_extent_queries()?;
        let sent = self.sent_fragments();
        let sent_to = |shard: u32| sent.iter().filter(move |(_, to)| to & 1 << shard != 0);
        for (peer, link) in (0..).zip(&self.channels) {
            let Some(link) = link else { continue };
            link.check_invariants(peer)?;
            // The fragments that a lost peer had are aborted, and sent in vain afterwards.
            if !link.is_abandoned() {
                require_eq!(
                    CoreChannels,
                    "a fragment that was sent is awaited",
                    format_args!("core {peer}"),
                    sent_to(peer).count() as u32,
                    link.outstanding
                );
            }
        }
        let own = u64::from(self.shard);
        let tags = self.pblk.outstanding_tags().filter(|tag| tag >> 32 == own);
        let at_shard: BTreeSet<u32> = tags.map(|tag| tag as u32).collect();
        let awaited: BTreeSet<u32> = sent_to(self.shard).map(|(slot, _)| *slot).collect();
        require_eq!(Fragments, "the shard has the core's own fragments", own, awaited, at_shard);
        Ok(())
    }

    /// Returns the requests with fragments that were sent and have not completed, and the mask of
    /// the shards that have these.
    fn sent_fragments(&self) -> Vec<(u32, u32)> {
        let unsent = |slot: u32| self.extent_queries.iter().any(|q| q.slot == slot && !q.is_sent);
        self.parents.pending().filter(|(slot, _)| !unsent(*slot)).collect()
    }

    fn check_extent_queries(&self) -> Result<(), PblkViolation> {
        for (at, query) in self.extent_queries.iter().enumerate() {
            let subject = format_args!("query {at}");
            let is_next = at == 0 || !query.is_sent;
            require!(is_next, Fragments, "one query is in progress", subject, 0, at);
            require!(
                self.parents.is_outstanding(query.slot),
                Fragments,
                "a query is outstanding",
                subject,
                "an outstanding request",
                query.slot
            );
        }
        Ok(())
    }
}
