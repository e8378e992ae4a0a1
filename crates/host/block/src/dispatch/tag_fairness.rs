//! [`TagFairness`]: blk-mq's fair sharing of tags.

use crate::Submitter;

/// Number of tags per submitter, for submitters that compete without a common scheduler.
#[derive(Debug)]
pub(crate) struct TagFairness {
    pub(crate) taken: Box<[u16]>,
    /// Submitters that found no tag and have not got one since.
    waiting: Box<[bool]>,
    /// Number of submitters that have a tag or wait for one.
    pub(crate) active: u16,
}

impl TagFairness {
    pub(crate) fn new(submitters: u16) -> TagFairness {
        let count = usize::from(submitters);
        TagFairness { taken: vec![0; count].into(), waiting: vec![false; count].into(), active: 0 }
    }

    /// Returns whether a submitter has used up its share of the tags, the depth divided by the
    /// number of active submitters (blk-mq's `hctx_may_queue`).
    #[inline]
    pub(crate) fn is_over_share(&self, submitter: Submitter, depth: u16) -> bool {
        let who = usize::from(submitter.0);
        let others = self.active - u16::from(self.is_active(who));
        others > 0 && self.taken[who] >= depth.div_ceil(others + 1).max(1)
    }

    #[inline]
    fn is_active(&self, who: usize) -> bool {
        self.taken[who] > 0 || self.waiting[who]
    }

    #[inline]
    fn update(&mut self, submitter: Submitter, change: impl FnOnce(&mut u16, &mut bool)) {
        let who = usize::from(submitter.0);
        let before = self.is_active(who);
        change(&mut self.taken[who], &mut self.waiting[who]);
        self.active = self.active + u16::from(self.is_active(who)) - u16::from(before);
    }

    #[inline]
    pub(crate) fn record_alloc(&mut self, submitter: Submitter) {
        self.update(submitter, |taken, waiting| (*taken, *waiting) = (*taken + 1, false));
    }

    #[inline]
    pub(crate) fn record_free(&mut self, submitter: Submitter) {
        self.update(submitter, |taken, _| *taken -= 1);
    }

    pub(crate) fn mark_waiting(&mut self, submitter: Submitter) {
        self.update(submitter, |_, waiting| *waiting = true);
    }

    pub(crate) fn remove_submitter(&mut self, submitter: Submitter) {
        self.update(submitter, |_, waiting| *waiting = false);
    }
}
