//! Former spellings of keys and words mean what the present ones mean, and are warned of.

use super::super::renamed::{all_keys, all_words};
use super::*;

const NAND: &str = "[drive]\npreset = \"mqsim-default-small\"\n";
const OPEN: &str = "[drive]\npreset = \"ocssd-mlc-128pu-small\"\npersonality = \"open-channel\"\n";
const PBLK: &str = "[target]\nkind = \"pblk\"\n";
const MQ: &str = "[path]\nqueue_model = \"mq\"\nqueues = 1\nstaging = \"global\"\n";

/// A scenario's text before and after a line, the line as it is written now, and as it was.
fn cases() -> Vec<(String, &'static str, &'static str, &'static str)> {
    let target = format!("{OPEN}{PBLK}");
    let case = |before: &str, now, was, after| (before.to_owned(), now, was, after);
    let errors = format!("{NAND}[drive.errors]\n");
    let controller = format!("{NAND}[drive.controller]\n");
    let host = format!("{NAND}[host]\n");
    let fair = format!("{NAND}{MQ}[path.scheduler]\nkind = \"fair\"\n");
    let priority = format!("{NAND}{MQ}[path.scheduler]\nkind = \"priority\"\n");
    vec![
        case(NAND, "[[partition]]\nname = \"p\"", "[[share]]\nname = \"p\"", "\nsectors = 8\n"),
        case(
            &format!("{NAND}[[partition]]\n"),
            "name = \"p\"",
            "partition = \"p\"",
            "\nsectors = 8\n",
        ),
        case(&format!("{NAND}[path]\n"), "queue_model = \"mq\"", "block = \"mq\"", "\n"),
        case(&priority, "prio_aging_expire = \"3ms\"", "patience = \"3ms\"", "\n"),
        case(&fair, "work_conserving = false", "borrow = false", "\n"),
        case(&host, "submit_cost = \"3us\"", "submit = \"3us\"", "\n"),
        case(&host, "complete_cost = \"3us\"", "complete = \"3us\"", "\n"),
        case(OPEN, "device_l2p = true", "dual_map = true", "\n"),
        case(
            OPEN,
            "cmb = \"1M\"\ncmb_persistent = true",
            "cmb = \"1M\"\ncmb_protected = true",
            "\n",
        ),
        case(NAND, "paired_page_distance = 3", "pair_distance = 3", "\n"),
        case(
            NAND,
            "dedicated_read_register = true",
            "read_register = true",
            "\ncache_read = true\n",
        ),
        case(NAND, "pu_scheduling = \"fifo\"", "pu_policy = \"fifo\"", "\n"),
        case(&controller, "fetch_latency = \"3us\"", "fetch = \"3us\"", "\n"),
        case(&controller, "completion_latency = \"3us\"", "complete = \"3us\"", "\n"),
        case(&controller, "dma_bandwidth = \"2GB/s\"", "dma = \"2GB/s\"", "\n"),
        case(&controller, "dma_in_bandwidth = \"2GB/s\"", "dma_in = \"2GB/s\"", "\n"),
        case(&controller, "max_io_queues = 3", "io_queues = 3", "\n"),
        case(&controller, "scrub = { rate = \"1MB/s\" }", "patrol = { rate = \"1MB/s\" }", "\n"),
        case(&target, "scrub = { rate = \"1MB/s\" }", "patrol = { rate = \"1MB/s\" }", "\n"),
        case(
            &format!("{target}[target.scrub]\nrate = \"1MB/s\"\n"),
            "interval = \"9s\"",
            "repeat_after = \"9s\"",
            "\n",
        ),
        case(
            &format!("{target}[target.scrub]\nrate = \"1MB/s\"\n"),
            "min_age = \"9s\"",
            "cold_after = \"9s\"",
            "\n",
        ),
        case(&errors, "factory_bad_ratio = 0.01", "factory_bad = 0.01", "\n"),
        case(&errors, "program_failure_rate = 0.01", "program_fail = 0.01", "\n"),
        case(&errors, "erase_failure_rate = 0.01", "erase_fail = 0.01", "\n"),
        case(&errors, "retry_error_fraction = 0.25", "retry_leaves = 0.25", "\n"),
        case(&errors, "retention_doubling_time = \"9s\"", "retention = \"9s\"", "\n"),
        case(&errors, "read_disturb_doubling = 9", "disturb_reads = 9", "\n"),
        case(&target, "separate_gc_stream = false", "hot_cold = false", "\n"),
        case(&target, "checkpoint_interval = \"9M\"", "checkpoint = \"9M\"", "\n"),
        case(&target, "l2p_cache = \"1G\"", "map_cache = \"1G\"", "\n"),
        case(&target, "write_buffer = \"90M\"", "buffer = \"90M\"", "\n"),
        case(&target, "p2l = \"media\"", "reverse_map = \"media\"", "\nline_metadata = true\n"),
        case(&target, "gc_read_priority = \"off\"", "gc_yields = \"off\"", "\n"),
        case(&target, "gc_low_watermark = 3", "reserve_lines = 3", "\n"),
        case(&target, "gc_high_watermark = 3", "gc_start_lines = 3", "\n"),
        case(&target, "gc_queue_depth = 3", "gc_window_units = 3", "\n"),
        case(&target, "dynamic_wear_leveling = true", "wear_levelling = true", "\n"),
        case(&target, "static_wear_leveling = 3", "static_wear = 3", "\n"),
        case(&target, "line_metadata = \"auto\"", "line_metadata = \"where-it-fits\"", "\n"),
        case(&target, "rate_limiter = \"proportional\"", "rate_limiter = \"share\"", "\n"),
        case(&target, "gc_read_priority = \"off\"", "gc_read_priority = \"never\"", "\n"),
        case(&target, "gc_read_priority = \"per-pu\"", "gc_read_priority = \"busy-pus\"", "\n"),
        case(&target, "gc_read_priority = \"global\"", "gc_read_priority = \"any-read\"", "\n"),
        case(&target, "victim_policy = \"cost-wear\"", "victim_policy = \"cost\"", "\n"),
        case(
            &format!("{NAND}[path]\nqueue_model = \"mq\"\n"),
            "staging = \"global\"",
            "staging = \"device\"",
            "\n",
        ),
        case(NAND, "pu_scheduling = \"read-priority\"", "pu_scheduling = \"reads-first\"", "\n"),
    ]
}

/// Returns the parsed meaning of a scenario, without its text.
fn meaning(s: &Scenario) -> String {
    let Scenario { drives, path, host, precondition, serving, .. } = s;
    let places = |text: String| {
        // Places are in a text; what is there has the same meaning.
        text.split("span: ").next().unwrap_or_default().to_owned()
    };
    let drives: Vec<String> = drives
        .iter()
        .map(|d| {
            format!(
                "{:?} {} {:?} {:?} {:?}",
                d.config,
                places(format!("{:?}", d.target)),
                d.shards,
                d.scrub,
                d.capacity
            )
        })
        .collect();
    format!("{drives:?} {path:?} {host:?} {precondition:?} {serving:?}")
}

#[test]
fn a_former_spelling_means_the_same_and_is_warned_of() {
    for (before, now, was, after) in cases() {
        let [new, old] = [now, was].map(|line| format!("{before}{line}{after}"));
        let new = parse(&new).unwrap_or_else(|e| panic!("{now}: {e}"));
        let old = parse(&old).unwrap_or_else(|e| panic!("{was}: {e}"));
        assert_eq!(meaning(&new), meaning(&old), "{was}");
        assert!(new.former_spellings.is_empty(), "{now}: {:?}", new.former_spellings);
        assert_eq!(old.former_spellings.len(), 1, "{was}: {:?}", old.former_spellings);
        let warning = old.former_spellings[0].to_string();
        assert!(warning.contains("is now") && warning.starts_with("dir/s.toml:"), "{warning}");
    }
}

#[test]
fn every_former_spelling_has_a_case() {
    let written: String =
        cases().iter().map(|(_, now, was, _)| format!("{now}\n{was}\n")).collect();
    for (section, new, old) in all_keys() {
        assert!(written.contains(new) && written.contains(old), "`{old}` of [{section}]");
    }
    for (key, new, old) in all_words() {
        let has = |word| written.contains(&format!("{key} = \"{word}\""));
        assert!(has(new) && has(old), "\"{old}\" of `{key}`");
    }
}

#[test]
fn both_spellings_at_once_are_refused() {
    let text = format!("{OPEN}{PBLK}hot_cold = true\nseparate_gc_stream = true\n");
    assert_refused(
        &text,
        6,
        "hot_cold",
        &["former name of `separate_gc_stream`", "remove `hot_cold`"],
    );
}

#[test]
fn a_former_name_is_none_in_another_section() {
    let text = format!("{NAND}buffer = \"4M\"\n");
    assert!(parse(&text).is_err(), "`buffer` was a key of [target] and [drive.ftl] only");
}
