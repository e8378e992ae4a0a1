//! Drives with rules, from a scenario to its results.

// guarantee: B-116

use std::fmt::Write as _;
use std::path::Path;

use scenario::Scenario;
use serde_json::Value;
use sluice_sim::{SimOptions, simulate, to_json, to_text};
use tempfile::TempDir;

/// A drive on which page-mapped rules are compared with the block personality.
struct RuleDrive {
    keys: &'static str,
    pus: u32,
    /// Over-provisioning, as a number of both a program and a scenario.
    spare: &'static str,
}

const DRIVES: [RuleDrive; 4] = [
    RuleDrive {
        keys: "preset = \"mqsim-default-small\"\ndata = \"none\"\nwrite_buffer.size = \"1M\"\n\
            geometry = { channels = 2, pus = 2, chunks = 40, pages = 32 }\n",
        pus: 4,
        spare: "0.2",
    },
    RuleDrive {
        keys: "preset = \"femu-default\"\ncell = \"mlc\"\npaired_page_distance = 2\n\
            geometry = { channels = 2, pus = 2, chunks = 40, pages = 32 }\n",
        pus: 4,
        spare: "0.28",
    },
    RuleDrive {
        keys: "preset = \"tlc-2020s-small\"\ndata = \"memory\"\nwrite_buffer.size = \"2M\"\n\
            geometry = { channels = 2, pus = 2, chunks = 32, pages = 24 }\n\
            ftl.gc_high_watermark = 3\n",
        pus: 4,
        spare: "0.25",
    },
    RuleDrive {
        keys: "preset = \"femu-default\"\ndata = \"memory\"\nftl.separate_gc_stream = false\n\
            ftl.rate_limiter = \"pid\"\natomic = true\n\
            geometry = { channels = 2, pus = 1, chunks = 48, pages = 64 }\n",
        pus: 2,
        spare: "0.2",
    },
];

const JOBS: [&str; 5] = [
    // Random writes over the whole drive, four times.
    "[precondition]\nfill = \"sequential\"\n\
     [[job]]\nrw = \"randwrite\"\nbs = \"4k\"\niodepth = 16\nnorandommap = true\nio_size = \"400%\"\n",
    // Reads, writes and trims side by side.
    "[[job]]\nname = \"mixed\"\nrw = \"randrw\"\nbs = \"8k\"\niodepth = 8\nnorandommap = true\n\
     io_size = \"500%\"\n\
     [[job]]\nname = \"trims\"\nrw = \"randtrim\"\nbs = \"64k\"\niodepth = 2\nnorandommap = true\n\
     io_size = \"150%\"\n",
    // Skewed writes with flushes, on a drive in a random steady state.
    "[precondition]\nfill = \"sequential\"\noverwrite = \"random 1x\"\n\
     [[job]]\nrw = \"randwrite\"\nbs = \"4k\"\niodepth = 32\nnorandommap = true\nio_size = \"200%\"\n\
     random_distribution = \"zipf:1.1\"\nfsync = 64\n",
    // Sequential writes, trims of what they write next, and random writes in between.
    "[[job]]\nrw = \"trimwrite\"\nbs = \"32k\"\niodepth = 4\nio_size = \"400%\"\n\
     [[job]]\nrw = \"randrw\"\nbs = \"4k\"\niodepth = 8\nnorandommap = true\nio_size = \"300%\"\n",
    // Through the block layer, with data that is verified.
    "[path]\nqueue_model = \"mq\"\ncores = 2\nscheduler = \"deadline\"\n\
     [[job]]\nrw = \"randwrite\"\nbs = \"4k\"\nsize = \"40%\"\niodepth = 16\nio_size = \"40%\"\n\
     verify = \"crc32c\"\n\
     [[job]]\nrw = \"randwrite\"\nbs = \"16k\"\noffset = \"50%\"\niodepth = 16\nnorandommap = true\n\
     io_size = \"400%\"\n",
];

/// Returns program 1 for a drive.
fn page_rules(drive: &RuleDrive) -> String {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../demo/rules/page.rules");
    let text = std::fs::read_to_string(demo).expect("the program");
    let app = format!("units = 0-{}, spare = {}", drive.pus - 1, drive.spare);
    text.replace("units = 0-63, spare = 0.11", &app)
}

fn run_at(path: &Path, text: &str) -> Value {
    let scenario = Scenario::parse(path, text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let outcome =
        simulate(&scenario, SimOptions::default()).unwrap_or_else(|e| panic!("{text}: {e}"));
    assert_eq!(outcome.paths[0].run.failures().count(), 0, "{text}");
    to_json(&outcome)
}

/// Returns the results as text, without the names of the personalities and the rules.
fn comparable(json: &Value) -> String {
    let mut json = json.clone();
    let section = &mut json["sluice"];
    section["scenario"].take();
    let settings = section["parameters"]["drives"][0].as_object_mut().expect("a drive");
    settings.retain(|key, _| key != "personality" && key != "rules");
    section["drives"][0].as_object_mut().expect("a drive").retain(|key, _| key != "rules");
    to_text(&json)
}

#[test]
fn a_page_mapped_program_equals_the_block_personality() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("test.toml");
    for (drive, keys) in DRIVES.iter().enumerate() {
        std::fs::write(folder.path().join("page.rules"), page_rules(keys)).expect("a file");
        for (job, jobs) in JOBS.iter().enumerate() {
            let jobs = match keys.keys.contains("none") {
                true => jobs.replace("verify = \"crc32c\"\n", ""),
                false => (*jobs).to_owned(),
            };
            for seed in 1..=5 {
                let text = |personality: &str| {
                    let RuleDrive { keys, spare, .. } = keys;
                    let mut text = format!("seed = {seed}\n[drive]\n{keys}");
                    // Writing to a string cannot fail.
                    let _ = write!(text, "ftl.over_provisioning = {spare}\n{personality}\n{jobs}");
                    text
                };
                let block = run_at(&path, &text("personality = \"block\""));
                let with_rules = "personality = \"rules\"\nrules.program = \"page.rules\"";
                let ruled = run_at(&path, &text(with_rules));
                let counters = &ruled["sluice"]["drives"][0]["rules"];
                let at = format!("drive {drive}, job {job}, seed {seed}: {counters:#}");
                assert!(counters["victims"].as_u64() > Some(10), "{at}");
                assert_eq!(counters["misses"], 0, "{at}");
                let (block, ruled) = (comparable(&block), comparable(&ruled));
                let differs =
                    block.lines().zip(ruled.lines()).find(|(block, ruled)| block != ruled);
                assert_eq!(differs, None, "{at}");
                assert!(block == ruled, "{at}");
            }
        }
    }
}

/// Rules of an application: writes and reads at the block that the host names, and collection.
fn application_rules(app: &str) -> String {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../demo/rules/page.rules");
    let text = std::fs::read_to_string(demo).expect("the program");
    let rules =
        text.lines().filter(|line| !line.starts_with("app ") && !line.starts_with("table "));
    let rules: String = rules.map(|line| format!("{line}\n")).collect();
    let rules = rules.replace("rule ", "rule db_").replace("map[", "db_map[");
    let rules = rules.replace("db", app);
    format!("table {app}.{app}_map: addr[{app}.sectors] durable\n{rules}")
}

#[test]
fn jobs_run_in_their_applications() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("test.toml");
    let apps = "app one { units = 0-1, spare = 0.2 }\napp two { units = 2-3, spare = 0.2 }\n";
    let program = format!("{apps}{}{}", application_rules("one"), application_rules("two"));
    std::fs::write(folder.path().join("apps.rules"), program).expect("a file");
    let drive = "[drive]\npreset = \"femu-default\"\ndata = \"memory\"\nftl.over_provisioning = 0.2\n\
        personality = \"rules\"\nrules.program = \"apps.rules\"\n\
        geometry = { channels = 2, pus = 2, chunks = 40, pages = 32 }\n\
        [precondition]\nfill = \"sequential\"\n";
    let job = |app: &str, pages: u32| {
        format!(
            "[[job]]\nname = \"{app}\"\napp = \"{app}\"\nrw = \"randwrite\"\nbs = \"4k\"\n\
             iodepth = 8\nnorandommap = true\nio_size = \"{pages}%\"\n"
        )
    };
    let json = run_at(&path, &format!("{drive}{}{}", job("one", 300), job("two", 100)));
    let drive = &json["sluice"]["drives"][0];
    let rules = drive["rules"]["rules"].as_array().expect("rules");
    let matches = |name: &str| {
        let rule = rules.iter().find(|rule| rule["name"] == name);
        rule.unwrap_or_else(|| panic!("no {name}: {rules:?}"))["matches"]
            .as_u64()
            .expect("a number")
    };
    let [one, two] = ["one", "two"].map(|app| matches(&format!("{app}_store")));
    // One space is written three times, and the other one once.
    assert!(one.abs_diff(3 * two) < two / 50, "{one} and {two} writes");
    assert!(matches("one_reclaim") > matches("two_reclaim"));
    // The counters of each application, and their sums.
    let apps = drive["rules"]["apps"].as_array().expect("applications");
    let of = |at: usize, key: &str| apps[at][key].as_u64().expect("a number");
    assert_eq!((&apps[0]["name"], &apps[1]["name"]), (&"one".into(), &"two".into()));
    assert_eq!((of(0, "inputs"), of(1, "inputs")), (one, two));
    assert!(of(0, "victims") > of(1, "victims"), "{apps:#?}");
    for key in ["inputs", "misses", "ops", "polls", "victims", "policy_victims", "idle_polls"] {
        assert_eq!(of(0, key) + of(1, key), drive["rules"][key].as_u64().expect("a sum"), "{key}");
    }
    let parameters = &json["sluice"]["parameters"]["paths"];
    assert_eq!((&parameters[0]["app"], &parameters[1]["app"]), (&"one".into(), &"two".into()));
}

// guarantee: D-68
#[test]
fn jobs_run_in_applications_that_share_units() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("test.toml");
    let apps = "app one { units = 0-3, spare = 0.2, quota = 0.25 }\n\
        app two { units = 0-3, spare = 0.2, quota = 0.75 }\n";
    let rules = |app: &str| {
        let all = application_rules(app);
        all[..all.find(&format!("rule {app}_reclaim")).expect("a rule")].to_owned()
    };
    let program = format!("{apps}{}{}", rules("one"), rules("two"));
    std::fs::write(folder.path().join("apps.rules"), program).expect("a file");
    let drive = "[drive]\npreset = \"femu-default\"\ndata = \"memory\"\nftl.over_provisioning = 0.2\n\
        personality = \"rules\"\nrules.program = \"apps.rules\"\n\
        geometry = { channels = 2, pus = 2, chunks = 40, pages = 32 }\n";
    let job = |app: &str| {
        format!(
            "[[job]]\nname = \"{app}\"\napp = \"{app}\"\nrw = \"randwrite\"\nbs = \"4k\"\n\
             iodepth = 8\nverify = \"crc32c\"\nloops = 3\n"
        )
    };
    let json = run_at(&path, &format!("{drive}{}{}", job("one"), job("two")));
    let drive = &json["sluice"]["drives"][0];
    let apps = drive["rules"]["apps"].as_array().expect("applications");
    let of = |at: usize, key: &str| apps[at][key].as_u64().expect("a number");
    // Each job writes all blocks of its application: a quarter, and three quarters.
    assert!(of(0, "inputs").abs_diff(of(1, "inputs") / 3) < 16, "{apps:#?}");
    for at in [0, 1] {
        assert_eq!((of(at, "misses"), of(at, "polls"), of(at, "victims")), (0, 0, 0));
    }
    let reclaimed = drive["gc"]["lines_reclaimed"].as_u64();
    assert!(reclaimed > Some(0), "{}", drive["gc"]);
}

/// A drive whose flash the host manages, with a target of the kind.
fn target(keys: &str) -> String {
    format!(
        "[drive]\npreset = \"femu-default\"\ndata = \"memory\"\npersonality = \"open-channel\"\n\
         geometry = {{ channels = 2, pus = 2, chunks = 40, pages = 32 }}\n\
         [target]\nover_provisioning = 0.28\n{keys}"
    )
}

#[test]
fn results_have_the_rules_of_a_target() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("test.toml");
    let page = RuleDrive { keys: "", pus: 4, spare: "0.28" };
    std::fs::write(folder.path().join("page.rules"), page_rules(&page)).expect("a file");
    let job = "[precondition]\nfill = \"sequential\"\n[[job]]\nname = \"mixed\"\nrw = \"randrw\"\n\
        bs = \"4k\"\niodepth = 8\nnorandommap = true\nio_size = \"300%\"\n";
    let rules = "kind = \"rules\"\nprogram = \"page.rules\"\nidle_poll = \"10ms\"\nops = 100\n";
    let json = run_at(&path, &format!("{}{job}", target(rules)));
    let drive = &json["sluice"]["drives"][0];
    let counters = &drive["rules"];
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{value}: {counters:#}"));
    let named = counters["rules"].as_array().expect("rules");
    let matches = |name: &str| {
        number(&named.iter().find(|rule| rule["name"] == name).expect("a rule")["matches"])
    };
    // Writes of the precondition are not counted.
    let ios = |direction: &str| number(&json["jobs"][0][direction]["total_ios"]);
    assert_eq!((matches("store"), matches("load")), (ios("write"), ios("read")));
    assert_eq!(number(&counters["inputs"]), ios("write") + ios("read"));
    assert_eq!((number(&counters["misses"]), &counters["missed"]), (0, &Value::Array(Vec::new())));
    assert!(number(&counters["victims"]) > 10, "{counters:#}");
    let of_rules: u64 = named.iter().map(|rule| number(&rule["ops"])).sum();
    assert!(of_rules > 0 && number(&counters["ops"]) >= of_rules, "{counters:#}");
    let settings = &json["sluice"]["parameters"]["drives"][0]["rules"];
    let apps = counters["apps"].as_array().expect("applications");
    assert_eq!((apps.len(), &apps[0]["name"]), (1, &settings["apps"][0]));
    let of_requests = ["inputs", "misses", "ops", "victims"];
    let others = ["polls", "policy_victims", "idle_polls", "periodic", "relocated", "hot_sectors"];
    for key in of_requests.into_iter().chain(others) {
        assert_eq!(number(&apps[0][key]), number(&counters[key]), "{key}");
    }
    assert_eq!(settings["rules"], serde_json::json!(["store", "load", "reclaim"]), "{settings:#}");
    assert_eq!(settings["idle_poll_ns"], 10_000_000);
    assert_eq!((&settings["ops"], &settings["hot_stream"]), (&100.into(), &false.into()));
    // A target without rules has no such section.
    let plain = run_at(&path, &format!("{}{job}", target("kind = \"pblk\"\n")));
    assert!(plain["sluice"]["drives"][0]["rules"].is_null());
    assert!(plain["sluice"]["parameters"]["drives"][0]["rules"].is_null());
}

#[test]
fn results_have_the_misses_of_a_target() {
    let folder = TempDir::new().expect("a folder");
    let path = folder.path().join("test.toml");
    let app = "app db { units = 0-3, spare = 0.28 }\ntable map: addr[db.sectors] durable\n";
    let store = "rule store when channel.app == db and header.write\n  \
        set map[header.lba] = next_addr(db.host)\n  do header.addr = map[header.lba]; insert lun\n";
    std::fs::write(folder.path().join("store.rules"), format!("{app}{store}")).expect("a file");
    let job = "[[job]]\nrw = \"read\"\nbs = \"8k\"\nsize = \"64k\"\ncontinue_on_error = \"read\"\n";
    let text = format!("{}{job}", target("kind = \"rules\"\nprogram = \"store.rules\"\n"));
    let scenario = Scenario::parse(&path, &text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let outcome = simulate(&scenario, SimOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    let counters = to_json(&outcome)["sluice"]["drives"][0]["rules"].take();
    let missed = serde_json::json!([{ "op": "read", "misses": 8, "lba": 14, "blocks": 2 }]);
    assert_eq!((&counters["misses"], &counters["missed"]), (&8.into(), &missed), "{counters:#}");
}
