//! Statements.

use rules::{
    HeaderRegister, Instruction, IntWidth, LOOP_DEPTH_MAX, RuleOp, RuleStatus, RuleTrigger,
    TableKind,
};

use crate::ast::{
    Bytes, Expression, ExpressionKind, RuleItem, SourceName, StatementKind, StatementNode,
};
use crate::error::{Problem, RuleSourceProblem};

use super::Lowered;
use super::code::{BlockStart, RuleCode, RuleValue, ValueType, Variable};
use super::condition::path;
use super::expression::header_register;

/// Whether the next statement is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathEnd {
    Open,
    Ended,
}

/// Kinds of events, with their names.
const EVENTS: [(&str, u64); 1] = [("migrated", 1)];

const INT: ValueType = ValueType::Int;

/// A loop whose `LoopEnd` is not emitted.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenLoop {
    pub(super) register: u8,
    begin: usize,
    bound: u32,
}

impl RuleCode<'_> {
    /// Lowers the state changes and actions of a rule.
    pub(super) fn action(&mut self, item: &RuleItem) -> Lowered<()> {
        if self.statements(&item.body)? == PathEnd::Open {
            if self.trigger == RuleTrigger::Command {
                return Err(Problem::new(&item.name.span, RuleSourceProblem::NoDecision));
            }
            self.emit(Instruction::new(RuleOp::End));
        }
        Ok(())
    }

    fn statements(&mut self, body: &[StatementNode]) -> Lowered<PathEnd> {
        let mut end = PathEnd::Open;
        for statement in body {
            if end == PathEnd::Ended {
                return Err(Problem::new(&statement.span, RuleSourceProblem::Unreachable));
            }
            end = self.statement(statement)?;
        }
        Ok(end)
    }

    fn block(&mut self, body: &[StatementNode]) -> Lowered<PathEnd> {
        let start = self.open();
        let end = self.statements(body)?;
        self.close(&start);
        Ok(end)
    }

    fn statement(&mut self, statement: &StatementNode) -> Lowered<PathEnd> {
        let (span, mark) = (&statement.span, self.mark());
        match &statement.kind {
            StatementKind::Assign { target, value } => return self.assign(target, value),
            StatementKind::Each { variable, table, value } => {
                self.each(span, variable, table, value)?;
            }
            StatementKind::Sectors { variable, bound, body } => {
                self.sectors(span, variable, bound, body)?;
            }
            StatementKind::Count { variable, to, bound, body } => {
                let bound = self.bound(bound)?;
                let end = self.typed(to, INT)?;
                let index = self.begin_loop(span, end.register, bound)?;
                let start = self.open();
                let value = RuleValue { register: index.register, of: INT };
                self.declare(variable, Variable::Value(value))?;
                self.repeated(&start, span, body)?;
                self.end_loop(index);
            }
            StatementKind::Records { variable, record, sector, body } => {
                self.records(span, variable, [record, sector], body)?;
            }
            StatementKind::If { condition, then, otherwise } => {
                return self.choose(condition, then, otherwise);
            }
            StatementKind::Fetch { variable, record, at } => {
                self.needs_command(span, "`fetch`")?;
                let layout = self.declared.layout_of(record)?;
                let at = self.typed(at, INT)?;
                self.emit(Instruction::new(RuleOp::Fetch).a(at.register));
                self.release(mark);
                self.fetch += 1;
                let zero = self.constant_int(span, 0)?;
                let (index, fetch) = (zero.register, self.fetch);
                self.declare(variable, Variable::Record { layout, index, fetch })?;
                return Ok(PathEnd::Open);
            }
            StatementKind::Emit { record } => {
                self.needs_command(span, "`emit`")?;
                let Variable::Record { layout, index, .. } = self.record(record)? else {
                    return Err(self.unknown(record, "record"));
                };
                let emit = Instruction::new(RuleOp::Emit).a(index).imm(layout.index() as u64);
                self.emit(emit);
            }
            StatementKind::Insert => {
                self.needs_command(span, "`insert lun`")?;
                let Some(register) = self.address.filter(|_| self.has_address) else {
                    let name = SourceName { text: "header.addr".into(), span: span.clone() };
                    return Err(self.unknown(&name, "value of"));
                };
                self.emit(Instruction::new(RuleOp::Submit).a(register));
                return Ok(PathEnd::Ended);
            }
            StatementKind::Continue => {
                self.emit(Instruction::new(RuleOp::Continue));
                return Ok(PathEnd::Ended);
            }
            StatementKind::Again => {
                self.needs_command(span, "`again`")?;
                self.emit(Instruction::new(RuleOp::Again));
                return Ok(PathEnd::Ended);
            }
            StatementKind::Complete { status, value } => {
                return self.complete(span, status, value.as_ref());
            }
            StatementKind::Move { line, app, stream, units } => {
                self.needs_lines(span, "`move`")?;
                let stream = self.stream(app, stream)?;
                let line = self.typed(line, ValueType::Line)?;
                let moves = match units {
                    Some(units) => {
                        let units = self.typed(units, INT)?;
                        Instruction::new(RuleOp::MoveValidUpTo).a(line.register).b(units.register)
                    }
                    None => Instruction::new(RuleOp::MoveValid).a(line.register),
                };
                self.emit(moves.imm(stream));
            }
            StatementKind::Erase { line } => {
                self.needs_lines(span, "`erase`")?;
                let line = self.typed(line, ValueType::Line)?;
                self.emit(Instruction::new(RuleOp::Erase).a(line.register));
            }
            StatementKind::Post { kind, values } => self.post(span, kind, values)?,
            StatementKind::Add { key, table } => {
                let key = self.typed(key, INT)?;
                let id = self.own_table(table)?;
                if !matches!(self.declared.program.tables[id.index()].kind, TableKind::Set(_)) {
                    let (expected, found) = ("a set", "another table");
                    let problem = RuleSourceProblem::WrongType { expected, found };
                    return Err(Problem::new(&table.span, problem));
                }
                let insert = Instruction::new(RuleOp::TableInsert).a(key.register);
                self.emit(insert.imm(id.index() as u64));
            }
            StatementKind::Remove { key, table } => {
                let key = self.typed(key, INT)?;
                let table = self.key_table(table)?;
                let remove = Instruction::new(RuleOp::TableRemove).a(key.register);
                self.emit(remove.imm(table.index() as u64));
            }
        }
        self.release(mark);
        Ok(PathEnd::Open)
    }

    fn needs_lines(&self, span: &Bytes, part: &'static str) -> Lowered<()> {
        let is_polled = matches!(self.trigger, RuleTrigger::Background | RuleTrigger::Every { .. });
        self.needs(is_polled, span, part, "background and periodic rules")
    }

    fn bound(&self, bound: &Expression) -> Lowered<u32> {
        let bound = self.declared.constant(bound, "the bound of a loop", 1, u32::MAX.into())?;
        Ok(bound as u32)
    }

    fn assign(&mut self, target: &Expression, value: &Expression) -> Lowered<PathEnd> {
        let mark = self.mark();
        match (&target.kind, path(target)) {
            (ExpressionKind::Index(base, index), _) => {
                self.assign_element(base, index, value)?;
                self.release(mark);
            }
            (_, Some([header, field])) if header.text == "header" => {
                self.assign_header(field, value)?;
            }
            (_, Some([name])) => self.assign_variable(name, value)?,
            (_, Some([first, ..])) => {
                if self.lookup(&first.text).is_none() {
                    return Err(self.unknown(first, "variable"));
                }
                let (expected, found) = ("a variable", "a field of a record");
                let problem = RuleSourceProblem::WrongType { expected, found };
                return Err(Problem::new(&target.span, problem));
            }
            _ => {
                let (expected, found) = ("a variable".into(), "an expression".into());
                let problem = RuleSourceProblem::Expected { expected, found };
                return Err(Problem::new(&target.span, problem));
            }
        }
        Ok(PathEnd::Open)
    }

    fn assign_variable(&mut self, name: &SourceName, value: &Expression) -> Lowered<()> {
        let mark = self.mark();
        match self.lookup(&name.text) {
            Some(Variable::Value(variable)) => {
                let value = self.typed(value, variable.of)?;
                self.move_to(variable.register, value);
                self.release(mark);
                Ok(())
            }
            Some(_) => Err(self.unknown(name, "variable")),
            None => {
                let value = self.expression(value)?;
                self.release(mark);
                let register = self.register(&name.span)?;
                if value.register != register {
                    self.move_to(register, value);
                }
                let of = value.of;
                self.declare(name, Variable::Value(RuleValue { register, of }))
            }
        }
    }

    fn assign_header(&mut self, field: &SourceName, value: &Expression) -> Lowered<()> {
        let mark = self.mark();
        let has_header = matches!(self.trigger, RuleTrigger::Command | RuleTrigger::Moved);
        self.needs(has_header, &field.span, "`header`", "rules for commands and moved sectors")?;
        if field.text == "op" {
            self.needs_command(&field.span, "`header.op`")?;
            let Some([word]) = path(value) else {
                let (expected, found) = ("the name of an operation".into(), "a value".into());
                let problem = RuleSourceProblem::Expected { expected, found };
                return Err(Problem::new(&value.span, problem));
            };
            let code = self.operation_code(word)?;
            if code == rules::InputOp::Write as u64 {
                let (part, allowed) = ("`write`", "commands that come with data only");
                return Err(Problem::new(&word.span, RuleSourceProblem::NotHere { part, allowed }));
            }
            self.emit(Instruction::new(RuleOp::SetOp).imm(code));
            return Ok(());
        }
        if field.text == "addr" {
            self.needs_command(&field.span, "`header.addr`")?;
            let value = self.typed(value, ValueType::Address)?;
            match self.address {
                Some(register) => {
                    self.move_to(register, value);
                    self.release(mark);
                }
                // The value's own register has it from now on.
                None if value.register >= mark => {
                    self.release(mark);
                    let register = self.register(&field.span)?;
                    if value.register != register {
                        self.move_to(register, value);
                    }
                    self.address = Some(register);
                }
                None => {
                    let register = self.register(&field.span)?;
                    let copy = Instruction::new(RuleOp::MoveAddress).to(register);
                    self.emit(copy.a(value.register));
                    self.address = Some(register);
                }
            }
            self.has_address = true;
            return Ok(());
        }
        let register = header_register(&field.text)
            .filter(|register| HeaderRegister::WRITABLE >> *register as u8 & 1 == 1);
        let Some(register) = register else {
            let known = ["op", "lba", "arg0", "arg1", "tag", "addr"].into_iter();
            let kind = "field of the header that can be changed";
            return Err(Problem::unknown(&field.span, kind, &field.text, known));
        };
        let value = self.typed(value, INT)?;
        self.move_to(register as u8, value);
        self.release(mark);
        Ok(())
    }

    fn assign_element(
        &mut self,
        base: &Expression,
        index: &Expression,
        value: &Expression,
    ) -> Lowered<()> {
        let Some([name]) = path(base) else {
            let (expected, found) = ("a table".into(), "a field".into());
            let problem = RuleSourceProblem::Expected { expected, found };
            return Err(Problem::new(&base.span, problem));
        };
        let table = self.own_table(name)?;
        let width = match self.declared.program.tables[table.index()].kind {
            TableKind::Address => {
                self.needs_command(&base.span, "the map")?;
                let index = self.typed(index, INT)?;
                let value = self.typed(value, ValueType::Address)?;
                let store = Instruction::new(RuleOp::MapStore);
                self.emit(store.a(index.register).b(value.register));
                return Ok(());
            }
            TableKind::Set(_) => {
                let (expected, found) = ("a table with elements", "a set");
                let problem = RuleSourceProblem::WrongType { expected, found };
                return Err(Problem::new(&base.span, problem));
            }
            TableKind::Array(width) | TableKind::Map { value: width, .. } => width,
        };
        let index = self.typed(index, INT)?;
        let value = self.saturated(value, width)?;
        let store = Instruction::new(RuleOp::TableStore).a(index.register).b(value.register);
        self.emit(store.imm(table.index() as u64));
        Ok(())
    }

    /// Lowers a value for a table; `sat(VALUE)` is limited to the width of the element.
    fn saturated(&mut self, value: &Expression, width: IntWidth) -> Lowered<RuleValue> {
        match &value.kind {
            ExpressionKind::Call(function, arguments)
                if function.text == "sat" && arguments.len() == 1 =>
            {
                let inner = self.typed(&arguments[0], INT)?;
                let limit = self.constant_int(&value.span, width.max())?;
                let min = Instruction::new(RuleOp::Min).a(inner.register).b(limit.register);
                self.value(&value.span, INT, min)
            }
            _ => self.typed(value, INT),
        }
    }

    fn each(
        &mut self,
        span: &Bytes,
        variable: &SourceName,
        table: &SourceName,
        value: &Expression,
    ) -> Lowered<()> {
        let id = self.own_table(table)?;
        let declared = &self.declared.program.tables[id.index()];
        let TableKind::Array(width) = declared.kind else {
            let (expected, found) = ("a table of numbers by index", "another table");
            let problem = RuleSourceProblem::WrongType { expected, found };
            return Err(Problem::new(&table.span, problem));
        };
        let Ok(bound) = u32::try_from(declared.capacity) else {
            let (part, allowed) = ("the table", "4294967295 elements at most for `each`".into());
            return Err(Problem::new(&table.span, RuleSourceProblem::Range { part, allowed }));
        };
        let end = self.constant_int(span, bound.into())?;
        let index = self.begin_loop(span, end.register, bound)?;
        let start = self.open();
        let at = id.index() as u64;
        let load = Instruction::new(RuleOp::TableLoad).a(index.register).imm(at);
        let element = self.value(span, INT, load)?;
        self.declare(variable, Variable::Value(element))?;
        let value = self.saturated(value, width)?;
        let store = Instruction::new(RuleOp::TableStore).a(index.register).b(value.register);
        self.emit(store.imm(at));
        self.close(&start);
        self.end_loop(index);
        Ok(())
    }

    /// Lowers a loop over the sectors of the command; each is fetched.
    fn sectors(
        &mut self,
        span: &Bytes,
        variable: &SourceName,
        bound: &Expression,
        body: &[StatementNode],
    ) -> Lowered<()> {
        self.needs_command(span, "`header.range`")?;
        let bound = self.bound(bound)?;
        // The body may change the header.
        let first = self.register(span)?;
        let copy = Instruction::new(RuleOp::MoveInt).to(first).a(HeaderRegister::Lba as u8);
        self.emit(copy);
        let index = self.begin_loop(span, HeaderRegister::Sectors as u8, bound)?;
        let start = self.open();
        let lba = Instruction::new(RuleOp::Add).a(first).b(index.register);
        let lba = self.value(span, INT, lba)?;
        self.emit(Instruction::new(RuleOp::Fetch).a(lba.register));
        self.fetch += 1;
        self.declare(variable, Variable::Sector(self.fetch))?;
        self.repeated(&start, span, body)?;
        self.end_loop(index);
        // Behind the loop, its fetch is not certain.
        self.fetch += 1;
        Ok(())
    }

    fn records(
        &mut self,
        span: &Bytes,
        variable: &SourceName,
        names: [&SourceName; 2],
        body: &[StatementNode],
    ) -> Lowered<()> {
        let [record, sector] = names;
        let Variable::Sector(fetch) = self.record(sector)? else {
            return Err(self.unknown(sector, "sector"));
        };
        let layout = self.declared.layout_of(record)?;
        let bytes = self.declared.program.layouts[layout.index()].bytes;
        let bound = self.declared.options.sector_bytes.checked_div(bytes).unwrap_or(0);
        if bound == 0 {
            let allowed = format!("1 to {} bytes", self.declared.options.sector_bytes);
            let problem = RuleSourceProblem::Range { part: "the size of the record", allowed };
            return Err(Problem::new(&record.span, problem));
        }
        let end = self.constant_int(span, bound.into())?;
        let index = self.begin_loop(span, end.register, bound)?;
        let start = self.open();
        let index_register = index.register;
        self.declare(variable, Variable::Record { layout, index: index_register, fetch })?;
        self.repeated(&start, span, body)?;
        self.end_loop(index);
        Ok(())
    }

    /// Lowers the body of a loop, which must not always end the rule. Records that a fetch of the body
    /// replaces cannot be used in the next round either.
    fn repeated(
        &mut self,
        start: &BlockStart,
        span: &Bytes,
        body: &[StatementNode],
    ) -> Lowered<()> {
        let fetch = self.fetch;
        let end = self.statements(body)?;
        if end == PathEnd::Ended {
            return Err(Problem::new(span, RuleSourceProblem::Unreachable));
        }
        self.close(start);
        self.restore_address(start);
        if self.fetch != fetch {
            self.fetch += 1;
        }
        Ok(())
    }

    pub(super) fn begin_loop(&mut self, span: &Bytes, end: u8, bound: u32) -> Lowered<OpenLoop> {
        if usize::from(self.loop_depth) == LOOP_DEPTH_MAX {
            return Err(Problem::new(span, RuleSourceProblem::TooDeep));
        }
        let register = self.register(span)?;
        let begin = Instruction::new(RuleOp::Loop).to(register).a(end).c(self.loop_depth);
        let begin = self.emit(begin);
        self.loop_depth += 1;
        Ok(OpenLoop { register, begin, bound })
    }

    pub(super) fn end_loop(&mut self, open: OpenLoop) {
        self.loop_depth -= 1;
        let end = Instruction::new(RuleOp::LoopEnd).c(self.loop_depth).imm(open.begin as u64);
        self.emit(end);
        let after = self.code.len() as u32;
        self.code[open.begin] = self.code[open.begin].pair(open.bound, after);
    }

    pub(super) fn declare_line(&mut self, name: &SourceName, register: u8) -> Lowered<()> {
        self.insert_variable(name, Variable::Line(register));
        Ok(())
    }

    fn choose(
        &mut self,
        condition: &Expression,
        then: &[StatementNode],
        otherwise: &[StatementNode],
    ) -> Lowered<PathEnd> {
        let mark = self.mark();
        let value = self.typed(condition, ValueType::Bool)?;
        let skip = self.emit(Instruction::new(RuleOp::JumpIfNot).a(value.register));
        self.release(mark);
        let (before, fetch) = (self.has_address, self.fetch);
        let first = self.block(then)?;
        let after_then = self.has_address;
        self.has_address = before;
        if otherwise.is_empty() {
            self.land(skip);
            self.fetch_may_differ(fetch);
            return Ok(PathEnd::Open);
        }
        let jump = match first {
            PathEnd::Open => Some(self.emit(Instruction::new(RuleOp::Jump))),
            PathEnd::Ended => None,
        };
        self.land(skip);
        let second = self.block(otherwise)?;
        self.has_address = match (first, second) {
            (PathEnd::Open, PathEnd::Open) => self.has_address && after_then,
            (PathEnd::Open, PathEnd::Ended) => after_then,
            _ => self.has_address,
        };
        self.fetch_may_differ(fetch);
        match (jump, second) {
            (Some(jump), _) => {
                self.land(jump);
                Ok(PathEnd::Open)
            }
            (None, end) => Ok(end),
        }
    }

    /// Behind a branch with a fetch it is not certain which bytes are fetched.
    fn fetch_may_differ(&mut self, before: u32) {
        if self.fetch != before {
            self.fetch += 1;
        }
    }

    fn complete(
        &mut self,
        span: &Bytes,
        status: &SourceName,
        value: Option<&Expression>,
    ) -> Lowered<PathEnd> {
        let is_answered = matches!(self.trigger, RuleTrigger::Command | RuleTrigger::Moved);
        self.needs(is_answered, span, "`complete`", "rules for commands and for moved sectors")?;
        let found = RuleStatus::NAMED.iter().find(|(_, name)| *name == status.text);
        let Some((found, _)) = found else {
            let known = RuleStatus::NAMED.iter().map(|(_, name)| *name);
            return Err(Problem::unknown(&status.span, "status", &status.text, known));
        };
        let value = match value {
            Some(value) => self.typed(value, INT)?,
            None => self.constant_int(span, 0)?,
        };
        let complete = Instruction::new(RuleOp::Complete).a(value.register).imm(*found as u64);
        self.emit(complete);
        Ok(PathEnd::Ended)
    }

    fn post(&mut self, span: &Bytes, kind: &Expression, values: &[Expression]) -> Lowered<()> {
        let named = match path(kind) {
            Some([name]) => EVENTS.iter().find(|(known, _)| *known == name.text),
            _ => None,
        };
        let kind = match (named, path(kind)) {
            (Some((_, code)), _) => *code,
            (None, Some([name, ..])) => {
                let known = EVENTS.iter().map(|(known, _)| *known);
                return Err(Problem::unknown(&name.span, "event", &name.text, known));
            }
            _ => self.declared.constant(kind, "the kind of an event", 0, 0xffff)?,
        };
        if values.len() > 3 {
            let (expected, found) = ("up to 3 values".into(), values.len().to_string());
            let problem = RuleSourceProblem::Expected { expected, found };
            return Err(Problem::new(span, problem));
        }
        let mut registers = [0; 3];
        for (at, register) in registers.iter_mut().enumerate() {
            *register = match values.get(at) {
                Some(value) => self.typed(value, INT)?.register,
                None => self.constant_int(span, 0)?.register,
            };
        }
        let [a, b, c] = registers;
        self.emit(Instruction::new(RuleOp::Post).a(a).b(b).c(c).imm(kind));
        Ok(())
    }
}
