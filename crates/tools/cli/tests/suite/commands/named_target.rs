//! Targets of a drive's partition table, opened by name from scenarios. Each target has its own
//! data, which survives. The table determines the layout. Error messages name the target and the
//! drive, and a refused request leaves every byte of the image unchanged.

// guarantee: B-45, D-02, D-44, D-48

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use block::{BlockDevice, Payload, Request};
use media::MediaConfig;
use mem::{Iova, SharedRegion};
use nvme::Status;
use scenario::Scenario;
use stack::{Stack, StackError};
use time::{Component, Nanos};

const SECTOR: usize = 4096;
const SECTORS_MAX: u32 = 64;

/// A drive of 8 parallel units, with paired pages and a device L2P.
const DRIVE: &str = "[drive]\nname = \"oc0\"\npreset = \"femu-default\"\npersonality = \"open-channel\"\n\
    cell = \"mlc\"\npaired_page_distance = 2\ngeometry = { channels = 2, pus = 4, chunks = 40, pages = 16 }\n\
    data = \"file\"\npath = \"oc0.img\"\n";

struct TestDir {
    dir: tempfile::TempDir,
    drive: String,
}

impl TestDir {
    fn new(drive: &str) -> TestDir {
        let place = TestDir { dir: tempfile::tempdir().expect("a folder"), drive: drive.into() };
        place.file("drive.toml", "");
        place
    }

    /// Writes a scenario of the drive with additional sections.
    fn file(&self, name: &str, more: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, format!("{}{more}", self.drive)).expect("written");
        path
    }

    fn image(&self) -> Vec<u8> {
        std::fs::read(self.dir.path().join("oc0.img")).expect("the image can be read")
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
        command.current_dir(self.dir.path()).args(args).env("NO_COLOR", "1");
        command.output().expect("the command runs")
    }

    fn run_ok(&self, args: &[&str]) -> String {
        let out = self.run(args);
        assert!(out.status.success(), "{args:?}: {}", text(&out.stderr));
        text(&out.stdout)
    }

    fn create(&self, name: &str, kind: &str, pus: &str, more: &[&str]) {
        let args = ["target", "create", "drive.toml", "--name", name, "--type", kind, "--pus", pus];
        let all: Vec<&str> = args.into_iter().chain(more.iter().copied()).collect();
        self.run_ok(&all);
    }

    /// Runs a command that must fail with `code`, with a message that contains every part, and
    /// without a change to the image.
    fn run_refused(&self, code: i32, args: &[&str], parts: &[&str]) {
        let before = self.image();
        let out = self.run(args);
        // Removes the frame of long messages.
        let told = text(&out.stderr);
        let words = told.split_whitespace().filter(|word| *word != "│");
        let told = words.collect::<Vec<_>>().join(" ");
        assert_eq!(out.status.code(), Some(code), "{args:?}: {told}");
        for part in parts {
            assert!(told.contains(part), "{args:?}: `{part}` is missing in: {told}");
        }
        assert!(self.image() == before, "{args:?} has changed the image: {told}");
    }

    /// Opens the target that a scenario with this section names.
    fn open(&self, target: &str) -> OpenedTarget {
        self.try_open(target).unwrap_or_else(|e| panic!("{target}: {e}"))
    }

    fn try_open(&self, target: &str) -> Result<OpenedTarget, StackError> {
        let scenario = Scenario::load(&self.file("open.toml", target)).unwrap();
        let stack = Stack::build(&scenario.drives[0], None)?;
        let memory = SharedRegion::anonymous(SECTORS_MAX as usize * SECTOR).unwrap();
        let at = stack.device.memory().register(&memory).unwrap();
        Ok(OpenedTarget { stack, memory, at, now: Nanos::ZERO })
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

struct OpenedTarget {
    stack: Stack,
    memory: Arc<SharedRegion>,
    at: Iova,
    now: Nanos,
}

impl OpenedTarget {
    fn sectors(&self) -> u64 {
        self.stack.device.limits().sectors
    }

    fn run(&mut self, request: Request) -> Status {
        let Stack { device, drive, .. } = &mut self.stack;
        device.submit(self.now, request).unwrap();
        for _ in 0..1_000_000 {
            let moved = device.poll(self.now) | drive.poll(self.now);
            if let Some(done) = device.reap() {
                return done.status;
            }
            if !moved {
                self.now = self.now.max(drive.deadline().min(device.deadline()));
            }
        }
        panic!("the request did not complete")
    }

    /// Runs until the target and the drive are idle, without new requests.
    fn run_until_idle(&mut self) {
        let Stack { device, drive, .. } = &mut self.stack;
        for _ in 0..1_000_000 {
            let moved = device.poll(self.now) | drive.poll(self.now);
            let next = drive.deadline().min(device.deadline());
            match moved {
                true => {}
                false if next == Nanos::MAX => return,
                false => self.now = self.now.max(next),
            }
        }
        panic!("the device did not become idle")
    }

    fn write(&mut self, lba: u64, sectors: u32, value: u64) {
        for i in 0..sectors {
            let word = value + u64::from(i);
            self.memory.write(i as usize * SECTOR, &word.to_le_bytes());
        }
        let status = self.run(Request::write(lba, sectors, Payload::Contiguous(self.at), 1));
        assert!(status.is_success(), "{status}");
    }

    /// Fills the device with numbers that start at `value`, and flushes.
    fn fill(&mut self, value: u64) {
        for lba in (0..self.sectors()).step_by(SECTORS_MAX as usize) {
            let sectors = u64::from(SECTORS_MAX).min(self.sectors() - lba) as u32;
            self.write(lba, sectors, value + lba);
        }
        assert!(self.run(Request::flush(2)).is_success());
    }

    fn read(&mut self, lba: u64) -> u64 {
        let status = self.run(Request::read(lba, 1, Payload::Contiguous(self.at), 3));
        assert!(status.is_success(), "{status}");
        let mut word = [0; 8];
        self.memory.read(0, &mut word);
        u64::from_le_bytes(word)
    }

    fn check_fill(&mut self, value: u64) {
        for lba in 0..self.sectors() {
            assert_eq!(self.read(lba), value + lba, "sector {lba}");
        }
    }

    /// Returns the parallel units that have been written.
    fn units_written(&mut self) -> Vec<u32> {
        let nand = self.stack.drive.nand_mut().unwrap();
        let written = nand.chunks().filter(|(_, info)| info.write_pointer > 0);
        let mut pus: Vec<u32> = written.map(|(chunk, _)| chunk.0 / 40).collect();
        pus.dedup();
        pus
    }
}

#[test]
fn a_named_target_is_what_the_table_says_and_keeps_its_data() {
    let place = TestDir::new(DRIVE);
    place.create("db", "pblk", "1-3", &["--op", "0.4", "--active-pus", "2", "--hot-cold", "false"]);
    place.create("log", "pblk", "4-6", &[]);
    let db = "[target]\nname = \"db\"\n";
    let mut open = place.open(db);
    let layout = *open.stack.ftl().unwrap().capacity_plan();
    assert_eq!(layout.active_pus, 2);
    let sectors = open.sectors();
    // The target has 120 chunks, less those of the partition table, with 40 % over-provisioning.
    assert!((1_000..120 * 64 * 10 / 14).contains(&sectors), "{sectors}");
    open.fill(1_000_000);
    // The partition table has chunks on the first unit and on the fifth.
    assert_eq!(open.units_written(), [0, 1, 2, 3, 4]);
    drop(open);
    // The other target is empty, is striped over its own units, and does not change the first one.
    let mut log =
        place.open("[target]\nname = \"log\"\nkind = \"pblk\"\nvictim_policy = \"fifo\"\n");
    assert_eq!(log.stack.ftl().unwrap().capacity_plan().active_pus, 3);
    assert_eq!(log.read(5), 0);
    log.fill(5_000_000);
    drop(log);
    // Options that do not affect the location of data may differ between openings.
    for more in
        ["", "victim_policy = \"cost-benefit\"\ngc_high_watermark = 3\n", "active_pus = 2\n"]
    {
        let mut open = place.open(&format!("{db}{more}"));
        assert_eq!(open.sectors(), sectors);
        open.check_fill(1_000_000);
    }
    place.open("[target]\nname = \"log\"\n").check_fill(5_000_000);
    // A target created again under the same name is another one, and has none of the former data.
    place.run_ok(&["target", "remove", "drive.toml", "--name", "db"]);
    place.create("db", "pblk", "1-3", &["--op", "0.4", "--active-pus", "2", "--hot-cold", "false"]);
    let mut open = place.open(db);
    assert_eq!((open.read(0), open.read(77)), (0, 0));
    open.fill(9_000_000);
    drop(open);
    place.open(db).check_fill(9_000_000);
    place.open("[target]\nname = \"log\"\n").check_fill(5_000_000);
}

#[test]
fn sharing_targets_take_their_chunks_once_and_keep_them() {
    let place = TestDir::new(DRIVE);
    let shared = |n: &'static str| ["--shared", "--max-chunks", n];
    place.create("a", "pblk", "0-3", &shared("60"));
    place.create("b", "pblk", "2-5", &shared("70"));
    place.create("c", "pblk", "2-3", &shared("40"));
    place.create("free", "pblk", "0-1", &["--shared"]);
    let open = |name: &str| place.open(&format!("[target]\nname = \"{name}\"\n"));
    let mut a = open("a");
    let sectors = a.sectors();
    a.fill(1_000_000);
    drop(a);
    // A target that was opened and never written owns its chunks all the same.
    let b_sectors = open("b").sectors();
    let owned = |name: &str| {
        let json = place.run_ok(&["target", "info", "drive.toml", "--name", name, "--json"]);
        serde_json::from_str::<serde_json::Value>(&json).unwrap()["chunks"].as_u64().unwrap()
    };
    assert_eq!((owned("a"), owned("b"), owned("c")), (60, 70, 0));
    // The units of the third target have no space left.
    let refused = |name: &str, parts: &[&str]| {
        place.file(
            "refused.toml",
            &format!("[target]\nname = \"{name}\"\n[[job]]\nrw = \"read\"\n"),
        );
        place.run_refused(2, &["sim", "refused.toml"], parts);
    };
    refused("c", &["target c of drive oc0", "40 more chunks", "2-3", "a (60", "b (70"]);
    refused("free", &["target free of drive oc0", "pblk", "--max-chunks"]);
    let mut b = open("b");
    assert_eq!(b.sectors(), b_sectors);
    b.fill(2_000_000);
    drop(b);
    for _ in 0..2 {
        let mut a = open("a");
        assert_eq!(a.sectors(), sectors);
        a.check_fill(1_000_000);
        drop(a);
        open("b").check_fill(2_000_000);
    }
    // Removing a target frees space.
    place.run_ok(&["target", "remove", "drive.toml", "--name", "b"]);
    open("c").fill(3_000_000);
    open("a").check_fill(1_000_000);
    open("c").check_fill(3_000_000);
}

#[test]
fn rrpc_has_the_drives_map_for_itself() {
    let mapped = DRIVE.replace("data =", "device_l2p = true\ndata =");
    let place = TestDir::new(&mapped);
    let r = "[target]\nname = \"r\"\n";
    for life in 1..=3u64 {
        place.create("r", "rrpc", "0-3", &["--active-pus", "2"]);
        place.create("kv", "kv", "6-7", &[]);
        let mut open = place.open(r);
        let ftl = open.stack.ftl().expect("an FTL in the host");
        assert_eq!(ftl.capacity_plan().active_pus, 2);
        assert_eq!(open.read(3), 0, "life {life}");
        open.fill(1_000_000 * life);
        drop(open);
        let mut open = place.open(r);
        open.check_fill(1_000_000 * life);
        // These trims have high sequence numbers, which must not hide writes of the next target.
        for lba in (0..open.sectors()).step_by(100) {
            assert!(open.run(Request::discard(lba, 50, 1)).is_success());
        }
        assert!(open.run(Request::flush(2)).is_success());
        drop(open);
        place.run_ok(&["target", "remove", "drive.toml", "--name", "r", "--factory"]);
        place.run_ok(&["target", "remove", "drive.toml", "--name", "kv"]);
    }
    place.create("r", "rrpc", "0-3", &[]);
    place.open(r).fill(7);
    place.create("p", "pblk", "4-5", &[]);
    for (name, other) in [("p", "target r (rrpc)"), ("r", "target p (pblk)")] {
        place.file("run.toml", &format!("[target]\nname = \"{name}\"\n[[job]]\nrw = \"read\"\n"));
        place.run_refused(2, &["sim", "run.toml"], &[&format!("target {name}"), other, "dual_map"]);
    }
    place.run_ok(&["target", "remove", "drive.toml", "--name", "p"]);
    place.open(r).check_fill(7);
    // rrpc requires a drive with a device L2P.
    let plain = TestDir::new(DRIVE);
    plain.create("r", "rrpc", "0-3", &[]);
    plain.file("run.toml", "[target]\nname = \"r\"\n[[job]]\nrw = \"read\"\n");
    plain.run_refused(
        1,
        &["sim", "run.toml"],
        &["target r of drive oc0", "has no device L2P", "device_l2p"],
    );
}

#[test]
fn what_is_refused_names_both_parties_and_changes_no_byte() {
    for line_metadata in [false, true] {
        refused_and_unchanged(line_metadata);
    }
}

fn refused_and_unchanged(line_metadata: bool) {
    let metadata = format!("line_metadata = {line_metadata}\n");
    let place = TestDir::new(DRIVE);
    let job = "[[job]]\nrw = \"read\"\n";
    let sim = |more: &str| {
        place.file("run.toml", &format!("[target]\n{more}{metadata}{job}"));
        ["sim", "run.toml"]
    };
    // A missing image is not created.
    let out = place.run(&sim("name = \"db\"\n"));
    let told = text(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{told}");
    assert!(told.contains("target db of drive oc0") && told.contains("no image"), "{told}");
    assert!(!place.dir.path().join("oc0.img").exists());

    place.create("db", "pblk", "0-3", &["--op", "0.2"]);
    place.create("kv", "kv", "4-5", &[]);
    place.create("app", "ppa", "6", &[]);
    place.run_refused(2, &sim("name = \"nobody\"\n"), &["nobody", "oc0", "db, kv, app"]);
    place.run_refused(
        2,
        &sim("name = \"kv\"\n"),
        &["target kv of drive oc0", "kind kv", "kv bench"],
    );
    place.run_refused(2, &sim("name = \"app\"\n"), &["target app of drive oc0", "kind ppa"]);
    for (more, at, parts) in [
        ("kind = \"rrpc\"\n", "run.toml:12:", &["kind = rrpc", "says pblk"][..]),
        ("kind = \"kv\"\n", "run.toml:12:", &["kind = kv", "says pblk"]),
        ("over_provisioning = 0.3\n", "run.toml:12:", &["over_provisioning = 0.3", "says 0.2"]),
        ("active_pus = 2\n", "run.toml:12:", &["active_pus = 2", "says 4"]),
        (
            "separate_gc_stream = false\n",
            "run.toml:12:",
            &["separate_gc_stream = false", "says true"],
        ),
    ] {
        let all: Vec<&str> = [at, "target db", "drive oc0"].iter().chain(parts).copied().collect();
        place.run_refused(2, &sim(&format!("name = \"db\"\n{more}")), &all);
    }
    // A scenario may repeat the table's values. A drive with a partition table cannot be opened as
    // a whole.
    sim("name = \"db\"\nover_provisioning = 0.2\nactive_pus = 4\nseparate_gc_stream = true\n");
    place.run_ok(&["sim", "run.toml"]);
    // Erases were in flight at the end of the run. The drive decides their result at the next
    // power-on.
    place.run_ok(&["target", "list", "drive.toml"]);
    let partitioned = ["drive oc0 has a partition table", "[target]"];
    place.run_refused(2, &sim("kind = \"pblk\"\n"), &partitioned);
    // The drive is refused as well after a power cut during writes to one of its targets.
    let mut open = place.open(&format!("[target]\n{metadata}name = \"db\"\n"));
    open.fill(1);
    drop(open);
    place.run_ok(&["target", "list", "drive.toml"]);
    place.run_refused(2, &sim("kind = \"pblk\"\n"), &partitioned);
    let list = place.run_ok(&["target", "list", "drive.toml"]);
    assert!(["db", "kv", "app"].iter().all(|name| list.contains(name)), "{list}");
    // `sluice serve` refuses it too.
    place.file("serve.toml", "[target]\nname = \"db\"\nkind = \"rrpc\"\n");
    place.run_refused(
        2,
        &["serve", "serve.toml", "--nbd", "unix:s"],
        &["kind = rrpc", "says pblk"],
    );
    // Another process holds the drive.
    let scenario = Scenario::load(&place.file("drive.toml", "")).unwrap();
    let MediaConfig::Nand(nand) = scenario.drives[0].config.media.clone() else { panic!() };
    let opened = media::Nand::open(nand).unwrap();
    let parts = ["target db of drive oc0", "oc0.img is in use by another process"];
    place.run_refused(1, &sim("name = \"db\"\n"), &parts);
    drop(opened);
    // Drives that were written without a partition table, even a little, and a new drive.
    for sectors in [1, 100, u64::MAX] {
        let whole = TestDir::new(DRIVE);
        let mut open = whole.open(&format!("[target]\nkind = \"pblk\"\n{metadata}"));
        match sectors {
            u64::MAX => open.fill(1),
            sectors => (0..sectors).for_each(|lba| open.write(lba, 1, lba)),
        }
        assert!(open.run(Request::flush(2)).is_success());
        open.run_until_idle();
        drop(open);
        whole.file("run.toml", &format!("[target]\nname = \"db\"\n{job}"));
        whole.run_refused(1, &["sim", "run.toml"], &["oc0", "partition table"]);
        let other = format!("[target]\nkind = \"pblk\"\nover_provisioning = 0.9\n{metadata}{job}");
        whole.file("run.toml", &other);
        whole.run_refused(1, &["sim", "run.toml"], &["oc0", "over_provisioning"]);
        let other = format!("[target]\nkind = \"pblk\"\nline_metadata = {}\n{job}", !line_metadata);
        whole.file("run.toml", &other);
        whole.run_refused(1, &["sim", "run.toml"], &["oc0", "open it with the geometry"]);
    }
    let new = TestDir::new(DRIVE);
    let scenario = Scenario::load(&new.file("drive.toml", "")).unwrap();
    controller::Controller::new(scenario.drives[0].config.clone()).unwrap().shut_down().unwrap();
    new.file("run.toml", &format!("[target]\nname = \"db\"\n{job}"));
    new.run_refused(2, &["sim", "run.toml"], &["target db of drive oc0", "no partition table"]);
}

#[test]
fn limits_that_decide_a_capacity_change_only_before_the_first_open() {
    let place = TestDir::new(DRIVE);
    place.create("db", "pblk", "0-3", &["--shared", "--max-chunks", "60"]);
    let limit = |most| ["target", "limit", "drive.toml", "--name", "db", "--max-chunks", most];
    place.run_ok(&limit("120"));
    let mut open = place.open("[target]\nname = \"db\"\n");
    open.fill(1);
    drop(open);
    let list = place.run_ok(&["target", "list", "drive.toml", "--json"]);
    assert!(list.contains("\"max_chunks\": 120") && list.contains("\"chunks\": 120"), "{list}");
    for most in ["60", "130", "none"] {
        let parts = ["target db of drive oc0", "kind pblk", "120 chunks", "first opened"];
        place.run_refused(2, &limit(most), &parts);
    }
    place.run_ok(&limit("120"));
    let mut open = place.open("[target]\nname = \"db\"\n");
    open.check_fill(1);
}

#[test]
fn kv_bench_runs_on_a_named_target_that_is_empty() {
    let place = TestDir::new(DRIVE);
    place.create("kv", "kv", "0-3", &[]);
    place.create("db", "pblk", "4-5", &[]);
    let small = ["--records", "500", "--operations", "200", "--value-bytes", "100", "--json"];
    let bench = |more: &[&'static str]| {
        let args = ["kv", "bench", "drive.toml"].into_iter().chain(small);
        args.chain(more.iter().copied()).collect::<Vec<&str>>()
    };
    place.run_refused(2, &bench(&["--name", "kv"]), &["target kv", "--workload a to f"]);
    let on_db = bench(&["--name", "db", "--workload", "c"]);
    place.run_refused(2, &on_db, &["target db of drive oc0", "kind pblk", "kv"]);
    let nobody = bench(&["--name", "nobody", "--workload", "c"]);
    place.run_refused(2, &nobody, &["nobody", "oc0", "kv, db"]);
    let told = place.run_ok(&bench(&["--name", "kv", "--workload", "a"]));
    assert!(told.lines().count() > 5 && told.contains("operations_per_second"), "{told}");
    let again = bench(&["--name", "kv", "--workload", "a"]);
    let out = place.run(&again);
    let told = text(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{told}");
    assert!(told.contains("target kv of drive oc0 holds") && told.contains("records"), "{told}");
}

#[test]
fn a_name_needs_a_drive_that_remembers_it() {
    let drive = DRIVE.replace("data = \"file\"\npath = \"oc0.img\"\n", "");
    let refused = |text: &str| Scenario::parse(Path::new("a.toml"), text).unwrap_err().to_string();
    let told = refused(&format!("{drive}[target]\nname = \"db\"\n"));
    assert!(told.starts_with("a.toml:9:8: target db is to be in"), "{told}");
    assert!(told.contains("data = \"file\""), "{told}");
    let told = refused(&format!("{DRIVE}[target]\nname = \"no name\"\n"));
    assert!(told.contains("no name") && told.contains("1 to 32 letters"), "{told}");
    let told = refused(&format!("{DRIVE}[target]\nactive_pus = 3\n"));
    assert!(told.contains("needs `kind`") && told.contains("`name`"), "{told}");
    // With `kind = "none"`, the name is ignored.
    let off = format!("{drive}[target]\nname = \"db\"\nkind = \"none\"\n");
    assert!(Scenario::parse(Path::new("a.toml"), &off).is_ok());
    let block = DRIVE.replace("open-channel", "block");
    let told = refused(&format!("{block}[target]\nname = \"db\"\n"));
    assert!(told.contains("db") && told.contains("open-channel"), "{told}");
}
