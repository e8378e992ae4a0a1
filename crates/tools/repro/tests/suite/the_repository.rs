//! The figures of this repository.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use sluice_repro::{Catalog, FigureVerdict, ReportedFigure, charts, judge, page};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn charts_and_page_are_those_of_the_recorded_results() {
    let catalog = Catalog::load(&root().join("repro")).unwrap();
    let mut all = Vec::new();
    let mut expected: BTreeSet<PathBuf> = BTreeSet::new();
    for figure in catalog.figures() {
        let results = catalog.recorded(figure.name()).unwrap();
        if let Some(results) = &results {
            expected.insert(catalog.results_path(figure.name()));
            for drawing in charts(figure, results) {
                let path = catalog.results_folder(figure.name()).join(&drawing.file);
                assert!(
                    read(&path) == drawing.svg,
                    "{}: run `sluice repro report`",
                    path.display()
                );
                expected.insert(path);
            }
            let judgement = judge(figure, results);
            assert_ne!(judgement.verdict, FigureVerdict::Failed, "{:?}", judgement.failures);
        }
        let sensitivity = catalog.sensitivity(figure.name()).unwrap();
        if sensitivity.is_some() {
            expected.insert(catalog.sensitivity_path(figure.name()));
        }
        all.push(ReportedFigure { figure, results, sensitivity });
    }
    assert!(
        read(&root().join("REPRODUCED.md")) == page("repro", &all, catalog.missing()),
        "run `sluice repro report`"
    );
    let folders: BTreeSet<PathBuf> =
        expected.iter().map(|path| path.parent().unwrap().to_path_buf()).collect();
    for folder in folders {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            assert!(expected.contains(&path), "{} is of no figure", path.display());
        }
    }
}

#[test]
fn every_figure_cites_a_paper_of_the_bibliography() {
    let catalog = Catalog::load(&root().join("repro")).unwrap();
    let bibliography = read(&root().join("docs/bibliography.md"));
    for figure in catalog.figures().iter().filter(|figure| figure.name().paper() != "Sluice") {
        let key = format!("[{}]", figure.name().paper());
        assert!(bibliography.contains(&key), "{}: no {key}", figure.name());
        assert!(figure.source().starts_with(&key[..key.len() - 1]), "{}", figure.name());
    }
}
