//! `docs/scenario.md` has exactly the keys that the parser accepts, for every section.

use std::collections::BTreeSet;
use std::path::Path;

use scenario::{ProblemKind, Scenario, ScenarioError};

const DRIVE: &str = "[drive]\npreset = \"ocssd-mlc-128pu-small\"\n";
const BLOCK_DRIVE: &str = "[drive]\npreset = \"tlc-2020s-small\"\n";

/// A section of scenarios, and its location in the reference.
struct Section {
    /// Text of the heading above the table of its keys, without `#`.
    heading: &'static str,
    /// Heading of another table whose keys the section has as well.
    and: Option<&'static str>,
    /// The kind in the first column of the table, if each kind has its own keys.
    kind: Option<&'static str>,
    /// A scenario with an unknown key in this section.
    text: String,
    /// Whether the table of the heading has keys of this section only, so that the parser must
    /// accept each.
    is_whole_table: bool,
}

fn section(heading: &'static str, text: String) -> Section {
    Section { heading, and: None, kind: None, text, is_whole_table: true }
}

/// A section whose keys are in a sentence, or in the table of another section.
fn in_prose(heading: &'static str, text: String) -> Section {
    Section { is_whole_table: false, ..section(heading, text) }
}

fn sections() -> Vec<Section> {
    let simple = |name: &str| format!("{DRIVE}[{name}]\nnonsense = 1\n");
    let path = format!("{DRIVE}[path]\nqueue_model = \"sq\"\n");
    let partition = format!("{DRIVE}[[partition]]\nname = \"p\"\nsectors = 1\n");
    let mut sections = vec![
        section("Top level", format!("nonsense = 1\n{DRIVE}")),
        section("`[drive]`, or several `[[drive]]`", format!("{DRIVE}nonsense = 1\n")),
        section(
            "Persistent memory region",
            format!("{DRIVE}pmr = {{ size = \"64k\", nonsense = 1 }}\n"),
        ),
        section("`[drive.geometry]`", simple("drive.geometry")),
        section("`[drive.timing]`", simple("drive.timing")),
        section("`[drive.errors]`", simple("drive.errors")),
        section("`[drive.controller]`", simple("drive.controller")),
        in_prose("`[drive.write_buffer]`", simple("drive.write_buffer")),
        section(
            "`[drive.rules]`",
            format!("{BLOCK_DRIVE}[drive.rules]\ntemplate = \"throughput\"\nnonsense = 1\n"),
        ),
        in_prose("`[drive.null]`", simple("drive.null")),
        in_prose("`[drive.ftl]` and `[target]`", simple("drive.ftl")),
        section(
            "`[drive.ftl]` and `[target]`",
            format!("{DRIVE}[target]\nkind = \"none\"\nnonsense = 1\n"),
        ),
        section("`[path]`", format!("{path}nonsense = 1\n")),
        section(
            "`[[at]]`",
            format!("{BLOCK_DRIVE}[[at]]\ntime = \"1s\"\nactive_pus = 1\nnonsense = 1\n"),
        ),
        Section {
            and: Some("`[drive.ftl]` and `[target]`"),
            ..section(
                "`[[target]]`",
                format!(
                    "{DRIVE}[[target]]\nname = \"t\"\nkind = \"pblk\"\npus = \"0\"\nnonsense = 1\n"
                ),
            )
        },
        section(
            "`[[drive]]` with `kind = \"ahci\"`",
            "[drive]\nkind = \"ahci\"\nnonsense = 1\n".to_owned(),
        ),
        section(
            "`[drive.sata]`",
            "[drive]\nkind = \"ahci\"\n[drive.sata]\nnonsense = 1\n".to_owned(),
        ),
        section(
            "`[[drive]]` with `kind = \"file\"`",
            "[drive]\nkind = \"file\"\npath = \"x\"\nnonsense = 1\n".to_owned(),
        ),
        section(
            "`[[drive]]` with `kind = \"kernel\"`",
            "[drive]\nkind = \"kernel\"\npath = \"x\"\nnonsense = 1\n".to_owned(),
        ),
        section(
            "`[[drive]]` with `kind = \"pci\"`",
            "[drive]\nkind = \"pci\"\naddress = \"1:0.0\"\nnonsense = 1\n".to_owned(),
        ),
        section("`[ahci]`", simple("ahci")),
        section(
            "`[[set]]`",
            format!("{BLOCK_DRIVE}[[set]]\nname = \"s\"\nmembers = [\"drive0\"]\nnonsense = 1\n"),
        ),
        Section {
            and: Some("`[path]`"),
            ..section(
                "`[[path]]`",
                format!(
                    "{BLOCK_DRIVE}[[path]]\nname = \"p\"\nover = \"drive0\"\nqueue_model = \"sq\"\n\
                     nonsense = 1\n"
                ),
            )
        },
        section("`[[path.limit]]`", format!("{path}[[path.limit]]\ngroup = 0\nnonsense = 1\n")),
        in_prose("`[host]`", simple("host")),
        in_prose("`[precondition]`", simple("precondition")),
        in_prose(
            "`[precondition]`",
            format!("{DRIVE}[precondition]\nuntil = {{ kind = \"steady\", nonsense = 1 }}\n"),
        ),
        section("`[[partition]]`", format!("{partition}nonsense = 1\n")),
        section(
            "`[[partition.allow]]`",
            format!("{partition}[[partition.allow]]\nuser = \"0\"\nnonsense = 1\n"),
        ),
        section(
            "`[[export]]`",
            format!("{BLOCK_DRIVE}[[export]]\nnbd = \"unix:n\"\nnonsense = 1\n"),
        ),
        // Values that are tables themselves.
        in_prose(
            "`[drive]`, or several `[[drive]]`",
            format!("{DRIVE}suspend_hint = {{ suspend = \"1us\", nonsense = 1 }}\n"),
        ),
        in_prose(
            "`[drive.controller]`",
            format!("{BLOCK_DRIVE}controller.scrub = {{ rate = \"1MB/s\", nonsense = 1 }}\n"),
        ),
        in_prose(
            "`[drive.controller]`",
            format!("{DRIVE}controller.arbitration = {{ kind = \"weighted\", nonsense = 1 }}\n"),
        ),
        in_prose(
            "`[drive.ftl]` and `[target]`",
            format!(
                "{DRIVE}[target]\nkind = \"pblk\"\nscrub = {{ rate = \"1MB/s\", nonsense = 1 }}\n"
            ),
        ),
        in_prose(
            "`[drive.ftl]` and `[target]`",
            format!(
                "{DRIVE}[target]\nkind = \"pblk\"\nrate_limiter = {{ kind = \"pid\", nonsense = 1 }}\n"
            ),
        ),
    ];
    for (kind, keys) in [
        ("power-cut", ""),
        ("die-failure", "pu = 0\n"),
        ("chunk-offline", "pu = 0\nchunk = 0\n"),
        ("program-failure", "pu = 0\nchunk = 0\nsector = 0\n"),
        ("erase-failure", "pu = 0\nchunk = 0\n"),
        ("read-failure", "pu = 0\nchunk = 0\nsector = 0\n"),
        ("uncorrectable", "pu = 0\nchunk = 0\nsector = 0\n"),
        ("corrupted-data", "pu = 0\nchunk = 0\nsector = 0\n"),
        ("format", "erase = true\n"),
        ("slow-die", "pu = 0\nfactor = 2\n"),
        ("stalled-queue", "queue = 1\nduration = \"1s\"\n"),
    ] {
        let fault = format!("[[fault]]\nat = \"1s\"\nkind = \"{kind}\"\n{keys}nonsense = 1\n");
        let text = format!("{BLOCK_DRIVE}data = \"memory\"\n{fault}");
        sections.push(Section { kind: Some(kind), ..in_prose("`[[fault]]`", text) });
    }
    for kind in ["deadline", "kyber", "fair", "priority"] {
        sections.push(Section {
            kind: Some(kind),
            ..section(
                "`[path.scheduler]`",
                format!("{path}[path.scheduler]\nkind = \"{kind}\"\nnonsense = 1\n"),
            )
        });
    }
    sections
}

/// Returns the keys that the parser accepts at the unknown key of `text`.
fn accepted(text: &str) -> BTreeSet<String> {
    let Err(ScenarioError::Invalid(invalid)) = Scenario::parse(Path::new("x.toml"), text) else {
        panic!("accepted:\n{text}")
    };
    let ProblemKind::UnknownKey { allowed, .. } = &invalid.problem else {
        panic!("{invalid}:\n{text}")
    };
    allowed.iter().map(|key| key.to_string()).collect()
}

/// Returns the text below a heading, up to the next one.
fn below<'t>(reference: &'t str, heading: &str) -> &'t str {
    let is_heading = |line: &str| line.starts_with('#');
    let mut offset = 0;
    let mut start = None;
    for line in reference.split_inclusive('\n') {
        if is_heading(line) {
            if let Some(start) = start {
                return &reference[start..offset];
            }
            if line.trim_start_matches('#').trim() == heading {
                start = Some(offset + line.len());
            }
        }
        offset += line.len();
    }
    &reference[start.unwrap_or_else(|| panic!("no heading {heading}"))..]
}

/// Returns the keys of the tables below a heading: of all rows, or of those of a kind.
fn listed(text: &str, kind: Option<&str>) -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    let mut current = String::new();
    for row in text.lines().filter(|line| line.starts_with("| ")) {
        let mut cells = row.split('|').map(str::trim).skip(1);
        let mut cell = cells.next().unwrap_or_default();
        if let Some(kind) = kind {
            if !cell.is_empty() {
                current = cell.to_owned();
            }
            if current != format!("`\"{kind}\"`") {
                continue;
            }
            cell = cells.next().unwrap_or_default();
        }
        let names = cell.split(", ").filter_map(|name| name.strip_prefix('`')?.strip_suffix('`'));
        keys.extend(names.map(str::to_owned));
    }
    keys
}

#[test]
fn the_reference_and_the_reader_have_the_same_keys() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/scenario.md");
    let reference = std::fs::read_to_string(path).expect("docs/scenario.md");
    let mut problems = Vec::new();
    for section in sections() {
        let text = below(&reference, section.heading);
        let (accepted, own) = (accepted(&section.text), listed(text, section.kind));
        let other = section.and.map(|and| listed(below(&reference, and), None));
        let listed: BTreeSet<String> = other.into_iter().flatten().chain(own.clone()).collect();
        for key in &accepted {
            // A nested table has its own heading.
            let is_section = reference.lines().any(|line| {
                line.starts_with('#')
                    && [format!("[{key}]"), format!(".{key}]")].iter().any(|end| line.contains(end))
            });
            let is_kind = section.kind.is_some() && key == "kind";
            let is_in_prose = !section.is_whole_table
                && text
                    .split('`')
                    .skip(1)
                    .step_by(2)
                    .any(|code| code.split([' ', ',', '{', '}']).any(|word| word == key));
            if !(listed.contains(key) || is_section || is_kind || is_in_prose) {
                problems.push(format!("{}: `{key}` is not documented", section.heading));
            }
        }
        if section.is_whole_table {
            for key in own.difference(&accepted) {
                problems.push(format!("{}: no reader accepts `{key}`", section.heading));
            }
        }
    }
    assert!(problems.is_empty(), "docs/scenario.md:\n{}", problems.join("\n"));
}

/// Returns the TOML blocks of a document.
fn blocks(document: &str) -> impl Iterator<Item = &str> {
    document.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next())
}

#[test]
fn scenarios_of_the_documents_have_present_keys() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let mut files = vec![root.join("README.md")];
    for folder in ["docs", "docs/book/src", "docs/book/src/own"] {
        let entries = std::fs::read_dir(root.join(folder)).expect("the folder");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        files.extend(paths.filter(|path| path.extension().is_some_and(|e| e == "md")));
    }
    let mut read = 0;
    for file in files {
        let text = std::fs::read_to_string(&file).expect("the document");
        // A sweep file names its scenario; the test of `sluice sweep` runs it.
        for block in blocks(&text).filter(|block| !block.starts_with("scenario = ")) {
            // A block with one section only is completed with a drive that has flash.
            let has_drive = block.contains("[drive]") || block.contains("[[drive]]");
            let whole = if has_drive { block.to_owned() } else { format!("{DRIVE}{block}") };
            let scenario = Scenario::parse(&file, &whole)
                .unwrap_or_else(|e| panic!("{}: {e}\n{whole}", file.display()));
            let former: Vec<_> =
                scenario.former_spellings.iter().map(ToString::to_string).collect();
            assert!(former.is_empty(), "{}: {former:?}\n{whole}", file.display());
            read += 1;
        }
    }
    assert!(read >= 5, "{read} blocks were read");
}
