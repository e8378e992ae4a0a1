//! Names that contain a word which the vocabulary has replaced.

use super::Violation;
use crate::config::{BannedIdentifier, LintConfig, WordPosition};
use crate::syntax::Definition;
use crate::workspace::Workspace;

/// Definitions of types, functions, modules, constants, fields and variants with a banned word.
pub fn banned_identifiers(workspace: &Workspace, config: &LintConfig) -> Vec<Violation> {
    let banned: Vec<_> = config.banned.identifiers.iter().map(|b| (b, words(&b.word))).collect();
    let mut found = Vec::new();
    for file in &workspace.rust {
        for definition in &file.syntax.definitions {
            let name = words(&definition.name);
            for (entry, word) in &banned {
                if applies(entry, definition, &file.path) && contains(&name, word, entry.position) {
                    found.push(Violation {
                        key: file.crate_name.clone(),
                        path: file.path.clone(),
                        line: definition.line,
                        weight: 1,
                        message: format!(
                            "{}: instead of \"{}\" use {}",
                            definition.name, entry.word, entry.instead
                        ),
                    });
                }
            }
        }
    }
    found
}

fn applies(entry: &BannedIdentifier, definition: &Definition, path: &str) -> bool {
    let is_kind = entry.kinds.is_empty() || entry.kinds.contains(&definition.kind);
    is_kind && !entry.except.iter().any(|start| path.starts_with(start))
}

fn contains(name: &[String], word: &[String], position: WordPosition) -> bool {
    match position {
        WordPosition::Any => name.windows(word.len()).any(|part| part == word),
        WordPosition::Start => name.starts_with(word),
        WordPosition::Whole => name == word,
    }
}

/// The words of a name in snake case or camel case, in lower case.
fn words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut previous = '_';
    for c in name.chars() {
        let starts = previous == '_' || (c.is_uppercase() && !previous.is_uppercase());
        if c != '_' {
            match words.last_mut() {
                Some(word) if !starts => word.extend(c.to_lowercase()),
                _ => words.push(c.to_lowercase().collect()),
            }
        }
        previous = c;
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::run_on;
    use crate::syntax::DefinitionKind;

    #[test]
    fn names_are_split_into_words() {
        let split = |name| words(name).join(" ");
        assert_eq!(split("RESET_PATIENCE"), "reset patience");
        assert_eq!(split("DriveKeeper2"), "drive keeper2");
        assert_eq!(split("go_on_with_x"), "go on with x");
    }

    fn banned(word: &str) -> BannedIdentifier {
        BannedIdentifier {
            word: word.into(),
            instead: "another".into(),
            kinds: Vec::new(),
            position: WordPosition::Any,
            except: Vec::new(),
        }
    }

    #[test]
    fn definitions_with_banned_words_are_found() {
        let source = "const RESET_PATIENCE: u8 = 1;\nstruct DriveKeeper {\n keeper: u8 }\n
            fn let_go_of(patience: u8) { let keeper = bookkeeper; }\nmod again {}\nfn again() {}
            fn written_again() {}";
        let sources = [("crates/a/src/lib.rs", source), ("crates/b/src/lib.rs", "struct Keeper;")];
        let found = run_on(banned_identifiers, &sources, |config| {
            config.banned.identifiers =
                ["patience", "keeper", "let_go", "again"].map(banned).into();
            config.banned.identifiers[1].except = vec!["crates/b/".into()];
            config.banned.identifiers[3].kinds = vec![DefinitionKind::Module];
        });
        let lines = [1, 2, 3, 5, 6].map(|line| format!("a crates/a/src/lib.rs:{line} 1"));
        assert_eq!(found, lines);
    }

    #[test]
    fn the_position_of_a_word_matters() {
        let source = "struct Way;\nstruct WayHome;\nstruct DriveWay;";
        let lines_with = |position| -> usize {
            let sources = [("crates/a/src/lib.rs", source)];
            let found = run_on(banned_identifiers, &sources, |config| {
                config.banned.identifiers = vec![BannedIdentifier { position, ..banned("way") }];
            });
            found.len()
        };
        let positions = [WordPosition::Whole, WordPosition::Start, WordPosition::Any];
        assert_eq!(positions.map(lines_with), [1, 2, 3]);
    }

    #[test]
    fn the_repositorys_words_are_in_the_form_of_names() {
        let config = LintConfig::load().expect("the settings are valid");
        for entry in &config.banned.identifiers {
            assert_eq!(words(&entry.word).join("_"), entry.word);
        }
    }
}
