//! Decisions that are made when a program is installed: they are those of the code.

use rules::{
    CodeRange, InputOp, Instruction, PlacementStream, RuleEngine, RuleGrant, RuleInput, RuleOp,
    RuleProgram, RuleStatus, RuleStep, RuleVerdict, verify,
};

use super::engine::{APP, NoFacts, options, program};

const fn new(op: RuleOp) -> Instruction {
    Instruction::new(op)
}

/// Returns the program whose rules have the condition that the drive is idle, which it is: the engine
/// runs their code.
fn with_conditions(mut program: RuleProgram) -> RuleProgram {
    let start = program.code.len() as u32;
    program.code.extend([new(RuleOp::Idle).to(20), new(RuleOp::Match).a(20)]);
    for rule in &mut program.rules {
        rule.condition = CodeRange { start, len: 2 };
    }
    program
}

fn install(program: RuleProgram) -> RuleEngine {
    let verified = verify(program, &RuleGrant::default()).unwrap_or_else(|error| panic!("{error}"));
    RuleEngine::install(verified, options(1))
}

/// Runs an input in both engines. Returns the verdict, if they agree on everything.
fn verdict(op: InputOp, code: &[Instruction], input: &RuleInput) -> RuleVerdict {
    let of_op = program(&[(op, code)]);
    let mut engines = [install(of_op.clone()), install(with_conditions(of_op))];
    let [direct, run] = engines.each_mut().map(|engine| {
        let step = engine.begin_command(APP, input, &NoFacts);
        let Some(RuleStep::Done(verdict)) = step else { panic!("{step:?}") };
        (verdict, engine.ended_ops(), engine.counters()[0], engine.totals())
    });
    let ((verdict, ops, counters, totals), with_condition) = (direct, run);
    assert_eq!(verdict, with_condition.0, "{code:?}");
    // The condition has two operations.
    assert_eq!(ops + 2, with_condition.1, "{code:?}");
    let counted = |counters: rules::RuleCounters| (counters.matches, counters.faults);
    assert_eq!(counted(counters), counted(with_condition.2), "{code:?}");
    assert_eq!(counters.ops + 2, with_condition.2.ops, "{code:?}");
    assert_eq!((totals.inputs, totals.ops), (1, ops), "{code:?}");
    // Only a command that the drive executes as it is is decided without a verdict.
    let is_own = match verdict {
        RuleVerdict::Place { stream, mapped, tag } => {
            (stream, mapped, tag) == (PlacementStream::Host, Some(input.lba), input.tag)
        }
        RuleVerdict::Read { address, tag } => {
            (address, tag) == (rules::RuleAddress::Mapped { lba: input.lba }, input.tag)
        }
        _ => false,
    };
    let before = engines[0].totals();
    let is_unchanged = engines[0].decide_unchanged(APP, input);
    assert_eq!(is_unchanged, is_own, "{code:?}: {verdict:?}");
    assert_eq!(engines[0].totals().inputs - before.inputs, u64::from(is_unchanged));
    assert!(!engines[1].decide_unchanged(APP, input), "a fact is not known before");
    verdict
}

const NEXT: Instruction = new(RuleOp::NextAddress).to(8);
const STORE: Instruction = new(RuleOp::MapStore).a(1).b(8);
const LOAD: Instruction = new(RuleOp::MapLoad).to(9).a(1);

// guarantee: B-114
#[test]
fn direct_decisions_are_those_of_the_code() {
    use PlacementStream::{Cold, Host};
    let place = |stream, mapped, tag| RuleVerdict::Place { stream, mapped, tag };
    let read = |lba, tag| RuleVerdict::Read { address: rules::RuleAddress::Mapped { lba }, tag };
    let ended = |status, value| RuleVerdict::Complete { status, value };
    let submit = |register| new(RuleOp::Submit).a(register);
    let number = |d, imm| new(RuleOp::Const).to(d).imm(imm);
    let out = ended(RuleStatus::IndexOutOfRange, 0);
    let input = RuleInput { tag: 5, arg0: 40, ..RuleInput::new(InputOp::Read, 30, 2) };
    let cases: &[(InputOp, &[Instruction], u64, RuleVerdict)] = &[
        // A map of 100 blocks.
        (InputOp::Write, &[NEXT, STORE, submit(8)], 98, place(Host, Some(98), 5)),
        (InputOp::Write, &[NEXT, STORE, submit(8)], 99, out),
        (InputOp::Write, &[NEXT, STORE, submit(8)], u64::MAX, out),
        (InputOp::Write, &[NEXT, STORE, LOAD, submit(9)], 7, place(Host, Some(7), 5)),
        (InputOp::Write, &[NEXT.imm(3), STORE, submit(8)], 7, place(Cold, Some(7), 5)),
        (InputOp::Write, &[NEXT, submit(8)], 1000, place(Host, None, 5)),
        (InputOp::Write, &[LOAD, NEXT, submit(8)], 1000, out),
        (InputOp::Write, &[LOAD, submit(9)], 7, ended(RuleStatus::BadAddress, 0)),
        (
            InputOp::Write,
            &[NEXT, STORE, NEXT.imm(3), submit(8)],
            7,
            ended(RuleStatus::BadAddress, 0),
        ),
        (InputOp::Write, &[NEXT, STORE, NEXT.imm(3), STORE, submit(8)], 7, place(Cold, Some(7), 5)),
        (InputOp::Read, &[LOAD, submit(9)], 98, read(98, 5)),
        (InputOp::Read, &[LOAD, submit(9)], 99, out),
        (InputOp::Read, &[NEXT, submit(8)], 7, ended(RuleStatus::BadAddress, 0)),
        (InputOp::Read, &[NEXT, STORE, LOAD, submit(9)], 7, ended(RuleStatus::BadAddress, 0)),
        // Sums of a register and numbers, in the header too.
        (
            InputOp::Read,
            &[number(8, 10), new(RuleOp::Add).to(1).a(1).b(8), LOAD, submit(9)],
            7,
            read(17, 5),
        ),
        (
            InputOp::Read,
            &[number(8, 10), new(RuleOp::Sub).to(1).a(1).b(8), LOAD, submit(9)],
            7,
            out,
        ),
        (InputOp::Read, &[new(RuleOp::Add).to(1).a(1).b(3), LOAD, submit(9)], 7, read(47, 5)),
        (InputOp::Read, &[new(RuleOp::MapLoad).to(9).a(3), submit(9)], 7, read(40, 5)),
        (InputOp::Read, &[LOAD, number(1, 99), submit(9)], 7, read(7, 5)),
        (InputOp::Read, &[LOAD, number(5, 99), submit(9)], 7, read(7, 99)),
        (InputOp::Read, &[LOAD, new(RuleOp::MoveInt).to(5).a(1), submit(9)], 7, read(7, 7)),
        // A second block.
        (InputOp::Read, &[LOAD, new(RuleOp::MapLoad).to(9).a(3), submit(9)], 7, read(40, 5)),
        (InputOp::Read, &[new(RuleOp::Jump).imm(1), LOAD, submit(9)], 7, read(7, 5)),
        (InputOp::Get, &[new(RuleOp::Complete).a(2).imm(3)], 7, ended(RuleStatus::Denied, 2)),
        (
            InputOp::Trim,
            &[number(8, u64::MAX), new(RuleOp::Complete).a(8)],
            7,
            ended(RuleStatus::Ok, u64::MAX),
        ),
        (InputOp::Trim, &[LOAD, submit(9)], 7, ended(RuleStatus::BadAddress, 0)),
        (InputOp::Flush, &[new(RuleOp::Complete).a(0)], 7, ended(RuleStatus::Ok, 3)),
    ];
    for (op, code, lba, expected) in cases {
        let input = RuleInput { op: *op, lba: *lba, ..input };
        assert_eq!(verdict(*op, code, &input), *expected, "{op:?} {code:?} of {lba}");
    }
}

#[test]
fn a_command_that_is_decided_directly_needs_no_context() {
    let post = [new(RuleOp::Post).a(1).b(1).c(1), new(RuleOp::Complete).a(1)];
    let mut engine = install(program(&[
        (InputOp::Read, &[LOAD, new(RuleOp::Submit).a(9)]),
        (InputOp::Get, &post),
    ]));
    let get = RuleInput::new(InputOp::Get, 1, 1);
    assert!(matches!(engine.begin_command(APP, &get, &NoFacts), Some(RuleStep::Do(..))));
    assert_eq!(engine.begin_command(APP, &get, &NoFacts), None, "no context is free");
    let read = RuleInput::new(InputOp::Read, 1, 1);
    assert!(matches!(engine.begin_command(APP, &read, &NoFacts), Some(RuleStep::Done(..))));
    assert!(engine.decide_unchanged(APP, &read));
    assert!(!engine.decide_unchanged(rules::AppId::new(1), &read), "no such application");
    assert!(!engine.decide_unchanged(rules::AppId::GLOBAL, &read));
    assert_eq!((engine.totals().inputs, engine.counters()[0].matches), (2, 2));
}

fn set_condition(program: &mut RuleProgram, rule: usize, code: &[Instruction]) {
    let (start, len) = (program.code.len() as u32, code.len() as u32);
    program.code.extend(code);
    program.rules[rule].condition = CodeRange { start, len };
}

// guarantee: B-114
#[test]
fn comparisons_of_the_header_need_no_execution() {
    let number = |d, imm| new(RuleOp::Const).to(d).imm(imm);
    let load = [LOAD, new(RuleOp::Submit).a(9)];
    let shift = [number(8, 1), new(RuleOp::Add).to(1).a(1).b(8), new(RuleOp::Continue)];
    let deny = [new(RuleOp::Complete).a(3).imm(3)];
    let post = [new(RuleOp::Post).a(1).b(1).c(1), new(RuleOp::Complete).a(1)];
    let mut program = program(&[
        (InputOp::Read, &load),
        (InputOp::Read, &shift),
        (InputOp::Read, &deny),
        (InputOp::Flush, &post),
    ]);
    for rule in 1..3 {
        program.rules[rule].ops = program.rules[rule].ops.with(InputOp::Trim).with(InputOp::Get);
    }
    // header.lba < 10
    let below = [number(8, 10), new(RuleOp::Lt).to(12).a(1).b(8), new(RuleOp::Match).a(12)];
    set_condition(&mut program, 2, &below);
    // 20 <= header.lba and not header.arg0 == 5
    let above = [
        number(8, 20),
        new(RuleOp::Le).to(12).a(8).b(1),
        new(RuleOp::JumpIfNot).a(12).imm(7),
        number(9, 5),
        new(RuleOp::Eq).to(13).a(3).b(9),
        new(RuleOp::Not).to(14).a(13),
        new(RuleOp::Match).a(14),
        new(RuleOp::ConstBool).to(15),
        new(RuleOp::Match).a(15),
    ];
    set_condition(&mut program, 1, &above);
    let mut engine = install(program);
    // The only context is in use: a command that needs one cannot begin.
    let flush = RuleInput::new(InputOp::Flush, 0, 0);
    assert!(matches!(engine.begin_command(APP, &flush, &NoFacts), Some(RuleStep::Do(..))));
    assert_eq!(engine.begin_command(APP, &flush, &NoFacts), None);
    let read = |lba| RuleVerdict::Read { address: rules::RuleAddress::Mapped { lba }, tag: 0 };
    let ended = |status, value| RuleVerdict::Complete { status, value };
    let cases = [
        (InputOp::Read, 3, 40, ended(RuleStatus::Denied, 40), 5),
        (InputOp::Read, 15, 40, read(15), 13),
        (InputOp::Read, 30, 40, read(31), 18),
        (InputOp::Read, 30, 5, read(30), 15),
        (InputOp::Read, 98, 40, ended(RuleStatus::IndexOutOfRange, 0), 17),
        (InputOp::Trim, 15, 40, RuleVerdict::PassThrough, 10),
        (InputOp::Get, 15, 40, RuleVerdict::Miss, 10),
        (InputOp::Get, 9, 6, ended(RuleStatus::Denied, 6), 5),
    ];
    for (op, lba, arg0, expected, ops) in cases {
        let input = RuleInput { arg0, ..RuleInput::new(op, lba, 2) };
        let step = engine.begin_command(APP, &input, &NoFacts);
        assert_eq!(step, Some(RuleStep::Done(expected)), "{input:?}");
        assert_eq!(engine.ended_ops(), ops, "{input:?}");
        assert_eq!(engine.decide_unchanged(APP, &input), expected == read(lba), "{input:?}");
    }
    let counters = engine.counters();
    let counted: Vec<_> =
        counters.iter().map(|rule| (rule.matches, rule.faults, rule.ops)).collect();
    // With the two commands that were decided a second time.
    assert_eq!(counted[..3], [(6, 1, 11), (2, 0, 54), (2, 0, 32)]);
    assert_eq!(engine.totals().inputs, 10);
}

#[test]
fn commands_with_too_many_ends_are_executed() {
    let deny = [new(RuleOp::Complete).a(3).imm(3)];
    let load = [LOAD, new(RuleOp::Submit).a(9)];
    for rules in [5u64, 100] {
        let mut actions: Vec<(InputOp, &[Instruction])> = vec![(InputOp::Read, &load)];
        actions.extend((0..rules).map(|_| (InputOp::Read, &deny[..])));
        let mut program = program(&actions);
        for rule in 1..=rules {
            let equal = [
                new(RuleOp::Const).to(8).imm(rule),
                new(RuleOp::Eq).to(9).a(1).b(8),
                new(RuleOp::Match).a(9),
            ];
            set_condition(&mut program, rule as usize, &equal);
        }
        let mut engine = install(program);
        let read = |lba| RuleInput::new(InputOp::Read, lba, 1);
        assert_eq!(engine.decide_unchanged(APP, &read(0)), rules == 5);
        for lba in [0, rules] {
            let step = engine.begin_command(APP, &read(lba), &NoFacts);
            let Some(RuleStep::Done(verdict)) = step else { panic!("{step:?}") };
            assert_eq!(matches!(verdict, RuleVerdict::Read { .. }), lba == 0, "{verdict:?}");
            let ops = if lba == 0 { 4 * rules + 3 } else { 5 };
            assert_eq!(engine.ended_ops(), ops);
        }
    }
}
