//! Broken invariants are reported by the name of their part and their own.

use media::{CellType, DataStore, ErrorModel, MediaConfig, NandConfig, NandGeometry, NandTiming};
use nvme::{PhysSector, VectorHints};
use time::Nanos;

use super::DrivePart;
use crate::controller::Personality;
use crate::nand_array::OpOwner;
use crate::nand_array::operation::SectorAddress;
use crate::{
    Controller, ControllerConfig, DriveConfig, NullConfig, OpenChannelConfig, PersonalityKind,
    PuScheduling, TransferConfig, WriteBuffer,
};

/// A drive with an attached host, and with an erase and a read in flight.
fn busy() -> Controller {
    let nand = NandConfig {
        geometry: NandGeometry {
            channels: 2,
            pus: 2,
            planes: 1,
            chunks: 32,
            pages: 16,
            page_bytes: 4096,
            sector_bytes: 4096,
            oob_bytes: 16,
        },
        cell: CellType::Slc,
        one_shot: false,
        paired_page_distance: 0,
        timing: NandTiming::uniform(Nanos(50), Nanos(500), Nanos(3000), 400_000_000),
        errors: ErrorModel::default(),
        data: DataStore::None,
        seed: 1,
    };
    let config = DriveConfig {
        name: "test".into(),
        personality: PersonalityKind::Block,
        media: MediaConfig::Nand(nand),
        controller: ControllerConfig::default(),
        pu_scheduling: PuScheduling::Fifo,
        page_register: false,
        cache_program: true,
        transfers: TransferConfig::default(),
        write_buffer: WriteBuffer::Volatile { bytes: 0 },
        ftl: ftl::FtlConfig { over_provisioning: 0.28, ..DriveConfig::default_ftl() },
        null: NullConfig::default(),
        open_channel: OpenChannelConfig::default(),
        lba_bytes: None,
        protection: None,
        pmr: None,
        rules: None,
    };
    let mut drive = Controller::new(config).expect("a valid configuration");
    drive.attach().expect("a port");
    let array = drive.array_mut().expect("a NAND drive");
    array.erase(Nanos(0), OpOwner::Scrub, VectorHints::NONE, 0);
    let sector = SectorAddress { phys: PhysSector(0), position: 0 };
    array.read(Nanos(0), OpOwner::Scrub, VectorHints::NONE, [sector].into_iter());
    assert_eq!(drive.check_invariants(), Ok(()));
    drive
}

#[test]
fn a_broken_invariant_names_its_part() {
    type Break = fn(&mut Controller);
    let plants: &[(DrivePart, &str, Break)] = &[
        (DrivePart::Commands, "commands of detached hosts are counted", |drive| {
            drive.commands.break_detached_count();
        }),
        (
            DrivePart::Commands,
            "a done command has its slot until its completion is posted",
            |drive| drive.commands.break_completed(),
        ),
        (DrivePart::Commands, "waiting changes are counted", |drive| {
            match &mut drive.personality {
                Personality::Block(drive) => drive.changes.break_waiting_count(),
                _ => unreachable!("the drive has an FTL"),
            }
        }),
        (DrivePart::Queues, "completions that wait are counted", |drive| {
            drive.queues.break_stalled_count();
        }),
        (
            DrivePart::NandArray,
            "every part in flight is in one place of a parallel unit",
            |drive| drive.array_mut().expect("a NAND drive").break_free_list(),
        ),
        (DrivePart::NandArray, "reads for host commands are counted", |drive| {
            drive.array_mut().expect("a NAND drive").pus[0].host_reads += 1;
        }),
        (DrivePart::NandArray, "only a staged program has data", |drive| {
            drive.array_mut().expect("a NAND drive").pus[1].cache.staging = 1;
        }),
    ];
    for (part, invariant, break_it) in plants {
        let mut drive = busy();
        break_it(&mut drive);
        let found = drive.check_invariants().expect_err(invariant);
        assert_eq!((found.part, found.invariant), (*part, *invariant), "{found}");
        let text = found.to_string();
        assert!(text.contains(&found.expected) && text.contains(&found.found), "{text}");
    }
}
