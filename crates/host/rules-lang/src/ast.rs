//! The syntax tree. Names are not resolved.

use std::ops::Range;

use rules::IntWidth;

/// A byte range of the source.
pub(crate) type Bytes = Range<usize>;

/// A name with its bytes.
#[derive(Clone, Debug)]
pub(crate) struct SourceName {
    pub(crate) text: String,
    pub(crate) span: Bytes,
}

#[derive(Debug, Default)]
pub(crate) struct Source {
    pub(crate) apps: Vec<AppItem>,
    pub(crate) records: Vec<RecordItem>,
    pub(crate) tables: Vec<TableItem>,
    pub(crate) rules: Vec<RuleItem>,
}

#[derive(Debug)]
pub(crate) struct AppItem {
    pub(crate) name: SourceName,
    pub(crate) first_unit: u32,
    pub(crate) last_unit: u32,
    pub(crate) spare_ppm: u32,
    /// 0 if the application has none.
    pub(crate) quota_ppm: u32,
}

#[derive(Debug)]
pub(crate) struct RecordItem {
    pub(crate) name: SourceName,
    pub(crate) fields: Vec<FieldItem>,
}

#[derive(Debug)]
pub(crate) struct FieldItem {
    pub(crate) name: SourceName,
    pub(crate) width: IntWidth,
    pub(crate) count: Option<Expression>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum TableForm {
    Address,
    Array(IntWidth),
    Set(IntWidth),
    Map(IntWidth, IntWidth),
}

#[derive(Debug)]
pub(crate) struct TableItem {
    pub(crate) app: Option<SourceName>,
    pub(crate) name: SourceName,
    pub(crate) form: TableForm,
    pub(crate) capacity: Expression,
    pub(crate) is_durable: bool,
}

#[derive(Debug)]
pub(crate) enum When {
    Every { period_ns: u64 },
    Condition(Expression),
}

#[derive(Debug)]
pub(crate) struct RuleItem {
    pub(crate) name: SourceName,
    pub(crate) priority: u32,
    pub(crate) hops: u8,
    pub(crate) is_global: bool,
    pub(crate) when: When,
    pub(crate) body: Vec<StatementNode>,
    pub(crate) span: Bytes,
}

#[derive(Debug)]
pub(crate) struct StatementNode {
    pub(crate) kind: StatementKind,
    pub(crate) span: Bytes,
}

#[derive(Debug)]
pub(crate) enum StatementKind {
    Assign {
        target: Expression,
        value: Expression,
    },
    Each {
        variable: SourceName,
        table: SourceName,
        value: Expression,
    },
    Sectors {
        variable: SourceName,
        bound: Expression,
        body: Vec<StatementNode>,
    },
    Count {
        variable: SourceName,
        to: Expression,
        bound: Expression,
        body: Vec<StatementNode>,
    },
    Records {
        variable: SourceName,
        record: SourceName,
        sector: SourceName,
        body: Vec<StatementNode>,
    },
    If {
        condition: Expression,
        then: Vec<StatementNode>,
        otherwise: Vec<StatementNode>,
    },
    Fetch {
        variable: SourceName,
        record: SourceName,
        at: Expression,
    },
    Emit {
        record: SourceName,
    },
    Insert,
    Continue,
    Again,
    Complete {
        status: SourceName,
        value: Option<Expression>,
    },
    Move {
        line: Expression,
        app: SourceName,
        stream: SourceName,
        units: Option<Expression>,
    },
    Erase {
        line: Expression,
    },
    Post {
        kind: Expression,
        values: Vec<Expression>,
    },
    Add {
        key: Expression,
        table: SourceName,
    },
    Remove {
        key: Expression,
        table: SourceName,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BinaryOp {
    Or,
    And,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    BitOr,
    BitXor,
    BitAnd,
    Shl,
    Shr,
    Add,
    Sub,
    Mul,
    Div,
    Rem,
}

#[derive(Debug)]
pub(crate) struct Expression {
    pub(crate) kind: ExpressionKind,
    pub(crate) span: Bytes,
    /// Levels below it.
    pub(crate) depth: u32,
}

#[derive(Debug)]
pub(crate) enum ExpressionKind {
    Int(u64),
    Bool(bool),
    /// Names with dots between them.
    Path(Vec<SourceName>),
    Index(Box<Expression>, Box<Expression>),
    Binary(BinaryOp, Box<Expression>, Box<Expression>),
    Not(Box<Expression>),
    In(Box<Expression>, SourceName),
    Call(SourceName, Vec<Expression>),
    None(Box<Expression>),
    /// `last RECORD.FIELD[0..COUNT] <= KEY`
    Last {
        record: SourceName,
        field: SourceName,
        count: Box<Expression>,
        key: Box<Expression>,
    },
    /// `best line of APP by SCORE where FILTER`
    Best {
        app: SourceName,
        score: Box<Expression>,
        filter: Option<Box<Expression>>,
    },
}

impl Expression {
    /// Calls a function for the expression and everything in it.
    pub(crate) fn walk<'a>(&'a self, visit: &mut dyn FnMut(&'a Expression)) {
        visit(self);
        match &self.kind {
            ExpressionKind::Int(_) | ExpressionKind::Bool(_) | ExpressionKind::Path(_) => {}
            ExpressionKind::Index(a, b) | ExpressionKind::Binary(_, a, b) => {
                a.walk(visit);
                b.walk(visit);
            }
            ExpressionKind::Not(a) | ExpressionKind::In(a, _) | ExpressionKind::None(a) => {
                a.walk(visit);
            }
            ExpressionKind::Call(_, arguments) => arguments.iter().for_each(|a| a.walk(visit)),
            ExpressionKind::Last { count, key, .. } => {
                count.walk(visit);
                key.walk(visit);
            }
            ExpressionKind::Best { score, filter, .. } => {
                score.walk(visit);
                filter.iter().for_each(|filter| filter.walk(visit));
            }
        }
    }
}
