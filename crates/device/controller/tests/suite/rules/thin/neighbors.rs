//! Quotas divide space, not time: writes of a neighbor on the same parallel units delay reads, those of a
//! neighbor on other units do not.

use controller::Controller;
use nvme::{Sqe, Status};
use time::{Component, Nanos};

use super::{both, check};
use crate::rules::applications::{APPS, host_of, io, rules_of, with_program, write};
use crate::rules::harness::STORE_AND_LOAD;

/// Returns the longest time of a read of `db`, with or without writes of `log` at the same time.
fn longest_read(source: &str, has_neighbor: bool) -> Nanos {
    let mut drive = Controller::new(with_program(source)).expect("a drive");
    let (mut db, mut log) = (host_of(&mut drive, "db"), host_of(&mut drive, "log"));
    for lba in 0..200 {
        assert_eq!(write(&mut drive, &mut db, lba, lba as u8), Status::SUCCESS);
    }
    assert_eq!(io(&mut drive, &mut db, Sqe::flush(1), 0), Status::SUCCESS);
    let (mut longest, mut written, mut in_flight) = (Nanos::ZERO, 0, 0);
    for lba in 0..200 {
        while has_neighbor && in_flight < 32 {
            let mut sqe = Sqe::write(1, written % 300, 1, false);
            sqe.set_sgl(log.block(0, 4096));
            log.submit(sqe);
            (written, in_flight) = (written + 1, in_flight + 1);
        }
        let mut sqe = Sqe::read(1, lba, 1);
        sqe.set_sgl(db.block(1, 4096));
        let from = db.now;
        db.submit(sqe);
        let cqe = loop {
            while drive.poll(db.now) {}
            match db.reap() {
                Some(cqe) => break cqe,
                None => db.now = drive.deadline(),
            }
        };
        assert_eq!(cqe.status, Status::SUCCESS);
        longest = longest.max(db.now.since(from));
        while let Some(cqe) = log.reap() {
            assert_eq!(cqe.status, Status::SUCCESS);
            in_flight -= 1;
        }
    }
    db.drain(&mut drive);
    assert_eq!(has_neighbor, written > 100, "{written} writes");
    check(&drive);
    longest
}

// guarantee: D-71
#[test]
fn writes_of_a_neighbor_delay_reads_on_the_same_units_only() {
    let rules = ["db", "log"].map(|app| rules_of(app, STORE_AND_LOAD)).concat();
    let thick = format!("{APPS}{rules}");
    let [thick_alone, thick_beside] = [false, true].map(|busy| longest_read(&thick, busy));
    let [thin_alone, thin_beside] = [false, true].map(|busy| longest_read(&both(), busy));
    let times = format!("{thick_alone} {thick_beside}, {thin_alone} {thin_beside}");
    assert!(thick_beside.0 <= thick_alone.0 * 3 / 2, "{times}");
    assert!(thin_alone.0 <= thick_alone.0 * 3 / 2, "{times}");
    assert!(thin_beside.0 >= thick_beside.0 * 3, "{times}");
}
