//! The interrupt context of a shared hardware queue, in real time: every request completes once, and
//! who fetches its completion.

// guarantee: B-25

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use driver::{
    BindError, CompletionEvent, HardwareQueue, LowLevelDriver, QueueState, Tag, TagError, TagSet,
};
use event::{Parker, RealClock, Waker};
use mem::AddressSpace;
use nvme::Status;
use sluice_block::notify::{CompletionHandler, CompletionMethod};
use sluice_block::{
    BlockDevice, BlockLayer, BlockLayerConfig, Features, Limits, Payload, Queue, QueueModel,
    QueueTopology, Request,
};
use time::{Component, Nanos};

/// The state that the hardware queue and the device's thread share.
#[derive(Default)]
struct Shared {
    issued: Mutex<VecDeque<Tag>>,
    work: Condvar,
    completed: Mutex<VecDeque<Tag>>,
    waker: Mutex<Option<Waker>>,
    stop: AtomicBool,
}

/// A device whose thread completes commands in order, and raises an interrupt after each.
struct Echo {
    shared: Arc<Shared>,
    memory: AddressSpace,
    tags: u16,
    thread: Option<JoinHandle<()>>,
}

struct EchoQueue {
    shared: Arc<Shared>,
    memory: AddressSpace,
    tags: TagSet,
    bound: Vec<Tag>,
}

impl Echo {
    fn start(tags: u16) -> Echo {
        let shared = Arc::new(Shared::default());
        let theirs = shared.clone();
        let thread = std::thread::spawn(move || {
            loop {
                let mut issued = theirs.issued.lock().unwrap();
                let tag = loop {
                    if theirs.stop.load(Ordering::SeqCst) {
                        return;
                    }
                    match issued.pop_front() {
                        Some(tag) => break tag,
                        None => issued = theirs.work.wait(issued).unwrap(),
                    }
                };
                drop(issued);
                theirs.completed.lock().unwrap().push_back(tag);
                if let Some(waker) = &*theirs.waker.lock().unwrap() {
                    waker.wake();
                }
            }
        });
        Echo { shared, memory: AddressSpace::default(), tags, thread: Some(thread) }
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        // Under the lock, so that the thread either sees the flag or waits already.
        drop(self.shared.issued.lock().unwrap());
        self.shared.work.notify_all();
        self.thread.take().unwrap().join().unwrap();
    }
}

impl LowLevelDriver for Echo {
    type Queue = EchoQueue;

    fn limits(&self) -> Limits {
        Limits {
            sector_bytes: 4096,
            sectors: 1 << 20,
            max_sectors: 256,
            optimal_sectors: 1,
            queue_depth: self.tags.into(),
            volatile_cache: false,
            atomic: driver::AtomicLimits::NONE,
        }
    }

    fn features(&self) -> Features {
        Features::default()
    }

    fn queues(&self) -> u16 {
        1
    }

    fn memory(&self) -> &AddressSpace {
        &self.memory
    }

    fn take_queue(&mut self, index: u16) -> Option<EchoQueue> {
        (index == 0).then(|| EchoQueue {
            shared: self.shared.clone(),
            memory: self.memory.clone(),
            tags: TagSet::new(self.tags),
            bound: Vec::new(),
        })
    }
}

impl HardwareQueue for EchoQueue {
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
        self.tags.bind(tag, command.tag, now)?;
        self.bound.push(tag);
        Ok(())
    }

    fn issue_tags(&mut self) -> bool {
        if self.bound.is_empty() {
            return false;
        }
        self.shared.issued.lock().unwrap().extend(self.bound.drain(..));
        self.shared.work.notify_all();
        true
    }

    fn check_event(&mut self) -> bool {
        !self.shared.completed.lock().unwrap().is_empty()
    }

    fn fetch_event(&mut self) -> Option<CompletionEvent> {
        let tag = self.shared.completed.lock().unwrap().pop_front()?;
        Some(CompletionEvent { tag, status: Status::SUCCESS, result: 0 })
    }

    fn abort_tag(&mut self, _: Tag, _: Nanos) -> Result<(), TagError> {
        Ok(())
    }

    fn reset(&mut self, _: Nanos) {}

    fn state(&self) -> QueueState {
        QueueState::Ready
    }

    fn set_waker(&mut self, waker: Waker) {
        *self.shared.waker.lock().unwrap() = Some(waker);
    }
}

/// Opens `sq` for `cores` submitters and an interrupt context.
fn open(cores: u16, tags: u16) -> (Echo, Vec<Queue<EchoQueue>>, Queue<EchoQueue>) {
    let mut driver = Echo::start(tags);
    let config = BlockLayerConfig {
        queue_model: QueueModel::SingleQueue,
        topology: QueueTopology::flat(cores + 1),
        merge: false,
        ..BlockLayerConfig::default()
    };
    let (_, mut queues) = BlockLayer::open(&mut driver, &config).unwrap();
    let endpoint = queues.pop().unwrap();
    (driver, queues, endpoint)
}

/// Submits `requests` with up to `depth` outstanding and sleeps for completions. Each tag completes
/// once.
fn submit_all(queue: &mut Queue<EchoQueue>, clock: RealClock, requests: u64, depth: u64) {
    let parker = Parker::new().unwrap();
    queue.set_waker(parker.waker());
    let (mut submitted, mut done) = (0, vec![false; requests as usize]);
    let mut completed = 0;
    while completed < requests {
        let now = clock.now();
        while submitted < requests && submitted - completed < depth {
            queue
                .submit(
                    now,
                    Request::read(submitted, 1, Payload::Contiguous(mem::Iova(4096)), submitted),
                )
                .unwrap();
            submitted += 1;
        }
        let mut moved = queue.poll(now);
        while let Some(completion) = queue.reap() {
            assert!(completion.status.is_success());
            let before = std::mem::replace(&mut done[completion.tag as usize], true);
            assert!(!before, "request {} completed twice", completion.tag);
            completed += 1;
            moved = true;
        }
        if moved {
            continue;
        }
        parker.prepare();
        if queue.poll(clock.now()) {
            parker.unpark();
            continue;
        }
        // A lost wake-up fails the test: 10 seconds are far beyond a late one.
        let before = clock.now();
        parker.park(&[], Nanos::from_secs(10)).unwrap();
        assert!(clock.now().since(before) < Nanos::from_secs(10), "{completed} of {requests}");
    }
}

/// With fewer tags than requests, the context that frees a tag issues what waits for one.
#[test]
fn every_request_of_every_core_completes_once() {
    for method in [CompletionMethod::Lazy, CompletionMethod::Coop] {
        for (cores, tags, depth) in [(1, 64, 1), (1, 2, 32), (3, 4, 16)] {
            let (_driver, mut queues, endpoint) = open(cores, tags);
            let handler_stats = endpoint.stats().clone();
            let clock = RealClock::start();
            let handler = Arc::new(CompletionHandler::start(endpoint, method, clock).unwrap());
            queues.iter_mut().for_each(|queue| queue.set_handler(handler.clone()));
            drop(handler);
            let requests = 4_000;
            std::thread::scope(|scope| {
                for queue in &mut queues {
                    scope.spawn(move || submit_all(queue, clock, requests, depth));
                }
            });
            let by_handler = handler_stats.reaped_for_others.get();
            let all = requests * u64::from(cores);
            match method {
                CompletionMethod::Lazy => assert_eq!(by_handler, all, "{cores} {tags} {depth}"),
                // Submitters help.
                _ => assert!(by_handler <= all, "{cores} {tags} {depth}"),
            }
        }
    }
}

/// A submitter whose context has gone fetches for itself.
#[test]
fn submitters_of_a_context_that_has_ended_fetch_for_themselves() {
    /// An endpoint that panics at its second poll.
    struct Fails(Queue<EchoQueue>, u32);
    impl Component for Fails {
        fn poll(&mut self, now: Nanos) -> bool {
            self.1 += 1;
            assert!(self.1 < 2, "on purpose");
            self.0.poll(now)
        }
        fn deadline(&self) -> Nanos {
            self.0.deadline()
        }
    }
    impl BlockDevice for Fails {
        sluice_block::delegate_block_device!(self => self.0);
    }
    let (driver, mut queues, endpoint) = open(1, 4);
    let clock = RealClock::start();
    let fails = Fails(endpoint, 0);
    let handler = CompletionHandler::start(fails, CompletionMethod::Lazy, clock).unwrap();
    queues[0].set_handler(Arc::new(handler));
    while driver.shared.waker.lock().unwrap().is_none() {
        std::thread::yield_now();
    }
    // No waker is called any more: poll.
    let mut left = 100;
    for tag in 0..left {
        let request = Request::read(tag, 1, Payload::Contiguous(mem::Iova(4096)), tag);
        while queues[0].submit(clock.now(), request).is_err() {}
    }
    while left > 0 {
        queues[0].poll(clock.now());
        while queues[0].reap().is_some() {
            left -= 1;
        }
        assert!(clock.now() < Nanos::from_secs(60), "{left} are left");
    }
}
