//! A custom target: a block device that keeps two copies of every sector on the device below.
//!
//! `cargo run -p sluice-ssd --example target`

use std::error::Error;
use std::path::Path;

use sluice::block::{BlockDevice, Completion, Limits, Op, QueueFull, Request};
use sluice::open::{OpenOptions, open_scenario};
use sluice::scenario::Scenario;
use sluice::time::{Component, Nanos};
use sluice::user_io::{Handle, QueueConfig};

const SCENARIO: &str = r#"
[drive]
preset = "femu-default"
geometry = { channels = 2, pus = 4, chunks = 40, pages = 16 }
"#;

// ANCHOR: struct
/// Two copies of every sector, in the two halves of the device below. Writes go to both; a read
/// that fails on the first copy is repeated on the second.
struct Mirror<D> {
    below: D,
    limits: Limits,
    pending: Vec<Option<Pending>>,
    ready: Vec<Completion>,
}

/// A request that has not completed.
#[derive(Clone, Copy)]
struct Pending {
    request: Request,
    /// Outstanding requests below.
    remaining: u8,
    worst: Option<Completion>,
}

impl<D: BlockDevice> Mirror<D> {
    fn new(below: D) -> Mirror<D> {
        let limits = *below.limits();
        // A request needs up to two requests below.
        let queue_depth = limits.queue_depth / 2;
        let limits = Limits { sectors: limits.sectors / 2, queue_depth, ..limits };
        Mirror { below, limits, pending: vec![None; queue_depth as usize], ready: Vec::new() }
    }

    /// Returns the request for one of the copies. Its tag encodes the slot and the copy.
    fn copy(&self, request: Request, slot: usize, copy: u64) -> Request {
        let lba = match request.op {
            Op::Flush => 0,
            _ => request.lba + copy * self.limits.sectors,
        };
        Request { lba, tag: (slot as u64) << 1 | copy, ..request }
    }
}
// ANCHOR_END: struct

// ANCHOR: component
impl<D: BlockDevice> Component for Mirror<D> {
    fn poll(&mut self, now: Nanos) -> bool {
        let mut moved = self.below.poll(now);
        while let Some(done) = self.below.reap() {
            moved = true;
            let (slot, copy) = ((done.tag >> 1) as usize, done.tag & 1);
            let Some(mut pending) = self.pending[slot] else { continue };
            let request = pending.request;
            if request.op == Op::Read && copy == 0 && !done.status.is_success() {
                // The request of the first copy has completed, so the queue below has a free entry.
                let second = self.copy(request, slot, 1);
                if self.below.submit(now, second).is_ok() {
                    continue;
                }
            }
            pending.remaining -= 1;
            if !done.status.is_success() || pending.worst.is_none() {
                pending.worst = Some(done);
            }
            if pending.remaining > 0 {
                self.pending[slot] = Some(pending);
                continue;
            }
            self.pending[slot] = None;
            let worst = pending.worst.unwrap_or(done);
            self.ready.push(Completion { tag: request.tag, ..worst });
        }
        moved
    }

    fn deadline(&self) -> Nanos {
        self.below.deadline()
    }
}
// ANCHOR_END: component

// ANCHOR: device
impl<D: BlockDevice> BlockDevice for Mirror<D> {
    sluice::block::delegate_block_device!(self => self.below; memory, set_waker, can_wake, enable_sharing,
        visit_layers);
    sluice::block::answer_block_device!(can_wait: false);

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        let free = self.pending.iter().position(Option::is_none);
        let slot = free.ok_or(QueueFull)?;
        // Invalid requests fail here, so that none reaches the other half.
        let longest = self.limits.max_sectors;
        if let Some(status) = sluice::block::validate_request(&self.limits, longest, &request) {
            self.ready.push(Completion { tag: request.tag, status, result: 0 });
            return Ok(());
        }
        let is_on_both = !matches!(request.op, Op::Read | Op::Flush | Op::Extents);
        let copies = if is_on_both { 2 } else { 1 };
        for copy in 0..copies {
            // The queue below has a free entry: each slot has at most two requests there.
            self.below.submit(now, self.copy(request, slot, copy))?;
        }
        self.pending[slot] = Some(Pending { request, remaining: copies as u8, worst: None });
        Ok(())
    }

    fn reap(&mut self) -> Option<Completion> {
        self.ready.pop()
    }
}
// ANCHOR_END: device

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let scenario = Scenario::parse(Path::new("example.toml"), SCENARIO)?;
    let (device, _view) = open_scenario(&scenario, None, &OpenOptions::default())?;
    // ANCHOR: use
    let queue = device.create_queue(QueueConfig::default())?;
    let mut handle = Handle::new(&device, Mirror::new(queue))?;
    let sectors = handle.limits().sectors;
    let data = device.buffer(4096)?;
    for lba in 0..20 {
        data.fill(0, 4096, lba as u8 + 1);
        handle.write(lba, &data, false)?;
    }
    handle.flush()?;
    // ANCHOR_END: use

    // Below the mirror, both copies can be read.
    let queue = handle.into_device().below;
    let mut handle = Handle::new(&device, queue)?;
    let mut back = vec![0; 4096];
    for lba in 0..20 {
        for copy in [lba, lba + sectors] {
            handle.read(copy, &data)?;
            data.read(0, &mut back);
            assert!(back.iter().all(|byte| *byte == lba as u8 + 1), "sector {copy}");
        }
    }
    println!("20 sectors of {sectors}, twice");
    Ok(())
}
