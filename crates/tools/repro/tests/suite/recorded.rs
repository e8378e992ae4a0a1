//! Recorded results.

// guarantee: B-61

use sluice_repro::{Recorded, ReproError};

use crate::{FIGURE, figure, results, rows};

#[test]
fn recorded_results_are_read_as_they_were_written() {
    let figure = figure(FIGURE);
    let results = results(&figure, 25_000);
    let text = results.to_text(&figure);
    assert_eq!(
        text.lines().next().unwrap(),
        "{\"figure\":\"P20:figure-1\",\"class\":\"virtual\",\"commit\":\"0123abcd\",\"date\":\"2026-01-02\",\
         \"commands\":[\"sluice bench block --json\"]}"
    );
    // Three of a, two of b, two of growth, and the extra one without a place.
    assert_eq!(text.lines().count(), 1 + 3 + 2 + 2 + 1);
    assert!(text.lines().last().unwrap().starts_with("{\"bench\":\"block\",\"case\":\"extra, 1\""));
    assert!(!text.contains("other"));
    assert_eq!(Recorded::parse("f", &text).unwrap(), results);
    results.compare(&Recorded::parse("f", &text).unwrap(), &figure).unwrap();
}

#[test]
fn names_of_charts_and_lines_may_be_any_text() {
    let text = FIGURE
        .replace("name = \"bars\"", "name = \"bench\"")
        .replace("name = \"growth\"", "name = '\"bench\":{'");
    let figure = figure(&text);
    let results = results(&figure, 25_000);
    assert_eq!(Recorded::parse("f", &results.to_text(&figure)).unwrap(), results);
}

#[test]
fn a_changed_or_missing_row_is_told() {
    let figure = figure(FIGURE);
    let recorded = results(&figure, 25_000);
    let error = recorded.compare(&results(&figure, 25_001), &figure).unwrap_err();
    let ReproError::Differs { count, first, .. } = &error else { panic!("{error}") };
    assert_eq!(*count, 2);
    assert!(first.contains("25000.0") && first.contains("25001.0"), "{first}");
    let shorter = recorded.to_text(&figure);
    let shorter = &shorter[..shorter.trim_end().rfind('\n').unwrap()];
    let error = recorded.compare(&Recorded::parse("f", shorter).unwrap(), &figure).unwrap_err();
    assert!(error.to_string().contains("no row measured"), "{error}");
    let missing = rows(1).into_iter().filter(|row| row.case() != "b, 2 cores").collect::<Vec<_>>();
    let error = Recorded::select(&figure, &missing, recorded.origin().clone()).unwrap_err();
    assert!(error.to_string().contains("the results lack \"b, 2 cores\", iops"), "{error}");
    for (damaged, line) in [
        ("", 1),
        ("{}", 1),
        ("{\"commit\":\"a\"}\n{\"x\":1}", 2),
        ("{\"commit\":\"a\"}\n{", 2),
        ("{\"commit\":\"a\"}\n{\"bench\":\"b\",\"chart\":\"\",\"line\":\"l\",\"x\":\"1\"}", 2),
    ] {
        let error = Recorded::parse("f", damaged).unwrap_err();
        assert!(
            matches!(error, ReproError::Row { line: at, .. } if at == line),
            "{damaged}: {error}"
        );
    }
}
