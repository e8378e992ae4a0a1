//! Applications that share parallel units: each has a part of one translation layer, its quota.

mod divisions;
mod neighbors;
mod power_cuts;

use controller::Controller;
use mem::PAGE_BYTES;
use nvme::{
    AdminCommand, CopyRange, DsmRange, ErrorEntry, IdentifyNamespace, RuleCommand, RuleCommandKind,
    Sqe, Status, cns, log_page,
};
use time::{Component, Nanos};

use super::applications::{host_of, io, read, rules_of, with_program, write};
use super::harness::{RECLAIM, STORE_AND_LOAD, compiled};
use crate::hostile::host::Host;

/// Two applications on all parallel units: `db` has two fifths of their space, `log` a half. A tenth is unused.
pub(super) const THIN: &str = "app db { units = 0-15, spare = 0.1, quota = 0.4 }\n\
    app log { units = 0-15, spare = 0.1, quota = 0.5 }\n\
    table db.db_map: addr[db.sectors] durable\n\
    table log.log_map: addr[log.sectors] durable\n";

/// Returns the program with the same rules for both applications: writes and reads at the block that the
/// host names.
pub(super) fn both() -> String {
    format!("{THIN}{}{}", rules_of("db", STORE_AND_LOAD), rules_of("log", STORE_AND_LOAD))
}

pub(super) fn check(drive: &Controller) {
    drive.check_invariants().unwrap_or_else(|violation| panic!("{violation}"));
}

pub(super) fn blocks_of(drive: &Controller, app: u32) -> u64 {
    drive.application_blocks(app).expect("an application")
}

const OUTSIDE: Status = Status::LBA_OUT_OF_RANGE.do_not_retry();

fn trim(drive: &mut Controller, host: &mut Host, ranges: &[DsmRange]) -> Status {
    let bytes: Vec<u8> = ranges.iter().flat_map(|range| range.to_bytes()).collect();
    host.memory.write(0, &bytes);
    let sqe = Sqe::dataset_management(1, ranges.len() as u16, true);
    io(drive, host, sqe, bytes.len() as u32)
}

fn copy(drive: &mut Controller, host: &mut Host, to: u64, from: CopyRange) -> Status {
    host.memory.write(0, &from.to_bytes());
    io(drive, host, Sqe::copy(1, to, 1), 32)
}

// guarantee: D-68
#[test]
fn applications_share_a_translation_layer() {
    let mut drive = Controller::new(with_program(&both())).expect("a drive");
    let (mut db, mut log) = (host_of(&mut drive, "db"), host_of(&mut drive, "log"));
    let ftl = |app| drive.application_ftl(app).expect("an FTL");
    assert!(std::ptr::eq(ftl(0), ftl(1)) && drive.application_ftl(2).is_none());
    let (all, blocks) = (ftl(0).sectors(), [blocks_of(&drive, 0), blocks_of(&drive, 1)]);
    assert_eq!((blocks, drive.sectors()), ([all * 2 / 5, all / 2], all));
    assert_eq!(drive.application_blocks(2), None);
    // Both write blocks of the same numbers with other contents, until the FTL has collected.
    for round in 0..4u64 {
        for at in 0..blocks[1] {
            // Another order in each round leaves lines with valid and with superseded data.
            let lba = at * [1, 7, 11, 13][round as usize] % blocks[1];
            if lba < blocks[0] {
                let value = (lba * 7 + round) as u8 | 1;
                assert_eq!(write(&mut drive, &mut db, lba, value), Status::SUCCESS);
            }
            let value = (lba * 5 + round) as u8 & !1;
            assert_eq!(write(&mut drive, &mut log, lba, value), Status::SUCCESS);
        }
    }
    for lba in 0..blocks[1] {
        if lba < blocks[0] {
            assert_eq!(read(&mut drive, &mut db, lba), Ok((lba * 7 + 3) as u8 | 1));
        }
        assert_eq!(read(&mut drive, &mut log, lba), Ok((lba * 5 + 3) as u8 & !1));
    }
    check(&drive);
    let stats = drive.application_ftl(0).expect("an FTL").stats();
    assert_eq!(stats.host_writes, 4 * (blocks[0] + blocks[1]));
    assert!(stats.lines_reclaimed > 0, "{stats:?}");
    // The policy has chosen the lines; no application was asked.
    let rules = drive.stats().rules.expect("rules");
    let counts = |app: usize| {
        let app = &rules.apps[app];
        (app.inputs, app.polls, app.idle_polls, app.victims, app.policy_victims)
    };
    assert_eq!(counts(0), (5 * blocks[0], 0, 0, 0, 0));
    assert_eq!(counts(1), (5 * blocks[1], 0, 0, 0, 0));
}

// guarantee: D-68
#[test]
fn nothing_past_the_quota_is_addressed() {
    let mut drive = Controller::new(with_program(&both())).expect("a drive");
    let (mut db, mut log) = (host_of(&mut drive, "db"), host_of(&mut drive, "log"));
    let (own, other) = (blocks_of(&drive, 0), blocks_of(&drive, 1));
    // The first and the last block of both.
    for (host, last, value) in [(&mut db, own - 1, 10), (&mut log, other - 1, 20)] {
        for (lba, value) in [(0, value), (last, value + 1)] {
            assert_eq!(write(&mut drive, host, lba, value), Status::SUCCESS);
        }
    }
    for lba in [own, own + other - 1, own + other, drive.sectors() - 1, drive.sectors(), u64::MAX] {
        let rejected = [
            write(&mut drive, &mut db, lba, 99),
            read(&mut drive, &mut db, lba).expect_err("outside"),
            io(&mut drive, &mut db, Sqe::compare(1, lba, 1), 4096),
            io(&mut drive, &mut db, Sqe::verify(1, lba, 1), 0),
            io(&mut drive, &mut db, Sqe::write_zeroes(1, lba, 1, false), 0),
            io(&mut drive, &mut db, Sqe::write_zeroes(1, lba, 1, true), 0),
            io(&mut drive, &mut db, Sqe::write_uncorrectable(1, lba, 1), 0),
            io(&mut drive, &mut db, Sqe::lba_status(1, lba, 1, 4), 64),
            trim(&mut drive, &mut db, &[DsmRange::new(0, 0), DsmRange::new(lba, 1)]),
            copy(&mut drive, &mut db, lba, CopyRange::new(0, 1)),
            copy(&mut drive, &mut db, 1, CopyRange::new(lba, 1)),
            io(&mut drive, &mut db, RuleCommand::new(RuleCommandKind::Ack, lba, 1).to_sqe(1), 0),
        ];
        assert_eq!(rejected, [OUTSIDE; 12], "block {lba}");
    }
    // Ranges that begin inside and end outside.
    for sqe in [Sqe::read(1, own - 1, 2), Sqe::write(1, own - 1, 2, false)] {
        assert_eq!(io(&mut drive, &mut db, sqe, 8192), OUTSIDE);
    }
    assert_eq!(trim(&mut drive, &mut db, &[DsmRange::new(own - 1, 2)]), OUTSIDE);
    assert_eq!(copy(&mut drive, &mut db, own - 1, CopyRange::new(0, 2)), OUTSIDE);
    let both = [(&mut db, own - 1, 10), (&mut log, other - 1, 20)];
    for (host, last, value) in both {
        assert_eq!(read(&mut drive, host, 0), Ok(value));
        assert_eq!(read(&mut drive, host, last), Ok(value + 1));
    }
    // A host without an application has none of the blocks.
    let mut admin = Host::with_queue(&mut drive);
    assert_eq!(read(&mut drive, &mut admin, 0), Err(Status::RULE_DENIED.do_not_retry()));
    check(&drive);
}

// guarantee: D-68
#[test]
fn a_full_quota_can_be_overwritten_and_takes_nothing_of_the_others() {
    let source = both().replace("quota = 0.5", "quota = 0.6");
    let mut drive = Controller::new(with_program(&source)).expect("a drive");
    let (mut db, mut log) = (host_of(&mut drive, "db"), host_of(&mut drive, "log"));
    // The space of a neighbor whose quota is full is no larger, and the own part is not smaller.
    for round in 0..3 {
        for lba in 0..blocks_of(&drive, 1) {
            assert_eq!(write(&mut drive, &mut log, lba, 100 + round), Status::SUCCESS);
        }
    }
    for lba in 0..blocks_of(&drive, 0) {
        assert_eq!(read(&mut drive, &mut db, lba), Ok(0), "a block that was never written");
    }
    for round in 0..3 {
        for lba in 0..blocks_of(&drive, 0) {
            assert_eq!(write(&mut drive, &mut db, lba, 1 + round), Status::SUCCESS);
        }
    }
    let all = DsmRange::new(0, blocks_of(&drive, 0) as u32);
    assert_eq!(read(&mut drive, &mut db, 5), Ok(3));
    assert_eq!(trim(&mut drive, &mut db, &[all]), Status::SUCCESS);
    for lba in 0..blocks_of(&drive, 0) {
        assert_eq!(read(&mut drive, &mut db, lba), Ok(0), "a trimmed block");
    }
    for lba in 0..blocks_of(&drive, 1) {
        assert_eq!(read(&mut drive, &mut log, lba), Ok(102));
    }
    check(&drive);
}

// guarantee: D-68
#[test]
fn commands_are_about_the_blocks_of_the_application() {
    let mut drive = Controller::new(with_program(&both())).expect("a drive");
    let (mut db, mut log) = (host_of(&mut drive, "db"), host_of(&mut drive, "log"));
    for lba in 0..8 {
        assert_eq!(write(&mut drive, &mut db, lba, 1 + lba as u8), Status::SUCCESS);
        assert_eq!(write(&mut drive, &mut log, lba, 101 + lba as u8), Status::SUCCESS);
    }
    // The second application is not at the begin of the translation layer.
    assert_eq!(copy(&mut drive, &mut log, 4, CopyRange::new(1, 2)), Status::SUCCESS);
    assert_eq!(
        trim(&mut drive, &mut log, &[DsmRange::new(0, 1), DsmRange::new(7, 1)]),
        Status::SUCCESS
    );
    assert_eq!(io(&mut drive, &mut log, Sqe::write_zeroes(1, 3, 1, false), 0), Status::SUCCESS);
    let values: Vec<_> = (0..9).map(|lba| read(&mut drive, &mut log, lba)).collect();
    assert_eq!(values, [0, 102, 103, 0, 102, 103, 107, 0, 0].map(Ok));
    let values: Vec<_> = (0..9).map(|lba| read(&mut drive, &mut db, lba)).collect();
    assert_eq!(values, [1, 2, 3, 4, 5, 6, 7, 8, 0].map(Ok));
    log.memory.fill(0, PAGE_BYTES, 103);
    assert_eq!(io(&mut drive, &mut log, Sqe::compare(1, 2, 1), 4096), Status::SUCCESS);
    let differs = io(&mut drive, &mut db, Sqe::compare(1, 2, 1), 4096);
    assert!(differs.is(Status::COMPARE_FAILURE), "{differs}");
    // LBA Status: blocks 1 to 6 of `log` are mapped.
    assert_eq!(io(&mut drive, &mut log, Sqe::lba_status(1, 0, 9, 4), 64), Status::SUCCESS);
    let mut bytes = vec![0; 48];
    log.memory.read(0, &mut bytes);
    let extents: Vec<(u64, u32)> = bytes
        .chunks(16)
        .map(|entry| {
            let slba = u64::from_le_bytes(*entry.first_chunk().expect("8 bytes"));
            (slba, u32::from_le_bytes(*entry[8..].first_chunk().expect("4 bytes")))
        })
        .collect();
    assert_eq!(extents, [(0, 1), (1, 6), (7, 2)]);
    // An error names the block as the host numbers it.
    assert_eq!(io(&mut drive, &mut log, Sqe::write_uncorrectable(1, 5, 1), 0), Status::SUCCESS);
    let read = io(&mut drive, &mut log, Sqe::read(1, 2, 6), 6 * 4096);
    assert!(read.is(Status::UNRECOVERED_READ), "{read}");
    assert_eq!(newest_error(&mut drive, &mut log), 5);
    let copied = copy(&mut drive, &mut log, 20, CopyRange::new(4, 3));
    assert!(copied.is(Status::UNRECOVERED_READ), "{copied}");
    assert_eq!(newest_error(&mut drive, &mut log), 5);
    let verified = io(&mut drive, &mut db, Sqe::verify(1, 0, 8), 0);
    assert_eq!(verified, Status::SUCCESS);
    // The namespace has the size of the quota, and the usage is that of the application.
    for (host, app, used) in [(&mut db, 0, 8), (&mut log, 1, 6)] {
        let mut sqe = AdminCommand::Identify { cns: cns::NAMESPACE, nsid: 1 }.to_sqe();
        sqe.set_sgl(host.block(0, 4096));
        assert_eq!(host.admin(&mut drive, sqe).status, Status::SUCCESS);
        let mut page = [0; 4096];
        host.memory.read(0, &mut page);
        let namespace = IdentifyNamespace::from_bytes(page);
        assert_eq!((namespace.nsze.get(), namespace.nuse.get()), (blocks_of(&drive, app), used));
    }
    check(&drive);
}

fn newest_error(drive: &mut Controller, host: &mut Host) -> u64 {
    let (lid, nsid, bytes) = (log_page::ERROR, u32::MAX, 64);
    let command = AdminCommand::GetLogPage { lid, nsid, bytes, offset: 0, retain: false };
    let mut sqe = command.to_sqe();
    sqe.set_sgl(host.block(0, 64));
    assert_eq!(host.admin(drive, sqe).status, Status::SUCCESS);
    let mut entry = [0; ErrorEntry::BYTES];
    host.memory.read(0, &mut entry);
    ErrorEntry::from_bytes(entry).lba.get()
}

// guarantee: D-68
#[test]
fn rules_reach_no_block_past_the_quota() {
    // The rules of `db` redirect writes and reads by a number of the host, and fetch what it names.
    let own = "record Word = { word: u64[512] }\n\
        rule db_store when channel.app == db and header.write\n  \
        set db_map[header.lba + shift[0]] = next_addr(db.host)\n  \
        do header.addr = db_map[header.lba + shift[0]]; insert lun\n\
        rule db_load when channel.app == db and header.read\n  \
        do header.addr = db_map[header.lba + shift[0]]; insert lun\n\
        rule db_fetch when channel.app == db and header.op == get\n  \
        do fetch r: Word at header.arg0; emit r; complete ok value r.word[0]\n\
        rule db_set when channel.app == db and header.op == user2\n  \
        set shift[0] = header.arg0\n  do complete ok\n\
        table db.shift: u64[1] volatile\n";
    let source = format!("{THIN}{own}{}", rules_of("log", STORE_AND_LOAD));
    let mut drive = Controller::new(with_program(&source)).expect("a drive");
    let (mut db, mut log) = (host_of(&mut drive, "db"), host_of(&mut drive, "log"));
    let (own, other) = (blocks_of(&drive, 0), blocks_of(&drive, 1));
    for lba in [0, 1, other - 1] {
        assert_eq!(write(&mut drive, &mut log, lba, 200), Status::SUCCESS);
    }
    assert_eq!(write(&mut drive, &mut db, 2, 7), Status::SUCCESS);
    let fetch = |drive: &mut Controller, db: &mut Host, lba| {
        db.memory.fill(0, PAGE_BYTES, 0xee);
        let command = RuleCommand::new(RuleCommandKind::Get, 0, 1);
        let command = RuleCommand { arg0: lba, buffer_bytes: PAGE_BYTES as u32, ..command };
        let status = io(drive, db, command.to_sqe(1), PAGE_BYTES as u32);
        let mut bytes = [0; 1];
        db.memory.read(0, &mut bytes);
        (status.is_success(), bytes[0])
    };
    assert_eq!(fetch(&mut drive, &mut db, 2), (true, 7));
    assert_eq!(fetch(&mut drive, &mut db, own - 1), (true, 0));
    for past in [own, own + 1, own + other - 1, own + other, u64::MAX] {
        assert_eq!(fetch(&mut drive, &mut db, past), (false, 0xee), "block {past}");
        let set = RuleCommand { arg0: past, ..RuleCommand::new(RuleCommandKind::User2, 0, 1) };
        assert_eq!(io(&mut drive, &mut db, set.to_sqe(1), 0), Status::SUCCESS);
        for lba in 0..2 {
            let written = write(&mut drive, &mut db, lba, 66);
            let found = read(&mut drive, &mut db, lba);
            let wraps = past == u64::MAX && lba == 1;
            assert_eq!(
                (written.is_success(), found.is_ok()),
                (wraps, wraps),
                "block {past} + {lba}"
            );
        }
    }
    for lba in [0, 1, other - 1] {
        assert_eq!(read(&mut drive, &mut log, lba), Ok(200));
    }
    check(&drive);
}

/// An application on units of its own beside two that share theirs.
const MIXED: &str = "app db { units = 0-7, spare = 0.1, quota = 0.3 }\n\
    app own { units = 8-15, spare = 0.1 }\n\
    app log { units = 0-7, spare = 0.1, quota = 0.7 }\n\
    table db.db_map: addr[db.sectors] durable\n\
    table own.own_map: addr[own.sectors] durable\n\
    table log.log_map: addr[log.sectors] durable\n";

// guarantee: D-68
#[test]
fn thin_and_thick_spaces_are_beside_each_other() {
    let source = format!(
        "{MIXED}{}{}{}",
        rules_of("db", STORE_AND_LOAD),
        rules_of("own", &format!("{STORE_AND_LOAD}{RECLAIM}")),
        rules_of("log", STORE_AND_LOAD)
    );
    let mut drive = Controller::new(with_program(&source)).expect("a drive");
    let mut hosts: Vec<_> =
        ["db", "own", "log"].iter().map(|app| host_of(&mut drive, app)).collect();
    let blocks: Vec<u64> = (0..3).map(|app| blocks_of(&drive, app)).collect();
    assert!(blocks[0] < blocks[2] && blocks[0] + blocks[2] <= blocks[1], "{blocks:?}");
    for round in 0..4u64 {
        for (app, host) in hosts.iter_mut().enumerate() {
            for at in 0..blocks[app] {
                let lba = at * [1, 7, 11, 13][round as usize] % blocks[app];
                let value = (64 * app as u64 + (lba + round) % 64) as u8;
                assert_eq!(write(&mut drive, host, lba, value), Status::SUCCESS);
            }
        }
    }
    for (app, host) in hosts.iter_mut().enumerate() {
        for lba in 0..blocks[app] {
            let last = (0..4u64).rev().find(|round| {
                let step = [1, 7, 11, 13][*round as usize];
                (0..blocks[app]).any(|at| at * step % blocks[app] == lba)
            });
            let value = (64 * app as u64 + (lba + last.expect("a round")) % 64) as u8;
            assert_eq!(read(&mut drive, host, lba), Ok(value));
        }
    }
    // Rules choose the lines of the thick space, the policy those of the other one.
    let rules = drive.stats().rules.expect("rules");
    let [db, own, log] = &rules.apps[..] else { panic!("{rules:?}") };
    assert!(own.victims > 0 && own.polls > 0, "{own:?}");
    assert_eq!((db.polls, db.victims, log.polls, log.victims), (0, 0, 0, 0));
    let reclaimed = |app| drive.application_ftl(app).expect("an FTL").stats().lines_reclaimed;
    assert!(reclaimed(0) > 0 && reclaimed(1) > 0);
    assert!(std::ptr::eq(
        drive.application_ftl(0).expect("an FTL"),
        drive.application_ftl(2).expect("an FTL")
    ));
    check(&drive);
}

// guarantee: D-68
#[test]
fn streams_and_parked_commands_are_those_of_any_application() {
    // Only `db` has a rule for writes, which places them in the stream `hot`.
    let hot = rules_of("db", &STORE_AND_LOAD.replace("db.host", "db.hot"));
    let all = rules_of("log", STORE_AND_LOAD);
    let load = &all[all.find("rule log_load").expect("a rule")..];
    let mut config = with_program(&format!("{THIN}{hot}{load}"));
    config.ftl.hot_stream = true;
    if let Some(rules) = &mut config.rules {
        rules.misses.timeout = Nanos(1_000_000_000);
    }
    let next = compiled(&format!("{THIN}{hot}{all}"), &config);
    let mut drive = Controller::new(config).expect("a drive");
    let (mut db, mut log) = (host_of(&mut drive, "db"), host_of(&mut drive, "log"));
    for lba in 0..50 {
        assert_eq!(write(&mut drive, &mut db, lba, 1 + lba as u8), Status::SUCCESS);
    }
    // A write that no rule matches waits for a program that has one, and is translated once.
    log.now = db.now;
    log.memory.fill(0, PAGE_BYTES, 99);
    let mut sqe = Sqe::write(1, 7, 1, false);
    sqe.set_sgl(log.block(0, PAGE_BYTES as u32));
    log.submit(sqe);
    while drive.poll(log.now) {}
    assert!(log.reap().is_none(), "the write is parked");
    drive.install_rules(log.now, &next).expect("installed");
    log.drain(&mut drive);
    assert_eq!(log.reap().expect("the write completes").status, Status::SUCCESS);
    for lba in 0..50 {
        assert_eq!(read(&mut drive, &mut db, lba), Ok(1 + lba as u8));
        let value = if lba == 7 { 99 } else { 0 };
        assert_eq!(read(&mut drive, &mut log, lba), Ok(value));
    }
    let apps = drive.stats().rules.expect("rules").apps;
    let counts: Vec<_> = apps.iter().map(|app| (app.hot_sectors, app.misses)).collect();
    assert_eq!(counts, [(50, 0), (0, 1)]);
    check(&drive);
}
