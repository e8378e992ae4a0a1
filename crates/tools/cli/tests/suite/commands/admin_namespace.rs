//! `sluice admin namespace`: namespaces of drives that change while they are served.

// guarantee: B-42, B-46

use crate::served;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use served::*;

const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A drive whose second namespace an export serves, and an open-channel drive.
fn scenario() -> String {
    let drive =
        |name: &str| DRIVE.replace("[drive]", "[[drive]]") + &format!("name = \"{name}\"\n");
    drive("a")
        + "data = \"memory\"\nnamespaces = [\"1M\", \"16M\"]\n"
        + &drive("oc")
        + "personality = \"open-channel\"\n\
           [[target]]\nname = \"t\"\ndrive = \"oc\"\nkind = \"pblk\"\npus = \"0-15\"\n\
           [[path]]\nname = \"p\"\nover = \"a\"\nnamespace = 2\n\
           [[path]]\nname = \"q\"\nover = \"t\"\n"
}

struct Served {
    server: Server,
    socket: PathBuf,
}

impl Served {
    fn start(dir: &Path, scenario: &str) -> Served {
        let socket = dir.join("admin.sock");
        let args = ["--admin-socket", socket.to_str().unwrap()];
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

    /// Runs `sluice admin namespace`. Returns the exit status and the output.
    fn namespace(&self, args: &[&str]) -> (Option<i32>, String) {
        let output = self.admin(&[&["namespace"], args].concat());
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), text + &String::from_utf8_lossy(&output.stderr))
    }

    fn listing(&self, drive: &str) -> Value {
        let (_, text) = self.namespace(&["list", drive, "--json"]);
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
    }
}

#[test]
fn namespaces_of_a_served_drive_change() {
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(dir.path(), &scenario());
    let job = "--rw=randwrite --bs=4k --iodepth=8 --size=2m --verify=crc32c --verify_fatal=1 \
               --end_fsync=1";
    let job: Vec<&str> = job.split_whitespace().collect();
    fio_ok_at(&served.server, "p", &job);
    let before = served.listing("a");
    let second = &before["namespaces"][1];
    assert_eq!((&before["device"], &second["namespace"]), (&json!("a"), &json!(2)));
    assert_eq!((&second["bytes"], &second["blocks"]), (&json!(16 << 20), &json!(4096)));
    assert_eq!((&second["used_bytes"], &second["attached"]), (&json!(2 << 20), &json!(true)));
    assert_eq!(second["block_bytes"], 4096);
    let unallocated = before["unallocated_bytes"].as_u64().unwrap();
    // A namespace comes and goes while another is written.
    std::thread::scope(|scope| {
        let load = scope.spawn(|| fio_ok_at(&served.server, "p", &job));
        for (args, expected) in [
            (&["create", "a", "1M"][..], "a: namespace 3 created\n"),
            (&["attach", "a", "3"], "a: namespace 3 attached\n"),
            (&["detach", "a", "3"], "a: namespace 3 detached\n"),
            (&["delete", "a", "3"], "a: namespace 3 deleted\n"),
            (&["create", "a", "rest"], "a: namespace 3 created\n"),
        ] {
            assert_eq!(served.namespace(args), (Some(0), expected.to_owned()));
        }
        load.join().unwrap();
    });
    let after = served.listing("a");
    let third = &after["namespaces"][2];
    assert_eq!((&third["bytes"], &third["attached"]), (&json!(unallocated), &json!(false)));
    assert_eq!((&third["used_bytes"], &after["unallocated_bytes"]), (&json!(0), &json!(0)));
    assert_eq!(after["namespaces"][1]["nguid"], second["nguid"]);
    let (_, list) = served.namespace(&["list", "a"]);
    let nguid = third["nguid"].as_str().unwrap();
    assert!(
        list.starts_with("a: 0 B unallocated\n  namespace 1: 256 blocks of 4096 bytes"),
        "{list}"
    );
    assert!(list.contains(&format!(", not attached, NGUID {nguid}\n")), "{list}");
    // Its blocks fail, and no others do.
    let fault = |words: &[&str]| {
        let output = served.admin(&[&["fault", "a"], words].concat());
        String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr)
    };
    let words = ["uncorrectable", "lba=3", "namespace=2"];
    assert_eq!(fault(&words), format!("a: {}\n", words.join(" ")));
    assert!(fault(&["uncorrectable", "lba=3", "namespace=3"]).contains("is not written"));
    assert!(fault(&["uncorrectable", "lba=3", "namespace=4"]).contains("no namespace 4"));
    assert!(fault(&["uncorrectable", "lba=256"]).contains("there are 256"));
    for (args, says) in [
        (&["create", "a", "4k"][..], "a: the namespace needs "),
        (&["create", "a", "0"], "at least one block"),
        (&["create", "a", "much"], "expected a size such as `4G`, or `rest`"),
        (&["attach", "a", "2"], "a: namespace 2 is attached already"),
        (&["detach", "a", "3"], "a: namespace 3 is not attached"),
        (&["detach", "a", "7"], "a: the drive has no namespace 7; it has: 1, 2, 3"),
        (&["delete", "a", "0"], "no namespace 0"),
        (&["delete", "a", "4294967295"], "expected the identifier of a namespace, or `all`"),
        (&["delete", "oc", "1"], "oc: the drive has one namespace"),
        (&["create", "t", "1M"], "no emulated NVMe drive t is served; there are: a, oc"),
        (&["list", "x"], "no emulated NVMe drive x is served; there are: a, oc"),
    ] {
        let (status, text) = served.namespace(args);
        assert_eq!(status, Some(2), "{args:?}: {text}");
        assert!(text.contains(says), "{says}: {text}");
    }
    assert_eq!(served.listing("a")["namespaces"], after["namespaces"]);
    assert_eq!(served.listing("oc")["namespaces"].as_array().unwrap().len(), 1);
    // The clients of a detached namespace get errors, until it is attached again.
    assert_eq!(served.namespace(&["detach", "a", "2"]).0, Some(0));
    assert!(!fio_at(&served.server, "p", &job).output().unwrap().status.success());
    assert_eq!(served.namespace(&["attach", "a", "2"]).0, Some(0));
    fio_ok_at(&served.server, "p", &job);
    served.server.stop_all();
}

/// The last flush of a server tells that the namespace that it serves is gone.
#[test]
fn a_server_ends_without_its_namespace() {
    let dir = tempfile::tempdir().unwrap();
    let served = Served::start(dir.path(), &scenario());
    let deleted = served.namespace(&["delete", "a", "all"]);
    assert_eq!(deleted, (Some(0), "a: all namespaces deleted\n".to_owned()));
    assert_eq!(served.listing("a")["namespaces"], json!([]));
    let mut server = served.server;
    server.signal(rustix::process::Signal::TERM);
    assert_eq!(server.wait().code(), Some(1));
    assert!(server.stderr().contains("the last flush failed"), "{}", server.stderr());
}
