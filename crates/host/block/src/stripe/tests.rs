//! A stripe over devices with small queues, against a device of the same size.

// guarantee: B-23, B-67

use std::collections::VecDeque;

use mem::{Iova, SharedRegion};
use rng::Rng;

use super::*;
use crate::AtomicLimits;

const SECTOR: u32 = 512;

/// A device in memory that takes few requests and completes them in any order.
#[derive(Debug)]
struct Ram {
    limits: Limits,
    memory: AddressSpace,
    data: Vec<u8>,
    taken: Vec<Request>,
    done: VecDeque<Completion>,
    flushes: u32,
    polls: u64,
    rng: Rng,
    /// Deadline without requests.
    due: Nanos,
    /// The status of requests to this sector.
    fault: Option<(u64, Status)>,
}

impl Ram {
    fn new(memory: &AddressSpace, sectors: u64, queue_depth: u32, seed: u64) -> Ram {
        let limits = Limits {
            sector_bytes: SECTOR,
            sectors,
            max_sectors: 64,
            optimal_sectors: 4,
            queue_depth,
            volatile_cache: false,
            atomic: AtomicLimits::NONE,
        };
        Ram {
            limits,
            memory: memory.clone(),
            data: vec![0; sectors as usize * SECTOR as usize],
            taken: Vec::new(),
            done: VecDeque::new(),
            flushes: 0,
            polls: 0,
            rng: Rng::new(seed),
            due: Nanos::MAX,
            fault: None,
        }
    }

    fn run(&mut self, request: Request) -> Status {
        let Request { op, lba, sectors, data, .. } = request;
        let range =
            lba as usize * SECTOR as usize..(lba as usize + sectors as usize) * SECTOR as usize;
        if let Some((at, status)) = self.fault
            && (lba..lba + u64::from(sectors)).contains(&at)
        {
            return status;
        }
        match (op, data) {
            (Op::Read, Payload::Contiguous(at)) => {
                self.memory.write(at, &self.data[range]).unwrap()
            }
            (Op::Write, Payload::Contiguous(at)) => {
                self.memory.read(at, &mut self.data[range]).unwrap();
            }
            (Op::Discard | Op::WriteZeroes, _) => self.data[range].fill(0),
            (Op::Flush, _) => self.flushes += 1,
            other => panic!("{other:?}"),
        }
        Status::SUCCESS
    }
}

impl Component for Ram {
    fn poll(&mut self, _: Nanos) -> bool {
        self.polls += 1;
        if self.taken.is_empty() {
            return false;
        }
        let index = self.rng.below(self.taken.len() as u64) as usize;
        let request = self.taken.swap_remove(index);
        let status = self.run(request);
        self.done.push_back(Completion { tag: request.tag, status, result: 0 });
        true
    }

    fn deadline(&self) -> Nanos {
        if self.taken.is_empty() { self.due } else { Nanos::ZERO }
    }
}

impl BlockDevice for Ram {
    crate::answer_block_device!(can_wake: true, enable_sharing: {}, can_wait: false, visit_layers: self);

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&mut self, _: Nanos, request: Request) -> Result<(), QueueFull> {
        if self.taken.len() >= self.limits.queue_depth as usize {
            return Err(QueueFull);
        }
        assert_eq!(validate_request(&self.limits, self.limits.max_sectors, &request), None);
        self.taken.push(request);
        Ok(())
    }

    fn reap(&mut self) -> Option<Completion> {
        self.done.pop_front()
    }

    fn memory(&self) -> &AddressSpace {
        &self.memory
    }

    fn set_waker(&mut self, _: Waker) {}
}

fn stripe(members: u16, sectors: u64, size: u32) -> (Stripe<Ram>, AddressSpace) {
    let memory = AddressSpace::default();
    let member = |i: u16| Ram::new(&memory, sectors + u64::from(i), 3, i.into());
    (Stripe::new((0..members).map(member).collect(), size).unwrap(), memory)
}

fn run(set: &mut Stripe<Ram>, want: usize) -> Vec<Completion> {
    let mut done = Vec::new();
    for _ in 0..100_000 {
        set.poll(Nanos::ZERO);
        done.extend(std::iter::from_fn(|| set.reap()));
        if done.len() == want {
            return done;
        }
    }
    panic!("{} of {want} completed", done.len());
}

/// A stripe that polls the members that are due; two neighbours have one device.
fn scheduled(set: Stripe<Ram>) -> (Stripe<Ram>, MemberSchedule) {
    let devices: Vec<usize> = (0..set.members.len()).map(|member| member / 2).collect();
    let schedule = MemberSchedule::new(&devices, 1);
    schedule.activate();
    (set.with_schedule(schedule.clone(), 0), schedule)
}

#[test]
fn a_stripe_is_one_device() {
    let cases = [(1, 8, 1), (2, 4, 2), (3, 8, 3), (5, 1, 4), (7, 5, 5)];
    for (index, (members, size, seed)) in cases.into_iter().chain(cases).enumerate() {
        let (mut set, memory) = stripe(members, 200, size);
        if index >= cases.len() {
            set = scheduled(set).0;
        }
        let sectors = set.limits().sectors;
        assert_eq!(sectors, set.layout.sectors());
        let mut model = vec![0u8; sectors as usize * SECTOR as usize];
        let buffer = SharedRegion::anonymous(64 * SECTOR as usize).unwrap();
        let at = memory.register(&buffer).unwrap();
        let mut rng = Rng::new(seed);
        for step in 0..3_000u64 {
            let count = 1 + rng.below(64.min(sectors)) as u32;
            let lba = rng.below(sectors - u64::from(count) + 1);
            let range =
                lba as usize * SECTOR as usize..(lba as usize + count as usize) * SECTOR as usize;
            let len = range.len();
            match rng.below(5) {
                0 => {
                    set.submit(Nanos::ZERO, Request::flush(step)).unwrap();
                    let before: Vec<u32> = set.members.iter().map(|m| m.device.flushes).collect();
                    assert!(run(&mut set, 1)[0].status.is_success());
                    let after = set.members.iter().map(|m| m.device.flushes);
                    assert!(after.zip(before).all(|(after, before)| after == before + 1));
                }
                1 => {
                    set.submit(Nanos::ZERO, Request::discard(lba, count, step)).unwrap();
                    assert_eq!(run(&mut set, 1)[0].tag, step);
                    model[range].fill(0);
                }
                2 | 3 => {
                    let bytes: Vec<u8> = (0..len).map(|_| rng.below(256) as u8).collect();
                    memory.write(at, &bytes).unwrap();
                    let payload = Payload::Contiguous(at);
                    set.submit(Nanos::ZERO, Request::write(lba, count, payload, step)).unwrap();
                    assert_eq!(run(&mut set, 1)[0].tag, step);
                    model[range].copy_from_slice(&bytes);
                }
                _ => {
                    let payload = Payload::Contiguous(at);
                    set.submit(Nanos::ZERO, Request::read(lba, count, payload, step)).unwrap();
                    assert!(run(&mut set, 1)[0].status.is_success());
                    let mut bytes = vec![0; len];
                    memory.read(at, &mut bytes).unwrap();
                    assert_eq!(bytes, model[range], "{members} members, step {step}");
                }
            }
        }
        assert_eq!((set.requests.in_use(), set.parts.in_use()), (0, 0));
    }
}

/// Random requests to a stripe of small queues, and the order in which they complete.
fn completions_of_random_requests(mut set: Stripe<Ram>) -> Vec<Completion> {
    let (mut rng, mut all) = (Rng::new(11), Vec::new());
    for tag in 0..5_000 {
        let sectors = 1 + rng.below(100) as u32;
        let lba = rng.below(set.limits().sectors - u64::from(sectors) + 1);
        let request = match rng.below(8) {
            0 => Request::flush(tag),
            1 => Request::write_zeroes(lba, sectors, true, tag),
            _ => Request::discard(lba, sectors, tag),
        };
        while set.submit(Nanos::ZERO, request).is_err() {
            assert!(set.poll(Nanos::ZERO), "requests are outstanding");
            all.extend(std::iter::from_fn(|| set.reap()));
        }
        if rng.below(3) == 0 {
            set.poll(Nanos::ZERO);
            all.extend(std::iter::from_fn(|| set.reap()));
        }
    }
    while set.deadline() == Nanos::ZERO {
        set.poll(Nanos::ZERO);
        all.extend(std::iter::from_fn(|| set.reap()));
    }
    assert_eq!((all.len(), set.deadline()), (5_000, Nanos::MAX));
    all
}

#[test]
fn members_that_are_due_complete_requests_in_the_order_of_a_stripe_that_polls_all() {
    for members in [1, 2, 9, 70] {
        let plain = completions_of_random_requests(stripe(members, 100, 3).0);
        let due = completions_of_random_requests(scheduled(stripe(members, 100, 3).0).0);
        assert_eq!(due, plain, "{members} members");
    }
}

#[test]
fn a_step_polls_the_members_that_have_work() {
    let (set, _) = stripe(130, 64, 4);
    let (mut set, schedule) = scheduled(set);
    let polls = |set: &Stripe<Ram>| -> Vec<u64> {
        set.members.iter().map(|member| member.device.polls).collect()
    };
    let touched = || {
        let mut touched = Vec::new();
        schedule.drain_touched(|device| touched.push(device));
        touched
    };
    set.poll(Nanos::ZERO);
    assert!(polls(&set).iter().all(|polls| *polls == 1), "all are due at first");
    assert_eq!(touched(), (0..65).collect::<Vec<_>>());
    let before = polls(&set);
    for tag in 0..1_000 {
        // Sector 290 of the set is of member 72, which has a device with member 73.
        set.submit(Nanos::ZERO, Request::discard(290, 1, tag)).unwrap();
        assert_eq!(run(&mut set, 1)[0].tag, tag);
        while set.poll(Nanos::ZERO) {}
        assert_eq!((set.deadline(), touched()), (Nanos::MAX, vec![36]));
    }
    let grown = |set: &Stripe<Ram>| -> Vec<usize> {
        let grown = polls(set).into_iter().zip(&before).map(|(now, before)| now > *before);
        grown.enumerate().filter_map(|(member, grown)| grown.then_some(member)).collect()
    };
    assert_eq!(grown(&set), [72, 73]);
    // The device of these posts something.
    schedule.wake_device(1);
    set.poll(Nanos::ZERO);
    assert_eq!(grown(&set), [2, 3, 72, 73]);
    schedule.wake_all();
    set.poll(Nanos::ZERO);
    assert_eq!(grown(&set).len(), 130);
    schedule.deactivate();
    let before = polls(&set);
    set.poll(Nanos::ZERO);
    assert!(polls(&set).iter().zip(before).all(|(now, before)| *now == before + 1));
}

#[test]
fn a_member_is_polled_at_its_deadline() {
    let memory = AddressSpace::default();
    let member = |i: u64| Ram { due: Nanos(100 * (5 - i)), ..Ram::new(&memory, 64, 3, i) };
    let set = Stripe::new((0..4).map(member).collect(), 8).unwrap();
    let (mut set, _) = scheduled(set);
    set.poll(Nanos::ZERO);
    // A deadline that has passed makes a member due at each poll.
    for (now, polls) in [(200, [1, 1, 1, 2]), (400, [1, 2, 2, 3]), (450, [1, 3, 3, 4])] {
        assert!(set.deadline() <= Nanos(now));
        set.poll(Nanos(now));
        let polled: Vec<u64> = set.members.iter().map(|member| member.device.polls).collect();
        assert_eq!(polled, polls, "at {now}");
    }
}

#[test]
fn as_many_requests_as_the_queue_takes_complete_once() {
    let (mut set, _) = stripe(4, 256, 2);
    for round in 0..100u64 {
        let mut sent = 0;
        while set.submit(Nanos::ZERO, Request::discard(sent, 60, round << 8 | sent)).is_ok() {
            sent += 1;
        }
        assert_eq!(sent, 4 * 3, "as many as the members together");
        let mut tags: Vec<u64> = run(&mut set, sent as usize).iter().map(|c| c.tag).collect();
        tags.sort_unstable();
        assert_eq!(tags, (0..sent).map(|i| round << 8 | i).collect::<Vec<_>>());
        assert_eq!(set.deadline(), Nanos::MAX);
    }
}

#[test]
fn a_request_fails_with_the_error_of_a_part() {
    let (mut set, memory) = stripe(2, 64, 4);
    let (_buffer, at) = memory.allocate_registered(64 * SECTOR as usize).unwrap();
    // Sector 5 of member 1 is sector 8 + 4 + 1 of the set.
    set.members[1].device.fault = Some((5, Status::UNRECOVERED_READ));
    for (lba, count, status) in [
        (0, 13, Status::SUCCESS),
        (13, 1, Status::UNRECOVERED_READ),
        (0, 64, Status::UNRECOVERED_READ),
        (14, 50, Status::SUCCESS),
    ] {
        set.submit(Nanos::ZERO, Request::read(lba, count, Payload::Contiguous(at), 9)).unwrap();
        assert_eq!(run(&mut set, 1)[0], Completion { tag: 9, status, result: 0 });
    }
    let table = Payload::Scattered { table: at, segments: 1 };
    for (request, status) in [
        (Request::read(128, 1, Payload::Contiguous(at), 1), Status::LBA_OUT_OF_RANGE),
        (Request::read(0, 65, Payload::Contiguous(at), 1), Status::INVALID_FIELD),
        (Request::read(0, 0, Payload::Contiguous(at), 1), Status::INVALID_FIELD),
        (Request::read(0, 1, table, 1), Status::INVALID_FIELD),
        (Request::extents(0, 1, at, 1), Status::INVALID_OPCODE),
    ] {
        set.submit(Nanos::ZERO, request).unwrap();
        assert_eq!(set.deadline(), Nanos::ZERO, "a completion is not reaped");
        assert_eq!(set.reap(), Some(Completion { tag: 1, status, result: 0 }), "{request:?}");
    }
    assert_eq!(set.requests.in_use(), 0);
}

#[test]
fn devices_that_are_not_one_are_refused() {
    let memory = AddressSpace::default();
    let ram = |sectors| Ram::new(&memory, sectors, 4, 1);
    let wrong = |members: Vec<Ram>, stripe| Stripe::new(members, stripe).unwrap_err();
    assert_eq!(wrong(Vec::new(), 8), StripeError::Members(0));
    assert_eq!(wrong(vec![ram(7), ram(9)], 8), StripeError::Layout { sectors: 7, stripe: 8 });
    assert_eq!(wrong(vec![ram(7), ram(9)], 0), StripeError::Layout { sectors: 7, stripe: 0 });
    let mut large = ram(64);
    large.limits.sector_bytes = 4096;
    let sizes = StripeError::SectorSize { member: 1, found: 4096, first: 512 };
    assert_eq!(wrong(vec![ram(64), large], 8), sizes);
    let other = Ram::new(&AddressSpace::default(), 64, 4, 1);
    assert_eq!(wrong(vec![ram(64), ram(64), other], 8), StripeError::Memory { member: 2 });
    assert_eq!(advance(Payload::Contiguous(Iova(512)), 512), Payload::Contiguous(Iova(1024)));
}

// guarantee: D-59

#[test]
fn atomic_writes_end_at_stripes_and_at_the_boundaries_of_all_members() {
    let memory = AddressSpace::default();
    let atomic = |sectors, boundary_sectors| AtomicLimits { sectors, boundary_sectors };
    let set = |limits: [AtomicLimits; 2], stripe| {
        let members = limits.map(|atomic| {
            let mut ram = Ram::new(&memory, 64, 4, 1);
            ram.limits.atomic = atomic;
            ram
        });
        Stripe::new(Vec::from(members), stripe).unwrap().limits().atomic
    };
    assert_eq!(set([atomic(8, 0), atomic(16, 0)], 32), atomic(8, 32));
    // A stripe that is shorter than the boundary of its members.
    assert_eq!(set([atomic(8, 8), atomic(8, 8)], 2), atomic(2, 2));
    assert_eq!(set([atomic(8, 0), atomic(8, 8)], 16), atomic(8, 8));
    assert_eq!(set([atomic(8, 0), AtomicLimits::NONE], 16).sectors, 0);
}
