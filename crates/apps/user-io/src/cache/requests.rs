//! [`CacheRequests`]: the requests in flight.

use std::collections::BTreeSet;

use block::{Completion, Request};
use collections::Slab;
use nvme::Status;

use super::invariants::{CacheViolation, require, require_eq};

/// Index of a request in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CacheRequestId(u32);

/// A request in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct CacheRequest {
    pub(super) request: Request,
    /// The next block to start, and the end of the range.
    pub(super) next_block: u64,
    pub(super) end_block: u64,
    /// Blocks that have not completed, plus 1 while some have not started.
    remaining: u32,
    status: Status,
    result: u64,
}

/// All requests in flight.
#[derive(Debug, Default)]
pub(super) struct CacheRequests {
    requests: Slab<CacheRequest>,
}

impl CacheRequests {
    /// Adds a request for blocks `next_block..end_block`.
    pub(super) fn insert(
        &mut self,
        request: Request,
        next_block: u64,
        end_block: u64,
    ) -> CacheRequestId {
        let status = Status::SUCCESS;
        let request =
            CacheRequest { request, next_block, end_block, remaining: 1, status, result: 0 };
        CacheRequestId(self.requests.insert(request))
    }

    /// Returns the number of requests in flight.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.requests.in_use()
    }

    #[inline]
    pub(super) fn get(&self, id: CacheRequestId) -> &CacheRequest {
        &self.requests[id.0]
    }

    fn get_mut(&mut self, id: CacheRequestId) -> &mut CacheRequest {
        let request = &mut self.requests[id.0];
        assert!(request.remaining > 0, "requests: {id:?} has completed");
        request
    }

    /// Records that the next block has started; `is_waiting` if it completes later.
    #[inline]
    pub(super) fn start_block(&mut self, id: CacheRequestId, is_waiting: bool) {
        let request = self.get_mut(id);
        request.remaining += u32::from(is_waiting);
        request.next_block += 1;
    }

    /// Starts no more blocks.
    pub(super) fn skip_blocks(&mut self, id: CacheRequestId) {
        let request = self.get_mut(id);
        request.next_block = request.end_block;
    }

    /// Records an error; the first one becomes the request's status.
    pub(super) fn fail(&mut self, id: CacheRequestId, status: Status) {
        let request = self.get_mut(id);
        if request.status.is_success() {
            request.status = status;
        }
    }

    /// Sets the status of a flush whose blocks could not be written.
    pub(super) fn set_status(&mut self, id: CacheRequestId, status: Status) {
        self.get_mut(id).status = status;
    }

    /// Sets the device's result of a bypass request.
    pub(super) fn set_result(&mut self, id: CacheRequestId, result: u64) {
        self.get_mut(id).result = result;
    }

    /// Completes one part of a request; the first error becomes the request's status. Returns the
    /// completion of the last part.
    #[inline]
    pub(super) fn complete_part(
        &mut self,
        id: CacheRequestId,
        status: Status,
    ) -> Option<Completion> {
        self.fail(id, status);
        let request = self.get_mut(id);
        request.remaining -= 1;
        if request.remaining > 0 {
            return None;
        }
        let CacheRequest { request, status, result, .. } = *request;
        self.requests.release(id.0);
        Some(Completion { tag: request.tag, status, result })
    }

    /// Checks the requests; `parts` has the request of each part that is queued or in flight.
    pub(super) fn check_invariants(
        &self,
        parts: impl Iterator<Item = CacheRequestId>,
    ) -> Result<(), CacheViolation> {
        let mut found = vec![0; self.requests.len()];
        for id in parts {
            found[id.0 as usize] += 1;
        }
        let free: BTreeSet<CacheRequestId> =
            self.requests.free_indices().iter().copied().map(CacheRequestId).collect();
        require!(
            free.len() == self.requests.free_len(),
            Requests,
            "a free index is free once",
            "all requests",
            free.len(),
            self.requests.free_len()
        );
        for (id, request) in (0..).map(CacheRequestId).zip(&self.requests) {
            let subject = format_args!("request {}", id.0);
            require!(
                free.contains(&id) == (request.remaining == 0),
                Requests,
                "a request in flight has parts that have not completed",
                subject,
                free.contains(&id),
                request
            );
            require_eq!(
                Requests,
                "every part of a request is queued or in flight",
                subject,
                request.remaining,
                found[id.0 as usize]
            );
        }
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn break_remaining(&mut self) {
        let request = self.requests.iter_mut().find(|r| r.remaining > 0);
        request.expect("a request in flight").remaining += 1;
    }
}
