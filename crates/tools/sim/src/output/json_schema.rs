//! [`JsonSchema`]: the names of keys in results. Those of the previous schema are written on request
//! for one release.

use serde_json::{Map, Value};

/// Schema version of the `sluice` section. It is incremented if a key is removed or changes its
/// meaning.
pub const SCHEMA: u32 = 3;

/// Version of the keys of the `sluice` section.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JsonSchema {
    /// Schema 2, with the former names.
    Former,
    /// Schema [`SCHEMA`].
    #[default]
    Present,
}

impl JsonSchema {
    /// Returns the schema of a version; `None` if it is not known.
    pub fn of_version(version: u32) -> Option<JsonSchema> {
        match version {
            SCHEMA => Some(JsonSchema::Present),
            _ if version + 1 == SCHEMA => Some(JsonSchema::Former),
            _ => None,
        }
    }

    /// Converts a result of [`to_json`](crate::to_json) to this schema. The order of keys stays.
    pub fn convert(self, mut result: Value) -> Value {
        if self == JsonSchema::Present {
            return result;
        }
        if let Some(section) = result.get_mut("sluice") {
            *section = former(section.take(), "sluice");
            section["schema"] = (SCHEMA - 1).into();
        }
        result
    }
}

/// A key, within objects that are the value of `within`, or elements of that value.
struct RenamedKey {
    within: &'static str,
    key: &'static str,
    former: &'static str,
}

const fn key(within: &'static str, key: &'static str, former: &'static str) -> RenamedKey {
    RenamedKey { within, key, former }
}

const KEYS: &[RenamedKey] = &[
    key("drives", "utilization", "utilisation"),
    key("trace_fit", "bytes_requested", "bytes_asked"),
    key("trace_fit", "bytes_issued", "bytes_done"),
    key("trace_fit", "skipped", "left_out"),
    key("latency_target", "converged", "settled"),
    key("over_time", "host_sectors_written", "user_sectors_written"),
    key("over_time", "gc_sectors_relocated", "moved_sectors"),
    key("commands", "other_commands", "others"),
    key("ftl", "host_sectors_written", "user_sectors_written"),
    key("ftl", "host_sectors_from_reserve", "sectors_written_from_reserve"),
    key("ftl", "host_sectors_read", "user_sectors_read"),
    key("ftl", "trims_synced", "trims_told"),
    key("ftl", "loss_checkpoints", "checkpoints_for_losses"),
    key("gc", "gc_sectors_relocated", "moved_sectors"),
    key("gc", "uncorrectable_sectors", "lost_sectors"),
    key("gc", "lines_wear_leveled", "lines_levelled"),
    key("gc", "lines_finished", "lines_ended"),
    key("gc", "sectors_redispatched", "sectors_written_again"),
    key("shards", "host_sectors_written", "user_sectors_written"),
    key("shards", "host_sectors_read", "user_sectors_read"),
    key("shards", "gc_sectors_relocated", "moved_sectors"),
    key("shards", "uncorrectable_sectors", "lost_sectors"),
    key("shards", "lines_relocated_for_media_events", "lines_moved_for_events"),
    key("shards", "superblock", "label"),
    key("core", "aborted", "lost"),
    key("superblock", "scrub_passes", "rounds"),
    key("superblock", "rewrites", "renewals"),
    key("superblock", "rewrites_blocked", "renewals_without_room"),
    key("interface", "scrub", "care"),
    key("interface", "device_l2p", "dual_map"),
    key("notifications", "overwritten", "lost"),
    key("notifications", "media_events_sent", "announced"),
    key("scrub", "media_events", "notices"),
    key("scrub", "media_events_ignored", "ignored"),
    key("scrub", "lines_relocated", "lines_moved"),
    key("scrub", "sectors_read", "patrol_sectors_read"),
    key("scrub", "passes", "patrol_rounds"),
    // Parameters are named as the scenario's keys.
    key("path", "queue_model", "block"),
    key("settings", "prio_aging_expire_ns", "aging_ns"),
    key("drives", "dedicated_read_register", "read_register"),
    key("drives", "pu_scheduling", "pu_policy"),
    key("drives", "reserved_lines", "held_lines"),
    key("media", "paired_page_distance", "pair_distance"),
    key("errors", "factory_bad_ratio", "factory_bad"),
    key("errors", "program_failure_rate", "program_fail"),
    key("errors", "erase_failure_rate", "erase_fail"),
    key("errors", "retry_error_fraction", "retry_leaves"),
    key("errors", "retention_doubling_time_ns", "retention_ns"),
    key("errors", "read_disturb_doubling", "disturb_reads"),
    key("controller", "fetch_latency_ns", "fetch_ns"),
    key("controller", "completion_latency_ns", "complete_ns"),
    key("controller", "max_io_queues", "io_queues"),
    key("controller", "scrub_sectors_per_sec", "patrol_sectors_per_sec"),
    key("ftl", "separate_gc_stream", "hot_cold"),
    key("ftl", "gc_low_watermark_lines", "reserve_lines"),
    key("ftl", "gc_high_watermark_lines", "gc_start_lines"),
    key("ftl", "gc_queue_depth_units", "gc_window_units"),
    key("ftl", "write_buffer_sectors", "buffer_sectors"),
    key("ftl", "l2p_cache_sectors", "map_cache_sectors"),
    key("ftl", "dynamic_wear_leveling", "wear_levelling"),
    key("ftl", "static_wear_leveling", "static_wear"),
    key("ftl", "p2l", "reverse_map"),
    key("ftl", "gc_read_priority", "gc_yields"),
];

/// Keys that the former schema does not have, and the value that they are in.
const ADDED: &[(&str, &str)] = &[("drives", "doorbell_to_fetch_ns")];

/// Words that are values of a key, or of the `kind` of an object under it: the key, the word, and
/// its former form.
const WORDS: &[(&str, &str, &str)] = &[
    ("victim_policy", "cost-wear", "cost"),
    ("line_metadata", "auto", "where-it-fits"),
    ("rate_limiter", "proportional", "share"),
    ("gc_read_priority", "off", "never"),
    ("gc_read_priority", "per-pu", "busy-pus"),
    ("gc_read_priority", "global", "any-read"),
    ("pu_scheduling", "read-priority", "reads-first"),
];

/// The key as the tables have it: counters from before a run have those of the run.
fn table_key(key: &str) -> &str {
    key.strip_suffix("_before").unwrap_or(key)
}

/// Renames and removes keys in a value, which is that of `within` or an element of it.
fn former(value: Value, within: &str) -> Value {
    match value {
        Value::Array(items) => items.into_iter().map(|item| former(item, within)).collect(),
        Value::Object(entries) => {
            let mut renamed = Map::with_capacity(entries.len());
            for (name, value) in entries {
                let parent = table_key(within);
                if ADDED.contains(&(parent, &name)) {
                    continue;
                }
                let is_it = |k: &&RenamedKey| k.within == parent && k.key == name;
                let value = match (&value, name.as_str()) {
                    (Value::String(word), "kind") => former_word(parent, word).map(Value::from),
                    (Value::String(word), name) => former_word(name, word).map(Value::from),
                    _ => None,
                }
                .unwrap_or_else(|| former(value, &name));
                let name = KEYS.iter().find(is_it).map_or(name, |k| k.former.to_owned());
                renamed.insert(name, value);
            }
            Value::Object(renamed)
        }
        other => other,
    }
}

fn former_word(key: &str, word: &str) -> Option<&'static str> {
    WORDS.iter().find(|(k, new, _)| *k == key && *new == word).map(|(_, _, former)| *former)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_key_has_its_former_name_in_its_object() {
        for RenamedKey { within, key, former } in KEYS {
            let result = json!({ "sluice": { *within: [{ "a": 1, *key: 2, "b": 3 }] } });
            let expected = json!({ "a": 1, *former: 2, "b": 3 });
            let converted = JsonSchema::Former.convert(result.clone());
            let section = &converted["sluice"];
            assert_eq!(section["schema"], SCHEMA - 1);
            assert_eq!(section[*within][0].to_string(), expected.to_string());
            assert_eq!(JsonSchema::Present.convert(result.clone()), result);
            let elsewhere = json!({ "sluice": { "elsewhere": { *key: 2 } }, *key: 1 });
            let converted = JsonSchema::Former.convert(elsewhere);
            assert_eq!(
                (&converted[*key], &converted["sluice"]["elsewhere"][*key]),
                (&json!(1), &json!(2))
            );
        }
    }

    #[test]
    fn every_word_has_its_former_form() {
        for (key, word, former) in WORDS {
            let result =
                json!({ "sluice": { *key: word, "b": { *key: { "kind": word } }, "c": word } });
            let converted = JsonSchema::Former.convert(result);
            let section = &converted["sluice"];
            let before = KEYS.iter().find(|k| k.key == *key).map_or(*key, |k| k.former);
            assert_eq!(section[*key], json!(former));
            assert!(section["b"][*key]["kind"] == json!(former) || before != *key);
            assert_eq!(section["c"], json!(word));
        }
    }

    #[test]
    fn counters_from_before_a_run_are_renamed_too() {
        let result = json!({ "sluice": { "drives": [{ "gc_before": { "lines_finished": 1 } }] } });
        let converted = JsonSchema::Former.convert(result);
        assert_eq!(converted["sluice"]["drives"][0]["gc_before"], json!({ "lines_ended": 1 }));
    }

    #[test]
    fn added_keys_are_removed_from_their_object() {
        for (within, key) in ADDED {
            let result = json!({ "sluice": { *within: [{ "a": 1, *key: 2 }], *key: 3 } });
            let converted = JsonSchema::Former.convert(result);
            let section = &converted["sluice"];
            assert_eq!((&section[*within][0], &section[*key]), (&json!({ "a": 1 }), &json!(3)));
        }
    }

    #[test]
    fn schemas_have_versions() {
        assert_eq!(JsonSchema::of_version(3), Some(JsonSchema::Present));
        assert_eq!(JsonSchema::of_version(2), Some(JsonSchema::Former));
        assert_eq!(JsonSchema::of_version(1), None);
        assert_eq!(JsonSchema::of_version(4), None);
    }
}
