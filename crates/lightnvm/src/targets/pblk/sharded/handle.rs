//! [`ShardHandle`]: one core's end of a sharded device.
//!
//! Owns the core's shard, its ends of the rings to the other cores, and the table of its requests.
//! Guarantees: every request that was taken ends exactly once, when all its parts have, with the
//! worst of their statuses, and also when another core's end is gone; nothing is allocated or
//! locked per request; other cores are woken once per poll, if they sleep.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use block::{Busy, Completion, Device, Extent, Limits, Op, Payload, Request};
use clock::{Component, Nanos, Waker};
use driver::QueuePair;
use ftl::ActivePusError;
use nvme::Status;
use ring::{AddressSpace, Iova, PAGE, Region};
use tracepoint::Event;

use super::super::spread::Spread;
use super::super::{Pblk, check};
use super::config::{MAX_SHARDS, Share};
use super::extents::{Query, merge};
use super::links::{Answer, Ends, Errand, Link};
use super::parents::{Parents, Whole};
use super::stripes::{Part, Stripes};
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
    pub lost: u64,
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
            lost: self.lost + other.lost,
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
    pub(super) share: Share,
    limits: Limits,
    /// By shard; none to itself.
    pub(super) links: Box<[Option<Link>]>,
    parents: Parents,
    /// Requests that have ended and were not reaped. With those outstanding, at most `queue_depth`.
    done: VecDeque<Completion>,
    /// Questions for extents; the first is under way.
    queries: VecDeque<Query>,
    /// A page for each shard's list of extents.
    lists: Arc<Region>,
    lists_at: Iova,
    /// Who wakes this core.
    waker: Arc<OnceLock<Waker>>,
    /// Whether something was taken or has ended since the last poll.
    pub(super) moved: bool,
    stats: ShardStats,
}

/// Answers of another core that are taken together.
const ANSWERS: usize = 16;

/// Names a part at its shard: whose request, and which.
fn part_tag(shard: u32, place: u32) -> u64 {
    u64::from(shard) << 32 | u64::from(place)
}

impl ShardHandle {
    pub(crate) fn new(
        shard: u32,
        pblk: Pblk,
        (stripes, share): (Stripes, Share),
        limits: Limits,
        (links, waker): Ends,
    ) -> Result<ShardHandle, MemoryError> {
        let bytes = stripes.shards() as usize * PAGE;
        let (lists, lists_at) = register(pblk.memory(), bytes, "lists of extents")?;
        let depth = limits.queue_depth;
        Ok(ShardHandle {
            shard,
            pblk,
            stripes,
            share,
            limits,
            links: links.into(),
            parents: Parents::new(depth),
            done: VecDeque::with_capacity(depth as usize),
            queries: VecDeque::with_capacity(depth as usize),
            lists,
            lists_at,
            waker,
            moved: true,
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
        self.moved = true;
    }

    /// Writes the core's own shard to `count` of its parallel units at a time from now on, as
    /// [`Pblk::set_active_pus`].
    ///
    /// # Errors
    /// [`ActivePusError`] for more than the shard was opened with; nothing changes.
    pub fn set_active_pus(&mut self, count: u32) -> Result<(), ActivePusError> {
        self.pblk.set_active_pus(count)?;
        self.moved = true;
        Ok(())
    }

    /// Whether nothing is outstanding at this end: no request of its core, nothing of its shard's, and
    /// nothing from the others that it has not seen.
    pub fn is_idle(&self) -> bool {
        self.parents.outstanding() == 0
            && self.done.is_empty()
            && self.pblk.is_idle()
            && !self.links.iter().flatten().any(|link| link.has_come() || link.has_news())
    }

    /// Gives this end up: the queue pair, as [`Pblk::into_queue`], and a completion for every request
    /// of this core that was not reaped, [`Status::ABORTED_SQ_DELETED`] for those that had not ended.
    /// What the other cores have here ends there with that status, now and from now on.
    pub fn into_queue(mut self) -> (QueuePair, Vec<Completion>) {
        let mut completions: Vec<Completion> = self.done.drain(..).collect();
        completions.extend(std::iter::from_fn(|| self.parents.end_any()).map(aborted));
        // What the shard still has are parts of requests.
        let (queue, _) = self.pblk.into_queue();
        (queue, completions)
    }

    /// Gives a part of a request to its shard.
    ///
    /// # Errors
    /// [`Busy`], of the core's own shard only.
    fn give(
        &mut self,
        now: Nanos,
        (shard, place): (u32, u32),
        request: Request,
        spread: Spread,
    ) -> Result<(), Busy> {
        if shard == self.shard {
            return self.keep(now, place, request, spread);
        }
        self.send((shard, place), request, spread);
        Ok(())
    }

    /// Gives a part of a request to the core's own shard.
    ///
    /// # Errors
    /// [`Busy`]; it was not taken.
    #[inline(always)]
    fn keep(
        &mut self,
        now: Nanos,
        place: u32,
        request: Request,
        spread: Spread,
    ) -> Result<(), Busy> {
        let tag = part_tag(self.shard, place);
        self.pblk.begin(now, &Request { tag, ..request }, spread)?;
        self.stats.local += 1;
        Ok(())
    }

    /// Gives a part of a request to another core's shard.
    #[inline]
    fn send(&mut self, (shard, place): (u32, u32), request: Request, spread: Spread) {
        let request = Request { tag: place.into(), ..request };
        let link = self.links.get_mut(shard as usize).and_then(Option::as_mut);
        if link.is_some_and(|link| link.send(Errand { request, spread })) {
            self.stats.sent += 1;
        } else {
            // Nobody has emptied the ring: the owner is gone.
            self.stats.lost += 1;
            self.end(place, shard, Status::ABORTED_SQ_DELETED, 0);
        }
    }

    /// Reports a request that has a place.
    #[inline(always)]
    fn trace_request(&self, now: Nanos, place: u32, tag: u64) {
        let name = part_tag(self.shard, place);
        tracepoint::trace_at(now, || Event::TargetAlias { name, tag });
    }

    /// A request that is one part of one shard.
    #[inline]
    fn submit_one(&mut self, now: Nanos, shard: u32, request: Request) -> Result<(), Busy> {
        let place = self.parents.next().ok_or(Busy)?;
        let tag = request.tag;
        self.trace_request(now, place, tag);
        if shard == self.shard {
            self.keep(now, place, request, Spread::NONE)?;
            self.parents.put(tag, 1 << shard);
            return Ok(());
        }
        self.parents.put(tag, 1 << shard);
        self.send((shard, place), request, Spread::NONE);
        Ok(())
    }

    /// A request with parts on several shards, its own core's first: only that can be busy.
    fn submit_many(&mut self, now: Nanos, request: Request) -> Result<(), Busy> {
        let place = self.parents.next().ok_or(Busy)?;
        self.trace_request(now, place, request.tag);
        let (own, mut waiting) = (self.shard, 0);
        if let Some((part, spread)) = self.cut(own, &request) {
            self.give(now, (own, place), part, spread)?;
        }
        for shard in 0..self.stripes.shards() {
            waiting |= u32::from(self.cut(shard, &request).is_some()) << shard;
        }
        self.parents.put(request.tag, waiting);
        self.stats.split += u64::from(waiting.count_ones() > 1);
        for shard in (0..self.stripes.shards()).filter(|shard| *shard != own) {
            if let Some((part, spread)) = self.cut(shard, &request) {
                self.give(now, (shard, place), part, spread)?;
            }
        }
        Ok(())
    }

    /// The part of a request that a shard has, and how its data is spread.
    #[inline]
    fn cut(&self, shard: u32, request: &Request) -> Option<(Request, Spread)> {
        if request.op == Op::Flush {
            return Some((*request, Spread::NONE));
        }
        let Part { lba, sectors, offset, spread } =
            self.stripes.part(shard, request.lba, request.sectors)?;
        let bytes = u64::from(offset) * u64::from(self.limits.sector_bytes);
        let data = match request.data {
            Payload::At(at) => Payload::At(at.offset(bytes)),
            other => other,
        };
        Some((Request { lba, sectors, data, ..*request }, spread))
    }

    /// Queues a question for extents: the next poll asks it, if no other is being asked.
    #[cold]
    fn ask(&mut self, request: Request) -> Result<(), Busy> {
        let place = self.parents.next().ok_or(Busy)?;
        let bits = (0..self.stripes.shards())
            .filter(|shard| self.cut(*shard, &request).is_some())
            .fold(0, |bits, shard| bits | 1 << shard);
        self.parents.put(request.tag, bits);
        self.stats.split += u64::from(bits.count_ones() > 1);
        let counts = [0; MAX_SHARDS as usize];
        self.queries.push_back(Query { place, request, asked: false, counts });
        Ok(())
    }

    /// Whether the first question has not been asked.
    #[inline]
    fn is_curious(&self) -> bool {
        self.queries.front().is_some_and(|query| !query.asked)
    }

    /// Asks every shard the first question.
    #[cold]
    fn ask_shards(&mut self, now: Nanos) {
        let Some(query) = self.queries.front_mut() else { return };
        query.asked = true;
        let (place, request) = (query.place, query.request);
        for shard in 0..self.stripes.shards() {
            let Some((mut part, spread)) = self.cut(shard, &request) else { continue };
            part.data = Payload::At(self.lists_at.offset(u64::from(shard) * PAGE as u64));
            if self.give(now, (shard, place), part, spread).is_err() {
                self.end(place, shard, Status::NOT_READY, 0);
            }
        }
    }

    /// The lists of the first question as one, in the caller's memory.
    fn answer_query(&self, query: &Query) -> u64 {
        let Payload::At(into) = query.request.data else { return 0 };
        let get = |shard: u32, i: u16| {
            let mut bytes = [0; Extent::BYTES];
            self.lists.read(shard as usize * PAGE + usize::from(i) * Extent::BYTES, &mut bytes);
            Extent::decode(bytes)
        };
        let put = |i: usize, extent: Extent| {
            // The request was checked when it was taken.
            let at = into.offset((i * Extent::BYTES) as u64);
            let _ = self.memory().write(at, &extent.encode());
        };
        merge(&self.stripes, query, Request::extent_capacity(), get, put) as u64
    }

    /// A shard has ended a part of a request of this core.
    #[inline]
    fn end(&mut self, place: u32, shard: u32, status: Status, result: u64) {
        if !self.queries.is_empty() {
            self.note_extents(place, shard, result);
        }
        if let Some(Whole { tag, status }) = self.parents.end(place, shard, status) {
            let result = if self.queries.is_empty() { 0 } else { self.end_query(place, status) };
            self.done.push_back(Completion { tag, status, result });
        }
        self.moved = true;
    }

    #[cold]
    fn note_extents(&mut self, place: u32, shard: u32, count: u64) {
        if let Some(query) = self.queries.front_mut().filter(|q| q.place == place)
            && let Some(slot) = query.counts.get_mut(shard as usize)
        {
            *slot = count.min(Request::extent_capacity() as u64) as u16;
        }
    }

    /// The request at `place` has ended: how many extents, if it was a question.
    #[cold]
    fn end_query(&mut self, place: u32, status: Status) -> u64 {
        let Some(at) = self.queries.iter().position(|q| q.place == place) else { return 0 };
        let Some(query) = self.queries.remove(at) else { return 0 };
        if status.is_success() { self.answer_query(&query) } else { 0 }
    }

    /// Sends a part's end to whose request it is of.
    #[inline]
    fn route(&mut self, done: Completion) {
        let (shard, place) = ((done.tag >> 32) as u32, done.tag as u32);
        let Completion { status, result, .. } = done;
        if shard == self.shard {
            self.end(place, shard, status, result);
        } else if let Some(link) = self.links.get_mut(shard as usize).and_then(Option::as_mut) {
            link.answer(Answer { place, status, result });
        }
    }

    /// Takes what the other cores have sent.
    #[inline]
    fn receive(&mut self, now: Nanos) -> bool {
        let mut moved = false;
        for peer in 0..self.stripes.shards() {
            let pblk = &mut self.pblk;
            let Some(link) = &mut self.links[peer as usize] else { continue };
            link.publish();
            let served = link.errands(|errand| {
                let tag = part_tag(peer, errand.request.tag as u32);
                pblk.begin(now, &Request { tag, ..errand.request }, errand.spread).is_ok()
            });
            self.stats.served += served;
            moved |= served > 0;
            while let Some(event) = link.take_event() {
                pblk.media_event(&event);
                moved = true;
            }
            moved |= self.take_answers(peer);
            if self.links[peer as usize].as_ref().is_some_and(Link::is_lost) {
                self.give_up(peer);
                moved = true;
            }
        }
        moved
    }

    /// Ends the parts that a core has answered.
    #[inline]
    fn take_answers(&mut self, peer: u32) -> bool {
        let (mut answers, mut moved) = ([Answer::NONE; ANSWERS], false);
        while let Some(link) = &mut self.links[peer as usize] {
            let answers = link.take_answers(&mut answers);
            for &Answer { place, status, result } in answers {
                self.end(place, peer, status, result);
            }
            moved |= !answers.is_empty();
            if answers.len() < ANSWERS {
                break;
            }
        }
        moved
    }

    /// Ends every part that a core has whose end is gone.
    #[cold]
    fn give_up(&mut self, peer: u32) {
        if let Some(link) = &mut self.links[peer as usize] {
            link.away = 0;
        }
        while let Some(place) = self.parents.waits_for(peer) {
            self.stats.lost += 1;
            self.end(place, peer, Status::ABORTED_SQ_DELETED, 0);
        }
    }
}

fn aborted(tag: u64) -> Completion {
    Completion { tag, status: Status::ABORTED_SQ_DELETED, result: 0 }
}

impl Device for ShardHandle {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    #[inline]
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), Busy> {
        if self.parents.outstanding() + self.done.len() >= self.limits.queue_depth as usize {
            return Err(Busy);
        }
        if let Err(status) = check(&self.limits, self.pblk.memory(), &request) {
            self.done.push_back(Completion { tag: request.tag, status, result: 0 });
        } else {
            let (shard, lba, left) = self.stripes.locate(request.lba);
            match request.op {
                Op::Extents => self.ask(request)?,
                Op::Flush => self.submit_many(now, request)?,
                _ if request.sectors <= left => {
                    self.submit_one(now, shard, Request { lba, ..request })?;
                }
                _ => self.submit_many(now, request)?,
            }
        }
        self.stats.requests += 1;
        self.moved = true;
        Ok(())
    }

    #[inline]
    fn reap(&mut self) -> Option<Completion> {
        self.done.pop_front()
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
        let mut moved = std::mem::take(&mut self.moved);
        moved |= self.receive(now);
        moved |= self.pblk.listens() && self.listen();
        moved |= self.pblk.poll(now);
        if self.is_curious() {
            self.ask_shards(now);
        }
        while let Some(done) = self.pblk.reap() {
            self.route(done);
            moved = true;
        }
        for link in self.links.iter_mut().flatten() {
            moved |= link.tell();
        }
        // The next question, if the last one has been answered.
        self.moved = self.is_curious();
        moved
    }

    /// At once while something waits for a poll, or a completion to be reaped; else when the shard
    /// wants to be polled.
    fn deadline(&self) -> Nanos {
        let links = || self.links.iter().flatten();
        let waits = self.moved
            || !self.done.is_empty()
            || links().any(|link| link.has_come() || link.has_news() || link.is_lost());
        if waits { Nanos::ZERO } else { self.pblk.deadline() }
    }
}
