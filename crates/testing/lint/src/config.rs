//! The settings of the checks, from `lint.toml` and `banned.toml` of this crate.

use serde::Deserialize;

use crate::syntax::DefinitionKind;

/// The contents of `lint.toml`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LintConfig {
    /// Sizes up to which nothing is reported.
    pub limits: SizeLimits,
    /// Settings of the check of fields per struct.
    pub struct_fields: StructFields,
    /// Settings of the check of files per type.
    pub impl_files: ImplFiles,
    /// Settings of the check of visible fields.
    pub part_fields: PartFields,
    /// Settings of the check for `check_invariants`.
    pub part_invariants: PartInvariants,
    /// Settings of the check of type names.
    pub duplicate_types: DuplicateTypes,
    /// Settings of the check of integer parameters.
    pub integer_parameters: IntegerParameters,
    /// Settings of the check of integer casts.
    pub integer_casts: IntegerCasts,
    /// Settings of the check of dependencies.
    pub cli_dependencies: CliDependencies,
    /// Settings of the check of skipped tests.
    pub skipped_tests: SkippedTests,
    /// Settings of the check of prose.
    pub banned_prose: BannedProse,
    /// Settings of the check of citations.
    pub citations: Citations,
    /// Settings of the check of guarantees.
    pub guarantees: Guarantees,
    /// Settings of the check of paths in documents.
    pub paths: Paths,
    /// Settings of the check that documents are linked.
    pub reachable: Reachable,
    /// The contents of `banned.toml`.
    #[serde(skip)]
    pub banned: Banned,
}

/// Sizes up to which nothing is reported.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SizeLimits {
    /// Fields of a struct with methods.
    pub struct_fields: u64,
    /// Files with inherent `impl` blocks of one type.
    pub impl_files: u64,
    /// Source files directly in one folder.
    pub folder_files: u64,
    /// Lines of a source file.
    pub file_lines: u64,
}

/// Settings of the check of fields per struct.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StructFields {
    /// Ends of names of exempt structs.
    pub exempt_suffixes: Vec<String>,
    /// Derived traits that exempt a struct.
    pub exempt_derives: Vec<String>,
}

/// Settings of the check of files per type.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImplFiles {
    /// Names of folders whose files do not count.
    pub exempt_folders: Vec<String>,
}

/// Settings of the check of visible fields.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartFields {
    /// Crates that define the types.
    pub crates: Vec<String>,
    /// Types whose fields must be private.
    pub types: Vec<String>,
}

/// Settings of the check for `check_invariants`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartInvariants {
    /// Types that must have the method, as `Type` or `crate::Type`.
    pub types: Vec<String>,
}

/// Settings of the check of type names.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DuplicateTypes {
    /// Whether types without a visibility modifier are checked, too.
    pub private: bool,
    /// Names that several crates may define.
    pub allow: Vec<String>,
}

/// Settings of the check of integer parameters.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IntegerParameters {
    /// Crates in whose `src` parameters are counted.
    pub crates: Vec<String>,
    /// Last words of the names of addresses and identities.
    pub words: Vec<String>,
}

/// Settings of the check of integer casts.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IntegerCasts {
    /// Crates in whose `src` casts are counted.
    pub crates: Vec<String>,
}

/// Settings of the check of dependencies.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CliDependencies {
    /// Packages that libraries must not reach.
    pub packages: Vec<String>,
    /// Folder names of crates that may reach them.
    pub allow: Vec<String>,
}

/// Settings of the check of skipped tests.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SkippedTests {
    /// Crates that print the messages on behalf of tests.
    pub helper_crates: Vec<String>,
}

/// Settings of the check of prose.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BannedProse {
    /// Starts of paths that are not checked.
    pub except: Vec<String>,
}

/// Settings of the check of citations.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Citations {
    /// The document that defines the keys.
    pub bibliography: String,
}

/// Settings of the check of guarantees.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guarantees {
    /// The file that lists the guarantees.
    pub file: String,
}

/// Settings of the check of paths in documents.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paths {
    /// Documents that name files of the past.
    pub except: Vec<String>,
}

/// Settings of the check that documents are linked.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reachable {
    /// Documents from which readers start.
    pub start: Vec<String>,
    /// Folders whose documents must be found from there.
    pub folders: Vec<String>,
}

/// The contents of `banned.toml`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Banned {
    /// Words that names must not contain.
    #[serde(default, rename = "identifier")]
    pub identifiers: Vec<BannedIdentifier>,
    /// Phrases that prose must not contain.
    #[serde(default, rename = "phrase")]
    pub phrases: Vec<BannedPhrase>,
    /// First words that doc comments must not have.
    #[serde(default, rename = "opening")]
    pub openings: Vec<BannedPhrase>,
}

/// A word that names must not contain.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BannedIdentifier {
    /// The word in lower case, or several words joined by `_`.
    pub word: String,
    /// The term to use.
    pub instead: String,
    /// Kinds of names that are checked; all if empty.
    #[serde(default)]
    pub kinds: Vec<DefinitionKind>,
    /// Where in a name the word is banned.
    #[serde(default)]
    pub position: WordPosition,
    /// Starts of paths in which the word is permitted.
    #[serde(default)]
    pub except: Vec<String>,
}

/// Where in a name a word is banned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WordPosition {
    /// Anywhere.
    #[default]
    Any,
    /// At the start.
    Start,
    /// Where it is the whole name.
    Whole,
}

/// A phrase that prose must not contain.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BannedPhrase {
    /// The phrase in lower case.
    pub text: String,
    /// The words to write.
    pub instead: String,
}

impl LintConfig {
    /// The settings that are checked in beside this crate.
    ///
    /// Fails with the message of a file that is not valid.
    pub fn load() -> Result<Self, String> {
        let mut config: Self = parse("lint.toml", include_str!("../lint.toml"))?;
        config.banned = parse("banned.toml", include_str!("../banned.toml"))?;
        Ok(config)
    }
}

fn parse<T: serde::de::DeserializeOwned>(name: &str, text: &str) -> Result<T, String> {
    toml::from_str(text).map_err(|error| format!("{name}: {error}"))
}
