//! Host cost of one simulated request: jobs on a device that completes immediately.

use std::collections::VecDeque;
use std::path::Path;

use block::{BlockDevice, Completion, Limits, QueueFull, Request};
use event::Waker;
use mem::AddressSpace;
use nvme::Status;
use sluice_workload::{IoCpuCosts, JobRunner, parse_jobs};
use time::{Component, Nanos};

const IOS: u64 = 200_000;

/// Completes all requests at the next poll.
struct InstantDevice {
    limits: Limits,
    memory: AddressSpace,
    submitted: VecDeque<u64>,
    ready: usize,
}

impl Component for InstantDevice {
    fn poll(&mut self, _: Nanos) -> bool {
        let moved = self.ready != self.submitted.len();
        self.ready = self.submitted.len();
        moved
    }
    fn deadline(&self) -> Nanos {
        Nanos::MAX
    }
}

impl BlockDevice for InstantDevice {
    block::answer_block_device!(can_wake: true, enable_sharing: {}, can_wait: false,
        visit_layers: {});

    fn limits(&self) -> &Limits {
        &self.limits
    }
    fn submit(&mut self, _: Nanos, request: Request) -> Result<(), QueueFull> {
        self.submitted.push_back(request.tag);
        Ok(())
    }
    fn reap(&mut self) -> Option<Completion> {
        if self.ready == 0 {
            return None;
        }
        self.ready -= 1;
        let tag = self.submitted.pop_front()?;
        Some(Completion { tag, status: Status::SUCCESS, result: 0 })
    }
    fn memory(&self) -> &AddressSpace {
        &self.memory
    }
    fn set_waker(&mut self, _: Waker) {}
}

fn job_runner(job: &str) -> JobRunner<InstantDevice> {
    let limits = Limits {
        sector_bytes: 4096,
        sectors: 1 << 28,
        max_sectors: 64,
        optimal_sectors: 1,
        queue_depth: 1024,
        volatile_cache: false,
        atomic: block::AtomicLimits::NONE,
    };
    let device = InstantDevice {
        limits,
        memory: AddressSpace::default(),
        submitted: VecDeque::with_capacity(1024),
        ready: 0,
    };
    let text = format!("[j]\nnumber_ios={IOS}\n{job}\n");
    let jobs = parse_jobs(Path::new("bench.fio"), &text).expect("a good job").jobs;
    JobRunner::new(device, jobs, IoCpuCosts::default(), 1).expect("a host")
}

/// Advances time by 100 ns with every poll.
fn run(host: &mut JobRunner<InstantDevice>) {
    let mut now = Nanos::ZERO;
    while !host.is_done() {
        host.poll(now);
        now += Nanos(100);
    }
}

fn bench(bencher: divan::Bencher<'_, '_>, job: &str) {
    bencher
        .counter(divan::counter::ItemsCount::new(IOS))
        .with_inputs(|| job_runner(job))
        .bench_values(|mut host| {
            run(&mut host);
            host
        });
}

#[divan::bench]
fn random_read_qd64(bencher: divan::Bencher<'_, '_>) {
    bench(bencher, "rw=randread\niodepth=64\nnorandommap");
}

#[divan::bench]
fn random_read_qd64_each_block_once(bencher: divan::Bencher<'_, '_>) {
    bench(bencher, "rw=randread\niodepth=64");
}

#[divan::bench]
fn random_read_qd1(bencher: divan::Bencher<'_, '_>) {
    bench(bencher, "rw=randread\niodepth=1\nnorandommap");
}

#[divan::bench]
fn sequential_write_qd64(bencher: divan::Bencher<'_, '_>) {
    bench(bencher, "rw=write\niodepth=64");
}

#[divan::bench]
fn mixed_zipf_qd64(bencher: divan::Bencher<'_, '_>) {
    bench(bencher, "rw=randrw\niodepth=64\nrandom_distribution=zipf:1.1");
}

fn main() {
    divan::main();
}
