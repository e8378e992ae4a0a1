//! Files of figures that are wrong.

use std::fs;

use sluice_repro::{Catalog, FigureClass, ReproError, Selection};

use crate::{FIGURE, figure, parse};

#[test]
fn a_figure_has_what_its_file_says() {
    let figure = figure(FIGURE);
    assert_eq!(figure.name().to_string(), "P20:figure-1");
    assert_eq!(
        (figure.class(), figure.commands()),
        (FigureClass::Virtual, &["bench block".to_owned()][..])
    );
    assert_eq!((figure.charts().len(), figure.checks().len()), (2, 1));
}

#[test]
fn a_wrong_file_says_why() {
    for (from, to, why) in [
        ("minutes = 0.1", "minute = 0.1", "minute"),
        ("minutes = 0.1", "minutes = 0.0", "above 0"),
        ("group = \"block\"", "group = \"\"", "spec/results.toml"),
        ("class = \"virtual\"", "class = \"unreal\"", "unreal"),
        ("x = [\"one\", \"four\"]", "x = [\"one\"]", "`at` has a text for each"),
        ("paper = { 2 = 20 }", "paper = { 3 = 20 }", "no x value"),
        ("name = \"b/c\"", "name = \"a\"", "not its own"),
        ("name = \"b/c\"", "name = \"b@c\"", "no `@`"),
        ("name = \"bars\"", "name = \"\"", "two charts"),
        ("value = \"b/c@2\"", "value = \"b/c\"", "LINE@X"),
        ("value = \"b/c@2\"", "value = \"d@2\"", "no line `d`"),
        ("value = \"b/c@2\"", "value = \"a@3\"", "no x value 3"),
        ("at_least = 2", "", "neither `at_least` nor `at_most`"),
        ("at_least = 2", "at_least = 2\nminus = \"a@1\"", "exclude each other"),
        ("at_least = 2", "at_least = 2\nis = \"flat\"", "one of"),
        (
            "value = \"b/c@2\"\nover = \"a@2\"\nat_least = 2",
            "line = \"b/c\"\nwithin = 0.1",
            "no values of the paper",
        ),
        ("value = \"b/c@2\"", "line = \"a\"\nis = \"flat\"", "of a `value`"),
        ("[[run]]\ncommand = \"bench block\"", "run = []", "no `[[run]]`"),
    ] {
        assert!(FIGURE.contains(from), "{from}");
        let error = parse(&FIGURE.replacen(from, to, 1)).unwrap_err();
        assert!(error.starts_with("figure-1.toml: ") && error.contains(why), "{to}: {error}");
    }
    let ambiguous = FIGURE.replace("name = \"growth\"", "name = \"a\"");
    assert!(parse(&ambiguous).unwrap_err().contains("several charts have a line `a`"));
}

#[test]
fn figures_are_chosen_by_paper_name_class_and_time() {
    let folder = tempfile::tempdir().unwrap();
    let none = Catalog::load(folder.path()).unwrap_err();
    assert!(matches!(none, ReproError::NoFigures(_)), "{none}");
    for (paper, name, text) in [
        ("A10", "figure-10", FIGURE.to_owned()),
        ("A10", "figure-9", FIGURE.replace("virtual", "real")),
        ("B11", "table-1", FIGURE.replace("minutes = 0.1", "minutes = 3")),
    ] {
        fs::create_dir_all(folder.path().join(paper)).unwrap();
        fs::write(folder.path().join(paper).join(format!("{name}.toml")), text).unwrap();
    }
    // A sweep and its scenario are no figures.
    fs::write(folder.path().join("A10/figure-9.sweep.toml"), "x").unwrap();
    fs::write(folder.path().join("A10/figure-9.scenario.toml"), "x").unwrap();
    let catalog = Catalog::load(folder.path()).unwrap();
    let chosen = |names: &[&str], class, minutes_max| {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        let selection = Selection { names, class, minutes_max };
        let found = catalog.select(&selection);
        found.map(|f| f.iter().map(|f| f.name().to_string()).collect::<Vec<_>>())
    };
    assert_eq!(
        chosen(&["all"], None, None).unwrap(),
        ["A10:figure-9", "A10:figure-10", "B11:table-1"]
    );
    assert_eq!(
        chosen(&["a10:Figure-10", "b11"], None, None).unwrap(),
        ["A10:figure-10", "B11:table-1"]
    );
    assert_eq!(chosen(&[], Some(FigureClass::Real), None).unwrap(), ["A10:figure-9"]);
    assert_eq!(chosen(&["all"], Some(FigureClass::Virtual), Some(1.0)).unwrap(), ["A10:figure-10"]);
    let missing = folder.path().join("missing.toml");
    fs::write(&missing, "[[missing]]\nsource = \"s\"\ntitle = \"t\"\nreason = \"r\"\n").unwrap();
    assert_eq!(Catalog::load(folder.path()).unwrap().missing()[0].reason, "r");
    fs::write(&missing, "[[missing]]\nsource = \"s\"\n").unwrap();
    let wrong = Catalog::load(folder.path()).unwrap_err().to_string();
    assert!(wrong.contains("missing.toml") && wrong.contains("title"), "{wrong}");
    let unknown = chosen(&["A10:figure-1"], None, None).unwrap_err().to_string();
    assert!(unknown.contains("did you mean `A10:figure-"), "{unknown}");
    let unknown = chosen(&["nothing like it"], None, None).unwrap_err().to_string();
    assert!(unknown.contains("sluice repro list"), "{unknown}");
}
