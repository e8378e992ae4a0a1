//! Expressions, by precedence: `or`, `and`, `not`, comparisons, `|`, `^`, `&`, shifts, `+ -`,
//! `* / %`.

use crate::ast::{BinaryOp, Expression, ExpressionKind, SourceName};
use crate::error::{Problem, RuleSourceProblem};
use crate::token::SourceTokenKind;

use super::{DEPTH_MAX, Parsed, SourceParser};

/// Binary symbols with their level; `or` and `and` are words.
const BINARY: &[(&str, u8, BinaryOp)] = &[
    ("==", 3, BinaryOp::Eq),
    ("!=", 3, BinaryOp::Ne),
    ("<=", 3, BinaryOp::Le),
    (">=", 3, BinaryOp::Ge),
    ("<", 3, BinaryOp::Lt),
    (">", 3, BinaryOp::Gt),
    ("|", 4, BinaryOp::BitOr),
    ("^", 5, BinaryOp::BitXor),
    ("&", 6, BinaryOp::BitAnd),
    ("<<", 7, BinaryOp::Shl),
    (">>", 7, BinaryOp::Shr),
    ("+", 8, BinaryOp::Add),
    ("-", 8, BinaryOp::Sub),
    ("*", 9, BinaryOp::Mul),
    ("/", 9, BinaryOp::Div),
    ("%", 9, BinaryOp::Rem),
];
/// The level of comparisons.
const COMPARISON: u8 = 3;
/// The level above all binary operations.
const OPERAND: u8 = 10;

impl SourceParser {
    pub(super) fn expression(&mut self) -> Parsed<Expression> {
        self.enter()?;
        let found = self.level(1);
        self.leave();
        found
    }

    /// Makes an expression; its depth is limited, because later steps recurse.
    fn node(&self, start: usize, kind: ExpressionKind, children: &[u32]) -> Parsed<Expression> {
        let depth = children.iter().max().map_or(0, |depth| depth + 1);
        let span = self.span_from(start);
        if depth > DEPTH_MAX {
            return Err(Problem::new(&span, RuleSourceProblem::TooDeep));
        }
        Ok(Expression { kind, span, depth })
    }

    fn operator(&self, level: u8) -> Option<BinaryOp> {
        match (&self.peek().kind, level) {
            (SourceTokenKind::Word(word), 1) if word == "or" => Some(BinaryOp::Or),
            (SourceTokenKind::Word(word), 2) if word == "and" => Some(BinaryOp::And),
            (SourceTokenKind::Symbol(symbol), _) => {
                let found = BINARY.iter().find(|(text, at, _)| text == symbol && *at == level);
                found.map(|(_, _, op)| *op)
            }
            _ => None,
        }
    }

    fn level(&mut self, level: u8) -> Parsed<Expression> {
        if level == OPERAND {
            return self.operand();
        }
        let start = self.peek().span.start;
        if level == COMPARISON && self.is_word("not") {
            self.at += 1;
            self.enter()?;
            let inner = self.level(level)?;
            self.leave();
            let depth = inner.depth;
            return self.node(start, ExpressionKind::Not(Box::new(inner)), &[depth]);
        }
        let mut left = self.level(level + 1)?;
        loop {
            if level == COMPARISON && self.take_word("in") {
                let table = self.name("the name of a set or a map")?;
                let depth = left.depth;
                left = self.node(start, ExpressionKind::In(Box::new(left), table), &[depth])?;
                continue;
            }
            let Some(op) = self.operator(level) else { return Ok(left) };
            self.at += 1;
            let right = self.level(level + 1)?;
            let depths = [left.depth, right.depth];
            let kind = ExpressionKind::Binary(op, Box::new(left), Box::new(right));
            left = self.node(start, kind, &depths)?;
        }
    }

    fn operand(&mut self) -> Parsed<Expression> {
        let start = self.peek().span.start;
        let mut found = self.primary()?;
        while self.take_symbol("[") {
            let index = self.expression()?;
            self.symbol("]")?;
            let depths = [found.depth, index.depth];
            let kind = ExpressionKind::Index(Box::new(found), Box::new(index));
            found = self.node(start, kind, &depths)?;
        }
        Ok(found)
    }

    fn primary(&mut self) -> Parsed<Expression> {
        let start = self.peek().span.start;
        if self.take_symbol("(") {
            let inner = self.expression()?;
            self.symbol(")")?;
            return Ok(inner);
        }
        if let SourceTokenKind::Number(_) = self.peek().kind {
            let value = self.int("a number")?;
            return self.node(start, ExpressionKind::Int(value), &[]);
        }
        for (word, value) in [("true", true), ("false", false)] {
            if self.take_word(word) {
                return self.node(start, ExpressionKind::Bool(value), &[]);
            }
        }
        if self.take_word("none") {
            self.enter()?;
            let inner = self.operand()?;
            self.leave();
            let depth = inner.depth;
            return self.node(start, ExpressionKind::None(Box::new(inner)), &[depth]);
        }
        if self.take_word("last") {
            return self.last(start);
        }
        if self.take_word("best") {
            return self.best(start);
        }
        let first = self.name("a value")?;
        if self.take_symbol("(") {
            let mut arguments = Vec::new();
            while !self.take_symbol(")") {
                arguments.push(self.expression()?);
                if !self.is_symbol(")") {
                    self.symbol(",")?;
                }
            }
            let depths: Vec<u32> = arguments.iter().map(|argument| argument.depth).collect();
            return self.node(start, ExpressionKind::Call(first, arguments), &depths);
        }
        let mut path = vec![first];
        while self.take_symbol(".") {
            path.push(self.path_name()?);
        }
        self.node(start, ExpressionKind::Path(path), &[])
    }

    /// Parses a name behind a dot, where keywords are names.
    fn path_name(&mut self) -> Parsed<SourceName> {
        match &self.peek().kind {
            SourceTokenKind::Word(text) => {
                let text = text.clone();
                Ok(SourceName { text, span: self.next().span })
            }
            _ => Err(self.expected("a name")),
        }
    }

    /// Parses the rest of `last RECORD.FIELD[0..COUNT] <= KEY`.
    fn last(&mut self, start: usize) -> Parsed<Expression> {
        let record = self.name("a record")?;
        self.symbol(".")?;
        let field = self.path_name()?;
        self.symbol("[")?;
        self.int_up_to("the first element", 0)?;
        self.symbol("..")?;
        let count = Box::new(self.expression()?);
        self.symbol("]")?;
        self.symbol("<=")?;
        let key = Box::new(self.level(COMPARISON + 1)?);
        let depths = [count.depth, key.depth];
        self.node(start, ExpressionKind::Last { record, field, count, key }, &depths)
    }

    /// Parses the rest of `best line of APP by SCORE where FILTER`.
    fn best(&mut self, start: usize) -> Parsed<Expression> {
        self.word("line")?;
        self.word("of")?;
        let app = self.name("the name of an application")?;
        self.word("by")?;
        let score = Box::new(self.level(COMPARISON + 1)?);
        let filter = match self.take_word("where") {
            true => Some(Box::new(self.expression()?)),
            false => None,
        };
        let depths = [score.depth, filter.as_ref().map_or(0, |filter| filter.depth)];
        self.node(start, ExpressionKind::Best { app, score, filter }, &depths)
    }
}
