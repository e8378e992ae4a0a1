//! Properties that hold under every strategy.

use sluice_block::completion::{ContextKind, Strategy, Transfer};

use super::harness::{Harness, INTERVAL, random_io, strategies, wait_for};
use super::mock_controller::SECTORS;

#[test]
fn every_strategy_finishes_every_request_once_with_the_right_data() {
    for (name, strategy) in strategies() {
        for (members, tags, threads, rounds) in [(1, 1, 6, 60), (3, 2, 16, 60), (2, 32, 1, 100)] {
            let mut harness = Harness::new(members, tags, threads, strategy);
            let share = SECTORS * u64::from(members) / u64::from(threads);
            let running = harness.on_threads(move |index, mut waiter| {
                let index = index as u64;
                random_io(&mut waiter, index + 1, index * share, share.min(64), rounds)
            });
            let requests: u64 = running.into_iter().map(|t| t.join().unwrap()).sum();
            assert_eq!(requests, u64::from(threads) * u64::from(rounds), "{name}");
            let counts = || {
                let stats = harness.blocking.stats();
                let by_contexts: u64 = stats.contexts.iter().map(|c| c.finished).sum();
                (stats.waiters, by_contexts)
            };
            let waiters = counts().0;
            assert_eq!((waiters.requests, waiters.failed), (requests, 0), "{name}");
            if strategy.lazy {
                assert_eq!(
                    waiters.finished_by_others, 0,
                    "{name}: threads must complete their own requests"
                );
                assert_eq!(counts().1, 0, "{name}");
            } else if !strategy.coop {
                assert!(waiters.finished_by_others > 0, "{name}");
                // A context updates its counters after the wake-up.
                wait_for("the contexts have updated their counters", || {
                    counts().0.finished_by_others == counts().1
                });
            }
            if !strategy.coop {
                assert_eq!((waiters.stolen, waiters.woken), (0, 0), "{name}");
            }
            for layer in harness.blocking.layers() {
                let dispatch = &layer.dispatch()[0];
                assert_eq!(dispatch.issued.get(), dispatch.completed.get(), "{name}");
                assert_eq!((dispatch.orphans.get(), dispatch.spurious.get()), (0, 0), "{name}");
                assert_eq!(dispatch.in_flight.get(), 0, "{name}");
            }
        }
    }
}

#[test]
fn every_context_does_its_part_and_no_other() {
    use ContextKind::{HardIrq, IrqThread, Poll, QueueRun, SoftIrq};
    for (name, finders, issuers) in [
        ("scsi", &[HardIrq][..], &[QueueRun][..]),
        ("nvme", &[IrqThread], &[IrqThread]),
        ("non-blocking", &[HardIrq], &[HardIrq]),
        ("lazy", &[HardIrq], &[HardIrq]),
        ("async-poll", &[Poll], &[Poll]),
    ] {
        let strategy = Strategy::from_name(name, INTERVAL).unwrap();
        // One tag, so that requests must wait for it.
        let mut harness = Harness::new(1, 1, 12, strategy);
        let running = harness.on_threads(|index, mut waiter| {
            random_io(&mut waiter, index as u64, index as u64 * 16, 16, 80);
        });
        running.into_iter().for_each(|t| t.join().unwrap());
        let stats = harness.blocking.stats();
        for kind in [HardIrq, SoftIrq, IrqThread, QueueRun, Poll] {
            let context = stats.context(kind).unwrap();
            assert_eq!(context.found > 0, finders.contains(&kind), "{name}: {context:?}");
            if context.issued > 0 {
                assert!(issuers.contains(&kind), "{name}: {context:?}");
            }
            let finishes = match kind {
                SoftIrq => name == "scsi",
                _ => !strategy.lazy && name != "scsi" && finders.contains(&kind),
            };
            assert_eq!(context.finished > 0, finishes, "{name}: {context:?}");
            assert!(context.wall.longest >= context.wall.quantile(0.5), "{name}: {context:?}");
        }
        let issued: u64 = issuers.iter().map(|kind| stats.context(*kind).unwrap().issued).sum();
        let carried = issued + stats.waiters.issued_for_others;
        let staged: u64 =
            harness.blocking.layers().iter().map(|l| l.staging()[0].inserted.get()).sum();
        assert!(carried <= staged && staged > 0, "{name}: {carried} of {staged}");
        assert_eq!(harness.board().is_masked(), name == "async-poll", "{name}");
    }
}

#[test]
fn a_thread_alone_and_a_thousand_threads() {
    for name in ["scsi", "nvme", "hiops-irq", "hiops-poll", "hiops-hybrid"] {
        let strategy = Strategy::from_name(name, INTERVAL).unwrap();
        for (threads, rounds) in [(1, 200), (1000, 4)] {
            let mut harness = Harness::new(2, 8, threads, strategy);
            let running = harness.on_threads(move |index, mut waiter| {
                random_io(&mut waiter, index as u64, index as u64 * 2, 2, rounds)
            });
            let requests: u64 = running.into_iter().map(|t| t.join().unwrap()).sum();
            assert_eq!(requests, u64::from(threads) * u64::from(rounds));
            assert_eq!(harness.blocking.stats().waiters.requests, requests, "{name}");
        }
    }
}

#[test]
fn a_flush_reaches_every_member_and_a_discard_clears() {
    for (name, strategy) in strategies() {
        let mut harness = Harness::new(3, 4, 1, strategy);
        let mut waiter = harness.queues.pop().unwrap().enter();
        waiter.buffer().fill(0, 512 * 32, 7);
        assert!(waiter.write_at(0, 32, 0).unwrap().status.is_success());
        assert!(waiter.submit_and_wait(Transfer::flush()).unwrap().status.is_success());
        let flushes: Vec<u64> = (0..3).map(|member| harness.board().flushes(member)).collect();
        assert_eq!(flushes, [1, 1, 1], "{name}");
        let discard = Transfer { tag: 99, ..Transfer::discard(4, 20) };
        let completion = waiter.submit_and_wait(discard).unwrap();
        assert!(completion.status.is_success() && completion.tag == 99);
        assert!(waiter.read_at(0, 32, 0).unwrap().status.is_success());
        let mut read = vec![0; 512 * 32];
        waiter.buffer().read(0, &mut read);
        let ones = |sectors: std::ops::Range<usize>| {
            read[sectors.start * 512..sectors.end * 512].iter().all(|b| *b == 7)
        };
        assert!(ones(0..4) && ones(24..32), "{name}");
        assert!(read[4 * 512..24 * 512].iter().all(|b| *b == 0), "{name}");
        let stats = waiter.stats();
        assert_eq!((stats.requests.get(), stats.bytes.get()), (4, 2 * 32 * 512));
        assert!(stats.longest() <= stats.latency());
    }
}
