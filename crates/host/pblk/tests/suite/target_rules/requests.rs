//! Requests of a target with rules: their ends, and the counters.

use std::sync::Arc;

use block::{BlockDevice, Payload, Request};
use ftl::FtlConfig;
use mem::{Iova, SharedRegion};
use nvme::Status;
use pblk::{Pblk, TargetRuleStats};
use rng::Rng;
use testkit::open_channel_drive::{MockOpenChannelDrive, geometry};
use time::{Component, Nanos};

use super::programs::{RECLAIM, STORE_AND_LOAD, settings};
use crate::open_pblk::OpenPblk;

const SECTOR: usize = 512;

/// A target with rules on a small drive.
pub(super) struct RuledTarget {
    pub(super) drive: MockOpenChannelDrive,
    pub(super) pblk: Pblk,
    pub(super) now: Nanos,
    memory: Arc<SharedRegion>,
    at: Iova,
}

impl RuledTarget {
    pub(super) fn new(rules: &str, config: FtlConfig, idle_poll: Option<Nanos>) -> RuledTarget {
        let geometry = geometry(2, 2, 40, 16, 4, 0);
        let mut drive = MockOpenChannelDrive::new(geometry, true, 5);
        let mut pblk = drive.open(config, 64).expect("a drive that can be opened");
        let settings = settings(&geometry, rules);
        let settings = pblk::TargetRulesConfig { idle_poll, ..settings };
        pblk.install_rules(Nanos(0), &settings).expect("a program");
        let memory = SharedRegion::anonymous(SECTOR).unwrap();
        let at = pblk.memory().register(&memory).unwrap();
        RuledTarget { drive, pblk, now: Nanos(0), memory, at }
    }

    /// Runs a request to its end. Returns its status and its result.
    pub(super) fn run(&mut self, request: Request) -> (Status, u64) {
        self.pblk.submit(self.now, request).expect("room for a request");
        for _ in 0..100_000 {
            self.pblk.poll(self.now);
            if let Some(done) = self.pblk.reap() {
                self.pblk.check_invariants().unwrap();
                return (done.status, done.result);
            }
            self.drive.fetch();
            self.drive.step();
        }
        panic!("no completion: {}", self.pblk.ftl().debug_state());
    }

    /// Writes a sector with one value in all bytes.
    pub(super) fn write(&mut self, lba: u64, byte: u8) -> Status {
        self.memory.fill(0, SECTOR, byte);
        self.run(Request::write(lba, 1, Payload::Contiguous(self.at), 1)).0
    }

    /// Reads a sector. Returns its value.
    pub(super) fn read(&mut self, lba: u64) -> u8 {
        self.memory.fill(0, SECTOR, 0xee);
        let (status, _) = self.run(Request::read(lba, 1, Payload::Contiguous(self.at), 2));
        assert_eq!(status, Status::SUCCESS, "a read of sector {lba}");
        let mut bytes = [0; SECTOR];
        self.memory.read(0, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "sector {lba} is mixed");
        bytes[0]
    }

    pub(super) fn stats(&self) -> TargetRuleStats {
        self.pblk.rule_stats().expect("rules")
    }

    /// Lets the target be idle for some time.
    pub(super) fn idle(&mut self, time: Nanos) {
        let end = self.now + time;
        loop {
            for _ in 0..10_000 {
                let moved = self.pblk.poll(self.now) | self.drive.fetch() | self.drive.step();
                if !moved {
                    break;
                }
            }
            let next = self.pblk.deadline();
            if next > end {
                break;
            }
            self.now = self.now.max(next);
        }
        self.now = end;
    }
}

fn target(rules: &str) -> RuledTarget {
    RuledTarget::new(rules, FtlConfig { over_provisioning: 0.3, ..FtlConfig::default() }, None)
}

#[test]
fn page_mapped_rules_return_the_data_of_the_host() {
    let mut target = target(&format!("{STORE_AND_LOAD}{RECLAIM}"));
    let sectors = target.pblk.limits().sectors;
    let mut values = vec![0u8; sectors as usize];
    let mut rng = Rng::new(3);
    for at in 0..6 * sectors {
        let lba = rng.below(sectors);
        values[lba as usize] = at as u8;
        assert_eq!(target.write(lba, at as u8), Status::SUCCESS);
    }
    assert_eq!(target.run(Request::discard(3, 2, 0)).0, Status::SUCCESS);
    values[3..5].fill(0);
    assert_eq!(target.run(Request::flush(0)).0, Status::SUCCESS);
    for (lba, value) in (0..).zip(&values) {
        assert_eq!(target.read(lba), *value, "sector {lba}");
    }
    let stats = target.stats();
    assert_eq!(stats.inputs, 7 * sectors + 2, "writes, reads, a trim and a flush");
    let matches = |at: usize| (stats.rules[at].name.as_str(), stats.rules[at].counters.matches);
    assert_eq!([matches(0), matches(1)], [("store", 6 * sectors), ("load", sectors)]);
    assert!(stats.victims > 0 && stats.polls >= stats.victims, "{stats:?}");
    assert_eq!(stats.miss_count(), 0);
}

#[test]
fn requests_are_executed_where_the_rules_say() {
    // Sectors from 100 on are those from 0 on.
    let mut target = target(
        "rule mirror priority 2 when channel.app == db and header.lba >= 100 and header.lba < 200\n  \
         do header.lba = header.lba - 100; continue\n\
         rule far priority 1 when channel.app == db and header.read and header.lba >= 200\n  \
         do header.lba = db.sectors - 1; header.addr = map[header.lba]; insert lun\n\
         rule store when channel.app == db and header.write\n  \
         set map[header.lba] = next_addr(db.host)\n  do header.addr = map[header.lba]; insert lun\n\
         rule load when channel.app == db and header.read\n  \
         do header.addr = map[header.lba]; insert lun\n",
    );
    assert_eq!(target.write(107, 7), Status::SUCCESS);
    assert_eq!((target.read(7), target.read(107)), (7, 7));
    let zeros = target.run(Request::write_zeroes(107, 1, false, 0)).0;
    assert_eq!((zeros, target.read(7)), (Status::SUCCESS, 0));
    // The application has more sectors than the target.
    let (status, _) = target.run(Request::read(200, 1, Payload::BitBucket, 0));
    assert_eq!(status, Status::LBA_OUT_OF_RANGE);
    // The rules do not see a request past the end.
    let inputs = target.stats().inputs;
    let past = target.pblk.limits().sectors;
    let (status, _) = target.run(Request::read(past, 1, Payload::BitBucket, 0));
    assert_eq!((status, target.stats().inputs), (Status::LBA_OUT_OF_RANGE, inputs));
}

#[test]
fn requests_end_with_the_status_of_the_rules() {
    let mut target = target(&format!(
        "table counts: u64[4] volatile\n\
         rule never priority 5 when channel.app == db and header.write and header.lba == 3\n  \
         do complete denied\n\
         rule later priority 4 when channel.app == db and header.write and header.lba == 4\n  \
         do complete busy\n\
         rule lost priority 3 when channel.app == db and header.write and header.lba == 5\n  \
         do header.addr = next_addr(db.host); insert lun\n\
         rule known priority 2 when channel.app == db and header.read and header.lba == 6\n  \
         do complete ok value 42\n\
         rule behind priority 1 when channel.app == db and header.read and header.lba == 7\n  \
         set counts[header.lba] = 1\n  do complete ok\n\
         rule keep when channel.app == db and header.trim and header.lba == 8\n  do complete ok\n\
         rule quiet when channel.app == db and header.flush\n  do complete invalid\n{STORE_AND_LOAD}"
    ));
    assert_eq!(target.write(3, 1), Status::RULE_DENIED.do_not_retry());
    assert_eq!(target.write(4, 1), Status::RULE_BUSY);
    assert_eq!(target.write(5, 1), Status::RULE_BAD_ADDRESS.do_not_retry());
    let read = |lba: u64| Request::read(lba, 1, Payload::BitBucket, 0);
    assert_eq!(target.run(read(6)), (Status::SUCCESS, 42));
    assert_eq!(target.run(read(7)).0, Status::RULE_INDEX.do_not_retry());
    assert_eq!(target.write(8, 8), Status::SUCCESS);
    assert_eq!(target.run(Request::discard(8, 1, 0)).0, Status::SUCCESS);
    assert_eq!(target.read(8), 8, "a rule has completed the trim");
    assert_eq!(target.run(Request::flush(0)).0, Status::RULE_INVALID.do_not_retry());
    assert_eq!((target.read(3), target.read(4)), (0, 0), "nothing was written");
    let faults: u64 = target.stats().rules.iter().map(|rule| rule.counters.faults).sum();
    assert_eq!(faults, 1);
}

#[test]
fn a_request_without_a_rule_ends_at_once() {
    let mut target = target(
        "rule load when channel.app == db and header.read\n  \
         do header.addr = map[header.lba]; insert lun\n",
    );
    assert_eq!(target.write(9, 1), Status::RULE_MISS.do_not_retry());
    assert_eq!(target.write(11, 1), Status::RULE_MISS.do_not_retry());
    // A trim and a flush that no rule decides about are executed.
    assert_eq!(target.run(Request::discard(0, 4, 0)).0, Status::SUCCESS);
    assert_eq!(target.run(Request::flush(0)).0, Status::SUCCESS);
    let stats = target.stats();
    let [missed] = stats.missed[..] else { panic!("{stats:?}") };
    assert_eq!((missed.op.name(), missed.misses), ("write", 2));
    assert_eq!((missed.lba, missed.sectors), (11, 1));

    // Another program has a rule for it.
    let program = settings(&target.drive.geometry, STORE_AND_LOAD);
    target.pblk.install_rules(Nanos(0), &program).unwrap();
    assert_eq!((target.write(9, 3), target.read(9)), (Status::SUCCESS, 3));
    assert_eq!(target.stats().miss_count(), 0);
}

#[test]
fn counters_are_differences_of_readings() {
    let mut target = target(STORE_AND_LOAD);
    target.write(1, 1);
    let before = target.stats();
    target.write(2, 1);
    target.read(1);
    let stats = target.stats().since(&before);
    let matches: Vec<u64> = stats.rules.iter().map(|rule| rule.counters.matches).collect();
    assert_eq!((stats.inputs, matches), (2, vec![1, 1]));
    assert_eq!(stats.ops + before.ops, target.stats().ops);
}
