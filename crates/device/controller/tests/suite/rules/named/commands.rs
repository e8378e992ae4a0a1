//! Commands on sectors with names, and commands that a drive with names does not have.

// guarantee: B-104

use controller::{Controller, DriveError, DriveRulesError, MediaScrubConfig};
use media::DataStore;
use mem::PAGE_BYTES;
use nvme::{
    AdminCommand, AsyncEvent, CopyRange, DsmRange, IoCommand, NamedCommand, NamedOp, RuleCommand,
    RuleCommandKind, RuleEventLog, SecureErase, Sqe, Status, log_page, opcode,
};
use rng::Rng;
use time::Nanos;

use super::super::harness::{demo_on, program_on, with_op};
use super::{NOT_FOUND, NamingHost, base, check, config, nand_of};
use crate::block_commands::harness::config as block_config;
use crate::hostile::host::Host;

fn new() -> (Controller, NamingHost) {
    let mut drive = Controller::new(config()).unwrap();
    let host = NamingHost::new(Host::with_queue(&mut drive));
    (drive, host)
}

#[test]
fn a_write_returns_a_name_and_other_names_return_no_data() {
    let (mut drive, mut host) = new();
    let drive = &mut drive;
    let tags: Vec<u64> = (0..20).map(|_| host.write(drive)).collect();
    host.check(drive);
    let name = host.sectors[&tags[3]].name;
    // Another tag, names that were never given, and names past the end.
    let foreign = host.read(drive, name, tags[4]).expect_err("the tag of another sector");
    assert!(foreign.is(Status::APPLICATION_TAG_CHECK), "{foreign}");
    assert_eq!(host.read(drive, name + (1 << 50), tags[3]), Err(NOT_FOUND));
    assert_eq!(host.read(drive, name ^ (1 << 40), tags[3]), Err(NOT_FOUND));
    for (name, expected) in
        [((1 << 62) - 1, Status::LBA_OUT_OF_RANGE), (u64::MAX, Status::RULE_BAD_ADDRESS)]
    {
        let past = host.read(drive, name, tags[3]).expect_err("past the end");
        assert!(past.is(expected), "{past}");
    }
    assert_eq!(host.read(drive, 0, 0), Err(NOT_FOUND));
    // A freed name.
    host.free(drive, tags[3]);
    assert_eq!(host.read(drive, name, tags[3]), Err(NOT_FOUND));
    assert_eq!(host.run(drive, NamedCommand::free(name)).0, NOT_FOUND);
    host.check(drive);
    let stats = drive.stats();
    assert_eq!(stats.rules.unwrap().misses, 0);
    assert!(stats.writes >= 20 && stats.bytes_written == 4096 * stats.writes);
}

#[test]
fn moved_sectors_have_new_names_and_old_ones_are_forwarded() {
    let (mut drive, mut host) = new();
    let drive = &mut drive;
    let mut rng = Rng::new(1);
    let live = drive.sectors() * 3 / 4;
    host.fill(drive, live);
    for _ in 0..40 {
        host.churn(drive, &mut rng, live / 40);
        // Old names lead to the data before the host knows the new ones.
        host.check(drive);
        host.take_moves(drive, true);
    }
    host.check(drive);
    assert!(host.moved > 100, "{} moves", host.moved);
    // To acknowledge twice, or what was never moved, changes nothing.
    let name = host.sectors[&host.any(&mut rng)].name;
    for _ in 0..2 {
        assert_eq!(host.acknowledge(drive, name), Status::SUCCESS);
    }
    host.check(drive);
}

#[test]
fn an_engine_takes_time_for_moved_sectors_too() {
    let mut ends = Vec::new();
    for op in [0, 1_000] {
        let mut drive = Controller::new(with_op(config(), Nanos(op))).unwrap();
        let mut host = NamingHost::new(Host::with_queue(&mut drive));
        let (drive, mut rng) = (&mut drive, Rng::new(11));
        let live = drive.sectors() * 3 / 4;
        host.fill(drive, live);
        while host.moved < 100 {
            host.churn(drive, &mut rng, 10);
            host.take_moves(drive, true);
        }
        host.check(drive);
        let busy = drive.stats().rules.expect("rules").engine_busy;
        assert_eq!(busy > Nanos::ZERO, op > 0);
        ends.push(host.host.now);
    }
    assert!(ends[0] < ends[1], "{ends:?}");
}

#[test]
fn a_host_is_told_of_moves_by_an_event() {
    let (mut drive, mut host) = new();
    let drive = &mut drive;
    let mut request = Sqe::new(opcode::admin::ASYNC_EVENT_REQUEST, 0);
    request.cid = 999.into();
    host.host.admin.0.push(&request).unwrap();
    host.host.admin.0.ring();
    let mut rng = Rng::new(7);
    let live = drive.sectors() * 3 / 4;
    host.fill(drive, live);
    let mut event = host.host.admin.1.pop();
    while event.is_none() {
        host.churn(drive, &mut rng, 1);
        event = host.host.admin.1.pop();
    }
    let event = event.expect("an event");
    let told = AsyncEvent { kind: AsyncEvent::VENDOR, info: 0x81, log_page: log_page::RULE_EVENTS };
    assert_eq!((event.cid, event.result), (999, told.to_dword().into()));
    host.host.admin.1.release();
    host.host.admin.0.update_head(event.sq_head);
    host.take_moves(drive, true);
    assert!(host.moved > 0);
    // The part of the page without its end removes nothing.
    while host.moved < 200 {
        host.churn(drive, &mut rng, 10);
        let bytes = RuleEventLog::BYTES / 2;
        let half = host.log(drive, log_page::RULE_EVENTS, bytes, 0);
        assert_eq!(host.log(drive, log_page::RULE_EVENTS, bytes, 0), half);
        host.take_moves(drive, true);
    }
    host.check(drive);
}

#[test]
fn a_host_that_never_acknowledges_keeps_its_data_and_learns_that_the_drive_is_full() {
    let (mut drive, mut host) = new();
    let drive = &mut drive;
    let mut rng = Rng::new(3);
    let live = drive.sectors() * 3 / 4;
    host.fill(drive, live);
    let (mut writes, mut status) = (0, Status::SUCCESS);
    while status == Status::SUCCESS {
        let tag = host.any(&mut rng);
        host.free(drive, tag);
        let (now, tag, sector) = host.try_write(drive);
        status = now;
        if status == Status::SUCCESS {
            host.sectors.insert(tag, sector);
        }
        writes += 1;
        assert!(writes < 40 * live, "it never ends");
    }
    assert!(status.is(Status::CAPACITY_EXCEEDED), "{status}");
    assert!(writes > live / 4, "forwards last for more than {writes} writes");
    host.check(drive);
    // Writes go on when the host acknowledges.
    host.take_moves(drive, true);
    for _ in 0..20 {
        host.churn(drive, &mut rng, live / 10);
        host.take_moves(drive, true);
    }
    host.check(drive);
}

#[test]
fn commands_with_logical_blocks_are_refused() {
    let (mut drive, mut host) = new();
    let drive = &mut drive;
    host.fill(drive, 100);
    let sectors = drive.sectors();
    let (slba, nlb) = (3, 2);
    let mut commands = vec![
        Sqe::read(1, 0, 1),
        Sqe::read(1, sectors, 1),
        Sqe::write(1, 0, 1, false),
        IoCommand::WriteZeroes { slba, nlb, fua: false, deallocate: true }.to_sqe(1),
        IoCommand::WriteZeroes { slba, nlb, fua: true, deallocate: false }.to_sqe(1),
    ];
    let mut trim = Sqe::new(opcode::io::DATASET_MANAGEMENT, 1);
    (trim.cdw10, trim.cdw11) = (0.into(), 4.into());
    host.host.memory.write(0, &DsmRange::new(0, 4).to_bytes());
    commands.push(trim);
    for mut sqe in commands {
        let opcode = sqe.opcode;
        sqe.set_sgl(host.host.block(0, 8192));
        let status = host.host.io(drive, sqe).status;
        assert!(!status.is_success(), "{opcode:#x}: {status}");
        check(drive);
    }
    let erase = SecureErase::default();
    let format = AdminCommand::FormatNvm { nsid: 1, lba_format: 0, protection: 0, erase };
    assert!(host.host.admin(drive, format.to_sqe()).status.is(Status::INVALID_OPCODE));
    // No block is mapped.
    let status = IoCommand::LbaStatus { slba: 0, nlb: 64, max_descriptors: 8 }.to_sqe(1);
    for mut sqe in
        [status, AdminCommand::GetLbaStatus { nsid: 1, slba: 0, nlb: 64, bytes: 4096 }.to_sqe()]
    {
        sqe.set_sgl(host.host.block(0, 4096));
        let is_io = sqe.opcode == status.opcode;
        let _ = if is_io { host.host.io(drive, sqe) } else { host.host.admin(drive, sqe) };
        check(drive);
    }
    host.check(drive);
}

#[test]
fn drives_without_names_have_no_such_commands() {
    let with_a_map = demo_on(base(), "page.rules");
    for (config, is_known) in [(config(), true), (with_a_map, false), (block_config(), false)] {
        let mut drive = Controller::new(config).unwrap();
        let mut host = NamingHost::new(Host::with_queue(&mut drive));
        let page = host.log(&mut drive, log_page::EFFECTS, 4096, 0);
        for command in [NamedCommand::write(1), NamedCommand::read(1, 1), NamedCommand::free(1)] {
            let (status, _) = host.run(&mut drive, command);
            assert_eq!(!status.is(Status::INVALID_OPCODE), is_known, "{command:?}: {status}");
            let effects = page[1024 + 4 * usize::from(command.op.opcode())];
            let expected = if command.op == NamedOp::Read { 1 } else { 3 };
            assert_eq!(effects, if is_known { expected } else { 0 }, "{command:?}");
        }
    }
}

#[test]
fn random_commands_do_no_harm() {
    for seed in 0..60 {
        let (mut drive, mut host) = new();
        let (drive, rng) = (&mut drive, &mut Rng::new(seed));
        host.fill(drive, 50 + rng.below(200));
        for _ in 0..150 {
            let mut number = || match rng.below(4) {
                0 => rng.below(4),
                1 => rng.below(2000),
                2 => host.sectors.values().nth(rng.below(20) as usize).map_or(0, |s| s.name),
                _ => rng.below(u64::MAX),
            };
            let (slba, arg0, arg1) = (number(), number(), number());
            let nlb = 1 + rng.below(8) as u32;
            let fua = rng.chance(0.5);
            let mut sqe = match rng.below(12) {
                0 => Sqe::read(1, slba, nlb),
                1 => Sqe::write(1, slba, nlb, fua),
                2 => IoCommand::WriteZeroes { slba, nlb, fua, deallocate: !fua }.to_sqe(1),
                3 => IoCommand::WriteUncorrectable { slba, nlb }.to_sqe(1),
                4 => {
                    host.host.memory.write(0, &CopyRange::new(slba, nlb).to_bytes());
                    let mut copy = Sqe::new(opcode::io::COPY, 1);
                    (copy.cdw10, copy.cdw11) = ((arg0 as u32).into(), 0.into());
                    copy
                }
                5 => Sqe::flush(1),
                6 => {
                    host.host.memory.write(0, &DsmRange::new(slba, nlb).to_bytes());
                    let mut trim = Sqe::new(opcode::io::DATASET_MANAGEMENT, 1);
                    trim.cdw11 = 4.into();
                    trim
                }
                7 => {
                    let kind = [RuleCommandKind::Ack, RuleCommandKind::Get][usize::from(fua)];
                    RuleCommand { arg0, arg1, ..RuleCommand::new(kind, slba, nlb) }.to_sqe(1)
                }
                8 => {
                    let mut verify = Sqe::read(1, slba, nlb);
                    verify.opcode = opcode::io::VERIFY;
                    verify
                }
                9 => {
                    let mut compare = Sqe::read(1, slba, nlb);
                    compare.opcode = opcode::io::COMPARE;
                    compare
                }
                10 => NamedCommand { op: NamedOp::Read, arg0, arg1 }.to_sqe(1),
                _ => {
                    // A name that the host does not have.
                    let own = host.sectors.values().any(|sector| sector.name == arg0);
                    let name = if own { u64::MAX } else { arg0 };
                    NamedCommand { op: NamedOp::Free, arg0: name, arg1 }.to_sqe(1)
                }
            };
            sqe.set_sgl(host.host.block(0, nlb * PAGE_BYTES as u32));
            host.host.submit(sqe);
            host.host.drain(drive);
            assert!(host.host.reap().is_some(), "seed {seed}: the command completes");
            check(drive);
            if rng.chance(0.2) {
                host.write(drive);
            }
        }
        host.check(drive);
    }
}

#[test]
fn a_drive_without_the_means_for_names_is_refused_with_the_reason() {
    let refused = |config| match Controller::new(config) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("the drive is accepted"),
    };
    let fetching = "app db { units = 0-15, spare = 0.1 }\n\
        rule store when channel.app == db and header.write\n  \
        do header.addr = next_addr(db.host); header.tag = header.arg0; insert lun\n\
        rule find when channel.app == db and header.op == get\n  \
        do fetch r: R at header.lba; complete ok value r.word\n\
        rule moved when moved(db) do complete ok\n";
    let declared = fetching.replacen("rule", "record R = { word: u64 }\nrule", 1);
    let fetching = program_on(base(), &declared, 1 << 20);
    assert!(refused(fetching).contains("fetch sectors"), "fetch");
    let untold = program_on(
        base(),
        &declared
            .replace(" and header.op == get", " and header.op == user2")
            .replace("do fetch r: R at header.lba; complete ok value r.word", "do complete ok")
            .replace("rule moved when moved(db) do complete ok\n", ""),
        1 << 20,
    );
    assert!(refused(untold).contains("`moved(db)`"), "untold");
    // Write units of one sector.
    let units = demo_on(controller::DriveConfig { ..small_units() }, "nameless.rules");
    assert!(refused(units).contains("write unit"), "units");
    let mut without_data = config();
    nand_of(&mut without_data).data = DataStore::None;
    assert!(refused(without_data).contains("media without data"));
    let mut scrub = config();
    scrub.controller.scrub =
        Some(MediaScrubConfig { sectors_per_sec: 100, pass_interval_min: Nanos(1_000_000) });
    assert!(refused(scrub).contains("patrol scrub"));
    let small = controller::DriveConfig { lba_bytes: Some(512), ..config() };
    assert!(refused(small).contains("smaller than the sectors"));
    let mut atomic = config();
    atomic.ftl.atomic_writes = true;
    let atomic = refused(atomic);
    assert!(atomic.contains("exclude atomic"), "{atomic}");
    let mut cached = config();
    cached.ftl.map_cache_sectors = 1 << 16;
    let cached = refused(cached);
    assert!(cached.contains("exclude"), "{cached}");
}

fn small_units() -> controller::DriveConfig {
    let mut config = block_config();
    config.ftl.owner_bytes = 1 << 18;
    config
}

#[test]
fn programs_with_and_without_names_do_not_replace_each_other() {
    let mut drive = Controller::new(config()).unwrap();
    let logical = demo_on(base(), "page.rules").rules.expect("rules").program;
    let error = drive.install_rules(Nanos::ZERO, &logical).expect_err("logical addresses");
    assert!(matches!(error, DriveRulesError::OtherAddresses { is_named: true }), "{error}");
    let named = config().rules.expect("rules").program;
    assert_eq!(drive.install_rules(Nanos::ZERO, &named).expect("the same program"), 0);
    let mut drive = Controller::new(demo_on(base(), "page.rules")).unwrap();
    let error = drive.install_rules(Nanos::ZERO, &named).expect_err("names");
    assert!(matches!(error, DriveRulesError::OtherAddresses { is_named: false }), "{error}");
}

#[test]
fn media_with_data_of_the_other_kind_are_refused() {
    let folder = tempfile::tempdir().expect("a directory");
    let on_image = |mut config: controller::DriveConfig, name: &str| {
        nand_of(&mut config).data = DataStore::File(folder.path().join(name));
        config
    };
    let logical = || demo_on(base(), "page.rules");
    for (first, other, was_named) in [(config(), logical(), true), (logical(), config(), false)] {
        let name = format!("{was_named}.img");
        let mut drive = Controller::new(on_image(first, &name)).unwrap();
        let mut host = NamingHost::new(Host::with_queue(&mut drive));
        match was_named {
            true => host.fill(&mut drive, 8),
            false => host.host.check_serves(&mut drive),
        }
        drop((host, drive));
        match Controller::new(on_image(other, &name)) {
            Err(DriveError::Rules(DriveRulesError::OtherAddresses { is_named })) => {
                assert_eq!(is_named, was_named);
            }
            other => panic!("{:?}", other.map(|_| "a drive")),
        }
    }
}
