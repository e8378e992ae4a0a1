//! `sluice sim` and images: a simulation starts from the contents of an image, and changes neither
//! the image nor the files beside it without `--write-image`.

// guarantee: D-03

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use scenario::Scenario;
use serde_json::Value;
use stack::Stack;

const NAND: &str = "geometry = { channels = 2, pus = 2, chunks = 24, pages = 32 }\n";
const WRITER: &str = "[[job]]\nname = \"w\"\nrw = \"randwrite\"\nbs = \"4k\"\nsize = \"4m\"\n\
    iodepth = 8\n";
const READER: &str = "[[job]]\nname = \"r\"\nrw = \"read\"\nbs = \"4k\"\nsize = \"4m\"\n";
const FILL: &str = "[precondition]\nfill = \"sequential\"\n";

/// Drives with an image, and in some cases files beside it.
fn drives() -> Vec<(&'static str, String)> {
    let image = "data = \"file\"\npath = \"drive.img\"\n";
    let open = format!(
        "[drive]\npreset = \"femu-default\"\npersonality = \"open-channel\"\n{NAND}{image}"
    );
    vec![
        ("managed", format!("[drive]\npreset = \"femu-default\"\n{NAND}{image}")),
        (
            "protected memory buffer",
            format!(
                "[drive]\npreset = \"femu-default\"\n{NAND}{image}\
                 cmb = \"1M\"\ncmb_persistent = true\n"
            ),
        ),
        (
            "persistent memory region",
            format!(
                "[drive]\npreset = \"femu-default\"\n{NAND}{image}\
                 pmr = {{ size = \"1M\" }}\n"
            ),
        ),
        ("pblk", format!("{open}[target]\nkind = \"pblk\"\n")),
        (
            "rrpc over the drive's map",
            format!("{open}device_l2p = true\n[target]\nkind = \"rrpc\"\n"),
        ),
        ("phase change", format!("[drive]\npreset = \"pcm\"\ncapacity = \"64M\"\n{image}")),
    ]
}

struct TestDir(tempfile::TempDir);

impl TestDir {
    fn new() -> TestDir {
        TestDir(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn scenario(&self, text: &str) -> PathBuf {
        let path = self.path().join("s.toml");
        std::fs::write(&path, text).unwrap();
        path
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
        command.args(["sim", "s.toml"]).args(args).current_dir(self.path());
        command
    }

    fn sim(&self, text: &str, args: &[&str]) -> Output {
        self.scenario(text);
        self.command(args).output().unwrap()
    }

    /// Runs a scenario that must succeed, and returns the result.
    fn ran(&self, text: &str, args: &[&str]) -> Value {
        let out = self.sim(text, &[args, &["--json", "-"]].concat());
        assert!(out.status.success(), "{text}: {}", String::from_utf8_lossy(&out.stderr));
        let mut ways: Value = serde_json::from_slice(&out.stdout).unwrap();
        ways[0].take()
    }

    /// Returns every file except the scenario, with its contents and modification time.
    fn files(&self) -> BTreeMap<PathBuf, (Vec<u8>, std::time::SystemTime)> {
        let entries = std::fs::read_dir(self.path()).unwrap().map(|e| e.unwrap().path());
        let kept = entries.filter(|path| !path.ends_with("s.toml"));
        let changed = |path: &Path| path.metadata().unwrap().modified().unwrap();
        kept.map(|path| (path.clone(), (std::fs::read(&path).unwrap(), changed(&path)))).collect()
    }
}

fn unmapped(way: &Value) -> u64 {
    way["sluice"]["drives"][0]["ftl"]["unmapped_reads"].as_u64().unwrap_or(0)
}

#[test]
fn no_file_is_made_and_none_is_changed_unless_it_is_said() {
    for (name, drive) in drives() {
        let place = TestDir::new();
        // Without an image, every run starts with a new drive.
        place.ran(&format!("{drive}{FILL}{WRITER}"), &[]);
        assert_eq!(place.files(), BTreeMap::new(), "{name}: a simulation made files");

        let made = place.ran(&format!("{drive}{FILL}{WRITER}"), &["--write-image"]);
        let before = place.files();
        assert!(before.contains_key(&place.path().join("drive.img")), "{name}");
        assert!(before.keys().all(|p| !p.ends_with("drive.img.preconditioning")), "{name}");
        assert!(
            made["sluice"]["notes"]
                .as_array()
                .unwrap()
                .iter()
                .all(|n| n["code"] != "not-preconditioned")
        );

        // The contents of the image are found, and are not preconditioned again.
        let read = place.ran(&format!("{drive}{FILL}{READER}"), &[]);
        assert_eq!(unmapped(&read), 0, "{name}: the run does not read the contents of the image");
        let codes = read["sluice"]["notes"].as_array().unwrap().iter().map(|n| n["code"].clone());
        assert!(codes.into_iter().any(|c| c == "not-preconditioned"), "{name}: {read:#}");
        assert!(place.files() == before, "{name}: reading changed a file");

        // Two runs give the same result, because the first one does not change the image.
        let text = format!("{drive}{WRITER}");
        let [first, second] = [(); 2].map(|()| place.ran(&text, &[]));
        assert_eq!(first, second, "{name}");
        assert!(place.files() == before, "{name}: writing changed a file");

        // A run that is killed changes no file either.
        place.scenario(&text.replace("\"4m\"", "\"4m\"\ntime_based = true\nruntime = \"10h\""));
        let mut child =
            place.command(&[]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(400));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(place.files() == before, "{name}: a run that was killed changed a file");

        place.ran(&text, &["--write-image"]);
        assert!(place.files() != before, "{name}: --write-image did nothing");
        let kept = place.ran(&format!("{drive}{READER}"), &[]);
        assert_eq!(unmapped(&kept), 0, "{name}: written data must be there in the next run");
    }
}

#[test]
fn an_image_that_is_in_use_is_refused_and_not_disturbed() {
    let (_, drive) = drives().swap_remove(0);
    let place = TestDir::new();
    place.ran(&format!("{drive}{WRITER}"), &["--write-image"]);
    let scenario = Scenario::load(&place.scenario(&drive)).unwrap();
    let owner = Stack::build(&scenario.drives[0], None).unwrap();
    let before = place.files();
    for args in [&[][..], &["--write-image"]] {
        let out = place.sim(&format!("{drive}{READER}"), args);
        let told = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(1), "{told}");
        assert!(told.contains("drive.img is in use"), "{told}");
    }
    assert!(place.files() == before, "the owner's image was changed");
    drop(owner);
}

#[test]
fn an_image_whose_preconditioning_was_interrupted_holds_nothing() {
    let (_, drive) = drives().swap_remove(0);
    let place = TestDir::new();
    place.ran(&format!("{drive}{WRITER}"), &["--write-image"]);
    std::fs::write(place.path().join("drive.img.preconditioning"), "").unwrap();
    let before = place.files();
    let way = place.ran(&format!("{drive}{FILL}{READER}"), &[]);
    assert_eq!(unmapped(&way), 0, "the drive must be preconditioned like a new one");
    let way = place.ran(&format!("{drive}{READER}"), &[]);
    assert_eq!(unmapped(&way), 1024);
    assert!(place.files() == before);
    // A run with `--write-image` preconditions the image again, and removes the mark.
    place.ran(&format!("{drive}{FILL}{READER}"), &["--write-image"]);
    assert!(!place.path().join("drive.img.preconditioning").exists());
}

#[test]
fn kv_bench_leaves_the_image_of_a_whole_drive_as_it_is() {
    let place = TestDir::new();
    let drive = format!(
        "[drive]\npreset = \"femu-default\"\npersonality = \"open-channel\"\n{NAND}\
         data = \"file\"\npath = \"drive.img\"\n"
    );
    place.scenario(&drive);
    for workload in ["a", "c"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
        command.args(["kv", "bench", "s.toml", "--workload", workload, "--quick"]);
        let args = ["--records", "500", "--operations", "200", "--value-bytes", "100"];
        let out = command.args(args).current_dir(place.path()).output().unwrap();
        assert!(out.status.success(), "{workload}: {}", String::from_utf8_lossy(&out.stderr));
        assert_eq!(place.files(), BTreeMap::new(), "{workload} made files");
    }
}
