//! A block device in memory for the tests, with a latency, a queue depth, and injected faults.

#![allow(dead_code, unreachable_pub, reason = "every test file uses its own part")]

use std::path::Path;

use block::{BlockDevice, Completion, Limits, Op, Payload, QueueFull, Request};
use event::Waker;
use mem::{AddressSpace, Iova};
use nvme::Status;
use sluice_workload::{IoCpuCosts, JobRunner, JobSpec, RunError, RunResult, parse_jobs};
use time::{Component, Nanos, TimerQueue, VirtualRunner};

/// Fault of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    #[default]
    None,
    /// A bit of this sector flips when it is written.
    Corrupt(u64),
    /// Writes to this sector after the first are acknowledged and lost.
    LoseOverwrites(u64),
    /// Writes to this sector go to the next one.
    Misdirect(u64),
    /// Reads of this sector fail.
    FailRead(u64),
    /// Every write fails because the device is full.
    Full,
    /// The n-th request never completes.
    Lose(u64),
    /// The device posts a completion without a request.
    Spurious,
}

pub struct Ram {
    limits: Limits,
    memory: AddressSpace,
    sectors: Vec<u8>,
    written: Vec<bool>,
    latency: Nanos,
    /// Added per sector.
    per_sector: Nanos,
    timers: TimerQueue<Completion>,
    completions: std::collections::VecDeque<Completion>,
    outstanding: u32,
    pub fault: Fault,
    pub log: Vec<(Nanos, Request)>,
    pub max_outstanding: u32,
}

impl Ram {
    pub fn new(sectors: u64, latency: Nanos) -> Ram {
        Ram {
            limits: Limits {
                sector_bytes: 4096,
                sectors,
                max_sectors: 64,
                optimal_sectors: 1,
                queue_depth: 1024,
                volatile_cache: true,
                atomic: block::AtomicLimits::NONE,
            },
            memory: AddressSpace::default(),
            sectors: vec![0; sectors as usize * 4096],
            written: vec![false; sectors as usize],
            latency,
            per_sector: Nanos::ZERO,
            timers: TimerQueue::with_capacity(64),
            completions: Default::default(),
            outstanding: 0,
            fault: Fault::None,
            log: Vec::new(),
            max_outstanding: 0,
        }
    }

    pub fn depth(mut self, depth: u32) -> Ram {
        self.limits.queue_depth = depth;
        self
    }

    pub fn max_sectors(mut self, sectors: u32) -> Ram {
        self.limits.max_sectors = sectors;
        self
    }

    pub fn per_sector(mut self, time: Nanos) -> Ram {
        self.per_sector = time;
        self
    }

    pub fn fault(mut self, fault: Fault) -> Ram {
        self.fault = fault;
        self
    }

    pub fn requests(&self, op: Op) -> Vec<Request> {
        self.log.iter().map(|(_, r)| *r).filter(|r| r.op == op).collect()
    }

    fn execute(&mut self, request: &Request) -> Status {
        let at = |i: u32| request.lba + u64::from(i);
        if request.lba + u64::from(request.sectors) > self.limits.sectors {
            return Status::LBA_OUT_OF_RANGE;
        }
        let iova = |iova: Iova, i: u32| iova.offset(u64::from(i) * 4096);
        for i in 0..request.sectors {
            let lba = at(i);
            let place = lba as usize * 4096..(lba as usize + 1) * 4096;
            match (request.op, request.data, self.fault) {
                (Op::Read, _, Fault::FailRead(bad)) if bad == lba => {
                    return Status::UNRECOVERED_READ;
                }
                (Op::Write, _, Fault::Full) => return Status::CAPACITY_EXCEEDED,
                (Op::Read, Payload::Contiguous(to), _) => {
                    self.memory.write(iova(to, i), &self.sectors[place]).unwrap();
                }
                (Op::Write, Payload::Contiguous(from), fault) => {
                    let mut sector = vec![0; 4096];
                    self.memory.read(iova(from, i), &mut sector).unwrap();
                    match fault {
                        Fault::Corrupt(bad) if bad == lba => sector[2000] ^= 4,
                        Fault::LoseOverwrites(bad) if bad == lba && self.written[lba as usize] => {
                            continue;
                        }
                        Fault::Misdirect(bad) if bad == lba => {
                            self.sectors[place.end..place.end + 4096].copy_from_slice(&sector);
                            continue;
                        }
                        _ => {}
                    }
                    self.written[lba as usize] = true;
                    self.sectors[place].copy_from_slice(&sector);
                }
                (Op::Discard, ..) => self.sectors[place].fill(0),
                _ => {}
            }
        }
        Status::SUCCESS
    }
}

impl Component for Ram {
    fn poll(&mut self, now: Nanos) -> bool {
        let mut moved = false;
        while let Some((_, completion)) = self.timers.pop_due(now) {
            self.outstanding -= 1;
            self.completions.push_back(completion);
            moved = true;
        }
        moved
    }
    fn deadline(&self) -> Nanos {
        self.timers.next_at()
    }
}

impl BlockDevice for Ram {
    block::answer_block_device!(can_wake: true, enable_sharing: {}, can_wait: false,
        visit_layers: {});

    fn limits(&self) -> &Limits {
        &self.limits
    }
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        assert!(request.sectors <= self.limits.max_sectors);
        if self.outstanding == self.limits.queue_depth {
            return Err(QueueFull);
        }
        self.outstanding += 1;
        self.max_outstanding = self.max_outstanding.max(self.outstanding);
        self.log.push((now, request));
        let status = self.execute(&request);
        let mut completion = Completion { tag: request.tag, status, result: 0 };
        if self.fault == Fault::Spurious {
            completion.tag ^= 1 << 20;
        }
        if self.fault != Fault::Lose(self.log.len() as u64) {
            let time = self.latency + self.per_sector * u64::from(request.sectors);
            self.timers.push(now + time, completion);
        }
        Ok(())
    }
    fn reap(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }
    fn memory(&self) -> &AddressSpace {
        &self.memory
    }
    fn set_waker(&mut self, _: Waker) {}
}

pub fn jobs(text: &str) -> Vec<JobSpec> {
    parse_jobs(Path::new("test.fio"), text).unwrap().jobs
}

pub fn job_runner(ram: Ram, text: &str) -> JobRunner<Ram> {
    JobRunner::new(ram, jobs(text), IoCpuCosts::default(), 1).unwrap()
}

/// Runs the job to its end in virtual time.
pub fn run_to_end(host: &mut JobRunner<Ram>) {
    let mut runner = VirtualRunner::new();
    while !host.is_done() {
        if !runner.step(&mut [host], Nanos::MAX) && !host.is_done() {
            return;
        }
    }
}

pub fn try_run(ram: Ram, text: &str) -> Result<(RunResult, Vec<(Nanos, Request)>), RunError> {
    let mut host = job_runner(ram, text);
    run_to_end(&mut host);
    let log = std::mem::take(&mut host.device_mut().log);
    Ok((host.finish()?, log))
}

pub fn run(ram: Ram, text: &str) -> (RunResult, Vec<(Nanos, Request)>) {
    try_run(ram, text).unwrap()
}
