//! Hints for misspelled keys and values, and for names that data sheets and other simulators use
//! for a key.

/// Another name of a key, and the key to use instead.
pub(super) struct Alias {
    words: &'static [&'static str],
    /// The key as its section names it.
    pub(super) key: &'static str,
    /// Section of the key, and its meaning there.
    pub(super) meaning: &'static str,
}

const fn alias(words: &'static [&'static str], key: &'static str, meaning: &'static str) -> Alias {
    Alias { words, key, meaning }
}

/// In lower case; `-` and blanks count as `_`.
const ALIASES: &[Alias] = &[
    alias(&["channel_count", "nchs", "num_channels", "buses"], "channels", "[drive.geometry]"),
    alias(
        &[
            "dies",
            "die",
            "luns",
            "lun",
            "ways",
            "banks",
            "chips",
            "targets",
            "luns_per_ch",
            "dies_per_channel",
            "parallel_units",
            "ce",
        ],
        "pus",
        "[drive.geometry]: parallel units (dies, LUNs) on each channel; of a data sheet's total, divide \
         by the channels",
    ),
    alias(
        &["planes_per_die", "planes_per_lun", "pls_per_lun", "plane"],
        "planes",
        "[drive.geometry]: planes of a parallel unit",
    ),
    alias(
        &[
            "blocks",
            "block",
            "blocks_per_plane",
            "blks_per_pl",
            "blks",
            "block_count",
            "superblocks",
            "blocks_per_lun",
        ],
        "chunks",
        "[drive.geometry]: blocks per plane, for a block of every plane is one chunk; of a data sheet's \
         blocks per die, divide by the planes",
    ),
    alias(
        &["pages_per_block", "pgs_per_blk", "page_count"],
        "pages",
        "[drive.geometry]: pages of a block",
    ),
    alias(
        &["page_size", "pagesize", "page", "page_capacity"],
        "page_bytes",
        "[drive.geometry]: data bytes of a page of one plane",
    ),
    alias(&["sector_size", "secsz"], "sector_bytes", "[drive.geometry]: bytes of a sector"),
    alias(
        &["pi", "dif", "t10", "t10_dif", "pi_type", "protection_information", "dps"],
        "protection",
        "[drive]: protection information of each logical block, such as \"type1\"",
    ),
    alias(
        &["lba_size", "lbads", "block_size", "logical_block_size"],
        "lba_bytes",
        "[drive]: bytes of a logical block, at most a sector",
    ),
    alias(
        &["oob", "oob_size", "spare_bytes", "metadata_bytes"],
        "oob_bytes",
        "[drive.geometry]: out-of-band bytes of a sector",
    ),
    alias(
        &["tr", "t_r", "read_latency", "pg_rd_lat", "page_read"],
        "read",
        "[drive.timing]: tR, such as \"58us\"",
    ),
    alias(
        &["tprog", "t_prog", "write", "write_latency", "pg_wr_lat", "page_program"],
        "program",
        "[drive.timing]: tPROG, such as \"1.39ms\"",
    ),
    alias(
        &["tbers", "t_bers", "erase_latency", "blk_er_lat", "block_erase"],
        "erase",
        "[drive.timing]: tBERS, such as \"3ms\"",
    ),
    alias(
        &[
            "mt/s",
            "mts",
            "mt_s",
            "transfer_rate",
            "channel_bandwidth",
            "channel_speed",
            "bus",
            "bus_speed",
            "onfi",
            "toggle",
            "ch_xfer_lat",
        ],
        "channel",
        "[drive.timing]: bandwidth of a channel, such as \"333MT/s\" or \"333MB/s\"",
    ),
    alias(
        &["op", "overprovisioning", "spare", "spare_factor"],
        "over_provisioning",
        "[drive.ftl] or [target]: physical/logical - 1, such as 0.07; or give the drive's `capacity`",
    ),
    alias(
        &["gc_policy", "victim", "gc", "garbage_collection"],
        "victim_policy",
        "[drive.ftl] or [target]",
    ),
    alias(
        &["gc_threshold", "gc_thres", "gc_watermark"],
        "gc_high_watermark",
        "[drive.ftl] or [target]: free lines beyond the low watermark at which garbage collection starts",
    ),
    alias(&["wear_leveling", "dynamic_wear"], "dynamic_wear_leveling", "[drive.ftl] or [target]"),
    alias(
        &["size", "raw_capacity", "user_capacity", "logical_capacity", "gb", "tb"],
        "capacity",
        "[drive]: bytes that users see, such as \"400GB\"",
    ),
    alias(
        &["cache", "dram", "write_cache", "data_cache"],
        "write_buffer",
        "[drive]: a table such as { kind = \"volatile\", size = \"16M\" }; of [target] its bytes",
    ),
    alias(
        &["pe_cycles", "cycles", "rated_cycles", "pe"],
        "endurance",
        "[drive.errors]: rated program/erase cycles",
    ),
    alias(&["ecc", "bch", "ldpc"], "ecc_bits", "[drive.errors]: bits corrected per sector"),
    alias(&["ber", "bit_error_rate"], "rber", "[drive.errors]: raw bit error rate of a fresh cell"),
    alias(
        &["pcie", "link", "host_bandwidth", "interface"],
        "dma_bandwidth",
        "[drive.controller]: bandwidth between host memory and drive",
    ),
    alias(
        &["nr_queues", "queue_count", "queue_pairs"],
        "max_io_queues",
        "[drive.controller]: I/O queue pairs at most",
    ),
    alias(&["cell_type", "nand_type", "flash_type"], "cell", "[drive]: \"slc\" to \"qlc\""),
    alias(&["nand", "flash", "medium"], "media", "[drive]: \"nand\", \"pcm\" or \"null\""),
    alias(&["image", "file", "filename"], "path", "[drive]: the image, with data = \"file\""),
    alias(&["device", "ssd", "disk"], "drive", "the scenario: the section [drive]"),
    alias(&["workload", "jobs", "fio", "global"], "job", "the scenario: sections [[job]]"),
    alias(&["preconditioning", "prefill", "warmup"], "precondition", "the scenario"),
    alias(&["name", "label"], "title", "the scenario: what results call it"),
    alias(&["random_seed"], "seed", "the scenario, or [drive]"),
    alias(&["scrubbing", "patrol"], "scrub", "[drive.controller], or of [target]"),
    alias(&["shard"], "shards", "[target]"),
    alias(&["fio_file", "job_file"], "job_files", "the scenario, above its first section"),
    alias(&["elevator", "iosched"], "scheduler", "[path], with queue_model = \"sq\" or \"mq\""),
    alias(&["cpus", "threads"], "cores", "[path], with queue_model = \"sq\" or \"mq\""),
    alias(&["overwrites"], "overwrite", "[precondition]"),
    alias(&["fill_device"], "fill", "[precondition]"),
    alias(
        &["io_size", "number_ios", "loops"],
        "amount",
        "a job of [precondition]: how much it moves, such as \"2x\"",
    ),
    alias(&["preset_name"], "preset", "[drive]"),
];

/// Returns the key that probably was meant by a key in the wrong section: a key with another name
/// or of another section.
pub(super) fn alias_of(key: &str) -> Option<&'static Alias> {
    let word = key.to_ascii_lowercase().replace(['-', ' '], "_");
    ALIASES.iter().find(|a| a.key == word || a.words.contains(&word.as_str()))
}

/// Returns the candidate with the smallest edit distance to `word`, if that is small.
pub(super) fn nearest<'k>(word: &str, candidates: &[&'k str]) -> Option<&'k str> {
    let word = word.to_ascii_lowercase();
    candidates
        .iter()
        .map(|c| (strsim::levenshtein(&word, &c.to_ascii_lowercase()), *c))
        .filter(|(edits, c)| *edits <= 2.max(c.len() / 3) && *edits < c.chars().count())
        .min()
        .map(|(_, c)| c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_pen_finds_its_key() {
        let keys = ["channels", "chunks", "pus", "page_bytes"];
        assert_eq!(nearest("chanels", &keys), Some("channels"));
        assert_eq!(nearest("pagebytes", &keys), Some("page_bytes"));
        assert_eq!(nearest("PUS", &keys), Some("pus"));
        assert_eq!(nearest("colour", &keys), None);
        assert_eq!(nearest("xyz", &["pus", "mq"]), None, "a word of other letters altogether");
    }

    #[test]
    fn a_word_of_a_datasheet_has_one_meaning() {
        let words: Vec<&str> = ALIASES.iter().flat_map(|a| a.words).copied().collect();
        let mut once = words.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), words.len(), "a word is in the table twice");
        assert_eq!(alias_of("Blocks-per-plane").unwrap().key, "chunks");
        assert_eq!(alias_of("MT/s").unwrap().key, "channel");
        assert_eq!(alias_of("shards").unwrap().meaning, "[target]", "a key in the wrong section");
        assert!(alias_of("colour").is_none());
    }
}
