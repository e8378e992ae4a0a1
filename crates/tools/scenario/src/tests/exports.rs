//! Tests of `[[export]]`.

// guarantee: B-29

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::*;
use crate::{ExportAddress, ExportSpec};

/// Two targets and a key-value store on an open-channel drive, a set of two drives, a drive with two
/// paths, and a path with a block layer.
const DEVICES: &str = "[[drive]]\nname = \"oc\"\npreset = \"femu-default\"\npersonality = \"open-channel\"\n\
    [[drive]]\nname = \"a\"\npreset = \"femu-default\"\n[[drive]]\nname = \"b\"\npreset = \"femu-default\"\n\
    [[drive]]\nname = \"c\"\npreset = \"femu-default\"\n\
    [[target]]\nname = \"left\"\ndrive = \"oc\"\nkind = \"pblk\"\npus = \"0-3\"\n\
    [[target]]\nname = \"keys\"\ndrive = \"oc\"\nkind = \"kv\"\npus = \"4-7\"\n\
    [[set]]\nname = \"s\"\nmembers = [\"a\", \"b\"]\n\
    [[path]]\nname = \"l\"\nover = \"left\"\n[[path]]\nname = \"k\"\nover = \"keys\"\n\
    [[path]]\nname = \"striped\"\nover = \"s\"\n[[path]]\nname = \"c1\"\nover = \"c\"\n\
    [[path]]\nname = \"c2\"\nover = \"c\"\n[[path]]\nname = \"layered\"\nover = \"c\"\nqueue_model = \"mq\"\n";

fn export(path: &str, rest: &str) -> String {
    format!("[[export]]\npath = \"{path}\"\n{rest}")
}

fn exports(text: &str) -> std::result::Result<Vec<ExportSpec>, String> {
    let parsed = Scenario::parse(Path::new("folder/s.toml"), &format!("{DEVICES}{text}"));
    parsed.map(|scenario| scenario.serving.exports).map_err(|error| error.to_string())
}

#[test]
fn every_export_has_a_path_and_an_address() {
    let found = exports(
        &[
            export("l", "nbd = \"unix:nbd.sock\"\n"),
            export("striped", "nbd = \"unix:nbd.sock\"\nname = \"wide\"\nread_only = true\n"),
            export("l", "nbd = \"tcp:[::1]:10809\"\n"),
            export("c1", "socket = \"/run/c.sock\"\n"),
        ]
        .concat(),
    )
    .unwrap();
    let nbd = |endpoint: &str, name: &str, read_only| ExportAddress::Nbd {
        endpoint: endpoint.parse().unwrap(),
        name: name.into(),
        read_only,
    };
    assert_eq!(found[0].address, nbd("unix:folder/nbd.sock", "l", false), "beside the scenario");
    assert_eq!(found[1].address, nbd("unix:folder/nbd.sock", "wide", true));
    assert_eq!(found[2].address, nbd("tcp:[::1]:10809", "l", false));
    assert_eq!(found[3].address, ExportAddress::Socket(PathBuf::from("/run/c.sock")));
    let paths: Vec<_> = found.iter().map(|export| export.path.as_str()).collect();
    assert_eq!(paths, ["l", "striped", "l", "c1"]);
    // The only path needs no name, and without [[path]] a path has that of its drive.
    let text = "[drive]\npreset = \"femu-default\"\n[[export]]\nnbd = \"tcp:localhost:1\"\n";
    let only = parse(text).unwrap();
    assert_eq!(only.serving.exports[0].path, "drive0");
}

#[test]
fn an_export_that_cannot_be_is_refused_with_its_place() {
    let nbd = "nbd = \"unix:n\"\n";
    let socket = "socket = \"s\"\n";
    for (text, says) in [
        (format!("[[export]]\n{nbd}"), "there are several: l, k, striped"),
        (export("strip", nbd), "striped"),
        (export("k", nbd), "target keys is a kv, which has no logical blocks"),
        (export("l", ""), "has no address"),
        (export("l", &format!("{nbd}{socket}")), "`nbd` and `socket`"),
        (export("l", "nbd = \"localhost:10809\"\n"), "unix:FILE"),
        (export("l", "nbd = \"tcp:localhost:70000\"\n"), "tcp:HOST:PORT"),
        (export("l", &format!("nbd = \"unix:{}\"\n", "x".repeat(101))), "1 to 107 bytes"),
        (export("c1", &format!("socket = \"{}\"\n", "x".repeat(101))), "1 to 107 bytes"),
        (export("c1", "socket = \"\"\n"), "1 to 107 bytes"),
        (export("l", &format!("{nbd}name = \"\"\n")), "not empty"),
        (export("l", &format!("{nbd}name = \"{}\"\n", "x".repeat(33))), "1 to 32 bytes"),
        (export("c1", &format!("{socket}read_only = true\n")), "`read_only` is about NBD"),
        (export("c1", &format!("{socket}name = \"x\"\n")), "`name` is about NBD"),
        (export("l", socket), "path l has target left on the host"),
        (export("striped", socket), "path striped has set s on the host"),
        (export("layered", socket), "path layered has a block layer on the host"),
        (export("l", nbd).repeat(2), "two exports at unix:folder/n are named \"l\""),
        (
            export("l", nbd) + &export("striped", &format!("{nbd}name = \"l\"\n")),
            "two exports at unix:folder/n are named \"l\"",
        ),
        (
            export("l", nbd) + &export("l", "nbd = \"unix:m\"\nread_only = true\n"),
            "one name and one mode",
        ),
        (export("c1", socket).repeat(2), "path c1 is exported at folder/s twice"),
        (export("c1", socket) + &export("c2", socket), "the drive of path c2 is shared"),
        (
            export("c1", socket) + &export("c2", "socket = \"t\"\n"),
            "the drive of path c2 is shared at folder/s already",
        ),
        (export("l", "nbd = \"unix:s\"\n") + &export("c1", socket), "cannot both listen"),
        (export("c1", socket) + &export("l", "nbd = \"unix:s\"\n"), "cannot both listen"),
        (export("l", &format!("{nbd}port = 1\n")), "port"),
    ] {
        let error = exports(&text).unwrap_err();
        let placed = error.starts_with("folder/s.toml:");
        assert!(placed && error.contains(says), "{text}{error}");
    }
}

/// Each path and export is compared with all others, which must not take long.
#[test]
fn ten_thousand_paths_and_exports_are_read_in_bounded_time() {
    let count = 10_000;
    let drive = "[drive]\npersonality = \"null\"\ncapacity = \"32M\"\n\
                 controller.max_io_queues = 20000\n";
    let paths = (0..count).map(|i| format!("[[path]]\nname = \"p{i}\"\nover = \"drive0\"\n"));
    let exports = (0..count).map(|i| export(&format!("p{i}"), "nbd = \"unix:n\"\n"));
    let text = drive.to_owned() + &paths.collect::<String>() + &exports.collect::<String>();
    let start = Instant::now();
    let scenario = parse(&text).unwrap();
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    assert_eq!((scenario.paths().len(), scenario.serving.exports.len()), (count, count));
    assert_eq!(scenario.serving.exports[count - 1].path, format!("p{}", count - 1));
}

/// A scenario with some of its paths has the devices beneath them, and only their exports.
#[test]
fn a_scenario_is_restricted_to_paths() {
    let text = export("l", "nbd = \"unix:n\"\n") + &export("striped", "nbd = \"unix:n\"\n");
    let whole = parse(&format!("{DEVICES}{text}")).unwrap();
    let paths: Vec<_> =
        whole.paths().into_iter().filter(|path| ["striped", "c2"].contains(&&*path.name)).collect();
    let part = whole.restricted_to(&paths);
    let names = |scenario: &Scenario| -> Vec<String> {
        scenario.drives.iter().map(|drive| drive.config.name.clone()).collect()
    };
    assert_eq!(names(&part), ["a", "b", "c"]);
    assert!(part.composition.targets.is_empty() && part.composition.sets.len() == 1);
    let over: Vec<_> =
        part.paths().iter().map(|path| part.device_name(path.over).to_owned()).collect();
    assert_eq!(over, ["s", "c"]);
    assert_eq!(part.members(part.paths()[0].over).len(), 2);
    let exported: Vec<_> = part.serving.exports.iter().map(|export| export.path.as_str()).collect();
    assert_eq!(exported, ["striped"]);
    // A path to one target is that of its drive, whose name the export has then.
    let alone = whole.reduced_to(&whole.select_path(Some("l")).unwrap());
    assert_eq!((alone.serving.exports.len(), alone.serving.exports[0].path.as_str()), (1, "oc"));
    assert!(
        matches!(&alone.serving.exports[0].address, ExportAddress::Nbd { name, .. } if name == "l")
    );
}
