//! [`Harness`]: the strategies, a mock controller with its blocking layer, and random I/O.

use std::sync::Arc;
use std::time::Duration;

use rng::Rng;
use sluice_block::completion::{
    Blocking, BlockingConfig, BlockingQueue, ContextKind, ControllerLoad, HybridConfig, Strategy,
    Waiter,
};
use testkit::PollBudget;
use time::Nanos;

use super::mock_controller::{MockController, MockQueue, Running, SECTOR};

pub(crate) const INTERVAL: Nanos = Nanos::from_micros(50);

/// Returns every named strategy, and two combinations without a name.
pub(crate) fn strategies() -> Vec<(String, Strategy)> {
    let named = Strategy::NAMES
        .iter()
        .map(|name| ((*name).into(), Strategy::from_name(name, INTERVAL).unwrap()));
    let others = [
        ("softirq-coop", Strategy { coop: true, ..Strategy::SCSI }),
        ("eager-poll", Strategy { lazy: false, coop: true, ..Strategy::async_poll(INTERVAL) }),
        ("busy-hybrid", Strategy::hiops_hybrid(EASY)),
    ];
    named.chain(others.map(|(name, strategy)| (name.into(), strategy))).collect()
}

/// A hybrid strategy that polls as soon as any request is in flight.
pub(crate) const EASY: HybridConfig = HybridConfig {
    interval: INTERVAL,
    window: Nanos::from_micros(500),
    quiet: ControllerLoad { depth: 0, rate: 1 },
};

pub(crate) struct Harness {
    // Contexts stop before the controller does.
    pub(crate) blocking: Blocking<MockQueue>,
    pub(crate) queues: Vec<BlockingQueue<MockQueue>>,
    pub(crate) running: Running,
}

impl Harness {
    pub(crate) fn new(members: u16, tags: u16, threads: u16, strategy: Strategy) -> Harness {
        let config = BlockingConfig {
            threads,
            request_bytes: 32 * SECTOR as u32,
            stripe_bytes: 8 * SECTOR as u32,
            strategy,
            ..BlockingConfig::default()
        };
        Harness::with_config(members, tags, &config)
    }

    pub(crate) fn with_config(members: u16, tags: u16, config: &BlockingConfig) -> Harness {
        let (running, members) = MockController::start(members, tags);
        let source = running.board.source();
        let (blocking, queues) = Blocking::open(members, source, config).unwrap();
        Harness { blocking, queues, running }
    }

    pub(crate) fn board(&self) -> &Arc<MockController> {
        &self.running.board
    }

    /// Runs `work` on a thread for each remaining queue, and returns the results.
    pub(crate) fn on_threads<R: Send + 'static>(
        &mut self,
        work: impl Fn(usize, Waiter<MockQueue>) -> R + Clone + Send + 'static,
    ) -> Vec<std::thread::JoinHandle<R>> {
        let queues = std::mem::take(&mut self.queues);
        let start = |(index, queue): (usize, BlockingQueue<MockQueue>)| {
            let work = work.clone();
            let thread = std::thread::Builder::new().stack_size(256 << 10);
            thread.spawn(move || work(index, queue.enter())).unwrap()
        };
        queues.into_iter().enumerate().map(start).collect()
    }

    /// Returns the numbers of completions found and requests issued by a context.
    pub(crate) fn context(&self, kind: ContextKind) -> (u64, u64) {
        let stats = self.blocking.stats();
        let context = stats.context(kind).unwrap();
        (context.found, context.issued)
    }
}

pub(crate) fn wait_for(what: &str, done: impl FnMut() -> bool) {
    PollBudget::every(Duration::from_micros(200), Duration::from_secs(20))
        .poll_until(done, || what.into());
}

/// Writes and reads at random sectors of the thread, checks all data read, and returns the number
/// of requests.
pub(crate) fn random_io(
    waiter: &mut Waiter<MockQueue>,
    seed: u64,
    first: u64,
    sectors: u64,
    rounds: u32,
) -> u64 {
    let mut rng = Rng::new(seed);
    let mut model = vec![0u8; sectors as usize * SECTOR];
    let mut requests = 0;
    for round in 0..rounds {
        let count = 1 + rng.below(sectors.min(32));
        let at = rng.below(sectors - count + 1);
        let bytes = at as usize * SECTOR..(at + count) as usize * SECTOR;
        let place = rng.below(3) as usize * SECTOR * (32 - count as usize) / 2;
        let completion = if rng.below(2) == 0 {
            model[bytes.clone()].fill((seed as u8) ^ (round as u8) | 1);
            waiter.buffer().write(place, &model[bytes]);
            waiter.write_at(first + at, count as u32, place)
        } else {
            let completion = waiter.read_at(first + at, count as u32, place);
            let mut read = vec![0; bytes.len()];
            waiter.buffer().read(place, &mut read);
            assert!(read == model[bytes], "thread {seed}, round {round}: wrong data");
            completion
        };
        assert!(completion.unwrap().status.is_success(), "thread {seed}, round {round}");
        requests += 1;
    }
    requests
}
