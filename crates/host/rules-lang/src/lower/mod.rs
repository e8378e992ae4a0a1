//! Lowering: resolves names, checks types and applications, and makes the verified form.

mod code;
mod condition;
mod expression;
mod statement;

use rules::{
    AppDeclaration, AppId, CodeRange, LayoutId, RecordField, RecordLayout, RuleDeclaration,
    RuleProgram, TableDeclaration, TableId, TableKind,
};

use crate::CompileOptions;
use crate::ast::{
    BinaryOp, Expression, ExpressionKind, RecordItem, RuleItem, Source, SourceName, TableForm,
    TableItem,
};
use crate::error::{Problem, RuleSourceLines, RuleSourceProblem};

use code::RuleCode;
use condition::Matching;

type Lowered<T> = Result<T, Problem>;

/// Declarations that rules refer to.
struct Declarations<'a> {
    program: RuleProgram,
    options: &'a CompileOptions,
}

/// Returns the parallel units of an application.
fn units_of(app: &AppDeclaration) -> u64 {
    u64::from(app.last_unit.saturating_sub(app.first_unit)) + 1
}

/// Lowers a source.
pub(crate) fn program(
    source: &Source,
    lines: &RuleSourceLines,
    options: &CompileOptions,
) -> Lowered<RuleProgram> {
    let mut declared = Declarations { program: RuleProgram::default(), options };
    for item in &source.apps {
        let kind = "application";
        let names = declared.program.apps.iter().map(|app| app.name.as_str());
        unique(&item.name, kind, names.chain(["drive", "header", "channel", "line"]))?;
        let units = u64::from(item.last_unit.saturating_sub(item.first_unit)) + 1;
        let physical = u128::from(units) * u128::from(options.grant.unit_sectors);
        let sectors = physical * 1_000_000 / (1_000_000 + u128::from(item.spare_ppm));
        let mut app = AppDeclaration {
            name: item.name.text.clone(),
            first_unit: item.first_unit,
            last_unit: item.last_unit,
            spare_ppm: item.spare_ppm,
            quota_ppm: item.quota_ppm,
            sectors: 0,
        };
        app.sectors = app.quota_of(sectors.try_into().unwrap_or(u64::MAX));
        declared.program.apps.push(app);
    }
    for item in &source.records {
        let names = declared.program.layouts.iter().map(|layout| layout.name.as_str());
        unique(&item.name, "record", names)?;
        let layout = declared.layout(item)?;
        declared.program.layouts.push(layout);
    }
    for item in &source.tables {
        let names = declared.program.tables.iter().map(|table| table.name.as_str());
        unique(&item.name, "table", names)?;
        let table = declared.table(item)?;
        declared.program.tables.push(table);
    }
    for item in &source.rules {
        let names = declared.program.rules.iter().map(|rule| rule.name.as_str());
        unique(&item.name, "rule", names)?;
        let location = lines.location(item.span.start);
        declared.rule(item, location)?;
    }
    Ok(declared.program)
}

fn unique<'a>(
    name: &SourceName,
    kind: &'static str,
    mut known: impl Iterator<Item = &'a str>,
) -> Lowered<()> {
    if known.any(|known| known == name.text) {
        let problem = RuleSourceProblem::Duplicate { kind, name: name.text.clone() };
        return Err(Problem::new(&name.span, problem));
    }
    Ok(())
}

impl Declarations<'_> {
    fn layout(&self, item: &RecordItem) -> Lowered<RecordLayout> {
        let mut layout =
            RecordLayout { name: item.name.text.clone(), bytes: 0, fields: Vec::new() };
        let limits = rules::ProgramLimits::MAX;
        for field in &item.fields {
            unique(&field.name, "field", layout.fields.iter().map(|field| field.name.as_str()))?;
            let count = match &field.count {
                Some(count) => self.constant(count, "the length of a field", 1, 1 << 16)?,
                None => 1,
            };
            let bytes = u64::from(layout.bytes) + count * field.width.bytes();
            if bytes > limits.record_bytes.into() || layout.fields.len() == limits.fields {
                let allowed = format!("{} bytes and {} fields", limits.record_bytes, limits.fields);
                let problem = RuleSourceProblem::Range { part: "the record", allowed };
                return Err(Problem::new(&field.name.span, problem));
            }
            layout.fields.push(RecordField {
                name: field.name.text.clone(),
                offset: layout.bytes,
                width: field.width,
                count: count as u32,
            });
            layout.bytes = bytes as u32;
        }
        Ok(layout)
    }

    fn table(&self, item: &TableItem) -> Lowered<TableDeclaration> {
        let app = match &item.app {
            Some(name) => self.app(name)?,
            None => self.only_app(&item.name, "the table")?,
        };
        Ok(TableDeclaration {
            name: item.name.text.clone(),
            app,
            kind: match item.form {
                TableForm::Address => TableKind::Address,
                TableForm::Array(width) => TableKind::Array(width),
                TableForm::Set(width) => TableKind::Set(width),
                TableForm::Map(key, value) => TableKind::Map { key, value },
            },
            capacity: self.constant(&item.capacity, "the size of a table", 1, 1 << 48)?,
            is_durable: item.is_durable,
        })
    }

    /// Returns the only application.
    fn only_app(&self, at: &SourceName, part: &'static str) -> Lowered<AppId> {
        match self.program.apps.len() {
            1 => Ok(AppId::new(0)),
            _ => Err(Problem::new(&at.span, RuleSourceProblem::WhichApp { part })),
        }
    }

    /// Returns the application with a name; `drive` is the owner of global rules.
    fn app(&self, name: &SourceName) -> Lowered<AppId> {
        if name.text == "drive" {
            return Ok(AppId::GLOBAL);
        }
        let at = self.program.apps.iter().position(|app| app.name == name.text);
        at.map(AppId::from_index).ok_or_else(|| {
            let known = self.program.apps.iter().map(|app| app.name.as_str());
            Problem::unknown(&name.span, "application", &name.text, known)
        })
    }

    fn app_name(&self, app: AppId) -> String {
        self.program.apps.get(app.index()).map_or("the drive".into(), |app| app.name.clone())
    }

    fn table_named(&self, name: &str) -> Option<TableId> {
        self.program.tables.iter().position(|t| t.name == name).map(TableId::from_index)
    }

    fn table_of(&self, name: &SourceName) -> Lowered<TableId> {
        self.table_named(&name.text).ok_or_else(|| {
            let known = self.program.tables.iter().map(|table| table.name.as_str());
            Problem::unknown(&name.span, "table", &name.text, known)
        })
    }

    fn layout_of(&self, name: &SourceName) -> Lowered<LayoutId> {
        let at = self.program.layouts.iter().position(|layout| layout.name == name.text);
        at.map(LayoutId::from_index).ok_or_else(|| {
            let known = self.program.layouts.iter().map(|layout| layout.name.as_str());
            Problem::unknown(&name.span, "record", &name.text, known)
        })
    }

    /// Evaluates a constant within limits.
    fn constant(
        &self,
        expression: &Expression,
        part: &'static str,
        min: u64,
        max: u64,
    ) -> Lowered<u64> {
        let value = self.evaluate(expression, part)?;
        if !(min..=max).contains(&value) {
            let allowed = format!("{min} to {max}");
            let problem = RuleSourceProblem::Range { part, allowed };
            return Err(Problem::new(&expression.span, problem));
        }
        Ok(value)
    }

    fn evaluate(&self, expression: &Expression, part: &'static str) -> Lowered<u64> {
        let not_constant =
            || Err(Problem::new(&expression.span, RuleSourceProblem::NotConstant { part }));
        match &expression.kind {
            ExpressionKind::Int(value) => Ok(*value),
            ExpressionKind::Path(path) => match path.as_slice() {
                [app, field] => match (self.app(app), &*field.text) {
                    (Ok(AppId::GLOBAL), _) => not_constant(),
                    (Ok(app), "sectors") => Ok(self.program.apps[app.index()].sectors),
                    (Ok(app), "units") => Ok(units_of(&self.program.apps[app.index()])),
                    _ => not_constant(),
                },
                _ => not_constant(),
            },
            ExpressionKind::Binary(op, a, b) => {
                let (a, b) = (self.evaluate(a, part)?, self.evaluate(b, part)?);
                match op {
                    BinaryOp::Add => Ok(a.wrapping_add(b)),
                    BinaryOp::Sub => Ok(a.wrapping_sub(b)),
                    BinaryOp::Mul => Ok(a.wrapping_mul(b)),
                    BinaryOp::Div => Ok(a.checked_div(b).unwrap_or(0)),
                    BinaryOp::Rem => Ok(a.checked_rem(b).unwrap_or(0)),
                    BinaryOp::Shl => Ok(a << (b & 63)),
                    BinaryOp::Shr => Ok(a >> (b & 63)),
                    _ => not_constant(),
                }
            }
            _ => not_constant(),
        }
    }

    fn rule(&mut self, item: &RuleItem, location: rules::RuleLocation) -> Lowered<()> {
        let matching = Matching::of(self, item)?;
        let mut condition = RuleCode::new(self, &matching);
        condition.condition(&matching.rest)?;
        let condition = condition.finish();
        let mut action = RuleCode::new(self, &matching);
        action.action(item)?;
        let action = action.finish();
        let program = &mut self.program;
        let mut append = |code: Vec<rules::Instruction>| {
            let range = CodeRange { start: program.code.len() as u32, len: code.len() as u32 };
            program.code.extend(code);
            range
        };
        let (condition, action) = (append(condition), append(action));
        program.rules.push(RuleDeclaration {
            name: item.name.text.clone(),
            app: matching.app,
            trigger: matching.trigger,
            ops: matching.ops,
            priority: item.priority,
            hops: item.hops,
            location,
            condition,
            action,
        });
        Ok(())
    }
}
