//! Rates and weights of groups that change at instants of a run (`[[at]]`).

// guarantee: B-43

use std::path::Path;

use scenario::{Scenario, ScenarioError};
use sluice_sim::{SimOptions, SimOutcome, simulate, to_json};

/// A drive whose commands complete one after the other, at most 250,000 of them per second.
const DRIVE: &str = "[drive]\nname = \"d\"\npersonality = \"null\"\ncapacity = \"64M\"\n\
    null = { latency = \"100us\" }\ncontroller = { queue_depth = 32, dma_bandwidth = \"1GB/s\" }\n";

/// All paths whose groups share a staging queue.
const PATHS: [&str; 3] = [
    "queue_model = \"sq\"\ncores = 3\n",
    "queue_model = \"mq\"\ncores = 3\nstaging = \"global\"\n",
    "queue_model = \"mq\"\n",
];

const FAIR: &str = "scheduler = { kind = \"fair\", by = \"group\", default_weight = 1 }\n";

fn job(group: u32, bs: &str, rw: &str, runtime: &str) -> String {
    format!(
        "[[job]]\nrw = \"{rw}\"\nbs = \"{bs}\"\niodepth = 128\ntime_based = true\n\
         runtime = \"{runtime}\"\ngroup = {group}\n"
    )
}

fn at(time: &str, rest: &str) -> String {
    format!("[[at]]\ntime = \"{time}\"\n{rest}\n")
}

fn parse(text: &str) -> Result<Scenario, ScenarioError> {
    Scenario::parse(Path::new("s.toml"), text)
}

fn run(text: &str) -> SimOutcome {
    let scenario = parse(text).unwrap_or_else(|e| panic!("{e}"));
    let outcome = simulate(&scenario, SimOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(outcome.failures(), [""; 0]);
    outcome
}

/// Returns the requests of each job in the first second, and in the second one, at whose start the
/// changes take place. `text` gives the scenario for a runtime.
fn in_both_seconds(jobs: usize, text: impl Fn(&str) -> String, changes: &str) -> Vec<[f64; 2]> {
    let ios = |outcome: &SimOutcome, job: usize| -> f64 {
        let directions = outcome.paths[0].run.jobs[job].directions.iter();
        directions.map(|direction| direction.ios as f64).sum()
    };
    let (one, two) = (run(&text("1s")), run(&(text("2s") + changes)));
    let each = (0..jobs).map(|job| (ios(&one, job), ios(&two, job)));
    each.map(|(one, two)| [one, two - one]).collect()
}

#[track_caller]
fn assert_near(got: f64, want: f64, percent: f64, what: &str) {
    assert!((got / want - 1.0).abs() <= percent / 100.0, "{what}: {got}, not {want}");
}

#[test]
fn a_halved_rate_holds_before_and_after() {
    for path in PATHS {
        let limits = "merge = false\n\
            [[path.limit]]\ngroup = 1\nread_iops = 20000\nwrite_iops = 5000\nburst = \"1ms\"\n\
            [[path.limit]]\ngroup = 2\nread_bw = \"81.92MB/s\"\nburst = \"1ms\"\n";
        let text = |runtime: &str| {
            let jobs = [(1, "4k", "randread"), (2, "16k", "randread"), (1, "4k", "randwrite")];
            let jobs = jobs.map(|(group, bs, rw)| job(group, bs, rw, runtime)).concat();
            // Requests that are outstanding at the end count, too.
            let jobs = jobs.replace("iodepth = 128", "iodepth = 16");
            format!("{DRIVE}[path]\n{path}{limits}{jobs}")
        };
        let halved = at("1s", "group = 1\nread_iops = 10000")
            + &at("1s", "path = \"d\"\ngroup = 2\nread_bw = \"40.96MB/s\"");
        let found = in_both_seconds(3, text, &halved);
        let expected = [[20_000.0, 10_000.0], [5000.0, 2500.0], [5000.0, 5000.0]];
        for (job, (found, expected)) in found.iter().zip(expected).enumerate() {
            for (found, expected) in found.iter().zip(expected) {
                assert_near(*found, expected, 2.0, &format!("{path}job {job}"));
            }
        }
        // A higher rate holds from its instant on, too: what waits does not wait as long as before.
        let text =
            |runtime: &str| text(runtime).replace("20000", "10").replace("\"1ms\"", "\"1s\"");
        let found = in_both_seconds(1, text, &at("1s", "group = 1\nread_iops = 10000"));
        let burst = 10.0;
        assert_near(found[0][1], 10_000.0, 2.0, &format!("{path}{burst} saved before"));
    }
}

#[test]
fn shares_follow_a_changed_weight() {
    for path in PATHS {
        let text = |runtime: &str| {
            let jobs = [1, 2].map(|group| job(group, "4k", "randread", runtime)).concat();
            format!("{DRIVE}[path]\n{path}merge = false\n{FAIR}{jobs}")
        };
        let found = in_both_seconds(2, text, &at("1s", "group = 2\nweight = 3"));
        let share = |second: usize| found[1][second] / (found[0][second] + found[1][second]);
        assert_near(share(0), 0.5, 2.0, path);
        assert_near(share(1), 0.75, 2.0, path);
    }
}

/// A change at the start equals the setting, and a repeat gives the same bytes.
#[test]
fn a_change_at_the_start_equals_the_setting() {
    let limited = |rate: u32, burst: &str| {
        let job = job(1, "4k", "randread", "500ms");
        format!(
            "{DRIVE}[path]\nqueue_model = \"sq\"\n\
             [[path.limit]]\ngroup = 1\nread_iops = {rate}\nburst = \"{burst}\"\n{job}"
        )
    };
    let ios = |text: &str| run(text).paths[0].run.jobs[0].directions[0].ios;
    let changed = limited(20_000, "10ms") + &at("0s", "group = 1\nread_iops = 8000");
    // The burst follows the rate: it takes as long to accrue as before.
    assert_eq!(ios(&changed), ios(&limited(8000, "10ms")));
    let json = to_json(&run(&changed));
    let [a, b] = [json.to_string(), to_json(&run(&changed)).to_string()];
    assert!(a == b, "two runs of one scenario differ");
    let change = &json["sluice"]["parameters"]["changes"][0];
    assert_eq!((&change["path"], &change["group"]), (&"d".into(), &1.into()), "{change}");
    assert_eq!(change["read_iops"], 8000, "{change}");
}

#[test]
fn changes_of_groups_that_cannot_be_are_refused_in_their_line() {
    let job = job(1, "4k", "randread", "10ms");
    let limit = "[[path.limit]]\ngroup = 1\nread_iops = 20000\n";
    let with = |path: &str, change: &str| {
        // The change begins in line 20.
        let head = format!("{DRIVE}[path]\n{path}{job}");
        let lines = head.lines().count();
        head + &"\n".repeat(19 - lines) + &at("1ms", change)
    };
    let sq = "queue_model = \"sq\"\n";
    let (fair, limited) = (format!("{sq}{FAIR}"), format!("{sq}{limit}"));
    let by_core = fair.replace("by = \"group\", ", "");
    for (path, change, says) in [
        (&fair, "group = 7\nweight = 2", &["s.toml:22", "no job of path \"d\" is in group 7"]),
        (&fair, "group = 1\nweight = 0", &["s.toml:23", "the weight of 1 must not be zero"]),
        (&fair, "group = 1\nweight = 1001", &["s.toml:23", "1001, more than 1000"]),
        (&by_core, "group = 1\nweight = 2", &["s.toml:23", "groups have no weights here"]),
        (&limited, "group = 1\nweight = 2", &["s.toml:23", "groups have no weights here"]),
        (&limited, "group = 1\nread_iops = 0", &["s.toml:23", "must not be zero"]),
        (&limited, "group = 1\nread_iops = 9000000000000000", &["s.toml:23", "more than"]),
        (&limited, "group = 1\nwrite_iops = 1", &["s.toml:23", "no limit `write operations`"]),
        (&limited, "group = 0\nread_iops = 1", &["s.toml:23", "group 0 has no limit"]),
        (&fair, "group = 1\nread_bw = \"1MB/s\"", &["s.toml:23", "no limit `read bytes`"]),
        (&fair, "weight = 2", &["s.toml:20", "needs `group`"]),
        (&fair, "group = 1", &["s.toml:21", "nothing changes"]),
        (&fair, "path = \"x\"\ngroup = 1\nweight = 2", &["s.toml:22", "allowed: d"]),
        (&fair, "group = 1\nweight = 2\ndrive = \"d\"", &["s.toml:24", "an FTL or of a group"]),
        (&fair, "group = 1\nweights = 2", &["s.toml:23", "weight"]),
        (&fair, "group = 2000\nweight = 2", &["s.toml:22", "0 to 1023"]),
        (&String::new(), "group = 0\nweight = 2", &["s.toml:22", "path \"d\" has none"]),
    ] {
        let text = match path.is_empty() {
            true => with(path, change).replace("group = 1\n", ""),
            false => with(path, change),
        };
        let text = if path.is_empty() { text.replacen("[[at]]", "\n[[at]]", 1) } else { text };
        let error = parse(&text).map(|_| ()).unwrap_err().to_string();
        for part in says {
            assert!(error.contains(part), "{change}: {error} without {part}");
        }
    }
}
