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
        quota_ppm: 0,
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
    let quotas = |program: &mut RuleProgram, quotas: [u32; 2]| {
        for (app, quota_ppm) in program.apps.iter_mut().zip(quotas) {
            (app.first_unit, app.last_unit, app.quota_ppm) = (3, 4, quota_ppm);
        }
    };
    let found = rejected(&|program, _| program.apps[0].quota_ppm = 500_000);
    assert!(matches!(found, VerifyError::Quota { ref app, .. } if app == "a"), "{found}");
    for wrong in [[0, 0], [500_000, 0], [0, 500_000], [999, 500_000], [600_000, 400_001]] {
        let found = rejected(&|program, _| quotas(program, wrong));
        assert!(matches!(found, VerifyError::Quota { .. }), "{wrong:?}: {found}");
    }
    let found = rejected(&|program, _| quotas(program, [u32::MAX, u32::MAX]));
    assert!(found.to_string().contains("exceed 1"), "{found}");
    // The sectors of a quota are those of all units at most.
    let found = rejected(&|program, grant| {
        quotas(program, [400_000, 600_000]);
        (grant.unit_sectors, program.apps[1].sectors) = (1000, 1201);
    });
    assert!(matches!(found, VerifyError::Sectors { available: 1200, .. }), "{found}");
    let mut shared = base.clone();
    quotas(&mut shared, [400_000, 600_000]);
    for trigger in [RuleTrigger::Background, RuleTrigger::Moved] {
        let mut program = shared.clone();
        program.rules[0].trigger = trigger;
        (program.rules[0].ops, program.code) = (OpMask::NONE, vec![new(RuleOp::End)]);
        let found = verify(program, &grant).expect_err("not accepted");
        assert!(matches!(found, VerifyError::SharedLines { .. }), "{found}");
        assert_eq!(found.location(), Some(RuleLocation { line: 3, column: 1 }));
    }
    verify(shared, &grant).unwrap_or_else(|error| panic!("{error}"));
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

#[test]
fn quotas_are_a_field_of_programs_that_have_some() {
    let seal = collections::Seal::of_all_bytes(12);
    let own = with_action(&[DONE]);
    let mut shared = own.clone();
    for (app, quota_ppm) in shared.apps.iter_mut().zip([400_000, 600_000]) {
        (app.last_unit, app.first_unit, app.quota_ppm) = (1, 0, quota_ppm);
    }
    let [own_bytes, bytes] = [own.encode(), shared.encode()];
    assert_eq!(RuleProgram::decode(&own_bytes).as_ref(), Ok(&own));
    assert_eq!(RuleProgram::decode(&bytes).as_ref(), Ok(&shared));
    // Programs without quotas have the bytes of a drive that knows none.
    assert_eq!((own_bytes[44..48].to_vec(), bytes.len()), (vec![0; 4], own_bytes.len() + 2 * 4));
    for flags in [0, 2, 3, 1 << 31] {
        let mut changed = bytes.clone();
        changed[44..48].copy_from_slice(&u32::to_le_bytes(flags));
        seal.store(&mut changed);
        assert!(RuleProgram::decode(&changed).is_err(), "flags {flags}");
    }
    // A program has one encoded form: without a quota there is no field for it.
    let mut changed = bytes.clone();
    let fields = (0..bytes.len() - 4).filter(|at| {
        [400_000u32, 600_000].iter().any(|quota| bytes[*at..at + 4] == quota.to_le_bytes())
    });
    for at in fields.collect::<Vec<_>>() {
        changed[at..at + 4].fill(0);
    }
    seal.store(&mut changed);
    let error = RuleProgram::decode(&changed);
    assert_eq!(error, Err(ProgramDecodeError::Code("the header")));
}
