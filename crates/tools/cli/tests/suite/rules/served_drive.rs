//! `sluice rules install|list|stats|table|miss`: the rules of a drive that is served.

// guarantee: B-115

use crate::served;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use served::*;
use testkit::nbd_client::{self, NbdClient};

const TEST_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) const APP: &str =
    "app db { units = 0-15, spare = 0.05 }\ntable map: addr[db.sectors] durable\n";

pub(super) const LOAD: &str = "rule load\n  when channel.app == db and header.read\n  \
    do header.addr = map[header.lba]; insert lun\n";

pub(super) const STORE: &str = "rule store\n  when channel.app == db and header.write\n  \
    set map[header.lba] = next_addr(db.host)\n  do header.addr = map[header.lba]; insert lun\n";

/// A server of a drive whose rules have none for writes.
pub(super) struct Served {
    pub(super) server: Server,
    socket: PathBuf,
    folder: PathBuf,
}

impl Served {
    fn start(folder: &Path, timeout: &str) -> Served {
        let scenario = format!(
            "{DRIVE}data = \"memory\"\npersonality = \"rules\"\n\
             rules = {{ program = \"load.rules\", miss_timeout = \"{timeout}\" }}\n"
        );
        Served::with(folder, &scenario)
    }

    /// Starts a server of a scenario whose program is `load.rules`.
    pub(super) fn with(folder: &Path, scenario: &str) -> Served {
        let socket = folder.join("admin.sock");
        std::fs::write(folder.join("load.rules"), format!("{APP}{LOAD}")).unwrap();
        let args = ["--admin-socket", socket.to_str().unwrap()];
        let server = Server::launch(folder, scenario, &args).wait_ready();
        let start = Instant::now();
        while !server.stdout().contains("answering `sluice admin") {
            assert!(start.elapsed() < TEST_TIMEOUT, "{}", server.stderr());
            std::thread::sleep(Duration::from_millis(5));
        }
        Served { server, socket, folder: folder.to_owned() }
    }

    pub(super) fn rules(&self, command: &str, args: &[&str]) -> Output {
        let mut sluice = Command::new(env!("CARGO_BIN_EXE_sluice"));
        sluice.args(["rules", command, "--socket"]).arg(&self.socket).args(args).output().unwrap()
    }

    pub(super) fn json(&self, command: &str, args: &[&str]) -> Value {
        let output = self.rules(command, &[&["--json", "drive0"], args].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// Writes a program, and returns the path of its file.
    pub(super) fn program(&self, name: &str, source: &str) -> String {
        let path = self.folder.join(name);
        std::fs::write(&path, source).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Returns the record of writes that missed, once there are some.
    fn missed_writes(&self) -> Value {
        let begun = Instant::now();
        loop {
            match self.json("miss", &[])["missed"].get(0) {
                Some(record) => return record.clone(),
                None => assert!(begun.elapsed() < TEST_TIMEOUT, "no write missed"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn a_program_is_installed_while_commands_wait_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), "50s");
    assert_eq!(served.json("list", &[])["rules"], json!(["load"]));
    let whole = served.program("whole.rules", &format!("{APP}{LOAD}{STORE}"));
    let server = &served.server;
    std::thread::scope(|scope| {
        let job = ["--rw=randwrite", "--bs=4k", "--iodepth=8", "--size=1m", "--verify=crc32c"];
        let fio = scope.spawn(move || fio_ok(server, &job));
        let record = served.missed_writes();
        assert_eq!(record["op"], "write");
        // The drive refuses programs that it does not execute, and the compiler other files.
        let other_stream = format!("{APP}{LOAD}{}", STORE.replace("db.host", "db.gc"));
        for (source, message) in [
            (other_stream.as_str(), "the drive does not execute writes in the stream `gc` yet"),
            ("rule x", "expected `when`"),
            ("app db { units = 0-99 }", "units"),
        ] {
            let file = served.program("bad.rules", source);
            let refused = served.rules("install", &["drive0", &file]);
            let text = String::from_utf8_lossy(&refused.stderr);
            assert_eq!(refused.status.code(), Some(2), "{source}: {text}");
            assert!(text.contains(message), "{source}: {text}");
        }
        assert!(!fio.is_finished());
        let installed = served.json("install", &[&whole]);
        assert_eq!((&installed["rules"], &installed["parked"]), (&json!(2), &json!(0)));
        fio.join().expect("fio");
    });
    let record = served.missed_writes();
    assert_eq!((&record["parked"], &record["timed_out"]), (&json!(0), &json!(0)));
    assert_eq!(record["misses"], record["released"]);
    let stats = served.json("stats", &[]);
    let rules = stats["stats"]["rules"].as_array().expect("rules");
    let store = rules.iter().find(|rule| rule["name"] == "store").expect("a rule");
    assert!(store["matches"].as_u64() >= Some(256), "{stats}");
    assert_eq!(served.json("list", &[])["installations"], 1);
    for command in ["list", "stats", "miss"] {
        let output = served.rules(command, &["drive0"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && text.lines().count() > 1, "{command}: {text}");
    }
}

const TABLES: &str = "table wanted: set<u16>[4] volatile\ntable sums: map<u32, u64>[100] volatile\n\
    table counts: u8[300] volatile\n\
    rule ask when channel.app == db and header.op == user2\n  \
    do if header.arg0 in wanted { complete ok value sums[header.arg0] + counts[0] } complete not_found\n";

#[test]
fn entries_of_tables_are_read_and_changed() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), "1s");
    let program = served.program("tables.rules", &format!("{APP}{TABLES}{LOAD}{STORE}"));
    served.json("install", &[&program]);
    let tables = served.json("list", &[])["tables"].clone();
    let kinds = ["addr", "set<u16>", "map<u32,u64>", "u8"];
    let found: Vec<&Value> = (0..4).map(|at| &tables[at]["kind"]).collect();
    assert_eq!(found, kinds.map(Value::from).iter().collect::<Vec<_>>());
    assert_eq!((&tables[2]["name"], &tables[2]["capacity"]), (&json!("sums"), &json!(100)));
    assert_eq!((&tables[0]["durable"], &tables[3]["durable"]), (&json!(true), &json!(false)));

    let table = |args: &[&str]| served.json("table", args);
    assert_eq!(table(&["wanted", "add", "3", "0x10", "65535"])["changed"], 3);
    assert_eq!(table(&["wanted", "get", "2", "--count", "3"])["values"], json!([0, 1, 0]));
    assert_eq!(table(&["wanted", "remove", "3", "4"])["changed"], 2);
    assert_eq!(table(&["wanted", "get", "3"])["values"], json!([0]));
    let large = u64::MAX.to_string();
    table(&["sums", "set", "7=70", &format!("0x8={large}"), "7=71"]);
    let sums = table(&["sums", "get", "6", "--count", "3"]);
    assert_eq!(sums, json!({ "first": 6, "values": [0, 71, u64::MAX] }));
    // Many entries and keys are several messages.
    let all: Vec<String> = (0..300).map(|at| format!("{at}={}", at % 256)).collect();
    let set = ["counts", "set"].into_iter().chain(all.iter().map(String::as_str));
    assert_eq!(table(&set.collect::<Vec<_>>())["changed"], 300);
    let values: Vec<u32> = (0..300).map(|at| at % 256).collect();
    assert_eq!(table(&["counts", "get", "0", "--count", "300"])["values"], json!(values));
    let text = served.rules("table", &["drive0", "counts", "get", "254", "--count", "3"]);
    assert_eq!(String::from_utf8_lossy(&text.stdout), "254 254\n255 255\n256 0\n");
    let text = served.rules("table", &["drive0", "counts", "set", "1=9"]);
    assert_eq!(String::from_utf8_lossy(&text.stdout), "drive0: 1 entries of counts changed\n");

    for (args, message) in [
        (&["other", "get", "0"][..], "have no table other; they have: map, wanted, sums, counts"),
        (&["counts", "get", "299", "--count", "2"], "key 300"),
        (&["counts", "get", "0", "--count", "0"], "--count"),
        (&["counts", "set", "300=1"], "key 300"),
        (&["counts", "set", "1"], "expected KEY=VALUE"),
        (&["counts", "set", "1=x"], "expected a number"),
        (&["counts", "add", "1"], "counts"),
        (&["wanted", "set", "1=1"], "wanted"),
        (&["wanted", "add", "65536"], "wanted"),
        (&["wanted", "add", "1", "2", "3", "4"], "wanted"),
        (&["map", "get", "0"], "map"),
    ] {
        let refused = served.rules("table", &[&["drive0"], args].concat());
        let text = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{args:?}: {text}");
        assert!(text.contains(message), "{args:?}: {text}");
    }
}

#[test]
fn parked_commands_end_without_a_controller_or_when_it_rejects_them() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), "1s");
    let job = ["--rw=write", "--bs=4k", "--size=4k"];
    // No controller answers.
    let begun = Instant::now();
    let output = fio(&served.server, &job).output().unwrap();
    assert!(!output.status.success() && begun.elapsed() >= Duration::from_secs(1));
    let timed_out = served.missed_writes()["timed_out"].as_u64().expect("a number");
    assert!(timed_out >= 1);
    // Nothing is left to reject.
    assert_eq!(served.json("miss", &["--reject", "all"])["rejected"], 0);
    assert_eq!(served.json("miss", &["--reject", "write"])["rejected"], 0);
    let unknown = served.rules("miss", &["drive0", "--reject", "nothing"]);
    assert_eq!(unknown.status.code(), Some(2));
    // Reads have a rule all the time.
    fio_ok(&served.server, &["--rw=read", "--bs=4k", "--size=64k"]);
    let unknown = served.rules("list", &["other"]);
    let text = String::from_utf8_lossy(&unknown.stderr);
    assert!(unknown.status.code() == Some(2) && text.contains("drive0"), "{text}");
}

#[test]
fn a_drive_without_rules_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("admin.sock");
    let args = ["--admin-socket", socket.to_str().unwrap()];
    let server = Server::launch(folder.path(), DRIVE, &args).wait_ready();
    let served = Served { server, socket, folder: folder.path().to_owned() };
    let begun = Instant::now();
    while !served.server.stdout().contains("answering `sluice admin") {
        assert!(begun.elapsed() < TEST_TIMEOUT, "{}", served.server.stderr());
        std::thread::sleep(Duration::from_millis(5));
    }
    for command in ["list", "stats", "miss"] {
        let output = served.rules(command, &["drive0"]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains("the drive has no rules: set personality = \"rules\""), "{text}");
    }
}

/// A program of two applications on these units, whose rules store and read at the block that a host names.
fn two_applications(units: [&str; 2]) -> String {
    let of = |app: &str, units: &str| {
        let rules =
            format!("{STORE}{LOAD}").replace("rule ", "rule db_").replace("map[", "db_map[");
        let app_line = "app db { units = U, spare = 0.05 }\n".replace('U', units);
        let table = "table db.db_map: addr[db.sectors] durable\n";
        format!("{app_line}{table}{rules}").replace("db", app)
    };
    of("db", units[0]) + &of("log", units[1])
}

/// Returns the bytes of an export.
fn export_bytes(socket: &Path, name: &str) -> u64 {
    let mut client = NbdClient::greeted(socket);
    let replies = client.option(7, &nbd_client::info_data(name, &[]));
    let (_, info) = replies.iter().find(|reply| reply.0 == nbd_client::REP_INFO).expect("a size");
    nbd_client::be64(&info[2..])
}

// guarantee: B-129
#[test]
fn each_application_is_served_with_its_own_blocks_only() {
    serve_applications(&two_applications(["0-7", "8-15"]));
}

// guarantee: D-68
#[test]
fn applications_that_share_units_are_served_with_their_own_blocks_only() {
    serve_applications(&two_applications(["0-15, quota = 0.45", "0-15, quota = 0.45"]));
}

/// Serves two applications of one size, twice, to a client each.
fn serve_applications(program: &str) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("apps.rules"), program).unwrap();
    let drive = format!(
        "{}personality = \"rules\"\nrules = {{ program = \"apps.rules\" }}\n",
        in_file(DRIVE)
    );
    // The applications have a path each, without any in the scenario or with other names.
    let paths = "[[path]]\nname = \"first\"\nover = \"drive0\"\napp = \"db\"\n\
        [[path]]\nname = \"second\"\nover = \"drive0\"\napp = \"log\"\n";
    let mut kept: Option<[Vec<u8>; 2]> = None;
    for (scenario, names) in
        [(drive.clone(), ["db", "log"]), (format!("{drive}{paths}"), ["first", "second"])]
    {
        let server = Server::launch(folder.path(), &scenario, &[]).wait_ready();
        let sizes = names.map(|name| export_bytes(&server.socket, name));
        assert_eq!(sizes[0], sizes[1], "equal numbers of units, or quotas");
        let mut clients = names.map(|name| NbdClient::named(&server.socket, name));
        // Each application has the data that its client wrote to the server before.
        if let Some(kept) = &kept {
            for (client, bytes) in clients.iter_mut().zip(kept) {
                assert!(client.read(0, 4 * 4096).unwrap() == *bytes);
            }
        }
        // Equal offsets are other blocks, whichever client writes last.
        for block in 0..64u64 {
            let (first, second) = (block as u8, !(block as u8));
            let order = if block % 2 == 0 { [0, 1] } else { [1, 0] };
            for at in order {
                let value = [first, second][at];
                clients[at].write(block * 4096, &[value; 4096]).unwrap();
            }
            for (client, value) in clients.iter_mut().zip([first, second]) {
                assert!(client.read(block * 4096, 4096).unwrap() == [value; 4096], "{block}");
            }
        }
        // A trim of all blocks of one removes nothing of the other.
        clients[1].command(nbd_client::TRIM, 0, 32 * 4096, (sizes[1] - 32 * 4096) as u32).unwrap();
        for block in 32..64u64 {
            assert!(clients[0].read(block * 4096, 4096).unwrap() == [block as u8; 4096]);
            assert!(clients[1].read(block * 4096, 4096).unwrap() == [0; 4096]);
        }
        // No offset is one of the other application's: an export ends where its own blocks do.
        for (client, size) in clients.iter_mut().zip(sizes) {
            assert!(client.read(size - 4096, 4096).is_ok());
            assert_eq!(client.read(size, 4096), Err(nbd_client::EINVAL));
            assert_eq!(client.read(size - 4096, 2 * 4096), Err(nbd_client::EINVAL));
            assert_eq!(client.write(size, &[7; 4096]), Err(nbd_client::ENOSPC));
        }
        kept = Some([0, 1].map(|at| {
            clients[at].flush().unwrap();
            clients[at].read(0, 4 * 4096).unwrap()
        }));
        drop(clients);
        let told = server.stop_all();
        let served = told["paths"].as_array().expect("paths");
        let served: Vec<_> = served.iter().map(|path| path["name"].as_str().unwrap()).collect();
        assert_eq!(served, names);
    }
}
