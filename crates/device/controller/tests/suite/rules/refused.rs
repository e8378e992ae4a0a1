//! Drives that do not take a rule program.

use controller::{
    Controller, DriveConfig, DriveError, DriveRulesConfig, DriveRulesError, NamespaceLayout,
    PersonalityKind,
};
use rules::{PlacementStream, RuleFeature, VerifyError};

use super::harness::{APP, STORE_AND_LOAD, compiled, ruled, settings};
use crate::block_commands::harness::config;

fn refused(config: DriveConfig) -> DriveError {
    match Controller::new(config) {
        Err(error) => error,
        Ok(_) => panic!("the drive takes the program"),
    }
}

fn with_rules(rules: DriveRulesConfig) -> DriveRulesError {
    match refused(DriveConfig { rules: Some(rules), ..config() }) {
        DriveError::Rules(error) => error,
        error => panic!("{error}"),
    }
}

#[test]
fn the_drive_verifies_what_it_is_sent() {
    let ruled = ruled(STORE_AND_LOAD).rules.expect("rules");
    for bytes in [Vec::new(), vec![0; 100], ruled.program[..ruled.program.len() - 1].to_vec()] {
        let error = with_rules(DriveRulesConfig { program: bytes, ..settings() });
        assert!(matches!(error, DriveRulesError::Decode(_)), "{error}");
    }
    let error = with_rules(DriveRulesConfig { ops: 2, ..ruled });
    let DriveRulesError::Verify(error) = error else { panic!("{error}") };
    assert!(matches!(*error, VerifyError::Cost { cost: 3, budget: 2, .. }), "{error}");
    let empty = compiled("app db { units = 0-15 }\n", &config());
    assert!(
        Controller::new(DriveConfig {
            rules: Some(DriveRulesConfig { program: empty, ..settings() }),
            ..config()
        })
        .is_ok()
    );
}

#[test]
fn programs_that_need_more_are_refused() {
    let program =
        |source: &str| DriveRulesConfig { program: compiled(source, &config()), ..settings() };
    let error = with_rules(program("app db { units = 0-14 }\n"));
    assert!(matches!(error, DriveRulesError::Units { last: 14, units: 16, .. }), "{error}");
    let error = with_rules(program("app db { units = 0-15, spare = 3 }\n"));
    assert!(matches!(error, DriveRulesError::Capacity { .. }), "{error}");
    let error = with_rules(program("\n"));
    assert_eq!(error, DriveRulesError::NoApp);
    for (stream, name) in [(PlacementStream::Hot, "db.hot"), (PlacementStream::Gc, "db.gc")] {
        let source = STORE_AND_LOAD.replace("db.host", name);
        let need = match with_rules(program(&format!("{APP}{source}"))) {
            DriveRulesError::NoHotStream(need) if stream == PlacementStream::Hot => need,
            DriveRulesError::NotExecuted(need) if stream == PlacementStream::Gc => need,
            error => panic!("{error}"),
        };
        assert_eq!((need.part.as_str(), need.location.line), ("store", 3));
        assert_eq!(need.feature, RuleFeature::Place(stream));
    }
}

#[test]
fn rules_need_a_drive_that_manages_its_flash_alone() {
    let ruled = ruled(STORE_AND_LOAD);
    let rules = ruled.rules.clone().expect("rules");
    let mut namespaces = ruled.clone();
    namespaces.controller.namespaces =
        NamespaceLayout::of_sizes(&[Some(1 << 20), None]).expect("sizes");
    let engines = |engines| DriveConfig {
        rules: Some(DriveRulesConfig { engines, ..rules.clone() }),
        ..ruled.clone()
    };
    for (config, part) in [
        (DriveConfig { personality: PersonalityKind::OpenChannel, ..ruled.clone() }, "manage"),
        (DriveConfig { lba_bytes: Some(512), ..ruled.clone() }, "smaller"),
        (namespaces, "namespaces"),
        (engines(0), "0 engines"),
        (engines(65), "65 engines"),
    ] {
        let error = refused(config);
        assert!(matches!(error, DriveError::Config { .. }), "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn namespaces_of_a_drive_with_rules_cannot_be_changed() {
    let mut drive = Controller::new(ruled(STORE_AND_LOAD)).expect("a drive");
    let request = controller::NamespaceRequest::Delete { nsid: Some(1) };
    let error = drive.change_namespaces(time::Nanos::ZERO, request);
    assert!(matches!(error, Err(controller::NamespaceError::NotManaged)), "{error:?}");
    assert!(controller::SavedDrive::new(&drive).is_none(), "tables are not saved");
}
