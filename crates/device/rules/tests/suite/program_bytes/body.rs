//! Makes random programs, changes some, and runs those that are accepted.
//!
//! Registers above those of the header have a type by their number, so that most programs have no
//! type errors. Some instructions are made of arbitrary bytes.

use collections::Seal;
use rules::{
    AppDeclaration, AppId, CodeRange, DriveFacts, EngineOptions, InputOp, Instruction, IntWidth,
    LineFacts, OpMask, RecordField, RecordLayout, RuleAction, RuleDeclaration, RuleEngine,
    RuleGrant, RuleInput, RuleLine, RuleLocation, RuleOp, RuleProgram, RuleStep, RuleTrigger,
    TableDeclaration, TableId, TableKind, VerifiedProgram, verify,
};
use testkit::choices::Choices;

/// Header registers; those above have the type of their number, modulo 4.
const HEADER: u64 = 7;
const REGISTERS: u64 = 40;
const SECTOR: usize = 512;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Type {
    Int = 0,
    Bool = 1,
    Address = 2,
    Line = 3,
}

fn grant() -> RuleGrant {
    RuleGrant {
        units: 8,
        unit_sectors: 1000,
        table_bytes: 1 << 16,
        command_ops: 20_000,
        background_ops: 20_000,
        allows_global: true,
        ..RuleGrant::default()
    }
}

/// Makes the code of a part.
struct CodeMaker<'a> {
    choices: &'a mut Choices,
    program: &'a RuleProgram,
    app: AppId,
    trigger: RuleTrigger,
    is_condition: bool,
    code: Vec<Instruction>,
    /// A bit for each register with a value.
    defined: u64,
    loops: u8,
}

impl CodeMaker<'_> {
    fn below(&mut self, n: u64) -> u64 {
        self.choices.below(n)
    }

    /// Returns a register of a type that has a value; makes one if there is none.
    fn get(&mut self, of: Type) -> u8 {
        let is_int_header = |r: u64| r < HEADER && of == Type::Int;
        let found: Vec<u8> = (0..REGISTERS)
            .filter(|r| self.defined >> r & 1 == 1)
            .filter(|r| is_int_header(*r) || (*r >= HEADER && r % 4 == of as u64))
            .map(|r| r as u8)
            .collect();
        if !found.is_empty() {
            return found[self.below(found.len() as u64) as usize];
        }
        let d = self.any_register(of);
        let make = match of {
            Type::Int => Instruction::new(RuleOp::Const).imm(self.value()),
            Type::Bool => Instruction::new(RuleOp::ConstBool).imm(self.below(2)),
            Type::Address => Instruction::new(RuleOp::NextAddress).imm(self.below(4)),
            Type::Line => Instruction::new(RuleOp::NoLine),
        };
        self.push(make.to(d), Some(d));
        d
    }

    fn any_register(&mut self, of: Type) -> u8 {
        (8 + 4 * self.below(8) + of as u64) as u8
    }

    fn push(&mut self, instruction: Instruction, defines: Option<u8>) {
        self.code.push(instruction);
        if let Some(d) = defines {
            self.defined |= 1 << d;
        }
    }

    fn value(&mut self) -> u64 {
        match self.below(4) {
            0 => self.below(4),
            1 => self.below(2000),
            2 => u64::MAX - self.below(3),
            _ => self.choices.next_u64(),
        }
    }

    /// Returns a table of the application, of any kind.
    fn table(&mut self) -> u64 {
        let own: Vec<u64> = (0..self.program.tables.len() as u64)
            .filter(|at| self.program.tables[*at as usize].app == self.app)
            .collect();
        if own.is_empty() { 0 } else { own[self.below(own.len() as u64) as usize] }
    }

    fn kind(&self, table: u64) -> Option<TableKind> {
        self.program.tables.get(table as usize).map(|table| table.kind)
    }

    fn pure(&mut self) {
        use RuleOp::*;
        const INTS: [RuleOp; 12] = [Add, Sub, Mul, Div, Rem, And, Or, Xor, Shl, Shr, Min, Max];
        const TESTS: [RuleOp; 5] = [Eq, Ne, Lt, Le, LtSigned];
        let instruction = match self.below(13) {
            0..=3 => {
                let op = INTS[self.below(12) as usize];
                Instruction::new(op).a(self.get(Type::Int)).b(self.get(Type::Int))
            }
            4 | 5 => {
                let op = TESTS[self.below(5) as usize];
                Instruction::new(op).a(self.get(Type::Int)).b(self.get(Type::Int))
            }
            6 => Instruction::new(Const).imm(self.value()),
            7 => {
                let facts = [Idle, FreeLines, WearMin, WearMax, Lines];
                Instruction::new(facts[self.below(5) as usize])
            }
            8 => Instruction::new(LineAt).a(self.get(Type::Int)),
            9 => Instruction::new(LineFact).a(self.get(Type::Line)).imm(self.below(4)),
            10 => {
                let table = self.table();
                let key = self.get(Type::Int);
                let op = match (self.kind(table), self.below(3)) {
                    (Some(TableKind::Array(_)), _) => TableLoad,
                    (Some(TableKind::Address), _) => MapLoad,
                    (Some(TableKind::Map { .. }), 0) => TableLoad,
                    (Some(_), 1) => TableFree,
                    _ => TableContains,
                };
                Instruction::new(op).a(key).imm(table)
            }
            11 if self.trigger == RuleTrigger::Command => {
                let (layout, a, b) = (self.below(2), self.get(Type::Int), self.get(Type::Int));
                let field = self.below(3);
                let c = self.get(Type::Int);
                let op = if self.below(2) == 0 { FieldLoad } else { SearchLast };
                Instruction::new(op).a(a).b(b).c(c).pair(layout as u32, field as u32)
            }
            11 => Instruction::new(NamedAddress).a(self.get(Type::Int)),
            _ => match self.below(3) {
                0 => Instruction::new(Not).a(self.get(Type::Bool)),
                1 => Instruction::new(IsNoneInt).a(self.get(Type::Int)),
                _ => Instruction::new(IsNoneLine).a(self.get(Type::Line)),
            },
        };
        let of = match instruction.op {
            Eq | Ne | Lt | Le | LtSigned | Idle | TableContains | Not | IsNoneInt | IsNoneLine => {
                Type::Bool
            }
            LineAt => Type::Line,
            MapLoad | NamedAddress => Type::Address,
            _ => Type::Int,
        };
        let d = match of {
            Type::Int if self.has_header() && !self.is_condition && self.below(4) == 0 => {
                [1, 3, 4, 5][self.below(4) as usize]
            }
            of => self.any_register(of),
        };
        self.push(instruction.to(d), Some(d));
    }

    fn has_header(&self) -> bool {
        matches!(self.trigger, RuleTrigger::Command | RuleTrigger::Moved)
    }

    fn effect(&mut self) {
        use RuleOp::*;
        let is_command = self.trigger == RuleTrigger::Command;
        let is_polled = matches!(self.trigger, RuleTrigger::Background | RuleTrigger::Every { .. });
        let instruction = match self.below(6) {
            0 if is_command => Instruction::new(Fetch).a(self.get(Type::Int)),
            1 if is_command => Instruction::new(Emit).a(self.get(Type::Int)).imm(self.below(2)),
            2 if is_polled => {
                let line = self.get(Type::Line);
                let moves = match self.below(2) {
                    0 => Instruction::new(MoveValid),
                    _ => Instruction::new(MoveValidUpTo).b(self.get(Type::Int)),
                };
                moves.a(line).imm(self.below(4))
            }
            2 if is_command => {
                let op = [0, 2, 4, 5][self.below(4) as usize];
                Instruction::new(SetOp).imm(op)
            }
            3 if is_polled => Instruction::new(Erase).a(self.get(Type::Line)),
            3 => {
                let (a, b, c) = (self.get(Type::Int), self.get(Type::Int), self.get(Type::Int));
                Instruction::new(Post).a(a).b(b).c(c).imm(self.below(9))
            }
            _ => {
                let table = self.table();
                let key = self.get(Type::Int);
                match (self.kind(table), self.below(3)) {
                    (Some(TableKind::Array(_)), _) | (Some(TableKind::Map { .. }), 0 | 1) => {
                        Instruction::new(TableStore).a(key).b(self.get(Type::Int)).imm(table)
                    }
                    (Some(TableKind::Address), _) if is_command => {
                        Instruction::new(MapStore).a(key).b(self.get(Type::Address))
                    }
                    (Some(TableKind::Set(_)), 0 | 1) => {
                        Instruction::new(TableInsert).a(key).imm(table)
                    }
                    (Some(TableKind::Set(_) | TableKind::Map { .. }), _) => {
                        Instruction::new(TableRemove).a(key).imm(table)
                    }
                    _ => Instruction::new(Post).a(key).b(key).c(key),
                }
            }
        };
        self.push(instruction, None);
    }

    fn block(&mut self, depth: u64) {
        for _ in 0..self.below(5) {
            match self.below(10) {
                0 if depth > 0 && self.loops < 4 => {
                    let (limit, d) = (self.get(Type::Int), self.any_register(Type::Int));
                    let (before, begin) = (self.defined, self.code.len());
                    self.push(Instruction::new(RuleOp::Loop).to(d).a(limit).c(self.loops), Some(d));
                    self.loops += 1;
                    self.block(depth - 1);
                    self.loops -= 1;
                    let end = Instruction::new(RuleOp::LoopEnd).c(self.loops).imm(begin as u64);
                    self.push(end, None);
                    let (bound, after) = (self.below(6) as u32, self.code.len() as u32);
                    self.code[begin] = self.code[begin].pair(bound, after);
                    self.defined = before;
                }
                1 if depth > 0 => {
                    let test = self.get(Type::Bool);
                    let (before, jump) = (self.defined, self.code.len());
                    self.push(Instruction::new(RuleOp::JumpIfNot).a(test), None);
                    self.block(depth - 1);
                    if self.loops == 0 && self.below(3) == 0 {
                        self.end();
                    }
                    self.code[jump].imm = self.code.len() as u64;
                    self.defined = before;
                }
                2 if self.below(60) == 0 => {
                    let op = RuleOp::ALL[self.below(RuleOp::ALL.len() as u64) as usize];
                    let [d, a, b, c, ..] = self.choices.next_u64().to_le_bytes();
                    let imm = self.value();
                    self.push(Instruction::new(op).to(d).a(a).b(b).c(c).imm(imm), None);
                }
                3..=5 if !self.is_condition => self.effect(),
                _ => self.pure(),
            }
        }
    }

    /// Places or reads at an address that comes from the header in a few steps, as most rules do.
    fn decide(&mut self) {
        use RuleOp::*;
        for _ in 0..self.below(3) {
            let (a, b) = (self.get(Type::Int), self.get(Type::Int));
            let d = if self.below(3) == 0 { 1 } else { self.any_register(Type::Int) };
            let op = [Add, Sub, MoveInt, Min][self.below(4) as usize];
            self.push(Instruction::new(op).to(d).a(a).b(b), Some(d));
        }
        let key = if self.below(2) == 0 { 1 } else { self.get(Type::Int) };
        let [placed, loaded] = [Type::Address; 2].map(|of| self.any_register(of));
        if self.below(3) > 0 {
            let next = Instruction::new(NextAddress).to(placed).imm(self.below(4));
            self.push(next, Some(placed));
            self.push(Instruction::new(MapStore).a(key).b(placed), None);
        }
        if self.below(3) > 0 {
            let key = if self.below(4) == 0 { self.get(Type::Int) } else { key };
            self.push(Instruction::new(MapLoad).to(loaded).a(key), Some(loaded));
        }
        let address = self.get(Type::Address);
        self.push(Instruction::new(Submit).a(address), None);
    }

    fn end(&mut self) {
        use RuleOp::*;
        if self.is_condition {
            let value = self.get(Type::Bool);
            return self.push(Instruction::new(Match).a(value), None);
        }
        let is_command = self.trigger == RuleTrigger::Command;
        let instruction = match self.below(4) {
            0 => Instruction::new(Continue),
            1 if is_command => Instruction::new(Again),
            2 if is_command => Instruction::new(Submit).a(self.get(Type::Address)),
            _ if self.has_header() => {
                Instruction::new(Complete).a(self.get(Type::Int)).imm(self.below(6))
            }
            _ => Instruction::new(End),
        };
        self.push(instruction, None);
    }
}

fn tables(choices: &mut Choices, apps: usize) -> Vec<TableDeclaration> {
    let width =
        |choices: &mut Choices| IntWidth::from_code(choices.below(4) as u8).expect("a width");
    let mut tables = Vec::new();
    for at in 0..choices.below(6) {
        let kind = match choices.below(4) {
            0 if at < apps as u64 => TableKind::Address,
            1 => TableKind::Set(width(choices)),
            2 => TableKind::Map { key: width(choices), value: width(choices) },
            _ => TableKind::Array(width(choices)),
        };
        let app = match kind {
            TableKind::Address => AppId::from_index(at as usize),
            _ => AppId::from_index(choices.below(apps as u64) as usize),
        };
        tables.push(TableDeclaration {
            name: format!("t{at}"),
            app,
            kind,
            capacity: 1 + choices.below(100),
            is_durable: kind == TableKind::Address || choices.below(2) == 0,
        });
    }
    tables
}

fn program(choices: &mut Choices) -> RuleProgram {
    let app = |at: u32| AppDeclaration {
        name: format!("a{at}"),
        first_unit: at,
        last_unit: at,
        spare_ppm: 0,
        quota_ppm: 0,
        sectors: 1000,
    };
    let apps: Vec<_> = (0..1 + choices.below(2) as u32).map(app).collect();
    let field = |at: u32, count| RecordField {
        name: format!("f{at}"),
        offset: 8 * at,
        width: IntWidth::from_code(at as u8).expect("a width"),
        count,
    };
    let layout = |name: &str, bytes| RecordLayout {
        name: name.to_owned(),
        bytes,
        fields: vec![field(0, 3), field(1, 4), field(2, 2)],
    };
    let tables = tables(choices, apps.len());
    let layouts = vec![layout("r", 24), layout("s", 100)];
    let mut program = RuleProgram { apps, layouts, tables, ..RuleProgram::default() };
    for at in 0..1 + choices.below(5) as u32 {
        let trigger = match choices.below(8) {
            0 => RuleTrigger::Background,
            1 => RuleTrigger::Every { period_ns: 1 + choices.below(9) },
            2 => RuleTrigger::Moved,
            _ => RuleTrigger::Command,
        };
        let is_global = trigger == RuleTrigger::Background && choices.below(3) == 0;
        let app = match is_global {
            true => AppId::GLOBAL,
            false => AppId::from_index(choices.below(program.apps.len() as u64) as usize),
        };
        let ops = OpMask(1 + choices.below(0x7f) as u16);
        let part = |is_condition: bool, choices: &mut Choices| {
            let has_header = matches!(trigger, RuleTrigger::Command | RuleTrigger::Moved);
            let mut maker = CodeMaker {
                choices,
                program: &program,
                app,
                trigger,
                is_condition,
                code: Vec::new(),
                defined: if has_header { (1 << HEADER) - 1 } else { 0 },
                loops: 0,
            };
            let has_map = program
                .tables
                .iter()
                .any(|table| table.kind == TableKind::Address && table.app == app);
            let is_action = trigger == RuleTrigger::Command && !is_condition;
            match is_action && has_map && maker.below(2) == 0 {
                true => maker.decide(),
                false => {
                    maker.block(3);
                    maker.end();
                }
            }
            maker.code
        };
        let condition = if choices.below(2) == 0 { Vec::new() } else { part(true, choices) };
        let action = part(false, choices);
        let mut append = |code: Vec<Instruction>| {
            let range = CodeRange { start: program.code.len() as u32, len: code.len() as u32 };
            program.code.extend(code);
            range
        };
        let (condition, action) = (append(condition), append(action));
        program.rules.push(RuleDeclaration {
            name: format!("r{at}"),
            app,
            trigger,
            ops: if trigger == RuleTrigger::Command { ops } else { OpMask::NONE },
            priority: at + if is_global { 1 << 16 } else { 0 },
            hops: choices.below(4) as u8,
            location: RuleLocation { line: at, column: 1 },
            condition,
            action,
        });
    }
    program
}

/// Facts that are any numbers, equal for equal questions.
struct AnyFacts(u64);

impl DriveFacts for AnyFacts {
    fn is_idle(&self, _: AppId) -> bool {
        self.0 & 1 == 0
    }

    fn free_lines(&self, _: AppId) -> u64 {
        self.0 % 7
    }

    fn wear_min(&self, _: AppId) -> u64 {
        self.0 % 11
    }

    fn wear_max(&self, _: AppId) -> u64 {
        self.0 % 99
    }

    fn lines(&self, _: AppId) -> u64 {
        self.0 % 5
    }

    fn line_at(&self, app: AppId, index: u64) -> RuleLine {
        assert!(index < self.lines(app), "a line past the end");
        RuleLine::new(index as u32)
    }

    fn line_facts(&self, app: AppId, line: RuleLine) -> LineFacts {
        assert!(u64::from(line.get()) < self.lines(app), "a line that the drive does not have");
        LineFacts { sectors: 64, valid: self.0 % 65, age: self.0 % 3, erases: self.0 % 13 }
    }
}

/// Everything that an engine has returned, as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Digest(u64);

impl Digest {
    /// The digest of nothing: the basis of FNV-1a.
    pub(crate) const EMPTY: Digest = Digest(0xcbf2_9ce4_8422_2325);

    fn add(&mut self, value: &impl std::fmt::Debug) {
        for byte in format!("{value:?}").bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    /// Returns the number.
    pub(crate) fn get(self) -> u64 {
        self.0
    }

    /// Returns the digest with that of what follows.
    pub(crate) fn then(mut self, next: Digest) -> Digest {
        self.add(&next);
        self
    }
}

/// Executes the actions of an input until it ends. Returns the digest of its steps.
fn finish(
    engine: &mut RuleEngine,
    mut step: RuleStep,
    facts: &AnyFacts,
    choices: &mut Choices,
) -> Digest {
    let (mut page, mut digest) = ([0; SECTOR], Digest::EMPTY);
    loop {
        digest.add(&step);
        let RuleStep::Do(context, action) = step else { return digest };
        if choices.below(50) == 0 {
            engine.cancel(context);
            return digest;
        }
        step = match action {
            RuleAction::Fetch { .. } => {
                for byte in page.chunks_mut(8) {
                    byte.copy_from_slice(&choices.next_u64().to_le_bytes());
                }
                let len = if choices.below(4) == 0 {
                    choices.below(SECTOR as u64)
                } else {
                    SECTOR as u64
                };
                engine.resume_with(context, &page[..len as usize], facts)
            }
            RuleAction::Emit { bytes, .. } => {
                assert!(bytes.end <= engine.fetched(context).len());
                engine.resume(context, facts)
            }
            _ => engine.resume(context, facts),
        };
    }
}

/// Runs inputs. Returns the digest of their steps, the counters and the tables.
fn run(verified: VerifiedProgram, choices: &mut Choices) -> Digest {
    let apps = verified.program().apps.len() as u64;
    let tables: Vec<AppId> = verified.program().tables.iter().map(|table| table.app).collect();
    let mut digest = Digest::EMPTY;
    let options = EngineOptions { contexts: 2, sector_bytes: SECTOR, pause_ops: 50 };
    let mut engine = RuleEngine::install(verified, options);
    for _ in 0..4 {
        let app = AppId::from_index(choices.below(apps) as usize);
        let (op, _) = InputOp::ALL[choices.below(InputOp::ALL.len() as u64) as usize];
        let value = |choices: &mut Choices| match choices.below(3) {
            0 => choices.below(200),
            _ => choices.next_u64(),
        };
        let input = RuleInput {
            op,
            lba: value(choices),
            sectors: choices.below(9),
            arg0: value(choices),
            arg1: value(choices),
            tag: value(choices),
            buffer_bytes: choices.below(300),
        };
        let facts = AnyFacts(choices.next_u64());
        let step = match choices.below(6) {
            0 => engine.begin_background(app, &facts),
            1 => engine.begin_background(AppId::GLOBAL, &facts),
            2 => engine.begin_moved(app, &input, &facts),
            3 => {
                let periodic: Vec<_> = engine.periodic_rules().collect();
                match periodic.first() {
                    Some((rule, _)) => engine.begin_periodic(*rule, &facts),
                    None => engine.begin_command(app, &input, &facts),
                }
            }
            _ => engine.begin_command(app, &input, &facts),
        };
        let step = step.expect("a free context");
        digest = digest.then(finish(&mut engine, step, &facts, choices));
        digest.add(&(engine.ended_ops(), engine.counters()));
        engine.check_invariants();
    }
    for (at, app) in tables.into_iter().enumerate() {
        let table = TableId::from_index(at);
        (0..100).for_each(|key| digest.add(&engine.load(app, table, key)));
    }
    digest
}

/// Changes bytes and repairs the checksum.
fn changed(mut bytes: Vec<u8>, choices: &mut Choices) -> Vec<u8> {
    for _ in 0..1 + choices.below(4) {
        let at = choices.below(bytes.len() as u64) as usize;
        bytes[at] = match choices.below(4) {
            0 => choices.next_u64() as u8,
            1 => bytes[at] ^ 1 << choices.below(8),
            2 => 0,
            _ => 0xff,
        };
    }
    if choices.below(10) == 0 {
        bytes.truncate(choices.below(bytes.len() as u64) as usize);
    }
    if bytes.len() >= 16 {
        Seal::of_all_bytes(12).store(&mut bytes);
    }
    bytes
}

/// Decodes, verifies and runs bytes. Returns the digest of the runs of a program that is accepted.
fn accepts(bytes: &[u8], choices: &mut Choices) -> Option<Digest> {
    let program = match RuleProgram::decode(bytes) {
        Ok(program) => program,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return None;
        }
    };
    assert_eq!(program.encode(), bytes, "encoding is unique");
    match verify(program, &grant()) {
        Ok(verified) => Some(run(verified, choices)),
        Err(error) => {
            assert!(!error.to_string().is_empty());
            None
        }
    }
}

/// Makes a program, changes some of its bytes with a chance of a fifth, and runs it. Returns the
/// digest of its results if it is accepted.
pub(crate) fn survives(choices: &mut Choices) -> Option<Digest> {
    let mut bytes = program(choices).encode();
    if choices.below(5) == 0 {
        bytes = changed(bytes, choices);
    }
    accepts(&bytes, choices)
}

/// Runs a fuzzer's bytes: as a program, and as choices.
pub(crate) fn fuzz(bytes: &[u8]) {
    let mut sealed = bytes.to_vec();
    if sealed.len() >= 16 {
        Seal::of_all_bytes(12).store(&mut sealed);
    }
    accepts(&sealed, &mut Choices::of(bytes));
    survives(&mut Choices::of(bytes));
}
