//! [`ShardHandle`]: one core's handle of a sharded device.
//!
//! Owns the core's shard, its ends of the channels to the other cores, and the table of its
//! requests.
//!
//! Invariants: every accepted request completes exactly once, after all its fragments, with the
//! worst of their statuses, even if another core's handle is gone. Requests cause no allocation and
//! take no lock. Other cores are woken once per poll, if they sleep.

mod invariants;

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

use block::{BlockDevice, Completion, Extent, Limits, Op, Payload, QueueFull, Request};
use driver::QueuePair;
use event::Waker;
use ftl::{ActivePusError, ControlChange, ControlError};
use mem::{AddressSpace, Iova, PAGE_BYTES, SharedRegion};
use nvme::Status;
use time::{Component, Nanos};
use tracepoint::Event;

use super::super::stripe_layout::StripeMap;
use super::super::{Pblk, check_request};
use super::config::{SHARDS_MAX, ShardMap};
use super::core_channel::{ChannelEnds, CoreChannel, CoreWaker, ShardReply, ShardRequest};
use super::extents::{ExtentQuery, merge_extents};
use super::fragmented::{CompletedRequest, ParentRequests};
use super::stripes::{ShardFragment, StripedSector, Stripes};
use ocssd::vector::{MemoryError, register};

/// Counters of a core: its own requests, and fragments for itself and for other cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardStats {
    /// Requests accepted.
    pub requests: u64,
    /// Requests accepted that touched several shards.
    pub split: u64,
    /// Fragments that the core's own shard executed for its own requests.
    pub local: u64,
    /// Fragments sent to other cores.
    pub sent: u64,
    /// Fragments executed for other cores.
    pub served: u64,
    /// Fragments that failed because another core's handle was gone.
    pub aborted: u64,
}

collections::counters!(ShardStats { requests, split, local, sent, served, aborted });

/// One core's handle of a sharded device. It exposes the whole device to its submitter, and owns
/// one of the shards. [`Sharded::open`](super::Sharded::open) creates the handles. A handle must be
/// polled as long as any other handle is in use.
#[derive(Debug)]
pub struct ShardHandle {
    pub(super) shard: u32,
    pub(super) pblk: Pblk,
    stripes: Stripes,
    pub(super) shard_map: ShardMap,
    limits: Limits,
    /// Channels by shard; `None` for the own shard.
    pub(super) channels: Box<[Option<CoreChannel>]>,
    parents: ParentRequests,
    /// Completed requests that were not reaped. Together with the outstanding requests, at most
    /// `queue_depth`.
    completed: VecDeque<Completion>,
    /// Queries for extents; the first is in progress.
    extent_queries: VecDeque<ExtentQuery>,
    /// One page per shard for its list of extents.
    extent_lists: Arc<SharedRegion>,
    extent_lists_at: Iova,
    /// The waker that the other cores use for this core.
    waker: CoreWaker,
    /// Whether a request was accepted or completed since the last poll.
    pub(super) progressed: bool,
    stats: ShardStats,
}

/// Maximum number of replies that are taken from a ring at once.
const REPLY_BATCH: usize = 16;

/// Encodes the tag of a fragment at its shard: the submitter's shard and the request's index there.
fn fragment_tag(shard: u32, place: u32) -> u64 {
    u64::from(shard) << 32 | u64::from(place)
}

impl ShardHandle {
    pub(crate) fn new(
        shard: u32,
        pblk: Pblk,
        stripes: Stripes,
        share: ShardMap,
        limits: Limits,
        ends: ChannelEnds,
    ) -> Result<ShardHandle, MemoryError> {
        let ChannelEnds { channels, waker } = ends;
        let bytes = stripes.shards() as usize * PAGE_BYTES;
        let (lists, lists_at) = register(pblk.memory(), bytes, "lists of extents")?;
        let depth = limits.queue_depth;
        Ok(ShardHandle {
            shard,
            pblk,
            stripes,
            shard_map: share,
            limits,
            channels: channels.into(),
            parents: ParentRequests::new(depth),
            completed: VecDeque::with_capacity(depth as usize),
            extent_queries: VecDeque::with_capacity(depth as usize),
            extent_lists: lists,
            extent_lists_at: lists_at,
            waker,
            progressed: true,
            stats: ShardStats::default(),
        })
    }

    /// Returns the index of this core's shard.
    pub fn shard(&self) -> u32 {
        self.shard
    }

    /// Returns the number of shards of the device.
    pub fn shards(&self) -> u32 {
        self.stripes.shards()
    }

    /// Returns the stripe size in sectors.
    pub fn stripe_sectors(&self) -> u32 {
        self.stripes.sectors()
    }

    /// Returns the shard that a sector belongs to.
    pub fn shard_of(&self, slba: u64) -> u32 {
        self.stripes.locate(slba).shard
    }

    /// Returns the core's own shard, for its counters.
    pub fn pblk(&self) -> &Pblk {
        &self.pblk
    }

    /// Returns the counters of requests and of fragments between cores.
    pub fn stats(&self) -> &ShardStats {
        &self.stats
    }

    /// Requests a checkpoint of the core's own shard, see [`Pblk::checkpoint`].
    pub fn checkpoint(&mut self) {
        self.pblk.checkpoint();
        self.progressed = true;
    }

    /// Sets the number of parallel units that the core's own shard writes at a time, see
    /// [`Pblk::set_active_pus`].
    ///
    /// # Errors
    /// [`ActivePusError`] if `count` exceeds the number that the shard was opened with; nothing
    /// changes.
    pub fn set_active_pus(&mut self, count: u32) -> Result<(), ActivePusError> {
        self.pblk.set_active_pus(count)?;
        self.progressed = true;
        Ok(())
    }

    /// Changes a setting of the core's own shard, see [`Pblk::apply_change`].
    ///
    /// # Errors
    /// [`ControlError`]; nothing changes.
    pub fn apply_change(&mut self, change: &ControlChange) -> Result<(), ControlError> {
        self.pblk.apply_change(change)?;
        self.progressed = true;
        Ok(())
    }

    /// Returns whether this handle is idle: no request of its core, no operation of its shard, and
    /// no unprocessed message from other cores.
    pub fn is_idle(&self) -> bool {
        self.parents.outstanding() == 0
            && self.completed.is_empty()
            && self.pblk.is_idle()
            && !self
                .channels
                .iter()
                .flatten()
                .any(|link| link.has_received() || link.has_unpublished())
    }

    /// Closes this handle. Returns the queue pair, as [`Pblk::into_queue`], and a completion for
    /// every request of this core that was not reaped; requests that were still in flight get
    /// [`Status::ABORTED_SQ_DELETED`]. Fragments of other cores on this shard complete with that
    /// status, now and in future.
    pub fn into_queue(mut self) -> (QueuePair, Vec<Completion>) {
        let mut completions: Vec<Completion> = self.completed.drain(..).collect();
        completions
            .extend(std::iter::from_fn(|| self.parents.remove_any()).map(aborted_completion));
        // The remaining requests of the shard are fragments.
        let (queue, _) = self.pblk.into_queue();
        (queue, completions)
    }

    /// Sends a fragment of a request to its shard.
    ///
    /// # Errors
    /// [`QueueFull`], of the core's own shard only.
    fn dispatch_fragment(
        &mut self,
        now: Nanos,
        (shard, place): (u32, u32),
        request: Request,
        spread: StripeMap,
    ) -> Result<(), QueueFull> {
        if shard == self.shard {
            return self.submit_local(now, place, request, spread);
        }
        self.submit_remote((shard, place), request, spread);
        Ok(())
    }

    /// Submits a fragment of a request to the core's own shard.
    ///
    /// # Errors
    /// [`QueueFull`]; the fragment was not accepted.
    #[inline(always)]
    fn submit_local(
        &mut self,
        now: Nanos,
        place: u32,
        request: Request,
        spread: StripeMap,
    ) -> Result<(), QueueFull> {
        let tag = fragment_tag(self.shard, place);
        self.pblk.begin(now, &Request { tag, ..request }, spread)?;
        self.stats.local += 1;
        Ok(())
    }

    /// Sends a fragment of a request to another core's shard.
    #[inline]
    fn submit_remote(&mut self, (shard, place): (u32, u32), request: Request, spread: StripeMap) {
        let request = Request { tag: place.into(), ..request };
        let link = self.channels.get_mut(shard as usize).and_then(Option::as_mut);
        if link.is_some_and(|link| link.send_request(ShardRequest { request, stripe_map: spread }))
        {
            self.stats.sent += 1;
        } else {
            // The ring was not emptied: the owner is gone.
            self.stats.aborted += 1;
            self.complete_fragment(place, shard, Status::ABORTED_SQ_DELETED, 0);
        }
    }

    /// Traces a request that has an index.
    #[inline(always)]
    fn trace_request(&self, now: Nanos, place: u32, tag: u64) {
        let name = fragment_tag(self.shard, place);
        tracepoint::trace_at(now, || Event::TargetAlias { alias: name, tag });
    }

    /// Submits a request that has one fragment.
    #[inline]
    fn submit_single(&mut self, now: Nanos, shard: u32, request: Request) -> Result<(), QueueFull> {
        let place = self.parents.next_slot().ok_or(QueueFull)?;
        let tag = request.tag;
        self.trace_request(now, place, tag);
        if shard == self.shard {
            self.submit_local(now, place, request, StripeMap::CONTIGUOUS)?;
            self.parents.insert(tag, 1 << shard);
            return Ok(());
        }
        self.parents.insert(tag, 1 << shard);
        self.submit_remote((shard, place), request, StripeMap::CONTIGUOUS);
        Ok(())
    }

    /// Submits a request with fragments on several shards. The own shard is first, because only it
    /// can be full.
    fn submit_fragmented(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        let place = self.parents.next_slot().ok_or(QueueFull)?;
        self.trace_request(now, place, request.tag);
        let (own, mut waiting) = (self.shard, 0);
        if let Some((part, spread)) = self.fragment(own, &request) {
            self.dispatch_fragment(now, (own, place), part, spread)?;
        }
        for shard in 0..self.stripes.shards() {
            waiting |= u32::from(self.fragment(shard, &request).is_some()) << shard;
        }
        self.parents.insert(request.tag, waiting);
        self.stats.split += u64::from(waiting.count_ones() > 1);
        for shard in (0..self.stripes.shards()).filter(|shard| *shard != own) {
            if let Some((part, spread)) = self.fragment(shard, &request) {
                self.dispatch_fragment(now, (shard, place), part, spread)?;
            }
        }
        Ok(())
    }

    /// Returns the fragment of a request on a shard, and the layout of its data.
    #[inline]
    fn fragment(&self, shard: u32, request: &Request) -> Option<(Request, StripeMap)> {
        if request.op == Op::Flush {
            return Some((*request, StripeMap::CONTIGUOUS));
        }
        let ShardFragment { lba, sectors, offset, stripe_map: spread } =
            self.stripes.fragment(shard, request.lba, request.sectors)?;
        let bytes = u64::from(offset) * u64::from(self.limits.sector_bytes);
        let data = match request.data {
            Payload::Contiguous(at) => Payload::Contiguous(at.offset(bytes)),
            other => other,
        };
        Some((Request { lba: lba.get(), sectors, data, ..*request }, spread))
    }

    /// Queues a query for extents. The next poll sends it, if no other query is in progress.
    #[cold]
    fn queue_extent_query(&mut self, request: Request) -> Result<(), QueueFull> {
        let place = self.parents.next_slot().ok_or(QueueFull)?;
        let bits = (0..self.stripes.shards())
            .filter(|shard| self.fragment(*shard, &request).is_some())
            .fold(0, |bits, shard| bits | 1 << shard);
        self.parents.insert(request.tag, bits);
        self.stats.split += u64::from(bits.count_ones() > 1);
        let counts = [0; SHARDS_MAX as usize];
        self.extent_queries.push_back(ExtentQuery { slot: place, request, is_sent: false, counts });
        Ok(())
    }

    /// Returns whether the first query has not been sent.
    #[inline]
    fn has_unsent_query(&self) -> bool {
        self.extent_queries.front().is_some_and(|query| !query.is_sent)
    }

    /// Sends the first query to every shard.
    #[cold]
    fn send_extent_query(&mut self, now: Nanos) {
        let Some(query) = self.extent_queries.front_mut() else { return };
        query.is_sent = true;
        let (place, request) = (query.slot, query.request);
        for shard in 0..self.stripes.shards() {
            let Some((mut part, spread)) = self.fragment(shard, &request) else { continue };
            part.data = Payload::Contiguous(
                self.extent_lists_at.offset(u64::from(shard) * PAGE_BYTES as u64),
            );
            if self.dispatch_fragment(now, (shard, place), part, spread).is_err() {
                self.complete_fragment(place, shard, Status::NOT_READY, 0);
            }
        }
    }

    /// Merges the lists of a query into the submitter's memory. Returns the number of extents.
    fn merge_query(&self, query: &ExtentQuery) -> u64 {
        let Payload::Contiguous(into) = query.request.data else { return 0 };
        let get = |shard: u32, i: u16| {
            let mut bytes = [0; Extent::BYTES];
            self.extent_lists
                .read(shard as usize * PAGE_BYTES + usize::from(i) * Extent::BYTES, &mut bytes);
            Extent::decode(bytes)
        };
        let put = |i: usize, extent: Extent| {
            // The request was checked when it was accepted.
            let at = into.offset((i * Extent::BYTES) as u64);
            let _ = self.memory().write(at, &extent.encode());
        };
        merge_extents(&self.stripes, query, Request::extent_capacity(), get, put) as u64
    }

    /// Completes a fragment of a request of this core.
    #[inline]
    fn complete_fragment(&mut self, place: u32, shard: u32, status: Status, result: u64) {
        if !self.extent_queries.is_empty() {
            self.record_extent_count(place, shard, result);
        }
        if let Some(CompletedRequest { tag, status }) =
            self.parents.complete_fragment(place, shard, status)
        {
            let result =
                if self.extent_queries.is_empty() { 0 } else { self.complete_query(place, status) };
            self.completed.push_back(Completion { tag, status, result });
        }
        self.progressed = true;
    }

    #[cold]
    fn record_extent_count(&mut self, place: u32, shard: u32, count: u64) {
        if let Some(query) = self.extent_queries.front_mut().filter(|q| q.slot == place)
            && let Some(slot) = query.counts.get_mut(shard as usize)
        {
            *slot = count.min(Request::extent_capacity() as u64) as u16;
        }
    }

    /// Completes the query of the request at `place`. Returns the number of extents, or 0 if the
    /// request is not a query.
    #[cold]
    fn complete_query(&mut self, place: u32, status: Status) -> u64 {
        let Some(at) = self.extent_queries.iter().position(|q| q.slot == place) else { return 0 };
        let Some(query) = self.extent_queries.remove(at) else { return 0 };
        if status.is_success() { self.merge_query(&query) } else { 0 }
    }

    /// Sends the completion of a fragment to the core that submitted the request.
    #[inline]
    fn route_completion(&mut self, done: Completion) {
        let (shard, place) = ((done.tag >> 32) as u32, done.tag as u32);
        let Completion { status, result, .. } = done;
        if shard == self.shard {
            self.complete_fragment(place, shard, status, result);
        } else if let Some(link) = self.channels.get_mut(shard as usize).and_then(Option::as_mut) {
            link.send_reply(ShardReply { slot: place, status, result });
        }
    }

    /// Processes the messages of the other cores.
    #[inline]
    fn poll_peers(&mut self, now: Nanos) -> bool {
        let mut moved = false;
        for peer in 0..self.stripes.shards() {
            let pblk = &mut self.pblk;
            let Some(link) = &mut self.channels[peer as usize] else { continue };
            link.publish();
            let served = link.process_requests(|errand| {
                let tag = fragment_tag(peer, errand.request.tag as u32);
                pblk.begin(now, &Request { tag, ..errand.request }, errand.stripe_map).is_ok()
            });
            self.stats.served += served;
            moved |= served > 0;
            while let Some(event) = link.pop_event() {
                pblk.on_media_event(&event);
                moved = true;
            }
            moved |= self.process_replies(peer);
            if self.channels[peer as usize].as_ref().is_some_and(CoreChannel::is_disconnected) {
                self.abort_peer(peer);
                moved = true;
            }
        }
        moved
    }

    /// Completes the fragments for which a peer has replied.
    #[inline]
    fn process_replies(&mut self, peer: u32) -> bool {
        let (mut answers, mut moved) = ([ShardReply::EMPTY; REPLY_BATCH], false);
        while let Some(link) = &mut self.channels[peer as usize] {
            let answers = link.pop_replies(&mut answers);
            for &ShardReply { slot: place, status, result } in answers {
                self.complete_fragment(place, peer, status, result);
            }
            moved |= !answers.is_empty();
            if answers.len() < REPLY_BATCH {
                break;
            }
        }
        moved
    }

    /// Fails every fragment that was sent to a peer that is gone.
    #[cold]
    fn abort_peer(&mut self, peer: u32) {
        if let Some(link) = &mut self.channels[peer as usize] {
            link.outstanding = 0;
        }
        while let Some(place) = self.parents.pending_on(peer) {
            self.stats.aborted += 1;
            self.complete_fragment(place, peer, Status::ABORTED_SQ_DELETED, 0);
        }
    }
}

fn aborted_completion(tag: u64) -> Completion {
    Completion { tag, status: Status::ABORTED_SQ_DELETED, result: 0 }
}

impl BlockDevice for ShardHandle {
    block::answer_block_device!(can_wake: true, enable_sharing: {}, can_wait: false,
        visit_layers: self);

    fn limits(&self) -> &Limits {
        &self.limits
    }

    #[inline]
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        if self.parents.outstanding() + self.completed.len() >= self.limits.queue_depth as usize {
            return Err(QueueFull);
        }
        if let Err(status) = check_request(&self.limits, self.pblk.memory(), &request) {
            self.completed.push_back(Completion { tag: request.tag, status, result: 0 });
        } else {
            let StripedSector { shard, lba, left } = self.stripes.locate(request.lba);
            match request.op {
                Op::Extents => self.queue_extent_query(request)?,
                Op::Flush => self.submit_fragmented(now, request)?,
                _ if request.sectors <= left => {
                    self.submit_single(now, shard, Request { lba: lba.get(), ..request })?;
                }
                _ => self.submit_fragmented(now, request)?,
            }
        }
        self.stats.requests += 1;
        self.progressed = true;
        Ok(())
    }

    #[inline]
    fn reap(&mut self) -> Option<Completion> {
        self.completed.pop_front()
    }

    fn memory(&self) -> &AddressSpace {
        self.pblk.memory()
    }

    /// The drive and the other cores use the waker that was set last.
    fn set_waker(&mut self, waker: Waker) {
        *self.waker.write().unwrap_or_else(PoisonError::into_inner) = Some(waker.clone());
        self.pblk.set_waker(waker);
    }
}

impl Component for ShardHandle {
    /// Executes fragments of other cores, polls the own shard, and routes completions.
    fn poll(&mut self, now: Nanos) -> bool {
        let mut moved = std::mem::take(&mut self.progressed);
        moved |= self.poll_peers(now);
        moved |= self.pblk.is_subscribed() && self.poll_events();
        moved |= self.pblk.poll(now);
        if self.has_unsent_query() {
            self.send_extent_query(now);
        }
        while let Some(done) = self.pblk.reap() {
            self.route_completion(done);
            moved = true;
        }
        for link in self.channels.iter_mut().flatten() {
            moved |= link.publish_and_wake();
        }
        // Sends the next query, if the last one has completed.
        self.progressed = self.has_unsent_query();
        moved
    }

    /// Returns zero while something waits for a poll or a completion waits to be reaped; otherwise
    /// the deadline of the own shard.
    fn deadline(&self) -> Nanos {
        let links = || self.channels.iter().flatten();
        let waits = self.progressed
            || !self.completed.is_empty()
            || links().any(|link| {
                link.has_received() || link.has_unpublished() || link.is_disconnected()
            });
        if waits { Nanos::ZERO } else { self.pblk.deadline() }
    }
}
