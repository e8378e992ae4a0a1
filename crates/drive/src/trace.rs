//! [`Span`]: what the flash was doing when, for a trace (rule R10).

use clock::Nanos;

/// What took the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SpanKind {
    /// The array of a parallel unit read a page.
    Read,
    /// The array programmed a write unit.
    Program,
    /// The array erased a chunk.
    Erase,
    /// A channel carried data.
    Transfer,
}

/// A stretch of time that a parallel unit or a channel was busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// From when.
    pub start: Nanos,
    /// For how long.
    pub time: Nanos,
    /// With what.
    pub kind: SpanKind,
    /// Which parallel unit; which channel for transfers.
    pub at: u32,
}

/// Collects spans while somebody wants them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trace {
    spans: Option<Vec<Span>>,
}

impl Trace {
    pub(crate) fn enable(&mut self) {
        self.spans.get_or_insert_with(Vec::new);
    }

    #[inline]
    pub(crate) fn span(&mut self, span: Span) {
        if let Some(spans) = &mut self.spans {
            spans.push(span);
        }
    }

    pub(crate) fn take(&mut self) -> Vec<Span> {
        self.spans.as_mut().map(std::mem::take).unwrap_or_default()
    }
}
