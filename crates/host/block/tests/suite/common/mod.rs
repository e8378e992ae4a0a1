//! [`Chaos`]: a faulty device in virtual time.
//!
//! It stores data and completes commands late and in any order. It reports that it is busy, loses
//! commands, completes them twice, and completes tags that were not issued. It can be reset or
//! removed. A seed determines all faults.

#![allow(dead_code, unreachable_pub, reason = "shared by several tests")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use driver::{
    BindError, CompletionEvent, Features, HardwareQueue, Limits, LowLevelDriver, Op, Payload,
    QueueState, Request, Segment, Tag, TagError, TagSet,
};
use event::Waker;
use mem::{AddressSpace, Iova};
use nvme::Status;
use rng::Rng;
use time::Nanos;

pub const SECTOR: u32 = 512;

/// Rates of faults, per 1,000.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub busy: u64,
    pub not_ready: u64,
    pub failed: u64,
    pub lost: u64,
    pub twice: u64,
    pub spurious: u64,
    /// Aborted commands that complete with [`Status::ABORTED`], per 1,000.
    pub abortable: u64,
}

/// State that all queues of a device share.
#[derive(Debug, Default)]
pub struct World {
    pub sectors: BTreeMap<u64, [u8; SECTOR as usize]>,
    pub faults: Faults,
    pub removed: bool,
    /// Sectors of the longest command so far, and data segments of the command with the most
    /// segments.
    pub longest: u32,
    pub segments: u16,
    pub commands: u64,
    pub flushes: u64,
    pub resets: u64,
    pub now: Nanos,
}

pub struct Chaos {
    pub limits: Limits,
    pub features: Features,
    pub world: Arc<Mutex<World>>,
    memory: AddressSpace,
    queues: Vec<Option<ChaosQueue>>,
    /// Hardware queue to which software queues are mapped; `None` for the correct mapping.
    pub mapping: Option<u16>,
}

impl Chaos {
    pub fn new(limits: Limits, features: Features, queues: u16, seed: u64) -> Chaos {
        let (world, memory) = (Arc::<Mutex<World>>::default(), AddressSpace::default());
        let queues = (0..queues)
            .map(|i| {
                Some(ChaosQueue {
                    tags: TagSet::new(limits.queue_depth as u16),
                    bound: Vec::new(),
                    issued: Vec::new(),
                    world: world.clone(),
                    memory: memory.clone(),
                    rng: Rng::new(seed ^ u64::from(i) << 32),
                    ready_at: Nanos::ZERO,
                    resetting: false,
                    twice: None,
                })
            })
            .collect();
        Chaos { limits, features, world, memory, queues, mapping: None }
    }
}

impl LowLevelDriver for Chaos {
    type Queue = ChaosQueue;
    fn limits(&self) -> Limits {
        self.limits
    }
    fn features(&self) -> Features {
        self.features
    }
    fn queues(&self) -> u16 {
        self.queues.len() as u16
    }
    fn memory(&self) -> &AddressSpace {
        &self.memory
    }
    fn map_queue(&self, software: u16, count: u16) -> u16 {
        let spread = u32::from(software) * u32::from(self.queues()) / u32::from(count);
        self.mapping.unwrap_or(spread as u16)
    }
    fn take_queue(&mut self, index: u16) -> Option<ChaosQueue> {
        self.queues.get_mut(usize::from(index))?.take()
    }
}

#[derive(Clone, Copy, Debug)]
struct Command {
    tag: Tag,
    request: Request,
    /// Completion time; `Nanos::MAX` if the command is lost.
    at: Nanos,
    status: Status,
    again: bool,
}

#[derive(Debug)]
pub struct ChaosQueue {
    tags: TagSet,
    bound: Vec<Command>,
    issued: Vec<Command>,
    world: Arc<Mutex<World>>,
    memory: AddressSpace,
    rng: Rng,
    ready_at: Nanos,
    resetting: bool,
    twice: Option<Tag>,
}

impl ChaosQueue {
    fn chance(&mut self, of_thousand: u64) -> bool {
        self.rng.below(1000) < of_thousand
    }

    fn segments(&self, request: &Request) -> Vec<Segment> {
        let bytes = request.sectors * SECTOR;
        match request.data {
            Payload::Contiguous(at) => vec![Segment { at: Some(at), bytes }],
            Payload::BitBucket => vec![Segment { at: None, bytes }],
            Payload::Scattered { table, segments } => (0..segments)
                .map(|i| {
                    let mut entry = [0; Segment::BYTES];
                    self.memory.read(table.offset(u64::from(i) * 16), &mut entry).unwrap();
                    let word = |at| u64::from_le_bytes(entry[at..at + 8].try_into().unwrap());
                    Segment::decode([word(0), word(8)]).unwrap()
                })
                .collect(),
        }
    }

    fn places(&self, request: &Request) -> Vec<Option<Iova>> {
        let segments = self.segments(request);
        assert_eq!(segments.iter().map(|p| p.bytes).sum::<u32>(), request.sectors * SECTOR);
        segments
            .into_iter()
            .flat_map(|p| {
                assert_eq!(p.bytes % SECTOR, 0);
                (0..p.bytes / SECTOR).map(move |i| p.at.map(|a| a.offset((i * SECTOR).into())))
            })
            .collect()
    }

    fn execute(&mut self, request: &Request) {
        let places = match request.op {
            Op::Read | Op::Write => self.places(request),
            _ => vec![None; request.sectors as usize],
        };
        let mut world = self.world.lock().unwrap();
        if request.op == Op::Flush {
            world.flushes += 1;
        }
        for (lba, place) in (request.lba..).zip(places) {
            let mut bytes = [0; SECTOR as usize];
            match (request.op, place) {
                (Op::Read, Some(at)) => {
                    bytes = world.sectors.get(&lba).copied().unwrap_or(bytes);
                    self.memory.write(at, &bytes).unwrap();
                }
                (Op::Write, Some(at)) => {
                    self.memory.read(at, &mut bytes).unwrap();
                    world.sectors.insert(lba, bytes);
                }
                (Op::Discard | Op::WriteZeroes, _) => {
                    world.sectors.remove(&lba);
                }
                _ => {}
            }
        }
    }
}

impl HardwareQueue for ChaosQueue {
    fn tags(&self) -> &TagSet {
        &self.tags
    }
    fn tags_mut(&mut self) -> &mut TagSet {
        &mut self.tags
    }
    fn memory(&self) -> &AddressSpace {
        &self.memory
    }

    fn bind_tag_cmd(&mut self, tag: Tag, command: &Request, now: Nanos) -> Result<(), BindError> {
        let (faults, removed) = {
            let world = self.world.lock().unwrap();
            (world.faults, world.removed)
        };
        if removed || self.resetting || self.chance(faults.busy) {
            return Err(BindError::Busy);
        }
        self.tags.bind(tag, command.tag, now)?;
        let status = if self.chance(faults.not_ready) {
            Status::NOT_READY
        } else if self.chance(faults.failed) {
            Status::UNRECOVERED_READ
        } else {
            Status::SUCCESS
        };
        let lost = self.chance(faults.lost);
        let again = self.chance(faults.twice);
        let at = if lost { Nanos::MAX } else { now + Nanos(1 + self.rng.below(100_000)) };
        let segments = match command.data {
            Payload::Scattered { segments, .. } => segments,
            _ => 1,
        };
        let mut world = self.world.lock().unwrap();
        world.commands += 1;
        if matches!(command.op, Op::Read | Op::Write) {
            world.longest = world.longest.max(command.sectors);
        }
        world.segments = world.segments.max(segments);
        self.bound.push(Command { tag, request: *command, at, status, again });
        Ok(())
    }

    fn issue_tags(&mut self) -> bool {
        let any = !self.bound.is_empty();
        self.issued.append(&mut self.bound);
        any
    }

    fn check_event(&mut self) -> bool {
        let now = self.world.lock().unwrap().now;
        !self.resetting && self.issued.iter().any(|c| c.at <= now)
    }

    fn fetch_event(&mut self) -> Option<CompletionEvent> {
        let (faults, now, removed) = {
            let world = self.world.lock().unwrap();
            (world.faults, world.now, world.removed)
        };
        if self.resetting || removed {
            return None;
        }
        // Completes a tag twice only while the tag is free: a second completion of a reused tag
        // could not be detected.
        if let Some(tag) = self.twice.take()
            && self.tags.state(tag) == Some(driver::TagState::Free)
        {
            return Some(CompletionEvent { tag, status: Status::SUCCESS, result: 0 });
        }
        let place = self.issued.iter().position(|c| c.at <= now)?;
        if self.chance(faults.spurious) {
            let tag = Tag(self.rng.below(u64::from(self.tags.count()) + 5) as u16);
            let bound = self.tags.state(tag) == Some(driver::TagState::Bound);
            if !bound {
                return Some(CompletionEvent { tag, status: Status::SUCCESS, result: 0 });
            }
        }
        let command = self.issued.swap_remove(place);
        if command.status.is_success() {
            self.execute(&command.request);
        }
        self.twice = command.again.then_some(command.tag);
        Some(CompletionEvent { tag: command.tag, status: command.status, result: 0 })
    }

    fn abort_tag(&mut self, tag: Tag, now: Nanos) -> Result<(), TagError> {
        let abortable = self.world.lock().unwrap().faults.abortable;
        let ends = self.chance(abortable);
        if let Some(command) = self.issued.iter_mut().find(|c| c.tag == tag && ends) {
            (command.at, command.status) = (now, Status::ABORTED);
        }
        Ok(())
    }

    fn reset(&mut self, now: Nanos) {
        self.world.lock().unwrap().resets += 1;
        self.resetting = true;
        self.ready_at = now + Nanos(50_000);
        self.issued.clear();
        self.bound.clear();
    }

    fn state(&self) -> QueueState {
        if self.world.lock().unwrap().removed {
            QueueState::Removed
        } else if self.resetting {
            QueueState::Resetting
        } else {
            QueueState::Ready
        }
    }

    fn poll(&mut self, now: Nanos) -> bool {
        let done = self.resetting && now >= self.ready_at;
        self.resetting &= !done;
        done
    }

    fn deadline(&self) -> Nanos {
        let next = self.issued.iter().map(|c| c.at).min().unwrap_or(Nanos::MAX);
        if self.resetting { self.ready_at } else { next }
    }

    fn set_waker(&mut self, _waker: Waker) {}
}
