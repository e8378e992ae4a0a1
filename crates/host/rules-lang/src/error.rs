//! [`RuleSourceError`]: an error in a source, with its location (ARCHITECTURE.md, R8).

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rules::{RuleLocation, VerifyError};

/// A problem at a location of a source.
///
/// `Display` prints `file:line:column: message; help`, which is complete without the source.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleSourceError {
    /// Path of the file as given.
    pub path: PathBuf,
    /// Line number, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Byte range in the text that the problem is about.
    pub span: Range<usize>,
    /// Complete text of the file; bytes that are not UTF-8 are replaced.
    pub text: Arc<str>,
    /// The problem.
    pub problem: RuleSourceProblem,
}

/// A problem of a source.
#[derive(Clone, Debug, PartialEq)]
pub enum RuleSourceProblem {
    /// The bytes are not UTF-8.
    NotUtf8,
    /// The source is longer than 1 MiB.
    TooLong,
    /// A character that the language does not use.
    Character(char),
    /// A number that is no number, or is larger than 64 bits.
    Number(String),
    /// Something else is expected.
    Expected {
        /// The expected part.
        expected: String,
        /// The part that is there.
        found: String,
    },
    /// Expressions or blocks are nested too deep.
    TooDeep,
    /// A name that is not declared.
    Unknown {
        /// Kind of the name.
        kind: &'static str,
        /// The name.
        name: String,
        /// The most similar name.
        nearest: Option<String>,
    },
    /// A name that is declared twice.
    Duplicate {
        /// Kind of the name.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// A value of the wrong type.
    WrongType {
        /// The type that is needed.
        expected: &'static str,
        /// The type of the value.
        found: &'static str,
    },
    /// A bound or a size that is not known before the program runs.
    NotConstant {
        /// The part that must be constant.
        part: &'static str,
    },
    /// A number out of its range.
    Range {
        /// The number.
        part: &'static str,
        /// The allowed values.
        allowed: String,
    },
    /// A rule of one application uses another's space.
    Foreign {
        /// The application of the rule.
        app: String,
        /// The other application.
        other: String,
    },
    /// It is not clear which application is meant.
    WhichApp {
        /// The part without an application.
        part: &'static str,
    },
    /// A command rule that decides nothing on some path.
    NoDecision,
    /// A statement that no path leads to.
    Unreachable,
    /// A statement or a value that the rule's trigger does not allow.
    NotHere {
        /// The statement or value.
        part: &'static str,
        /// Where it is allowed.
        allowed: &'static str,
    },
    /// A record whose bytes were replaced by a later fetch.
    Replaced {
        /// Variable of the record.
        record: String,
    },
    /// A rule with more values than registers.
    Registers,
    /// The verification does not accept the program.
    Verify(Box<VerifyError>),
}

impl RuleSourceProblem {
    /// Returns the remedy.
    pub fn help(&self) -> Option<String> {
        Some(match self {
            RuleSourceProblem::NotUtf8 => "save the file as UTF-8".into(),
            RuleSourceProblem::TooLong => "split the program by application".into(),
            RuleSourceProblem::Unknown { nearest: Some(nearest), .. } => {
                format!("did you mean `{nearest}`?")
            }
            RuleSourceProblem::NotConstant { .. } => "use numbers and `APP.sectors` only".into(),
            RuleSourceProblem::Range { allowed, .. } => format!("allowed: {allowed}"),
            RuleSourceProblem::Foreign { other, .. } => {
                format!("only rules of {other} may use it")
            }
            RuleSourceProblem::WhichApp { .. } => {
                "write `APP.NAME`, or `channel.app == APP`".into()
            }
            RuleSourceProblem::NoDecision => {
                "end every path with `insert lun`, `complete`, `continue` or `again`".into()
            }
            RuleSourceProblem::NotHere { allowed, .. } => format!("allowed in {allowed}"),
            RuleSourceProblem::Replaced { .. } => "copy values before the next `fetch`".into(),
            RuleSourceProblem::Registers => "split the rule, and use `continue`".into(),
            RuleSourceProblem::Verify(error) => return verify_help(error),
            _ => return None,
        })
    }
}

fn verify_help(error: &VerifyError) -> Option<String> {
    Some(match error {
        VerifyError::Ambiguous { .. } => "give them different priorities".into(),
        VerifyError::Cost { .. } => "lower the bounds of loops and hops, or grant more".into(),
        VerifyError::TableMemory { .. } => "make tables smaller, or grant more".into(),
        _ => return None,
    })
}

impl fmt::Display for RuleSourceProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RuleSourceProblem::NotUtf8 => write!(f, "the source is not UTF-8"),
            RuleSourceProblem::TooLong => write!(f, "the source is longer than 1 MiB"),
            RuleSourceProblem::Character(c) => {
                write!(f, "the character {:?} has no meaning", c)
            }
            RuleSourceProblem::Number(text) => write!(f, "`{text}` is not a number of 64 bits"),
            RuleSourceProblem::Expected { expected, found } => {
                write!(f, "expected {expected}, found {found}")
            }
            RuleSourceProblem::TooDeep => {
                write!(f, "nested more than {} levels deep", crate::parser::DEPTH_MAX)
            }
            RuleSourceProblem::Unknown { kind, name, .. } => {
                write!(f, "there is no {kind} `{name}`")
            }
            RuleSourceProblem::Duplicate { kind, name } => {
                write!(f, "the {kind} `{name}` is declared twice")
            }
            RuleSourceProblem::WrongType { expected, found } => {
                write!(f, "expected {expected}, this is {found}")
            }
            RuleSourceProblem::NotConstant { part } => write!(f, "{part} must be constant"),
            RuleSourceProblem::Range { part, .. } => write!(f, "{part} is out of range"),
            RuleSourceProblem::Foreign { app, other } => {
                write!(f, "a rule of {app} cannot use the space of {other}")
            }
            RuleSourceProblem::WhichApp { part } => {
                write!(f, "it is not clear which application {part} belongs to")
            }
            RuleSourceProblem::NoDecision => {
                write!(f, "the rule decides nothing about its command on a path")
            }
            RuleSourceProblem::Unreachable => write!(f, "no path leads to this statement"),
            RuleSourceProblem::NotHere { part, .. } => write!(f, "{part} is not allowed here"),
            RuleSourceProblem::Replaced { record } => {
                write!(f, "a later fetch has replaced the bytes of `{record}`")
            }
            RuleSourceProblem::Registers => write!(f, "the rule has more values than registers"),
            RuleSourceProblem::Verify(error) => write!(f, "{error}"),
        }
    }
}

impl fmt::Display for RuleSourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.to_string_lossy();
        write!(f, "{path}:{}:{}: {}", self.line, self.column, self.problem)?;
        match self.problem.help() {
            Some(help) => write!(f, "; {help}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for RuleSourceError {}

/// A problem with its bytes, before the source is known.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) span: Range<usize>,
    pub(crate) problem: RuleSourceProblem,
}

impl Problem {
    pub(crate) fn new(span: &Range<usize>, problem: RuleSourceProblem) -> Problem {
        Problem { span: span.clone(), problem }
    }

    pub(crate) fn unknown<'a>(
        span: &Range<usize>,
        kind: &'static str,
        name: &str,
        known: impl Iterator<Item = &'a str>,
    ) -> Problem {
        let score = |known: &str| (strsim::jaro_winkler(name, known) * 1000.0) as u32;
        let nearest = known.map(|known| (score(known), known)).max();
        let nearest = nearest.filter(|(score, _)| *score > 750).map(|(_, known)| known.to_owned());
        Problem::new(span, RuleSourceProblem::Unknown { kind, name: name.to_owned(), nearest })
    }
}

/// A source with the location of its bytes.
#[derive(Clone, Debug)]
pub(crate) struct RuleSourceLines {
    pub(crate) path: PathBuf,
    pub(crate) text: Arc<str>,
    starts: Vec<usize>,
}

impl RuleSourceLines {
    pub(crate) fn new(path: &Path, text: &str) -> RuleSourceLines {
        let ends = text.match_indices('\n').map(|(at, _)| at + 1);
        let starts = std::iter::once(0).chain(ends).collect();
        RuleSourceLines { path: path.to_path_buf(), text: text.into(), starts }
    }

    /// Returns the line and column of a byte.
    pub(crate) fn location(&self, byte: usize) -> RuleLocation {
        let end = self.text.floor_char_boundary(byte);
        let line = self.starts.partition_point(|start| *start <= end).max(1);
        let column = self.text[self.starts[line - 1]..end].chars().count() + 1;
        RuleLocation { line: line as u32, column: column as u32 }
    }

    pub(crate) fn error(&self, problem: Problem) -> RuleSourceError {
        let RuleLocation { line, column } = self.location(problem.span.start);
        RuleSourceError {
            path: self.path.clone(),
            line: line as usize,
            column: column as usize,
            span: problem.span,
            text: self.text.clone(),
            problem: problem.problem,
        }
    }
}
