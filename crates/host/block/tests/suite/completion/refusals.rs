//! Invalid configurations and requests.

use nvme::Status;
use sluice_block::Op;
use sluice_block::completion::{
    Blocking, BlockingConfig, BlockingError, Strategy, StrategyError, Transfer, WaitError,
};
use time::Nanos;

use super::harness::{Harness, strategies};
use super::mock_controller::{MockController, SECTOR, SECTORS};

#[test]
fn requests_that_cannot_be_are_answered_at_once() {
    for (name, strategy) in strategies() {
        let mut harness = Harness::new(2, 4, 1, strategy);
        harness.board().allow(0);
        let mut waiter = harness.queues.pop().unwrap().enter();
        let most = 32 * SECTOR as u32;
        for (transfer, error) in [
            (Transfer::read(0, 33, 0), WaitError::TooLong { bytes: 33 * 512, max: most }),
            (
                Transfer::write(0, u32::MAX, 0),
                WaitError::TooLong { bytes: u64::from(u32::MAX) * 512, max: most },
            ),
            (
                Transfer::read(0, 1, usize::MAX - 5),
                WaitError::Buffer { at: usize::MAX - 5, bytes: 512, len: 16384 },
            ),
            (
                Transfer::read(0, 2, 31 * 512 + 1),
                WaitError::Buffer { at: 31 * 512 + 1, bytes: 1024, len: 16384 },
            ),
            (Transfer { op: Op::Extents, ..Transfer::read(0, 1, 0) }, WaitError::Query),
        ] {
            assert_eq!(waiter.submit_and_wait(transfer), Err(error), "{name}");
        }
        let end = 2 * SECTORS;
        for (lba, sectors, status) in [
            (end, 1, Status::LBA_OUT_OF_RANGE),
            (end - 1, 2, Status::LBA_OUT_OF_RANGE),
            (u64::MAX, 1, Status::LBA_OUT_OF_RANGE),
            (5, 0, Status::INVALID_FIELD),
        ] {
            let completion = waiter.read_at(lba, sectors, 0).unwrap();
            assert_eq!(completion.status, status, "{name}: {sectors} sectors at {lba}");
        }
        assert!(waiter.wait(Nanos::MAX).is_none(), "{name}: no request is in flight");
        waiter.submit(Transfer::read(0, 1, 0)).unwrap();
        assert_eq!(
            waiter.submit(Transfer::read(0, 1, 0)),
            Err(WaitError::AlreadyInFlight),
            "{name}"
        );
        assert_eq!(waiter.read_at(0, 1, 0), Err(WaitError::AlreadyInFlight), "{name}");
        harness.board().allow(u64::MAX);
        assert!(waiter.wait(Nanos::MAX).unwrap().status.is_success(), "{name}");
        assert_eq!(waiter.stats().requests.get(), 5, "{name}");
        assert_eq!(waiter.stats().failed.get(), 4, "{name}");
    }
}

#[test]
fn a_removed_device_completes_requests_at_once() {
    for (name, strategy) in strategies() {
        let mut harness = Harness::new(2, 1, 2, strategy);
        harness.board().remove(0);
        let mut waiter = harness.queues.pop().unwrap().enter();
        let status = waiter.read_at(0, 1, 0).unwrap().status;
        assert_eq!(status, sluice_block::STATUS_REMOVED, "{name}");
    }
}

#[test]
fn sets_that_make_no_sense_are_refused() {
    let open = |count: u16, change: &dyn Fn(&mut BlockingConfig)| {
        let mut config = BlockingConfig { threads: 2, ..BlockingConfig::default() };
        change(&mut config);
        let (running, members) = MockController::start(count, 4);
        let source = running.board.source();
        Blocking::open(members, source, &config).map(drop)
    };
    assert!(open(2, &|_| ()).is_ok());
    assert!(matches!(open(0, &|_| ()), Err(BlockingError::Members(0))));
    assert!(matches!(open(65, &|_| ()), Err(BlockingError::Members(65))));
    assert!(matches!(open(2, &|c| c.threads = 0), Err(BlockingError::Threads(0))));
    assert!(matches!(open(2, &|c| c.threads = u16::MAX), Err(BlockingError::Threads(_))));
    assert!(matches!(open(2, &|c| c.stripe_bytes = 0), Err(BlockingError::Stripe { .. })));
    assert!(matches!(open(2, &|c| c.stripe_bytes = 700), Err(BlockingError::Stripe { .. })));
    let too_long = SECTOR as u32 * (SECTORS as u32 + 1);
    assert!(matches!(open(2, &|c| c.stripe_bytes = too_long), Err(BlockingError::Stripe { .. })));
    assert!(open(1, &|c| c.stripe_bytes = 1 << 20).is_ok(), "one drive needs no valid stripe size");
    assert!(matches!(open(2, &|c| c.request_bytes = 511), Err(BlockingError::RequestBytes(511))));
    let poll = Strategy::hiops_poll(Nanos::ZERO);
    let error = open(2, &|c| c.strategy = poll).unwrap_err();
    assert!(
        matches!(error, BlockingError::Strategy(StrategyError::Interval(Nanos::ZERO))),
        "{error}"
    );
    let nowhere = open(2, &|c| c.placement.cpu = Some(usize::MAX)).unwrap_err();
    assert!(matches!(nowhere, BlockingError::Context(_)), "{nowhere}");
}

#[test]
fn a_strategy_that_makes_no_sense_leaves_the_old_one() {
    let mut harness = Harness::new(1, 4, 1, Strategy::HIOPS_IRQ);
    let error = harness.blocking.set_strategy(Strategy::async_poll(Nanos::ZERO)).unwrap_err();
    assert_eq!(error, StrategyError::Interval(Nanos::ZERO));
    assert_eq!(*harness.blocking.strategy(), Strategy::HIOPS_IRQ);
    assert!(!harness.board().is_masked());
    let mut waiter = harness.queues.pop().unwrap().enter();
    assert!(waiter.read_at(0, 1, 0).unwrap().status.is_success());
}
