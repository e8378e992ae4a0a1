//! [`LateFile`]: a file whose requests complete late, in any order, or not at all.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fs::File;
use std::rc::Rc;

use block::{BlockDevice, Completion, QueueFull};
use event::Waker;
use nvme::Status;
use rng::Rng;
use tempfile::NamedTempFile;
use time::{Component, Nanos};
use user_io::{Handle, IoDevice, Op, Queue, QueueConfig, Request};

pub(crate) const SECTOR: usize = 4096;

/// The part of the device that a test sees and sets.
#[derive(Debug, Default)]
pub(crate) struct Control {
    /// Requests that the device has taken, and not completed.
    pub(crate) inside: RefCell<Vec<Request>>,
    /// All that it has taken.
    pub(crate) taken: RefCell<Vec<Request>>,
    pub(crate) completed: Cell<u64>,
    /// Number of the write that fails.
    pub(crate) fails_at: Cell<Option<u64>>,
}

/// A queue of a file, which executes a request some time after it has taken it.
#[derive(Debug)]
pub(crate) struct LateFile {
    queue: Queue,
    failed: VecDeque<Completion>,
    rng: Rng,
    depth: usize,
    pub(crate) control: Rc<Control>,
}

/// A file of sectors of zeros, and its device.
pub(crate) fn file(sectors: u64) -> (IoDevice, NamedTempFile) {
    let file = NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let bytes = sectors * SECTOR as u64;
    File::options().write(true).open(file.path()).unwrap().set_len(bytes).unwrap();
    let config = driver::UringConfig {
        sector_bytes: Some(SECTOR as u32),
        direct: false,
        ..driver::UringConfig::default()
    };
    (IoDevice::file(file.path(), config).unwrap(), file)
}

impl LateFile {
    pub(crate) fn new(device: &IoDevice, seed: u64, depth: usize) -> LateFile {
        let queue = device.create_queue(QueueConfig::default()).unwrap();
        let control = Rc::new(Control::default());
        LateFile { queue, failed: VecDeque::new(), rng: Rng::new(seed), depth, control }
    }

    pub(crate) fn handle(
        device: &IoDevice,
        seed: u64,
        depth: usize,
    ) -> (Handle<LateFile>, Rc<Control>) {
        let late = LateFile::new(device, seed, depth);
        let control = late.control.clone();
        (Handle::new(device, late).unwrap(), control)
    }

    /// Executes one of the requests inside, any of them.
    fn execute(&mut self, now: Nanos) {
        let mut inside = self.control.inside.borrow_mut();
        let at = self.rng.below(inside.len() as u64) as usize;
        let request = inside.swap_remove(at);
        let writes = self.control.completed.get();
        self.control.completed.set(writes + 1);
        if self.control.fails_at.get() == Some(writes) {
            let (tag, status) = (request.tag, Status::WRITE_FAULT);
            self.failed.push_back(Completion { tag, status, result: 0 });
            return;
        }
        self.queue.submit(now, request).unwrap();
    }
}

impl BlockDevice for LateFile {
    block::delegate_block_device!(self => self.queue; limits, memory, visit_layers);
    block::answer_block_device!(can_wake: false, enable_sharing: {}, can_wait: false);

    fn submit(&mut self, _: Nanos, request: Request) -> Result<(), QueueFull> {
        let mut inside = self.control.inside.borrow_mut();
        if inside.len() == self.depth {
            return Err(QueueFull);
        }
        let overlaps = |other: &Request| {
            other.lba < request.lba + u64::from(request.sectors)
                && request.lba < other.lba + u64::from(other.sectors)
        };
        match request.op {
            Op::Write => {
                assert!(inside.iter().all(|other| other.op != Op::Flush), "a write beside a flush");
                assert!(!inside.iter().any(overlaps), "two writes of a sector");
            }
            Op::Flush => assert!(inside.is_empty(), "a flush beside what it must wait for"),
            _ => {}
        }
        inside.push(request);
        self.control.taken.borrow_mut().push(request);
        Ok(())
    }

    fn reap(&mut self) -> Option<Completion> {
        self.failed.pop_front().or_else(|| self.queue.reap())
    }

    fn set_waker(&mut self, _: Waker) {}
}

impl Component for LateFile {
    fn poll(&mut self, now: Nanos) -> bool {
        let is_late = self.rng.below(4) > 0;
        if !is_late && !self.control.inside.borrow().is_empty() {
            self.execute(now);
        }
        self.queue.poll(now) | !self.failed.is_empty()
    }

    fn deadline(&self) -> Nanos {
        Nanos::ZERO
    }
}
