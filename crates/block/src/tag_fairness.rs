//! [`TagFairness`]: blk-mq's fair sharing of tags.

use crate::Submitter;

/// How many tags each submitter has, where several compete for them without a common scheduler.
#[derive(Debug)]
pub(crate) struct TagFairness {
    pub(crate) taken: Box<[u16]>,
    /// Who has found no tag and not got one since.
    waiting: Box<[bool]>,
    /// Submitters that have a tag or wait for one.
    pub(crate) active: u16,
}

impl TagFairness {
    pub(crate) fn new(submitters: u16) -> TagFairness {
        let count = usize::from(submitters);
        TagFairness { taken: vec![0; count].into(), waiting: vec![false; count].into(), active: 0 }
    }

    /// Whether a submitter that has its share already must leave a tag to others (blk-mq's fair
    /// sharing of tags): the depth, divided among those who are active.
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
