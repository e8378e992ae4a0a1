//! Former spellings of keys and of values: accepted with a warning for one release.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::source::SourceText;

/// A key under a former name.
struct RenamedKey {
    /// The last component of the sections that have it; empty for the top level.
    sections: &'static [&'static str],
    new: &'static str,
    old: &'static str,
}

const fn key(
    sections: &'static [&'static str],
    new: &'static str,
    old: &'static str,
) -> RenamedKey {
    RenamedKey { sections, new, old }
}

const TOP: &[&str] = &[""];
const DRIVE: &[&str] = &["drive"];
const CONTROLLER: &[&str] = &["controller"];
const ERRORS: &[&str] = &["errors"];
const FTL: &[&str] = &["ftl", "target"];
const SCRUB: &[&str] = &["scrub", "patrol"];
const SCHEDULER: &[&str] = &["scheduler"];

const KEYS: &[RenamedKey] = &[
    key(TOP, "partition", "share"),
    key(&["partition", "share"], "name", "partition"),
    key(&["path"], "queue_model", "block"),
    key(SCHEDULER, "prio_aging_expire", "patience"),
    key(SCHEDULER, "work_conserving", "borrow"),
    key(&["host"], "submit_cost", "submit"),
    key(&["host"], "complete_cost", "complete"),
    key(DRIVE, "device_l2p", "dual_map"),
    key(DRIVE, "cmb_persistent", "cmb_protected"),
    key(DRIVE, "paired_page_distance", "pair_distance"),
    key(DRIVE, "dedicated_read_register", "read_register"),
    key(DRIVE, "pu_scheduling", "pu_policy"),
    key(CONTROLLER, "fetch_latency", "fetch"),
    key(CONTROLLER, "completion_latency", "complete"),
    key(CONTROLLER, "dma_bandwidth", "dma"),
    key(CONTROLLER, "dma_in_bandwidth", "dma_in"),
    key(CONTROLLER, "max_io_queues", "io_queues"),
    key(&["controller", "target"], "scrub", "patrol"),
    key(SCRUB, "interval", "repeat_after"),
    key(SCRUB, "min_age", "cold_after"),
    key(ERRORS, "factory_bad_ratio", "factory_bad"),
    key(ERRORS, "program_failure_rate", "program_fail"),
    key(ERRORS, "erase_failure_rate", "erase_fail"),
    key(ERRORS, "retry_error_fraction", "retry_leaves"),
    key(ERRORS, "retention_doubling_time", "retention"),
    key(ERRORS, "read_disturb_doubling", "disturb_reads"),
    key(FTL, "separate_gc_stream", "hot_cold"),
    key(FTL, "checkpoint_interval", "checkpoint"),
    key(FTL, "l2p_cache", "map_cache"),
    key(FTL, "write_buffer", "buffer"),
    key(FTL, "p2l", "reverse_map"),
    key(FTL, "gc_read_priority", "gc_yields"),
    key(FTL, "gc_low_watermark", "reserve_lines"),
    key(FTL, "gc_high_watermark", "gc_start_lines"),
    key(FTL, "gc_queue_depth", "gc_window_units"),
    key(FTL, "dynamic_wear_leveling", "wear_levelling"),
    key(FTL, "static_wear_leveling", "static_wear"),
];

/// Values that are words: the key's new name, the new word and the former one.
const WORDS: &[(&str, &str, &str)] = &[
    ("line_metadata", "auto", "where-it-fits"),
    ("rate_limiter", "proportional", "share"),
    ("gc_read_priority", "off", "never"),
    ("gc_read_priority", "per-pu", "busy-pus"),
    ("gc_read_priority", "global", "any-read"),
    ("victim_policy", "cost-wear", "cost"),
    ("staging", "global", "device"),
    ("pu_scheduling", "read-priority", "reads-first"),
];

fn last(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// The former name of a key in the section of this name.
pub(super) fn old_key(section: &str, new: &str) -> Option<&'static str> {
    let is_it = |k: &&RenamedKey| k.new == new && k.sections.contains(&last(section));
    KEYS.iter().find(is_it).map(|k| k.old)
}

/// The present name of a key: of its section and key, as they are written.
fn new_key(full: &str) -> &str {
    let (section, key) = full.rsplit_once('.').unwrap_or(("", full));
    let is_it = |k: &&RenamedKey| k.old == key && k.sections.contains(&last(section));
    KEYS.iter().find(is_it).map_or(key, |k| k.new)
}

/// The present form of a word that is the value of this key, if the word is a former one.
pub(super) fn new_word(full_key: &str, word: &str) -> Option<&'static str> {
    // A table such as `{ kind = "pid" }` stands for its kind.
    let full = full_key.strip_suffix(".kind").unwrap_or(full_key);
    let key = new_key(full);
    WORDS.iter().find(|(k, _, old)| *k == key && *old == word).map(|(_, new, _)| *new)
}

/// A former spelling in a scenario file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormerSpelling {
    /// The file.
    pub file: PathBuf,
    /// Its line, from 1.
    pub line: usize,
    /// As it is written.
    pub old: String,
    /// As it is to be written.
    pub new: String,
}

impl fmt::Display for FormerSpelling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FormerSpelling { file, line, old, new } = self;
        write!(f, "{}:{line}: `{old}` is now `{new}`; ", file.display())?;
        f.write_str("the former spelling is accepted for one release")
    }
}

/// The former spellings that were found in a text. Two texts are equal whatever was found in them.
#[derive(Clone, Debug, Default)]
pub(super) struct FormerSpellings(Arc<Mutex<Vec<FormerSpelling>>>);

impl PartialEq for FormerSpellings {
    fn eq(&self, _: &FormerSpellings) -> bool {
        true
    }
}

impl FormerSpellings {
    /// Records one, at a byte of the text; once per line, however often the key is asked for.
    pub(super) fn record(
        &self,
        source: &SourceText,
        path: &Path,
        byte: usize,
        old: &str,
        new: &str,
    ) {
        let line = source.line_column(byte).0;
        let found = FormerSpelling {
            file: path.to_path_buf(),
            line,
            old: old.to_owned(),
            new: new.to_owned(),
        };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.contains(&found) {
            all.push(found);
        }
    }

    /// All of them, in the order of their lines.
    pub(super) fn sorted(&self) -> Vec<FormerSpelling> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        all.sort_by_key(|found| found.line);
        all
    }
}

/// Every former key with its present name and a section that has it, for tests.
#[cfg(test)]
pub(super) fn all_keys() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    KEYS.iter().map(|k| (k.sections[0], k.new, k.old))
}

/// Every former word with its key and present form, for tests.
#[cfg(test)]
pub(super) fn all_words() -> &'static [(&'static str, &'static str, &'static str)] {
    WORDS
}
