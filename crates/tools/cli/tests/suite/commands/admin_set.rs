//! `sluice admin set` and `sluice admin fault`: settings of FTLs that change, and drives that fail,
//! while drives and targets are served.

// guarantee: B-33, B-65, B-97

use crate::served;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use served::*;
use share_proto::{Code, LimiterSetting, ResourceName, SettingChange};
use user_io::RemoteDeviceError;
use user_io::remote::Admin;

const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// An open-channel drive whose programs take long, with two block targets, a key-value target, and a
/// second drive without an FTL.
const TARGETS: &str = "[[drive]]\nname = \"oc\"\npreset = \"femu-default\"\n\
    personality = \"open-channel\"\ngeometry = { channels = 2, chunks = 96, pages = 64 }\n\
    timing = { read = \"10us\", program = \"2ms\", erase = \"100us\" }\n\
    [[drive]]\nname = \"null\"\npreset = \"nvme-null\"\n\
    [[target]]\nname = \"left\"\ndrive = \"oc\"\nkind = \"pblk\"\npus = \"0-7\"\n\
    [[target]]\nname = \"right\"\ndrive = \"oc\"\nkind = \"pblk\"\npus = \"8-12\"\n\
    [[target]]\nname = \"store\"\ndrive = \"oc\"\nkind = \"kv\"\npus = \"13-15\"\n\
    [[path]]\nname = \"l\"\nover = \"left\"\nqueue_model = \"mq\"\ncores = 2\n\
    [[path]]\nname = \"r\"\nover = \"right\"\n\
    [[path]]\nname = \"k\"\nover = \"store\"\n\
    [[path]]\nname = \"n\"\nover = \"null\"\n";

struct Served {
    server: Server,
    socket: PathBuf,
}

impl Served {
    /// Starts a server with a socket for administration, and waits until it answers.
    fn start(dir: &Path, scenario: &str, more: &[&str]) -> Served {
        let socket = dir.join("admin.sock");
        let args = [&["--admin-socket", socket.to_str().unwrap()], more].concat();
        let server = Server::launch(dir, scenario, &args).wait_ready();
        let start = Instant::now();
        while !server.stdout().contains("answering `sluice admin") {
            assert!(start.elapsed() < TEST_TIMEOUT, "{}", server.stderr());
            std::thread::sleep(Duration::from_millis(5));
        }
        Served { server, socket }
    }

    fn admin(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
        command.args(["admin", "--socket"]).arg(&self.socket).args(args).output().unwrap()
    }

    fn json(&self, args: &[&str]) -> Vec<Value> {
        let text = String::from_utf8(self.admin(args).stdout).unwrap();
        let values = serde_json::Deserializer::from_str(&text).into_iter();
        values.map(|value| value.unwrap_or_else(|e| panic!("{e}: {text}"))).collect()
    }

    /// Changes a setting. Returns the line of those in force.
    fn set(&self, name: &str, key: &str, value: &str) -> String {
        let output = self.admin(&["set", name, key, value]);
        let text = text_of(&output);
        assert!(output.status.success(), "{text}");
        text
    }

    /// Returns the settings in force, by name.
    fn settings(&self) -> Value {
        let mut list = self.json(&["list", "--json"]);
        list[0]["settings"].take()
    }

    /// Returns the write bandwidth of path `index` over a second, in bytes.
    fn write_bandwidth(&self, path: &str) -> f64 {
        let mut admin = Admin::connect(&self.socket).unwrap();
        admin.stats().unwrap();
        std::thread::sleep(Duration::from_secs(1));
        let stats = admin.stats().unwrap();
        let (_, stats) = stats.iter().find(|(name, _)| name.as_str() == path).unwrap();
        stats.requests.bytes_written as f64 / (stats.interval.0 as f64 / 1e9)
    }
}

fn text_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Fewer active units of a target that is written take effect at once, and other targets of its
/// drive keep theirs. The data are those written, on one thread and on several.
#[test]
fn active_pus_of_a_target_change_under_load() {
    for threads in ["2", "1"] {
        let dir = tempfile::tempdir().unwrap();
        let served = Served::start(dir.path(), TARGETS, &["--threads", threads]);
        let job = "--rw=randwrite --bs=32k --iodepth=16 --size=24m --time_based --runtime=60";
        let mut load = fio_at(&served.server, "l", &job.split_whitespace().collect::<Vec<_>>());
        let mut load = load.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let start = Instant::now();
        while served.write_bandwidth("l") == 0.0 {
            assert!(start.elapsed() < TEST_TIMEOUT, "{}", served.server.stderr());
        }
        let all = served.write_bandwidth("l");
        let line = served.set("left", "active_pus", "1");
        assert_eq!(
            line,
            "left: active_pus 1 of 8, rate_limiter proportional, victim_policy greedy\n"
        );
        // In the first interval, the write buffer still takes data at the former rate.
        served.write_bandwidth("l");
        let one = served.write_bandwidth("l");
        assert!(one > 0.0 && one < all / 3.0, "{one} of {all} bytes/s");
        let settings = served.settings();
        let active = |name: &str| {
            let all = settings.as_array().unwrap().iter();
            let entry = all.clone().find(|entry| entry["device"] == name);
            entry.unwrap_or_else(|| panic!("{name} in {settings}"))["active_pus"].clone()
        };
        assert_eq!((active("left"), active("right")), (1.into(), 5.into()));
        assert_eq!(settings.as_array().unwrap().len(), 2, "{settings}");
        // 0 restores the number that the target was opened with.
        assert!(served.set("left", "active_pus", "0").contains("active_pus 8 of 8"));
        // `timeout` passes the signal on, and ends with fio.
        kill_process(Pid::from_child(&load), Signal::TERM).unwrap();
        load.wait().unwrap();
        served.set("left", "active_pus", "3");
        served.set("right", "victim_policy", "fifo");
        let job = "--rw=randwrite --bs=4k --iodepth=8 --size=4m --verify=crc32c --verify_fatal=1";
        for name in ["l", "r"] {
            fio_ok_at(&served.server, name, &job.split_whitespace().collect::<Vec<_>>());
        }
        served.server.stop_all();
    }
}

/// A drive's own FTL, and a target that has no name but its drive's.
#[test]
fn every_setting_of_an_ftl_changes() {
    let rrpc = format!(
        "{DRIVE}personality = \"open-channel\"\ndevice_l2p = true\n\
         [target]\nkind = \"rrpc\"\nover_provisioning = 0.3\n"
    );
    for (scenario, policy) in
        [(DRIVE.to_owned(), "greedy"), (pblk(), "greedy"), (rrpc, "cost-wear")]
    {
        let dir = tempfile::tempdir().unwrap();
        let served = Served::start(dir.path(), &scenario, &[]);
        let own = |active: u32, limiter: &Value, policy: &str| {
            json!([{
                "device": "drive0", "shards": 1, "active_pus": active, "active_pus_max": 16,
                "rate_limiter": limiter, "victim_policy": policy,
            }])
        };
        let proportional = json!({ "kind": "proportional" });
        assert_eq!(served.settings(), own(16, &proportional, policy));
        served.set("drive0", "victim_policy", "cost-benefit");
        served.set("drive0", "active_pus", "4");
        let line = served.set("drive0", "rate_limiter", "{ kind = \"pid\", kp = 2 }");
        let expected = "drive0: active_pus 4 of 16, rate_limiter pid (kp 2, ki 0.1, kd 0.05), \
                        victim_policy cost-benefit\n";
        assert_eq!(line, expected);
        let pid = json!({ "kind": "pid", "kp": 2.0, "ki": 0.1, "kd": 0.05 });
        assert_eq!(served.settings(), own(4, &pid, "cost-benefit"));
        let list = text_of(&served.admin(&["list"]));
        assert!(list.ends_with(&format!("settings\n  {expected}")), "{list}");
        fio_ok(&served.server, &["--rw=randwrite", "--bs=4k", "--size=40m", "--iodepth=8"]);
        served.set("drive0", "rate_limiter", "proportional");
        assert_eq!(served.settings(), own(4, &proportional, "cost-benefit"));
        served.server.stop();
    }
}

/// All shards change, each on the thread of its core; or none.
#[test]
fn every_shard_changes_or_none() {
    for (scenario, shards, most, threads) in [
        (shards(), 2, 8, "2"),
        (on_cores(&shards(), "mq", 4), 2, 8, "2"),
        (shards(), 2, 8, "1"),
        // Shards that have parts of all units.
        (shards().replace("shards = 2", "shards = 3"), 3, 16, "2"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let served = Served::start(dir.path(), &scenario, &["--threads", threads]);
        let job = "--rw=randwrite --bs=4k --iodepth=8 --numjobs=4 --size=8m --offset_increment=8m \
                   --verify=crc32c --verify_fatal=1";
        std::thread::scope(|scope| {
            let load = scope.spawn(|| {
                fio_ok(&served.server, &job.split_whitespace().collect::<Vec<_>>());
            });
            let line = served.set("drive0", "active_pus", "3");
            let expected = format!("drive0: active_pus 3 of {most} in each of {shards} shards, ");
            assert!(line.starts_with(&expected), "{line}");
            served.set("drive0", "victim_policy", "fifo");
            served.set("drive0", "rate_limiter", "pid");
            let before = served.settings();
            assert_eq!(
                (&before[0]["shards"], &before[0]["active_pus"]),
                (&shards.into(), &3.into())
            );
            assert_eq!(before[0]["victim_policy"], "fifo");
            let more = (most + 1).to_string();
            let output = served.admin(&["set", "drive0", "active_pus", &more]);
            let text = text_of(&output);
            assert_eq!(output.status.code(), Some(2), "{text}");
            assert!(text.contains(&format!("allowed are 1 to {most}")), "{text}");
            assert_eq!(served.settings(), before);
            load.join().unwrap();
        });
        served.server.stop();
    }
}

#[test]
fn refused_changes_say_what_is_allowed_and_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(dir.path(), TARGETS, &[]);
    let before = served.settings();
    let no_ftl = "the device has no FTL whose settings could change";
    for (name, key, value, says) in [
        ("left", "active_pus", "9", "the layer was opened with 8: allowed are 1 to 8, or 0"),
        ("right", "active_pus", "6", "allowed are 1 to 5"),
        ("middle", "active_pus", "1", "no drive or target middle is served; there are: "),
        ("store", "active_pus", "1", "there are: oc, null, left, right"),
        ("l", "active_pus", "1", "there are: oc, null, left, right"),
        ("oc", "active_pus", "1", no_ftl),
        ("null", "victim_policy", "fifo", no_ftl),
        ("left", "over_provisioning", "0.3", "allowed: active_pus, rate_limiter, victim_policy"),
        ("left", "victim_polcy", "fifo", "did you mean `victim_policy`?"),
        ("left", "time", "10s", "[at] has no key `time`"),
        ("left", "max_chunks", "5", "does not change while a target is open, nor do its chunks"),
        ("left", "weight", "5", "[at] has no key `weight`"),
        ("left", "active_pus", "-1", "`at.active_pus` cannot be -1; allowed: whole numbers from 0"),
        ("left", "active_pus", "many", "`at.active_pus` cannot be the string \"many\""),
        ("left", "victim_policy", "oldest", "`at.victim_policy` cannot be \"oldest\"; "),
        ("left", "victim_policy", "fifo\nactive_pus = 1", "`at.victim_policy` cannot be \"fifo"),
        ("left", "rate_limiter", "pdi", "did you mean \"pid\"?"),
        ("left", "rate_limiter", "{ kind = \"pid\", kp = 1e9 }", "numbers from 0 to "),
        ("left", "rate_limiter", "{ kind = \"pid\", kq = 1 }", "has no key `kq`"),
        ("left", "rate_limiter", "{ kind = \"pid\"", "`at.rate_limiter` cannot be"),
        ("a/b", "active_pus", "1", "is not a valid name"),
    ] {
        let output = served.admin(&["set", name, key, value]);
        let text = text_of(&output);
        assert_eq!(output.status.code(), Some(2), "{name} {key} {value}: {text}");
        assert!(text.contains(says), "{says}: {text}");
    }
    // The server checks messages of clients that do not.
    let mut admin = Admin::connect(&served.socket).unwrap();
    let left = ResourceName::new("left").unwrap();
    for gain in [-1.0, 1e9, f64::MAX] {
        let limiter = LimiterSetting::Pid { kp: 1.0, ki: gain, kd: 0.0 };
        let error = admin.set(left, SettingChange::RateLimiter(limiter)).unwrap_err();
        let RemoteDeviceError::Refused(refused) = &error else { panic!("{error}") };
        assert_eq!(refused.code, Code::Setting, "{error}");
        assert!(error.to_string().contains("each must be from 0 to"), "{error}");
    }
    let error = admin.set(ResourceName::NONE, SettingChange::ActivePus(1)).unwrap_err();
    assert_eq!(error.protocol_error().map(|refused| refused.code), Some(Code::Unknown), "{error}");
    assert_eq!(served.settings(), before);
    // A server that ends meanwhile says so.
    served.server.stop_all();
    let error = admin.set(left, SettingChange::ActivePus(1)).unwrap_err();
    assert_eq!(error.protocol_error().map(|refused| refused.code), Some(Code::Stopping), "{error}");
}

/// The members of a set are named one by one.
#[test]
fn the_targets_of_a_set_have_settings_of_their_own() {
    let drive =
        |name: &str| DRIVE.replace("[drive]", "[[drive]]") + &format!("name = \"{name}\"\n");
    let open = "personality = \"open-channel\"\n";
    let target = |name: &str, drive: &str| {
        format!(
            "[[target]]\nname = \"{name}\"\ndrive = \"{drive}\"\nkind = \"pblk\"\n\
             pus = \"0-7\"\n"
        )
    };
    for (queue_model, threads) in [("sq", "2"), ("mq", "1"), ("mq", "2")] {
        let scenario = drive("a")
            + open
            + &drive("b")
            + open
            + &target("on-a", "a")
            + &target("on-b", "b")
            + "[[set]]\nname = \"both\"\nmembers = [\"on-a\", \"on-b\"]\n"
            + "[[path]]\nname = \"s\"\nover = \"both\"\n"
            + &format!("queue_model = \"{queue_model}\"\ncores = 2\n");
        let dir = tempfile::tempdir().unwrap();
        let served = Served::start(dir.path(), &scenario, &["--threads", threads]);
        served.set("on-b", "active_pus", "2");
        let settings = served.settings();
        let of = |i: usize| (settings[i]["device"].clone(), settings[i]["active_pus"].clone());
        let expected = [("on-a".into(), 8.into()), ("on-b".into(), 2.into())];
        assert_eq!([of(0), of(1)], expected, "{settings}");
        served.set("on-a", "active_pus", "5");
        let settings = served.settings();
        assert_eq!(
            (&settings[0]["active_pus"], &settings[1]["active_pus"]),
            (&5.into(), &2.into())
        );
        served.server.stop_all();
    }
}

/// Returns the number of reads of a client of NBD that fail.
fn read_errors(served: &Served, options: &str) -> u64 {
    let options = format!("--rw=read --bs=4k --continue_on_error=all {options}");
    let options: Vec<&str> = options.split_whitespace().collect();
    let output = fio_at(&served.server, "", &options).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let json = text.find('{').map_or("", |at| &text[at..]);
    let value: Value = serde_json::from_str(json).unwrap_or_else(|e| panic!("{e}: {text}"));
    value["jobs"][0]["total_err"].as_u64().unwrap()
}

/// A client of a served drive with protection information gets an error instead of wrong data.
#[test]
fn a_served_drive_with_protection_information_returns_no_corrupted_data() {
    let dir = tempfile::tempdir().unwrap();
    let drive = DRIVE.replacen("geometry = {", "geometry = { oob_bytes = 24,", 1);
    let keys = "data = \"memory\"\nprotection = \"type1\"\n";
    let scenario = format!("{drive}{keys}[precondition]\nfill = \"sequential\"\n");
    let served = Served::start(dir.path(), &scenario, &[]);
    assert_eq!(read_errors(&served, "--size=1m"), 0);
    for (words, expected) in [
        (&["corrupted-data", "lba=3"][..], 1),
        (&["corrupted-data", "lba=7", "what=guard"], 2),
        (&["corrupted-data", "lba=9", "what=reference-tag"], 3),
    ] {
        let output = served.admin(&[&["fault", "drive0"], words].concat());
        assert!(output.status.success(), "{}", text_of(&output));
        assert_eq!(read_errors(&served, "--size=1m"), expected, "{words:?}");
    }
    let output = served.admin(&["fault", "drive0", "corrupted-data", "lba=3", "what=all"]);
    assert!(text_of(&output).contains("reference-tag"), "{}", text_of(&output));
    served.server.stop();
}

/// Reads fail after a fault as the drive has it, and others do not; the drive recovers from a power
/// cut.
#[test]
fn a_served_drive_fails_as_an_administrator_says() {
    let dir = tempfile::tempdir().unwrap();
    let scenario = format!("{DRIVE}data = \"memory\"\n[precondition]\nfill = \"sequential\"\n");
    let served = Served::start(dir.path(), &scenario, &[]);
    let fault = |words: &[&str]| served.admin(&[&["fault", "drive0"], words].concat());
    let errors = |options: &str| read_errors(&served, options);
    assert_eq!(errors("--size=1m"), 0);
    for (words, expected) in [
        (&["uncorrectable", "lba=3"][..], 1),
        (&["read-failure", "lba=7"], 2),
        (&["slow-die", "pu=3", "factor=3", "duration=1s"], 1),
        (&["power-cut"], 1),
    ] {
        let output = fault(words);
        let text = text_of(&output);
        assert!(output.status.success(), "{text}");
        assert_eq!(text, format!("drive0: {}\n", words.join(" ")));
        assert_eq!(errors("--size=1m"), expected, "{words:?}");
    }
    // A format and Sanitize end, and leave a drive that works.
    for words in [
        &["format", "erase=true"][..],
        &["format"],
        &["sanitize", "action=block-erase"],
        &["sanitize", "action=overwrite"],
    ] {
        let output = fault(words);
        let text = text_of(&output);
        assert!(output.status.success(), "{text}");
        assert_eq!(text, format!("drive0: {}\n", words.join(" ")));
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while errors("--size=64k") > 0 {
            assert!(std::time::Instant::now() < end, "{words:?} does not end");
        }
    }
    for (words, says) in [
        (&["die-failure"][..], "needs `pu`"),
        (&["format", "erase=1"], "`fault.erase`"),
        (&["sanitize"], "needs `action`"),
        (&["sanitize", "action=crypto-erase"], "overwrite"),
        (&["die-failure", "pu"], "`fault.pu` cannot be"),
        (&["die-failure", "pu=99999"], "drive0: `pu` 99999 does not exist: there are "),
        (&["die-failure", "pu=1", "chunk=3"], "has no key `chunk`"),
        (&["dye-failure", "pu=1"], "did you mean \"die-failure\"?"),
        (&["read-failure", "rate=2", "duration=1s"], "numbers from 0 to 1"),
        (&["stalled-queue", "queue=999", "duration=1s"], "no host has an I/O queue 999"),
    ] {
        let output = fault(words);
        let text = text_of(&output);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {text}");
        assert!(text.contains(says), "{says}: {text}");
    }
    let text = text_of(&served.admin(&["fault", "x", "power-cut"]));
    assert!(text.contains("no emulated NVMe drive x is served; there are: drive0"), "{text}");
    served.server.stop();
}
