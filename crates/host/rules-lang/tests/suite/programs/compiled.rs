//! Every program and template compiles, is verified, and survives encoding.

use std::path::Path;

use rules::{AppId, InputOp, RuleGrant, RuleOp, RuleProgram};
use rules_lang::{CompileOptions, RuleTemplate, check};

/// Options for the programs: large enough for scans.
pub(crate) fn options() -> CompileOptions {
    let grant = RuleGrant { command_ops: 1 << 25, ..RuleGrant::default() };
    CompileOptions { grant, ..CompileOptions::default() }
}

/// Returns the source of a program.
pub(crate) fn demo(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../demo/rules").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub(crate) const DEMOS: [&str; 5] =
    ["page.rules", "temperature.rules", "join.rules", "btree.rules", "nameless.rules"];

#[test]
fn programs_survive_encoding() {
    for name in DEMOS {
        let checked = check(Path::new(name), demo(name).as_bytes(), &options());
        let verified = checked.unwrap_or_else(|error| panic!("{error}"));
        let decoded = RuleProgram::decode(&verified.program().encode()).expect(name);
        assert_eq!(rules::verify(decoded, &options().grant).expect(name), verified, "{name}");
    }
}

#[test]
fn templates_fit_the_default_grant() {
    for template in RuleTemplate::ALL {
        let source = template.source(63, 110_000);
        let checked = check(Path::new(template.name()), source.as_bytes(), &Default::default());
        checked.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(RuleTemplate::named(template.name()), Some(template));
    }
    assert_eq!(RuleTemplate::named("fast"), None);
}

#[test]
fn a_page_mapped_command_costs_few_operations() {
    let source = demo("page.rules");
    let verified = check(Path::new("page.rules"), source.as_bytes(), &options()).expect("valid");
    let rule = &verified.program().rules[0];
    assert_eq!(rule.condition.len, 0, "the index has the whole condition");
    let start = rule.action.start as usize;
    let code = &verified.program().code[start..start + rule.action.len as usize];
    let ops: Vec<RuleOp> = code.iter().map(|i| i.op).collect();
    use RuleOp::{MapLoad, MapStore, NextAddress, Submit};
    assert_eq!(ops, [NextAddress, MapStore, MapLoad, Submit]);
    let cost = |op| verified.command_cost(AppId::new(0), op);
    assert_eq!([InputOp::Write, InputOp::Read, InputOp::Trim].map(cost), [5, 3, 0]);
}
