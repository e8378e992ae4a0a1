//! The example of `docs/sweep.md` is a sweep that runs.

use std::path::Path;

use super::sweep;
use crate::sim_folder::Folder;

/// Returns the code blocks of a language in a page.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    page.split(&fence).skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

#[test]
fn the_example_runs_and_has_the_rows_that_the_page_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let page = std::fs::read_to_string(root.join("docs/sweep.md")).unwrap();
    let [scenario, file] = blocks(&page, "toml")[..2] else { panic!("two blocks of TOML") };
    let folder = Folder::new(&[("writes.toml", scenario), ("op.toml", file)]);
    let (_, told) = sweep(&folder, &["op.toml", "--csv", "op.csv", "--plot", "plots"], 0);
    assert!(told.contains("12/12 · 0 failed"), "{told}");
    let csv = folder.read("op.csv");
    assert_eq!(csv.lines().count(), 1 + 12);
    let head = blocks(&page, "csv")[0];
    assert_eq!(csv.lines().next(), head.lines().next(), "the columns of the page");
    assert!(folder.path("plots/write_amplification-01-write.svg").exists());
    let line = page.lines().find(|line| line.starts_with("sluice sim writes.toml --set")).unwrap();
    let words: Vec<&str> = line.split(' ').skip(2).collect();
    folder.run_to_end(&words, 0);
}
