//! Data that is divided among applications belongs to this division: other ones are refused.

use controller::{Controller, DriveConfig, DriveError, DriveRulesError};
use nvme::{Sqe, Status};
use rules::VerifyError;
use rules_lang::{CompileOptions, RuleSourceProblem, compile};
use time::Nanos;

use super::{THIN, blocks_of, both, check};
use crate::block_commands::harness::config;
use crate::rules::applications::{host_of, io, read, rules_of, with_program, write};
use crate::rules::harness::{RECLAIM, STORE_AND_LOAD, compiled, nand, settings};

fn refused(config: DriveConfig) -> DriveRulesError {
    match Controller::new(config) {
        Err(DriveError::Rules(error)) => error,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("the drive takes the program"),
    }
}

// guarantee: D-69
#[test]
fn the_drive_verifies_quotas_itself() {
    let encoded = |source: &str| {
        let options =
            CompileOptions { grant: settings().grant(nand(&config())), ..Default::default() };
        let compiled = compile(std::path::Path::new("p.rules"), source.as_bytes(), &options);
        let compiled = compiled.unwrap_or_else(|error| panic!("{error}"));
        let program = compiled.program().encode();
        let error = compiled.verify(&options.grant).expect_err("refused");
        assert!(matches!(error.problem, RuleSourceProblem::Verify(_)), "{error}");
        let rules = controller::DriveRulesConfig { program, ..settings() };
        match refused(DriveConfig { rules: Some(rules), ..config() }) {
            DriveRulesError::Verify(error) => *error,
            error => panic!("{error}"),
        }
    };
    for source in [
        both().replace("quota = 0.5", "quota = 0.7"),
        both().replace(", quota = 0.5", ""),
        both().replace(", quota = 0.4", ""),
        both().replace(", quota = 0.4", "").replace(", quota = 0.5", ""),
        "app db { units = 0-15, spare = 0.1, quota = 0.4 }\n".into(),
    ] {
        let error = encoded(&source);
        assert!(matches!(error, VerifyError::Quota { .. }), "{error}");
    }
    let error = encoded(&both().replacen("0-15", "0-14", 1));
    assert!(matches!(error, VerifyError::SharedUnits { .. }), "{error}");
    let error = encoded(&format!("{}{}", both(), rules_of("log", RECLAIM)));
    let rule = "log_reclaim";
    assert!(
        matches!(error, VerifyError::SharedLines { rule: ref at, .. } if at == rule),
        "{error}"
    );
    assert!(error.location().is_some_and(|location| location.line > 4), "{error:?}");
    // A drive refuses thin applications as it refuses thick ones.
    let durable = format!("{THIN}table db.seen: u8[4] durable\n");
    let error = refused(with_program(&durable));
    assert_eq!(error, DriveRulesError::SeveralApps { what: "durable tables" });
    let error = refused(with_program(&both().replace("units = 0-15", "units = 0-14")));
    assert_eq!(error, DriveRulesError::UnownedUnit { unit: 15, units: 16 });
    let small = "app db { units = 0-15, spare = 3, quota = 0.4 }\n\
        app log { units = 0-15, spare = 0.1, quota = 0.5 }\n";
    let error = refused(with_program(small));
    assert!(matches!(error, DriveRulesError::Capacity { ref app, .. } if app == "db"), "{error}");
}

/// Programs whose division of the data is not that of [`both`].
fn others() -> Vec<String> {
    let swapped = both().replace("quota = 0.4", "quota = x").replace("quota = 0.5", "quota = 0.4");
    let thick = both()
        .replacen("0-15", "0-7", 1)
        .replacen("0-15", "8-15", 1)
        .replace(", quota = 0.4", "")
        .replace(", quota = 0.5", "");
    let one = "app db { units = 0-15, spare = 0.1 }\ntable map: addr[db.sectors] durable\n";
    let third = "app third { units = 0-15, spare = 0.1, quota = 0.1 }\n";
    vec![
        swapped.replace("quota = x", "quota = 0.5"),
        both().replace("quota = 0.4", "quota = 0.399999"),
        both().replace("quota = 0.5", "quota = 0.6"),
        format!("{third}{}", both()),
        format!("{}{third}", both()),
        thick,
        format!("{one}{STORE_AND_LOAD}"),
    ]
}

// guarantee: D-69
#[test]
fn a_program_that_is_installed_divides_the_data_as_before() {
    let mut drive = Controller::new(with_program(&both())).expect("a drive");
    let (mut db, mut log) = (host_of(&mut drive, "db"), host_of(&mut drive, "log"));
    assert_eq!(write(&mut drive, &mut db, 3, 7), Status::SUCCESS);
    assert_eq!(write(&mut drive, &mut log, 3, 8), Status::SUCCESS);
    for source in others() {
        let error = drive.install_rules(log.now, &compiled(&source, &config()));
        let Err(DriveRulesError::OtherUnits { has: 2, units }) = error else { panic!("{error:?}") };
        assert_eq!(units, "0-15 (quota 0.400000), 0-15 (quota 0.500000)");
    }
    // Other rules of the same applications are installed; a rule for writes is no more.
    let load_only = |app| {
        let rules = rules_of(app, STORE_AND_LOAD);
        rules[rules.find(&format!("rule {app}_load")).expect("a rule")..].to_owned()
    };
    let program = format!("{THIN}{}{}", rules_of("db", STORE_AND_LOAD), load_only("log"));
    assert_eq!(drive.install_rules(log.now, &compiled(&program, &config())), Ok(0));
    assert!(write(&mut drive, &mut log, 3, 9).is(Status::RULE_MISS));
    assert_eq!(write(&mut drive, &mut db, 4, 9), Status::SUCCESS);
    assert_eq!((read(&mut drive, &mut db, 3), read(&mut drive, &mut log, 3)), (Ok(7), Ok(8)));
    let mut thick = Controller::new(with_program(&others()[5])).expect("a drive");
    let error = thick.install_rules(Nanos::ZERO, &compiled(&both(), &config()));
    assert!(matches!(error, Err(DriveRulesError::OtherUnits { .. })), "{error:?}");
    check(&drive);
}

// guarantee: D-69
#[test]
fn media_whose_data_is_divided_otherwise_are_refused() {
    let folder = tempfile::tempdir().expect("a directory");
    let image = folder.path().join("drive.img");
    let on_image = |source: &str| {
        let mut drive = with_program(source);
        let media::MediaConfig::Nand(nand) = &mut drive.media else { panic!("it has flash") };
        nand.data = media::DataStore::File(image.clone());
        drive
    };
    let mut drive = Controller::new(on_image(&both())).expect("a drive");
    let (mut db, mut log) = (host_of(&mut drive, "db"), host_of(&mut drive, "log"));
    for (host, value) in [(&mut db, 7), (&mut log, 8)] {
        for lba in 0..64 {
            assert_eq!(write(&mut drive, host, lba, value), Status::SUCCESS);
        }
        assert_eq!(io(&mut drive, host, Sqe::flush(1), 0), Status::SUCCESS);
    }
    let blocks = blocks_of(&drive, 1);
    drop((db, log, drive));
    for source in others() {
        assert_eq!(refused(on_image(&source)), DriveRulesError::OtherData, "{source}");
    }
    // Quotas are parts of the capacity, so that another capacity is another division.
    for factor in [0.5, 0.9, 1.1, 1.5] {
        let mut other = on_image(&both());
        other.ftl.over_provisioning *= factor;
        match Controller::new(other) {
            Err(DriveError::Ftl(error)) => {
                assert!(error.to_string().contains("the capacity in sectors"), "{error}");
            }
            other => panic!("{:?}", other.map(|drive| blocks_of(&drive, 1))),
        }
    }
    let mut drive = Controller::new(on_image(&both())).expect("the same division");
    let (mut db, mut log) = (host_of(&mut drive, "db"), host_of(&mut drive, "log"));
    for lba in 0..64 {
        assert_eq!(read(&mut drive, &mut db, lba), Ok(7));
        assert_eq!(read(&mut drive, &mut log, lba), Ok(8));
    }
    assert_eq!(read(&mut drive, &mut log, blocks - 1), Ok(0));
    check(&drive);
}

// guarantee: D-69
#[test]
fn data_of_a_whole_drive_is_not_divided() {
    let folder = tempfile::tempdir().expect("a directory");
    let image = folder.path().join("drive.img");
    let on_image = |mut drive: DriveConfig| {
        let media::MediaConfig::Nand(nand) = &mut drive.media else { panic!("it has flash") };
        nand.data = media::DataStore::File(image.clone());
        drive
    };
    let mut drive = Controller::new(on_image(config())).expect("a drive without rules");
    let mut host = crate::hostile::host::Host::with_queue(&mut drive);
    assert_eq!(write(&mut drive, &mut host, 3, 7), Status::SUCCESS);
    assert_eq!(io(&mut drive, &mut host, Sqe::flush(1), 0), Status::SUCCESS);
    drop((host, drive));
    assert_eq!(refused(on_image(with_program(&both()))), DriveRulesError::OtherData);
    let mut drive = Controller::new(on_image(config())).expect("a drive without rules");
    let mut host = crate::hostile::host::Host::with_queue(&mut drive);
    assert_eq!(read(&mut drive, &mut host, 3), Ok(7));
}
