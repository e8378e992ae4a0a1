//! Commands whose rules wait for sectors: their contexts, and everything that can end them meanwhile.

use controller::{
    Controller, CorruptedPart, DriveConfig, Fault, FaultSector, RULE_CONTEXTS, RegisterConfig,
};
use media::{DataStore, MediaConfig};
use mem::{PAGE_BYTES, SharedRegion};
use nvme::register::{ACQ, AQA, ASQ, CC, CSTS, admin_queue_sizes};
use nvme::{
    AdminCommand, CopyRange, QueuePriority, RuleCommand, RuleCommandKind, RuleReply,
    SanitizeAction, SanitizeCommand, SecureErase, SglDescriptor, Sqe, Status,
};
use time::{Component, Nanos};
use transport::{CqConsumer, SqProducer};

use super::harness::{APP, STORE_AND_LOAD, program, with_op};
use super::misses::{admin, ends, poll};
use super::rule_commands::execute;
use crate::block_commands::harness::{Bench, RANGES_PAGE};
use crate::hostile::host::Host;

/// The time of a read of a sector.
const READ: Nanos = Nanos(60_240);

const LOOKUP: &str = "record Word = { value: u64 }\n\
    rule lookup when channel.app == db and header.op == get\n  \
    do fetch w: Word at header.arg0; complete ok value w.value\n\
    rule search when channel.app == db and header.op == scan\n  set found = 0\n  \
    do for s in header.range up to 64 { for w: Word in s { \
    if w.value == header.arg0 { emit w; found = found + 1 } } } complete ok value found\n";

fn config(rules: &str) -> DriveConfig {
    program(&format!("{APP}{rules}{STORE_AND_LOAD}"), 1 << 20)
}

/// Returns the word of a sector whose bytes all have a value.
fn word(value: u8) -> u64 {
    u64::from_le_bytes([value; 8])
}

fn get(lba: u64) -> RuleCommand {
    RuleCommand { arg0: lba, ..RuleCommand::new(RuleCommandKind::Get, 0, 1) }
}

fn scan(nlb: u32, arg0: u64) -> RuleCommand {
    let command = RuleCommand::new(RuleCommandKind::Scan, 0, nlb);
    RuleCommand { arg0, buffer_bytes: 65_536, ..command }
}

/// A drive with the value 1 in sector 0, 2 in sector 1 and so on, on its flash.
fn filled(config: DriveConfig) -> Bench {
    let mut bench = Bench::new(config);
    bench.write(0, 60, 4096, 1);
    bench.flush();
    bench
}

fn submit(bench: &mut Bench, command: RuleCommand) -> u16 {
    let mut sqe = command.to_sqe(1);
    sqe.set_sgl(bench.host.block(0, command.buffer_bytes));
    bench.host.submit(sqe)
}

#[test]
fn plain_commands_do_not_wait_for_contexts() {
    let mut drive = Controller::new(config(LOOKUP)).expect("a drive");
    let mut host = Host::new(&mut drive);
    host.io = Some(host.create(&mut drive, 1, 250, QueuePriority::Medium));
    let mut bench = Bench { drive, host };
    bench.write(0, 60, 4096, 1);
    bench.flush();
    bench.write(60, 1, 4096, 99);
    bench.host.drain(&mut bench.drive);
    let from = bench.host.now;
    let count = 200;
    let lookups: Vec<u16> = (0..count).map(|_| submit(&mut bench, get(7))).collect();
    let plain = submit_read(&mut bench, 60);
    let ends = ends(&mut bench, from);
    assert_eq!(ends[0], (plain, Status::SUCCESS, READ));
    let others: Vec<u16> = ends[1..].iter().map(|(cid, ..)| *cid).collect();
    assert_eq!(others, lookups, "in the order of their arrival");
    assert!(ends.iter().all(|(_, status, _)| status.is_success()));
    let sectors = bench.drive.stats().rules.expect("rules").sectors;
    let waits = count - u64::from(RULE_CONTEXTS);
    assert_eq!((sectors.fetches, sectors.waits), (count, waits));
}

fn submit_read(bench: &mut Bench, lba: u64) -> u16 {
    let mut sqe = Sqe::read(1, lba, 1);
    sqe.set_sgl(bench.host.block(20, 4096));
    bench.host.submit(sqe)
}

#[test]
fn plain_commands_may_have_rules_that_fetch() {
    // Sector 0 says which value of a block makes its reads fail.
    let guard = "record Word = { value: u64 }\n\
        rule guard priority 2 when channel.app == db and header.read and header.lba > 0\n  \
        do fetch w: Word at 0; if w.value == header.lba { complete denied } continue\n\
        rule keep when channel.app == db and header.trim\n  \
        do fetch w: Word at 0; if w.value == header.lba { complete ok } continue\n";
    for op in [0, 10] {
        let mut bench = Bench::new(with_op(config(guard), Nanos(op)));
        bench.write(0, 60, 4096, 0);
        bench.host.memory.write(0, &17u64.to_le_bytes());
        let status = bench.io(Sqe::write(1, 0, 1, false), 4096).status;
        assert_eq!(status, Status::SUCCESS);
        bench.flush();
        let denied = Status::RULE_DENIED.do_not_retry();
        assert_eq!(bench.read(17, 1, 4096), Err(denied));
        assert_eq!(bench.read(16, 1, 4096), Ok(vec![16]));
        // The sources of a Copy are inputs, and each fetches.
        let copy = |bench: &mut Bench, sources: [u64; 2]| {
            for (at, slba) in sources.iter().enumerate() {
                let range = CopyRange::new(*slba, 1).to_bytes();
                bench.host.memory.write(RANGES_PAGE as usize * PAGE_BYTES + at * 32, &range);
            }
            let mut sqe = Sqe::copy(1, 100, 2);
            sqe.set_sgl(bench.host.block(RANGES_PAGE, 64));
            bench.host.io(&mut bench.drive, sqe).status
        };
        assert_eq!(copy(&mut bench, [16, 17]), denied);
        assert_eq!(copy(&mut bench, [16, 18]), Status::SUCCESS);
        assert_eq!(bench.read(100, 2, 4096), Ok(vec![16, 18]));
        for lba in [17, 18] {
            let trim = Sqe::write_zeroes(1, lba, 1, true);
            assert_eq!(bench.io(trim, 0).status, Status::SUCCESS);
        }
        bench.write(0, 1, 4096, 0);
        assert_eq!(bench.read(16, 4, 4096), Ok(vec![16, 17, 0, 19]), "one of two is trimmed");
        bench.drive.check_invariants().unwrap_or_else(|violation| panic!("{violation}"));
    }
}

#[test]
fn an_abort_ends_a_command_after_its_reads() {
    for op in [0, 5] {
        let mut bench = filled(with_op(config(LOOKUP), Nanos(op)));
        let from = bench.host.now;
        let aborted = submit(&mut bench, scan(50, word(9)));
        let other = submit(&mut bench, get(7));
        poll(&mut bench);
        let abort = |cid| AdminCommand::Abort { sqid: 1, cid }.to_sqe();
        assert_eq!(admin(&mut bench, abort(aborted)).result, 0);
        assert_eq!(admin(&mut bench, abort(aborted)).result, 1, "it ends already");
        let ends = ends(&mut bench, from);
        let mut statuses: Vec<_> = ends.iter().map(|(cid, status, _)| (*cid, *status)).collect();
        statuses.sort_unstable_by_key(|(cid, _)| *cid);
        assert_eq!(statuses, [(aborted, Status::ABORTED), (other, Status::SUCCESS)]);
        assert_eq!(execute(&mut bench, get(3)).1.value, word(4));
    }
}

#[test]
fn an_abort_ends_a_command_that_waits_for_a_context() {
    let mut drive = Controller::new(config(LOOKUP)).expect("a drive");
    let mut host = Host::new(&mut drive);
    host.io = Some(host.create(&mut drive, 1, 250, QueuePriority::Medium));
    let mut bench = Bench { drive, host };
    bench.write(0, 60, 4096, 1);
    bench.flush();
    let from = bench.host.now;
    let lookups: Vec<u16> = (0..140).map(|_| submit(&mut bench, get(7))).collect();
    poll(&mut bench);
    let abort = AdminCommand::Abort { sqid: 1, cid: lookups[135] }.to_sqe();
    assert_eq!(admin(&mut bench, abort).result, 0);
    let ends = ends(&mut bench, from);
    assert_eq!(ends[0], (lookups[135], Status::ABORTED, Nanos::ZERO));
    assert_eq!(ends.len(), 140);
    assert!(ends[1..].iter().all(|(_, status, _)| status.is_success()));
}

#[test]
fn the_deletion_of_a_queue_ends_its_commands() {
    let mut bench = filled(config(LOOKUP));
    let rings = bench.host.create(&mut bench.drive, 2, 16, QueuePriority::Medium);
    let first = bench.host.io.replace(rings);
    for _ in 0..3 {
        submit(&mut bench, scan(50, word(9)));
    }
    poll(&mut bench);
    let delete = AdminCommand::DeleteSq { qid: 2 }.to_sqe();
    let from = bench.host.now;
    assert_eq!(bench.host.admin(&mut bench.drive, delete).status, Status::SUCCESS);
    assert!(bench.host.now.since(from) < READ * 40, "the scans do not run to their ends");
    bench.host.io = first;
    assert_eq!(execute(&mut bench, get(3)).1.value, word(4));
    assert_eq!(bench.drive.outstanding(), 0);
}

#[test]
fn a_reset_of_the_controller_ends_commands() {
    let mut config = config(LOOKUP);
    config.controller.registers = Some(RegisterConfig::default());
    let mut drive = Controller::new(config).expect("a drive");
    let port = drive.attach().expect("a host");
    let memory = SharedRegion::anonymous(32 * PAGE_BYTES).expect("memory");
    let at = port.memory().register(&memory).expect("registered memory");
    let page = |page: usize| at.offset((page * PAGE_BYTES) as u64);
    port.set_register(AQA, admin_queue_sizes(16));
    for (register, value) in [(ASQ, page(0).0), (ACQ, page(1).0)] {
        port.set_register(register, value as u32);
        port.set_register(register + 4, (value >> 32) as u32);
    }
    port.set_register(CC, 0x0046_0001);
    let mut now = Nanos::ZERO;
    let mut step = |drive: &mut Controller| {
        now += Nanos(1_000);
        drive.poll(now);
        now
    };
    while port.register(CSTS) & 1 == 0 {
        step(&mut drive);
    }
    let mut host = Host {
        admin: (
            SqProducer::open(&port, 0, page(0), 16).expect("a queue"),
            CqConsumer::open(&port, 0, page(1), 16).expect("a queue"),
        ),
        now: step(&mut drive),
        port: port.clone(),
        memory,
        at,
        io: None,
        cid: 0,
    };
    let rings = host.create(&mut drive, 1, 16, QueuePriority::Medium);
    host.io = Some(rings);
    let mut write = Sqe::write(1, 0, 16, false);
    let data = SglDescriptor::DataBlock { address: page(4).0, length: 65_536 };
    write.set_sgl(data);
    assert_eq!(host.io(&mut drive, write).status, Status::SUCCESS);
    assert_eq!(host.io(&mut drive, Sqe::flush(1)).status, Status::SUCCESS);
    let mut sqe = scan(16, 1).to_sqe(1);
    sqe.set_sgl(data);
    host.submit(sqe);
    drive.poll(host.now);
    assert_eq!(drive.outstanding(), 1);
    port.set_register(CC, 0);
    host.drain(&mut drive);
    assert_eq!((port.register(CSTS) & 1, drive.outstanding()), (0, 0));
    assert!(host.reap().is_none(), "a host that has reset the controller gets no completion");
    drive.check_invariants().unwrap_or_else(|violation| panic!("{violation}"));
    let ops = drive.stats().rules.expect("rules").ops;
    assert!(ops < 1_000, "the scan ran to its end: {ops}");
}

#[test]
fn a_power_cut_ends_commands() {
    for op in [0, 100] {
        let mut bench = filled(with_op(config(LOOKUP), Nanos(op)));
        let lookups = [submit(&mut bench, scan(50, 1)), submit(&mut bench, get(7))];
        poll(&mut bench);
        let cut = Fault::PowerCut { after_ops: 0 };
        bench.drive.inject_fault(bench.host.now, cut).expect("a power cut");
        poll(&mut bench);
        for cid in lookups {
            let cqe = bench.host.reap().expect("a lost command");
            assert_eq!((cqe.cid, cqe.status), (cid, Status::POWER_LOSS));
        }
        assert_eq!(execute(&mut bench, get(7)).1.value, word(8));
        let mut bench = bench.restart();
        assert_eq!(execute(&mut bench, get(7)).1.value, word(8));
    }
}

#[test]
fn format_and_sanitize_wait_for_commands() {
    let (nsid, lba_format, protection, erase) = (1, 0, 0, SecureErase::None);
    let format = AdminCommand::FormatNvm { nsid, lba_format, protection, erase }.to_sqe();
    let sanitize = SanitizeCommand::new(SanitizeAction::BlockErase);
    let sanitize = AdminCommand::Sanitize(sanitize).to_sqe();
    for sqe in [format, sanitize] {
        let mut bench = filled(config(LOOKUP));
        let cid = submit(&mut bench, scan(50, word(9)));
        poll(&mut bench);
        assert_eq!(bench.host.admin(&mut bench.drive, sqe).status, Status::SUCCESS);
        let cqe = bench.host.reap().expect("the scan");
        let reply = RuleReply::from_result(cqe.result, true);
        assert_eq!((cqe.cid, cqe.status), (cid, Status::SUCCESS));
        assert_eq!((reply.value, reply.bytes), (512, 4096), "before the data is removed");
        bench.host.drain(&mut bench.drive);
        assert_eq!(execute(&mut bench, get(7)).1.value, 0);
    }
}

#[test]
fn a_command_begins_again_with_a_new_program() {
    let other = config(&LOOKUP.replace("value w.value", "value w.value + 1"));
    let other = other.rules.expect("rules").program;
    for op in [0, 100] {
        let mut bench = filled(with_op(config(LOOKUP), Nanos(op)));
        let from = bench.host.now;
        let lookup = submit(&mut bench, get(7));
        let search = submit(&mut bench, scan(50, word(1)));
        poll(&mut bench);
        bench.drive.install_rules(bench.host.now, &other).expect("an installation");
        let mut results = Vec::new();
        while results.len() < 2 {
            poll(&mut bench);
            match bench.host.reap() {
                Some(cqe) => results.push((cqe.cid, cqe.status, cqe.result)),
                None => bench.host.now = bench.drive.deadline(),
            }
        }
        results.sort_unstable_by_key(|(cid, ..)| *cid);
        let found = RuleReply { value: 512, bytes: 4096 }.to_result(true);
        let expected = [(lookup, Status::SUCCESS, word(8) + 1), (search, Status::SUCCESS, found)];
        assert_eq!(results, expected);
        assert!(bench.host.now.since(from) > READ * 2, "the sectors are read again");
        // A program without such rules: the commands miss.
        let none = config("").rules.expect("rules").program;
        let lookup = submit(&mut bench, get(7));
        poll(&mut bench);
        bench.drive.install_rules(bench.host.now, &none).expect("an installation");
        let ends = ends(&mut bench, from);
        let missed: Vec<_> = ends.iter().map(|(cid, status, _)| (*cid, *status)).collect();
        assert_eq!(missed, [(lookup, Status::RULE_MISS.do_not_retry())]);
        bench.drive.check_invariants().unwrap_or_else(|violation| panic!("{violation}"));
    }
}

#[test]
fn a_sector_that_cannot_be_read_ends_the_command() {
    let mut bench = filled(config(LOOKUP));
    let sector = FaultSector::Lba { namespace: 1, lba: 7 };
    let fault = Fault::Uncorrectable { sector };
    bench.drive.inject_fault(bench.host.now, fault).expect("a fault");
    assert_eq!(bench.io(Sqe::write_uncorrectable(1, 20, 1), 0).status, Status::SUCCESS);
    for lba in [7, 20] {
        let (status, _) = execute(&mut bench, get(lba));
        assert!(status.is(Status::UNRECOVERED_READ), "{status}");
        assert_eq!(bench.newest_error(), (status, lba));
    }
    // A scan returns the records before the sector.
    let (status, reply) = execute(&mut bench, scan(50, word(7)));
    assert!(status.is(Status::UNRECOVERED_READ), "{status}");
    assert_eq!((reply.bytes, bench.newest_error()), (4096, (status, 7)));
    assert_eq!(execute(&mut bench, get(8)).1.value, word(9));
}

#[test]
fn fetched_sectors_are_protected_and_may_be_a_pattern() {
    let mut protected = config(LOOKUP);
    protected.protection = Some(nvme::ProtectionType::Type1);
    if let MediaConfig::Nand(nand) = &mut protected.media {
        nand.geometry.oob_bytes = 24;
    }
    let mut bench = Bench::new(protected);
    for lba in [3, 4] {
        bench.host.memory.fill(0, PAGE_BYTES, 40 + lba as u8);
        let mut sqe = Sqe::write(1, lba, 1, false);
        // PRACT: the drive generates the information.
        (sqe.cdw12, sqe.cdw14) = ((1u32 << 29).into(), (lba as u32).into());
        assert_eq!(bench.io(sqe, PAGE_BYTES).status, Status::SUCCESS);
    }
    for is_flushed in [false, true] {
        if is_flushed {
            bench.flush();
        }
        assert_eq!(execute(&mut bench, get(3)).1.value, word(43));
        assert_eq!(execute(&mut bench, get(9)).1.value, 0, "never written");
    }
    let sector = FaultSector::Lba { namespace: 1, lba: 3 };
    let fault = Fault::CorruptedData { sector, part: CorruptedPart::Guard };
    bench.drive.inject_fault(bench.host.now, fault).expect("a fault");
    let (status, _) = execute(&mut bench, get(3));
    assert!(status.is(Status::GUARD_CHECK), "{status}");
    assert_eq!(execute(&mut bench, get(4)).1.value, word(44));

    let mut without_data = config(LOOKUP);
    if let MediaConfig::Nand(nand) = &mut without_data.media {
        nand.data = DataStore::None;
    }
    let mut bench = Bench::new(without_data);
    assert_eq!(execute(&mut bench, get(5)).1.value, 0);
    let mut pattern = [0; PAGE_BYTES];
    media::fill_pattern(5, &mut pattern);
    let expected = u64::from_le_bytes(*pattern.first_chunk().expect("8 bytes"));
    for is_flushed in [false, true] {
        assert_eq!(bench.io(Sqe::write(1, 5, 1, false), 4096).status, Status::SUCCESS);
        if is_flushed {
            bench.flush();
        }
        assert_eq!(execute(&mut bench, get(5)).1.value, expected);
    }
}
