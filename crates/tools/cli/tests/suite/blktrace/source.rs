//! The source of the events: a synthetic block layer with three cores, with all kinds of events of
//! the real one, in a possible order.

use block::trace::{Action, TraceEvent, Tracer};
use block::{Op, Submitter};
use nvme::Status;
use time::Nanos;

pub(crate) const CORES: u16 = 3;

/// Batches that each core submits.
const BATCHES: u32 = 80;

/// Returns the events of each core, as recorded by its tracer.
pub(crate) fn events() -> Vec<(u16, Vec<TraceEvent>)> {
    let mut planned = Vec::new();
    let mut dice = Dice(1);
    let mut place = 4096;
    for core in 0..CORES {
        let mut at = 1_000 * u64::from(core);
        for batch in 0..BATCHES {
            let mut plan =
                Plan { core, at, dice: &mut dice, next_lba: &mut place, out: &mut planned };
            at = plan.batch(batch);
        }
    }
    planned.sort_by_key(|event| event.at);
    let mut tracers: Vec<Tracer> = (0..CORES).map(|_| Tracer::new(planned.len())).collect();
    let mut now = 0;
    for event in planned {
        // Events have distinct times, so that their order is defined.
        now = event.at.0.max(now + 1);
        tracers[usize::from(event.core)].record(TraceEvent { at: Nanos(now), ..event });
    }
    assert!(tracers.iter().all(|t| t.dropped() == 0));
    (0..CORES).zip(tracers.iter_mut().map(Tracer::drain)).collect()
}

/// Deterministic random numbers (splitmix64).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

/// The plan of a core. Concurrent requests have no sector in common, because btt identifies them by
/// their sectors.
struct Plan<'a> {
    core: u16,
    at: u64,
    dice: &'a mut Dice,
    next_lba: &'a mut u64,
    out: &'a mut Vec<TraceEvent>,
}

#[derive(Clone, Copy)]
struct Request {
    op: Op,
    fua: bool,
    lba: u64,
    sectors: u32,
}

impl Plan<'_> {
    /// Plans a batch, and returns the earliest time of the next one.
    fn batch(&mut self, number: u32) -> u64 {
        let alone = match number % 20 {
            7 => Some(Op::Flush),
            13 => Some(Op::Extents),
            _ => None,
        };
        let requests = if alone.is_some() { 1 } else { 1 + self.dice.below(7) };
        let mut batch = Vec::new();
        for i in 0..requests {
            let mut request = self.draw(alone);
            self.record(Action::Queued, request);
            if self.dice.below(12) == 0 {
                self.record(Action::Sleep, request);
                self.at += 2_000 + self.dice.below(5_000);
            }
            self.record(Action::GotRequest, request);
            if i == 0 && alone.is_none() {
                self.record(Action::Plug, request);
            }
            if matches!(request.op, Op::Read | Op::Write) && self.dice.below(3) == 0 {
                for _ in 0..1 + self.dice.below(3) {
                    request = self.merge(request);
                }
            }
            batch.push(request);
        }
        if alone.is_none() {
            let requests = batch.len() as u32;
            self.record(Action::Unplug, Request { sectors: requests, ..batch[0] });
        }
        for request in &batch {
            self.record(Action::Inserted, *request);
        }
        let next = self.at + 5_000 + self.dice.below(40_000);
        for request in batch {
            self.execute(request);
        }
        next
    }

    fn draw(&mut self, alone: Option<Op>) -> Request {
        let op = alone.unwrap_or(match self.dice.below(20) {
            0..=10 => Op::Read,
            11..=17 => Op::Write,
            18 => Op::Discard,
            _ => Op::WriteZeroes,
        });
        *self.next_lba += 1_000;
        let lba = if op == Op::Flush { 0 } else { *self.next_lba };
        let sectors = match op {
            Op::Flush => 0,
            Op::Discard => 256,
            _ => [1, 2, 8, 32][self.dice.below(4) as usize],
        };
        Request { op, fua: op == Op::Write && self.dice.below(5) == 0, lba, sectors }
    }

    /// Adds an adjacent request; returns both as one.
    fn merge(&mut self, request: Request) -> Request {
        let sectors = 1 + self.dice.below(8) as u32;
        let before = self.dice.below(3) == 0;
        let lba = if before {
            request.lba - u64::from(sectors)
        } else {
            request.lba + u64::from(request.sectors)
        };
        self.record(Action::Queued, Request { lba, sectors, ..request });
        let action = if before { Action::FrontMerge } else { Action::BackMerge };
        self.record(action, Request { lba, sectors, ..request });
        let sectors = request.sectors + sectors;
        Request { lba: lba.min(request.lba), sectors, ..request }
    }

    /// Executes a request in the hardware, on the core of its queue, which may be another one.
    fn execute(&mut self, request: Request) {
        let started = self.at;
        let submitter = self.core;
        self.core = match self.dice.below(3) {
            0 => (submitter + 1) % CORES,
            _ => submitter,
        };
        self.at += 1_000 + self.dice.below(20_000);
        self.record_of(submitter, Action::Issued, request);
        if self.dice.below(20) == 0 {
            self.at += 3_000;
            self.record_of(submitter, Action::Requeued, request);
            self.at += 7_000;
            self.record_of(submitter, Action::Issued, request);
        }
        let (least, spread) = match request.op {
            Op::Read | Op::Extents => (60_000, 60_000),
            Op::Write | Op::WriteZeroes => (15_000, 25_000),
            Op::Discard => (200_000, 1_000),
            Op::Flush => (500_000, 100_000),
        };
        self.at += least + self.dice.below(spread);
        self.record_of(submitter, Action::Completed, request);
        (self.core, self.at) = (submitter, started);
    }

    fn record(&mut self, action: Action, request: Request) {
        self.record_of(self.core, action, request);
        self.at += 100 + self.dice.below(300);
    }

    fn record_of(&mut self, submitter: u16, action: Action, request: Request) {
        let Request { op, fua, lba, sectors } = request;
        let failed =
            action == Action::Completed && op == Op::Read && (lba / 1_000).is_multiple_of(64);
        self.out.push(TraceEvent {
            at: Nanos(self.at),
            action,
            op,
            fua,
            lba,
            sectors,
            submitter: Submitter(submitter),
            core: self.core,
            queue: 0,
            status: if failed { Status::UNRECOVERED_READ } else { Status::SUCCESS },
        });
    }
}
