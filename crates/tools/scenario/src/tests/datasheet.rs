//! Tests of a drive from a data sheet: other names and units, and a capacity in place of an
//! over-provisioning.

use super::*;

/// 64 PUs of 64 chunks of 2 x 256 x 8 KiB: 16 GiB.
const GEOMETRY: &str = "[drive]\ncell = \"mlc\"\n\
    geometry = { channels = 8, pus = 8, planes = 2, chunks = 64, pages = 256, page_bytes = \"8k\" }\n\
    timing = { read = \"75us\", program = \"750us\", erase = \"3.8ms\", channel = \"333MT/s\" }\n";

#[test]
fn words_of_datasheets_lead_to_their_keys() {
    for (section, word, says) in [
        ("geometry", "dies", "did you mean `pus`?"),
        ("geometry", "luns", "did you mean `pus`?"),
        ("geometry", "blocks", "did you mean `chunks`?"),
        ("geometry", "pages_per_block", "did you mean `pages`?"),
        ("geometry", "page_size", "did you mean `page_bytes`?"),
        ("timing", "tR", "did you mean `read`?"),
        ("timing", "tPROG", "did you mean `program`?"),
        ("timing", "'MT/s'", "did you mean `channel`?"),
        ("ftl", "op", "did you mean `over_provisioning`?"),
        // A name of a key in another section.
        ("timing", "blocks", "did you mean `chunks` of [drive.geometry]: blocks per plane"),
        ("geometry", "tBERS", "did you mean `erase` of [drive.timing]: tBERS"),
        ("controller", "cache", "did you mean `write_buffer` of [drive]"),
    ] {
        let (line, caret, message) = refused(&format!("{SMALL}{section}.{word} = 4\n"));
        assert_eq!((line, caret.as_str()), (3, word), "{message}");
        assert!(message.contains(says), "`{says}` is not in {message}");
    }
    assert_refused(&format!("{SMALL}op = 0.1\n"), 3, "op", &["`over_provisioning` of [drive.ftl]"]);
    // An existing key of another section.
    for (key, says) in [
        ("patrol", "`scrub` of [drive.controller], or of [target]"),
        ("shards", "`shards` of [target]"),
        ("job_files", "`job_files` of the scenario, above its first section"),
        ("channels", "`channels` of [drive.geometry]"),
        ("scheduler", "`scheduler` of [path]"),
    ] {
        assert_refused(&format!("{SMALL}{key} = 1\n"), 3, key, &["has no key", says]);
    }
    assert_refused(&format!("job_files = 3\n{SMALL}"), 1, "3", &["a path, or a list of paths"]);
    assert_refused(
        &format!("{SMALL}write_buffer = \"1M\"\n"),
        3,
        "\"1M\"",
        &["{ kind = \"volatile\""],
    );
    assert_refused(&format!("{SMALL}[ssd]\n"), 3, "ssd", &["did you mean `drive`?"]);
}

#[test]
fn lists_of_keys_have_no_duplicates() {
    let pblk = "[drive]\npreset = \"ocssd-mlc-128pu\"\n[target]\nkind = \"pblk\"\nsudden = 1\n";
    for text in
        [pblk.to_owned(), format!("{SMALL}sudden = 1\n"), format!("{SMALL}ftl.sudden = 1\n")]
    {
        let error = parse(&text).unwrap_err();
        let Some(ProblemKind::UnknownKey { allowed, .. }) = error.invalid().map(|i| &i.problem)
        else {
            panic!("{error}")
        };
        let mut once = allowed.clone();
        once.sort();
        once.dedup();
        assert_eq!(once.len(), allowed.len(), "{allowed:?}");
    }
}

#[test]
fn transfers_per_second_are_bytes_of_a_channel() {
    let s = parse(GEOMETRY).unwrap();
    assert_eq!(nand(&s).timing.channel_bytes_per_sec, 333_000_000);
    assert_refused(
        &format!("{SMALL}controller.dma_bandwidth = \"333MT/s\"\n"),
        3,
        "\"333MT/s\"",
        &["expected a bandwidth"],
    );
}

#[test]
fn a_capacity_gives_the_over_provisioning() {
    for (bytes, word) in [(15_000_000_000u64, "15GB"), (12 << 30, "12G")] {
        let text = format!("{GEOMETRY}capacity = \"{word}\"\n");
        let s = parse(&text).unwrap();
        let capacity = s.drives[0].capacity.unwrap();
        let holds = capacity.logical_bytes();
        let wanted = bytes / 4096 * 4096;
        assert!((wanted..=wanted + 2 * 4096).contains(&holds), "{holds} for {word}");
        assert!(capacity.over_provisioning() > 0.0);
        // From the over-provisioning to the capacity.
        let op = s.drives[0].config.ftl.over_provisioning;
        let back = parse(&format!("{GEOMETRY}ftl.over_provisioning = {op:?}\n")).unwrap();
        assert_eq!(back.drives[0].capacity.unwrap().logical_bytes(), holds);
    }
    // The capacity replaces the over-provisioning of a preset.
    let s = parse(&format!("{SMALL}capacity = \"12G\"\n")).unwrap();
    assert!(s.drives[0].capacity.unwrap().logical_bytes() - (12 << 30) <= 2 * 4096);
    // The host's FTL, without and with shards.
    for shards in [1, 4] {
        let text = format!(
            "[drive]\npreset = \"ocssd-mlc-128pu-small\"\ncapacity = \"40G\"\n[target]\n\
             kind = \"pblk\"\nshards = {shards}\n"
        );
        let s = parse(&text).unwrap();
        let holds = s.drives[0].capacity.unwrap().logical_bytes();
        // Shards are striped by 256 KiB each.
        assert!(holds >= 40 << 30 && holds - (40 << 30) <= shards << 19, "{holds}");
        let HostTarget::Pblk(ftl) = &s.drives[0].target else { panic!() };
        assert!(ftl.over_provisioning > 0.1, "{}", ftl.over_provisioning);
    }
}

#[test]
fn capacities_that_cannot_be_are_refused_with_what_can() {
    let case = |text: &str, line, caret: &str, says: &[&str]| {
        assert_refused(&format!("{GEOMETRY}{text}"), line, caret, says);
    };
    case("capacity = \"1TB\"\n", 5, "\"1TB\"", &["1 TB", "17.2 GB", "at most", "geometry.chunks"]);
    // The complete medium leaves no space for the FTL.
    case("capacity = \"16G\"\n", 5, "\"16G\"", &["at most", "lines held back"]);
    case("capacity = 0\n", 5, "0", &["capacity is 0"]);
    case(
        "capacity = \"12G\"\nftl.over_provisioning = 0.07\n",
        5,
        "\"12G\"",
        &["12 GiB", "over_provisioning = 0.07 makes", "it takes over_provisioning = 0.2"],
    );
    // Data sheets round; the resulting capacity is shown.
    let made = parse(&format!("{GEOMETRY}ftl.over_provisioning = 0.07\n")).unwrap();
    let bytes =
        made.drives[0].capacity.unwrap().logical_bytes() / 1_000_000 * 1_000_000 / 4096 * 4096;
    let text = format!("{GEOMETRY}capacity = {bytes}\nftl.over_provisioning = 0.07\n");
    let agreed = parse(&text).unwrap().drives[0].capacity.unwrap().logical_bytes();
    assert!(agreed - bytes <= 2 * 4096, "{agreed} {bytes}");
    // No FTL.
    let raw = "[drive]\npreset = \"ocssd-mlc-128pu\"\ncapacity = \"1TB\"\n";
    assert_refused(raw, 3, "\"1TB\"", &["without a translation layer", "geometry.chunks"]);
    // Media without spare space.
    let pcm = "[drive]\npreset = \"pcm\"\n";
    assert_refused(&format!("{pcm}capacity = 0\n"), 3, "0", &["capacity is 0"]);
    let bare = "[drive]\nmedia = \"pcm\"\ngeometry = { channels = 1, pus = 1 }\n";
    assert_refused(bare, 1, "[drive]", &["needs `capacity`"]);
}

#[test]
fn words_that_were_meant_are_named() {
    for (text, line, caret, says) in [
        (format!("{SMALL}personality = \"blok\"\n"), 3, "\"blok\"", "did you mean \"block\"?"),
        (format!("{SMALL}cell = \"TLC\"\n"), 3, "\"TLC\"", "did you mean \"tlc\"?"),
        ("[drive]\npreset = \"pmc\"\n".into(), 2, "\"pmc\"", "did you mean \"pcm\"?"),
        (
            format!("{SMALL}ftl.victim_policy = \"gredy\"\n"),
            3,
            "\"gredy\"",
            "did you mean \"greedy\"?",
        ),
        (format!("{SMALL}[path]\nqueue_model = \"mp\"\n"), 4, "\"mp\"", "did you mean \"mq\"?"),
        (
            format!("{SMALL}[[job]]\ndrive = \"drive9\"\n"),
            4,
            "\"drive9\"",
            "did you mean \"drive0\"?",
        ),
    ] {
        assert_refused(&text, line, caret, &[says]);
    }
    let (_, _, message) = refused(&format!("{SMALL}personality = \"magnetic\"\n"));
    assert!(!message.contains("did you mean"), "{message}");
}
