//! The engine: allocation, contexts, and changes of durable tables.

use rules::{
    AppDeclaration, AppId, CodeRange, DriveFacts, EngineOptions, InputOp, Instruction, IntWidth,
    LineFacts, OpMask, PlacementStream, RuleAction, RuleDeclaration, RuleEngine, RuleGrant,
    RuleInput, RuleLine, RuleLocation, RuleOp, RuleProgram, RuleStatus, RuleStep, RuleTrigger,
    RuleVerdict, TableChange, TableDeclaration, TableId, TableKind, verify,
};

pub(crate) const APP: AppId = AppId::new(0);

/// A drive without lines.
pub(crate) struct NoFacts;

impl DriveFacts for NoFacts {
    fn is_idle(&self, _: AppId) -> bool {
        true
    }

    fn free_lines(&self, _: AppId) -> u64 {
        0
    }

    fn wear_min(&self, _: AppId) -> u64 {
        0
    }

    fn wear_max(&self, _: AppId) -> u64 {
        0
    }

    fn lines(&self, _: AppId) -> u64 {
        0
    }

    fn line_at(&self, _: AppId, _: u64) -> RuleLine {
        unreachable!("the drive has no lines")
    }

    fn line_facts(&self, _: AppId, _: RuleLine) -> LineFacts {
        unreachable!("the drive has no lines")
    }
}

/// A program with a map, and a durable array of 4 elements of 8 bits.
pub(crate) fn program(rules: &[(InputOp, &[Instruction])]) -> RuleProgram {
    let table = |name: &str, kind, capacity| TableDeclaration {
        name: name.to_owned(),
        app: APP,
        kind,
        capacity,
        is_durable: true,
    };
    let mut program = RuleProgram {
        apps: vec![AppDeclaration {
            name: "a".into(),
            first_unit: 0,
            last_unit: 0,
            spare_ppm: 0,
            quota_ppm: 0,
            sectors: 100,
        }],
        tables: vec![
            table("map", TableKind::Address, 100),
            table("counts", TableKind::Array(IntWidth::U8), 4),
        ],
        ..RuleProgram::default()
    };
    for (at, (op, code)) in rules.iter().enumerate() {
        let action = CodeRange { start: program.code.len() as u32, len: code.len() as u32 };
        program.code.extend_from_slice(code);
        program.rules.push(RuleDeclaration {
            name: format!("r{at}"),
            app: APP,
            trigger: RuleTrigger::Command,
            ops: OpMask::NONE.with(*op),
            priority: at as u32,
            hops: 2,
            location: RuleLocation::default(),
            condition: CodeRange::default(),
            action,
        });
    }
    program
}

pub(crate) fn options(contexts: u16) -> EngineOptions {
    EngineOptions { contexts, sector_bytes: 512, pause_ops: 100 }
}

fn engine(rules: &[(InputOp, &[Instruction])], contexts: u16) -> RuleEngine {
    let verified = verify(program(rules), &RuleGrant::default());
    let verified = verified.unwrap_or_else(|error| panic!("{error}"));
    RuleEngine::install(verified, options(contexts))
}

const fn new(op: RuleOp) -> Instruction {
    Instruction::new(op)
}

/// A write that is mapped at its address.
const STORE: [Instruction; 3] =
    [new(RuleOp::NextAddress).to(8), new(RuleOp::MapStore).a(1).b(8), new(RuleOp::Submit).a(8)];

/// Stores `arg1` as element `arg0`.
const COUNT: [Instruction; 2] =
    [new(RuleOp::TableStore).a(3).b(4).imm(1), new(RuleOp::Complete).a(3)];

fn input(op: InputOp, arg0: u64, arg1: u64) -> RuleInput {
    RuleInput { arg0, arg1, ..RuleInput::new(op, 1, 1) }
}

#[test]
fn commands_do_not_allocate() {
    let mut engine = engine(&[(InputOp::Write, &STORE), (InputOp::Get, &COUNT)], 4);
    let allocated = allocation_counter::measure(|| {
        for lba in 0..100 {
            let write = RuleInput::new(InputOp::Write, lba, 1);
            let placed =
                RuleVerdict::Place { stream: PlacementStream::Host, mapped: Some(lba), tag: 0 };
            let step = engine.begin_command(APP, &write, &NoFacts);
            assert_eq!(step, Some(RuleStep::Done(placed)));
            let get = input(InputOp::Get, lba % 4, lba + 1);
            let Some(RuleStep::Do(context, _)) = engine.begin_command(APP, &get, &NoFacts) else {
                panic!("a change of a durable table")
            };
            engine.resume(context, &NoFacts);
        }
    });
    assert_eq!(allocated.count_total, 0);
    assert_eq!(engine.counters()[0].matches, 100);
    assert_eq!(engine.counters()[0].ops, 300);
}

#[test]
fn contexts_are_limited_and_released() {
    let mut engine = engine(&[(InputOp::Get, &COUNT)], 2);
    let get = |at| input(InputOp::Get, at, 7);
    let mut open = Vec::new();
    for at in 0..2 {
        match engine.begin_command(APP, &get(at), &NoFacts) {
            Some(RuleStep::Do(context, RuleAction::Journal(change))) => {
                let expected = TableChange { table: TableId::new(1), key: at, value: Some(7) };
                assert_eq!(change, expected);
                open.push(context);
            }
            step => panic!("{step:?}"),
        }
    }
    assert_eq!(engine.begin_command(APP, &get(2), &NoFacts), None, "no context is free");
    engine.cancel(open[0]);
    assert_eq!(engine.free_contexts(), 1);
    let done = RuleVerdict::Complete { status: RuleStatus::Ok, value: 1 };
    assert_eq!(engine.resume(open[1], &NoFacts), RuleStep::Done(done));
    assert_eq!(engine.free_contexts(), 2);
    engine.check_invariants();
}

#[test]
fn changes_are_those_of_the_stored_element() {
    let mut engine = engine(&[(InputOp::Get, &COUNT)], 1);
    // The element has 8 bits.
    match engine.begin_command(APP, &input(InputOp::Get, 3, 0x105), &NoFacts) {
        Some(RuleStep::Do(context, RuleAction::Journal(change))) => {
            assert_eq!(change.value, Some(5));
            engine.resume(context, &NoFacts);
        }
        step => panic!("{step:?}"),
    }
    // An element that does not change is not journaled.
    let done = RuleVerdict::Complete { status: RuleStatus::Ok, value: 3 };
    let step = engine.begin_command(APP, &input(InputOp::Get, 3, 5), &NoFacts);
    assert_eq!(step, Some(RuleStep::Done(done)));
    let out = RuleVerdict::Complete { status: RuleStatus::IndexOutOfRange, value: 0 };
    let step = engine.begin_command(APP, &input(InputOp::Get, 4, 5), &NoFacts);
    assert_eq!(step, Some(RuleStep::Done(out)));
    assert_eq!(engine.counters()[0].faults, 1);
    // Changes that do not fit are ignored.
    for table in [0, 1, 9] {
        engine.restore(&TableChange { table: TableId::new(table), key: 99, value: Some(1) });
    }
    engine.restore(&TableChange { table: TableId::new(1), key: 0, value: Some(9) });
    assert_eq!(engine.load(APP, TableId::new(1), 0), Ok(9));
    engine.clear_volatile();
    assert_eq!(engine.load(APP, TableId::new(1), 3), Ok(5), "durable tables stay");
}

#[test]
fn rules_without_a_command_look_up_one_block() {
    let load = [
        new(RuleOp::Const).to(8).imm(99),
        new(RuleOp::MapLoad).to(9).a(8),
        new(RuleOp::Post).a(8).b(8).c(8),
        new(RuleOp::End),
    ];
    for trigger in [RuleTrigger::Background, RuleTrigger::Every { period_ns: 1 }] {
        let mut program = program(&[(InputOp::Get, &COUNT), (InputOp::Get, &load)]);
        (program.rules[1].trigger, program.rules[1].ops) = (trigger, OpMask::NONE);
        let verified = verify(program, &RuleGrant::default()).expect("a program");
        let mut engine = RuleEngine::install(verified, options(1));
        // A command with more sectors than the map has behind block 99.
        let get = RuleInput { sectors: 50, ..input(InputOp::Get, 9, 1) };
        let step = engine.begin_command(APP, &get, &NoFacts);
        assert!(matches!(step, Some(RuleStep::Done(_))), "{step:?}");
        let periodic = engine.periodic_rules().next();
        let step = match periodic {
            Some((rule, _)) => engine.begin_periodic(rule, &NoFacts),
            None => engine.begin_background(APP, &NoFacts),
        };
        assert!(matches!(step, Some(RuleStep::Do(_, RuleAction::Post { .. }))), "{step:?}");
    }
}

#[test]
fn integers_wrap_and_divisions_by_zero_are_zero() {
    let cases: [(RuleOp, u64, u64, u64); 9] = [
        (RuleOp::Add, u64::MAX, 2, 1),
        (RuleOp::Sub, 1, 2, u64::MAX),
        (RuleOp::Mul, 1 << 63, 2, 0),
        (RuleOp::Div, 5, 0, 0),
        (RuleOp::Rem, 5, 0, 0),
        (RuleOp::Shl, 1, 65, 2),
        (RuleOp::Shr, 4, 65, 2),
        (RuleOp::Min, 4, 65, 4),
        (RuleOp::Max, 4, 65, 65),
    ];
    for (op, a, b, expected) in cases {
        let code = [new(op).to(8).a(3).b(4), new(RuleOp::Complete).a(8)];
        let mut engine = engine(&[(InputOp::Get, &code)], 1);
        let done = RuleVerdict::Complete { status: RuleStatus::Ok, value: expected };
        let step = engine.begin_command(APP, &input(InputOp::Get, a, b), &NoFacts);
        assert_eq!(step, Some(RuleStep::Done(done)), "{op:?} of {a} and {b}");
    }
}
