//! The parser: recursive descent, with a limit on depth. Line ends mean nothing; `;` may separate
//! statements.

mod expression;
mod statement;

use rules::IntWidth;

use crate::ast::{
    AppItem, Bytes, FieldItem, RecordItem, RuleItem, Source, SourceName, TableForm, TableItem, When,
};
use crate::error::{Problem, RuleSourceProblem};
use crate::token::{SourceToken, SourceTokenKind, tokens};

/// Levels of nested expressions and blocks at most.
pub(crate) const DEPTH_MAX: u32 = 100;

/// Words that cannot be names.
const KEYWORDS: &[&str] = &[
    "app", "record", "table", "rule", "when", "set", "do", "and", "or", "not", "in", "if", "else",
    "for", "fetch", "emit", "insert", "continue", "again", "complete", "move", "erase", "post",
    "add", "remove", "each", "every", "last", "best", "none", "true", "false",
];

pub(crate) type Parsed<T> = Result<T, Problem>;

/// A position in the tokens of a source.
pub(crate) struct SourceParser {
    tokens: Vec<SourceToken>,
    at: usize,
    depth: u32,
}

/// The limits of a share.
struct ShareRange {
    /// Its name in messages.
    part: &'static str,
    min: f64,
    max: f64,
}

/// Parses a source.
pub(crate) fn parse(text: &str) -> Parsed<Source> {
    SourceParser { tokens: tokens(text)?, at: 0, depth: 0 }.source()
}

impl SourceParser {
    fn peek(&self) -> &SourceToken {
        // The last token is the end, and is never passed.
        &self.tokens[self.at.min(self.tokens.len() - 1)]
    }

    fn next(&mut self) -> SourceToken {
        let token = self.peek().clone();
        self.at += 1;
        token
    }

    fn expected(&self, expected: &str) -> Problem {
        let token = self.peek();
        let (expected, found) = (expected.to_owned(), token.kind.describe());
        Problem::new(&token.span, RuleSourceProblem::Expected { expected, found })
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(&self.peek().kind, SourceTokenKind::Word(text) if text == word)
    }

    fn is_symbol(&self, symbol: &str) -> bool {
        matches!(&self.peek().kind, SourceTokenKind::Symbol(text) if *text == symbol)
    }

    fn take_word(&mut self, word: &str) -> bool {
        let is_it = self.is_word(word);
        self.at += usize::from(is_it);
        is_it
    }

    fn take_symbol(&mut self, symbol: &str) -> bool {
        let is_it = self.is_symbol(symbol);
        self.at += usize::from(is_it);
        is_it
    }

    fn word(&mut self, word: &str) -> Parsed<()> {
        if self.take_word(word) { Ok(()) } else { Err(self.expected(&format!("`{word}`"))) }
    }

    fn symbol(&mut self, symbol: &str) -> Parsed<()> {
        if self.take_symbol(symbol) { Ok(()) } else { Err(self.expected(&format!("`{symbol}`"))) }
    }

    fn name(&mut self, kind: &str) -> Parsed<SourceName> {
        match &self.peek().kind {
            SourceTokenKind::Word(text) if !KEYWORDS.contains(&text.as_str()) => {
                let (text, span) = (text.clone(), self.next().span);
                if text.len() > rules::ProgramLimits::MAX.name_bytes {
                    let allowed = format!("{} characters", rules::ProgramLimits::MAX.name_bytes);
                    let problem =
                        RuleSourceProblem::Range { part: "the length of a name", allowed };
                    return Err(Problem::new(&span, problem));
                }
                Ok(SourceName { text, span })
            }
            _ => Err(self.expected(kind)),
        }
    }

    /// Returns the bytes from a start to the last token.
    fn span_from(&self, start: usize) -> Bytes {
        let end = self.tokens[self.at.saturating_sub(1).min(self.tokens.len() - 1)].span.end;
        start..end.max(start)
    }

    fn enter(&mut self) -> Parsed<()> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(Problem::new(&self.peek().span, RuleSourceProblem::TooDeep));
        }
        Ok(())
    }

    fn leave(&mut self) {
        self.depth -= 1;
    }

    fn int(&mut self, part: &str) -> Parsed<u64> {
        let SourceTokenKind::Number(text) = &self.peek().kind else {
            return Err(self.expected(part));
        };
        let digits = text.replace('_', "");
        let value = match digits.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => digits.parse().ok(),
        };
        match value {
            Some(value) => {
                self.at += 1;
                Ok(value)
            }
            None => {
                let problem = RuleSourceProblem::Number(text.clone());
                Err(Problem::new(&self.peek().span, problem))
            }
        }
    }

    /// Parses an integer up to a limit.
    fn int_up_to(&mut self, part: &'static str, limit: u64) -> Parsed<u64> {
        let span = self.peek().span.clone();
        let value = self.int(part)?;
        if value > limit {
            let allowed = format!("0 to {limit}");
            return Err(Problem::new(&span, RuleSourceProblem::Range { part, allowed }));
        }
        Ok(value)
    }

    fn source(&mut self) -> Parsed<Source> {
        let mut source = Source::default();
        loop {
            let start = self.peek().span.start;
            if self.take_word("app") {
                source.apps.push(self.app()?);
            } else if self.take_word("record") {
                source.records.push(self.record()?);
            } else if self.take_word("table") {
                source.tables.push(self.table()?);
            } else if self.take_word("rule") {
                source.rules.push(self.rule(start)?);
            } else if self.peek().kind == SourceTokenKind::End {
                return Ok(source);
            } else {
                return Err(self.expected("`app`, `record`, `table` or `rule`"));
            }
        }
    }

    fn app(&mut self) -> Parsed<AppItem> {
        let name = self.name("the name of an application")?;
        let (mut units, mut spare_ppm, mut quota_ppm) = (None, None, None);
        self.symbol("{")?;
        while !self.take_symbol("}") {
            let key = self.name("`units`, `spare` or `quota`")?;
            self.symbol("=")?;
            let is_twice = match key.text.as_str() {
                "units" => {
                    let first = self.int_up_to("a parallel unit", u32::MAX.into())? as u32;
                    let last = match self.take_symbol("-") {
                        true => self.int_up_to("a parallel unit", u32::MAX.into())? as u32,
                        false => first,
                    };
                    units.replace((first, last)).is_some()
                }
                "spare" => {
                    let allowed = ShareRange { part: "the spare share", min: 0.0, max: 10.0 };
                    spare_ppm.replace(self.share(allowed)?).is_some()
                }
                "quota" => {
                    let allowed = ShareRange { part: "the quota", min: 0.001, max: 1.0 };
                    quota_ppm.replace(self.share(allowed)?).is_some()
                }
                _ => {
                    let known = ["units", "spare", "quota"].into_iter();
                    return Err(Problem::unknown(&key.span, "property", &key.text, known));
                }
            };
            if is_twice {
                let problem = RuleSourceProblem::Duplicate { kind: "property", name: key.text };
                return Err(Problem::new(&key.span, problem));
            }
            if !self.is_symbol("}") {
                self.symbol(",")?;
            }
        }
        let Some((first_unit, last_unit)) = units else {
            let (expected, found) = ("`units` in the application".into(), "no units".into());
            let problem = RuleSourceProblem::Expected { expected, found };
            return Err(Problem::new(&name.span, problem));
        };
        let (spare_ppm, quota_ppm) = (spare_ppm.unwrap_or(0), quota_ppm.unwrap_or(0));
        Ok(AppItem { name, first_unit, last_unit, spare_ppm, quota_ppm })
    }

    /// Parses a share such as 0.11, in millionths.
    fn share(&mut self, allowed: ShareRange) -> Parsed<u32> {
        let ShareRange { part, min, max } = allowed;
        let SourceTokenKind::Number(text) = &self.peek().kind else {
            return Err(self.expected("a share such as 0.11"));
        };
        let value: Option<f64> = text.parse().ok();
        match value.filter(|share| (min..=max).contains(share)) {
            Some(share) => {
                self.at += 1;
                Ok((share * 1e6).round() as u32)
            }
            None => {
                let problem = RuleSourceProblem::Range { part, allowed: format!("{min} to {max}") };
                Err(Problem::new(&self.peek().span, problem))
            }
        }
    }

    fn width(&mut self) -> Parsed<IntWidth> {
        for (word, width) in [
            ("u8", IntWidth::U8),
            ("u16", IntWidth::U16),
            ("u32", IntWidth::U32),
            ("u64", IntWidth::U64),
        ] {
            if self.take_word(word) {
                return Ok(width);
            }
        }
        Err(self.expected("`u8`, `u16`, `u32` or `u64`"))
    }

    fn record(&mut self) -> Parsed<RecordItem> {
        let name = self.name("the name of a record")?;
        self.symbol("=")?;
        self.symbol("{")?;
        let mut fields = Vec::new();
        while !self.take_symbol("}") {
            let name = self.name("the name of a field")?;
            self.symbol(":")?;
            let width = self.width()?;
            let count = match self.take_symbol("[") {
                true => {
                    let count = self.expression()?;
                    self.symbol("]")?;
                    Some(count)
                }
                false => None,
            };
            fields.push(FieldItem { name, width, count });
            if !self.is_symbol("}") {
                self.symbol(",")?;
            }
        }
        Ok(RecordItem { name, fields })
    }

    fn table(&mut self) -> Parsed<TableItem> {
        let mut name = self.name("the name of a table")?;
        let mut app = None;
        if self.take_symbol(".") {
            app = Some(std::mem::replace(&mut name, self.name("the name of a table")?));
        }
        self.symbol(":")?;
        let form = if self.take_word("addr") {
            TableForm::Address
        } else if self.take_word("map") {
            self.symbol("<")?;
            let key = self.width()?;
            self.symbol(",")?;
            let value = self.width()?;
            self.symbol(">")?;
            TableForm::Map(key, value)
        // `set` begins the state changes of a rule elsewhere.
        } else if self.take_word("set") {
            self.symbol("<")?;
            let width = self.width()?;
            self.symbol(">")?;
            TableForm::Set(width)
        } else {
            match self.width() {
                Ok(width) => TableForm::Array(width),
                Err(_) => return Err(self.expected("the type of a table")),
            }
        };
        self.symbol("[")?;
        let capacity = self.expression()?;
        self.symbol("]")?;
        let is_durable = self.take_word("durable");
        if !is_durable && !self.take_word("volatile") {
            return Err(self.expected("`durable` or `volatile`"));
        }
        Ok(TableItem { app, name, form, capacity, is_durable })
    }

    fn rule(&mut self, start: usize) -> Parsed<RuleItem> {
        let name = self.name("the name of a rule")?;
        let (mut priority, mut hops, mut is_global) = (0, 0, false);
        let limits = rules::ProgramLimits::MAX;
        loop {
            if self.take_word("priority") {
                let limit = u64::from(limits.global_priority) - 1;
                priority = self.int_up_to("the priority", limit)? as u32;
            } else if self.take_word("hops") {
                hops = self.int_up_to("the number of hops", limits.hops.into())? as u8;
            } else if self.take_word("global") {
                is_global = true;
            } else {
                break;
            }
        }
        self.word("when")?;
        let when = match self.take_word("every") {
            true => When::Every { period_ns: self.duration()? },
            false => When::Condition(self.expression()?),
        };
        let mut body = Vec::new();
        let mut has_part = self.take_word("set");
        if has_part {
            self.sequence(&mut body)?;
        }
        if self.take_word("do") {
            has_part = true;
            self.sequence(&mut body)?;
        }
        if !has_part {
            return Err(self.expected("`set` or `do`"));
        }
        if priority > 0 || is_global {
            // Global rules come before those of applications.
            priority += if is_global { limits.global_priority } else { 0 };
        }
        Ok(RuleItem { name, priority, hops, is_global, when, body, span: self.span_from(start) })
    }

    /// Parses a time such as 10s or 500ms, in nanoseconds.
    fn duration(&mut self) -> Parsed<u64> {
        let SourceTokenKind::Number(text) = &self.peek().kind else {
            return Err(self.expected("a time such as 10s"));
        };
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (digits, unit) = text.split_at(end);
        let ns = match unit {
            "ns" => Some(1),
            "us" => Some(1_000),
            "ms" => Some(1_000_000),
            "s" => Some(1_000_000_000),
            "min" => Some(60_000_000_000),
            _ => None,
        };
        let value = ns.and_then(|ns: u64| digits.parse::<u64>().ok()?.checked_mul(ns));
        match value.filter(|ns| *ns > 0) {
            Some(ns) => {
                self.at += 1;
                Ok(ns)
            }
            None => {
                let allowed = "a whole number with ns, us, ms, s or min".into();
                let problem = RuleSourceProblem::Range { part: "the period", allowed };
                Err(Problem::new(&self.peek().span, problem))
            }
        }
    }
}
