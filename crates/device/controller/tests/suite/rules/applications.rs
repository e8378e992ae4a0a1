//! A drive whose rules have several applications: each has its own blocks, on its own parallel units.

use std::sync::Arc;

use controller::{
    AccessPolicy, AccessScope, AttachError, Controller, DriveConfig, DriveError, DriveRulesConfig,
    DriveRulesError, MediaScrubConfig,
};
use nvme::{DsmRange, QueuePriority, RuleCommand, RuleCommandKind, Sqe, Status};
use time::Nanos;
use transport::Port;

use super::harness::{RECLAIM, STORE_AND_LOAD, compiled, nand, settings};
use crate::block_commands::harness::config;
use crate::hostile::host::{DEPTH, Host};

/// Two applications: `db` has the first 8 parallel units, `log` the others.
pub(super) const APPS: &str = "app db { units = 0-7, spare = 0.1 }\n\
    app log { units = 8-15, spare = 0.1 }\n\
    table db.db_map: addr[db.sectors] durable\n\
    table log.log_map: addr[log.sectors] durable\n";

/// Returns the rules of an application, which are written for `db`.
pub(super) fn rules_of(app: &str, rules: &str) -> String {
    let named = rules.replace("rule ", "rule db_").replace("map[", "db_map[");
    named.replace("db", app)
}

/// Returns a drive with a program.
pub(super) fn with_program(source: &str) -> DriveConfig {
    let base = config();
    let program = compiled(source, &base);
    DriveConfig { rules: Some(DriveRulesConfig { program, ..settings() }), ..base }
}

/// Returns a host of an application.
pub(super) fn host_of(drive: &mut Controller, app: &str) -> Host {
    let app = drive.application(app).expect("an application");
    let port = Port::new().expect("a port");
    let policy = AccessPolicy::for_scope(AccessScope::Application { app });
    drive.attach_as(&port, policy).expect("attached");
    let mut host = Host::on_port(port);
    host.io = Some(host.create(drive, 1, DEPTH, QueuePriority::Medium));
    host
}

/// Executes a command of a host with `bytes` bytes of data.
pub(super) fn io(drive: &mut Controller, host: &mut Host, mut sqe: Sqe, bytes: u32) -> Status {
    if bytes > 0 {
        sqe.set_sgl(host.block(0, bytes));
    }
    host.io(drive, sqe).status
}

pub(super) fn write(drive: &mut Controller, host: &mut Host, lba: u64, value: u8) -> Status {
    host.memory.fill(0, 4096, value);
    io(drive, host, Sqe::write(1, lba, 1, false), 4096)
}

/// Returns the value of the bytes of a block.
pub(super) fn read(drive: &mut Controller, host: &mut Host, lba: u64) -> Result<u8, Status> {
    host.memory.fill(0, 4096, 0xee);
    match io(drive, host, Sqe::read(1, lba, 1), 4096) {
        Status::SUCCESS => {}
        status => return Err(status),
    }
    let mut bytes = vec![0; 4096];
    host.memory.read(0, &mut bytes);
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a block has two values");
    Ok(bytes[0])
}

fn check(drive: &Controller) {
    drive.check_invariants().unwrap_or_else(|violation| panic!("{violation}"));
}

/// The rules of both applications: writes and reads at the block that the host names, and collection.
fn both() -> String {
    let rules = format!("{STORE_AND_LOAD}{RECLAIM}");
    format!("{APPS}{}{}", rules_of("db", &rules), rules_of("log", &rules))
}

#[test]
fn each_application_has_its_own_blocks_and_units() {
    let mut drive = Controller::new(with_program(&both())).expect("a drive");
    let (mut db, mut log) = (host_of(&mut drive, "db"), host_of(&mut drive, "log"));
    let sectors = |app| drive.application_ftl(app).expect("an FTL").sectors();
    let blocks = [sectors(0), sectors(1)];
    assert_eq!((blocks[0], drive.sectors()), (blocks[1], blocks[0] + blocks[1]));
    assert!(drive.application_ftl(2).is_none());
    // Both applications write blocks of the same numbers with other contents, and overwrite them, so
    // that both FTLs collect.
    for round in 0..4u64 {
        for at in 0..blocks[0] {
            // Another order in each round leaves lines with valid and with superseded data.
            let lba = at * [1, 7, 11, 13][round as usize] % blocks[0];
            let value = (lba * 7 + round) as u8;
            assert_eq!(write(&mut drive, &mut db, lba, value), Status::SUCCESS);
            if round < 2 {
                assert_eq!(write(&mut drive, &mut log, lba, !value), Status::SUCCESS);
            }
        }
    }
    for lba in 0..blocks[0] {
        assert_eq!(read(&mut drive, &mut db, lba), Ok((lba * 7 + 3) as u8));
        assert_eq!(read(&mut drive, &mut log, lba), Ok(!((lba * 7 + 1) as u8)));
    }
    check(&drive);
    let stats = |app| *drive.application_ftl(app).expect("an FTL").stats();
    assert_eq!(stats(0).host_writes, 4 * blocks[0]);
    assert_eq!(stats(1).host_writes, 2 * blocks[0]);
    let rules = drive.stats().rules.expect("rules");
    let matches = |name: &str| {
        let rule = rules.rules.iter().find(|rule| rule.name == name);
        rule.unwrap_or_else(|| panic!("no rule {name}")).matches
    };
    assert_eq!((matches("db_store"), matches("log_store")), (4 * blocks[0], 2 * blocks[0]));
    assert!(matches("db_reclaim") > matches("log_reclaim"), "{rules:?}");
    assert!(rules.victims > 0 && stats(0).lines_reclaimed > stats(1).lines_reclaimed);
    // The data of each is on its own parallel units.
    for (app, units) in [(0, 0..8), (1, 8..16)] {
        let ftl = drive.application_ftl(app).expect("an FTL");
        let shape = ftl.geometry();
        let ids: Vec<_> = ftl.open_chunks().map(|(chunk, ..)| shape.pu_of(chunk).get()).collect();
        assert!(!ids.is_empty() && ids.iter().all(|pu| units.contains(pu)), "{app}: {ids:?}");
    }
}

#[test]
fn data_of_each_application_survives_power_cuts() {
    let mut drive = Controller::new(with_program(&both())).expect("a drive");
    for round in 0..3u8 {
        let (mut db, mut log) = (host_of(&mut drive, "db"), host_of(&mut drive, "log"));
        for lba in 0..40 {
            if round > 0 {
                assert_eq!(read(&mut drive, &mut db, lba), Ok(lba as u8 + round - 1));
                assert_eq!(read(&mut drive, &mut log, lba), Ok(lba as u8 + 100 + round - 1));
            }
            assert_eq!(write(&mut drive, &mut db, lba, lba as u8 + round), Status::SUCCESS);
            assert_eq!(write(&mut drive, &mut log, lba, lba as u8 + 100 + round), Status::SUCCESS);
        }
        assert_eq!(io(&mut drive, &mut db, Sqe::flush(1), 0), Status::SUCCESS);
        assert_eq!(io(&mut drive, &mut log, Sqe::flush(u32::MAX), 0), Status::SUCCESS);
        check(&drive);
        drive = drive.power_cut().power_on().expect("it recovers");
        check(&drive);
    }
}

#[test]
fn other_blocks_are_not_addressed() {
    let mut drive = Controller::new(with_program(&both())).expect("a drive");
    let (mut db, mut log) = (host_of(&mut drive, "db"), host_of(&mut drive, "log"));
    let blocks = drive.application_ftl(0).expect("an FTL").sectors();
    assert_eq!(write(&mut drive, &mut log, 5, 77), Status::SUCCESS);
    let outside = Status::LBA_OUT_OF_RANGE.do_not_retry();
    for lba in [blocks, blocks + 5, 2 * blocks - 1, u64::MAX] {
        assert_eq!(write(&mut drive, &mut db, lba, 1), outside);
        assert_eq!(read(&mut drive, &mut db, lba), Err(outside));
        let trim = [DsmRange::new(lba, 1)];
        let bytes: Vec<u8> = trim.iter().flat_map(|range| range.to_bytes()).collect();
        db.memory.write(0, &bytes);
        assert_eq!(io(&mut drive, &mut db, Sqe::dataset_management(1, 1, true), 16), outside);
        let scan = RuleCommand::new(RuleCommandKind::Ack, lba, 1);
        assert_eq!(io(&mut drive, &mut db, scan.to_sqe(1), 0), outside);
    }
    assert_eq!(read(&mut drive, &mut log, 5), Ok(77));
    // A host that is attached to no application has none of the blocks.
    let mut other = Host::with_queue(&mut drive);
    let denied = Status::RULE_DENIED.do_not_retry();
    assert_eq!(write(&mut drive, &mut other, 5, 1), denied);
    assert_eq!(read(&mut drive, &mut other, 5), Err(denied));
    for sqe in [Sqe::flush(1), Sqe::flush(u32::MAX)] {
        assert_eq!(io(&mut drive, &mut other, sqe, 0), denied);
    }
    check(&drive);
}

#[test]
fn hosts_are_attached_to_applications() {
    let mut drive = Controller::new(with_program(&both())).expect("a drive");
    let error = drive.application("Log").expect_err("no such application");
    assert_eq!(error.to_string(), "the rule program has no application Log: it has db, log");
    let attach = |drive: &mut Controller, scope| {
        let port: Arc<Port> = Port::new().expect("a port");
        drive.attach_as(&port, AccessPolicy::for_scope(scope))
    };
    for scope in [
        AccessScope::Application { app: 2 },
        AccessScope::Application { app: u32::MAX },
        AccessScope::All,
        AccessScope::Sectors { first: 0, count: 1 },
    ] {
        let error = attach(&mut drive, scope).expect_err("refused");
        assert!(matches!(error, AttachError::Scope { .. }), "{error}");
        assert!(error.to_string().contains("applications"), "{error}");
    }
    // The application of a drive with one is its whole space; a drive without rules has none.
    let mut one = Controller::new(super::harness::ruled(STORE_AND_LOAD)).expect("a drive");
    let mut host = host_of(&mut one, "db");
    assert_eq!(write(&mut one, &mut host, 3, 9), Status::SUCCESS);
    assert_eq!(read(&mut one, &mut host, 3), Ok(9));
    let mut plain = Controller::new(config()).expect("a drive");
    let error = attach(&mut plain, AccessScope::Application { app: 0 }).expect_err("refused");
    assert!(error.to_string().contains("no rules"), "{error}");
    assert!(matches!(plain.application("db"), Err(DriveRulesError::NoRules)));
}

#[test]
fn a_program_has_the_applications_of_the_drive() {
    let refused = |source: &str| match Controller::new(with_program(source)) {
        Err(DriveError::Rules(error)) => error,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("the drive takes the program"),
    };
    let error =
        refused("app a { units = 0-3, spare = 0.1 }\napp b { units = 5-15, spare = 0.1 }\n");
    assert_eq!(error, DriveRulesError::UnownedUnit { unit: 4, units: 16 });
    let error = refused("app a { units = 0-7, spare = 0.1 }\napp b { units = 8-15, spare = 3 }\n");
    assert!(matches!(error, DriveRulesError::Capacity { ref app, .. } if app == "b"), "{error}");
    let durable = format!("{APPS}table db.seen: u8[4] durable\n");
    let error = refused(&durable);
    assert_eq!(error, DriveRulesError::SeveralApps { what: "durable tables" });
    let mut scrubbed = with_program(&both());
    scrubbed.controller.scrub =
        Some(MediaScrubConfig { sectors_per_sec: 100, pass_interval_min: Nanos(1_000_000) });
    let error = Controller::new(scrubbed).expect_err("refused");
    assert!(error.to_string().contains("no patrol scrub"), "{error}");
    // A program that is installed later has the same units.
    let mut drive = Controller::new(with_program(&both())).expect("a drive");
    let one = compiled("app db { units = 0-15, spare = 0.1 }\n", &config());
    let moved = compiled(
        "app db { units = 0-3, spare = 0.1 }\napp log { units = 4-15, spare = 0.1 }\n",
        &config(),
    );
    let swapped = compiled(
        "app db { units = 8-15, spare = 0.1 }\napp log { units = 0-7, spare = 0.1 }\n",
        &config(),
    );
    for program in [&one, &moved, &swapped] {
        let error = drive.install_rules(Nanos::ZERO, program).expect_err("refused");
        let units = "0-7, 8-15".to_owned();
        assert_eq!(error, DriveRulesError::OtherUnits { has: 2, units });
    }
    let mut one_app = Controller::new(super::harness::ruled(STORE_AND_LOAD)).expect("a drive");
    let error = one_app.install_rules(Nanos::ZERO, &compiled(&both(), &config()));
    assert!(matches!(error, Err(DriveRulesError::OtherUnits { has: 1, .. })), "{error:?}");
    assert_eq!(nand(one_app.config()).geometry.total_pus(), 16);
}

#[test]
fn each_application_has_its_own_rules() {
    // `log` has no rule for writes: they are misses of its host alone.
    let load = rules_of("log", STORE_AND_LOAD);
    let load = &load[load.find("rule log_load").expect("a rule")..];
    let source = format!("{APPS}{}{load}", rules_of("db", STORE_AND_LOAD));
    let mut drive = Controller::new(with_program(&source)).expect("a drive");
    let (mut db, mut log) = (host_of(&mut drive, "db"), host_of(&mut drive, "log"));
    assert_eq!(write(&mut drive, &mut db, 1, 5), Status::SUCCESS);
    let miss = write(&mut drive, &mut log, 1, 6);
    assert!(miss.is(Status::RULE_MISS), "{miss}");
    assert_eq!(read(&mut drive, &mut log, 1), Ok(0));
    assert_eq!(read(&mut drive, &mut db, 1), Ok(5));
    // After an installation it has one, and blocks that were written stay.
    let program = compiled(&both(), &config());
    assert_eq!(drive.install_rules(log.now, &program).expect("installed"), 0);
    assert_eq!(write(&mut drive, &mut log, 1, 7), Status::SUCCESS);
    assert_eq!((read(&mut drive, &mut log, 1), read(&mut drive, &mut db, 1)), (Ok(7), Ok(5)));
    check(&drive);
}

/// The media have the data of applications on their units: others would find it by chance.
#[test]
fn media_with_data_of_other_applications_are_refused() {
    let folder = tempfile::tempdir().expect("a directory");
    let image = folder.path().join("drive.img");
    let on_image = |source: &str| {
        let mut drive = with_program(source);
        let media::MediaConfig::Nand(nand) = &mut drive.media else { panic!("it has flash") };
        nand.data = media::DataStore::File(image.clone());
        drive
    };
    let mut drive = Controller::new(on_image(&both())).expect("a drive");
    let mut db = host_of(&mut drive, "db");
    assert_eq!(write(&mut drive, &mut db, 3, 7), Status::SUCCESS);
    assert_eq!(io(&mut drive, &mut db, Sqe::flush(1), 0), Status::SUCCESS);
    drop((db, drive));
    let moved = both().replace("0-7", "0-3").replace("8-15", "4-15");
    let one = format!(
        "app db {{ units = 0-15, spare = 0.1 }}\ntable map: addr[db.sectors] durable\n{STORE_AND_LOAD}{RECLAIM}"
    );
    for other in [moved, one] {
        match Controller::new(on_image(&other)) {
            Err(DriveError::Rules(DriveRulesError::OtherData)) => {}
            other => panic!("{:?}", other.map(|_| "a drive")),
        }
    }
    let mut drive = Controller::new(on_image(&both())).expect("the same drive");
    let mut db = host_of(&mut drive, "db");
    assert_eq!(read(&mut drive, &mut db, 3), Ok(7));
}

#[test]
fn each_application_has_its_own_counters() {
    // Only the reads of `log` have no rule. Nothing is parked.
    let store_only = STORE_AND_LOAD.split("rule load").next().expect("a rule");
    let of_db = rules_of("db", &format!("{STORE_AND_LOAD}{RECLAIM}"));
    let of_log = rules_of("log", &format!("{store_only}{RECLAIM}"));
    let counted = "table db.seen: u64[1] volatile\n\
        rule count priority 4 when channel.app == db and header.write\n  \
        set seen[0] = seen[0] + 1\n  do continue\n";
    let mut drive =
        Controller::new(with_program(&format!("{APPS}{of_db}{of_log}"))).expect("a drive");
    let (mut db, mut log) = (host_of(&mut drive, "db"), host_of(&mut drive, "log"));
    let blocks = drive.application_ftl(0).expect("an FTL").sectors();
    for round in 0..3u64 {
        for at in 0..blocks {
            let lba = at * [1, 7, 11][round as usize] % blocks;
            assert_eq!(write(&mut drive, &mut db, lba, 1), Status::SUCCESS);
        }
    }
    for lba in 0..10 {
        assert_eq!(write(&mut drive, &mut log, lba, 2), Status::SUCCESS);
        assert_eq!(read(&mut drive, &mut log, lba), Err(Status::RULE_MISS.do_not_retry()));
    }
    let stats = drive.stats().rules.expect("rules");
    let [first, second] = &stats.apps[..] else { panic!("{stats:?}") };
    assert_eq!((first.name.as_str(), second.name.as_str()), ("db", "log"));
    assert_eq!((first.inputs, second.inputs), (3 * blocks, 20));
    assert_eq!((first.misses, second.misses, stats.misses), (0, 10, 10));
    assert!(first.victims > 0 && first.polls >= first.victims, "{stats:?}");
    assert_eq!((second.polls, second.victims), (0, 0));
    assert_eq!(first.ops + second.ops, stats.ops);
    assert_eq!(first.inputs + second.inputs, stats.inputs);
    // Another program goes on with the counters, also one whose rules are executed for each command.
    let other = compiled(&format!("{APPS}{counted}{of_db}{of_log}"), &config());
    drive.install_rules(log.now, &other).expect("a program");
    db.now = log.now;
    for lba in 0..5 {
        assert_eq!(write(&mut drive, &mut db, lba, 1), Status::SUCCESS);
    }
    let later = drive.stats().rules.expect("rules");
    assert_eq!((later.apps[0].inputs, later.apps[1].inputs), (3 * blocks + 5, 20));
    assert!(later.apps[0].ops > first.ops && later.apps[1].ops == second.ops, "{later:?}");
    drive.reset_stats();
    assert_eq!(write(&mut drive, &mut log, 1, 3), Status::SUCCESS);
    let after = drive.stats().rules.expect("rules");
    let counts: Vec<_> = after.apps.iter().map(|app| (app.inputs, app.misses, app.polls)).collect();
    assert_eq!(counts, [(0, 0, 0), (1, 0, 0)]);
    check(&drive);
}
