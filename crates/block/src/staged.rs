//! [`Staged`]: a request on its way through the block layer.

use clock::Nanos;

use crate::Request;

/// A submitter: one core's end of the block layer ([`Queue`](crate::Queue)), an index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Submitter(pub u16);

/// A group of submitters that share limits and a weight, an index; 0 is everybody who is in no other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group(pub u16);

/// A request on its way from a submitter to a hardware queue, moved from place to place whole.
///
/// What the submitter needs to know when it completes stays with the submitter, under `request.tag`:
/// everything below touches no line of another core for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagedRequest {
    /// The request; its `tag` is the submitter's name for it, not the caller's.
    pub request: Request,
    /// When it was submitted.
    pub since: Nanos,
    /// By whom.
    pub submitter: Submitter,
    /// For which group.
    pub group: Group,
    /// Requests of the caller that it carries: more than 1 after merging.
    pub merged: u16,
    /// How often it came back from the device without having been carried out.
    pub requeues: u16,
}

impl StagedRequest {
    /// The sector after its last one.
    pub fn end(&self) -> u64 {
        self.request.lba.saturating_add(self.request.sectors.into())
    }
}
