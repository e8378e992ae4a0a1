//! [`Stripe`]: several devices as one block device, striped (RAID 0).
//!
//! A request becomes one request for each fragment of it on a member ([`StripeLayout`]). It
//! completes when all of them have, with the first error among them. A discard and a Write Zeroes
//! become one request per member, and a flush goes to all of them.
//!
//! Invariants: every accepted request completes exactly once; a member never has more requests than
//! its queue takes, and the others wait here. Memory grows to the largest number of parts that were
//! outstanding, and is then reused: in steady state nothing is allocated.

mod layout;
mod member_schedule;

use std::any::Any;
use std::collections::VecDeque;

use collections::{BitSet, Slab};
use event::Waker;
use mem::AddressSpace;
use nvme::Status;
use time::{Component, Nanos};
use tracepoint::Event;

use crate::device::validate_request;
use crate::{BlockDevice, Completion, Features, Limits, Op, Payload, QueueFull, Request};

use member_schedule::QueueSchedule;

pub use layout::{StripeFragment, StripeLayout};
pub use member_schedule::MemberSchedule;

/// The reason why devices cannot be combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StripeError {
    /// There is no device, or there are more than 65,535.
    #[error("{0} members: a stripe has 1 to 65,535")]
    Members(usize),
    /// A member has another sector size than the first one.
    #[error("member {member} has sectors of {found} bytes, and member 0 of {first}")]
    SectorSize {
        /// Index of the member.
        member: usize,
        /// Its sector size in bytes.
        found: u32,
        /// Sector size of the first member in bytes.
        first: u32,
    },
    /// A member is smaller than one stripe, the stripe is empty, or the set has more sectors than
    /// an address can name.
    #[error("members of {sectors} sectors cannot be striped by {stripe} sectors")]
    Layout {
        /// Number of sectors of the smallest member.
        sectors: u64,
        /// Number of sectors of a stripe.
        stripe: u32,
    },
    /// Members use different memory, so that no payload is registered with all of them.
    #[error("member {member} has another address space than member 0")]
    Memory {
        /// Index of the member.
        member: usize,
    },
}

/// Several devices as one, striped.
#[derive(Debug)]
pub struct Stripe<D> {
    members: Box<[Member<D>]>,
    layout: StripeLayout,
    limits: Limits,
    /// The requests that have not completed.
    requests: Slab<StripedRequest>,
    /// The parts of requests that members have or wait for; the index is the tag.
    parts: Slab<Part>,
    completed: VecDeque<Completion>,
    /// The members with waiting requests that their queues may take: their queues have not refused
    /// one since their last poll.
    submittable: BitSet,
    schedule: Option<QueueSchedule>,
}

#[derive(Debug)]
struct Member<D> {
    device: D,
    /// Requests that its queue has not taken.
    waiting: VecDeque<Request>,
}

#[derive(Clone, Copy, Debug, Default)]
struct StripedRequest {
    tag: u64,
    /// Number of parts that have not completed.
    parts: u32,
    status: Status,
}

/// A part of a request.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// Index of the request.
    request: u32,
    in_use: bool,
}

/// Maximum number of outstanding requests, unless a single member takes more: that of a deep NVMe
/// queue.
const QUEUE_DEPTH_MAX: u32 = 4095;

/// Bit of the tags of parts, which tags of jobs do not have.
const PART: u64 = 1 << 63;

impl<D: BlockDevice> Stripe<D> {
    /// Combines `members` in stripes of `stripe` sectors. All members use one address space. No
    /// request may be outstanding.
    ///
    /// # Errors
    /// [`StripeError`].
    pub fn new(members: Vec<D>, stripe: u32) -> Result<Stripe<D>, StripeError> {
        let (limits, layout) = Stripe::limits_of(members.iter(), stripe)?;
        let depth = limits.queue_depth;
        let member = |device| Member { device, waiting: VecDeque::new() };
        Ok(Stripe {
            submittable: BitSet::new(members.len()),
            schedule: None,
            members: members.into_iter().map(member).collect(),
            layout,
            limits,
            requests: Slab::with_free((0..depth).map(|_| StripedRequest::default())),
            parts: Slab::with_capacity(depth as usize),
            completed: VecDeque::with_capacity(depth as usize),
        })
    }

    /// Sets the schedule of a set with several queues. This stripe is the queue with index `queue`.
    ///
    /// # Panics
    /// At the first poll, if the schedule has other members or fewer queues.
    #[must_use]
    pub fn with_schedule(self, schedule: MemberSchedule, queue: usize) -> Stripe<D> {
        let schedule = QueueSchedule::new(schedule, queue, self.members.len());
        Stripe { schedule: Some(schedule), ..self }
    }

    /// Returns the limits of a stripe over `members`, and the layout. It takes as many requests as
    /// all members together: a drive with few tags, such as a SATA drive, has its own at any time.
    ///
    /// # Errors
    /// [`StripeError`].
    pub fn limits_of<'a>(
        members: impl ExactSizeIterator<Item = &'a D>,
        stripe: u32,
    ) -> Result<(Limits, StripeLayout), StripeError>
    where
        D: 'a,
    {
        let all = members.len();
        let mut first: Option<(&D, Limits)> = None;
        let mut together = 0u32;
        for (member, device) in members.enumerate() {
            let other = device.limits();
            let (first, limits) = first.get_or_insert((device, *other));
            if other.sector_bytes != limits.sector_bytes {
                let (found, first) = (other.sector_bytes, limits.sector_bytes);
                return Err(StripeError::SectorSize { member, found, first });
            }
            if !device.memory().is_same(first.memory()) {
                return Err(StripeError::Memory { member });
            }
            limits.sectors = limits.sectors.min(other.sectors);
            limits.max_sectors = limits.max_sectors.min(other.max_sectors);
            limits.optimal_sectors = limits.optimal_sectors.max(other.optimal_sectors);
            limits.queue_depth = limits.queue_depth.min(other.queue_depth);
            together = together.saturating_add(other.queue_depth);
            limits.volatile_cache |= other.volatile_cache;
            limits.atomic.sectors = limits.atomic.sectors.min(other.atomic.sectors);
            limits.atomic = limits.atomic.divided_at(stripe);
            if other.atomic.boundary_sectors > 0 {
                limits.atomic = limits.atomic.divided_at(other.atomic.boundary_sectors);
            }
        }
        let (Some((_, mut limits)), Ok(count)) = (first, u16::try_from(all)) else {
            return Err(StripeError::Members(all));
        };
        let wrong = StripeError::Layout { sectors: limits.sectors, stripe };
        let layout = StripeLayout::new(count, limits.sectors, stripe).ok_or(wrong)?;
        limits.sectors = layout.sectors();
        limits.queue_depth = together.min(limits.queue_depth.max(QUEUE_DEPTH_MAX));
        limits.optimal_sectors = limits.optimal_sectors.min(limits.max_sectors);
        Ok((limits, layout))
    }

    /// Returns the features of a stripe whose members all have `features`: payloads are contiguous,
    /// and extents cannot be queried.
    pub fn features(features: Features) -> Features {
        Features { segments: 0, extents: false, ..features }
    }

    /// Gives the members the waiting requests that their queues take. Returns whether one took any.
    fn submit_waiting(&mut self, now: Nanos) -> bool {
        let (mut any, mut from) = (false, 0);
        while let Some(index) = self.submittable.next_at(from) {
            self.submittable.remove(index);
            let member = &mut self.members[index];
            let mut took = false;
            while let Some(request) = member.waiting.front() {
                if member.device.submit(now, *request).is_err() {
                    break;
                }
                member.waiting.pop_front();
                took = true;
            }
            if let (true, Some(schedule)) = (took, &self.schedule) {
                schedule.touch(index);
            }
            any |= took;
            from = index + 1;
        }
        any
    }

    /// Polls the members, or those that are due, and reaps their completions. Returns whether one of
    /// them made progress.
    fn poll_members(&mut self, now: Nanos) -> bool {
        let Stripe { members, submittable, schedule, requests, parts, completed, .. } = self;
        let mut poll = |members: &mut Box<[Member<D>]>, index: usize| {
            let member = &mut members[index];
            let moved = member.device.poll(now);
            if !member.waiting.is_empty() {
                submittable.insert(index);
            }
            moved
        };
        let mut reap = |members: &mut Box<[Member<D>]>, index: usize| {
            members[index].reap(requests, parts, completed)
        };
        if let Some(schedule) = schedule {
            let finish = |members: &mut Box<[Member<D>]>, index: usize| {
                (reap(members, index), members[index].device.deadline())
            };
            if let Some(moved) = schedule.poll_due(now, members, &mut poll, finish) {
                return moved;
            }
        }
        let all = 0..members.len();
        let moved = all.clone().fold(false, |moved, index| poll(members, index) | moved);
        all.fold(moved, |moved, index| reap(members, index) | moved)
    }

    /// Adds a part of request `place` to a member's requests.
    fn add_part(&mut self, place: u32, member: u16, request: Request) {
        let part = self.parts.insert(Part { request: place, in_use: true });
        let tag = PART | u64::from(part);
        let of = self.requests[place].tag;
        tracepoint::trace(|| Event::TargetAlias { alias: tag, tag: of });
        self.requests[place].parts += 1;
        self.members[usize::from(member)].waiting.push_back(Request { tag, ..request });
        self.submittable.insert(member.into());
    }
}

impl<D: BlockDevice> Member<D> {
    /// Reaps the member's completions. Returns whether there was one.
    fn reap(
        &mut self,
        requests: &mut Slab<StripedRequest>,
        parts: &mut Slab<Part>,
        completed: &mut VecDeque<Completion>,
    ) -> bool {
        let mut any = false;
        while let Some(Completion { tag, status, .. }) = self.device.reap() {
            any = true;
            let index = (tag & !PART) as u32;
            // A member completes each of its requests once; another tag would be a defect of it.
            let Some(part) = parts.get_mut(index).filter(|part| part.in_use) else {
                debug_assert!(false, "a member completed tag {tag:#x}, which it does not have");
                continue;
            };
            part.in_use = false;
            let place = part.request;
            parts.release(index);
            let request = &mut requests[place];
            request.parts -= 1;
            if request.status.is_success() {
                request.status = status;
            }
            if request.parts == 0 {
                let (tag, status) = (request.tag, request.status);
                completed.push_back(Completion { tag, status, result: 0 });
                requests.release(place);
            }
        }
        any
    }
}

/// Returns the payload of a part that begins `bytes` after the payload's start.
fn advance(data: Payload, bytes: u64) -> Payload {
    match data {
        Payload::Contiguous(at) => Payload::Contiguous(at.offset(bytes)),
        // `submit` rejects scattered payloads.
        Payload::BitBucket | Payload::Scattered { .. } => data,
    }
}

impl<D: BlockDevice> Component for Stripe<D> {
    fn poll(&mut self, now: Nanos) -> bool {
        let moved = self.submit_waiting(now);
        let moved = self.poll_members(now) | moved;
        // A completion makes room for a request that waits.
        self.submit_waiting(now) | moved
    }

    fn deadline(&self) -> Nanos {
        if !self.completed.is_empty() {
            return Nanos::ZERO;
        }
        let of_member = |index: usize| self.members[index].device.deadline();
        let scheduled = self.schedule.as_ref().and_then(|schedule| schedule.deadline(of_member));
        let all = || (0..self.members.len()).map(of_member).min();
        scheduled.or_else(all).unwrap_or(Nanos::MAX)
    }
}

impl<D: BlockDevice> BlockDevice for Stripe<D> {
    crate::answer_block_device!(can_wait: false);

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        if self.completed.len() >= self.requests.len() {
            return Err(QueueFull);
        }
        let Some(place) = self.requests.take() else { return Err(QueueFull) };
        let Request { op, lba, sectors, data, tag, .. } = request;
        let scattered = matches!(data, Payload::Scattered { .. });
        let unsupported = match op {
            Op::Extents => Some(Status::INVALID_OPCODE),
            Op::Read | Op::Write if scattered => Some(Status::INVALID_FIELD),
            _ => None,
        };
        let refused = unsupported
            .or_else(|| validate_request(&self.limits, self.limits.max_sectors, &request));
        if let Some(status) = refused {
            self.requests.release(place);
            self.completed.push_back(Completion { tag, status, result: 0 });
            return Ok(());
        }
        self.requests[place] = StripedRequest { tag, parts: 0, status: Status::SUCCESS };
        let layout = self.layout;
        match op {
            Op::Flush => {
                for member in 0..layout.members() {
                    self.add_part(place, member, request);
                }
            }
            Op::Discard | Op::WriteZeroes => {
                for part in layout.member_extents(lba, sectors) {
                    let of_member = Request { lba: part.lba, sectors: part.sectors, ..request };
                    self.add_part(place, part.member, of_member);
                }
            }
            Op::Read | Op::Write | Op::Extents => {
                for part in layout.fragments(lba, sectors) {
                    let before = u64::from(part.offset) * u64::from(self.limits.sector_bytes);
                    let data = advance(data, before);
                    let of_member =
                        Request { lba: part.lba, sectors: part.sectors, data, ..request };
                    self.add_part(place, part.member, of_member);
                }
            }
        }
        self.submit_waiting(now);
        Ok(())
    }

    fn reap(&mut self) -> Option<Completion> {
        self.completed.pop_front()
    }

    fn memory(&self) -> &AddressSpace {
        self.members[0].device.memory()
    }

    fn set_waker(&mut self, waker: Waker) {
        for member in &mut self.members {
            member.device.set_waker(waker.clone());
        }
    }

    fn can_wake(&self) -> bool {
        self.members.iter().all(|member| member.device.can_wake())
    }

    fn enable_sharing(&mut self) {
        self.members.iter_mut().for_each(|member| member.device.enable_sharing());
    }

    fn visit_layers(&mut self, visit: &mut dyn FnMut(&mut dyn Any)) {
        self.members.iter_mut().for_each(|member| member.device.visit_layers(visit));
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
