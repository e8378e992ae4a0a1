// guarantee: B-72

use block::Timeouts;
use machine::BackEnd;

use super::*;

fn host() -> ModeledHost {
    ModeledHost::new(MachineModel::built_in(MODEL).unwrap(), RunLength::Quick)
}

#[test]
fn the_paper_s_order_of_strategies() {
    let host = host();
    let sample = |strategy| host.measure(&setting(strategy)).unwrap();
    let [scsi, alone, lazy, coop] = STEPS.map(|(_, strategy)| sample(strategy));
    assert!(coop.iops > 1.5 * scsi.iops, "{coop:?} {scsi:?}");
    assert!(scsi.interrupt_core > 0.95, "{scsi:?}");
    assert!(alone.handler_max > scsi.handler_max * 3, "{alone:?}");
    assert!(lazy.handler_max < alone.handler_max, "{lazy:?}");
    assert!(coop.handler_max < lazy.handler_max, "{coop:?}");
    assert!(coop.stolen > 0.1 && lazy.stolen == 0.0, "{coop:?} {lazy:?}");
}

#[test]
fn both_back_ends_measure_the_same() {
    for strategy in [Strategy::SCSI, Strategy::HIOPS_IRQ, Strategy::hiops_poll(INTERVAL)] {
        let load = ModeledSetting { threads: 12, ..setting(strategy) };
        let [first, again] = [(), ()].map(|()| host().measure(&load).unwrap());
        assert_eq!(first, again);
        let threads = ModeledHost { back_end: BackEnd::Threads, ..host() };
        assert_eq!(threads.measure(&load).unwrap(), first, "{strategy:?}");
    }
}

#[test]
fn every_strategy_works_with_one_thread_and_with_many() {
    for name in Strategy::NAMES {
        let strategy = Strategy::from_name(name, INTERVAL).unwrap();
        for (threads, drives) in [(1, 1), (300, 2)] {
            let load = ModeledSetting { threads, drives, ..setting(strategy) };
            let sample = host().measure(&load).unwrap();
            assert!(sample.iops > 5_000.0, "{name}, {threads}: {sample:?}");
        }
    }
}

#[test]
fn a_controller_that_hangs_ends_every_strategy() {
    for name in Strategy::NAMES {
        let strategy = Strategy::from_name(name, INTERVAL).unwrap();
        let [command, abort, hangs_after] = [50, 10, 3].map(Nanos::from_millis);
        let timeouts = Timeouts { command, abort, ..Timeouts::default() };
        let host = ModeledHost { hangs_after, timeouts, ..host() };
        let load = ModeledSetting { threads: 8, ..setting(strategy) };
        // The watch handles the timeouts; every reader gets an error and ends.
        let error = host.measure(&load).unwrap_err();
        assert!(matches!(error, BenchError::Failed { .. }), "{name}: {error}");
    }
}
