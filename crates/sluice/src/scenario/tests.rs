//! Bad scenarios, one by one: each names its file, its line, and what is allowed.

use std::path::Path;

use block::sched::{KyberConfig, Rate, SchedulerConfig};
use block::{Group, Layout, PerWhat, Timeouts, Topology};
use clock::Nanos;
use drive::{Arbitration, CmbConfig, PersonalityKind, PuPolicy, WriteBuffer};
use ftl::{GcYields, LineMetadata, RateLimiterKind, ReverseMapKind, VictimPolicyKind};
use media::{Cell, DataStore, MediaConfig};

use super::*;

fn parse(text: &str) -> Result<Scenario, ScenarioError> {
    Scenario::parse(Path::new("dir/s.toml"), text)
}

/// Line, the text under the caret, and the whole message.
fn refused(text: &str) -> (usize, String, String) {
    let error = parse(text).expect_err("must be refused");
    let invalid = error.invalid().expect("has a place");
    (invalid.line, invalid.text[invalid.span.clone()].to_owned(), error.to_string())
}

fn assert_refused(text: &str, line: usize, caret: &str, says: &[&str]) {
    let (at, under, message) = refused(text);
    assert_eq!((at, under.as_str()), (line, caret), "{message}");
    assert!(message.contains(&format!(":{line}:")), "{message}");
    for part in says {
        assert!(message.contains(part), "`{part}` is missing in: {message}");
    }
}

fn nand(scenario: &Scenario) -> &media::NandConfig {
    match &scenario.drives[0].config.media {
        MediaConfig::Nand(nand) => nand,
        other => panic!("not NAND: {other:?}"),
    }
}

const SMALL: &str = "[drive]\npreset = \"mqsim-default-small\"\n";

#[test]
fn the_scenario_of_the_design_document() {
    let s = parse(
        r#"
title = "few writers"
seed = 7
job_files = ["mixed.fio"]

[drive]
preset = "ocssd-mlc-128pu"
personality = "open-channel"

[target]
kind = "pblk"
active_pus = 4
over_provisioning = 0.11
buffer = "64M"

[path]
block = "raw"
completion = "poll"

[host]
submit = "850ns"

[precondition]
fill = "sequential"
overwrite = "random 2x"

[[job]]
name = "readers"
rw = "randread"
bs = "4k"
iodepth = 1
time_based = true
"#,
    )
    .unwrap();
    assert_eq!((s.title.as_str(), s.seed), ("few writers", 7));
    assert_eq!(s.job_files, [("dir/mixed.fio".into(), 4)]);
    let drive = &s.drives[0];
    assert_eq!(drive.preset.as_deref(), Some("ocssd-mlc-128pu"));
    assert_eq!(drive.config.personality, PersonalityKind::OpenChannel);
    assert_eq!(drive.config.name, "drive0");
    assert!(drive.is_block_device());
    let Target::Pblk(pblk) = &drive.target else { panic!("{:?}", drive.target) };
    assert_eq!((pblk.active_pus, pblk.buffer_sectors), (4, 16_384));
    let capacity = drive.capacity.unwrap();
    // A line's worth of chunks is the journal's.
    assert_eq!((capacity.journal_chunks, capacity.lines), (7, 1067 * 32 - 2));
    // Units of 16 sectors of 4 KB: one of first metadata, and of the last, 48 + 16 + 4 x 256 x (4 + 64)
    // bytes, two.
    assert_eq!((capacity.line_metadata_units, capacity.line_sectors), (3, 4 * 4096 - 3 * 16));
    // Two lines in reserve, two open, one for padding.
    assert_eq!(capacity.physical_sectors(), (1067 * 32 - 7) * (4 * 4096 - 3 * 16));
    assert!((capacity.over_provisioning() - 0.11).abs() < 1e-4);
    assert_eq!(nand(&s).host_geometry().mw_cunits, 7 * 16);
    assert_eq!(s.host, HostConfig { submit: Some(Nanos(850)), complete: None });
    assert_eq!(s.precondition, Precondition { fill: Fill::Sequential, overwrite_random: 2.0 });
    let job = &s.jobs[0];
    assert_eq!((job.name.as_str(), job.line), ("readers", 28));
    let pairs: Vec<(&str, &str, usize)> =
        job.pairs.iter().map(|(k, v, l)| (k.as_str(), v.as_str(), *l)).collect();
    assert_eq!(
        pairs,
        [("rw", "randread", 29), ("bs", "4k", 30), ("iodepth", "1", 31), ("time_based", "1", 32)]
    );
}

#[test]
fn a_drive_spelled_out() {
    let s = parse(
        r#"
[drive]
name = "fast"
cell = "tlc"
pu_policy = "reads-first"
suspend = { suspend = "20us", max_per_operation = 3 }
page_register = false
cache_program = false
cache_read = true
read_register = true
page_transfers = true
data = "file"
path = "drive.img"
geometry = { channels = 2, pus = 3, planes = 2, chunks = 40, pages = 96, page_bytes = "16k", sector_bytes = "4k", oob_bytes = 32 }
[drive.timing]
read = ["56.5us", "77.5us", "106us"]
program = "1ms"
erase = "3ms"
channel = "1.2GB/s"
[drive.errors]
factory_bad = 0.01
[drive.write_buffer]
kind = "power-loss-protected"
size = "4M"
[drive.controller]
fetch = "500ns"
dma = "3.2GB/s"
dma_in = "3GB/s"
io_queues = 8
arbitration = { kind = "weighted", high = 3 }
[drive.ftl]
over_provisioning = 0.28
victim_policy = "fifo"
hot_cold = false
"#,
    )
    .unwrap();
    let c = &s.drives[0].config;
    assert_eq!(c.name, "fast");
    let m = nand(&s);
    assert_eq!((m.cell, m.geometry.page_bytes, m.geometry.oob_bytes), (Cell::Tlc, 16_384, 32));
    assert_eq!(m.timing.read[1], Nanos(77_500));
    assert_eq!(m.timing.read[3], Nanos(106_000), "beyond the cell's bits, like the last");
    assert_eq!(m.timing.channel_bytes_per_sec, 1_200_000_000);
    assert_eq!(m.data, DataStore::File("dir/drive.img".into()));
    assert_eq!(m.errors.factory_bad, 0.01);
    assert_eq!((c.page_register, c.cache_program), (false, false));
    assert_eq!(
        c.transfers,
        drive::Transfers { cache_read: true, read_register: true, by_page: true }
    );
    assert_eq!(c.controller.writes_bytes_per_sec(), 3_000_000_000);
    let PuPolicy::ReadsFirst { suspend: Some(suspend) } = c.pu_policy else { panic!() };
    assert_eq!((suspend.suspend, suspend.max_per_operation), (Nanos(20_000), 3));
    assert_eq!(c.write_buffer, WriteBuffer::PowerLossProtected { bytes: 4 << 20 });
    assert_eq!(c.controller.fetch, Nanos(500));
    assert_eq!(c.controller.io_queues, 8);
    assert!(matches!(c.controller.arbitration, Arbitration::Weighted { high: 3, low: 1, .. }));
    assert_eq!((c.ftl.victim_policy, c.ftl.hot_cold), (VictimPolicyKind::Fifo, false));
}

#[test]
fn an_interface_spelled_out() {
    let drive = "[drive]\npreset = \"ocssd-mlc-128pu-small\"\n";
    let s = parse(&format!(
        "{drive}suspend_hint = {{ resume = \"3us\" }}\ndual_map = true\ncmb = \"64M\"\n\
         cmb_protected = true\nerrors = {{ read_retries = 5, retry_leaves = 0.6 }}\n\
         data = \"memory\"\npersonality = \"open-channel\"\n"
    ))
    .unwrap();
    let c = &s.drives[0].config;
    let hint = c.open_channel.suspend_on_hint.unwrap();
    assert_eq!((hint.suspend, hint.resume), (Nanos(25_000), Nanos(3_000)));
    assert!(c.open_channel.dual_map);
    assert_eq!(c.controller.cmb, Some(CmbConfig { bytes: 64 << 20, protected: true }));
    assert_eq!((nand(&s).errors.read_retries, nand(&s).errors.retry_leaves), (5, 0.6));
    c.check().unwrap();
    // Nothing of it unless it is asked for.
    let c = &parse(drive).unwrap().drives[0].config;
    assert_eq!(c.open_channel, drive::OpenChannelConfig::default());
    assert_eq!(c.controller.cmb, None);

    let open = format!("{drive}personality = \"open-channel\"\n");
    for (text, line, caret, says) in [
        (format!("{SMALL}suspend_hint = true\n"), 3, "true", "remove `suspend_hint`"),
        (format!("{SMALL}dual_map = true\n"), 3, "true", "remove `dual_map`"),
        (format!("{open}data = \"none\"\ndual_map = true\n"), 5, "true", "keeps nothing"),
        (format!("{open}cmb_protected = true\n"), 4, "true", "set cmb to its size"),
        (format!("{open}cmb = 5000\n"), 4, "5000", "multiple of 4k"),
        (format!("{open}cmb = \"1T\"\n"), 4, "\"1T\"", "up to 64G"),
        (format!("{open}suspend_hint = 3\n"), 4, "3", "max_per_operation"),
        (format!("{open}errors = {{ read_retries = 1001 }}\n"), 4, "1001", "0 to 1000"),
        (format!("{open}errors = {{ retry_leaves = 2 }}\n"), 4, "2", "0 to 1"),
    ] {
        assert_refused(&text, line, caret, &[says]);
    }
    let small = "geometry = { oob_bytes = 8 }\ndata = \"memory\"\ndual_map = true\n";
    assert_refused(&format!("{open}{small}"), 6, "true", &["oob_bytes"]);
}

#[test]
fn several_drives_and_a_job_on_one_of_them() {
    let text = "[[drive]]\nname = \"a\"\npreset = \"pcm\"\n[[drive]]\nname = \"b\"\n\
                preset = \"nvme-null\"\n[[job]]\ndrive = \"b\"\nrw = \"read\"\n";
    let s = parse(text).unwrap();
    assert_eq!(s.jobs[0].drive, Some(("b".into(), 8)));
    assert_eq!(s.drive("a").unwrap().config.personality, PersonalityKind::Block);
    assert_refused(&text.replace("drive = \"b\"", "drive = \"c\""), 8, "\"c\"", &["a, b"]);
    assert_refused(
        &text.replace("name = \"b\"", "name = \"a\""),
        5,
        "\"a\"",
        &["two drives are called \"a\""],
    );
}

#[test]
fn seeds_derive_and_can_be_replaced() {
    let drive = "[[drive]]\nname = \"x\"\npreset = \"femu-default\"\n";
    let mut s =
        parse(&format!("{drive}{}{}seed = 99\n", drive.replace('x', "y"), drive.replace('x', "z")))
            .unwrap();
    let seeds = |s: &Scenario| -> Vec<u64> {
        s.drives
            .iter()
            .map(|d| match &d.config.media {
                MediaConfig::Nand(n) => n.seed,
                _ => 0,
            })
            .collect()
    };
    let before = seeds(&s);
    assert_eq!((before[0], before[2]), (DEFAULT_SEED, 99));
    s.set_seed(5);
    let after = seeds(&s);
    assert_eq!((after[0], after[2]), (5, 99), "a seed of its own stays");
    assert_ne!(after[1], before[1]);
}

#[test]
fn unknown_keys_are_refused_with_the_nearest() {
    assert_refused(
        "[drive]\npreset = \"pcm\"\ngeometry.chanels = 4\n",
        3,
        "chanels",
        &["[drive.geometry] has no key `chanels`", "did you mean `channels`", "page_bytes"],
    );
    assert_refused(
        &format!("{SMALL}[paht]\nblock = \"raw\"\n"),
        3,
        "paht",
        &["a scenario has no key `paht`", "did you mean `path`"],
    );
    assert_refused("[drives]\npreset = \"pcm\"\n", 1, "drives", &["did you mean `drive`"]);
    assert_refused(
        &format!("{SMALL}[target]\nkind = \"none\"\nactive_pu = 3\n"),
        5,
        "active_pu",
        &["did you mean `active_pus`"],
    );
}

#[test]
fn wrong_types_and_forms_are_refused() {
    assert_refused(
        &format!("{SMALL}geometry.channels = \"eight\"\n"),
        3,
        "\"eight\"",
        &["`drive.geometry.channels` cannot be the string \"eight\"", "whole number"],
    );
    assert_refused(
        &format!("{SMALL}timing.read = 58\n"),
        3,
        "58",
        &["expected a duration with its unit"],
    );
    assert_refused(
        &format!("{SMALL}timing.channel = \"333M\"\n"),
        3,
        "\"333M\"",
        &["expected a bandwidth", "280MB/s"],
    );
    assert_refused(
        &format!("{SMALL}timing.read = [\"1us\", \"2us\", \"3us\"]\n"),
        3,
        "[\"1us\", \"2us\", \"3us\"]",
        &["2 of them"],
    );
    assert_refused(&format!("{SMALL}seed = -1\n"), 3, "-1", &["from 0"]);
    assert_refused(&format!("{SMALL}errors.factory_bad = nan\n"), 3, "nan", &["from 0 to 0.9"]);
    assert_refused("drive = 3\n", 1, "3", &["a table `[drive]`"]);
    assert_refused("[drive\n", 1, "", &["not valid TOML"]);
    assert_refused(&format!("{SMALL}[[job]]\nrw = []\n"), 4, "[]", &["fio job file"]);
    assert_refused(
        &format!("{SMALL}[precondition]\noverwrite = \"twice\"\n"),
        4,
        "\"twice\"",
        &["random 2x"],
    );
}

#[test]
fn a_patrol_has_a_rate_and_is_that_of_who_manages_the_flash() {
    let drive = "[drive]\npreset = \"ocssd-mlc-128pu-small\"\npersonality = \"open-channel\"\n\
                 data = \"memory\"\nerrors.retention = \"9s\"\nerrors.disturb_reads = 7\n";
    let target = "[target]\nkind = \"pblk\"\nstatic_wear = 50\n";
    let patrol = "patrol = { rate = \"1MB/s\", cold_after = \"60s\" }\n";
    let s = parse(&format!("{drive}{target}{patrol}")).unwrap();
    let plan = &s.drives[0];
    let Target::Pblk(pblk) = &plan.target else { panic!("{:?}", plan.target) };
    assert_eq!(pblk.static_wear, 50);
    let patrol_plan = plan.patrol.unwrap();
    assert_eq!((patrol_plan.sectors_per_sec, patrol_plan.cold_after.0), (245, 60_000_000_000));
    let media::MediaConfig::Nand(nand) = &plan.config.media else { panic!("flash") };
    assert_eq!((nand.errors.retention.0, nand.errors.disturb_reads), (9_000_000_000, 7));
    assert!(parse(&format!("{drive}{target}")).unwrap().drives[0].patrol.is_none());
    let no_rate = "patrol = { cold_after = \"60s\" }\n";
    assert_refused(&format!("{drive}{target}{no_rate}"), 10, "{ cold_after = \"60s\" }", &["rate"]);
    let rrpc = "dual_map = true\n[target]\nkind = \"rrpc\"\n";
    let s = parse(&format!("{drive}{rrpc}{patrol}")).unwrap();
    assert_eq!(s.drives[0].patrol.map(|p| p.sectors_per_sec), Some(245));
    let named = drive.replace("memory\"", "file\"\npath = \"x.img\"");
    assert_refused(
        &format!("{named}[target]\nname = \"db\"\nkind = \"kv\"\n{patrol}"),
        11,
        "{ rate = \"1MB/s\", cold_after = \"60s\" }",
        &["only pblk and rrpc", "remove `patrol`"],
    );
    // The drive's own is its controller's.
    let own = "controller.patrol = { rate = \"1MB/s\", repeat_after = \"60s\" }\n";
    let block = drive.replace("open-channel", "block");
    let config = parse(&format!("{block}{own}")).unwrap().drives[0].config.controller;
    let own_patrol = config.patrol.unwrap();
    assert_eq!((own_patrol.sectors_per_sec, own_patrol.repeat_after), (245, Nanos::from_secs(60)));
    assert!(parse(&block).unwrap().drives[0].config.controller.patrol.is_none());
    let at = "{ rate = \"1MB/s\", repeat_after = \"60s\" }";
    assert_refused(&format!("{drive}{own}{target}"), 7, at, &["manages its flash", "[target]"]);
    let null = "[drive]\npersonality = \"null\"\ncapacity = \"1G\"\n";
    assert_refused(&format!("{null}{own}"), 4, at, &["only a drive that manages its flash"]);
    let no_rate = "controller.patrol = { repeat_after = \"60s\" }\n";
    assert_refused(&format!("{block}{no_rate}"), 7, "{ repeat_after = \"60s\" }", &["`rate`"]);
}

#[test]
fn rrpc_has_the_thesis_choices_and_needs_a_map() {
    let drive = "[drive]\npreset = \"ocssd-mlc-128pu-small\"\npersonality = \"open-channel\"\n\
                 data = \"memory\"\n";
    let target = "[target]\nkind = \"rrpc\"\nactive_pus = 8\n";
    let s = parse(&format!("{drive}dual_map = true\n{target}")).unwrap();
    let plan = &s.drives[0];
    let Target::Rrpc(rrpc) = &plan.target else { panic!("{:?}", plan.target) };
    assert_eq!((rrpc.victim_policy, rrpc.wear_levelling), (VictimPolicyKind::Cost, true));
    assert_eq!(rrpc.active_pus, 8);
    assert!(plan.is_block_device() && plan.capacity.is_some());
    let other = "victim_policy = \"greedy\"\nwear_levelling = false\n";
    let s = parse(&format!("{drive}dual_map = true\n{target}{other}")).unwrap();
    let Target::Rrpc(rrpc) = &s.drives[0].target else { panic!("{:?}", s.drives[0].target) };
    assert_eq!((rrpc.victim_policy, rrpc.wear_levelling), (VictimPolicyKind::Greedy, false));
    assert_refused(
        &format!("{drive}{target}"),
        6,
        "\"rrpc\"",
        &["this drive keeps none", "set dual_map = true"],
    );
}

#[test]
fn metadata_of_lines_and_the_reverse_map_are_choices() {
    let drive = "[drive]\npreset = \"ocssd-mlc-128pu-small\"\npersonality = \"open-channel\"\n\
                 data = \"memory\"\n";
    let pblk = format!("{drive}[target]\nkind = \"pblk\"\nactive_pus = 8\n");
    let of = |keys: &str| {
        let s = parse(&format!("{pblk}{keys}")).unwrap();
        let Target::Pblk(config) = s.drives[0].target.clone() else { panic!("not pblk") };
        (config.line_metadata, config.reverse_map, s.drives[0].capacity.unwrap().logical_sectors)
    };
    let (with, map, sectors) = of("line_metadata = true\n");
    assert_eq!((with, map), (LineMetadata::On, ReverseMapKind::Memory));
    let media = of("line_metadata = true\nreverse_map = \"media\"\n");
    assert_eq!(media, (LineMetadata::On, ReverseMapKind::Media, sectors));
    // As usual, and without.
    assert_eq!(of(""), (LineMetadata::WhereItFits, ReverseMapKind::Memory, sectors));
    let (without, _, more) = of("line_metadata = false\n");
    assert!(without == LineMetadata::Off && more > sectors, "{more} {sectors}");
    assert_refused(
        &format!("{pblk}line_metadata = false\nreverse_map = \"media\"\n"),
        9,
        "\"media\"",
        &["lines have no metadata", "line_metadata = true"],
    );
    assert_refused(
        &format!("{drive}dual_map = true\n[target]\nkind = \"rrpc\"\nline_metadata = true\n"),
        8,
        "true",
        &["this drive keeps the map", "allowed: false"],
    );
}

#[test]
fn lines_too_small_for_metadata_have_none_or_the_scenario_is_refused() {
    // Lines of 16 units of one page: metadata would be two of them.
    let small = "[drive]\npreset = \"femu-default\"\ngeometry.channels = 1\ngeometry.pus = 1\n\
                 geometry.pages = 16\ngeometry.chunks = 400\npersonality = \"open-channel\"\n\
                 [target]\nkind = \"pblk\"\n";
    for key in ["", "line_metadata = \"where-it-fits\"\n", "line_metadata = false\n"] {
        let s = parse(&format!("{small}{key}")).unwrap();
        assert_eq!(s.drives[0].capacity.unwrap().line_metadata_units, 0, "{key}");
    }
    assert_refused(
        &format!("{small}line_metadata = true\n"),
        10,
        "true",
        &["it takes 2 of a line's 16 write units", "\"where-it-fits\"", "active_pus"],
    );
    assert_refused(
        &format!("{small}reverse_map = \"media\"\n"),
        10,
        "\"media\"",
        &["does not fit lines of this size", "larger chunks"],
    );
    assert_refused(
        &format!("{small}line_metadata = \"sometimes\"\n"),
        10,
        "\"sometimes\"",
        &["where-it-fits"],
    );
    assert_refused(
        &format!("{small}line_metadata = 1\n"),
        10,
        "1",
        &["true, false or \"where-it-fits\""],
    );
    // The drive's own layer has none unless it is told.
    let block = small.replace("open-channel", "block").replace("[target]\nkind = \"pblk\"\n", "");
    assert_eq!(parse(&block).unwrap().drives[0].config.ftl.line_metadata, LineMetadata::Off);
    assert_refused(
        &format!("{block}[drive.ftl]\nreverse_map = \"media\"\n"),
        9,
        "\"media\"",
        &["line_metadata is off", "line_metadata = true"],
    );
}

#[test]
fn shards_are_for_a_pblk_on_a_whole_drive_and_no_more_than_its_units_and_queues() {
    let drive = "[drive]\npreset = \"ocssd-mlc-128pu-small\"\npersonality = \"open-channel\"\n\
                 data = \"memory\"\n";
    let pblk = |keys: &str| format!("{drive}[target]\nkind = \"pblk\"\n{keys}");
    let of = |keys: &str| {
        let s = parse(&pblk(keys)).unwrap();
        (s.drives[0].shards, s.drives[0].capacity.unwrap())
    };
    let (none, whole) = of("");
    assert_eq!((none, whole.shards), (None, 1));
    assert_eq!(of("shards = 1\n"), (Some(1), whole));
    let (four, cut) = of("shards = 4\n");
    assert_eq!((four, cut.shards, cut.active_pus), (Some(4), 4, 32));
    // Every shard holds back lines of its own, of a quarter of the width.
    assert_eq!((cut.held_lines, cut.written_pus(128)), (4 * whole.held_lines, 128));
    let share = cut.logical_sectors as f64 / whole.logical_sectors as f64;
    assert!((0.95..1.05).contains(&share), "{share}");
    assert_refused(&pblk("shards = 0\n"), 7, "0", &["shards", "allowed: 1 to 32"]);
    assert_refused(&pblk("shards = 33\n"), 7, "33", &["allowed: 1 to 32"]);
    assert_refused(&pblk("shards = \"many\"\n"), 7, "\"many\"", &["shards"]);
    let small = pblk("shards = 9\n").replace("data", "geometry = { channels = 2, pus = 4 }\ndata");
    assert_refused(&small, 8, "9", &["the drive has 8 parallel units", "allowed: 1 to 8"]);
    let narrow = pblk("shards = 4\n").replace("data", "controller.io_queues = 3\ndata");
    assert_refused(&narrow, 8, "4", &["the drive has 3 I/O queues", "controller.io_queues"]);
    // The units of a shard are a quarter of the drive's.
    let wide = pblk("shards = 4\nactive_pus = 33\n");
    assert_refused(&wide, 8, "33", &["allowed: 1 to 32"]);
    for (kind, more) in [("rrpc", "dual_map = true\n"), ("none", "")] {
        let text = format!("{drive}{more}[target]\nkind = \"{kind}\"\nshards = 2\n");
        match kind {
            "none" => assert_eq!(parse(&text).unwrap().drives[0].shards, None),
            _ => assert_refused(&text, 8, "2", &["only pblk", "remove `shards`"]),
        }
    }
    let named = drive.replace("memory\"", "file\"\npath = \"x.img\"");
    for kind in ["", "kind = \"pblk\"\n", "kind = \"kv\"\n"] {
        let text = format!("{named}[target]\nname = \"db\"\n{kind}shards = 2\n");
        let at = 8 + kind.lines().count();
        assert_refused(&text, at, "2", &["target db", "remove `shards`, or `name`"]);
    }
}

#[test]
fn values_of_later_versions_say_so() {
    for kind in ["kv", "ppa"] {
        assert_refused(
            &format!("{SMALL}[target]\nkind = \"{kind}\"\n"),
            4,
            &format!("\"{kind}\""),
            &["is not available yet", "allowed: \"none\", \"pblk\""],
        );
    }
    assert_refused(
        &format!("{SMALL}[path]\ncompletion = \"hybrid\"\n"),
        4,
        "\"hybrid\"",
        &["is not available yet", "allowed: \"poll\""],
    );
    let (_, _, message) = refused(&format!("{SMALL}[path]\nblock = \"fast\"\n"));
    assert!(!message.contains("yet"), "{message}");
}

#[test]
fn missing_things_are_named() {
    assert_refused("", 1, "", &["a scenario needs `drive`"]);
    assert_refused("[drive]\n", 1, "[drive]", &["needs `channels`", "sluice drive presets"]);
    assert_refused("[drive]\npreset = \"foo\"\n", 2, "\"foo\"", &["mqsim-default", "pcm"]);
    assert_refused(&format!("{SMALL}data = \"file\"\n"), 3, "\"file\"", &["needs `path`"]);
    assert_refused(&format!("{SMALL}path = \"x\"\n"), 3, "\"x\"", &["data = \"file\""]);
    assert_refused(&format!("{SMALL}[target]\n"), 3, "[target]", &["needs `kind`"]);
    let missing = Scenario::load(Path::new("no/such/file.toml")).unwrap_err();
    assert!(missing.to_string().contains("no/such/file.toml"), "{missing}");
}

#[test]
fn impossible_geometries_point_at_their_key() {
    assert_refused(
        &format!("{SMALL}geometry.channels = 0\n"),
        3,
        "0",
        &["channels is 0, but a drive has at least 1"],
    );
    // More chunks than the address format holds: 32 bits of them, channels and PUs of 16 and more.
    assert_refused(
        &format!("{SMALL}geometry.chunks = 4294967295\n"),
        3,
        "4294967295",
        &["impossible geometry"],
    );
    assert_refused(
        &format!(
            "{SMALL}[drive.geometry]\nchannels = 4294967295\npus = 4294967295\nchunks = 4294967295\n"
        ),
        6,
        "4294967295",
        &["impossible geometry"],
    );
    assert_refused(
        &format!("{SMALL}geometry.pages = 255\n"),
        3,
        "255",
        &["multiple of the 2 bits of a cell"],
    );
    // The user's choice is to blame, though the number is the preset's.
    assert_refused(
        &format!("{SMALL}cell = \"tlc\"\n"),
        2,
        "\"mqsim-default-small\"",
        &["multiple of the 3 bits"],
    );
    assert_refused(
        &format!("{SMALL}geometry.sector_bytes = 3000\n"),
        3,
        "3000",
        &["power of two from 512"],
    );
    assert_refused(
        "[drive]\npreset = \"pcm\"\ncapacity = 1000\n",
        3,
        "1000",
        &["multiple of sector_bytes"],
    );
}

#[test]
fn a_medium_that_cannot_host_its_layer_says_so() {
    // One line's worth is the journal's, five are held back: two in reserve, two open, one for
    // padding.
    for (chunks, says) in [(6, "nothing is left"), (7, "less than one line")] {
        assert_refused(
            &format!("{SMALL}geometry.chunks = {chunks}\n"),
            3,
            &chunks.to_string(),
            &["cannot host", says, "more chunks"],
        );
    }
    assert!(parse(&format!("{SMALL}geometry.chunks = 8\n")).is_ok());
    assert_refused(
        &format!("{SMALL}ftl.over_provisioning = 90\n"),
        3,
        "90",
        &["cannot host 90 over-provisioning", "less than one line"],
    );
    assert_refused(&format!("{SMALL}ftl.over_provisioning = 101\n"), 3, "101", &["0 to 100"]);
    assert_refused(
        &format!("{SMALL}ftl.reserve_lines = 64\n"),
        3,
        "64",
        &["nothing is left", "smaller reserve_lines"],
    );
    assert_refused(
        &format!("{SMALL}geometry.oob_bytes = 8\n"),
        3,
        "8",
        &["8 out-of-band bytes per sector", "16 and more"],
    );
    assert_refused(
        &format!("{SMALL}geometry.page_bytes = \"256k\"\n"),
        3,
        "\"256k\"",
        &["at most 64 sectors per program"],
    );
    let ocssd = "[drive]\npreset = \"ocssd-mlc-128pu-small\"\n[target]\nkind = \"pblk\"\n";
    assert_refused(
        &format!("{ocssd}active_pus = 129\n"),
        5,
        "129",
        &["the drive has 128 parallel units", "1 to 128, or 0 for all"],
    );
    assert_refused(&format!("{ocssd}over_provisioning = 50\n"), 5, "50", &["less than one line"]);
    assert_refused(
        &format!("{ocssd}rate_limiter = \"pdi\"\n"),
        5,
        "\"pdi\"",
        &["\"share\"", "\"pid\""],
    );
    assert_refused(
        &format!("{ocssd}rate_limiter = {{ kind = \"pid\", kp = 101 }}\n"),
        5,
        "101",
        &["0 to 100"],
    );
    assert_refused(
        &format!("{ocssd}rate_limiter = {{ kind = \"share\", kp = 1 }}\n"),
        5,
        "kp",
        &["has no key `kp`"],
    );
    assert_refused(
        &format!("{ocssd}gc_yields = \"yes\"\n"),
        5,
        "\"yes\"",
        &["\"busy-pus\"", "\"any-read\""],
    );
}

#[test]
fn the_controls_of_garbage_collection_are_read() {
    let ocssd = "[drive]\npreset = \"ocssd-mlc-128pu-small\"\n[target]\nkind = \"pblk\"\n";
    let of = |keys: &str| match &parse(&format!("{ocssd}{keys}")).unwrap().drives[0].target {
        Target::Pblk(config) => (config.rate_limiter, config.gc_yields),
        other => panic!("{other:?}"),
    };
    assert_eq!(of(""), (RateLimiterKind::Share, GcYields::Never));
    assert_eq!(
        of("rate_limiter = \"pid\"\ngc_yields = \"any-read\"\n"),
        (RateLimiterKind::PID, GcYields::AnyRead)
    );
    let RateLimiterKind::Pid { kp, ki, kd } = RateLimiterKind::PID else { unreachable!() };
    assert_eq!((kp, ki), (1.0, 0.1));
    assert_eq!(
        of("rate_limiter = { kind = \"pid\", kp = 2, ki = 0 }\ngc_yields = \"busy-pus\"\n"),
        (RateLimiterKind::Pid { kp: 2.0, ki: 0.0, kd }, GcYields::BusyPus)
    );
}

#[test]
fn memory_for_the_map_is_sectors_of_it_and_says_when_it_cannot_be() {
    let config = |key: &str| {
        let s = parse(&format!("{SMALL}ftl.map_cache = {key}\n")).unwrap();
        s.drives[0].config.ftl.map_cache_sectors
    };
    assert_eq!((config("0"), config("\"1G\""), config("\"1g\"")), (0, 1 << 18, 1 << 18));
    for too_small in ["1", "4095"] {
        assert_refused(
            &format!("{SMALL}ftl.map_cache = {too_small}\n"),
            3,
            too_small,
            &["map_cache_sectors is 1", "at the same time", "0 for all of the map"],
        );
    }
    assert_refused(
        &format!("{SMALL}data = \"none\"\nftl.map_cache = \"1g\"\n"),
        4,
        "\"1g\"",
        &["keeps what is written", "allowed: 0"],
    );
}

#[test]
fn choices_that_exclude_each_other_are_refused() {
    assert_refused(
        &format!("{SMALL}[target]\nkind = \"pblk\"\n"),
        4,
        "\"pblk\"",
        &["does not expose it", "personality = \"open-channel\""],
    );
    assert_refused(
        &format!("{SMALL}personality = \"null\"\nmedia = \"nand\"\n"),
        3,
        "\"null\"",
        &["has no media"],
    );
    assert_refused(
        "[drive]\npreset = \"pcm\"\npersonality = \"open-channel\"\n",
        3,
        "\"open-channel\"",
        &["no chunks to expose"],
    );
    assert_refused(
        &format!("{SMALL}pu_policy = \"fifo\"\nsuspend = true\n"),
        4,
        "true",
        &["suspends nothing"],
    );
    assert_refused(&format!("{SMALL}capacity = \"1T\"\n"), 3, "\"1T\"", &["geometry.chunks"]);
    assert_refused(
        "[drive]\npreset = \"tlc-2020s-oneshot\"\npair_distance = 3\n",
        3,
        "3",
        &["pair_distance = 0"],
    );
}

/// `[path]` with these lines behind `block`, on line 4.
fn path(block: &str, lines: &str) -> String {
    format!("{SMALL}[path]\nblock = \"{block}\"\n{lines}")
}

#[test]
fn a_block_layer_spelled_out() {
    let text = path(
        "mq",
        "cores = 8\nsockets = 2\nqueues = 4\nstaging = \"socket\"\nmerge = false\n\
         queue_depth = 64\ntimeout = \"2s\"\nabort_timeout = \"500ms\"\nretries = 0\n\
         [path.scheduler]\nkind = \"deadline\"\nread_expire = \"3ms\"\nfifo_batch = 4\n",
    );
    let layer = parse(&text).unwrap().path.layer.unwrap();
    assert_eq!((layer.name(), layer.cores(), layer.hardware_queues(128)), ("mq", 8, 4));
    assert_eq!(layer.layout, Layout::Multi { staging: PerWhat::Socket });
    assert_eq!(layer.topology, Topology { sockets: 2, cores: 4 });
    assert_eq!((layer.merge, layer.queue_depth), (false, 64));
    let (command, abort) = (Nanos::from_secs(2), Nanos::from_millis(500));
    assert_eq!(layer.timeouts, Timeouts { command, abort, retries: 0 });
    let SchedulerConfig::Deadline(deadline) = layer.scheduler else { panic!() };
    assert_eq!((deadline.read_expire, deadline.fifo_batch), (Nanos::from_millis(3), 4));

    let text = path(
        "sq",
        "cores = 2\nscheduler = { kind = \"fair\", weights = [300, 100], request_cost = 9 }\n\
         [[path.limit]]\ngroup = 3\nread_iops = 1000\nburst = \"10ms\"\n\
         [[path.limit]]\ngroup = 0\nwrite_bw = \"1MB/s\"\n[[job]]\nrw = \"read\"\ngroup = 3\n",
    );
    let s = parse(&text).unwrap();
    let layer = s.path.layer.unwrap();
    assert_eq!((layer.name(), layer.hardware_queues(128)), ("sq", 1));
    let SchedulerConfig::Fair(fair) = &layer.scheduler else { panic!() };
    assert_eq!(fair.weights, [(0, 300), (1, 100)]);
    assert_eq!(fair.request_cost_sectors, 9);
    let reads = layer.limits[0].1.read;
    assert_eq!(reads.operations, Some(Rate { per_sec: 1000, burst: 10 }));
    assert_eq!((layer.limits[0].0, reads.bytes), (Group(3), None));
    let writes = layer.limits[1].1.write;
    assert_eq!(writes.bytes, Some(Rate { per_sec: 1_000_000, burst: 100_000 }));
    assert_eq!(s.jobs[0].group, Group(3));
    assert!(s.jobs[0].pairs.iter().all(|(key, _, _)| key != "group"));

    let layer = parse(&path("mq", "cores = 4\nscheduler = \"kyber\"\nstaging = \"device\"\n"));
    let layer = layer.unwrap().path.layer.unwrap();
    assert_eq!(layer.scheduler, SchedulerConfig::Kyber(KyberConfig::default()));
    assert_eq!((layer.hardware_queues(128), layer.hardware_queues(3)), (4, 3));
    assert_eq!(parse(&path("raw", "")).unwrap().path.layer, None);
}

#[test]
fn keys_of_the_block_layer_that_make_no_sense_together_are_refused() {
    let refuse = |block, lines: &str, line, caret, says: &[&str]| {
        assert_refused(&path(block, lines), line, caret, says);
    };
    refuse("raw", "scheduler = \"fair\"\n", 5, "\"fair\"", &["`path.scheduler`", "raw"]);
    refuse("raw", "merge = true\ncores = 2\n", 6, "2", &["`path.cores`", "block = \"sq\""]);
    refuse("sq", "queues = 2\n", 5, "2", &["no `queues`", "block = \"mq\""]);
    refuse("sq", "staging = \"core\"\n", 5, "\"core\"", &["no `staging`"]);
    refuse("sq", "sockets = 1\n", 5, "1", &["no `sockets`"]);
    refuse("mq", "sockets = 2\ncores = 2\n", 5, "2", &["staging = \"socket\""]);
    let uneven = "cores = 3\nsockets = 2\nstaging = \"socket\"\n";
    refuse("mq", uneven, 6, "2", &["3 cores", "2 sockets", "multiple"]);
    refuse("mq", "queues = 3\ncores = 2\n", 5, "3", &["2 cores cannot use 3"]);
    for staging in ["", "staging = \"core\"\n"] {
        let lines = format!("cores = 2\nscheduler = \"fair\"\n{staging}");
        let says = ["one staging queue", "not 2", "staging = \"device\""];
        refuse("mq", &lines, 6, "\"fair\"", &says);
    }
    let lines = "cores = 2\n[[path.limit]]\ngroup = 0\nread_iops = 1\n";
    let (line, _, message) = refused(&path("mq", lines));
    assert!(line == 6 && message.contains("limits weigh submitters"), "{line}: {message}");
    let three = "scheduler = { kind = \"fair\", weights = [1, 2, 3] }\ncores = 2\n";
    let under = "{ kind = \"fair\", weights = [1, 2, 3] }";
    refuse("sq", three, 5, under, &["3 weights for 2 cores"]);
    let many = "cores = 1000\nqueues = 1000\n";
    refuse("mq", many, 6, "1000", &["drive0 has 128 I/O queues", "io_queues"]);
    let pblk = "[drive]\npreset = \"ocssd-mlc-128pu-small\"\n[target]\nkind = \"pblk\"\n[path]\n";
    for block in ["sq", "mq"] {
        let under = format!("\"{block}\"");
        let text = format!("{pblk}block = {under}\n");
        assert_refused(&text, 6, &under, &["drive0", "pblk", "goes past the block layer"]);
    }
    assert!(parse(&format!("{pblk}block = \"raw\"\n")).is_ok());
    let job = format!("{SMALL}[[job]]\nrw = \"read\"\ngroup = 1\n");
    assert_refused(&job, 5, "1", &["groups are the block layer's"]);
}

#[test]
fn values_of_the_block_layer_are_checked_where_they_stand() {
    let refuse = |lines: &str, line, caret, says: &[&str]| {
        assert_refused(&path("mq", lines), line, caret, says);
    };
    refuse("cores = 0\n", 5, "0", &["from 1"]);
    refuse("cores = 1025\n", 5, "1025", &["from 1 to 1024"]);
    refuse("cores = \"two\"\n", 5, "\"two\"", &["a whole number"]);
    refuse("queue_depth = 0\n", 5, "0", &["from 1 to 65536"]);
    let large = "cores = 1000\nqueues = 100\nstaging = \"device\"\n";
    refuse(large, 5, "1000", &["1000 cores with 1024 requests", "places for 102400000"]);
    refuse(&format!("{large}queue_depth = 4096\n"), 8, "4096", &["smaller"]);
    assert!(parse(&path("mq", &format!("{large}queue_depth = 64\n"))).is_ok());
    refuse("timeout = 0\n", 5, "0", &["longer than 0"]);
    refuse("timeout = 30\n", 5, "30", &["a duration with its unit"]);
    refuse("staging = \"node\"\n", 5, "\"node\"", &["\"core\", \"socket\", \"device\""]);
    refuse("scheduler = \"bfq\"\n", 5, "\"bfq\"", &["\"none\", \"deadline\", \"kyber\", \"fair\""]);
    refuse("scheduler = 3\n", 5, "3", &["a table with its `kind`"]);
    refuse("scheduler = { window = \"1ms\" }\n", 5, "{ window = \"1ms\" }", &["needs `kind`"]);
    refuse(
        "[path.scheduler]\nkind = \"kyber\"\nread_expire = \"1ms\"\n",
        7,
        "read_expire",
        &["[path.scheduler] has no key `read_expire`", "read_target"],
    );
    let kyber = "[path.scheduler]\nkind = \"kyber\"\nread_target = ";
    refuse(&format!("{kyber}0\n"), 7, "0", &["`target_ns` must not be zero"]);
    refuse(&format!("{kyber}\"2h\"\n"), 7, "\"2h\"", &["a duration"]);
    let fair = "[path.scheduler]\nkind = \"fair\"\nweights = ";
    refuse(&format!("{fair}[0]\n"), 7, "[0]", &["the weight of 0 must not be zero"]);
    refuse(&format!("{fair}[1001]\n"), 7, "[1001]", &["more than 1000"]);
    refuse(&format!("{fair}7\n"), 7, "7", &["a list of numbers"]);
    let limit = "[[path.limit]]\n";
    refuse(&format!("{limit}read_iops = 5\n"), 5, "[[path.limit]]", &["needs `group`"]);
    refuse(&format!("{limit}group = 2000\n"), 6, "2000", &["0 to 1023"]);
    refuse(&format!("{limit}group = 1\n"), 5, "[[path.limit]]", &["read_iops, write_iops"]);
    refuse(&format!("{limit}group = 1\nread_iops = 0\n"), 7, "0", &["read operations"]);
    refuse(&format!("{limit}group = 1\nread_bw = \"5M\"\n"), 7, "\"5M\"", &["a bandwidth"]);
    refuse(&format!("{limit}group = 1\nread_iop = 5\n"), 7, "read_iop", &["`read_iops`"]);
    let one = format!("{limit}group = 1\nread_iops = 5\n");
    refuse(&format!("{one}{one}"), 9, "1", &["group 1 has its limits given more than once"]);
}

#[test]
fn no_text_makes_it_panic() {
    // Every prefix of a scenario, and every byte of it replaced: refused or read, never a panic.
    let text = "seed = 1\n[drive]\npreset = \"pcm\"\nname = \"ä\"\n[[job]]\nbs = \"4k\"\n";
    for end in (0..text.len()).filter(|i| text.is_char_boundary(*i)) {
        let _ = parse(&text[..end]);
        for c in ["[", "\"", "=", "é", "9", "\n"] {
            let _ = parse(&format!("{}{c}{}", &text[..end], &text[end..]));
        }
    }
}
