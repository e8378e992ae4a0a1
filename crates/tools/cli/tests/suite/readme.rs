//! The figures of the README and of the book equal the output of their commands.

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn readme() -> String {
    std::fs::read_to_string(root().join("README.md")).unwrap()
}

/// Returns a chapter of the book.
fn chapter(name: &str) -> String {
    std::fs::read_to_string(root().join("docs/book/src").join(name)).unwrap()
}

/// Returns the block of `language` after the first occurrence of `mark`.
fn block<'t>(text: &'t str, mark: &str, language: &str) -> &'t str {
    let after = text.find(mark).unwrap_or_else(|| panic!("no {mark:?}"));
    between(&text[after..], &format!("```{language}"), "```")
}

/// Runs `sluice sim` in `folder`, and returns its output.
fn sim(folder: &Path, scenarios: &[&str]) -> String {
    sluice(folder, &[&["sim"], scenarios].concat())
}

/// Runs `sluice` in `folder`, and returns its output.
fn sluice(folder: &Path, arguments: &[&str]) -> String {
    let out = Command::new(env!("CARGO_BIN_EXE_sluice"))
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// Returns the text between a line that is `from` and the next line that is `to`, both excluded.
fn between<'t>(text: &'t str, from: &str, to: &str) -> &'t str {
    let from = format!("\n{from}\n");
    let begin = text.find(&from).unwrap_or_else(|| panic!("no line {from:?}")) + from.len();
    let end = text[begin..].find(&format!("\n{to}\n")).unwrap_or_else(|| panic!("no line {to:?}"));
    &text[begin..begin + end + 1]
}

/// Returns the cells of a row of a table whose columns are at least two spaces apart.
fn cells(row: &str) -> Vec<&str> {
    row.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
}

#[test]
fn the_first_run_prints_what_the_readme_shows() {
    let text = readme();
    let folder = tempfile::tempdir().unwrap();
    let scenario = between(&text, "cat > first.toml <<'END'", "END");
    std::fs::write(folder.path().join("first.toml"), scenario).unwrap();
    let printed = sim(folder.path(), &["first.toml"]);
    let after = &text[text.find("sluice sim first.toml").unwrap()..];
    let shown = between(after, "```text", "```");
    assert!(printed.starts_with(shown), "the README shows\n{shown}\nthe command prints\n{printed}");
}

#[test]
fn the_demo_prints_what_the_readme_shows() {
    let makefile = std::fs::read_to_string(root().join("Makefile")).unwrap();
    let demo = makefile.lines().find_map(|line| line.strip_prefix("DEMO := ")).unwrap();
    let printed = sim(&root(), &demo.split(' ').collect::<Vec<_>>());
    let mut lines = printed.lines();
    let header = cells(lines.next().unwrap());
    let column = |name: &str| header.len() - header.iter().position(|h| *h == name).unwrap();
    // The first column is empty except in the first row of a configuration, and only some rows have
    // the last column.
    let cell = |row: &[&str], name: &str| {
        let missing = usize::from(row.last().is_some_and(|last| last.contains(' ')));
        row[row.len() + missing - column(name)].to_owned()
    };
    let rows: Vec<_> = lines.map(cells).collect();
    let of_job = |job: &'static str, name: &'static str| {
        rows.iter().filter(move |row| row.contains(&job)).map(move |row| cell(row, name))
    };
    let measured: Vec<_> = of_job("reader", "mean")
        .zip(of_job("reader", "p99"))
        .zip(of_job("writer", "throughput"))
        .map(|((mean, p99), written)| format!("{mean} | {p99} | {written} |"))
        .collect();
    let text = readme();
    let shown = between(&text, "|---|---|---|---|", "");
    let shown: Vec<_> = shown.lines().map(|row| row.splitn(3, "| ").nth(2).unwrap()).collect();
    assert_eq!(shown, measured);
    let book = chapter("who-manages-flash.md");
    let shown = block(&book, "sluice sim demo/", "text");
    assert!(printed.starts_with(shown), "the book shows\n{shown}\nthe command prints\n{printed}");
}

#[test]
fn the_first_chapter_shows_what_its_commands_print() {
    let text = chapter("getting-started.md");
    let folder = tempfile::tempdir().unwrap();
    let scenario = block(&text, "Write this to `first.toml`", "toml");
    std::fs::write(folder.path().join("first.toml"), scenario).unwrap();
    let printed = sim(folder.path(), &["first.toml"]);
    let shown = block(&text, "Run it with `sluice sim first.toml`", "text");
    assert!(printed.starts_with(shown), "the book shows\n{shown}\nthe command prints\n{printed}");
    let printed = sluice(folder.path(), &["drive", "show", "first.toml"]);
    let shown = block(&text, "`sluice drive show first.toml` prints", "text");
    assert!(printed.contains(shown), "the book shows\n{shown}\nthe command prints\n{printed}");
}

#[test]
fn a_wrong_key_is_reported_as_the_readme_shows() {
    let text = readme();
    let begin = text.find("scenario.toml:3:10: error").unwrap();
    let shown = &text[begin..begin + text[begin..].find("```").unwrap()];
    let scenario = between(&text, "```toml", "```");
    let folder = tempfile::tempdir().unwrap();
    let wrong = scenario.replace("geometry.chunks = 64  ", "geometry.chanels = 4  ");
    assert_ne!(wrong, scenario);
    std::fs::write(folder.path().join("scenario.toml"), wrong).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.args(["sim", "scenario.toml"]).current_dir(folder.path()).env("NO_COLOR", "1");
    let out = command.output().unwrap();
    assert_eq!(out.status.code(), Some(2));
    let printed = String::from_utf8(out.stderr).unwrap();
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words(&printed), words(shown));
}

#[test]
#[ignore = "two minutes: make test-long"]
fn the_first_experiment_shows_what_its_commands_print() {
    let text = chapter("first-experiment.md");
    let folder = tempfile::tempdir().unwrap();
    let scenario = block(&text, "## 1. A scenario", "toml");
    for value in ["0.10", "0.25", "0.50"] {
        let changed = scenario.replace("OP 0.25", &format!("OP {value}"));
        let changed = changed.replace("provisioning = 0.25", &format!("provisioning = {value}"));
        std::fs::write(folder.path().join(format!("op-{value}.toml")), changed).unwrap();
    }
    let printed = sim(folder.path(), &["op-0.10.toml", "op-0.25.toml", "op-0.50.toml"]);
    let shown = block(&text, "## 2. Run and compare", "text");
    assert!(printed.starts_with(shown), "the book shows\n{shown}\nthe command prints\n{printed}");
    let printed = sim(folder.path(), &["op-0.25.toml", "--slowest", "1"]);
    let shown = block(&text, "## 4. Ask why a request was slow", "text");
    assert!(printed.contains(shown), "the book shows\n{shown}\nthe command prints\n{printed}");
}

#[test]
fn the_slow_read_is_what_the_readme_shows() {
    let printed = sim(&root(), &["demo/slow-reads.toml", "--slowest", "1"]);
    let text = readme();
    let shown = block(&text, "`sluice sim demo/slow-reads.toml --slowest 1`", "text");
    assert!(printed.contains(shown), "the README shows\n{shown}\nthe command prints\n{printed}");
}

#[test]
fn the_waits_of_the_slow_read_add_up() {
    let text = readme();
    let begin = text.find("read of 4 KiB at LBA").unwrap();
    let block = &text[begin..begin + text[begin..].find("```").unwrap()];
    let number = |word: &str| word.replace(',', "").parse::<u64>().unwrap();
    let (first, waits) = block.split_once('\n').unwrap();
    let total = number(first.rsplit(": ").next().unwrap().trim_end_matches(" ns"));
    let waits = waits.lines().map(|line| number(line.split_whitespace().next().unwrap()));
    assert_eq!(waits.sum::<u64>(), total);
}

/// Returns the cells of the row of a job's writes, behind the names.
fn write_row(text: &str) -> Vec<&str> {
    let mut rows = text.lines().map(cells).filter(|row| row.contains(&"write"));
    let row = rows.next().unwrap_or_else(|| panic!("no row of writes:\n{text}"));
    row.into_iter().skip_while(|cell| *cell != "write").collect()
}

#[test]
fn the_rules_of_the_book_have_the_results_that_it_shows() {
    let text = chapter("own/rules.md");
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, contents: &str| {
        std::fs::write(folder.path().join(name), contents).unwrap();
    };
    let [store, load, reclaim, warm, level] = [
        ("## Writes", "text"),
        ("Here it is added to the file:", "text"),
        ("reclaims a line while some are still free:", "text"),
        ("This one counts writes", "text"),
        ("and a rule can level the wear", "text"),
    ]
    .map(|(mark, language)| block(&text, mark, language));
    let drive = block(&text, "A drive with this program", "text");
    let (drive, read_job) = drive.split_once("[[job]]").unwrap();
    write("drive.rules", store);
    write("drive.toml", &format!("{drive}[[job]]{read_job}"));
    let explained = sluice(folder.path(), &["rules", "explain", "drive.rules"]);
    assert!(explained.starts_with(block(&text, "sluice rules explain drive.rules", "text")));
    let missed = Command::new(env!("CARGO_BIN_EXE_sluice"))
        .args(["sim", "drive.toml"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let printed = String::from_utf8(missed.stderr).unwrap();
    let shown = block(&text, "miss_timeout = \"1ms\"", "text");
    assert!(printed.contains(shown.lines().nth(1).unwrap()), "{printed}");

    let jobs = block(&text, "Let a job read and write a full drive:", "toml");
    write("drive.toml", &format!("{drive}{jobs}"));
    for (program, mark) in [
        (format!("{store}{load}"), "Let a job read and write a full drive:"),
        (format!("{store}{load}{reclaim}"), "moves those to lines of their own"),
    ] {
        write("drive.rules", &program);
        let printed = sim(folder.path(), &["drive.toml"]);
        assert_eq!(write_row(&printed), write_row(block(&text, mark, "text")));
    }
    write("drive.rules", &format!("{store}{load}{reclaim}{warm}{level}"));
    let explained = sluice(folder.path(), &["rules", "explain", "drive.rules"]);
    let of_writes = explained.lines().find(|line| line.starts_with("write of db")).unwrap();
    assert_eq!(cells(of_writes), ["write of db", "17", "warm, store"]);
    assert!(text.contains("a write now costs up to 17 operations"));
    write("drive.toml", &drive.replace("[drive.rules]\n", "[drive.rules]\nidle_poll = \"1ms\"\n"));
    sluice(folder.path(), &["drive", "show", "drive.toml"]);
}
