//! What the host side of one simulated request costs: jobs on a device that completes at once.

use std::collections::VecDeque;
use std::path::Path;

use block::{Busy, Completion, Device, Limits, Request};
use clock::{Component, Nanos, Waker};
use nvme::Status;
use ring::AddressSpace;
use sluice_workload::{Host, HostCosts, parse_jobs};

const IOS: u64 = 200_000;

/// Completes everything with the next poll.
struct Instant {
    limits: Limits,
    memory: AddressSpace,
    taken: VecDeque<u64>,
    ready: usize,
}

impl Component for Instant {
    fn poll(&mut self, _: Nanos) -> bool {
        let moved = self.ready != self.taken.len();
        self.ready = self.taken.len();
        moved
    }
    fn deadline(&self) -> Nanos {
        Nanos::MAX
    }
}

impl Device for Instant {
    fn limits(&self) -> &Limits {
        &self.limits
    }
    fn submit(&mut self, _: Nanos, request: Request) -> Result<(), Busy> {
        self.taken.push_back(request.tag);
        Ok(())
    }
    fn reap(&mut self) -> Option<Completion> {
        if self.ready == 0 {
            return None;
        }
        self.ready -= 1;
        let tag = self.taken.pop_front()?;
        Some(Completion { tag, status: Status::SUCCESS, result: 0 })
    }
    fn memory(&self) -> &AddressSpace {
        &self.memory
    }
    fn set_waker(&mut self, _: Waker) {}
}

fn host(job: &str) -> Host<Instant> {
    let limits = Limits {
        sector_bytes: 4096,
        sectors: 1 << 28,
        max_sectors: 64,
        optimal_sectors: 1,
        queue_depth: 1024,
        volatile_cache: false,
    };
    let device = Instant {
        limits,
        memory: AddressSpace::default(),
        taken: VecDeque::with_capacity(1024),
        ready: 0,
    };
    let text = format!("[j]\nnumber_ios={IOS}\n{job}\n");
    let jobs = parse_jobs(Path::new("bench.fio"), &text).expect("a good job").jobs;
    Host::new(device, jobs, HostCosts::default(), 1).expect("a host")
}

/// Time moves by 100 ns with every poll.
fn run(host: &mut Host<Instant>) {
    let mut now = Nanos::ZERO;
    while !host.done() {
        host.poll(now);
        now += Nanos(100);
    }
}

fn bench(bencher: divan::Bencher<'_, '_>, job: &str) {
    bencher.counter(divan::counter::ItemsCount::new(IOS)).with_inputs(|| host(job)).bench_values(
        |mut host| {
            run(&mut host);
            host
        },
    );
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
