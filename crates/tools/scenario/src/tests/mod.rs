//! Tests of valid scenarios, and of invalid ones: each error has file, line and the allowed values.

mod block_layer;
mod completion;
mod composition;
mod datasheet;
mod drive_kinds;
mod drive_rules;
mod exports;
mod ftl_choices;
mod host_machine;
mod precondition;
mod processes;
mod ranges;
mod renamed;
mod target_rules;

use std::path::Path;

use block::sched::{KyberConfig, RateLimit, SchedulerConfig};
use block::{Group, QueueModel, QueueTopology, StagingScope, Timeouts};
use controller::{ArbitrationConfig, CmbConfig, PersonalityKind, PuScheduling, WriteBuffer};
use ftl::{GcReadPriority, LineMetadata, P2lLocation, RateLimiterKind, VictimPolicyKind};
use media::{CellType, DataStore, MediaConfig};
use time::Nanos;

use super::*;

fn parse(text: &str) -> Result<Scenario, ScenarioError> {
    Scenario::parse(Path::new("dir/s.toml"), text)
}

/// Returns the line, the text under the caret, and the complete message.
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
write_buffer = "64M"

[path]
queue_model = "raw"
completion = "poll"

[host]
submit_cost = "850ns"

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
    let HostTarget::Pblk(pblk) = &drive.target else { panic!("{:?}", drive.target) };
    assert_eq!((pblk.active_pus, pblk.write_buffer_sectors), (4, 16_384));
    let capacity = drive.capacity.unwrap();
    // The journal takes the chunks of one line.
    assert_eq!((capacity.journal_chunks, capacity.lines), (7, 1067 * 32 - 2));
    // Units of 16 sectors of 4 KB: one for the header; two for the footer of 48 + 16 + 4 x 256 x (4
    // + 64) bytes.
    assert_eq!((capacity.line_metadata_units, capacity.line_sectors), (3, 4 * 4096 - 3 * 16));
    // Reserved: two lines for GC, two open, one for padding.
    assert_eq!(capacity.physical_sectors(), (1067 * 32 - 7) * (4 * 4096 - 3 * 16));
    assert!((capacity.over_provisioning() - 0.11).abs() < 1e-4);
    assert_eq!(nand(&s).host_geometry().mw_cunits, 7 * 16);
    let submit_cost = Some(Nanos(850));
    assert_eq!(s.host, HostConfig { submit_cost, ..HostConfig::default() });
    let twice = Overwrite { amount: Amount::Times(2.0), words: Vec::new() };
    let (fill, overwrite) = (Fill::Sequential, vec![twice]);
    let expected = Precondition { fill, overwrite, ..Precondition::default() };
    assert_eq!(s.precondition, expected);
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
pu_scheduling = "read-priority"
suspend = { suspend = "20us", max_per_operation = 3 }
page_register = false
cache_program = false
cache_read = true
dedicated_read_register = true
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
factory_bad_ratio = 0.01
[drive.write_buffer]
kind = "power-loss-protected"
size = "4M"
[drive.controller]
fetch_latency = "500ns"
dma_bandwidth = "3.2GB/s"
dma_in_bandwidth = "3GB/s"
max_io_queues = 8
doorbell_buffer = true
arbitration = { kind = "weighted", high = 3 }
[drive.ftl]
over_provisioning = 0.28
victim_policy = "fifo"
separate_gc_stream = false
"#,
    )
    .unwrap();
    let c = &s.drives[0].config;
    assert_eq!(c.name, "fast");
    let m = nand(&s);
    assert_eq!((m.cell, m.geometry.page_bytes, m.geometry.oob_bytes), (CellType::Tlc, 16_384, 32));
    assert_eq!(m.timing.read[1], Nanos(77_500));
    assert_eq!(m.timing.read[3], Nanos(106_000), "beyond the cell's bits, like the last");
    assert_eq!(m.timing.channel_bytes_per_sec, 1_200_000_000);
    assert_eq!(m.data, DataStore::File("dir/drive.img".into()));
    assert_eq!(m.errors.factory_bad, 0.01);
    assert_eq!((c.page_register, c.cache_program), (false, false));
    assert_eq!(
        c.transfers,
        controller::TransferConfig {
            cache_read: true,
            dedicated_read_register: true,
            by_page: true
        }
    );
    assert_eq!(c.controller.write_bytes_per_sec(), 3_000_000_000);
    let PuScheduling::ReadPriority { suspend: Some(suspend) } = c.pu_scheduling else { panic!() };
    assert_eq!((suspend.suspend, suspend.max_per_operation), (Nanos(20_000), 3));
    assert_eq!(c.write_buffer, WriteBuffer::PowerLossProtected { bytes: 4 << 20 });
    assert_eq!(c.controller.fetch_latency, Nanos(500));
    assert_eq!((c.controller.max_io_queues, c.controller.doorbell_buffer), (8, true));
    assert!(matches!(
        c.controller.arbitration,
        ArbitrationConfig::Weighted { high: 3, low: 1, .. }
    ));
    assert_eq!((c.ftl.victim_policy, c.ftl.hot_cold), (VictimPolicyKind::Fifo, false));
}

#[test]
fn an_interface_spelled_out() {
    let drive = "[drive]\npreset = \"ocssd-mlc-128pu-small\"\n";
    let s = parse(&format!(
        "{drive}suspend_hint = {{ resume = \"3us\" }}\ndevice_l2p = true\ncmb = \"64M\"\n\
         cmb_persistent = true\nerrors = {{ read_retries = 5, retry_error_fraction = 0.6 }}\n\
         data = \"memory\"\npersonality = \"open-channel\"\n"
    ))
    .unwrap();
    let c = &s.drives[0].config;
    let hint = c.open_channel.suspend_on_hint.unwrap();
    assert_eq!((hint.suspend, hint.resume), (Nanos(25_000), Nanos(3_000)));
    assert!(c.open_channel.device_l2p);
    assert_eq!(c.controller.cmb, Some(CmbConfig { bytes: 64 << 20, protected: true }));
    assert_eq!((nand(&s).errors.read_retries, nand(&s).errors.retry_error_fraction), (5, 0.6));
    c.check().unwrap();
    // Disabled by default.
    let c = &parse(drive).unwrap().drives[0].config;
    assert_eq!(c.open_channel, controller::OpenChannelConfig::default());
    assert_eq!(c.controller.cmb, None);

    let open = format!("{drive}personality = \"open-channel\"\n");
    for (text, line, caret, says) in [
        (format!("{SMALL}suspend_hint = true\n"), 3, "true", "remove `suspend_hint`"),
        (format!("{SMALL}device_l2p = true\n"), 3, "true", "remove `device_l2p`"),
        (format!("{open}data = \"none\"\ndevice_l2p = true\n"), 5, "true", "keeps nothing"),
        (format!("{open}cmb_persistent = true\n"), 4, "true", "set cmb to its size"),
        (format!("{open}cmb = 5000\n"), 4, "5000", "multiple of 4k"),
        (format!("{open}cmb = \"1T\"\n"), 4, "\"1T\"", "up to 64G"),
        (format!("{open}suspend_hint = 3\n"), 4, "3", "max_per_operation"),
        (format!("{open}errors = {{ read_retries = 1001 }}\n"), 4, "1001", "0 to 1000"),
        (format!("{open}errors = {{ retry_error_fraction = 2 }}\n"), 4, "2", "0 to 1"),
    ] {
        assert_refused(&text, line, caret, &[says]);
    }
    let small = "geometry = { oob_bytes = 8 }\ndata = \"memory\"\ndevice_l2p = true\n";
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
        &format!("{SMALL}[paht]\nqueue_model = \"raw\"\n"),
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
fn a_target_without_blocks_needs_a_name() {
    for kind in ["kv", "ppa"] {
        assert_refused(
            &format!("{SMALL}[target]\nkind = \"{kind}\"\n"),
            4,
            &format!("\"{kind}\""),
            &["has no logical blocks", "declare it as [[target]], with a `name`"],
        );
    }
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
    // More chunks than the address format can represent in 32 bits, with channels and PUs of 16 and
    // more.
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
    // The user's setting is the cause, although the number comes from the preset.
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
    // The journal takes one line, and five are reserved: two for GC, two open, one for padding.
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
        &format!("{SMALL}ftl.gc_low_watermark = 64\n"),
        3,
        "64",
        &["nothing is left", "smaller gc_low_watermark"],
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
        &["\"proportional\"", "\"pid\""],
    );
    assert_refused(
        &format!("{ocssd}rate_limiter = {{ kind = \"pid\", kp = 101 }}\n"),
        5,
        "101",
        &["0 to 100"],
    );
    assert_refused(
        &format!("{ocssd}rate_limiter = {{ kind = \"proportional\", kp = 1 }}\n"),
        5,
        "kp",
        &["has no key `kp`"],
    );
    assert_refused(
        &format!("{ocssd}gc_read_priority = \"yes\"\n"),
        5,
        "\"yes\"",
        &["\"per-pu\"", "\"global\""],
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
        &format!("{SMALL}pu_scheduling = \"fifo\"\nsuspend = true\n"),
        4,
        "true",
        &["suspends nothing"],
    );
    assert_refused(&format!("{SMALL}capacity = \"1T\"\n"), 3, "\"1T\"", &["geometry.chunks"]);
    assert_refused(
        "[drive]\npreset = \"tlc-2020s-oneshot\"\npaired_page_distance = 3\n",
        3,
        "3",
        &["paired_page_distance = 0"],
    );
}

#[test]
fn flushes_reach_the_host_only_with_an_image() {
    let file = format!("{SMALL}data = \"file\"\npath = \"drive.img\"\n");
    let data = |text: &str| nand(&parse(text).unwrap()).data.clone();
    let path = std::path::PathBuf::from("dir/drive.img");
    assert_eq!(data(&file), DataStore::File(path.clone()));
    assert_eq!(data(&format!("{file}flush = \"process\"\n")), DataStore::File(path.clone()));
    assert_eq!(data(&format!("{file}flush = \"host\"\n")), DataStore::DurableFile(path));
    let host = "flush = \"host\"\n";
    assert_refused(
        &format!("{SMALL}{host}"),
        3,
        "\"host\"",
        &["the drive has none", "data = \"file\""],
    );
    assert_refused(
        &format!("{file}flush = \"disk\"\n"),
        5,
        "\"disk\"",
        &["\"process\"", "\"host\""],
    );
    assert_refused(
        &format!("{file}{host}personality = \"open-channel\"\ndevice_l2p = true\n"),
        7,
        "true",
        &["`device_l2p` is in a file that flush = \"host\" does not cover"],
    );
    assert_refused(
        &format!("{file}{host}cmb = \"64k\"\ncmb_persistent = true\n"),
        7,
        "true",
        &["`cmb_persistent` is in a file"],
    );
    assert_refused(
        &format!(
            "[drive]\npreset = \"pcm\"\ndata = \"file\"\npath = \"x\"\n{host}geometry.sector_bytes = 8192\n"
        ),
        5,
        "\"host\"",
        &["a crash of the host may tear a sector"],
    );
    assert_refused(
        &format!("[drive]\nkind = \"file\"\npath = \"x\"\n{host}"),
        4,
        "flush",
        &["kind = \"file\""],
    );
}

#[test]
fn memory_for_data_is_allocated_at_the_start_on_request() {
    let text = format!("{SMALL}prealloc = \"1M\"\n");
    assert_eq!(nand(&parse(&text).unwrap()).data, DataStore::Preallocated(1 << 20));
    let pcm = parse("[drive]\npreset = \"pcm\"\nprealloc = \"4k\"\n").unwrap();
    assert_eq!(*pcm.drives[0].config.media.data(), DataStore::Preallocated(4096));
    let none = parse(&format!("{SMALL}prealloc = 0\n")).unwrap();
    assert_eq!(nand(&none).data, DataStore::Memory);
    for keeps in ["data = \"none\"\n", "data = \"file\"\npath = \"x\"\n"] {
        let line = 3 + keeps.lines().count();
        let text = format!("{SMALL}{keeps}prealloc = \"1M\"\n");
        assert_refused(&text, line, "\"1M\"", &["keeps none in memory", "data = \"memory\""]);
    }
    let null =
        "[drive]\npersonality = \"null\"\nmedia = \"null\"\ncapacity = \"1M\"\nprealloc = \"4k\"\n";
    assert_refused(null, 5, "\"4k\"", &["keeps none in memory"]);
    for kind in ["ahci", "file", "kernel"] {
        let text = format!("[drive]\nkind = \"{kind}\"\nprealloc = \"4k\"\n");
        assert_refused(&text, 3, "prealloc", &[kind]);
    }
}

#[test]
fn the_latency_monitor_has_four_thresholds() {
    let text = |value: &str| format!("{SMALL}controller = {{ latency_monitor = {value} }}\n");
    let monitor =
        |value: &str| parse(&text(value)).unwrap().drives[0].config.controller.latency_monitor;
    let thresholds = [5, 10, 20, 1_280].map(Nanos::from_millis);
    assert_eq!(monitor("[\"5ms\", \"10ms\", \"20ms\", \"1280ms\"]"), Some(thresholds));
    assert_eq!(monitor("false"), None);
    for bad in [
        "true",
        "[\"5ms\"]",
        "[\"5ms\", \"10ms\", \"10ms\", \"20ms\"]",
        "[\"5ms\", \"11ms\", \"15ms\", \"20ms\"]",
        "[\"5ms\", \"10ms\", \"15ms\", \"1285ms\"]",
    ] {
        assert_refused(&text(bad), 3, bad, &["multiples of 5 ms up to 1280 ms"]);
    }
}

#[test]
fn no_text_makes_it_panic() {
    // Every prefix of a scenario, and the scenario with every byte replaced: refused or accepted,
    // never a panic.
    let text = "seed = 1\n[drive]\npreset = \"pcm\"\nname = \"ä\"\n[[job]]\nbs = \"4k\"\n";
    for end in (0..text.len()).filter(|i| text.is_char_boundary(*i)) {
        let _ = parse(&text[..end]);
        for c in ["[", "\"", "=", "é", "9", "\n"] {
            let _ = parse(&format!("{}{c}{}", &text[..end], &text[end..]));
        }
    }
}
