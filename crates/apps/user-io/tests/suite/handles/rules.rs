//! Commands to the rules of a drive on its own thread, and its tables.

use controller::{DriveConfig, DriveRulesConfig, PersonalityKind, RuleMissConfig};
use nvme::{RuleCommand, RuleCommandKind, RuleReply, RuleTableAction, RuleTableEntry, Status};
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

fn ruled() -> DriveConfig {
    let base = config(PersonalityKind::Block);
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
    let source = WORDS.replace("UNITS", &units.to_string());
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
fn drives_without_rules_refuse_commands_to_them() {
    let device = drive(PersonalityKind::Block);
    let mut rules = device.rule_queue(QueueConfig { depth: 8, interrupts: false }).unwrap();
    let done = rules.run(RuleCommand::new(RuleCommandKind::Get, 0, 1), None).unwrap();
    assert_eq!(done.status, Status::INVALID_OPCODE);
    let status = status_of(device.rule_table_values(0, 0, 1).unwrap_err());
    assert_eq!(status, Some(Status::INVALID_OPCODE));
    let null = user_io::IoDevice::null(null_limits(4));
    let refused = null.rule_queue(QueueConfig::default());
    assert!(matches!(refused, Err(DirectError::NoDrive { .. })), "{refused:?}");
}
