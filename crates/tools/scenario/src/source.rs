//! [`SourceText`]: a text with the location of its bytes, for errors with a caret.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::{ProblemKind, ScenarioError};
use super::renamed::FormerSpellings;

/// Text of a scenario or of a preset.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SourceText {
    pub(super) path: PathBuf,
    pub(super) text: Arc<str>,
    /// First byte of each line.
    line_starts: Arc<[usize]>,
    /// Former spellings in it, as far as it has been read.
    pub(super) former: FormerSpellings,
}

/// A location in a text.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SourceSpan {
    pub(super) source: SourceText,
    pub(super) span: Range<usize>,
}

impl SourceText {
    pub(super) fn new(path: &Path, text: &str) -> SourceText {
        let ends = text.match_indices('\n').map(|(at, _)| at + 1);
        SourceText {
            path: path.to_path_buf(),
            text: text.into(),
            line_starts: std::iter::once(0).chain(ends).collect(),
            former: FormerSpellings::default(),
        }
    }

    /// Returns the line and column of a byte, both from 1.
    pub(super) fn line_column(&self, byte: usize) -> (usize, usize) {
        let mut end = byte.min(self.text.len());
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        let line = self.line_starts.partition_point(|start| *start <= end).max(1);
        (line, self.text[self.line_starts[line - 1]..end].chars().count() + 1)
    }

    /// Resolves a path in the text, which is relative to the text's directory.
    pub(super) fn record_former(&self, byte: usize, old: &str, new: &str) {
        self.former.record(self, &self.path, byte, old, new);
    }

    pub(super) fn resolve(&self, path: &str) -> PathBuf {
        match self.path.parent() {
            Some(folder) => folder.join(path),
            None => PathBuf::from(path),
        }
    }
}

impl SourceSpan {
    pub(super) fn error(&self, problem: ProblemKind) -> ScenarioError {
        ScenarioError::new(&self.source, self.span.clone(), problem)
    }
}
