//! Decisions that are made when a program is installed: they are those of the code.

use rules::{
    CodeRange, InputOp, Instruction, PlacementStream, RuleEngine, RuleGrant, RuleInput, RuleOp,
    RuleProgram, RuleStatus, RuleStep, RuleVerdict, verify,
};

use super::engine::{APP, NoFacts, options, program};

const fn new(op: RuleOp) -> Instruction {
    Instruction::new(op)
}

/// Returns the program whose rules have the condition `true`, so that the engine runs their code.
fn with_conditions(mut program: RuleProgram) -> RuleProgram {
    let start = program.code.len() as u32;
    program.code.extend([new(RuleOp::ConstBool).to(20).imm(1), new(RuleOp::Match).a(20)]);
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
    assert!(!engines[1].decide_unchanged(APP, input), "a condition is not decided before");
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
