//! [`StagedRequest`]: a request inside the block layer.

use time::Nanos;

use crate::Request;

/// The index of a submitter, which is one core's endpoint of the block layer
/// ([`Queue`](crate::Queue)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Submitter(pub u16);

/// The index of a group of submitters that share limits and a weight. Group 0 has all submitters
/// that are in no other group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group(pub u16);

/// A request between a submitter and a hardware queue. The block layer moves it by value.
///
/// The state that the submitter needs at completion stays in the submitter's table, under
/// `request.tag`. The lower queues therefore touch no cache line of another core for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagedRequest {
    /// The request; its `tag` is the submitter's id, not the caller's tag.
    pub request: Request,
    /// Time of submission.
    pub since: Nanos,
    /// The submitter.
    pub submitter: Submitter,
    /// The group.
    pub group: Group,
    /// Number of the caller's requests that it carries; more than 1 after merging.
    pub merged: u16,
    /// How often the request was requeued because the device had not executed it.
    pub requeues: u16,
}

impl StagedRequest {
    /// Returns the sector after the last one.
    pub fn end(&self) -> u64 {
        self.request.lba.saturating_add(self.request.sectors.into())
    }

    /// Returns whether `newcomer` begins where this request ends, or ends where it begins.
    #[inline(always)]
    pub(crate) fn is_adjacent(&self, newcomer: &Request) -> bool {
        let end = newcomer.lba.wrapping_add(newcomer.sectors.into());
        (self.end() == newcomer.lba) | (self.request.lba == end)
    }
}
