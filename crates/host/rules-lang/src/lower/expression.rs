//! Expressions: types and instructions.

use rules::{
    HeaderRegister, Instruction, PlacementStream, RuleOp, RuleTrigger, TableId, TableKind,
};

use crate::ast::{BinaryOp, Bytes, Expression, ExpressionKind, SourceName};
use crate::error::{Problem, RuleSourceProblem};

use super::code::{RuleCode, RuleValue, ValueType, Variable};
use super::condition::{operation, path};
use super::{Lowered, units_of};

/// Returns the register of a field of the header.
pub(super) fn header_register(field: &str) -> Option<HeaderRegister> {
    Some(match field {
        "lba" => HeaderRegister::Lba,
        "sectors" => HeaderRegister::Sectors,
        "arg0" => HeaderRegister::Arg0,
        "arg1" => HeaderRegister::Arg1,
        "tag" => HeaderRegister::Tag,
        "buffer" => HeaderRegister::Buffer,
        _ => return None,
    })
}

/// Fields of the header, for messages.
const HEADER_FIELDS: [&str; 8] = ["op", "lba", "sectors", "arg0", "arg1", "tag", "buffer", "addr"];

const INT: ValueType = ValueType::Int;
const BOOL: ValueType = ValueType::Bool;

impl RuleCode<'_> {
    /// Lowers an expression of a type.
    pub(super) fn typed(&mut self, expression: &Expression, of: ValueType) -> Lowered<RuleValue> {
        let value = self.expression(expression)?;
        if value.of != of {
            let (expected, found) = (of.describe(), value.of.describe());
            let problem = RuleSourceProblem::WrongType { expected, found };
            return Err(Problem::new(&expression.span, problem));
        }
        Ok(value)
    }

    pub(super) fn constant_int(&mut self, span: &Bytes, value: u64) -> Lowered<RuleValue> {
        self.value(span, INT, Instruction::new(RuleOp::Const).imm(value))
    }

    pub(super) fn expression(&mut self, expression: &Expression) -> Lowered<RuleValue> {
        let span = &expression.span;
        match &expression.kind {
            ExpressionKind::Int(value) => self.constant_int(span, *value),
            ExpressionKind::Bool(value) => {
                let constant = Instruction::new(RuleOp::ConstBool).imm((*value).into());
                self.value(span, BOOL, constant)
            }
            ExpressionKind::Path(path) => self.path(span, path),
            ExpressionKind::Index(base, index) => self.element(span, base, index),
            ExpressionKind::Binary(op, a, b) => self.binary(span, *op, a, b),
            ExpressionKind::Not(inner) => {
                let inner = self.typed(inner, BOOL)?;
                self.value(span, BOOL, Instruction::new(RuleOp::Not).a(inner.register))
            }
            ExpressionKind::In(key, table) => {
                let key = self.typed(key, INT)?;
                let table = self.key_table(table)?;
                let contains = Instruction::new(RuleOp::TableContains).a(key.register);
                self.value(span, BOOL, contains.imm(table.index() as u64))
            }
            ExpressionKind::Call(function, arguments) => self.call(span, function, arguments),
            ExpressionKind::None(inner) => {
                let value = self.expression(inner)?;
                let op = match value.of {
                    ValueType::Int => RuleOp::IsNoneInt,
                    ValueType::Line => RuleOp::IsNoneLine,
                    of => {
                        let (expected, found) = ("a number or a line", of.describe());
                        let problem = RuleSourceProblem::WrongType { expected, found };
                        return Err(Problem::new(&inner.span, problem));
                    }
                };
                self.value(span, BOOL, Instruction::new(op).a(value.register))
            }
            ExpressionKind::Last { record, field, count, key } => {
                let (field, index) = self.field(record, field)?;
                let count = self.typed(count, INT)?;
                let key = self.typed(key, INT)?;
                let search = Instruction::new(RuleOp::SearchLast).imm(field);
                let search = search.a(count.register).b(key.register).c(index);
                self.value(span, INT, search)
            }
            ExpressionKind::Best { app, score, filter } => {
                self.best(span, app, score, filter.as_deref())
            }
        }
    }

    /// Lowers a condition: the conjunction of its parts. It has no instructions if it is empty.
    pub(super) fn condition(&mut self, parts: &[&Expression]) -> Lowered<()> {
        let Some((last, parts)) = parts.split_last() else { return Ok(()) };
        let mut fails = Vec::new();
        for part in parts {
            let mark = self.mark();
            let value = self.typed(part, BOOL)?;
            fails.push(self.emit(Instruction::new(RuleOp::JumpIfNot).a(value.register)));
            self.release(mark);
        }
        let value = self.typed(last, BOOL)?;
        self.emit(Instruction::new(RuleOp::Match).a(value.register));
        if !fails.is_empty() {
            for jump in fails {
                self.land(jump);
            }
            let value = self.value(&last.span, BOOL, Instruction::new(RuleOp::ConstBool))?;
            self.emit(Instruction::new(RuleOp::Match).a(value.register));
        }
        Ok(())
    }

    fn binary(
        &mut self,
        span: &Bytes,
        op: BinaryOp,
        left: &Expression,
        right: &Expression,
    ) -> Lowered<RuleValue> {
        if let Some(value) = self.operation_test(span, op, left, right)? {
            return Ok(value);
        }
        if matches!(op, BinaryOp::And | BinaryOp::Or) {
            return self.choice(span, op, left, right);
        }
        let (a, b) = (self.typed(left, INT)?.register, self.typed(right, INT)?.register);
        let (op, a, b, of) = match op {
            BinaryOp::Eq => (RuleOp::Eq, a, b, BOOL),
            BinaryOp::Ne => (RuleOp::Ne, a, b, BOOL),
            BinaryOp::Lt => (RuleOp::Lt, a, b, BOOL),
            BinaryOp::Le => (RuleOp::Le, a, b, BOOL),
            BinaryOp::Gt => (RuleOp::Lt, b, a, BOOL),
            BinaryOp::Ge => (RuleOp::Le, b, a, BOOL),
            BinaryOp::BitOr => (RuleOp::Or, a, b, INT),
            BinaryOp::BitXor => (RuleOp::Xor, a, b, INT),
            BinaryOp::BitAnd => (RuleOp::And, a, b, INT),
            BinaryOp::Shl => (RuleOp::Shl, a, b, INT),
            BinaryOp::Shr => (RuleOp::Shr, a, b, INT),
            BinaryOp::Add => (RuleOp::Add, a, b, INT),
            BinaryOp::Sub => (RuleOp::Sub, a, b, INT),
            BinaryOp::Mul => (RuleOp::Mul, a, b, INT),
            BinaryOp::Div => (RuleOp::Div, a, b, INT),
            BinaryOp::Rem => (RuleOp::Rem, a, b, INT),
            BinaryOp::And | BinaryOp::Or => unreachable!("lowered above"),
        };
        self.value(span, of, Instruction::new(op).a(a).b(b))
    }

    /// Lowers `and` and `or`: the right side runs only if it decides.
    fn choice(
        &mut self,
        span: &Bytes,
        op: BinaryOp,
        left: &Expression,
        right: &Expression,
    ) -> Lowered<RuleValue> {
        let register = self.register(span)?;
        let mark = self.mark();
        let value = self.typed(left, BOOL)?;
        self.emit(Instruction::new(RuleOp::MoveBool).to(register).a(value.register));
        let tested = match op {
            BinaryOp::And => register,
            _ => self.value(span, BOOL, Instruction::new(RuleOp::Not).a(register))?.register,
        };
        let jump = self.emit(Instruction::new(RuleOp::JumpIfNot).a(tested));
        self.release(mark);
        let value = self.typed(right, BOOL)?;
        self.emit(Instruction::new(RuleOp::MoveBool).to(register).a(value.register));
        self.release(mark);
        self.land(jump);
        Ok(RuleValue { register, of: BOOL })
    }

    /// Lowers `header.op == NAME` and `header.op != NAME`.
    fn operation_test(
        &mut self,
        span: &Bytes,
        op: BinaryOp,
        left: &Expression,
        right: &Expression,
    ) -> Lowered<Option<RuleValue>> {
        let is_op = path(left).is_some_and(|path| {
            path.len() == 2 && path[0].text == "header" && path[1].text == "op"
        });
        let of_op = match op {
            BinaryOp::Eq => RuleOp::Eq,
            BinaryOp::Ne => RuleOp::Ne,
            _ => return Ok(None),
        };
        if !is_op {
            return Ok(None);
        }
        self.needs_command(span, "the operation of a command")?;
        let word = match path(right) {
            Some([word]) => word,
            _ => {
                let (expected, found) = ("the name of an operation".into(), "another".into());
                let problem = RuleSourceProblem::Expected { expected, found };
                return Err(Problem::new(&right.span, problem));
            }
        };
        let code = self.operation_code(word)?;
        let constant = self.constant_int(&word.span, code)?;
        let test = Instruction::new(of_op).a(HeaderRegister::Op as u8).b(constant.register);
        self.value(span, BOOL, test).map(Some)
    }

    pub(super) fn operation_code(&self, word: &SourceName) -> Lowered<u64> {
        operation(&word.text).map(|op| op as u64).ok_or_else(|| {
            let known = rules::InputOp::ALL.iter().map(|(_, name)| *name);
            Problem::unknown(&word.span, "operation", &word.text, known)
        })
    }

    fn path(&mut self, span: &Bytes, path: &[SourceName]) -> Lowered<RuleValue> {
        let words: Vec<&str> = path.iter().map(|name| name.text.as_str()).collect();
        match words[..] {
            ["header", field] => self.header(span, &path[1], field),
            ["channel", "app"] => {
                let (part, allowed) = ("`channel.app`", "`channel.app == APP`, joined by `and`");
                Err(Problem::new(span, RuleSourceProblem::NotHere { part, allowed }))
            }
            [name] => match self.lookup(name) {
                Some(Variable::Value(value)) => Ok(value),
                Some(_) => {
                    let (expected, found) = ("a value", "a record");
                    let problem = RuleSourceProblem::WrongType { expected, found };
                    Err(Problem::new(span, problem))
                }
                None => Err(self.unknown(&path[0], "variable")),
            },
            ["line", field] => match self.lookup("line") {
                Some(Variable::Line(register)) => self.line_fact(span, register, &path[1], field),
                _ => {
                    let (part, allowed) = ("`line`", "`best line of`");
                    Err(Problem::new(span, RuleSourceProblem::NotHere { part, allowed }))
                }
            },
            [name, field] => match self.lookup(name) {
                Some(Variable::Record { .. } | Variable::Sector(_)) => {
                    let (field, index) = self.field(&path[0], &path[1])?;
                    let zero = self.constant_int(span, 0)?;
                    let load = Instruction::new(RuleOp::FieldLoad).imm(field);
                    self.value(span, INT, load.a(index).b(zero.register))
                }
                Some(_) => Err(self.unknown(&path[0], "record")),
                None if self.declared.table_named(name).is_some() => {
                    self.table_fact(span, &path[0], &path[1], field)
                }
                None => self.app_fact(span, &path[0], &path[1], field),
            },
            [_, "wear", which] => {
                let app = self.declared.app(&path[0])?;
                self.own(app, &path[0].span)?;
                let op = match which {
                    "min" => RuleOp::WearMin,
                    "max" => RuleOp::WearMax,
                    _ => {
                        let known = ["min", "max"].into_iter();
                        return Err(Problem::unknown(&path[2].span, "field", which, known));
                    }
                };
                self.value(span, INT, Instruction::new(op))
            }
            _ => Err(self.unknown(&path[0], "name")),
        }
    }

    fn header(&mut self, span: &Bytes, name: &SourceName, field: &str) -> Lowered<RuleValue> {
        let has_header = matches!(self.trigger, RuleTrigger::Command | RuleTrigger::Moved);
        self.needs(has_header, span, "`header`", "rules for commands and for moved sectors")?;
        if let Some(register) = header_register(field) {
            return Ok(RuleValue { register: register as u8, of: INT });
        }
        if field == "addr" {
            return match self.address.filter(|_| self.has_address) {
                Some(register) => Ok(RuleValue { register, of: ValueType::Address }),
                None => Err(self.unknown(name, "value of")),
            };
        }
        match operation(field) {
            Some(op) => {
                self.needs_command(span, "the operation of a command")?;
                let code = self.constant_int(span, op as u64)?;
                let test = Instruction::new(RuleOp::Eq).a(HeaderRegister::Op as u8);
                self.value(span, BOOL, test.b(code.register))
            }
            None => {
                let operations = rules::InputOp::ALL.iter().map(|(_, name)| *name);
                let known = HEADER_FIELDS.into_iter().chain(operations);
                Err(Problem::unknown(&name.span, "field of the header", field, known))
            }
        }
    }

    fn line_fact(
        &mut self,
        span: &Bytes,
        register: u8,
        name: &SourceName,
        field: &str,
    ) -> Lowered<RuleValue> {
        const FACTS: [&str; 4] = ["sectors", "valid", "age", "erases"];
        match FACTS.iter().position(|fact| *fact == field) {
            Some(which) => {
                let fact = Instruction::new(RuleOp::LineFact).a(register).imm(which as u64);
                self.value(span, INT, fact)
            }
            None => Err(Problem::unknown(&name.span, "field of a line", field, FACTS.into_iter())),
        }
    }

    fn table_fact(
        &mut self,
        span: &Bytes,
        table: &SourceName,
        name: &SourceName,
        field: &str,
    ) -> Lowered<RuleValue> {
        if field != "free" {
            let known = ["free"].into_iter();
            return Err(Problem::unknown(&name.span, "field of a table", field, known));
        }
        let table = self.key_table(table)?;
        self.value(span, INT, Instruction::new(RuleOp::TableFree).imm(table.index() as u64))
    }

    fn app_fact(
        &mut self,
        span: &Bytes,
        app: &SourceName,
        name: &SourceName,
        field: &str,
    ) -> Lowered<RuleValue> {
        let Ok(found) = self.declared.app(app) else { return Err(self.unknown(app, "name")) };
        self.own(found, &app.span)?;
        match field {
            "free_lines" => self.value(span, INT, Instruction::new(RuleOp::FreeLines)),
            "sectors" if found != rules::AppId::GLOBAL => {
                let sectors = self.declared.program.apps[found.index()].sectors;
                self.constant_int(span, sectors)
            }
            "units" if found != rules::AppId::GLOBAL => {
                let app = &self.declared.program.apps[found.index()];
                self.constant_int(span, units_of(app))
            }
            _ => {
                let known = ["free_lines", "sectors", "units", "wear"].into_iter();
                Err(Problem::unknown(&name.span, "field of an application", field, known))
            }
        }
    }

    /// Returns the constant that names a field, and the register of the record's index.
    fn field(&mut self, record: &SourceName, field: &SourceName) -> Lowered<(u64, u8)> {
        let Variable::Record { layout, index, .. } = self.record(record)? else {
            return Err(self.unknown(record, "record"));
        };
        let fields = &self.declared.program.layouts[layout.index()].fields;
        match fields.iter().position(|known| known.name == field.text) {
            Some(at) => Ok((layout.index() as u64 | (at as u64) << 32, index)),
            None => {
                let known = fields.iter().map(|field| field.name.as_str());
                Err(Problem::unknown(&field.span, "field", &field.text, known))
            }
        }
    }

    /// Lowers an element of a table or of a field.
    fn element(
        &mut self,
        span: &Bytes,
        base: &Expression,
        index: &Expression,
    ) -> Lowered<RuleValue> {
        match path(base) {
            Some([record, field]) if self.lookup(&record.text).is_some() => {
                let (field, record) = self.field(record, field)?;
                let index = self.typed(index, INT)?;
                let load = Instruction::new(RuleOp::FieldLoad).imm(field);
                self.value(span, INT, load.a(record).b(index.register))
            }
            Some([table]) => {
                let table = self.own_table(table)?;
                let index = self.typed(index, INT)?;
                match self.declared.program.tables[table.index()].kind {
                    TableKind::Address => {
                        self.needs_command(span, "the map")?;
                        let load = Instruction::new(RuleOp::MapLoad).a(index.register);
                        self.value(span, ValueType::Address, load)
                    }
                    TableKind::Set(_) => {
                        let (expected, found) = ("a table with elements", "a set");
                        let problem = RuleSourceProblem::WrongType { expected, found };
                        Err(Problem::new(&base.span, problem))
                    }
                    TableKind::Array(_) | TableKind::Map { .. } => {
                        let load = Instruction::new(RuleOp::TableLoad).a(index.register);
                        self.value(span, INT, load.imm(table.index() as u64))
                    }
                }
            }
            Some([name, ..]) => Err(self.unknown(name, "name")),
            _ => {
                let (expected, found) = ("a table or a field".into(), "an expression".into());
                let problem = RuleSourceProblem::Expected { expected, found };
                Err(Problem::new(&base.span, problem))
            }
        }
    }

    /// Returns a set or a map of the rule's application.
    pub(super) fn key_table(&self, name: &SourceName) -> Lowered<TableId> {
        let table = self.own_table(name)?;
        match self.declared.program.tables[table.index()].kind {
            TableKind::Set(_) | TableKind::Map { .. } => Ok(table),
            _ => {
                let (expected, found) = ("a set or a map", "a table by index");
                let problem = RuleSourceProblem::WrongType { expected, found };
                Err(Problem::new(&name.span, problem))
            }
        }
    }

    fn call(
        &mut self,
        span: &Bytes,
        function: &SourceName,
        arguments: &[Expression],
    ) -> Lowered<RuleValue> {
        const FUNCTIONS: [(&str, usize); 7] = [
            ("idle", 1),
            ("moved", 1),
            ("next_addr", 1),
            ("name", 1),
            ("min", 2),
            ("max", 2),
            ("sat", 1),
        ];
        let name = function.text.as_str();
        let Some((_, count)) = FUNCTIONS.iter().find(|(known, _)| *known == name) else {
            let known = FUNCTIONS.iter().map(|(known, _)| *known);
            return Err(Problem::unknown(&function.span, "function", name, known));
        };
        if arguments.len() != *count {
            let (expected, found) = (format!("{count} arguments"), arguments.len().to_string());
            let problem = RuleSourceProblem::Expected { expected, found };
            return Err(Problem::new(span, problem));
        }
        match name {
            "idle" => {
                let Some([app]) = path(&arguments[0]) else {
                    let (expected, found) = ("an application".into(), "an expression".into());
                    let problem = RuleSourceProblem::Expected { expected, found };
                    return Err(Problem::new(&arguments[0].span, problem));
                };
                self.own(self.declared.app(app)?, &app.span)?;
                self.value(span, BOOL, Instruction::new(RuleOp::Idle))
            }
            "moved" => {
                let (part, allowed) = ("`moved`", "the condition of a rule, joined by `and`");
                Err(Problem::new(span, RuleSourceProblem::NotHere { part, allowed }))
            }
            "sat" => {
                let (part, allowed) = ("`sat`", "`TABLE[INDEX] = sat(VALUE)`");
                Err(Problem::new(span, RuleSourceProblem::NotHere { part, allowed }))
            }
            "next_addr" => {
                self.needs_command(span, "`next_addr`")?;
                let Some([app, stream]) = path(&arguments[0]) else {
                    let (expected, found) = ("`APP.STREAM`".into(), "an expression".into());
                    let problem = RuleSourceProblem::Expected { expected, found };
                    return Err(Problem::new(&arguments[0].span, problem));
                };
                let stream = self.stream(app, stream)?;
                let next = Instruction::new(RuleOp::NextAddress).imm(stream);
                self.value(span, ValueType::Address, next)
            }
            "name" => {
                let name = self.typed(&arguments[0], INT)?;
                let named = Instruction::new(RuleOp::NamedAddress).a(name.register);
                self.value(span, ValueType::Address, named)
            }
            _ => {
                let op = if name == "min" { RuleOp::Min } else { RuleOp::Max };
                let a = self.typed(&arguments[0], INT)?;
                let b = self.typed(&arguments[1], INT)?;
                self.value(span, INT, Instruction::new(op).a(a.register).b(b.register))
            }
        }
    }

    /// Returns the code of a stream of the rule's application.
    pub(super) fn stream(&self, app: &SourceName, stream: &SourceName) -> Lowered<u64> {
        self.own(self.declared.app(app)?, &app.span)?;
        let found = PlacementStream::ALL.iter().find(|(_, name)| *name == stream.text);
        found.map(|(found, _)| *found as u64).ok_or_else(|| {
            let known = PlacementStream::ALL.iter().map(|(_, name)| *name);
            Problem::unknown(&stream.span, "stream", &stream.text, known)
        })
    }

    /// Lowers `best line`: a loop over the lines that keeps the largest score, as a number with a
    /// sign.
    fn best(
        &mut self,
        span: &Bytes,
        app: &SourceName,
        score: &Expression,
        filter: Option<&Expression>,
    ) -> Lowered<RuleValue> {
        self.own(self.declared.app(app)?, &app.span)?;
        let best = self.value(span, ValueType::Line, Instruction::new(RuleOp::NoLine))?;
        let best_score = self.constant_int(span, 0)?;
        let end = self.value(span, INT, Instruction::new(RuleOp::Lines))?;
        let mark = self.mark();
        let index = self.begin_loop(span, end.register, self.declared.options.lines)?;
        let at = Instruction::new(RuleOp::LineAt).a(index.register);
        let line = self.value(span, ValueType::Line, at)?;
        let block = self.open();
        let name = SourceName { text: "line".into(), span: span.clone() };
        self.declare_line(&name, line.register)?;
        let mut skips = Vec::new();
        if let Some(filter) = filter {
            let mark = self.mark();
            let value = self.typed(filter, BOOL)?;
            skips.push(self.emit(Instruction::new(RuleOp::JumpIfNot).a(value.register)));
            self.release(mark);
        }
        let score = self.typed(score, INT)?;
        // The first line has no score to compare with.
        let is_none = Instruction::new(RuleOp::IsNoneLine).a(best.register);
        let is_better = self.value(span, BOOL, is_none)?;
        let not = Instruction::new(RuleOp::Not).a(is_better.register);
        let compares = self.value(span, BOOL, not)?;
        let take = self.emit(Instruction::new(RuleOp::JumpIfNot).a(compares.register));
        let compare = Instruction::new(RuleOp::LtSigned).a(best_score.register).b(score.register);
        self.emit(compare.to(is_better.register));
        skips.push(self.emit(Instruction::new(RuleOp::JumpIfNot).a(is_better.register)));
        self.land(take);
        self.emit(Instruction::new(RuleOp::MoveInt).to(best_score.register).a(score.register));
        self.emit(Instruction::new(RuleOp::MoveLine).to(best.register).a(line.register));
        for skip in skips {
            self.land(skip);
        }
        self.close(&block);
        self.end_loop(index);
        self.release(mark);
        Ok(best)
    }
}
