//! [`Matching`]: the application, the trigger and the operations of a rule, taken from its condition,
//! so that the engine needs no instruction for them.

use rules::{AppId, InputOp, OpMask, RuleTrigger};

use crate::ast::{
    BinaryOp, Expression, ExpressionKind, RuleItem, SourceName, StatementKind, StatementNode, When,
};
use crate::error::{Problem, RuleSourceProblem};

use super::{Declarations, Lowered};

/// The inputs that a rule can match, and what remains of its condition.
pub(super) struct Matching<'s> {
    pub(super) app: AppId,
    pub(super) trigger: RuleTrigger,
    pub(super) ops: OpMask,
    pub(super) rest: Vec<&'s Expression>,
}

/// Returns the names of a path.
pub(super) fn path(expression: &Expression) -> Option<&[SourceName]> {
    match &expression.kind {
        ExpressionKind::Path(path) => Some(path),
        _ => None,
    }
}

fn is_path(expression: &Expression, names: [&str; 2]) -> bool {
    path(expression).is_some_and(|path| path.iter().map(|name| name.text.as_str()).eq(names))
}

/// Returns the operation that a word names.
pub(super) fn operation(word: &str) -> Option<InputOp> {
    InputOp::ALL.iter().find(|(_, name)| *name == word).map(|(op, _)| *op)
}

/// Collects the parts of a conjunction.
fn conjuncts<'s>(expression: &'s Expression, into: &mut Vec<&'s Expression>) {
    match &expression.kind {
        ExpressionKind::Binary(BinaryOp::And, a, b) => {
            conjuncts(a, into);
            conjuncts(b, into);
        }
        _ => into.push(expression),
    }
}

/// Returns the operations that an expression selects, if it depends on nothing else.
fn operations(expression: &Expression) -> Option<OpMask> {
    match &expression.kind {
        ExpressionKind::Path(path) => match path.as_slice() {
            [header, op] if header.text == "header" => {
                operation(&op.text).map(|op| OpMask::NONE.with(op))
            }
            _ => None,
        },
        ExpressionKind::Binary(BinaryOp::Eq, left, right) if is_path(left, ["header", "op"]) => {
            let [word] = path(right)? else { return None };
            operation(&word.text).map(|op| OpMask::NONE.with(op))
        }
        ExpressionKind::Binary(BinaryOp::Or, a, b) => {
            Some(OpMask(operations(a)?.0 | operations(b)?.0))
        }
        ExpressionKind::Not(inner) => Some(OpMask(OpMask::all().0 & !operations(inner)?.0)),
        _ => None,
    }
}

impl<'s> Matching<'s> {
    pub(super) fn of(declared: &Declarations<'_>, item: &'s RuleItem) -> Lowered<Matching<'s>> {
        let condition = match &item.when {
            When::Every { period_ns } => {
                let trigger = RuleTrigger::Every { period_ns: *period_ns };
                let app = mentioned_app(declared, item)?;
                return Ok(Matching { app, trigger, ops: OpMask::NONE, rest: Vec::new() });
            }
            When::Condition(condition) => condition,
        };
        let (mut parts, mut rest) = (Vec::new(), Vec::new());
        conjuncts(condition, &mut parts);
        let (mut app, mut moved, mut ops) = (None, false, OpMask::all());
        let mut selection = None;
        for part in parts {
            match &part.kind {
                ExpressionKind::Binary(BinaryOp::Eq, left, right)
                    if is_path(left, ["channel", "app"]) =>
                {
                    let name = path(right).and_then(|path| path.first()).ok_or_else(|| {
                        let problem = RuleSourceProblem::WhichApp { part: "the rule" };
                        Problem::new(&right.span, problem)
                    })?;
                    set_app(declared, &mut app, name)?;
                }
                ExpressionKind::Call(function, arguments) if function.text == "moved" => {
                    let name = arguments.first().and_then(path).and_then(|path| path.first());
                    set_app(declared, &mut app, name.unwrap_or(function))?;
                    moved = true;
                }
                _ => match operations(part) {
                    Some(selected) => {
                        ops = OpMask(ops.0 & selected.0);
                        selection = Some(part);
                    }
                    None => rest.push(part),
                },
            }
        }
        let mut is_command = false;
        condition.walk(&mut |part| {
            is_command |= path(part)
                .and_then(|path| path.first())
                .is_some_and(|name| name.text == "channel" || name.text == "header");
        });
        if let (true, Some(part)) = (moved, selection) {
            let (part_name, allowed) = ("the operation of a command", "rules for commands");
            let problem = RuleSourceProblem::NotHere { part: part_name, allowed };
            return Err(Problem::new(&part.span, problem));
        }
        let trigger = match (moved, is_command) {
            (true, _) => RuleTrigger::Moved,
            (false, true) => RuleTrigger::Command,
            (false, false) => RuleTrigger::Background,
        };
        if trigger == RuleTrigger::Command && ops == OpMask::NONE {
            let (expected, found) = ("a condition that can be true".into(), "another".into());
            let problem = RuleSourceProblem::Expected { expected, found };
            return Err(Problem::new(&condition.span, problem));
        }
        let app = match app {
            Some(app) => app,
            None if trigger == RuleTrigger::Command => declared.only_app(&item.name, "the rule")?,
            None => mentioned_app(declared, item)?,
        };
        let ops = if trigger == RuleTrigger::Command { ops } else { OpMask::NONE };
        Ok(Matching { app, trigger, ops, rest })
    }
}

fn set_app(declared: &Declarations<'_>, app: &mut Option<AppId>, name: &SourceName) -> Lowered<()> {
    let found = declared.app(name)?;
    if found == AppId::GLOBAL {
        let known = declared.program.apps.iter().map(|app| app.name.as_str());
        return Err(Problem::unknown(&name.span, "application", &name.text, known));
    }
    match app.replace(found) {
        Some(other) if other != found => {
            let (app, other) = (declared.app_name(other), declared.app_name(found));
            Err(Problem::new(&name.span, RuleSourceProblem::Foreign { app, other }))
        }
        _ => Ok(()),
    }
}

/// Returns the application of a rule without a command: that of the first name that belongs to one.
/// Other applications' names are then errors.
fn mentioned_app(declared: &Declarations<'_>, item: &RuleItem) -> Lowered<AppId> {
    if item.is_global {
        return Ok(AppId::GLOBAL);
    }
    let mut found = None;
    let mut mention = |name: &SourceName| {
        let table = || {
            let table = declared.table_named(&name.text)?;
            Some(declared.program.tables[table.index()].app)
        };
        found = found.or_else(|| declared.app(name).ok()).or_else(table);
    };
    let mut visit = |expression: &Expression| match &expression.kind {
        ExpressionKind::Path(path) => path.iter().take(1).for_each(&mut mention),
        ExpressionKind::Best { app, .. } => mention(app),
        ExpressionKind::In(_, table) => mention(table),
        _ => {}
    };
    if let When::Condition(condition) = &item.when {
        condition.walk(&mut visit);
    }
    for statement in &item.body {
        mentions(statement, &mut visit);
    }
    if found.is_none() {
        let mut tables = Vec::new();
        item.body.iter().for_each(|statement| table_names(statement, &mut tables));
        let table = tables.iter().find_map(|name| declared.table_named(&name.text));
        found = table.map(|table| declared.program.tables[table.index()].app);
    }
    match found {
        Some(app) => Ok(app),
        None => declared.only_app(&item.name, "the rule"),
    }
}

fn mentions<'s>(statement: &'s StatementNode, visit: &mut dyn FnMut(&'s Expression)) {
    let blocks: [&[StatementNode]; 2] = match &statement.kind {
        StatementKind::Assign { target, value } => {
            target.walk(visit);
            value.walk(visit);
            [&[], &[]]
        }
        StatementKind::If { condition, then, otherwise } => {
            condition.walk(visit);
            [then, otherwise]
        }
        StatementKind::Count { to, body, .. } => {
            to.walk(visit);
            [body, &[]]
        }
        StatementKind::Move { line, units, .. } => {
            line.walk(visit);
            units.iter().for_each(|units| units.walk(visit));
            [&[], &[]]
        }
        StatementKind::Erase { line } => {
            line.walk(visit);
            [&[], &[]]
        }
        _ => [&[], &[]],
    };
    for statement in blocks.into_iter().flatten() {
        mentions(statement, visit);
    }
}

fn table_names<'s>(statement: &'s StatementNode, into: &mut Vec<&'s SourceName>) {
    match &statement.kind {
        StatementKind::Each { table, .. }
        | StatementKind::Add { table, .. }
        | StatementKind::Remove { table, .. } => into.push(table),
        StatementKind::If { then, otherwise, .. } => {
            then.iter().chain(otherwise).for_each(|statement| table_names(statement, into));
        }
        StatementKind::Count { body, .. } => {
            body.iter().for_each(|statement| table_names(statement, into));
        }
        _ => {}
    }
}
