//! Tests of sweep files.

use super::*;

const SCENARIO: &str =
    "[drive]\npreset = \"femu-default\"\n[[job]]\nrw = \"read\"\nsize = \"1m\"\n";

fn load(text: &str) -> Result<SweepFile, SweepError> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.toml"), SCENARIO).unwrap();
    let file = folder.path().join("s.toml");
    std::fs::write(&file, text).unwrap();
    SweepFile::load(&file)
}

fn refused(text: &str, line: usize) -> String {
    let error = load(text).unwrap_err().to_string();
    let (_, rest) = error.split_once("s.toml:").expect("it names the file");
    assert!(rest.starts_with(&format!("{line}: ")), "{error}");
    error
}

#[test]
fn a_file_has_keys_in_sections_dotted_or_quoted() {
    let file = load(
        "scenario = \"a.toml\"\nseeds = \"2..4\"\nstore = \"kept\"\n[set]\n\
         drive.ftl.over_provisioning = [0.1, 0.2]\n\"job.*.bs\" = [\"4k\", \"8k\"]\nseed_x = 1\n\
         [set.drive.geometry]\nchunks = [64]\n[plot]\nx = \"job.*.bs\"\ny = \"iops\"\n",
    )
    .unwrap();
    let keys: Vec<String> =
        file.sweep.grid.settings().iter().map(|setting| setting.key.to_string()).collect();
    assert_eq!(keys.len(), 4);
    for key in ["drive.ftl.over_provisioning", "job.*.bs", "seed_x", "drive.geometry.chunks"] {
        assert!(keys.iter().any(|found| found == key), "{key} in {keys:?}");
    }
    assert_eq!(file.sweep.grid.points().len(), 8);
    assert!(file.store.ends_with("kept"));
    let plot = PlotSpec { x: Some("job.*.bs".into()), y: vec!["iops".into()], lines: None };
    assert_eq!(file.plot, plot);
    let file = load("scenario = \"a.toml\"\nseeds = 3\n").unwrap();
    assert!(file.store.ends_with("s.runs"), "{}", file.store.display());
    assert_eq!(file.sweep.grid.points().len(), 3);
}

#[test]
fn errors_have_the_line() {
    let set = "scenario = \"a.toml\"\n[set]\nseed = [1, 2]\n";
    assert!(refused("scenario = \"a.toml\"\nsede = 1\n", 2).contains("did you mean `seeds`?"));
    assert!(refused("scenario = 1\n", 1).contains("must be a string"));
    assert!(refused("seeds = 1\n", 1).contains("needs `scenario`"));
    assert!(refused("scenario = \"a.toml\"\nseeds = \"x\"\n", 2).contains("`x`"));
    assert!(refused(&set.replace("[1, 2]", "[]"), 3).contains("no value"));
    assert!(refused(&set.replace("[1, 2]", "[1, 1]"), 3).contains("1 occurs twice"));
    assert!(refused(&format!("{set}[plot]\nx = \"sed\"\n"), 5).contains("its keys: seed"));
    assert!(refused(&format!("{set}[plot]\ny = [\"speed\"]\n"), 5).contains("clat_p99_ns"));
    assert!(refused(&format!("{set}[plot]\nz = 1\n"), 5).contains("no key `z`"));
    let twice = "[plot]\nx = \"seed\"\nlines = \"seed\"\n";
    assert!(refused(&format!("{set}{twice}"), 6).contains("same key"));
    assert!(refused("scenario = \"a.toml\"\n[set\n", 2).contains("not valid TOML"));
    assert!(refused("scenario = \"a.toml\"\nset = 1\n", 2).contains("`set` is a table"));
}

#[test]
fn an_empty_sweep_is_an_error() {
    let empty = load("scenario = \"a.toml\"\n[set]\n").unwrap_err();
    assert!(matches!(empty, SweepError::Empty), "{empty}");
    let missing = load("scenario = \"b.toml\"\nseeds = 1\n").unwrap_err().to_string();
    assert!(missing.contains("b.toml"), "{missing}");
}

#[test]
fn an_error_of_a_value_names_the_line_of_its_key() {
    let file = load("scenario = \"a.toml\"\n[set]\ndrive.cell = [\"slc\", 5]\n").unwrap();
    let error = file.sweep.points().unwrap_err().to_string();
    assert!(error.contains("s.toml:3: drive.cell=5: "), "{error}");
}
