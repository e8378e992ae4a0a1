//! Tests of the flash management's keys: FTLs, targets, their scrubs and their maps.

use super::*;

#[test]
fn a_scrub_has_a_rate_and_is_that_of_who_manages_the_flash() {
    let drive = "[drive]\npreset = \"ocssd-mlc-128pu-small\"\npersonality = \"open-channel\"\n\
                 data = \"memory\"\nerrors.retention_doubling_time = \"9s\"\nerrors.read_disturb_doubling = 7\n";
    let target = "[target]\nkind = \"pblk\"\nstatic_wear_leveling = 50\n";
    let patrol = "scrub = { rate = \"1MB/s\", min_age = \"60s\" }\n";
    let s = parse(&format!("{drive}{target}{patrol}")).unwrap();
    let plan = &s.drives[0];
    let HostTarget::Pblk(pblk) = &plan.target else { panic!("{:?}", plan.target) };
    assert_eq!(pblk.static_wear_leveling, 50);
    let patrol_plan = plan.scrub.unwrap();
    assert_eq!((patrol_plan.sectors_per_sec, patrol_plan.cold_after.0), (245, 60_000_000_000));
    let media::MediaConfig::Nand(nand) = &plan.config.media else { panic!("flash") };
    assert_eq!((nand.errors.retention.0, nand.errors.disturb_reads), (9_000_000_000, 7));
    assert!(parse(&format!("{drive}{target}")).unwrap().drives[0].scrub.is_none());
    let no_rate = "scrub = { min_age = \"60s\" }\n";
    assert_refused(&format!("{drive}{target}{no_rate}"), 10, "{ min_age = \"60s\" }", &["rate"]);
    let rrpc = "device_l2p = true\n[target]\nkind = \"rrpc\"\n";
    let s = parse(&format!("{drive}{rrpc}{patrol}")).unwrap();
    assert_eq!(s.drives[0].scrub.map(|p| p.sectors_per_sec), Some(245));
    let named = drive.replace("memory\"", "file\"\npath = \"x.img\"");
    assert_refused(
        &format!("{named}[target]\nname = \"db\"\nkind = \"kv\"\n{patrol}"),
        11,
        "{ rate = \"1MB/s\", min_age = \"60s\" }",
        &["only pblk and rrpc", "remove `scrub`"],
    );
    // The scrub of the drive's own FTL is a key of the controller.
    let own = "controller.scrub = { rate = \"1MB/s\", interval = \"60s\" }\n";
    let block = drive.replace("open-channel", "block");
    let config = parse(&format!("{block}{own}")).unwrap().drives[0].config.controller;
    let own_patrol = config.scrub.unwrap();
    assert_eq!(
        (own_patrol.sectors_per_sec, own_patrol.pass_interval_min),
        (245, Nanos::from_secs(60))
    );
    assert!(parse(&block).unwrap().drives[0].config.controller.scrub.is_none());
    let at = "{ rate = \"1MB/s\", interval = \"60s\" }";
    assert_refused(&format!("{drive}{own}{target}"), 7, at, &["manages its flash", "[target]"]);
    let null = "[drive]\npersonality = \"null\"\ncapacity = \"1G\"\n";
    assert_refused(&format!("{null}{own}"), 4, at, &["only a drive that manages its flash"]);
    let no_rate = "controller.scrub = { interval = \"60s\" }\n";
    assert_refused(&format!("{block}{no_rate}"), 7, "{ interval = \"60s\" }", &["`rate`"]);
}

#[test]
fn rrpc_has_the_thesis_choices_and_needs_a_map() {
    let drive = "[drive]\npreset = \"ocssd-mlc-128pu-small\"\npersonality = \"open-channel\"\n\
                 data = \"memory\"\n";
    let target = "[target]\nkind = \"rrpc\"\nactive_pus = 8\n";
    let s = parse(&format!("{drive}device_l2p = true\n{target}")).unwrap();
    let plan = &s.drives[0];
    let HostTarget::Rrpc(rrpc) = &plan.target else { panic!("{:?}", plan.target) };
    assert_eq!(
        (rrpc.victim_policy, rrpc.dynamic_wear_leveling),
        (VictimPolicyKind::CostWear, true)
    );
    assert_eq!(rrpc.active_pus, 8);
    assert!(plan.is_block_device() && plan.capacity.is_some());
    let other = "victim_policy = \"greedy\"\ndynamic_wear_leveling = false\n";
    let s = parse(&format!("{drive}device_l2p = true\n{target}{other}")).unwrap();
    let HostTarget::Rrpc(rrpc) = &s.drives[0].target else { panic!("{:?}", s.drives[0].target) };
    assert_eq!((rrpc.victim_policy, rrpc.dynamic_wear_leveling), (VictimPolicyKind::Greedy, false));
    assert_refused(
        &format!("{drive}{target}"),
        6,
        "\"rrpc\"",
        &["this drive keeps none", "set device_l2p = true"],
    );
}

#[test]
fn metadata_of_lines_and_p2l_are_choices() {
    let drive = "[drive]\npreset = \"ocssd-mlc-128pu-small\"\npersonality = \"open-channel\"\n\
                 data = \"memory\"\n";
    let pblk = format!("{drive}[target]\nkind = \"pblk\"\nactive_pus = 8\n");
    let of = |keys: &str| {
        let s = parse(&format!("{pblk}{keys}")).unwrap();
        let HostTarget::Pblk(config) = s.drives[0].target.clone() else { panic!("not pblk") };
        (config.line_metadata, config.p2l_location, s.drives[0].capacity.unwrap().logical_sectors)
    };
    let (with, map, sectors) = of("line_metadata = true\n");
    assert_eq!((with, map), (LineMetadata::On, P2lLocation::Memory));
    let media = of("line_metadata = true\np2l = \"media\"\n");
    assert_eq!(media, (LineMetadata::On, P2lLocation::Media, sectors));
    // Default, and without metadata.
    assert_eq!(of(""), (LineMetadata::Auto, P2lLocation::Memory, sectors));
    let (without, _, more) = of("line_metadata = false\n");
    assert!(without == LineMetadata::Off && more > sectors, "{more} {sectors}");
    assert_refused(
        &format!("{pblk}line_metadata = false\np2l = \"media\"\n"),
        9,
        "\"media\"",
        &["lines have no metadata", "line_metadata = true"],
    );
    assert_refused(
        &format!("{drive}device_l2p = true\n[target]\nkind = \"rrpc\"\nline_metadata = true\n"),
        8,
        "true",
        &["this drive keeps the map", "allowed: false"],
    );
}

#[test]
fn lines_too_small_for_metadata_have_none_or_the_scenario_is_refused() {
    // In lines of 16 units of one page, metadata would take two units.
    let small = "[drive]\npreset = \"femu-default\"\ngeometry.channels = 1\ngeometry.pus = 1\n\
                 geometry.pages = 16\ngeometry.chunks = 400\npersonality = \"open-channel\"\n\
                 [target]\nkind = \"pblk\"\n";
    for key in ["", "line_metadata = \"auto\"\n", "line_metadata = false\n"] {
        let s = parse(&format!("{small}{key}")).unwrap();
        assert_eq!(s.drives[0].capacity.unwrap().line_metadata_units, 0, "{key}");
    }
    assert_refused(
        &format!("{small}line_metadata = true\n"),
        10,
        "true",
        &["it takes 2 of a line's 16 write units", "\"auto\"", "active_pus"],
    );
    assert_refused(
        &format!("{small}p2l = \"media\"\n"),
        10,
        "\"media\"",
        &["does not fit lines of this size", "larger chunks"],
    );
    assert_refused(
        &format!("{small}line_metadata = \"sometimes\"\n"),
        10,
        "\"sometimes\"",
        &["auto"],
    );
    // The drive's own FTL has none by default.
    assert_refused(&format!("{small}line_metadata = 1\n"), 10, "1", &["true, false or \"auto\""]);
    let block = small.replace("open-channel", "block").replace("[target]\nkind = \"pblk\"\n", "");
    assert_eq!(parse(&block).unwrap().drives[0].config.ftl.line_metadata, LineMetadata::Off);
    assert_refused(
        &format!("{block}[drive.ftl]\np2l = \"media\"\n"),
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
    // Every shard reserves lines of its own, of a quarter of the width.
    assert_eq!((cut.reserved_lines, cut.written_pus(128)), (4 * whole.reserved_lines, 128));
    let share = cut.logical_sectors as f64 / whole.logical_sectors as f64;
    assert!((0.95..1.05).contains(&share), "{share}");
    assert_refused(&pblk("shards = 0\n"), 7, "0", &["shards", "allowed: 1 to 32"]);
    assert_refused(&pblk("shards = 33\n"), 7, "33", &["allowed: 1 to 32"]);
    assert_refused(&pblk("shards = \"many\"\n"), 7, "\"many\"", &["shards"]);
    let small = pblk("shards = 9\n").replace("data", "geometry = { channels = 2, pus = 4 }\ndata");
    assert_refused(&small, 8, "9", &["the drive has 8 parallel units", "allowed: 1 to 8"]);
    let narrow = pblk("shards = 4\n").replace("data", "controller.max_io_queues = 3\ndata");
    assert_refused(&narrow, 8, "4", &["the drive has 3 I/O queues", "controller.max_io_queues"]);
    // A shard has a quarter of the drive's parallel units.
    let wide = pblk("shards = 4\nactive_pus = 33\n");
    assert_refused(&wide, 8, "33", &["allowed: 1 to 32"]);
    for (kind, more) in [("rrpc", "device_l2p = true\n"), ("none", "")] {
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
fn the_controls_of_garbage_collection_are_read() {
    let ocssd = "[drive]\npreset = \"ocssd-mlc-128pu-small\"\n[target]\nkind = \"pblk\"\n";
    let of = |keys: &str| match &parse(&format!("{ocssd}{keys}")).unwrap().drives[0].target {
        HostTarget::Pblk(config) => (config.rate_limiter, config.gc_read_priority),
        other => panic!("{other:?}"),
    };
    assert_eq!(of(""), (RateLimiterKind::Proportional, GcReadPriority::Off));
    assert_eq!(
        of("rate_limiter = \"pid\"\ngc_read_priority = \"any-read\"\n"),
        (RateLimiterKind::PID, GcReadPriority::Global)
    );
    let RateLimiterKind::Pid { kp, ki, kd } = RateLimiterKind::PID else { unreachable!() };
    assert_eq!((kp, ki), (1.0, 0.1));
    assert_eq!(
        of("rate_limiter = { kind = \"pid\", kp = 2, ki = 0 }\ngc_read_priority = \"busy-pus\"\n"),
        (RateLimiterKind::Pid { kp: 2.0, ki: 0.0, kd }, GcReadPriority::PerPu)
    );
}

#[test]
fn copies_by_the_drive_are_of_a_target_on_a_drive_without_paired_pages() {
    let drive = "[drive]\npreset = \"femu-default\"\npersonality = \"open-channel\"\n";
    let target = "[target]\nkind = \"pblk\"\nvector_copy = true\n";
    let s = parse(&format!("{drive}{target}")).unwrap();
    let HostTarget::Pblk(config) = &s.drives[0].target else { panic!("{:?}", s.drives[0].target) };
    assert!(config.vector_copy);
    let refused = |text: &str| parse(text).unwrap_err().to_string();
    let paired = refused(&format!("{drive}paired_page_distance = 1\n{target}"));
    assert!(paired.contains("the drive has paired pages"), "{paired}");
    assert!(paired.contains("s.toml:7:15"), "{paired}");
    let own = refused("[drive]\npreset = \"femu-default\"\nftl.vector_copy = true\n");
    assert!(own.contains("a drive's own FTL gives itself no commands"), "{own}");
    let text = refused(&format!("{drive}[target]\nkind = \"pblk\"\nvector_copy = \"yes\"\n"));
    assert!(text.contains("vector_copy"), "{text}");
}

#[test]
fn memory_for_the_map_is_sectors_of_it_and_says_when_it_cannot_be() {
    let config = |key: &str| {
        let s = parse(&format!("{SMALL}ftl.l2p_cache = {key}\n")).unwrap();
        s.drives[0].config.ftl.map_cache_sectors
    };
    assert_eq!((config("0"), config("\"1G\""), config("\"1g\"")), (0, 1 << 18, 1 << 18));
    for too_small in ["1", "4095"] {
        assert_refused(
            &format!("{SMALL}ftl.l2p_cache = {too_small}\n"),
            3,
            too_small,
            &["map_cache_sectors is 1", "at the same time", "0 for all of the map"],
        );
    }
    assert_refused(
        &format!("{SMALL}data = \"none\"\nftl.l2p_cache = \"1g\"\n"),
        4,
        "\"1g\"",
        &["keeps what is written", "allowed: 0"],
    );
}
