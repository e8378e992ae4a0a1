//! Tests of values that have the right type but are impossible: the error has the allowed range.

use super::*;

#[test]
fn write_buffers_hold_a_unit_and_less_than_the_drive() {
    // Two planes of 8 KiB pages; about 14 GiB.
    let size = |word: &str| format!("{SMALL}write_buffer.size = {word}\n");
    assert_refused(
        &size("1"),
        3,
        "1",
        &["1 bytes, smaller than a write unit of 16384 bytes", "16 KiB to"],
    );
    assert_refused(&size("16383"), 3, "16383", &["smaller than a write unit"]);
    assert!(parse(&size("16384")).is_ok());
    assert_refused(
        &size("\"100T\""),
        3,
        "\"100T\"",
        &["100 TiB, on a drive that holds 13.5 GiB", "allowed: 16 KiB to 13.5 GiB"],
    );
    assert_refused(&size("0"), 3, "0", &["the write buffer's size is 0", "kind = \"none\""]);
    let none = format!("{SMALL}write_buffer = {{ kind = \"none\", size = 0 }}\n");
    assert!(parse(&none).is_ok(), "there is none");
    // The FTL's own buffer, in the drive and on the host.
    assert_refused(
        &format!("{SMALL}ftl.write_buffer = 5\n"),
        3,
        "5",
        &["a layer's buffer of 5 bytes"],
    );
    let pblk = "[drive]\npreset = \"ocssd-mlc-128pu-small\"\n[target]\nkind = \"pblk\"\n";
    assert_refused(
        &format!("{pblk}write_buffer = \"1T\"\n"),
        5,
        "\"1T\"",
        &["1 TiB, on a drive that holds"],
    );
    assert!(parse(&format!("{pblk}write_buffer = 0\n")).is_ok(), "what the geometry needs");
    let pcm = "[drive]\npreset = \"pcm\"\nwrite_buffer = { kind = \"volatile\", size = \"9G\" }\n";
    assert_refused(pcm, 3, "\"9G\"", &["9 GiB, on a drive that holds 8 GiB"]);
}

#[test]
fn times_and_rates_beyond_this_world_are_refused() {
    for (key, word, says) in [
        ("timing.read", "\"9999999s\"", "durations from 0 ns to 600 s"),
        ("timing.erase", "\"601s\"", "durations from 0 ns to 600 s"),
        ("timing.channel", "\"1B/s\"", "0 for no limit, or 1 kB/s to 10 TB/s"),
        ("timing.channel", "\"11TB/s\"", "0 for no limit, or 1 kB/s to 10 TB/s"),
        ("controller.fetch", "\"3600s\"", "durations from 0 ns to 600 s"),
        ("controller.dma", "999", "0 for no limit, or 1 kB/s to 10 TB/s"),
        ("null.latency", "\"601s\"", "durations from 0 ns to 600 s"),
        ("errors.retention", "\"9999999999s\"", "durations from 0 ns to"),
        ("errors.ecc_bits", "4294967295", "whole numbers from 0 to 524288"),
        ("errors.ecc_bits", "4294967296", "whole numbers from 0 to 524288"),
        ("ftl.gc_window_units", "4000000000", "whole numbers from 0 to 65536"),
    ] {
        assert_refused(&format!("{SMALL}{key} = {word}\n"), 3, word, &[says]);
    }
    let list = "timing.read = [\"1us\", \"9999999s\"]\n";
    assert_refused(&format!("{SMALL}{list}"), 3, "\"9999999s\"", &["to 600 s"]);
    let host = format!("{SMALL}[host]\nsubmit_cost = \"3600s\"\n");
    assert_refused(&host, 4, "\"3600s\"", &["to 600 s"]);
    let timeout = format!("{SMALL}[path]\nqueue_model = \"mq\"\ntimeout = \"9999999999s\"\n");
    assert_refused(&timeout, 5, "\"9999999999s\"", &["durations from"]);
    for zero in ["timing.channel = 0\n", "controller.dma_bandwidth = 0\n", "timing.read = 0\n"] {
        assert!(parse(&format!("{SMALL}{zero}")).is_ok(), "{zero}");
    }
}

#[test]
fn text_that_is_printed_has_no_control_characters() {
    for text in ["title = \"a\\nb\"\n", "title = \"\\u001b[31mred\"\n", "title = \"\\u0085\"\n"] {
        let value = text.trim_start_matches("title = ").trim_end();
        assert_refused(&format!("{text}{SMALL}"), 1, value, &["without control characters"]);
    }
    assert_refused(&format!("title = \" \"\n{SMALL}"), 1, "\" \"", &["not empty"]);
    let job = format!("{SMALL}[[job]]\nname = \"a\\tb\"\nrw = \"read\"\n");
    assert_refused(&job, 4, "\"a\\tb\"", &["without control characters"]);
    // Text of a file is escaped in messages.
    for text in [
        format!("{SMALL}personality = \"\\u001b[2J\"\n"),
        format!("{SMALL}name = \"a\\u0007\"\n"),
        format!("{SMALL}\"\\u001b[2J\" = 1\n"),
        format!("{SMALL}timing.read = \"\\u001b\"\n"),
        format!("{SMALL}[target]\nkind = \"pblk\"\nname = \"\\n\"\n"),
    ] {
        let (_, _, message) = refused(&text);
        assert!(!message.chars().any(char::is_control), "{message:?}");
    }
    // A file name may contain any character.
    let s = Scenario::parse(Path::new("dir/\u{1b}[31m.toml"), SMALL).unwrap();
    assert_eq!(s.title, "\\u{1b}[31m");
    let error = Scenario::parse(Path::new("\u{1b}.toml"), "x = 1").unwrap_err().to_string();
    assert!(!error.chars().any(char::is_control), "{error:?}");
    let gone = Scenario::load(Path::new("no\n/such")).unwrap_err().to_string();
    assert!(!gone.chars().any(char::is_control), "{gone:?}");
}

#[test]
fn nothing_says_that_it_is_nothing() {
    let share = |keys: &str| format!("{SMALL}[[partition]]\nname = \"p\"\n{keys}\n");
    for (text, says) in [
        (share("size = 0"), "`size` is 0"),
        (share("sectors = 0"), "`sectors` is 0"),
        (share("pus = 0"), "`pus` is 0"),
    ] {
        let (_, _, message) = refused(&text);
        assert!(message.contains(says), "{message}");
    }
    for key in ["pus", "planes", "chunks", "pages", "page_bytes"] {
        assert_refused(&format!("{SMALL}geometry.{key} = 0\n"), 3, "0", &["is 0, but"]);
    }
}
