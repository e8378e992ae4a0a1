//! `[target] kind = "rules"`: its program, and what is refused, and where.

use std::path::Path;

use rules::RuleProgram;
use tempfile::TempDir;

use crate::{HostTarget, Scenario, ScenarioError};

const DRIVE: &str = "[drive]\npreset = \"femu-default\"\npersonality = \"open-channel\"\n\
    geometry = { channels = 2, pus = 2, chunks = 40, pages = 32 }\n[target]\n";

/// A program for [`DRIVE`]; rules come behind it.
const APP: &str = "app db { units = 0-3, spare = 0.11 }\ntable map: addr[db.sectors] durable\n";

const STORE: &str = "rule store\n  when channel.app == db and header.write\n  \
    set  map[header.lba] = next_addr(db.host)\n  do   header.addr = map[header.lba]; insert lun\n";

fn parse(path: &Path, keys: &str) -> Result<Scenario, ScenarioError> {
    Scenario::parse(path, &format!("{DRIVE}{keys}"))
}

/// Returns the message for a target with these keys.
fn refused(keys: &str) -> String {
    parse(Path::new("t.toml"), keys).expect_err(keys).to_string()
}

/// Returns the message for a target with this program.
fn refused_program(program: &str) -> String {
    let folder = TempDir::new().expect("a folder");
    std::fs::write(folder.path().join("p.rules"), program).expect("a file");
    let keys = "kind = \"rules\"\nprogram = \"p.rules\"\n";
    let error = parse(&folder.path().join("t.toml"), keys).expect_err(program);
    error.to_string().replace(&folder.path().display().to_string(), "")
}

#[test]
fn a_program_is_compiled_for_the_drive_of_its_target() {
    let keys = "kind = \"rules\"\ntemplate = \"throughput\"\nover_provisioning = 0.2\nops = 100\n\
        table_memory = \"1M\"\nidle_poll = \"1us\"\nhot_stream = true\nvictim_policy = \"fifo\"\n";
    let scenario = parse(Path::new("t.toml"), keys).expect("a scenario");
    let drive = &scenario.drives[0];
    let HostTarget::Rules(target) = &drive.target else { panic!("{:?}", drive.target) };
    assert_eq!((target.rules.ops, target.rules.table_bytes), (100, 1 << 20));
    assert_eq!(target.rules.idle_poll.map(|idle| idle.0), Some(1_000));
    assert!(target.ftl.hot_stream && target.ftl.over_provisioning == 0.2);
    assert_eq!(drive.target.label(), "rules");
    let program = RuleProgram::decode(&target.rules.program).expect("a program");
    let app = &program.apps[0];
    assert_eq!((app.first_unit, app.last_unit, app.spare_ppm), (0, 3, 200_000));
    let capacity = drive.capacity.expect("a capacity");
    assert!(app.sectors >= capacity.logical_bytes() / 4096, "{} sectors", app.sectors);
    assert_eq!(drive.config.rules, None);
    // Without rules the target has the same capacity.
    let pblk = "kind = \"pblk\"\nover_provisioning = 0.2\nvictim_policy = \"fifo\"\n";
    let ruled = keys.replace("hot_stream = true\n", "");
    let [one, other] = [pblk, &ruled].map(|keys| parse(Path::new("t.toml"), keys).unwrap());
    assert_eq!(one.drives[0].capacity, other.drives[0].capacity);
    // A disabled target may keep its keys.
    let disabled = parse(Path::new("t.toml"), &keys.replace("\"rules\"", "\"none\"")).unwrap();
    assert_eq!(disabled.drives[0].target, HostTarget::None);
}

#[test]
fn keys_that_do_not_fit_are_refused() {
    for (keys, part) in [
        ("kind = \"rules\"\n", "program"),
        ("kind = \"rules\"\ntemplate = \"throughput\"\nprogram = \"p.rules\"\n", "p.rules"),
        ("kind = \"rules\"\ntemplate = \"throughput\"\nengines = 4\n", "rules of a drive"),
        ("kind = \"rules\"\ntemplate = \"throughput\"\nmiss_timeout = \"1s\"\n", "ends at once"),
        ("kind = \"rules\"\ntemplate = \"throughput\"\nshards = 2\n", "only pblk"),
        ("kind = \"rules\"\ntemplate = \"throughput\"\nname = \"db\"\n", "for a whole one"),
        ("kind = \"rules\"\ntemplate = \"nameless\"\n", "durable tables"),
        ("kind = \"rules\"\ntemplate = \"endurance\"\n", "hot"),
        ("kind = \"pblk\"\ntemplate = \"throughput\"\n", "kind = \"rules\""),
        ("kind = \"rrpc\"\nhot_stream = true\n", "kind = \"rules\""),
    ] {
        let message = refused(keys);
        assert!(message.contains(part), "{keys}: {message}");
    }
    let block = DRIVE.replace("\"open-channel\"", "\"block\"");
    let text = format!("{block}kind = \"rules\"\ntemplate = \"throughput\"\n");
    let message = Scenario::parse(Path::new("t.toml"), &text).expect_err("a block drive");
    assert!(message.to_string().contains("rules"), "{message}");
}

#[test]
fn errors_of_a_program_have_its_line_and_column() {
    let message = refused_program(&format!(
        "{APP}{STORE}rule load\n  when header.nothing == 1\n  do complete ok\n"
    ));
    assert!(message.contains("p.rules:8:"), "{message}");
    let scan = "rule tell priority 1 when channel.app == db and header.write\n  \
        do post migrated, 1, 2, 3; complete ok\n";
    let message = refused_program(&format!("{APP}{STORE}{scan}"));
    assert!(message.contains("p.rules:7:1") && message.contains("reports no events"), "{message}");
    let hot = STORE.replace("db.host", "db.hot");
    let message = refused_program(&format!("{APP}{hot}"));
    assert!(message.contains("p.rules:3:1") && message.contains("hot_stream = true"), "{message}");
    // An error of the whole program is at the key.
    let part = APP.replace("0-3", "0-1");
    let message = refused_program(&format!("{part}{STORE}"));
    assert!(
        message.contains("t.toml:7:") && message.contains("parallel units 0 to 1"),
        "{message}"
    );
    let small = APP.replace("0.11", "0.9");
    let message = refused_program(&format!("{small}{STORE}"));
    assert!(message.contains("over-provisioning of the target"), "{message}");
}
