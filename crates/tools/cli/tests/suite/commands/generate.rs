//! The command definitions generate man pages, completions, and `docs/commands.md`. Commands in
//! documents must have existing options.
//!
//! `UPDATE=1 cargo test -p sluice-cli --test suite generate` regenerates `docs/commands.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn sluice(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sluice")).args(args).output().expect("the command runs")
}

/// Returns the commands in the help of `sluice COMMAND…`.
fn commands(path: &[&str]) -> Vec<String> {
    let out = sluice(&[path, &["--help"]].concat());
    let text = String::from_utf8(out.stdout).expect("UTF-8");
    let Some((_, list)) = text.split_once("Commands:\n") else { return Vec::new() };
    let names = list.lines().take_while(|line| line.starts_with("  "));
    let names = names.filter(|line| !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn every_command_has_a_page_and_completions() {
    let folder = tempfile::tempdir().unwrap();
    let (man, completions) = (folder.path().join("a/man"), folder.path().join("b"));
    assert!(sluice(&["generate", "man", man.to_str().unwrap()]).status.success());
    let shells = ["sluice.bash", "_sluice", "sluice.fish", "sluice.elv", "_sluice.ps1"];
    assert!(sluice(&["generate", "completions", completions.to_str().unwrap()]).status.success());
    let shells = shells.map(|name| text(&completions.join(name)));
    let all = commands(&[]);
    assert!(all.len() >= 12, "{all:?}");
    for command in all.iter().filter(|name| *name != "help") {
        let page = text(&man.join(format!("sluice-{command}.1")));
        assert!(page.contains(".SH SYNOPSIS") && page.contains(command), "{command}");
        assert!(shells.iter().all(|shell| shell.contains(command.as_str())), "{command}");
        for inner in commands(&[command]).iter().filter(|name| *name != "help") {
            text(&man.join(format!("sluice-{command}-{inner}.1")));
        }
    }
    // The pages have the options of `sluice sim`, as `--help` does.
    let sim = text(&man.join("sluice-sim.1"));
    for option in ["json", "report", "seed", "blktrace"] {
        assert!(sim.contains(option), "--{option}");
    }
}

/// Formats a help text as one line of a table.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|").replace('<', "&lt;")
}

/// Returns the notation of an argument, such as `--seed N` or `SCENARIO…`.
fn spelling(argument: &clap::Arg) -> String {
    let names = argument.get_value_names().unwrap_or_default();
    let values = names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(" ");
    let values = if argument.get_action().takes_values() { values } else { String::new() };
    match (argument.get_long(), argument.get_short()) {
        (Some(long), _) => format!("--{long} {values}").trim_end().to_owned(),
        (None, Some(short)) => format!("-{short} {values}").trim_end().to_owned(),
        (None, None) => values,
    }
}

fn write_command(
    path: &str,
    command: &clap::Command,
    page: &mut String,
    problems: &mut Vec<String>,
) {
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string);
    if about.is_none() {
        problems.push(format!("{path} has no description"));
    }
    writeln!(page, "\n## {path}\n\n{}", about.unwrap_or_default().replace('<', "&lt;")).unwrap();
    let is_listed = |argument: &&clap::Arg| {
        let is_of_all =
            argument.is_global_set() || matches!(argument.get_id().as_str(), "help" | "version");
        !argument.is_hide_set() && !is_of_all
    };
    let arguments: Vec<_> = command.get_arguments().filter(is_listed).collect();
    if !arguments.is_empty() {
        page.push_str("\n| argument | meaning | default |\n|---|---|---|\n");
    }
    for argument in arguments {
        let help = argument.get_long_help().or(argument.get_help()).map(ToString::to_string);
        let spelled = spelling(argument);
        if help.is_none() {
            problems.push(format!("{path}: {spelled} has no description"));
        }
        let is_flag = !argument.get_action().takes_values();
        let defaults = argument.get_default_values().iter().map(|value| value.to_string_lossy());
        let defaults = defaults.filter(|_| !is_flag).map(|value| format!("`{value}`"));
        let defaults = defaults.collect::<Vec<_>>().join(" ");
        let choices: Vec<_> = argument
            .get_possible_values()
            .iter()
            .filter(|value| !is_flag && !value.is_hide_set())
            .map(|value| format!("`{}`", value.get_name()))
            .collect();
        let choices = if choices.is_empty() {
            String::new()
        } else {
            format!(" One of {}.", choices.join(", "))
        };
        let meaning = cell(&help.unwrap_or_default());
        let spelled = spelled.replace('|', "\\|");
        writeln!(page, "| `{spelled}` | {meaning}{choices} | {defaults} |").unwrap();
    }
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        if inner.get_name() != "help" {
            write_command(&format!("{path} {}", inner.get_name()), inner, page, problems);
        }
    }
}

#[test]
fn every_option_is_documented() {
    let mut definitions = sluice_cli::definitions();
    definitions.build();
    let mut page = "# Options of every command\n\n\
        <!-- Made of the definitions of the commands. Do not edit: \
        UPDATE=1 cargo test -p sluice-cli --test suite generate -->\n\n\
        `sluice COMMAND --help` and the man pages have the same texts. Every command also takes `--log FILTER`.\n"
        .to_owned();
    let mut problems = Vec::new();
    for command in definitions.get_subcommands() {
        let name = command.get_name();
        if name != "help" && !command.is_hide_set() {
            write_command(&format!("sluice {name}"), command, &mut page, &mut problems);
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    let file = root().join("docs/commands.md");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&file, page).unwrap();
    } else {
        assert!(
            text(&file) == page,
            "docs/commands.md is not current: run the tests with UPDATE=1"
        );
    }
}

/// Returns the long options of each command and its subcommands, by the command's name.
fn options() -> BTreeMap<String, BTreeSet<String>> {
    fn collect(command: &clap::Command, into: &mut BTreeSet<String>) {
        for argument in command.get_arguments() {
            let aliases = argument.get_all_aliases().unwrap_or_default();
            into.extend(argument.get_long().into_iter().chain(aliases).map(str::to_owned));
        }
        command.get_subcommands().for_each(|inner| collect(inner, into));
    }
    let mut definitions = sluice_cli::definitions();
    definitions.build();
    let by_name = |command: &clap::Command| {
        let mut options = BTreeSet::new();
        collect(command, &mut options);
        (command.get_name().to_owned(), options)
    };
    definitions.get_subcommands().map(by_name).collect()
}

fn documents(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.is_symlink() {
            documents(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

/// Returns the commands in code spans and code blocks: from `sluice` to the end of the span, the
/// line, or the command.
fn shown_commands(document: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let is_command = |text: &str| text.starts_with("sluice ");
    for (number, part) in document.split("```").enumerate() {
        if number % 2 == 1 {
            let block = part.replace("\\\n", " ");
            let lines = block.lines().map(|line| line.trim().trim_start_matches("$ ").to_owned());
            commands.extend(lines.filter(|line| is_command(line)));
        } else {
            let spans = part.split('`').skip(1).step_by(2).map(|span| span.replace('\n', " "));
            commands.extend(spans.filter(|span| is_command(span)));
        }
    }
    let end = |text: &String| {
        let ends = [" -- ", " | ", " & ", " > ", "; ", " #", " && "];
        let end = ends.iter().filter_map(|mark| text.find(mark)).min();
        text[..end.unwrap_or(text.len())].to_owned()
    };
    commands.iter().map(end).collect()
}

#[test]
fn the_documents_show_commands_and_options_that_exist() {
    let options = options();
    let mut files = vec![root().join("README.md"), root().join("SPECIFICATION.md")];
    documents(&root().join("docs"), &mut files);
    let (mut problems, mut seen) = (Vec::new(), 0);
    for file in files {
        for shown in shown_commands(&text(&file)) {
            let mut words = shown.split_whitespace().skip(1);
            let name = words.next().unwrap_or_default().trim_matches(|c: char| "…,.)".contains(c));
            // `sluice COMMAND --help` is not a command, nor is the message `sluice exec: …`.
            let is_other = |c: char| c.is_ascii_uppercase() || c == '-';
            if name.is_empty() || name.starts_with(is_other) || name.ends_with(':') {
                continue;
            }
            seen += 1;
            let Some(known) = options.get(name) else {
                problems.push(format!("{}: no command: {shown}", file.display()));
                continue;
            };
            for option in words.filter_map(|word| word.trim_start_matches('[').strip_prefix("--")) {
                let option = option.split(['=', ']', ',', '|']).next().unwrap_or_default();
                if !known.contains(option) && !matches!(option, "help" | "") {
                    problems.push(format!("{}: no --{option}: {shown}", file.display()));
                }
            }
        }
    }
    assert!(seen > 50, "{seen} commands are shown");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
