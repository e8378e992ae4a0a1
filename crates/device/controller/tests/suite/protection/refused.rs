//! Drives that cannot have protection information, faults that need it, and Format NVM.

use controller::{
    Controller, CorruptedPart, DriveConfig, DriveError, Fault, FaultError, FaultSector,
    PersonalityKind,
};
use media::{DataStore, MediaConfig};
use nvme::{AdminCommand, ProtectionType, SecureErase, Status};

use super::harness::{Bench, config};
use crate::hostile::host::{block_config, configs};

fn problem(config: DriveConfig) -> String {
    match Controller::new(config) {
        Err(DriveError::Config { what, allowed }) => format!("{what}: {allowed}"),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("the drive exists"),
    }
}

#[test]
fn drives_that_cannot_have_protection_information_say_why() {
    let with = |change: &dyn Fn(&mut DriveConfig)| {
        let mut config = config(4096);
        change(&mut config);
        problem(config)
    };
    let open_channel = with(&|config| config.personality = PersonalityKind::OpenChannel);
    assert!(open_channel.contains("the host manages the out-of-band bytes"), "{open_channel}");
    for media in configs().into_iter().filter(|c| !matches!(c.media, MediaConfig::Nand(_))) {
        let text = problem(DriveConfig { protection: Some(ProtectionType::Type1), ..media });
        assert!(text.contains("no out-of-band bytes"), "{text}");
    }
    let no_data = with(&|config| {
        let MediaConfig::Nand(nand) = &mut config.media else { unreachable!() };
        nand.data = DataStore::None;
    });
    assert!(no_data.contains("stores no data"), "{no_data}");
    let small = with(&|config| config.lba_bytes = Some(512));
    assert!(small.contains("oob_bytes is 24") && small.contains("80"), "{small}");
    for kind in [ProtectionType::Type2, ProtectionType::Type3] {
        let text = with(&|config| config.protection = Some(kind));
        assert!(text.contains("type 1"), "{text}");
    }
}

#[test]
fn only_protection_information_that_exists_is_corrupted() {
    let mut drive = Controller::new(block_config()).unwrap();
    for part in [CorruptedPart::Guard, CorruptedPart::ReferenceTag] {
        let fault = Fault::CorruptedData { sector: FaultSector::lba(0), part };
        let refused = drive.inject_fault(time::Nanos::ZERO, fault);
        assert_eq!(refused, Err(FaultError::NoProtection));
        assert!(FaultError::NoProtection.to_string().contains("type1"));
    }
}

/// A format keeps the settings: others than the present ones are refused.
#[test]
fn a_format_does_not_change_the_settings() {
    for (config, present) in [(config(512), 2), (block_config(), 0)] {
        let mut b = Bench::new(config);
        let format = |lba_format, protection| {
            let erase = SecureErase::None;
            AdminCommand::FormatNvm { nsid: 1, lba_format, protection, erase }.to_sqe()
        };
        for protection in 0..32 {
            let status = b.host.admin(&mut b.drive, format(0, protection)).status;
            match protection == present {
                true => assert_eq!(status, Status::SUCCESS),
                false => assert_eq!(status, Status::INVALID_FORMAT.do_not_retry()),
            }
        }
        let other = b.host.admin(&mut b.drive, format(1, present)).status;
        assert_eq!(other, Status::INVALID_FORMAT.do_not_retry());
    }
}
