//! Verdicts, drawings and the page.

// guarantee: B-62

use sluice_repro::{FigureVerdict, MissingFigure, ReportedFigure, charts, judge, page};

use crate::{FIGURE, figure, results};

/// The figure with other checks.
fn with_check(check: &str) -> String {
    let (before, _) = FIGURE.split_once("[[check]]").unwrap();
    format!("{before}[[check]]\nclaim = \"c\"\n{check}\n")
}

fn outcome(check: &str) -> (bool, String) {
    let figure = figure(&with_check(check));
    let judgement = judge(&figure, &results(&figure, 25_000));
    let [check] = &judgement.checks[..] else { panic!("one check") };
    (check.holds, check.measured.clone())
}

#[test]
fn checks_compare_values_ratios_differences_directions_and_the_paper() {
    for (check, expected) in [
        ("value = \"a@4\"\nat_least = 40\nat_most = 40", true),
        ("value = \"a@4\"\nat_most = 39.9", false),
        ("value = \"b/c@2\"\nover = \"a@2\"\nat_least = 2.5", true),
        ("value = \"b/c@2\"\nminus = \"a@2\"\nat_most = 29", false),
        ("value = \"a@max\"\nover = \"a@min\"\nat_least = 4", true),
        ("value = \"a@last\"\nover = \"a@first\"\nat_most = 3.9", false),
        ("value = \"growth@four\"\nat_least = 4\nat_most = 4", true),
        // The line has two points.
        ("value = \"b/c@4\"\nat_least = 0", false),
        ("line = \"a\"\nis = \"rising\"", true),
        ("line = \"a\"\nis = \"falling\"\nslack = 0.9", false),
        ("line = \"a\"\nis = \"falling\"\nslack = 1.0", true),
        ("line = \"a\"\nis = \"flat\"\nslack = 2.9", false),
        ("line = \"a\"\nis = \"flat\"\nslack = 3.0", true),
        ("line = \"a\"\nwithin = 0.0", true),
    ] {
        let (holds, measured) = outcome(check);
        assert_eq!(holds, expected, "{check}: {measured}");
    }
    assert_eq!(
        outcome("value = \"b/c@2\"\nover = \"a@2\"\nat_least = 2.5").1,
        "b/c@2 / a@2 = 50 / 20 = 2.5"
    );
    let far = FIGURE.replace("paper = { 2 = 20 }", "paper = { 2 = 25, 4 = 40 }");
    let far = far
        .replace("value = \"b/c@2\"\nover = \"a@2\"\nat_least = 2", "line = \"a\"\nwithin = 0.19");
    let far = figure(&far);
    let judgement = judge(&far, &results(&far, 1));
    assert_eq!(judgement.checks[0].measured, "a@2 = 20, paper 25: 20 % off");
    assert!(!judgement.checks[0].holds);
}

#[test]
fn a_figure_fails_unless_each_failed_check_has_a_reason() {
    let reason = "\nnot_here = \"two\nprocessors\"";
    for (more, b, verdict) in [
        ("", 25_000, FigureVerdict::Reproduced),
        ("", 15_000, FigureVerdict::Failed),
        (reason, 15_000, FigureVerdict::Partly),
        // Virtual time is the same everywhere: the reason is no longer true.
        (reason, 25_000, FigureVerdict::Failed),
    ] {
        let more = more.replace("two\nprocessors", "two processors");
        let text = FIGURE.replace("at_least = 2\n", &format!("at_least = 2{more}\n"));
        let figure = figure(&text);
        let judgement = judge(&figure, &results(&figure, b));
        assert_eq!(judgement.verdict, verdict, "{b}: {judgement:?}");
        assert_eq!(judgement.failures.is_empty(), verdict != FigureVerdict::Failed);
    }
    let text = FIGURE
        .replace("virtual", "real")
        .replace("at_least = 2\n", "at_least = 2\nnot_here = \"x\"\n");
    let real = figure(&text);
    // In real time a check may hold on another machine.
    assert_eq!(judge(&real, &results(&real, 25_000)).verdict, FigureVerdict::Reproduced);
}

#[test]
fn drawings_and_the_page_depend_on_the_results_alone() {
    let figure = figure(FIGURE);
    let results = results(&figure, 25_000);
    let drawn = charts(&figure, &results);
    let files: Vec<&str> = drawn.iter().map(|drawing| drawing.file.as_str()).collect();
    assert_eq!(files, ["figure-1.svg", "figure-1-bars.svg"]);
    // Line a with the paper's value, and b.
    assert_eq!(drawn[0].svg.matches("<polyline").count(), 2);
    assert_eq!(drawn[0].svg.matches("<circle class=\"mark way0\"").count(), 1);
    assert!(drawn.iter().all(|drawing| !drawing.svg.contains("NaN")));
    assert_eq!(charts(&figure, &results), drawn);
    let missing = [MissingFigure {
        source: "[P20 §9]".into(),
        title: "Power".into(),
        reason: "nothing measures it".into(),
    }];
    let text = page(
        "repro",
        &[ReportedFigure { figure: &figure, results: Some(results.clone()), sensitivity: None }],
        &missing,
    );
    for part in [
        "1 figures: 1 reproduced, 0 partly, 0 failed, 0 not measured",
        "| [P20:figure-1](#p20figure-1-rates) | Rates | virtual | 1 of 1 | reproduced |",
        "`sluice bench block` at 0123abcd: **reproduced**",
        "![Rates by cores](repro/P20/results/figure-1.svg)",
        "| a | 2 | 20 | 20 | 1 |",
        "| [P20 §9] | Power | nothing measures it |",
        "| b is faster with 2 cores | b/c@2 / a@2 = 50 / 20 = 2.5 | at least 2 | yes |",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(
        page(
            "repro",
            &[ReportedFigure { figure: &figure, results: Some(results), sensitivity: None }],
            &missing
        ),
        text
    );
    let without =
        page("repro", &[ReportedFigure { figure: &figure, results: None, sensitivity: None }], &[]);
    assert!(without.contains("Not measured yet: `sluice repro run P20:figure-1`"), "{without}");
}
