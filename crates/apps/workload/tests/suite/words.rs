//! `docs/fio.md` equals the parser's tables, and the tables have every option of fio 3.33.

use std::path::Path;
use std::process::Command;

use sluice_workload::{JobError, JobProblem, fio_reference, parse_jobs};

#[test]
fn the_reference_page_is_written_from_the_tables() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/fio.md");
    let written = fio_reference();
    if std::env::var_os("SLUICE_WRITE_DOCS").is_some() {
        std::fs::write(&path, &written).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == written,
        "docs/fio.md is not what the tables say; write it anew with \
         SLUICE_WRITE_DOCS=1 cargo test -p sluice-workload --test suite words::"
    );
}

/// Every option that fio 3.33 lists is supported, without effect, or refused with a reason.
#[test]
fn every_word_of_fio_has_its_place() {
    let fio = Command::new("fio").arg("--cmdhelp=all").output();
    let fio = fio.expect("`fio` is not installed: apt-get install fio, or `make test-packages`");
    let list = String::from_utf8(fio.stdout).unwrap();
    let words: Vec<&str> =
        list.lines().filter_map(|line| line.split_once(':')).map(|(word, _)| word.trim()).collect();
    assert!(words.len() > 180, "{words:?}");
    for word in words {
        let error = match parse_jobs(Path::new("j.fio"), &format!("[j]\n{word}=1\n")) {
            Ok(_) => continue,
            Err(JobError::Invalid(invalid)) => invalid.problem,
            Err(e) => panic!("{word}: {e}"),
        };
        assert!(!matches!(error, JobProblem::UnknownOption { .. }), "fio's `{word}`: {error}");
    }
}
