//! Changes of settings at instants of a run (`[[at]]`).

// guarantee: B-32

mod faults;
mod groups;

use std::path::Path;

use ftl::FtlStats;
use scenario::choice::Impossible;
use scenario::{Scenario, ScenarioError};
use sluice_sim::{SimError, SimOptions, SimOutcome, simulate, to_json};

/// A drive with eight parallel units and a `pblk`.
const PBLK: &str = "[[drive]]\nname = \"oc\"\npreset = \"femu-default\"\npersonality = \"open-channel\"\n\
    geometry = { channels = 4, pus = 2, chunks = 48, pages = 32 }\n\
    [[target]]\nname = \"t\"\nkind = \"pblk\"\npus = \"0-7\"\n";

/// A drive with an FTL of its own.
const OWN: &str = "[drive]\npreset = \"femu-default\"\n\
    geometry = { channels = 4, pus = 2, chunks = 48, pages = 32 }\n";

/// Writes more than the drive has.
const WRITES: &str = "[[job]]\nrw = \"randwrite\"\nbs = \"4k\"\niodepth = 16\nio_size = \"160m\"\n\
    norandommap = true\n";

fn parse(text: &str) -> Result<Scenario, ScenarioError> {
    Scenario::parse(Path::new("s.toml"), text)
}

fn try_run(text: &str) -> Result<SimOutcome, SimError> {
    simulate(&parse(text)?, SimOptions::default())
}

fn run(text: &str) -> SimOutcome {
    let outcome = try_run(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert_eq!(outcome.failures(), [""; 0]);
    outcome
}

fn at(time: &str, rest: &str) -> String {
    format!("[[at]]\ntime = \"{time}\"\n{rest}\n")
}

/// Counters of the FTL and the time of the run.
fn facts(outcome: &SimOutcome) -> (FtlStats, u64) {
    (outcome.paths[0].ftl.expect("an FTL"), outcome.elapsed.0)
}

#[test]
fn fewer_active_units_write_slower_from_their_time_on() {
    let writes = "[[job]]\nrw = \"write\"\nbs = \"64k\"\niodepth = 8\ntime_based = true\nruntime = \"40ms\"\n";
    let whole = facts(&run(&format!("{PBLK}{writes}"))).0.host_writes;
    let one_at = |time: &str, active: u32| {
        let change = at(time, &format!("target = \"t\"\nactive_pus = {active}"));
        facts(&run(&format!("{PBLK}{writes}{change}"))).0.host_writes as f64 / whole as f64
    };
    let (start, half, late) = (one_at("0s", 1), one_at("20ms", 1), one_at("30ms", 1));
    assert!(start < 0.3, "{start} of the writes on one of eight units");
    assert!((start + 0.3..0.75).contains(&half), "{half} with all for half of the time");
    assert!(late > half + 0.1, "{late}, {half}");
    assert_eq!(one_at("20ms", 0), 1.0, "the number that it has");
    // Back again.
    let back = at("10ms", "active_pus = 1") + &at("20ms", "active_pus = 0");
    let back = facts(&run(&format!("{PBLK}{writes}{back}"))).0.host_writes as f64 / whole as f64;
    assert!(back > half + 0.1, "{back}, {half}");
}

#[test]
fn a_change_at_the_start_equals_the_setting() {
    for (key, value) in [
        ("victim_policy", "\"fifo\""),
        ("victim_policy", "\"cost-benefit\""),
        ("rate_limiter", "\"pid\""),
        ("rate_limiter", "{ kind = \"pid\", kp = 2.0 }"),
    ] {
        let change = at("0s", &format!("{key} = {value}"));
        let own = format!("{OWN}[drive.ftl]\n{key} = {value}\n{WRITES}");
        assert_eq!(
            facts(&run(&format!("{OWN}{WRITES}{change}"))),
            facts(&run(&own)),
            "{key} {value}"
        );
        let pblk = PBLK.to_owned() + &format!("{key} = {value}\n{WRITES}");
        assert_eq!(
            facts(&run(&format!("{PBLK}{WRITES}{change}"))),
            facts(&run(&pblk)),
            "{key} {value}"
        );
    }
    // A change to the present value gives the same results. A run with changes has another loop.
    let none = at("7ms", "victim_policy = \"greedy\"\nrate_limiter = \"proportional\"");
    let changed = facts(&run(&format!("{OWN}{WRITES}{none}")));
    assert_eq!(changed.0.host_writes, 40960);
    assert_eq!(changed, facts(&run(&format!("{OWN}{WRITES}"))));
}

#[test]
fn a_policy_in_the_middle_of_a_run_is_repeated_exactly() {
    let text = format!(
        "{PBLK}{WRITES}{}{}",
        at("300ms", "victim_policy = \"fifo\"\nrate_limiter = \"pid\"\nactive_pus = 6"),
        at("100ms", "active_pus = 4"),
    );
    let [a, b] = [(); 2].map(|()| to_json(&run(&text)).to_string());
    assert!(a == b, "two runs of one scenario differ");
    let [changed, plain] = [&text, &format!("{PBLK}{WRITES}")].map(|text| facts(&run(text)));
    assert_eq!(changed.0.host_writes, plain.0.host_writes);
    assert_ne!(changed, plain, "the changes took place");
}

#[test]
fn changes_that_cannot_be_are_refused_in_their_line() {
    let two = PBLK.replace("pus = \"0-7\"", "pus = \"0-3\"")
        + "[[target]]\nname = \"k\"\nkind = \"kv\"\npus = \"4,5\"\n\
           [[target]]\nname = \"v\"\nkind = \"pblk\"\npus = \"6,7\"\n";
    let refused = |text: &str, says: &[&str]| {
        let error = try_run(text).map(|_| ()).unwrap_err().to_string();
        for part in says {
            assert!(error.contains(part), "{error} without {part}");
        }
    };
    let pblk = |change: &str| format!("{PBLK}{WRITES}{change}");
    refused(
        &pblk(&at("1ms", "target = \"x\"\nactive_pus = 1")),
        &["s.toml:18", "\"x\"", "allowed: t"],
    );
    refused(&pblk(&at("1ms", "drive = \"oc\"\nactive_pus = 1")), &["s.toml:18", "has no FTL"]);
    refused(&pblk(&at("1ms", "active_pus = 9")), &["s.toml:18", "allowed are 1 to 8"]);
    refused(&pblk(&at("1ms", "victim_policy = \"best\"")), &["s.toml:18", "cost-wear"]);
    refused(&pblk(&at("1ms", "rate_limiter = { kp = 1000.0 }")), &["s.toml:18", "100"]);
    refused(&pblk(&at("1ms", "")), &["s.toml:17", "nothing changes"]);
    refused(
        &pblk(&at("1ms", "target = \"t\"\nmax_chunks = 5")),
        &["s.toml:19", "`max_chunks` does not change while a target is open", "target limit"],
    );
    refused(&pblk("[[at]]\nactive_pus = 1\n"), &["needs `time`"]);
    refused(
        &pblk(&at("3600s", "active_pus = 1")),
        &["s.toml:17", "the jobs end after", "before this change"],
    );
    refused(&pblk(&at("soon", "active_pus = 1")), &["s.toml:17"]);
    let both = "target = \"t\"\ndrive = \"oc\"\nactive_pus = 1";
    refused(&pblk(&at("1ms", both)), &["of a target or of a drive"]);
    let several = format!("{two}[[job]]\npath = \"t\"\nrw = \"write\"\n");
    refused(&(several.clone() + &at("1ms", "active_pus = 1")), &["t, v"]);
    refused(&(several + &at("1ms", "target = \"k\"\nactive_pus = 1")), &["\"k\" has no FTL"]);
    let kv = "[[path]]\nname = \"p\"\nover = \"t\"\n[[job]]\nrw = \"write\"\n";
    refused(
        &(two + kv + &at("1ms", "target = \"v\"\nactive_pus = 1")),
        &["no path leads to \"v\""],
    );
    let real = parse(&pblk(&at("1ms", "active_pus = 1"))).unwrap().check_real_time();
    assert_eq!(real, Err(Impossible::VirtualTime { line: 17 }));
}
