//! Properties of every scheduler, under any sequence of operations.

// guarantee: B-43

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use sluice_block::sched::{
    DeadlineConfig, DirectionThrottle, FairBy, FairConfig, GroupChange, GroupThrottle, KyberConfig,
    LimitKind, RateLimit, SchedError, Scheduler, SchedulerConfig, Scheduling, ThrottleConfig,
};
use sluice_block::{Group, Op, Payload, Request, StagedRequest, Submitter};
use time::Nanos;

const DEPTH: u16 = 8;

/// Returns a request of group `group`, and of the submitter with that index.
pub(crate) fn staged(tag: u64, op: Op, lba: u64, sectors: u32, group: u16) -> StagedRequest {
    let read = Request::read(lba, sectors, Payload::BitBucket, tag);
    StagedRequest {
        request: Request { op, ..read },
        since: Nanos::ZERO,
        submitter: Submitter(group),
        group: Group(group),
        merged: 1,
        requeues: 0,
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A request arrives; it may be merged.
    Insert { op: Op, lba: u64, sectors: u32, who: u16 },
    /// The hardware takes up to this many requests.
    Next(u8),
    /// The hardware rejects a request, which is requeued.
    Requeue(usize),
    /// A request in the hardware completes.
    Complete(usize),
    /// A group gets another weight, and another rate of each of its limits.
    Change { group: u16, weight: u16, per_sec: u64 },
    /// Time passes.
    Wait(Nanos),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let op = prop_oneof![
        4 => Just(Op::Read),
        4 => Just(Op::Write),
        1 => Just(Op::Discard),
        1 => Just(Op::WriteZeroes),
        1 => Just(Op::Extents),
    ];
    let insert = (op, 0..60u64, 1..9u32, 0..4u16);
    let change = (0..4u16, 1..1001u16, 1..20_000u64);
    let step = prop_oneof![
        1 => change.prop_map(|(group, weight, per_sec)| Step::Change { group, weight, per_sec }),
        6 => insert.prop_map(|(op, lba, sectors, who)| Step::Insert { op, lba, sectors, who }),
        3 => (1..4u8).prop_map(Step::Next),
        1 => any::<usize>().prop_map(Step::Requeue),
        3 => any::<usize>().prop_map(Step::Complete),
        1 => (0..2_000_000_000u64).prop_map(|ns| Step::Wait(Nanos(ns))),
        2 => (0..1_000_000u64).prop_map(|ns| Step::Wait(Nanos(ns))),
    ];
    prop::collection::vec(step, 1..300)
}

fn schedulings() -> Vec<Scheduling> {
    let fair = |by, borrow| FairConfig {
        by,
        work_conserving: borrow,
        weights: vec![(1, 1), (2, 1000)],
        ..Default::default()
    };
    let schedulers = [
        SchedulerConfig::None,
        SchedulerConfig::Deadline(DeadlineConfig::default()),
        SchedulerConfig::Deadline(DeadlineConfig {
            fifo_batch: 1,
            writes_starved: 1,
            front_merges: false,
            read_expire: Nanos::ZERO,
            write_expire: Nanos::from_millis(1),
        }),
        SchedulerConfig::Kyber(KyberConfig::default()),
        SchedulerConfig::Kyber(KyberConfig { window: Nanos(1), ..Default::default() }),
        SchedulerConfig::Fair(fair(FairBy::Submitter, true)),
        SchedulerConfig::Fair(fair(FairBy::Group, false)),
    ];
    let operations = Some(RateLimit { per_sec: 10, burst: 2 });
    let bytes = Some(RateLimit { per_sec: 10_000, burst: 3000 });
    let limits = ThrottleConfig {
        sector_bytes: 512,
        groups: vec![
            (
                Group(1),
                GroupThrottle {
                    read: DirectionThrottle { operations, bytes: None },
                    write: DirectionThrottle { operations, bytes },
                },
            ),
            (
                Group(3),
                GroupThrottle {
                    write: DirectionThrottle { operations: None, bytes },
                    ..Default::default()
                },
            ),
        ],
    };
    let with =
        |scheduler: &SchedulerConfig, limits| Scheduling { scheduler: scheduler.clone(), limits };
    let free = schedulers.iter().map(|s| with(s, None));
    let limited = schedulers.iter().map(|s| with(s, Some(limits.clone())));
    free.chain(limited).collect()
}

/// The model that the scheduler is compared with.
#[derive(Default)]
struct Model {
    /// Requests in the scheduler, by tag.
    queued: BTreeMap<u64, StagedRequest>,
    /// Requests in the hardware.
    given: Vec<StagedRequest>,
    /// Tags of completed requests and of those merged into them.
    done: BTreeSet<u64>,
    merged_into: BTreeMap<u64, Vec<u64>>,
    now: Nanos,
}

impl Model {
    fn take(&mut self, scheduler: &mut dyn Scheduler) -> bool {
        let Some(got) = scheduler.dispatch(self.now) else { return false };
        let expected = self.queued.remove(&got.request.tag);
        assert_eq!(
            Some(got),
            expected,
            "a queued request must be dispatched once, with its merges"
        );
        self.given.push(got);
        true
    }

    fn complete(&mut self, scheduler: &mut dyn Scheduler, which: usize) {
        let staged = self.given.swap_remove(which);
        scheduler.completed(self.now, &staged, Nanos(1000));
        let tag = staged.request.tag;
        let riders = self.merged_into.remove(&tag).unwrap_or_default();
        assert_eq!(usize::from(staged.merged), 1 + riders.len());
        for tag in riders.into_iter().chain([tag]) {
            assert!(self.done.insert(tag), "{tag} completed twice");
        }
    }

    fn insert(&mut self, scheduler: &mut dyn Scheduler, new: StagedRequest) {
        let mut absorbed = None;
        let mut offered = BTreeSet::new();
        let found = scheduler.find_merge(&new, &mut |held| {
            let model = self
                .queued
                .get(&held.request.tag)
                .expect("only queued requests may be offered for a merge");
            assert_eq!(held, model);
            assert!(offered.insert(held.request.tag), "offered twice");
            if held.submitter != new.submitter || held.request.op != new.request.op {
                return false;
            }
            if held.end() == new.request.lba {
                held.request.sectors += new.request.sectors;
            } else if new.end() == held.request.lba {
                held.request.lba = new.request.lba;
                held.request.sectors += new.request.sectors;
            } else {
                return false;
            }
            held.merged += 1;
            absorbed = Some(*held);
            true
        });
        assert_eq!(found, absorbed.is_some());
        match absorbed {
            Some(whole) => {
                self.merged_into.entry(whole.request.tag).or_default().push(new.request.tag);
                self.queued.insert(whole.request.tag, whole);
            }
            None => {
                scheduler.insert(self.now, new);
                self.queued.insert(new.request.tag, new);
            }
        }
    }

    fn step(&mut self, scheduler: &mut dyn Scheduler, step: Step, tag: u64) {
        match step {
            Step::Insert { op, lba, sectors, who } => {
                let new = StagedRequest { since: self.now, ..staged(tag, op, lba, sectors, who) };
                self.insert(scheduler, new);
            }
            Step::Next(count) => {
                for _ in 0..count {
                    if self.given.len() >= DEPTH.into() || !self.take(scheduler) {
                        break;
                    }
                }
            }
            Step::Change { group, weight, per_sec } => {
                let weight = GroupChange::Weight(weight);
                let kinds = [
                    LimitKind::ReadOperations,
                    LimitKind::ReadBytes,
                    LimitKind::WriteOperations,
                    LimitKind::WriteBytes,
                ];
                let rates = kinds.map(|of| GroupChange::Rate { of, per_sec });
                for change in rates.into_iter().chain([weight]) {
                    match scheduler.change_group(self.now, Group(group), change) {
                        Ok(()) | Err(SchedError::NoWeights | SchedError::NoLimit { .. }) => {}
                        Err(error) => panic!("{change:?}: {error}"),
                    }
                }
            }
            Step::Requeue(which) if !self.given.is_empty() => {
                let staged = self.given.swap_remove(which % self.given.len());
                scheduler.requeue(self.now, staged);
                self.queued.insert(staged.request.tag, staged);
            }
            Step::Complete(which) if !self.given.is_empty() => {
                self.complete(scheduler, which % self.given.len());
            }
            Step::Requeue(_) | Step::Complete(_) => (),
            Step::Wait(time) => self.now += time,
        }
        assert_eq!(scheduler.len(), self.queued.len());
        assert_eq!(scheduler.is_empty(), self.queued.is_empty());
    }

    /// Dispatches and completes everything. With nothing in the device, a scheduler must return a
    /// request or a deadline.
    fn drain(&mut self, scheduler: &mut dyn Scheduler) {
        while !self.queued.is_empty() || !self.given.is_empty() {
            while !self.given.is_empty() {
                self.complete(scheduler, 0);
            }
            let mut waits = 0;
            while !self.queued.is_empty() && !self.take(scheduler) {
                let at = scheduler.deadline();
                assert!(at > self.now && at < Nanos::MAX, "{at} at {}, {scheduler:?}", self.now);
                self.now = at;
                waits += 1;
                assert!(waits < 4, "the scheduler's own deadline must make a request available");
            }
            while self.given.len() < DEPTH.into() && self.take(scheduler) {}
        }
        assert_eq!(scheduler.dispatch(Nanos::MAX), None);
        assert_eq!(scheduler.len(), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn everything_comes_out_exactly_once(steps in steps()) {
        for scheduling in schedulings() {
            let mut scheduler = scheduling.build(DEPTH).unwrap();
            let mut model = Model::default();
            let mut inserted = 0;
            for step in &steps {
                model.step(scheduler.as_mut(), *step, inserted);
                inserted += u64::from(matches!(step, Step::Insert { .. }));
            }
            model.drain(scheduler.as_mut());
            prop_assert_eq!(model.done.len() as u64, inserted);
        }
    }

    /// Requests that are dispatched and requeued in reverse order are dispatched again in the
    /// original order. Except with `deadline`, whose batch has then fixed that order, this does not
    /// change what follows, whatever arrives and however much time passes in between.
    #[test]
    fn what_is_put_back_was_never_given(
        requests in prop::collection::vec((0..5usize, 0..1000u64, 1..9u32, 0..4u16), 1..120),
        depths in prop::collection::vec(0..6usize, 1..120),
    ) {
        let ops = [Op::Read, Op::Write, Op::Discard, Op::WriteZeroes, Op::Read];
        for scheduling in schedulings() {
            let settles = matches!(scheduling.scheduler, SchedulerConfig::Deadline(_));
            let [mut plain, mut disturbed] = [0, 1].map(|_| scheduling.build(DEPTH).unwrap());
            let mut now = Nanos::ZERO;
            let mut depths = depths.iter().cycle();
            let mut tags = (0..).zip(&requests);
            let mut given = Vec::new();
            loop {
                let arriving: Vec<_> = tags.by_ref().take(3).collect();
                for (tag, (op, lba, sectors, who)) in &arriving {
                    let new = staged(*tag, ops[*op], *lba, *sectors, *who);
                    plain.insert(now, new);
                    disturbed.insert(now, new);
                }
                let depth = *depths.next().unwrap();
                let mut before = None;
                for _ in 0..2 {
                    let ahead: Vec<_> = (0..depth).map_while(|_| disturbed.dispatch(now)).collect();
                    for staged in ahead.iter().rev() {
                        disturbed.requeue(now, *staged);
                    }
                    prop_assert_eq!(before.get_or_insert(ahead.clone()), &ahead);
                }
                for _ in 0..2 {
                    let (a, b) = (plain.dispatch(now), disturbed.dispatch(now));
                    prop_assert!(settles || a == b, "{:?}, not {:?}: {:?}", b, a, disturbed);
                    prop_assert_eq!(a.is_some(), b.is_some());
                    given.extend(a.zip(b));
                }
                prop_assert_eq!(plain.len(), disturbed.len());
                prop_assert_eq!(plain.deadline(), disturbed.deadline());
                now += Nanos::from_millis(20);
                if given.len() >= DEPTH.into() {
                    for (a, b) in given.drain(..) {
                        plain.completed(now, &a, Nanos(1000));
                        disturbed.completed(now, &b, Nanos(1000));
                    }
                }
                if arriving.is_empty() && (plain.is_empty() || now > Nanos::from_secs(2)) {
                    break;
                }
            }
        }
    }
}

#[test]
fn a_request_at_the_last_sector_is_no_trouble() {
    for scheduling in schedulings() {
        let mut scheduler = scheduling.build(DEPTH).unwrap();
        for (tag, lba) in [u64::MAX, u64::MAX - 8, 0].into_iter().enumerate() {
            let new = staged(tag as u64, Op::Write, lba, u32::MAX, 0);
            scheduler.find_merge(&new, &mut |_| false);
            scheduler.insert(Nanos::MAX, new);
        }
        let out: BTreeSet<_> =
            std::iter::from_fn(|| scheduler.dispatch(Nanos::MAX)).map(|s| s.request.tag).collect();
        assert_eq!(out.len(), 3, "{scheduling:?}");
    }
}

#[test]
fn spurious_completions_are_harmless() {
    for scheduling in schedulings() {
        let mut scheduler = scheduling.build(DEPTH).unwrap();
        for tag in 0..100 {
            let spurious = staged(tag, Op::Read, tag, 1, tag as u16);
            scheduler.completed(Nanos(tag), &spurious, Nanos::MAX);
        }
        scheduler.insert(Nanos(100), staged(0, Op::Read, 0, 1, 0));
        assert!(scheduler.dispatch(Nanos(100)).is_some());
    }
}
