//! Tests of named targets, sets and paths.

// guarantee: B-22

use super::*;
use crate::{Beneath, MEMBERS_MAX};

const DRIVES: &str = "[[drive]]\nname = \"oc\"\npreset = \"femu-default\"\n\
    personality = \"open-channel\"\n[[drive]]\nname = \"a\"\npreset = \"femu-default\"\n\
    [[drive]]\nname = \"b\"\npreset = \"femu-default\"\n";
/// Lines of [`DRIVES`].
const LINES: usize = 10;

fn with(rest: &str) -> String {
    format!("{DRIVES}{rest}")
}

fn target(name: &str, rest: &str) -> String {
    format!("[[target]]\nname = \"{name}\"\ndrive = \"oc\"\n{rest}")
}

fn path(name: &str, over: &str, rest: &str) -> String {
    format!("[[path]]\nname = \"{name}\"\nover = \"{over}\"\n{rest}")
}

/// Asserts that `rest` after the drives is refused at its line `line`.
fn refuse(rest: &str, line: usize, caret: &str, says: &[&str]) {
    assert_refused(&with(rest), LINES + line, caret, says);
}

#[test]
fn every_name_finds_its_device() {
    let text = with(&format!(
        "{}{}[[set]]\nname = \"s\"\nmembers = [\"a\", \"b\"]\nstripe = \"64K\"\n{}{}{}\
         [[job]]\npath = \"two\"\nrw = \"read\"\ngroup = 3\n",
        target("left", "kind = \"pblk\"\npus = \"0-3,8\"\nover_provisioning = 0.3\n"),
        target("right", "kind = \"rrpc\"\npus = \"4-7\"\n").replace("rrpc", "pblk"),
        path("one", "left", ""),
        path(
            "two",
            "s",
            "queue_model = \"mq\"\ncores = 4\n[[path.limit]]\ngroup = 3\nread_iops = 9\n"
        )
        .replace("[[path.limit]]", "staging = \"global\"\n[[path.limit]]"),
        path("three", "right", "queue_model = \"sq\"\n"),
    ));
    let s = parse(&text).unwrap();
    let paths = s.paths();
    let found: Vec<_> = paths.iter().map(|p| (p.name.as_str(), p.over)).collect();
    let (left, right, set) = (Beneath::Target(0), Beneath::Target(1), Beneath::Set(0));
    assert_eq!(found, [("one", left), ("two", set), ("three", right)]);
    assert_eq!(s.members(set), [Beneath::Drive(1), Beneath::Drive(2)]);
    assert_eq!((s.drive_of(left), s.drive_of(set)), (0, 1));
    assert_eq!(s.composition.sets[0].stripe_bytes, 64 << 10);
    let plan = s.drive_spec(left);
    let HostTarget::Named(named) = &plan.target else { panic!("{:?}", plan.target) };
    let declared = named.declaration().unwrap();
    assert_eq!((declared.name.as_str(), declared.pus.to_string()), ("left", "0-3,8".to_owned()));
    assert_eq!(declared.options.over_provisioning, Some(0.3));
    assert_eq!(paths[1].config.block_layer.as_ref().unwrap().cores(), 4);
    assert_eq!(s.jobs[0].path, Some(("two".into(), text.lines().count() - 2)));
}

#[test]
fn without_paths_each_free_device_has_one() {
    let s = parse(
        &with("[path]\nqueue_model = \"sq\"\n").replace("personality = \"open-channel\"\n", ""),
    );
    let s = s.unwrap();
    let names = |s: &Scenario| s.paths().iter().map(|p| p.name.clone()).collect::<Vec<_>>();
    assert!(s.composition.is_empty());
    assert_eq!(names(&s), ["oc", "a", "b"]);
    assert!(s.paths().iter().all(|path| path.config == s.path));
    let rest = target("t", "kind = \"pblk\"\npus = \"1\"\n")
        + "[[set]]\nname = \"s\"\nmembers = [\"b\"]\n[path]\nqueue_model = \"mq\"\n";
    let s = parse(&with(&rest)).unwrap();
    assert_eq!(names(&s), ["a", "t", "s"]);
    // The unnamed path and target mean what they did.
    let s =
        parse("[drive]\npreset = \"femu-default\"\n[[job]]\ndrive = \"drive0\"\nrw = \"read\"\n");
    assert_eq!(s.unwrap().paths()[0].over, Beneath::Drive(0));
}

#[test]
fn a_path_over_nothing_itself_or_another_path_is_refused() {
    refuse(
        "[[path]]\nname = \"p\"\n",
        1,
        "[[path]]",
        &["needs `over`", "a drive, a target or a set"],
    );
    refuse(&path("p", "x", ""), 3, "\"x\"", &["allowed: oc, a, b"]);
    refuse(&path("p", "p", ""), 3, "\"p\"", &["\"p\" is a path, and a path is over a device"]);
    let two = path("p", "q", "") + &path("q", "p", "");
    refuse(&two, 3, "\"q\"", &["\"q\" is a path", "oc, a, b"]);
    let blocks = path("p", "oc", "") + "[[job]]\npath = \"p\"\n";
    refuse(&blocks, 5, "\"p\"", &["open-channel", "no logical blocks"]);
    let mq = path("p", "oc", "queue_model = \"mq\"\n");
    refuse(&mq, 3, "\"oc\"", &["no logical blocks for a block layer"]);
    refuse("[[path]]\nover = \"a\"\n", 1, "[[path]]", &["needs `name`"]);
    refuse(&path("p q", "a", ""), 2, "\"p q\"", &["1 to 32 letters"]);
    let twice = path("p", "a", "") + &path("p", "b", "");
    refuse(&twice, 5, "\"p\"", &["two paths are called \"p\""]);
    refuse(&path("p", "a", "wrong = 1\n"), 4, "wrong", &["no key `wrong`", "over, queue_model"]);
}

#[test]
fn a_target_and_a_member_have_one_owner() {
    let t = target("t", "kind = \"pblk\"\npus = \"0\"\n");
    let rest = t.clone() + &path("p", "t", "") + &path("q", "t", "");
    refuse(&rest, 11, "\"t\"", &["\"t\" belongs to path p", "two owners"]);
    // Several hosts of a drive that manages its flash are as many processes.
    assert_eq!(parse(&with(&(path("p", "a", "") + &path("q", "a", "")))).unwrap().paths().len(), 2);
    let set = "[[set]]\nname = \"s\"\nmembers = [\"a\", \"b\"]\n";
    refuse(&format!("{set}{}", path("p", "a", "")), 6, "\"a\"", &["\"a\" belongs to set s"]);
    let twice = format!("{set}{}", set.replace("\"s\"", "\"z\""));
    refuse(&twice, 6, "\"a\"", &["\"a\" belongs to set s"]);
    let again = format!("{set}{}{}", path("p", "s", ""), path("q", "s", ""));
    refuse(&again, 9, "\"s\"", &["\"s\" belongs to path p"]);
    // The unnamed target is the drive's own, with one write context.
    let whole =
        "[target]\nkind = \"pblk\"\n".to_owned() + &path("p", "oc", "") + &path("q", "oc", "");
    let whole = with(&whole).replace("[[drive]]\nname = \"a\"\npreset = \"femu-default\"\n", "");
    let whole = whole.replace("[[drive]]\nname = \"b\"\npreset = \"femu-default\"\n", "");
    assert_refused(&whole, 12, "\"oc\"", &["\"oc\" belongs to path p"]);
    let inline = "name = \"oc\"\ntarget = { kind = \"pblk\" }\n";
    let both = with(&t).replace("name = \"oc\"\n", inline);
    assert_refused(&both, 12, "[[target]]", &["pblk on all of its parallel units", "target t"]);
    let few = "controller.max_io_queues = 2\n";
    let text = with("").replace("name = \"a\"\n", &format!("name = \"a\"\n{few}"))
        + &path("p", "a", "")
        + &path("q", "a", "")
        + &path("r", "a", "");
    assert_refused(&text, 20, "\"a\"", &["drive a has 2 I/O queues", "max_io_queues"]);
}

#[test]
fn sets_that_are_no_stripe_are_refused() {
    let set =
        |members: &str, rest: &str| format!("[[set]]\nname = \"s\"\nmembers = {members}\n{rest}");
    refuse("[[set]]\nname = \"s\"\n", 1, "[[set]]", &["needs `members`"]);
    refuse(&set("[]", ""), 3, "[]", &["0 members", "allowed: 1 to 64"]);
    let many = format!("[{}]", vec!["\"a\""; MEMBERS_MAX + 1].join(", "));
    refuse(&set(&many, ""), 3, &many, &["65 members", "allowed: 1 to 64"]);
    refuse(&set("\"a\"", ""), 3, "\"a\"", &["a list of the names"]);
    refuse(&set("[\"a\", \"a\"]", ""), 3, "\"a\"", &["has the member \"a\" twice"]);
    refuse(&set("[\"a\", \"c\"]", ""), 3, "\"c\"", &["allowed: oc, a, b"]);
    refuse(&set("[\"a\", \"s\"]", ""), 3, "\"s\"", &["allowed: oc, a, b"]);
    refuse(&set("[\"a\", \"oc\"]", ""), 3, "\"oc\"", &["no logical blocks"]);
    let nested = set("[\"a\"]", "") + &set("[\"s\"]", "").replace("name = \"s\"", "name = \"z\"");
    refuse(&nested, 6, "\"s\"", &["a stripe of stripes is a stripe"]);
    refuse(
        &set("[\"a\"]", "").replace("\"s\"", "\"b\""),
        2,
        "\"b\"",
        &["another drive, target or set"],
    );
    for wrong in ["\"0\"", "\"1000\"", "\"513\""] {
        refuse(
            &set("[\"a\"]", &format!("stripe = {wrong}\n")),
            4,
            wrong,
            &["multiples of the sector"],
        );
    }
    let other = with(&set("[\"a\", \"n\"]", "")).replace(
        "[[set]]",
        "[[drive]]\nname = \"n\"\npersonality = \"null\"\ncapacity = \"1G\"\n[drive.geometry]\n\
         sector_bytes = 512\n[[set]]",
    );
    let error = parse(&other).unwrap_err().to_string();
    assert!(error.contains("sectors of 512 bytes, and \"a\" of 4096"), "{error}");
}

#[test]
fn targets_that_cannot_be_on_their_drive_are_refused() {
    let pblk = |pus: &str| format!("kind = \"pblk\"\npus = \"{pus}\"\n");
    refuse("[[target]]\nkind = \"pblk\"\n", 1, "[[target]]", &["needs `name`"]);
    refuse(
        "[[target]]\nname = \"t\"\nkind = \"pblk\"\n",
        1,
        "[[target]]",
        &["needs `drive`", "oc, a, b"],
    );
    refuse(&target("t", &pblk("64")), 5, "\"64\"", &["units from 0 to 63"]);
    refuse(&target("t", &pblk("")), 5, "\"\"", &["units from 0 to 63"]);
    let two = target("t", &pblk("0-3")) + &target("u", &pblk("3-4"));
    refuse(&two, 10, "\"3-4\"", &["target t of drive oc has the parallel units 3, too"]);
    let same = target("t", &pblk("0")) + &target("t", &pblk("1"));
    refuse(&same, 7, "\"t\"", &["another drive, target or set"]);
    refuse(
        &target("t", "kind = \"pblk\"\n"),
        2,
        "\"t\"",
        &["the drive forgets it", "data = \"file\""],
    );
    refuse(&target("t", "pus = \"1\"\n"), 4, "\"1\"", &["its kind is not known"]);
    refuse(&target("t", "kind = \"none\"\npus = \"1\"\n"), 1, "[[target]]", &["is no device"]);
    refuse(&target("t", &(pblk("1") + "shards = 2\n")), 6, "2", &["shards are for a whole one"]);
    let block = target("t", &pblk("1")).replace("\"oc\"", "\"a\"");
    refuse(&block, 4, "\"pblk\"", &["target t manages the flash itself", "does not expose it"]);
    let rrpc = target("t", &pblk("1").replace("pblk", "rrpc"));
    refuse(&rrpc, 4, "\"rrpc\"", &["device_l2p"]);
    // Keys and vectors are not blocks. Jobs on keys need no block layer.
    let over = |kind: &str, rest: &str| {
        target("t", &pblk("1").replace("pblk", kind)) + &path("p", "t", rest)
    };
    let layer = "queue_model = \"sq\"\n";
    for (kind, rest) in [("kv", layer), ("ppa", layer)] {
        let says = [&format!("target t is a {kind}"), "no logical blocks"];
        refuse(&over(kind, rest), 8, "\"t\"", &says);
    }
    for kind in ["kv", "ppa"] {
        assert_eq!(parse(&with(&over(kind, ""))).unwrap().paths()[0].over, Beneath::Target(0));
    }
    // Jobs on parallel units say which, and all others need logical blocks.
    let units = over("ppa", "") + "[[job]]\npath = \"p\"\nrw = \"write\"\nbs = \"64k\"\n";
    refuse(&units, 10, "\"p\"", &["target t is a ppa", "no logical blocks", "`pus`"]);
    let raw = path("p", "oc", "") + "[[job]]\nrw = \"write\"\n";
    refuse(&raw, 5, "rw = \"write\"", &["drive oc is open-channel", "no logical blocks", "`pus`"]);
    parse(&with(&(units + "pus = \"1\"\n"))).unwrap();
    parse(&with(&(raw + "pus = \"0\"\n"))).unwrap();
    // A write pointer has one owner.
    let twice = path("p", "oc", "") + &path("q", "oc", "");
    refuse(&twice, 6, "\"oc\"", &["belongs to path p"]);
    let beside = target("t", &pblk("1")) + &path("p", "oc", "");
    refuse(&beside, 8, "\"oc\"", &["belongs to target t"]);
    // Without paths, `[path]` is over it as well; physical addresses have none.
    let kv = target("t", &pblk("1").replace("pblk", "kv"));
    refuse(
        &format!("{kv}[path]\n{layer}"),
        7,
        "\"sq\"",
        &["target t is a kv", "no logical blocks"],
    );
    let ppa = parse(&with(&kv.replace("\"kv\"", "\"ppa\""))).unwrap();
    assert_eq!(ppa.paths().iter().map(|p| p.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    let set = target("t", &pblk("1").replace("pblk", "kv"))
        + "[[set]]\nname = \"s\"\nmembers = [\"t\"]\n";
    refuse(&set, 8, "\"t\"", &["target t is a kv"]);
    let queues = target("t", &pblk("0-3"))
        + &path("p", "t", "queue_model = \"mq\"\ncores = 4\nqueues = 2\n");
    refuse(&queues, 11, "2", &["target t on drive oc has 1 write context", "allowed: 1 to 1"]);
}

#[test]
fn a_job_is_on_a_path() {
    let paths = path("p", "a", "") + &path("q", "b", "queue_model = \"sq\"\n");
    let job = |keys: &str| format!("{paths}[[job]]\n{keys}rw = \"read\"\n");
    refuse(&job("path = \"r\"\n"), 9, "\"r\"", &["allowed: p, q"]);
    refuse(&job("drive = \"a\"\n"), 9, "\"a\"", &["name a `path` instead"]);
    refuse(&job(""), 9, "rw = \"read\"", &["job job1 has no path", "p, q"]);
    refuse(&job("path = \"p\"\ngroup = 1\n"), 10, "1", &["groups are the block layer's"]);
    assert_eq!(parse(&with(&job("path = \"q\"\ngroup = 1\n"))).unwrap().jobs[0].group, Group(1));
    let one = format!("{}[[job]]\nrw = \"read\"\n", path("p", "a", ""));
    assert_eq!(parse(&with(&one)).unwrap().jobs[0].path, None, "the only path");
    let plain = "[drive]\npreset = \"femu-default\"\n[[job]]\npath = \"p\"\nrw = \"read\"\n";
    assert_refused(plain, 4, "\"p\"", &["the scenario has none", "name a `drive`"]);
}
