//! Commands to the rules of a drive on its own thread, and its tables.

// guarantee: B-106

use std::collections::BTreeMap;

use controller::{DriveConfig, DriveRulesConfig, PersonalityKind, RuleMissConfig};
use nvme::{
    NamedCommand, RuleCommand, RuleCommandKind, RuleEvent, RuleReply, RuleTableAction,
    RuleTableEntry, Status,
};
use time::Nanos;
use user_io::{DirectError, Handle, QueueConfig};

use super::harness::{config, drive, null_limits, over};

const WORDS: &str = "app db { units = 0-UNITS, spare = 0.05 }\n\
    table map: addr[db.sectors] durable\n\
    table wanted: set<u32>[1000] volatile\n\
    record Word = { value: u32 }\n\
    rule store when channel.app == db and header.write\n  \
    set map[header.lba] = next_addr(db.host)\n  do header.addr = map[header.lba]; insert lun\n\
    rule load when channel.app == db and header.read\n  \
    do header.addr = map[header.lba]; insert lun\n\
    rule search when channel.app == db and header.op == scan\n  set found = 0\n  \
    do for s in header.range up to 64 { for w: Word in s { \
    if w.value in wanted { emit w; found = found + 1 } } } complete ok value found\n";

const NAMES: &str = "app db { units = 0-UNITS, spare = 0.05 }\n\
    table forward: map<u64, u64>[512] volatile\n\
    rule store when channel.app == db and header.write\n  \
    do header.addr = next_addr(db.host); header.tag = header.arg0; insert lun\n\
    rule load when channel.app == db and header.read\n  \
    do if header.arg0 in forward { header.arg0 = forward[header.arg0] } \
    header.addr = name(header.arg0); header.tag = header.arg1; insert lun\n\
    rule free when channel.app == db and header.op == trim\n  \
    do if header.arg0 in forward { header.arg0 = forward[header.arg0] } \
    header.addr = name(header.arg0); insert lun\n\
    rule moved when moved(db)\n  set forward[header.arg0] = header.arg1\n  \
    do post migrated, header.arg0, header.arg1, header.tag\n\
    rule acknowledge when channel.app == db and header.op == ack\n  \
    do remove header.arg0 from forward; complete ok\n";

fn ruled() -> DriveConfig {
    with_program(config(PersonalityKind::Block), WORDS)
}

/// Returns a drive whose sectors have names, with write units of 4 sectors.
fn named() -> DriveConfig {
    let mut base = config(PersonalityKind::Block);
    let media::MediaConfig::Nand(nand) = &mut base.media else { panic!("no NAND") };
    (nand.geometry.planes, nand.geometry.page_bytes) = (2, 8192);
    (nand.geometry.chunks, nand.geometry.pages) = (12, 8);
    with_program(base, NAMES)
}

fn with_program(base: DriveConfig, source: &str) -> DriveConfig {
    let media::MediaConfig::Nand(nand) = &base.media else { panic!("no NAND") };
    let units = nand.geometry.total_pus() - 1;
    let settings = DriveRulesConfig {
        program: Vec::new(),
        engines: 1,
        op: Nanos::ZERO,
        ops: 1 << 24,
        table_bytes: 1 << 20,
        misses: RuleMissConfig::default(),
        idle_poll: None,
    };
    let grant = settings.grant(nand);
    let options = rules_lang::CompileOptions { grant, ..Default::default() };
    let source = source.replace("UNITS", &units.to_string());
    let verified = rules_lang::check("words.rules".as_ref(), source.as_bytes(), &options);
    let program = verified.unwrap_or_else(|error| panic!("{error}")).program().encode();
    DriveConfig { rules: Some(DriveRulesConfig { program, ..settings }), ..base }
}

fn status_of(error: DirectError) -> Option<Status> {
    match error {
        DirectError::Drive(error) => error.status(),
        error => panic!("{error}"),
    }
}

#[test]
fn a_program_fills_a_table_and_scans() {
    let device = over(ruled());
    let buffer = device.buffer(8 * 4096).unwrap();
    for at in 0..8 * 1024u32 {
        buffer.write(4 * at as usize, &at.to_le_bytes());
    }
    let queue = device.create_queue(QueueConfig { depth: 16, interrupts: false }).unwrap();
    let mut handle = Handle::new(&device, queue).unwrap();
    handle.write(0, &buffer, false).unwrap();

    let wanted = 1;
    let entries: Vec<_> =
        (0..900).map(|n| RuleTableEntry { key: (n * 7).into(), value: 0.into() }).collect();
    device.edit_rule_table(wanted, RuleTableAction::Add, &entries).unwrap();
    let values = device.rule_table_values(wanted, 0, 700).unwrap();
    assert!(values.iter().zip(0..).all(|(value, key)| *value == u64::from(key % 7 == 0)));
    let full = device.edit_rule_table(
        wanted,
        RuleTableAction::Add,
        &[RuleTableEntry { key: (1u64 << 32).into(), value: 0.into() }],
    );
    let status = status_of(full.unwrap_err());
    assert_eq!(status, Some(Status::RULE_INDEX.do_not_retry()));

    let mut rules = device.rule_queue(QueueConfig { depth: 8, interrupts: true }).unwrap();
    let scan = RuleCommand::new(RuleCommandKind::Scan, 0, 8);
    let found = device.buffer(4 * 4096).unwrap();
    let done = rules.run(scan, Some(&found)).unwrap();
    assert_eq!((done.status, done.reply), (Status::SUCCESS, RuleReply { value: 900, bytes: 3600 }));
    for n in 0..900 {
        let mut word = [0; 4];
        found.read(4 * n as usize, &mut word);
        assert_eq!(u32::from_le_bytes(word), 7 * n);
    }
    // Several commands, and a buffer that is too small.
    let small = device.buffer(64).unwrap();
    for user in 1..=7 {
        rules.submit(scan, Some(&small), user).unwrap();
    }
    assert!(rules.submit(scan, None, 8).is_err(), "the queue is full");
    let mut users = Vec::new();
    while users.len() < 7 {
        if let Some(done) = rules.reap() {
            assert_eq!(done.status, Status::RULE_OUTPUT_FULL.do_not_retry());
            assert_eq!(done.reply, RuleReply { value: 64, bytes: 64 });
            users.push(done.user);
        }
        std::thread::yield_now();
    }
    users.sort_unstable();
    assert_eq!(users, [1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn an_owner_waits_asleep_or_polling_and_no_longer_than_it_says() {
    let device = over(ruled());
    for interrupts in [true, false] {
        let mut rules = device.rule_queue(QueueConfig { depth: 8, interrupts }).unwrap();
        let limit = device.clock().now() + Nanos::from_millis(2);
        assert_eq!(rules.wait_until(limit), None, "nothing is outstanding");
        assert!(device.clock().now() > limit);
        let scan = RuleCommand::new(RuleCommandKind::Scan, 0, 8);
        for round in 0..100 {
            (0..3).for_each(|user| rules.submit(scan, None, 3 * round + user).unwrap());
            let done = (0..3).map(|_| rules.wait_until(Nanos::MAX).expect("it completes").user);
            let mut users: Vec<u64> = done.collect();
            users.sort_unstable();
            assert_eq!(users, [0, 1, 2].map(|user| 3 * round + user));
        }
    }
}

#[test]
fn a_program_keeps_the_names_of_its_sectors() {
    let device = over(named());
    let sector = device.limits().sector_bytes as usize;
    let mut rules = device.rule_queue(QueueConfig { depth: 16, interrupts: true }).unwrap();
    let buffers: Vec<_> = (0..8).map(|_| device.buffer(sector).unwrap()).collect();
    assert!(device.found_names(0, 100).unwrap().is_empty());
    let capacity = device.limits().sectors;
    let (live, mut names) = (capacity * 3 / 4 / 8 * 8, BTreeMap::new());
    let mut moved = 0;
    for tag in 0..8 * live {
        // Eight writes at a time.
        let buffer = &buffers[(tag % 8) as usize];
        buffer.write(0, &tag.to_le_bytes().repeat(sector / 8));
        rules.submit_named(NamedCommand::write(tag), Some(buffer), tag).unwrap();
        if tag % 8 != 7 {
            continue;
        }
        for _ in 0..8 {
            let done = rules.wait_until(Nanos::MAX).expect("it completes");
            assert_eq!(done.status, Status::SUCCESS);
            names.insert(done.user, done.reply.value);
        }
        loop {
            let log = device.take_rule_events().unwrap();
            assert_eq!(log.lost, 0);
            for event in &log.events {
                assert_eq!(event.kind.get(), RuleEvent::MIGRATED);
                let [old, new, tag] = event.values.map(|value| value.get());
                names.entry(tag).and_modify(|name| *name = new);
                let ack = RuleCommand::new(RuleCommandKind::Ack, 0, 1);
                let done = rules.run(RuleCommand { arg0: old, ..ack }, None).unwrap();
                assert_eq!(done.status, Status::SUCCESS);
                moved += 1;
            }
            if log.events.is_empty() {
                break;
            }
        }
        while names.len() as u64 > live {
            // In another order than they were written in.
            let at = (tag * 7919) as usize % names.len();
            let tag = *names.keys().nth(at).expect("a sector");
            let name = names.remove(&tag).expect("a sector");
            let done = rules.run_named(NamedCommand::free(name), None).unwrap();
            assert_eq!(done.status, Status::SUCCESS);
        }
    }
    assert!(moved > 0, "collection has moved nothing");
    let mut bytes = vec![0; sector];
    for (tag, name) in &names {
        let read = NamedCommand::read(*name, *tag);
        assert_eq!(rules.run_named(read, Some(&buffers[0])).unwrap().status, Status::SUCCESS);
        buffers[0].read(0, &mut bytes);
        assert_eq!(bytes, tag.to_le_bytes().repeat(sector / 8));
        let foreign = NamedCommand::read(*name, tag + 1);
        let status = rules.run_named(foreign, Some(&buffers[0])).unwrap().status;
        assert!(status.is(Status::APPLICATION_TAG_CHECK), "{status}");
    }
    // It has no logical blocks, and a read without a buffer fails.
    let queue = device.create_queue(QueueConfig { depth: 16, interrupts: false }).unwrap();
    let mut handle = Handle::new(&device, queue).unwrap();
    handle.read(0, &buffers[0]).expect_err("blocks");
    let (tag, name) = names.pop_first().expect("a sector");
    let status = rules.run_named(NamedCommand::read(name, tag), None).unwrap().status;
    assert!(!status.is_success(), "{status}");
}

#[test]
fn drives_without_rules_refuse_commands_to_them() {
    let device = drive(PersonalityKind::Block);
    let mut rules = device.rule_queue(QueueConfig { depth: 8, interrupts: false }).unwrap();
    let done = rules.run(RuleCommand::new(RuleCommandKind::Get, 0, 1), None).unwrap();
    assert_eq!(done.status, Status::INVALID_OPCODE);
    let status = status_of(device.rule_table_values(0, 0, 1).unwrap_err());
    assert_eq!(status, Some(Status::INVALID_OPCODE));
    let done = rules.run_named(NamedCommand::free(1), None).unwrap();
    assert_eq!(done.status, Status::INVALID_OPCODE);
    let status = status_of(device.take_rule_events().unwrap_err());
    assert_eq!(status, Some(Status::INVALID_LOG_PAGE));
    let status = status_of(device.found_names(0, 1).unwrap_err());
    assert_eq!(status, Some(Status::INVALID_LOG_PAGE));
    let null = user_io::IoDevice::null(null_limits(4));
    let refused = null.rule_queue(QueueConfig::default());
    assert!(matches!(refused, Err(DirectError::NoDrive { .. })), "{refused:?}");
}
