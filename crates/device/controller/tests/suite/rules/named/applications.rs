//! Two applications whose sectors have names: each has its own names, events and space.

// guarantee: B-105

use controller::{Controller, DriveConfig};
use nvme::{NamedCommand, Status};
use rng::Rng;

use super::super::applications::host_of;
use super::super::harness::program_on;
use super::{NOT_FOUND, NamingHost, base, check};

/// The rules of an application. Its table of forwards is volatile: after a power cut its host rebuilds its
/// index.
fn rules(app: &str, units: &str, forwards: u32) -> String {
    format!(
        "app {app} {{ units = {units}, spare = 0.3 }}\n\
         table {app}.{app}_forward: map<u64, u64>[{forwards}] volatile\n\
         rule {app}_store when channel.app == {app} and header.write\n  \
         do header.addr = next_addr({app}.host); header.tag = header.arg0; insert lun\n\
         rule {app}_forwarded priority 2 hops 16\n  \
         when channel.app == {app} and header.read and header.arg0 in {app}_forward\n  \
         do header.arg0 = {app}_forward[header.arg0]; again\n\
         rule {app}_load priority 1 when channel.app == {app} and header.read\n  \
         do header.addr = name(header.arg0); header.tag = header.arg1; insert lun\n\
         rule {app}_forwarded_free priority 2 hops 16\n  \
         when channel.app == {app} and header.op == trim and header.arg0 in {app}_forward\n  \
         do header.arg0 = {app}_forward[header.arg0]; again\n\
         rule {app}_free priority 1 when channel.app == {app} and header.op == trim\n  \
         do header.addr = name(header.arg0); insert lun\n\
         rule {app}_moved when moved({app})\n  \
         set {app}_forward[header.arg0] = header.arg1\n  \
         do post migrated, header.arg0, header.arg1, header.tag\n\
         rule {app}_acknowledge when channel.app == {app} and header.op == ack\n  \
         do remove header.arg0 from {app}_forward; complete ok\n"
    )
}

fn two(forwards: u32) -> DriveConfig {
    let apps = [rules("db", "0-7", forwards), rules("log", "8-15", forwards)].concat();
    program_on(base(), &sorted(&apps), 1 << 20)
}

/// Declarations come before rules.
fn sorted(source: &str) -> String {
    let is_declaration = |line: &&str| line.starts_with("app ") || line.starts_with("table ");
    let (declared, rules): (Vec<_>, Vec<_>) = source.lines().partition(is_declaration);
    let (apps, tables): (Vec<_>, Vec<_>) = declared.iter().partition(|l| l.starts_with("app "));
    [apps, tables].concat().into_iter().copied().chain(rules).collect::<Vec<_>>().join("\n") + "\n"
}

#[test]
fn an_application_that_never_acknowledges_stops_no_other_one() {
    let mut drive = Controller::new(two(2048)).expect("a drive");
    let drive = &mut drive;
    let mut rng = Rng::new(5);
    let mut log = NamingHost::new(host_of(drive, "log"));
    let mut db = NamingHost::new(host_of(drive, "db"));
    let capacity = drive.application_ftl(0).expect("an FTL").sectors();
    let live = capacity * 3 / 4;
    db.fill(drive, live);
    log.fill(drive, live);
    // `log` never acknowledges. Its own writes fail at last.
    let mut is_full = false;
    for round in 0..400 {
        for _ in 0..live / 20 {
            if is_full && log.sectors.len() < 10 {
                break;
            }
            let tag = log.any(&mut rng);
            log.free(drive, tag);
            let (status, tag, sector) = log.try_write(drive);
            if status == Status::SUCCESS {
                log.sectors.insert(tag, sector);
            } else {
                assert!(status.is(Status::CAPACITY_EXCEEDED), "{status}");
                is_full = true;
            }
        }
        if round < 200 {
            db.churn(drive, &mut rng, live / 20);
            db.take_moves(drive, true);
        }
        check(drive);
    }
    assert!(is_full && db.moved > 500, "{is_full}, {} moves", db.moved);
    db.check(drive);
    log.check(drive);
    // It goes on when it acknowledges.
    log.take_moves(drive, true);
    for _ in 0..log.sectors.len() {
        log.write(drive);
    }
    log.check(drive);
    let stats = drive.stats().rules.expect("rules");
    assert_eq!(stats.misses, 0);
}

#[test]
fn no_application_reads_or_frees_by_the_names_of_another_one() {
    let mut drive = Controller::new(two(1024)).expect("a drive");
    let drive = &mut drive;
    let (mut db, mut log) =
        (NamingHost::new(host_of(drive, "db")), NamingHost::new(host_of(drive, "log")));
    // Their tags are the same.
    db.fill(drive, 40);
    log.fill(drive, 30);
    for (tag, sector) in db.sectors.clone() {
        let stolen = log.read(drive, sector.name, tag);
        assert!(stolen.is_err_and(|status| status == NOT_FOUND), "{tag}: {sector:?}");
        assert_eq!(log.run(drive, NamedCommand::free(sector.name)).0, NOT_FOUND);
    }
    db.check(drive);
    // Each finds its own names after a power cut, and has its own events.
    let mut restarted = std::mem::replace(drive, Controller::new(two(64)).expect("a drive"))
        .power_cut()
        .power_on()
        .unwrap();
    let drive = &mut restarted;
    (db.host, log.host) = (host_of(drive, "db"), host_of(drive, "log"));
    assert_eq!((db.rebuild(drive), log.rebuild(drive)), (40, 30));
    let live = drive.application_ftl(0).expect("an FTL").sectors() * 3 / 4;
    let mut rng = Rng::new(9);
    db.fill(drive, live - 40);
    while db.moved < 20 {
        db.churn(drive, &mut rng, 20);
        assert!(log.take_events(drive).is_empty(), "events of another application");
        db.take_moves(drive, true);
    }
    db.check(drive);
}
