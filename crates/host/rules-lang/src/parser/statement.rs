//! Statements.

use crate::ast::{Expression, ExpressionKind, SourceName, StatementKind, StatementNode};
use crate::error::Problem;
use crate::token::SourceTokenKind;

use super::{Parsed, SourceParser};

/// Words that end a sequence of statements.
const ENDS: [&str; 5] = ["app", "record", "table", "rule", "do"];

impl SourceParser {
    /// Parses statements up to `}`, `do`, the next declaration, or the end.
    pub(super) fn sequence(&mut self, into: &mut Vec<StatementNode>) -> Parsed<()> {
        loop {
            let is_end = match &self.peek().kind {
                SourceTokenKind::End | SourceTokenKind::Symbol("}") => true,
                SourceTokenKind::Word(word) => ENDS.contains(&word.as_str()),
                _ => false,
            };
            if is_end {
                return Ok(());
            }
            if !self.take_symbol(";") {
                into.push(self.statement()?);
            }
        }
    }

    fn block(&mut self) -> Parsed<Vec<StatementNode>> {
        self.enter()?;
        self.symbol("{")?;
        let mut body = Vec::new();
        self.sequence(&mut body)?;
        self.symbol("}")?;
        self.leave();
        Ok(body)
    }

    fn statement(&mut self) -> Parsed<StatementNode> {
        let start = self.peek().span.start;
        let kind = self.statement_kind()?;
        Ok(StatementNode { kind, span: self.span_from(start) })
    }

    fn statement_kind(&mut self) -> Parsed<StatementKind> {
        if self.take_word("set") {
            return match self.is_word("each") {
                true => self.statement_kind(),
                false => self.assignment(),
            };
        }
        if self.take_word("each") {
            return self.each();
        }
        if self.take_word("for") {
            return self.repetition();
        }
        if self.take_word("if") {
            return self.choice();
        }
        if self.take_word("fetch") {
            let variable = self.name("a variable")?;
            self.symbol(":")?;
            let record = self.name("the name of a record")?;
            self.word("at")?;
            return Ok(StatementKind::Fetch { variable, record, at: self.expression()? });
        }
        if self.take_word("emit") {
            return Ok(StatementKind::Emit { record: self.name("a record")? });
        }
        if self.take_word("insert") {
            self.word("lun")?;
            return Ok(StatementKind::Insert);
        }
        if self.take_word("continue") {
            return Ok(StatementKind::Continue);
        }
        if self.take_word("again") {
            return Ok(StatementKind::Again);
        }
        if self.take_word("complete") {
            let status = self.name("a status")?;
            let value = match self.take_word("value") {
                true => Some(self.expression()?),
                false => None,
            };
            return Ok(StatementKind::Complete { status, value });
        }
        if self.take_word("move") {
            self.word("valid")?;
            self.word("of")?;
            let line = self.expression()?;
            self.word("to")?;
            let app = self.name("the name of an application")?;
            self.symbol(".")?;
            let stream = self.name("a stream")?;
            let units = match self.take_word("up") {
                true => {
                    self.word("to")?;
                    Some(self.expression()?)
                }
                false => None,
            };
            return Ok(StatementKind::Move { line, app, stream, units });
        }
        if self.take_word("erase") {
            return Ok(StatementKind::Erase { line: self.expression()? });
        }
        if self.take_word("post") {
            let kind = self.expression()?;
            let mut values = Vec::new();
            while self.take_symbol(",") {
                values.push(self.expression()?);
            }
            return Ok(StatementKind::Post { kind, values });
        }
        if self.take_word("add") {
            let key = self.expression()?;
            self.word("to")?;
            return Ok(StatementKind::Add { key, table: self.name("a set")? });
        }
        if self.take_word("remove") {
            let key = self.expression()?;
            self.word("from")?;
            return Ok(StatementKind::Remove { key, table: self.name("a set or a map")? });
        }
        self.assignment()
    }

    fn assignment(&mut self) -> Parsed<StatementKind> {
        let target = match self.peek().kind {
            SourceTokenKind::Word(_) => self.target()?,
            _ => return Err(self.expected("a statement")),
        };
        self.symbol("=")?;
        Ok(StatementKind::Assign { target, value: self.expression()? })
    }

    /// Parses a variable, a field of the header, or an element of a table.
    fn target(&mut self) -> Parsed<Expression> {
        let start = self.peek().span.start;
        let mut path = vec![self.name("a statement")?];
        while self.take_symbol(".") {
            path.push(self.name("a name")?);
        }
        let span = self.span_from(start);
        let target = Expression { kind: ExpressionKind::Path(path), span, depth: 0 };
        if !self.take_symbol("[") {
            return Ok(target);
        }
        let index = self.expression()?;
        self.symbol("]")?;
        let (span, depth) = (self.span_from(start), index.depth + 1);
        let kind = ExpressionKind::Index(Box::new(target), Box::new(index));
        Ok(Expression { kind, span, depth })
    }

    /// Parses the rest of `each VARIABLE of TABLE: VARIABLE = VALUE`.
    fn each(&mut self) -> Parsed<StatementKind> {
        let variable = self.name("a variable")?;
        self.word("of")?;
        let table = self.name("a table")?;
        self.symbol(":")?;
        let assigned = self.name("the variable")?;
        if assigned.text != variable.text {
            let known = std::iter::once(variable.text.as_str());
            return Err(Problem::unknown(&assigned.span, "element", &assigned.text, known));
        }
        self.symbol("=")?;
        Ok(StatementKind::Each { variable, table, value: self.expression()? })
    }

    /// Parses the rest of a `for`: over sectors, over records of a sector, or up to a number.
    fn repetition(&mut self) -> Parsed<StatementKind> {
        let variable = self.name("a variable")?;
        if self.take_symbol(":") {
            let record = self.name("the name of a record")?;
            self.word("in")?;
            let sector: SourceName = self.name("the variable of a sector")?;
            return Ok(StatementKind::Records { variable, record, sector, body: self.block()? });
        }
        self.word("in")?;
        if self.is_word("header") {
            self.at += 1;
            self.symbol(".")?;
            self.word("range")?;
            self.word("up")?;
            self.word("to")?;
            let bound = self.expression()?;
            return Ok(StatementKind::Sectors { variable, bound, body: self.block()? });
        }
        self.int_up_to("the first number", 0)?;
        self.symbol("..")?;
        let to = self.expression()?;
        self.word("up")?;
        self.word("to")?;
        let bound = self.expression()?;
        Ok(StatementKind::Count { variable, to, bound, body: self.block()? })
    }

    fn choice(&mut self) -> Parsed<StatementKind> {
        let condition = self.expression()?;
        let then = self.block()?;
        let mut otherwise = Vec::new();
        if self.take_word("else") {
            if self.is_word("if") {
                self.enter()?;
                otherwise.push(self.statement()?);
                self.leave();
            } else {
                otherwise = self.block()?;
            }
        }
        Ok(StatementKind::If { condition, then, otherwise })
    }
}
