//! Pages of documentation, generated from a header's comments: one per call and per struct, and an
//! index.

use std::collections::BTreeMap;
use std::fmt::Write;

/// A call of a header.
pub(crate) struct Call {
    pub(crate) name: String,
    /// As in the header, up to its semicolon or body.
    pub(crate) prototype: String,
    /// The comment, without the stars.
    pub(crate) text: String,
}

/// A comment, and the code that it precedes.
struct Commented {
    text: String,
    code: String,
}

fn unstarred(comment: &str) -> String {
    let inner = comment.trim_start_matches("/**").trim_end_matches("*/");
    let lines = inner.lines().map(|line| {
        let line = line.trim_start();
        let line = line.strip_prefix('*').unwrap_or(line);
        line.strip_prefix(' ').unwrap_or(line).trim_end()
    });
    lines.collect::<Vec<_>>().join("\n").trim().to_owned()
}

/// Returns every comment of the outermost level and the code that follows it.
fn commented(header: &str) -> Vec<Commented> {
    let mut all = Vec::new();
    let mut rest = header;
    while let Some(at) = rest.find("\n/**").map(|at| at + 1) {
        let end = at + rest[at..].find("*/").expect("comments end") + 2;
        let after = &rest[end..];
        let stop = after.find("\n\n").unwrap_or(after.len());
        let text = unstarred(&rest[at..end]);
        all.push(Commented { text, code: after[..stop].trim().to_owned() });
        rest = after;
    }
    all
}

/// Returns the calls of a header, in its order.
pub(crate) fn calls(header: &str) -> Vec<Call> {
    let mut calls = Vec::new();
    for Commented { text, code } in commented(header) {
        let starts = ["typedef", "#", "/*", "struct"];
        let Some((before, _)) = code.split_once('(') else { continue };
        if starts.iter().any(|s| code.starts_with(s)) {
            continue;
        }
        let end = code.find("\n{").or_else(|| code.find(';')).unwrap_or(code.len());
        let prototype = code[..end].trim().trim_end_matches(';').to_owned() + ";";
        let name = before.rsplit([' ', '*', '\n']).next().unwrap().to_owned();
        calls.push(Call { name, prototype, text });
    }
    calls
}

/// Returns the structs with members: name, text, and code.
fn structs(header: &str) -> Vec<(String, String, String)> {
    let mut all = Vec::new();
    for Commented { text, code } in commented_structs(header) {
        let name = code.trim_start_matches("typedef ").trim_start_matches("struct ");
        let name = name.split([' ', '\n']).next().unwrap().to_owned();
        all.push((name, text, code));
    }
    all
}

fn commented_structs(header: &str) -> Vec<Commented> {
    let mut all = Vec::new();
    let mut rest = header;
    while let Some(at) = rest.find("\n/**").map(|at| at + 1) {
        let end = at + rest[at..].find("*/").expect("comments end") + 2;
        let after = rest[end..].trim_start();
        let opens = after.lines().next().is_some_and(|line| line.ends_with('{'));
        if opens && (after.starts_with("typedef struct") || after.starts_with("struct")) {
            let stop = after.find("\n}").expect("structs end");
            let stop = stop + 1 + after[stop + 1..].find('\n').unwrap_or(0);
            let text = unstarred(&rest[at..end]);
            all.push(Commented { text, code: after[..stop].to_owned() });
        }
        rest = &rest[end..];
    }
    all
}

/// Returns the constants: name and text.
fn constants(header: &str) -> Vec<(String, String)> {
    let is = |c: &Commented| c.code.starts_with("#define ");
    let name = |code: &str| code[8..].split([' ', '\n', '(']).next().unwrap_or("").to_owned();
    commented(header).iter().filter(|c| is(c)).map(|c| (name(&c.code), c.text.clone())).collect()
}

/// Returns the types without members: name and text.
fn types(header: &str) -> Vec<(String, String)> {
    let is = |c: &Commented| c.code.starts_with("typedef ") && !c.code.contains('{');
    let name = |code: &str| match code.split_once("(*") {
        Some((_, rest)) => rest.split(')').next().unwrap_or("").to_owned(),
        None => code.trim_end_matches(';').rsplit(' ').next().unwrap_or("").to_owned(),
    };
    commented(header).iter().filter(|c| is(c)).map(|c| (name(&c.code), c.text.clone())).collect()
}

/// Returns the first sentence.
fn sentence(text: &str) -> String {
    let paragraph = text.split("\n\n").next().unwrap_or("").replace('\n', " ");
    match paragraph.find(". ") {
        Some(at) => paragraph[..=at].to_owned(),
        None => paragraph,
    }
}

/// Turns names between backquotes into links.
fn linked(text: &str, names: &BTreeMap<String, String>) -> String {
    let mut out = String::new();
    for (i, piece) in text.split('`').enumerate() {
        if i % 2 == 0 {
            out += piece;
            continue;
        }
        let name = piece.trim_start_matches("struct ").trim_end_matches("()");
        match names.get(name) {
            Some(page) => write!(out, "[`{piece}`]({page})").unwrap(),
            None => write!(out, "`{piece}`").unwrap(),
        }
    }
    out
}

/// Returns a call's comment as Markdown; parameters become a table.
fn body(text: &str) -> String {
    let mut out = String::new();
    let mut lines = text.lines().peekable();
    let mut in_table = false;
    while let Some(line) = lines.next() {
        if let Some(parameter) = line.strip_prefix("@param ") {
            if !in_table {
                out += "| argument | |\n|---|---|\n";
                in_table = true;
            }
            let mut text = parameter.to_owned();
            while let Some(more) = lines.peek().filter(|l| !l.is_empty() && !l.starts_with('@')) {
                write!(text, " {}", more.trim()).unwrap();
                lines.next();
            }
            let (name, says) = text.split_once(' ').unwrap_or((&text, ""));
            writeln!(out, "| `{name}` | {says} |").unwrap();
        } else {
            let line =
                line.strip_prefix("# ").map_or(line.to_owned(), |title| format!("## {title}"));
            writeln!(out, "{line}").unwrap();
            in_table &= line.is_empty() && lines.peek().is_some_and(|l| l.starts_with("@param"));
        }
    }
    out.trim_end().to_owned()
}

fn names(header: &str) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    for (name, ..) in structs(header) {
        names.insert(name.clone(), format!("struct-{name}.md"));
    }
    for call in calls(header) {
        names.insert(call.name.clone(), format!("{}.md", call.name));
    }
    names
}

fn page(title: &str, include: &str, code: &str, text: &str) -> String {
    format!("# {title}\n\n```c\n#include <{include}>\n\n{code}\n```\n\n{text}\n")
}

/// Returns the pages of `sluice.h`, for its calls and structs.
pub(crate) fn of_header(header: &str) -> BTreeMap<String, String> {
    let names = names(header);
    let mut pages = BTreeMap::new();
    for call in calls(header) {
        let text = linked(&body(&call.text), &names);
        let text = page(&call.name, "sluice.h", &call.prototype, &text);
        pages.insert(format!("{}.md", call.name), text);
    }
    for (name, text, code) in structs(header) {
        let text = page(&format!("struct {name}"), "sluice.h", &code, &linked(&text, &names));
        pages.insert(format!("struct-{name}.md"), text);
    }
    pages
}

/// Returns the page of `nvmed_compat.h`.
pub(crate) fn of_compat(compat: &str) -> BTreeMap<String, String> {
    let about = compat.split("*/").next().map(unstarred).unwrap_or_default();
    let mut text = format!("# nvmed_compat.h\n\n{}\n", body(&about));
    for call in calls(compat) {
        let prototype = call.prototype.replace("static inline ", "");
        write!(text, "\n## {}\n\n```c\n{prototype}\n```\n\n", call.name).unwrap();
        writeln!(text, "{}", body(&call.text).replace("\n## ", "\n### ")).unwrap();
    }
    BTreeMap::from([("nvmed_compat.md".into(), text)])
}

/// Returns the index page.
pub(crate) fn index(header: &str, compat: &str) -> String {
    let about = header.trim_start().split("*/").next().map(unstarred).unwrap_or_default();
    let mut text = format!("# The C interface\n\n{}\n", linked(&about, &names(header)));
    text += "\nGenerated from the comments in `crates/frontends/capi`. Edit the comments, then run `UPDATE=1 cargo test \
             --package sluice-capi`.\n\nPrograms that compile and run are in `crates/frontends/capi/examples-c`; \
             `scripts/install-capi` installs library, headers and `sluice.pc`:\n\n```sh\ncc -o program \
             program.c $(pkg-config --cflags --libs sluice)\n```\n";
    text += "\nRequests of queues and handles address logical sectors. An open-channel drive without a target \
             accepts vector commands with physical addresses only: `sluice_vector_*()`, on vector queues. \
             `docs/ppa.md` describes these commands.\n";
    text += "\n## Calls\n\n| call | |\n|---|---|\n";
    let names = names(header);
    for call in calls(header) {
        let says = linked(&sentence(&call.text), &names);
        writeln!(text, "| [`{0}`]({0}.md) | {says} |", call.name).unwrap();
    }
    text += "\n## Structs\n\n| struct | |\n|---|---|\n";
    for (name, says, _) in structs(header) {
        let says = linked(&sentence(&says), &names);
        writeln!(text, "| [`{name}`](struct-{name}.md) | {says} |").unwrap();
    }
    text += "\n## Other types\n\n| type | |\n|---|---|\n";
    for (name, says) in types(header) {
        writeln!(text, "| `{name}` | {} |", linked(&says.replace('\n', " "), &names)).unwrap();
    }
    text += "\n## Constants\n\n| constant | |\n|---|---|\n";
    for (name, says) in constants(header) {
        writeln!(text, "| `{name}` | {} |", linked(&says.replace('\n', " "), &names)).unwrap();
    }
    let count = calls(compat).len();
    write!(
        text,
        "\n## The paper's names\n\n[`nvmed_compat.h`](nvmed_compat.md) has the {count} calls that programs \
         written for NVMeDirect use, over this interface.\n"
    )
    .unwrap();
    text
}
