//! Programs in verified form that are not accepted, each with its error.

use rules::{
    AppDeclaration, AppGrant, AppId, CodeRange, InputOp, Instruction, IntWidth, OpMask,
    ProgramDecodeError, RecordField, RecordLayout, RuleDeclaration, RuleGrant, RuleLocation,
    RuleOp, RuleProblem, RuleProgram, RuleTrigger, TableDeclaration, TableKind, VerifyError,
    verify,
};

const fn new(op: RuleOp) -> Instruction {
    Instruction::new(op)
}

/// Two applications with a table each, and a rule for reads of the first.
fn with_action(code: &[Instruction]) -> RuleProgram {
    let app = |name: &str, unit| AppDeclaration {
        name: name.to_owned(),
        first_unit: unit,
        last_unit: unit,
        spare_ppm: 0,
        sectors: 100,
    };
    let table = |name: &str, app| TableDeclaration {
        name: name.to_owned(),
        app: AppId::new(app),
        kind: TableKind::Array(IntWidth::U8),
        capacity: 10,
        is_durable: false,
    };
    let field = RecordField { name: "f".into(), offset: 0, width: IntWidth::U64, count: 2 };
    RuleProgram {
        apps: vec![app("a", 0), app("b", 1)],
        layouts: vec![RecordLayout { name: "l".into(), bytes: 16, fields: vec![field] }],
        tables: vec![table("own", 0), table("other", 1)],
        rules: vec![RuleDeclaration {
            name: "r".into(),
            app: AppId::new(0),
            trigger: RuleTrigger::Command,
            ops: OpMask::NONE.with(InputOp::Read),
            priority: 0,
            hops: 0,
            location: RuleLocation { line: 3, column: 1 },
            condition: CodeRange::default(),
            action: CodeRange { start: 0, len: code.len() as u32 },
        }],
        code: code.to_vec(),
    }
}

const DONE: Instruction = new(RuleOp::Complete).a(1);

fn problem(code: &[Instruction]) -> RuleProblem {
    match verify(with_action(code), &RuleGrant::default()) {
        Err(VerifyError::Rule { problem, .. }) => problem,
        other => panic!("{other:?}"),
    }
}

// guarantee: B-120
#[test]
fn rules_with_errors_are_not_accepted() {
    use RuleOp::*;
    use RuleProblem as P;
    assert!(verify(with_action(&[DONE]), &RuleGrant::default()).is_ok());
    for (code, expected) in [
        (&[new(TableLoad).to(9).a(1).imm(1), DONE][..], P::ForeignTable),
        (&[new(TableStore).a(1).b(1).imm(1), DONE], P::ForeignTable),
        (&[new(TableLoad).to(9).a(1).imm(2), DONE], P::Table),
        (&[new(TableLoad).to(9).a(1).imm(1 << 32), DONE], P::Table),
        (&[new(TableInsert).a(1), DONE], P::Table),
        (&[new(MapLoad).to(9).a(1), DONE], P::Table),
        (&[new(FieldLoad).to(9).a(1).b(1).pair(0, 1), DONE], P::Layout),
        (&[new(Emit).a(1).imm(1), DONE], P::Layout),
        (&[new(Add).to(9).a(1).b(9), DONE], P::Operand(9)),
        (&[new(NextAddress).to(9), new(Add).to(10).a(9).b(1), DONE], P::Operand(9)),
        (&[new(Submit).a(1)], P::Operand(1)),
        (&[new(Const).to(64), DONE], P::Register(64)),
        (&[new(Complete).a(255)], P::Register(255)),
        (&[new(Const).to(0), DONE], P::ReadOnly(0)),
        (&[new(Const).to(2), DONE], P::ReadOnly(2)),
        (&[new(NextAddress).to(1), DONE], P::ReadOnly(1)),
        (&[new(Jump).imm(0), DONE], P::Jump),
        (&[new(ConstBool).to(9), new(JumpIfNot).a(9).imm(0), DONE], P::Jump),
        (&[new(ConstBool).to(9), new(JumpIfNot).a(9).imm(9), DONE], P::Jump),
        (&[new(Jump).imm(2), DONE, DONE], P::Unreachable),
        (&[DONE, DONE], P::Unreachable),
        (&[new(Const).to(9)], P::NoEnd),
        (&[new(Match).a(9), DONE], P::Part),
        (&[new(End)], P::Trigger),
        (&[new(Erase).a(9), DONE], P::Operand(9)),
        (&[new(NoLine).to(9), new(Erase).a(9), DONE], P::Trigger),
        (&[new(SetOp).imm(InputOp::Write as u64), DONE], P::Constant),
        (&[new(SetOp).imm(15), DONE], P::Constant),
        (&[new(NextAddress).to(9).imm(4), DONE], P::Constant),
        (&[new(Complete).a(1).imm(6)], P::Constant),
        (&[new(LoopEnd), DONE], P::LoopForm),
        (&[new(Loop).to(9).a(1).pair(2, 9), DONE], P::LoopForm),
        (&[new(Loop).to(9).a(1).pair(2, 3).c(1), DONE, new(LoopEnd), DONE], P::LoopForm),
        (&[new(Loop).to(9).a(1).pair(2, 2), new(LoopEnd).imm(0)], P::NoEnd),
        // A jump into a loop.
        (
            &[
                new(ConstBool).to(9),
                new(JumpIfNot).a(9).imm(3),
                new(Loop).to(10).a(1).pair(2, 5),
                new(Const).to(11),
                new(LoopEnd).imm(2),
                DONE,
            ],
            P::Jump,
        ),
        // A register that only one path gives a value.
        (
            &[
                new(ConstBool).to(9),
                new(JumpIfNot).a(9).imm(3),
                new(Const).to(10),
                new(Complete).a(10),
            ],
            P::Operand(10),
        ),
        // A register that a loop gives another type for its next round.
        (
            &[
                new(Const).to(10),
                new(Loop).to(9).a(1).pair(2, 5),
                new(Add).to(11).a(10).b(10),
                new(ConstBool).to(10),
                new(LoopEnd).imm(1),
                DONE,
            ],
            P::Operand(10),
        ),
    ] {
        assert_eq!(problem(code), expected, "{code:?}");
    }
}

// guarantee: B-121
#[test]
fn grants_are_kept() {
    let grant = RuleGrant::default();
    let base = with_action(&[DONE]);
    let rejected = |change: &dyn Fn(&mut RuleProgram, &mut RuleGrant)| {
        let (mut program, mut grant) = (base.clone(), grant.clone());
        change(&mut program, &mut grant);
        verify(program, &grant).expect_err("not accepted")
    };
    let found = rejected(&|program, _| program.apps[1].first_unit = 0);
    assert!(matches!(found, VerifyError::SharedUnits { .. }), "{found}");
    let found = rejected(&|program, _| program.apps[1].last_unit = 128);
    assert!(matches!(found, VerifyError::Units { .. }), "{found}");
    let found = rejected(&|program, _| program.apps[1].sectors = u64::MAX);
    assert!(matches!(found, VerifyError::Sectors { .. }), "{found}");
    let found = rejected(&|_, grant| {
        let granted = AppGrant { name: "a".into(), first_unit: 0, last_unit: 0 };
        grant.apps = Some(vec![granted]);
    });
    assert!(matches!(found, VerifyError::AppNotGranted { .. }), "{found}");
    let found = rejected(&|program, _| program.tables[0].capacity = 1 << 40);
    assert!(matches!(found, VerifyError::TableMemory { .. }), "{found}");
    let found = rejected(&|program, _| program.rules[0].priority = 1 << 16);
    assert!(matches!(found, VerifyError::Priority { .. }), "{found}");
    let found = rejected(&|program, _| program.rules[0].app = AppId::GLOBAL);
    assert!(matches!(found, VerifyError::GlobalNotGranted { .. }), "{found}");
    let found = rejected(&|program, _| {
        let mut second = program.rules[0].clone();
        second.name = "s".into();
        program.rules.push(second);
    });
    let names = "rules r and s both have priority 0 and can match the same input";
    assert_eq!(found.to_string(), names);
    let found = rejected(&|_, grant| grant.command_ops = 1);
    let cost = "a read of a may need 2 operations, more than 1: r (line 3, column 1): 2";
    assert_eq!(found.to_string(), cost);
    assert_eq!(found.location(), Some(RuleLocation { line: 3, column: 1 }));
}

#[test]
fn the_cost_is_that_of_the_longest_path_with_loops_and_hops() {
    use RuleOp::*;
    // 5 rounds of 2 + 1 instructions, then 2; or 1.
    let code = [
        new(ConstBool).to(9),
        new(JumpIfNot).a(9).imm(7),
        new(Loop).to(10).a(1).pair(5, 6),
        new(Const).to(11),
        new(Const).to(11),
        new(LoopEnd).imm(2),
        new(Const).to(12),
        new(Again),
    ];
    let mut program = with_action(&code);
    program.rules[0].hops = 3;
    let verified = verify(program, &RuleGrant::default()).unwrap_or_else(|e| panic!("{e}"));
    let action = 2 + 1 + 5 * 3 + 2;
    assert_eq!(verified.rule_cost(rules::RuleId::new(0)), action);
    // Matching costs an operation.
    assert_eq!(verified.command_cost(AppId::new(0), InputOp::Read), 4 * (action + 1));
}

#[test]
fn uploads_cut_short_or_changed_are_refused() {
    let bytes = with_action(&[DONE]).encode();
    assert!(RuleProgram::decode(&bytes).is_ok());
    for len in 0..bytes.len() {
        assert!(RuleProgram::decode(&bytes[..len]).is_err(), "{len} bytes");
    }
    let twice = [bytes.clone(), bytes.clone()].concat();
    assert!(matches!(RuleProgram::decode(&twice), Err(ProgramDecodeError::Checksum { .. })));
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        assert!(RuleProgram::decode(&changed).is_err(), "byte {at}");
    }
}
