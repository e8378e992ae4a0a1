//! Power cuts of a drive whose applications share parallel units, with commands in flight: flushed data of
//! each application survives, and nothing of another one appears.

use std::collections::BTreeMap;

use controller::Controller;
use nvme::{DsmRange, Sqe, Status};
use testkit::choices::{Choices, seed};
use time::Component;

use super::{blocks_of, both, check, trim};
use crate::hostile::host::Host;
use crate::rules::applications::{host_of, io, read, with_program, write};

/// The applications of the program.
const APPS: [&str; 2] = ["db", "log"];
/// Blocks that are written, at each end of a quota.
const BLOCKS: u64 = 40;

/// Returns a value of a block of an application: no other one has it.
fn value(app: usize, c: &mut Choices) -> u8 {
    100 * app as u8 + 1 + c.below(99) as u8
}

/// The values of a block that may be found after a power cut; the last one is found without one.
type Expected = BTreeMap<u64, Vec<u8>>;

struct Case {
    drive: Controller,
    hosts: Vec<Host>,
    expected: Vec<Expected>,
}

impl Case {
    fn new() -> Case {
        let mut drive = Controller::new(with_program(&both())).expect("a drive");
        let hosts = APPS.iter().map(|app| host_of(&mut drive, app)).collect();
        Case { drive, hosts, expected: vec![Expected::new(); APPS.len()] }
    }

    /// Returns a block at the begin or the end of an application's quota.
    fn block(&self, app: usize, c: &mut Choices) -> u64 {
        let at = c.below(2 * BLOCKS);
        if at < BLOCKS { at } else { blocks_of(&self.drive, app as u32) - 1 - (at - BLOCKS) }
    }

    fn record(&mut self, app: usize, lba: u64, value: u8) {
        self.expected[app].entry(lba).or_insert_with(|| vec![0]).push(value);
    }

    /// Executes a random command of an application.
    fn step(&mut self, app: usize, c: &mut Choices) {
        let lba = self.block(app, c);
        match c.below(12) {
            0 => {
                let host = &mut self.hosts[app];
                let ranges = [DsmRange::new(lba, 1)];
                assert_eq!(trim(&mut self.drive, host, &ranges), Status::SUCCESS);
                self.record(app, lba, 0);
            }
            1 => {
                let flush = io(&mut self.drive, &mut self.hosts[app], Sqe::flush(1), 0);
                assert_eq!(flush, Status::SUCCESS);
                let newest = |values: &mut Vec<u8>| drop(values.drain(..values.len() - 1));
                self.expected[app].values_mut().for_each(newest);
            }
            2..5 => {
                let found = read(&mut self.drive, &mut self.hosts[app], lba);
                let newest = self.expected[app].get(&lba).and_then(|values| values.last());
                assert_eq!(found, Ok(newest.copied().unwrap_or(0)), "{} {lba}", APPS[app]);
            }
            _ => {
                let value = value(app, c);
                let host = &mut self.hosts[app];
                assert_eq!(write(&mut self.drive, host, lba, value), Status::SUCCESS);
                self.record(app, lba, value);
            }
        }
    }

    /// Has each application write a block, and cuts the power before the drive has ended that.
    fn cut_power(mut self, c: &mut Choices) -> Case {
        for app in 0..APPS.len() {
            let (lba, value) = (self.block(app, c), value(app, c));
            let host = &mut self.hosts[app];
            host.memory.fill(0, 4096, value);
            let mut sqe = Sqe::write(1, lba, 1, false);
            sqe.set_sgl(host.block(0, 4096));
            host.submit(sqe);
            self.record(app, lba, value);
        }
        let mut now = self.hosts.iter().map(|host| host.now).max().expect("a host");
        for _ in 0..c.below(12) {
            while self.drive.poll(now) {}
            now = now.max(self.drive.deadline().min(now + time::Nanos(1_000_000)));
        }
        let mut drive = self.drive.power_cut().power_on().expect("it recovers");
        let mut hosts: Vec<_> = APPS.iter().map(|app| host_of(&mut drive, app)).collect();
        for (app, host) in hosts.iter_mut().enumerate() {
            let blocks = blocks_of(&drive, app as u32);
            for lba in (0..BLOCKS).chain(blocks - BLOCKS..blocks) {
                let found = read(&mut drive, host, lba).expect("a block");
                let values = self.expected[app].entry(lba).or_insert_with(|| vec![0]);
                assert!(values.contains(&found), "{} {lba}: {found} of {values:?}", APPS[app]);
                *values = vec![found];
            }
        }
        check(&drive);
        Case { drive, hosts, expected: self.expected }
    }
}

// guarantee: D-70
#[test]
fn what_each_application_has_flushed_survives_power_cuts() {
    for number in 0..40 {
        let mut c = Choices::seeded(seed() * 1000 + number);
        let mut case = Case::new();
        for _ in 0..4 {
            for _ in 0..c.below(400) {
                let app = c.below(APPS.len() as u64) as usize;
                case.step(app, &mut c);
            }
            case = case.cut_power(&mut c);
        }
    }
}
