//! A model of a device and its users in virtual time, for measuring schedulers.
//!
//! The device takes up to `depth` requests in FIFO order, and its servers each process one. Users
//! are closed loops with a queue depth, or open ones with a rate. Events happen one at a time in a
//! fixed order, so that a test always gives equal numbers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use rng::Rng;
use sluice_block::sched::Scheduler;
use sluice_block::{Group, Op, Payload, Request, StagedRequest, Submitter};
use time::Nanos;

pub(crate) const US: Nanos = Nanos::from_micros(1);
pub(crate) const MS: Nanos = Nanos::from_millis(1);
pub(crate) const SEC: Nanos = Nanos::from_secs(1);

/// Submission times of a user.
#[derive(Clone, Copy)]
pub(crate) enum Pace {
    /// With a constant number of outstanding requests.
    Closed(usize),
    /// One request per interval.
    Every(Nanos),
}

/// Addresses of a user's requests.
#[derive(Clone, Copy)]
pub(crate) enum AccessPattern {
    /// Random addresses on a device of this many sectors.
    Random(u64),
    /// Ascending addresses from a sector.
    Ascending(u64),
    /// Descending addresses from a sector.
    Descending(u64),
}

/// A user.
#[derive(Clone, Copy)]
pub(crate) struct User {
    pub(crate) submitter: u16,
    pub(crate) group: u16,
    pub(crate) op: Op,
    pub(crate) sectors: u32,
    pub(crate) pace: Pace,
    pub(crate) pattern: AccessPattern,
    /// Time between a completion and the next submission of a closed loop.
    pub(crate) think: Nanos,
    pub(crate) from: Nanos,
    pub(crate) until: Nanos,
}

impl User {
    /// Creates a user with random one-sector requests on the whole device, all the time.
    pub(crate) fn new(submitter: u16, op: Op, pace: Pace) -> User {
        User {
            submitter,
            group: 0,
            op,
            sectors: 1,
            pace,
            pattern: AccessPattern::Random(1 << 20),
            think: Nanos::ZERO,
            from: Nanos::ZERO,
            until: Nanos::MAX,
        }
    }
}

/// The results of a user.
#[derive(Default)]
pub(crate) struct Outcome {
    /// Completion times and latencies since submission.
    pub(crate) done: Vec<(Nanos, Nanos)>,
}

impl Outcome {
    /// Returns the number of requests completed from `from` on.
    pub(crate) fn count(&self, from: Nanos) -> usize {
        self.done.iter().filter(|(at, _)| *at >= from).count()
    }

    /// Returns the latency that `percent` of the requests completed from `from` on do not exceed.
    pub(crate) fn percentile(&self, percent: f64, from: Nanos) -> Nanos {
        let mut all: Vec<_> =
            self.done.iter().filter(|(at, _)| *at >= from).map(|(_, latency)| *latency).collect();
        all.sort_unstable();
        assert!(!all.is_empty(), "nothing completed");
        all[((all.len() as f64 * percent / 100.0).ceil() as usize).clamp(1, all.len()) - 1]
    }

    pub(crate) fn max(&self) -> Nanos {
        self.percentile(100.0, Nanos::ZERO)
    }
}

/// A simulation event.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Done(u64),
    Submit(usize),
    Poll,
}

/// A device, its scheduler and its users.
pub(crate) struct Simulation<'a> {
    scheduler: Box<dyn Scheduler>,
    depth: usize,
    servers: usize,
    service: Box<dyn FnMut(&StagedRequest) -> Nanos + 'a>,
    users: Vec<User>,
    pub(crate) outcomes: Vec<Outcome>,
    pub(crate) now: Nanos,
    events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    order: u64,
    /// Requests in the device, by tag, with their start times.
    at_device: BTreeMap<u64, (StagedRequest, Nanos)>,
    queued: VecDeque<u64>,
    busy: usize,
    owners: BTreeMap<u64, usize>,
    placed: Vec<u64>,
    rng: Rng,
    tags: u64,
    /// Next poll of the scheduler according to its deadline.
    next_poll: Nanos,
}

impl<'a> Simulation<'a> {
    pub(crate) fn new(
        scheduler: Box<dyn Scheduler>,
        depth: usize,
        servers: usize,
        service: impl FnMut(&StagedRequest) -> Nanos + 'a,
        users: &[User],
    ) -> Simulation<'a> {
        let mut simulation = Simulation {
            scheduler,
            depth,
            servers,
            service: Box::new(service),
            users: users.to_vec(),
            outcomes: users.iter().map(|_| Outcome::default()).collect(),
            now: Nanos::ZERO,
            events: BinaryHeap::new(),
            order: 0,
            at_device: BTreeMap::new(),
            queued: VecDeque::new(),
            busy: 0,
            owners: BTreeMap::new(),
            placed: vec![0; users.len()],
            rng: Rng::new(1),
            tags: 0,
            next_poll: Nanos::MAX,
        };
        for (index, user) in users.iter().enumerate() {
            let first = match user.pace {
                Pace::Closed(depth) => depth,
                Pace::Every(_) => 1,
            };
            (0..first).for_each(|_| simulation.push(user.from, Event::Submit(index)));
        }
        simulation
    }

    fn push(&mut self, at: Nanos, event: Event) {
        self.order += 1;
        self.events.push(Reverse((at, self.order, event)));
    }

    fn submit(&mut self, index: usize) {
        let user = self.users[index];
        if self.now >= user.until {
            return;
        }
        let place = match user.pattern {
            AccessPattern::Random(sectors) => self.rng.below(sectors),
            AccessPattern::Ascending(from) => from + self.placed[index] * u64::from(user.sectors),
            AccessPattern::Descending(from) => from - self.placed[index] * u64::from(user.sectors),
        };
        self.placed[index] += 1;
        let tag = self.tags;
        self.tags += 1;
        self.owners.insert(tag, index);
        let read = Request::read(place, user.sectors, Payload::BitBucket, tag);
        let staged = StagedRequest {
            request: Request { op: user.op, ..read },
            since: self.now,
            submitter: Submitter(user.submitter),
            group: Group(user.group),
            merged: 1,
            requeues: 0,
        };
        self.scheduler.insert(self.now, staged);
        if let Pace::Every(gap) = user.pace {
            self.push(self.now + gap, Event::Submit(index));
        }
    }

    fn done(&mut self, tag: u64) {
        let (staged, since) =
            self.at_device.remove(&tag).expect("the completed request was in the device");
        self.busy -= 1;
        self.scheduler.completed(self.now, &staged, self.now.since(since));
        let index = self.owners.remove(&tag).expect("the request belongs to a user");
        self.outcomes[index].done.push((self.now, self.now.since(staged.since)));
        if let Pace::Closed(_) = self.users[index].pace {
            self.push(self.now + self.users[index].think, Event::Submit(index));
        }
    }

    fn dispatch(&mut self) {
        while self.at_device.len() < self.depth {
            let Some(staged) = self.scheduler.dispatch(self.now) else { break };
            self.at_device.insert(staged.request.tag, (staged, self.now));
            self.queued.push_back(staged.request.tag);
        }
        while self.busy < self.servers {
            let Some(tag) = self.queued.pop_front() else { break };
            let took = (self.service)(&self.at_device[&tag].0);
            self.busy += 1;
            self.push(self.now + took, Event::Done(tag));
        }
        let look = self.scheduler.deadline();
        if !self.scheduler.is_empty() && look > self.now && look < self.next_poll {
            self.next_poll = look;
            self.push(look, Event::Poll);
        }
    }

    /// Advances time until `end`.
    pub(crate) fn run(&mut self, end: Nanos) {
        while let Some(&Reverse((at, _, _))) = self.events.peek() {
            if at > end {
                break;
            }
            self.now = at;
            // Process all events of this instant before asking the scheduler again.
            while let Some(&Reverse((next, _, event))) = self.events.peek() {
                if next > at {
                    break;
                }
                self.events.pop();
                match event {
                    Event::Done(tag) => self.done(tag),
                    Event::Submit(index) => self.submit(index),
                    Event::Poll => self.next_poll = Nanos::MAX,
                }
            }
            self.dispatch();
        }
        self.now = end;
    }
}

/// Simulates `config` and returns its results.
pub(crate) fn simulate<'a>(
    scheduler: Box<dyn Scheduler>,
    depth: usize,
    servers: usize,
    service: impl FnMut(&StagedRequest) -> Nanos + 'a,
    users: &[User],
    end: Nanos,
) -> Vec<Outcome> {
    let mut simulation = Simulation::new(scheduler, depth, servers, service, users);
    simulation.run(end);
    simulation.outcomes
}
