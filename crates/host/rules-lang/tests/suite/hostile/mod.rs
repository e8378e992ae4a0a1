//! Hostile sources are refused with the line and the column of the problem.

mod sources;

use std::path::Path;

use rules_lang::{CompileOptions, RuleSourceError, RuleSourceProblem, check};

use sources::{BACKGROUND, COMMANDS, CONDITIONS, HEAD, WHOLE};

fn refused(source: &[u8]) -> Box<RuleSourceError> {
    match check(Path::new("hostile.rules"), source, &CompileOptions::default()) {
        Ok(_) => panic!("accepted: {}", String::from_utf8_lossy(source)),
        Err(error) => error,
    }
}

/// Checks a source whose error is at `$`; returns a problem of the test, if any.
fn problem(marked: &str, message: &str) -> Option<String> {
    let at = marked.find('$').unwrap_or(0);
    let (before, source) = (&marked[..at], marked.replacen('$', "", 1));
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
    let error = refused(source.as_bytes());
    let text = error.to_string();
    let expected = format!("hostile.rules:{line}:{column}: ");
    let is_expected = text.starts_with(&expected) && text.contains(message);
    (!is_expected || text.contains('\n')).then(|| format!("{expected}{message}\n  is {text}"))
}

// guarantee: B-122
#[test]
fn two_hundred_hostile_sources_are_refused_at_their_problem() {
    let mut all: Vec<(String, &str)> = Vec::new();
    all.extend(WHOLE.iter().map(|[source, message]| ((*source).to_owned(), *message)));
    for (rules, wrap) in [
        (CONDITIONS, ["rule r\n  when ", "\n  do complete ok\n"]),
        (COMMANDS, ["rule r\n  when channel.app == a and header.read\n  do ", ""]),
        (BACKGROUND, ["rule r\n  when idle(a)\n  do ", ""]),
    ] {
        let [before, after] = wrap;
        let source = |part: &str| format!("{HEAD}{before}{part}{after}");
        all.extend(rules.iter().map(|[part, message]| (source(part), *message)));
    }
    assert!(all.len() >= 200, "{} sources", all.len());
    let problems: Vec<_> = all.iter().filter_map(|(source, m)| problem(source, m)).collect();
    assert!(problems.is_empty(), "{} of {}:\n{}", problems.len(), all.len(), problems.join("\n"));
}

#[test]
fn bytes_that_are_no_text_and_deep_nesting_are_refused() {
    let error = refused(b"app a { units = 0 }\n# \xff\n");
    assert_eq!((error.line, error.column), (2, 3));
    assert_eq!(error.problem, RuleSourceProblem::NotUtf8);
    let head = "app a { units = 0 }\nrule r when header.read and ";
    for (open, close) in [("(", ")"), ("not ", ""), ("none ", ""), ("x[", "]"), ("min(1, ", ")")] {
        let source =
            format!("{head}{}1{} do complete ok", open.repeat(10_000), close.repeat(10_000));
        let error = refused(source.as_bytes());
        assert_eq!((error.line, &error.problem), (2, &RuleSourceProblem::TooDeep), "{open}");
    }
    for operator in [" + 1", " and true", " in x", " == 1"] {
        let source = format!("{head}1{} do complete ok", operator.repeat(10_000));
        assert_eq!(refused(source.as_bytes()).problem, RuleSourceProblem::TooDeep, "{operator}");
    }
    let head = "app a { units = 0 }\nrule r when header.read do ";
    for open in ["if true { ", "for i in 0..1 up to 1 { ", "if true { } else "] {
        let source = format!("{head}{}", open.repeat(10_000));
        assert_eq!(refused(source.as_bytes()).problem, RuleSourceProblem::TooDeep, "{open}");
    }
    let error = refused(&vec![b' '; (1 << 20) + 1]);
    assert_eq!(error.problem, RuleSourceProblem::TooLong);
}

#[test]
fn rules_with_too_many_values_are_refused() {
    let values: String = (0..70).map(|at| format!("x{at} = {at}; ")).collect();
    let source = format!("app a {{ units = 0 }}\nrule r when header.read do {values} complete ok");
    assert_eq!(refused(source.as_bytes()).problem, RuleSourceProblem::Registers);
}
