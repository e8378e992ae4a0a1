//! [`ShardHandle`]: one core's end of a sharded device.
//!
//! Owns the core's shard, its ends of the rings to the other cores, and the table of its requests.
//! Guarantees: every request that was taken ends exactly once, when all its parts have, with the
//! worst of their statuses, and also when another core's end is gone; nothing is allocated or
//! locked per request; other cores are woken once per poll, if they sleep.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use block::{BlockDevice, Completion, Extent, Limits, Op, Payload, QueueFull, Request};
use clock::{Component, Nanos, Waker};
use driver::QueuePair;
use ftl::ActivePusError;
use nvme::Status;
use ring::{AddressSpace, Iova, PAGE_BYTES, SharedRegion};
use tracepoint::Event;

use super::super::stripe_layout::StripeMap;
use super::super::{Pblk, check_request};
use super::config::{SHARDS_MAX, ShardMap};
use super::core_channel::{ChannelEnds, CoreChannel, ShardReply, ShardRequest};
use super::extents::{ExtentQuery, merge_extents};
use super::fragmented::{CompletedRequest, ParentRequests};
use super::stripes::{ShardFragment, Stripes};
use crate::vector::{MemoryError, register};

/// What a core did for itself and for others, in requests and parts of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardStats {
    /// Requests taken.
    pub requests: u64,
    /// Of them, those that touched several shards.
    pub split: u64,
    /// Parts that the core's own shard carried out for it.
    pub local: u64,
    /// Parts that went to other cores.
    pub sent: u64,
    /// Parts carried out for other cores.
    pub served: u64,
    /// Parts that ended because another core's end was gone.
    pub aborted: u64,
}

impl ShardStats {
    /// The counters of two cores together.
    #[must_use]
    pub fn plus(&self, other: &ShardStats) -> ShardStats {
        ShardStats {
            requests: self.requests + other.requests,
            split: self.split + other.split,
            local: self.local + other.local,
            sent: self.sent + other.sent,
            served: self.served + other.served,
            aborted: self.aborted + other.aborted,
        }
    }
}

/// One core's end of a sharded device: the whole device to whoever submits, and the owner of one of
/// its shards. [`Sharded::open`](super::Sharded::open) makes them. It must be polled as long as any
/// other is in use.
#[derive(Debug)]
pub struct ShardHandle {
    pub(super) shard: u32,
    pub(super) pblk: Pblk,
    stripes: Stripes,
    pub(super) shard_map: ShardMap,
    limits: Limits,
    /// By shard; none to itself.
    pub(super) channels: Box<[Option<CoreChannel>]>,
    parents: ParentRequests,
    /// Requests that have ended and were not reaped. With those outstanding, at most `queue_depth`.
    completed: VecDeque<Completion>,
    /// Questions for extents; the first is under way.
    extent_queries: VecDeque<ExtentQuery>,
    /// A page for each shard's list of extents.
    extent_lists: Arc<SharedRegion>,
    extent_lists_at: Iova,
    /// Who wakes this core.
    waker: Arc<OnceLock<Waker>>,
    /// Whether something was taken or has ended since the last poll.
    pub(super) progressed: bool,
    stats: ShardStats,
}

/// Answers of another core that are taken together.
const REPLY_BATCH: usize = 16;

/// Names a part at its shard: whose request, and which.
fn fragment_tag(shard: u32, place: u32) -> u64 {
    u64::from(shard) << 32 | u64::from(place)
}

impl ShardHandle {
    pub(crate) fn new(
        shard: u32,
        pblk: Pblk,
        (stripes, share): (Stripes, ShardMap),
        limits: Limits,
        (links, waker): ChannelEnds,
    ) -> Result<ShardHandle, MemoryError> {
        let bytes = stripes.shards() as usize * PAGE_BYTES;
        let (lists, lists_at) = register(pblk.memory(), bytes, "lists of extents")?;
        let depth = limits.queue_depth;
        Ok(ShardHandle {
            shard,
            pblk,
            stripes,
            shard_map: share,
            limits,
            channels: links.into(),
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

    /// The number of the shard that is this core's.
    pub fn shard(&self) -> u32 {
        self.shard
    }

    /// How many shards the device has.
    pub fn shards(&self) -> u32 {
        self.stripes.shards()
    }

    /// Sectors of a stripe: as many from a multiple of it on are on one shard.
    pub fn stripe_sectors(&self) -> u32 {
        self.stripes.sectors()
    }

    /// The shard that a sector belongs to.
    pub fn shard_of(&self, lba: u64) -> u32 {
        self.stripes.locate(lba).0
    }

    /// The core's own shard, for its counters.
    pub fn pblk(&self) -> &Pblk {
        &self.pblk
    }

    /// Counters of what passed between cores.
    pub fn stats(&self) -> &ShardStats {
        &self.stats
    }

    /// Asks the core's own shard for a checkpoint, as [`Pblk::checkpoint`].
    pub fn checkpoint(&mut self) {
        self.pblk.checkpoint();
        self.progressed = true;
    }

    /// Writes the core's own shard to `count` of its parallel units at a time from now on, as
    /// [`Pblk::set_active_pus`].
    ///
    /// # Errors
    /// [`ActivePusError`] for more than the shard was opened with; nothing changes.
    pub fn set_active_pus(&mut self, count: u32) -> Result<(), ActivePusError> {
        self.pblk.set_active_pus(count)?;
        self.progressed = true;
        Ok(())
    }

    /// Whether nothing is outstanding at this end: no request of its core, nothing of its shard's, and
    /// nothing from the others that it has not seen.
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

    /// Gives this end up: the queue pair, as [`Pblk::into_queue`], and a completion for every request
    /// of this core that was not reaped, [`Status::ABORTED_SQ_DELETED`] for those that had not ended.
    /// What the other cores have here ends there with that status, now and from now on.
    pub fn into_queue(mut self) -> (QueuePair, Vec<Completion>) {
        let mut completions: Vec<Completion> = self.completed.drain(..).collect();
        completions
            .extend(std::iter::from_fn(|| self.parents.remove_any()).map(aborted_completion));
        // What the shard still has are parts of requests.
        let (queue, _) = self.pblk.into_queue();
        (queue, completions)
    }

    /// Gives a part of a request to its shard.
    ///
    /// # Errors
    /// [`Busy`], of the core's own shard only.
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

    /// Gives a part of a request to the core's own shard.
    ///
    /// # Errors
    /// [`Busy`]; it was not taken.
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

    /// Gives a part of a request to another core's shard.
    #[inline]
    fn submit_remote(&mut self, (shard, place): (u32, u32), request: Request, spread: StripeMap) {
        let request = Request { tag: place.into(), ..request };
        let link = self.channels.get_mut(shard as usize).and_then(Option::as_mut);
        if link.is_some_and(|link| link.send_request(ShardRequest { request, stripe_map: spread }))
        {
            self.stats.sent += 1;
        } else {
            // Nobody has emptied the ring: the owner is gone.
            self.stats.aborted += 1;
            self.complete_fragment(place, shard, Status::ABORTED_SQ_DELETED, 0);
        }
    }

    /// Reports a request that has a place.
    #[inline(always)]
    fn trace_request(&self, now: Nanos, place: u32, tag: u64) {
        let name = fragment_tag(self.shard, place);
        tracepoint::trace_at(now, || Event::TargetAlias { alias: name, tag });
    }

    /// A request that is one part of one shard.
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

    /// A request with parts on several shards, its own core's first: only that can be busy.
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

    /// The part of a request that a shard has, and how its data is spread.
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
        Some((Request { lba, sectors, data, ..*request }, spread))
    }

    /// Queues a question for extents: the next poll asks it, if no other is being asked.
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

    /// Whether the first question has not been asked.
    #[inline]
    fn has_unsent_query(&self) -> bool {
        self.extent_queries.front().is_some_and(|query| !query.is_sent)
    }

    /// Asks every shard the first question.
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

    /// The lists of the first question as one, in the caller's memory.
    fn merge_query(&self, query: &ExtentQuery) -> u64 {
        let Payload::Contiguous(into) = query.request.data else { return 0 };
        let get = |shard: u32, i: u16| {
            let mut bytes = [0; Extent::BYTES];
            self.extent_lists
                .read(shard as usize * PAGE_BYTES + usize::from(i) * Extent::BYTES, &mut bytes);
            Extent::decode(bytes)
        };
        let put = |i: usize, extent: Extent| {
            // The request was checked when it was taken.
            let at = into.offset((i * Extent::BYTES) as u64);
            let _ = self.memory().write(at, &extent.encode());
        };
        merge_extents(&self.stripes, query, Request::extent_capacity(), get, put) as u64
    }

    /// A shard has ended a part of a request of this core.
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

    /// The request at `place` has ended: how many extents, if it was a question.
    #[cold]
    fn complete_query(&mut self, place: u32, status: Status) -> u64 {
        let Some(at) = self.extent_queries.iter().position(|q| q.slot == place) else { return 0 };
        let Some(query) = self.extent_queries.remove(at) else { return 0 };
        if status.is_success() { self.merge_query(&query) } else { 0 }
    }

    /// Sends a part's end to whose request it is of.
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

    /// Takes what the other cores have sent.
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

    /// Ends the parts that a core has answered.
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

    /// Ends every part that a core has whose end is gone.
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
            let (shard, lba, left) = self.stripes.locate(request.lba);
            match request.op {
                Op::Extents => self.queue_extent_query(request)?,
                Op::Flush => self.submit_fragmented(now, request)?,
                _ if request.sectors <= left => {
                    self.submit_single(now, shard, Request { lba, ..request })?;
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

    /// The drive wakes the last one that was said, other cores the first.
    fn set_waker(&mut self, waker: Waker) {
        let _ = self.waker.set(waker.clone());
        self.pblk.set_waker(waker);
    }
}

impl Component for ShardHandle {
    /// Carries out what the other cores ask of this one's shard, polls the shard, and sends what has
    /// ended to where it belongs.
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
        // The next question, if the last one has been answered.
        self.progressed = self.has_unsent_query();
        moved
    }

    /// At once while something waits for a poll, or a completion to be reaped; else when the shard
    /// wants to be polled.
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
