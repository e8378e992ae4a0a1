//! The table of calls in `docs/profile.md`. `UPDATE=1` writes it.

use std::collections::BTreeMap;
use std::path::Path;

use syscall_table::{Rule, calls};

const BEGIN: &str = "<!-- The table of calls: UPDATE=1 cargo test -p sluice-syscall-table -->\n";
const END: &str = "<!-- The end of the table of calls. -->\n";

/// Returns the position of a rule in the table, its calls' effect, and the object that decides.
fn described(rule: Rule) -> (u8, &'static str, &'static str) {
    match rule {
        Rule::Pure => (0, "pure", "the process and its memory; reads from pipes and sockets"),
        Rule::ReadPath => (1, "pure", "reads of a path"),
        Rule::ReadDescriptor(_) => (2, "volume, or pure on other files", "the descriptor"),
        Rule::Position(_) => (3, "volume, or pure on other files", "the descriptor"),
        Rule::Map => {
            (4, "pure; unknown for a writable shared mapping of a file outside", "the descriptor")
        }
        Rule::Open { .. } => (
            5,
            "pure; like a write with `O_CREAT` or `O_TRUNC`; output on a FIFO that is opened for writing",
            "the path, and the flags",
        ),
        Rule::Descriptor(_) => {
            (6, "volume; pure on `/dev/null`; output on other files", "the descriptor that changes")
        }
        Rule::Path { .. } => (7, "volume, or output on other files", "the path that changes"),
        Rule::Close(_) => (
            8,
            "output on pipes and sockets, whose peers see the end; else as a read",
            "the descriptor",
        ),
        Rule::Replace(_) => (
            8,
            "output on pipes and sockets, whose peers see the end; else as a read",
            "the descriptor whose number is used again",
        ),
        Rule::FileControl => {
            (9, "pure; locks and leases like a write", "the descriptor, and the command")
        }
        Rule::Control => (
            10,
            "pure for known requests; volume; unknown on other files",
            "the descriptor, and the request",
        ),
        Rule::Signal(_) => (11, "pure for the own process, else output", "the process"),
        Rule::Clone => (12, "pure for a thread, output for a process", "the flags"),
        Rule::Output => (13, "output", "nothing"),
        Rule::Unknown => (14, "unknown", "nothing"),
    }
}

fn table() -> String {
    let mut rows: BTreeMap<_, Vec<&str>> = BTreeMap::new();
    for call in calls() {
        rows.entry(described(call.rule)).or_default().push(call.name);
    }
    let mut text = String::from("| effect | decided by | calls |\n|---|---|---|\n");
    for ((_, effect, decided), mut names) in rows {
        names.sort_unstable();
        let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
        text += &format!("| {effect} | {decided} | {} |\n", names.join(", "));
    }
    text
}

/// guarantee: V-20
#[test]
fn the_document_has_every_call() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/profile.md");
    let text = std::fs::read_to_string(&path).expect("docs/profile.md");
    let (before, rest) = text.split_once(BEGIN).expect("the beginning of the table");
    let (now, after) = rest.split_once(END).expect("the end of the table");
    let wanted = table();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{wanted}{END}{after}")).expect("written");
        return;
    }
    assert_eq!(now, wanted, "UPDATE=1 cargo test -p sluice-syscall-table");
}
