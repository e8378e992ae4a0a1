//! `personality = "rules"` and `[drive.rules]`: what is refused, and where.

// guarantee: B-106

use std::path::Path;

use rules::RuleProgram;
use tempfile::TempDir;

use crate::choice::Impossible;
use crate::{Scenario, ScenarioError};

const DRIVE: &str = "[drive]\npreset = \"femu-default\"\n\
    geometry = { channels = 2, pus = 2, chunks = 40, pages = 32 }\nftl.over_provisioning = 0.2\n";

/// A program for [`DRIVE`]; rules come behind it.
const APP: &str = "app db { units = 0-3, spare = 0.2 }\ntable map: addr[db.sectors] durable\n";

const STORE: &str = "rule store\n  when channel.app == db and header.write\n  \
    set  map[header.lba] = next_addr(db.host)\n  do   header.addr = map[header.lba]; insert lun\n";

fn parse(path: &Path, keys: &str) -> Result<Scenario, ScenarioError> {
    Scenario::parse(path, &format!("{DRIVE}{keys}"))
}

/// Returns the message for a drive with these keys.
fn refused(keys: &str) -> String {
    let error = parse(Path::new("t.toml"), keys).expect_err(keys);
    error.to_string()
}

/// Returns the message for a drive with this program.
fn refused_program(program: &str) -> String {
    let folder = TempDir::new().expect("a folder");
    std::fs::write(folder.path().join("p.rules"), program).expect("a file");
    let keys = "personality = \"rules\"\nrules.program = \"p.rules\"\n";
    let error = parse(&folder.path().join("t.toml"), keys).expect_err(program);
    error.to_string().replace(&folder.path().display().to_string(), "")
}

#[test]
fn a_program_is_compiled_for_its_drive() {
    let keys = "personality = \"rules\"\n[drive.rules]\ntemplate = \"throughput\"\nengines = 4\n\
        op = \"1ns\"\nidle_poll = \"1us\"\nops = 100\ntable_memory = \"1M\"\nmiss_timeout = \"20ms\"\nparked = 7\n";
    let scenario = parse(Path::new("t.toml"), keys).expect("a scenario");
    let config = &scenario.drives[0].config;
    let rules = config.rules.as_ref().expect("rules");
    assert_eq!((rules.engines, rules.op.0, rules.ops, rules.table_bytes), (4, 1, 100, 1 << 20));
    assert_eq!(rules.idle_poll.map(|idle| idle.0), Some(1_000));
    assert_eq!((rules.misses.timeout.0, rules.misses.parked_max), (20_000_000, 7));
    let program = RuleProgram::decode(&rules.program).expect("a program");
    let app = &program.apps[0];
    assert_eq!((app.first_unit, app.last_unit, app.spare_ppm), (0, 3, 200_000));
    let capacity = scenario.drives[0].capacity.expect("a capacity");
    assert!(app.sectors >= capacity.logical_bytes() / 4096, "{} sectors", app.sectors);
    // Without rules the same drive has none.
    let block = parse(Path::new("t.toml"), "personality = \"block\"\n").expect("a scenario");
    assert_eq!(block.drives[0].config.rules, None);
    assert_eq!(block.drives[0].config.personality, config.personality);
}

#[test]
fn a_program_with_hot_data_needs_the_stream() {
    let hot = format!("{APP}{}", STORE.replace("db.host", "db.hot"));
    let error = refused_program(&hot);
    assert!(error.contains("no stream `hot`") && error.contains("p.rules:"), "{error}");
    let folder = TempDir::new().expect("a folder");
    std::fs::write(folder.path().join("p.rules"), &hot).expect("a file");
    let keys = "personality = \"rules\"\nrules.program = \"p.rules\"\n";
    let with_stream = format!("{keys}rules.hot_stream = true\n");
    let scenario = parse(&folder.path().join("t.toml"), &with_stream).expect("a scenario");
    let plain = parse(Path::new("t.toml"), "personality = \"block\"\n").expect("a scenario");
    let bytes = |scenario: &Scenario| scenario.drives[0].capacity.map(|c| c.logical_bytes());
    assert!(scenario.drives[0].config.ftl.hot_stream && !plain.drives[0].config.ftl.hot_stream);
    assert!(bytes(&scenario) < bytes(&plain), "the stream has a line in reserve");
}

#[test]
fn keys_that_contradict_each_other_are_refused() {
    let template = "rules.template = \"throughput\"\n";
    let ruled = |keys: &str| format!("personality = \"rules\"\n{template}{keys}");
    for (keys, message) in [
        ("personality = \"rules\"\n".to_owned(), "has no rule program"),
        (template.to_owned(), "only a drive with rules has a rule program"),
        (format!("personality = \"block\"\n{template}"), "only a drive with rules"),
        ("personality = \"rules\"\nrules = {}\n".to_owned(), "needs `program`"),
        (ruled("rules.program = \"x\"\n"), "x: No such file"),
        (ruled("rules.nonsense = 1\n"), "has no key `nonsense`"),
        (ruled("rules.miss_timeout = \"1h\"\n"), "miss_timeout"),
        (ruled("rules.parked = 65537\n"), "parked"),
        (ruled("rules.engines = 0\n"), "engines"),
        (ruled("rules.engines = 65\n"), "engines"),
        (ruled("rules.op = \"1h\"\n"), "op"),
        (ruled("rules.idle_poll = \"0\"\n"), "idle_poll"),
        (ruled("rules.idle_poll = \"999ns\"\n"), "idle_poll"),
        (ruled("rules.ops = 2\n"), "may need 3 operations"),
        (ruled("lba_bytes = 512\n"), "logical blocks are smaller"),
        (ruled("namespaces = [\"1M\", \"rest\"]\n"), "in one namespace"),
        (ruled("media = \"pcm\"\ncapacity = \"1M\"\n"), "decide about flash"),
        ("personality = \"rules\"\nrules.template = \"fast\"\n".to_owned(), "rules.template"),
        (
            "personality = \"rules\"\nrules.template = \"nameless\"\n".to_owned(),
            "fewer than 4 sectors",
        ),
        (
            "personality = \"rules\"\nrules.template = \"endurance\"\n".to_owned(),
            "template/endurance:",
        ),
        ("personality = \"rules\"\nrules = 1\n".to_owned(), "a table"),
        (ruled("rules.hot_stream = 1\n"), "hot_stream"),
    ] {
        let found = refused(&keys);
        assert!(found.contains(message), "{keys}: {found}");
    }
    let both = refused_program(&format!("{APP}{STORE}")[..0]);
    assert!(both.contains("has no application"), "{both}");
    for kind in ["ahci", "null"] {
        let text = format!("[drive]\nkind = \"{kind}\"\ncapacity = \"32M\"\n{template}");
        let error = Scenario::parse(Path::new("t.toml"), &text).expect_err(kind).to_string();
        assert!(error.contains("rule"), "{kind}: {error}");
    }
}

#[test]
fn a_drive_whose_sectors_have_names_has_no_logical_blocks() {
    let drive = "[drive]\npreset = \"femu-default\"\npersonality = \"rules\"\n\
        geometry = { channels = 2, pus = 4, chunks = 48, pages = 32, planes = 4 }\n\
        rules = { template = \"nameless\", durable_memory = \"256K\" }\n";
    let read = |more: &str| Scenario::parse(Path::new("t.toml"), &format!("{drive}{more}"));
    let scenario = read("").expect("a scenario");
    assert!(scenario.drives[0].has_names() && scenario.drives[0].is_block_device());
    let over = scenario.paths()[0].over;
    assert!(scenario.has_names(over));
    let refused = scenario.check_blocks(over, "a user").expect_err("names");
    assert!(matches!(&refused, Impossible::NamedSectors { user: "a user", .. }), "{refused}");
    // A map page is no part of its capacity.
    let mapped = drive.replace("nameless", "throughput");
    let mapped = Scenario::parse(Path::new("t.toml"), &mapped).expect("a scenario");
    let bytes = |scenario: &Scenario| scenario.drives[0].capacity.map(|c| c.logical_bytes());
    assert!(bytes(&scenario) > bytes(&mapped), "{:?} {:?}", bytes(&scenario), bytes(&mapped));
    assert!(!mapped.drives[0].has_names());
    let folder = TempDir::new().expect("a folder");
    let untold = "app db { units = 0-7 }\nrule store when channel.app == db and header.write\n  \
        do header.addr = next_addr(db.host); header.tag = header.arg0; insert lun\n";
    std::fs::write(folder.path().join("p.rules"), untold).expect("a file");
    let with_program = drive.replace("template = \"nameless\"", "program = \"p.rules\"");
    let refused = Scenario::parse(&folder.path().join("t.toml"), &with_program);
    let refused = refused.map(|_| ()).expect_err("no rule").to_string();
    assert!(refused.contains("`moved(db)`"), "{refused}");
    let no_memory = drive.replace(", durable_memory = \"256K\"", "");
    let refused = Scenario::parse(Path::new("t.toml"), &no_memory).map(|_| ());
    assert!(refused.expect_err("no memory").to_string().contains("durable_memory"));
    for (more, message) in [
        ("[precondition]\nfill = \"sequential\"\n", "no logical blocks for [precondition]"),
        ("[path]\nqueue_model = \"sq\"\n", "no logical blocks for a block layer"),
        ("[target]\nkind = \"pblk\"\n", "does not expose it"),
    ] {
        let refused = read(more).map(|_| ()).expect_err(more).to_string();
        assert!(refused.contains(message), "{more}: {refused}");
    }
}

#[test]
fn errors_of_a_program_have_its_line_and_column() {
    for (rules, message) in [
        ("rule r when header.write do complete fine", "/p.rules:3:38: "),
        (
            "rule a when header.write do complete ok\nrule b when header.write do complete ok",
            "/p.rules:4:6: ",
        ),
        (
            "rule r when idle(db)\n  set v = best line of db by line.age\n  do move valid of v to db.hot",
            "/p.rules:3:1: ",
        ),
    ] {
        let found = refused_program(&format!("{APP}{rules}\n"));
        assert!(found.starts_with(message), "{rules}: {found}");
    }
    assert!(refused_program("app db { units = 0-3 \u{0}").starts_with("/p.rules:1:"));
}

#[test]
fn durable_tables_take_space_of_the_drive() {
    let folder = TempDir::new().expect("a folder");
    let program = format!("{APP}table n: u8[4] durable\n{STORE}");
    std::fs::write(folder.path().join("p.rules"), &program).expect("a file");
    let with = |bytes: &str| {
        let keys = format!(
            "personality = \"rules\"\nrules = {{ program = \"p.rules\", durable_memory = \"{bytes}\" }}\n"
        );
        parse(&folder.path().join("t.toml"), &keys)
    };
    let refused = with("27").map(|_| ()).expect_err("28 bytes").to_string();
    assert!(
        refused.contains("need 28 bytes") && refused.contains("cannot be changed"),
        "{refused}"
    );
    let mut capacities = Vec::new();
    for (size, bytes) in [("28", 28), ("1M", 1 << 20)] {
        let scenario = with(size).expect(size);
        assert_eq!(scenario.drives[0].config.ftl.owner_bytes, bytes);
        capacities.push(scenario.drives[0].capacity.expect("a capacity").logical_bytes());
        let drive = controller::Controller::new(scenario.drives[0].config.clone()).expect(size);
        assert_eq!(drive.sectors() * 4096, capacities[capacities.len() - 1]);
    }
    assert!(capacities[0] > capacities[1], "{capacities:?}");
}

#[test]
fn a_program_may_read_records() {
    let folder = TempDir::new().expect("a folder");
    let program = format!(
        "{APP}{STORE}record r = {{ x: u8 }}\nrule find when channel.app == db and header.scan\n  \
         do for s in header.range up to 4 {{ for p: r in s {{ emit p }} }} complete ok\n"
    );
    std::fs::write(folder.path().join("p.rules"), &program).expect("a file");
    let keys = "personality = \"rules\"\nrules.program = \"p.rules\"\nrules.ops = 1000000\n";
    let scenario = parse(&folder.path().join("t.toml"), keys).expect(&program);
    let rules = scenario.drives[0].config.rules.as_ref().expect("rules");
    assert_eq!(RuleProgram::decode(&rules.program).expect("a program").layouts.len(), 1);
}

#[test]
fn programs_that_the_drive_does_not_execute_are_refused_at_their_rule() {
    let other = "app other { units = 2-3 }\n";
    let two = format!("app db {{ units = 0-1 }}\n{other}table db.map: addr[db.sectors] durable\n");
    let hot = STORE.replace("db.host", "db.hot");
    let get = "rule find when channel.app == db and header.get";
    let cases = [
        (format!("{two}table db.n: u8[4] durable\n{STORE}"), "has no durable tables", false),
        (format!("{APP}{hot}"), "has no stream `hot`, in which `store` places data", true),
        (
            format!(
                "{APP}{STORE}rule level when idle(db)\n  set v = best line of db by line.age\n  \
                do move valid of v to db.hot; erase v\n"
            ),
            "moves to the stream `hot`",
            true,
        ),
        (
            format!("{APP}table n: u8[4] durable\n{STORE}"),
            "table n and the durable tables after it need 28 bytes in the journal, which keeps 0",
            false,
        ),
        (
            format!(
                "{APP}table n: u8[4] volatile\nrule cool when every 1ms set each h of n: h = 0\n\
                rule warm priority 1 when every 999us set each h of n: h = 1\n"
            ),
            "rule warm runs every 999000 ns",
            false,
        ),
        (format!("{APP}{get} set header.tag = 1 do complete ok\n"), "fewer than 4 sectors", false),
        (format!("app db {{ units = 0-2 }}\n{STORE}"), "must have all of them", false),
        (format!("app db {{ units = 0-3, spare = 3 }}\n{STORE}"), "spare share", false),
    ];
    for (program, message, is_at_rule) in cases {
        let program = match program.contains("table") {
            true => program,
            false => {
                program.replace("rule store", "table map: addr[db.sectors] durable\nrule store")
            }
        };
        let found = refused_program(&program);
        assert!(found.contains(message), "{program}: {found}");
        assert_eq!(found.starts_with("/p.rules:"), is_at_rule, "{program}: {found}");
    }
}

const TWO_APPS: &str =
    "app db { units = 0-1, spare = 0.3 }\napp log { units = 2-3, spare = 0.3 }\n";

/// Parses a scenario whose drive has these applications.
fn with_apps(apps: &str, keys: &str) -> Result<Scenario, String> {
    let folder = TempDir::new().expect("a folder");
    std::fs::write(folder.path().join("p.rules"), apps).expect("a file");
    let text = format!("personality = \"rules\"\nrules.program = \"p.rules\"\n{keys}");
    let parsed = parse(&folder.path().join("t.toml"), &text);
    parsed.map_err(|error| error.to_string())
}

#[test]
fn jobs_and_paths_name_applications() {
    let jobs = "[[job]]\nrw = \"read\"\napp = \"log\"\n[[job]]\nrw = \"read\"\npath = \"db\"\n";
    let scenario = with_apps(TWO_APPS, jobs).expect("a scenario");
    let paths = scenario.paths();
    let apps: Vec<_> = paths.iter().map(|path| (&*path.name, path.config.app.as_deref())).collect();
    assert_eq!(apps, [("db", Some("db")), ("log", Some("log"))]);
    let of_jobs: Vec<_> = scenario.jobs.iter().filter_map(|job| job.path.as_ref()).collect();
    assert_eq!(of_jobs.iter().map(|(path, _)| &**path).collect::<Vec<_>>(), ["log", "db"]);
    assert_eq!(scenario.drives[0].capacity, None);
    let paths = "[[path]]\nname = \"fast\"\nover = \"femu-default\"\napp = \"log\"\n\
        [[job]]\nrw = \"read\"\napp = \"log\"\n";
    let name = &scenario.drives[0].config.name;
    let scenario = with_apps(TWO_APPS, &paths.replace("femu-default", name)).expect("a scenario");
    assert_eq!(scenario.jobs[0].path.as_ref().map(|(path, _)| &**path), Some("fast"));
    // The application of a drive with one can be named, too.
    let one = "app db { units = 0-3, spare = 0.2 }\n";
    let scenario = with_apps(one, "[path]\napp = \"db\"\n").expect("a scenario");
    assert_eq!(scenario.drives[0].app.as_deref(), Some("db"));
    assert!(scenario.drives[0].capacity.is_some());
}

#[test]
fn unknown_applications_are_refused() {
    let over = |keys: &str| format!("[[path]]\nname = \"a\"\nover = \"NAME\"\n{keys}");
    let name = &with_apps(TWO_APPS, "").expect("a scenario").drives[0].config.name.clone();
    for (apps, keys, part) in [
        (TWO_APPS, "[[job]]\nrw = \"read\"\n".to_owned(), "has no path"),
        (TWO_APPS, "[[job]]\nrw = \"read\"\napp = \"logs\"\n".to_owned(), "db, log"),
        (TWO_APPS, "[[job]]\nrw = \"read\"\napp = \"db\"\npath = \"db\"\n".into(), "its own"),
        (TWO_APPS, over(""), "several applications"),
        (TWO_APPS, over("app = \"logs\"\n"), "no application logs"),
        (TWO_APPS, "[path]\napp = \"no\"\n".into(), "no application no"),
        ("app db { units = 0-3, spare = 0.2 }\n", over("app = \"log\"\n"), "no application log"),
        ("app a { units = 0-1, spare = 0.3 }\n", String::new(), "must have all of them"),
        (
            "app a { units = 0-1, spare = 0.3 }\napp b { units = 3-3, spare = 0.3 }\n",
            String::new(),
            "no application has parallel unit 2",
        ),
    ] {
        let message = with_apps(apps, &keys.replace("NAME", name)).expect_err(&keys);
        assert!(message.contains(part), "{part}: {message}");
    }
    let error = parse(Path::new("t.toml"), "[path]\napp = \"db\"\n").expect_err("no rules");
    assert!(error.to_string().contains("no application db"), "{error}");
}
