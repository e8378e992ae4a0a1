//! Methods of completion in virtual time: exact latencies of each method, the same data with all of
//! them, and the counters.

// guarantee: B-24

use std::path::Path;

use block::notify::NotifyStats;
use scenario::Scenario;
use serde_json::Value;
use sluice_sim::{SimOptions, SimOutcome, simulate, to_json};
use time::Nanos;

/// Every command takes 100 us, whatever is outstanding.
const FIXED: &str = "[drive]\npersonality = \"null\"\ncapacity = \"64M\"\n\
    null = { latency = \"100us\" }\n";

const HOST: &str =
    "[host]\nsubmit_cost = \"1us\"\ncomplete_cost = \"2us\"\ninterrupt_cost = \"10us\"\n";

fn job(depth: u32) -> String {
    format!(
        "[[job]]\nname = \"reads\"\nrw = \"randread\"\nbs = \"4k\"\niodepth = {depth}\nnumber_ios = 640\n\
         size = \"64m\"\n"
    )
}

fn run(text: &str) -> SimOutcome {
    let scenario = Scenario::parse(Path::new("s.toml"), text).unwrap_or_else(|e| panic!("{e}"));
    let outcome = simulate(&scenario, SimOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(outcome.failures(), [""; 0]);
    outcome
}

/// Returns the mean completion latency in microseconds, and the counters.
fn measure(path: &str, depth: u32) -> (f64, Option<NotifyStats>) {
    let outcome = run(&format!("{FIXED}{HOST}[path]\n{path}{}", job(depth)));
    let path = &outcome.paths[0];
    (path.run.jobs[0].directions[0].clat.mean() / 1000.0, path.notify)
}

/// One request at a time: the drive's 100 us, and what noticing and finishing cost.
#[test]
fn each_method_adds_what_it_costs() {
    let (poll, none) = measure("", 1);
    assert_eq!((poll, none), (102.0, None));
    for model in ["raw", "sq", "mq"] {
        let path = |method: &str| format!("queue_model = \"{model}\"\ncompletion = \"{method}\"\n");
        assert_eq!(measure(&path("poll"), 1), (102.0, None), "{model}");
        let (latency, stats) = measure(&path("interrupt"), 1);
        let stats = stats.unwrap();
        assert_eq!(latency, 112.0, "{model}");
        assert_eq!((stats.interrupts, stats.by_submitter, stats.completions), (640, 0, 640));
        // The submitter gave up polling 50 us after the request.
        let (latency, stats) = measure(&path("hybrid"), 1);
        assert_eq!((latency, stats.unwrap().interrupts), (112.0, 640), "{model}");
    }
    let (latency, stats) = measure("queue_model = \"sq\"\ncompletion = \"lazy\"\n", 1);
    assert_eq!((latency, stats.unwrap().interrupts), (112.0, 640));
}

/// A request that the submitter polls for costs no interrupt.
#[test]
fn a_busy_submitter_polls_under_hybrid() {
    let fast = FIXED.replace("100us", "20us");
    let outcome = run(&format!("{fast}{HOST}[path]\ncompletion = \"hybrid\"\n{}", job(1)));
    let path = &outcome.paths[0];
    assert_eq!(path.run.jobs[0].directions[0].clat.mean(), 22_000.0);
    let stats = path.notify.unwrap();
    assert_eq!((stats.interrupts, stats.by_submitter, stats.completions), (0, 640, 640));
}

/// With a timer, a completion waits for the next poll.
#[test]
fn a_timer_polls_at_multiples_of_its_interval() {
    for model in ["raw", "sq", "mq"] {
        let path = format!("queue_model = \"{model}\"\npoll_interval = \"64us\"\n");
        let outcome = run(&format!("{FIXED}{HOST}[path]\n{path}{}", job(1)));
        let stats = outcome.paths[0].notify.unwrap();
        assert_eq!((stats.polls, stats.interrupts, stats.completions), (640, 0, 640));
        // The first request reaches the drive at 1 us, and the others 3 us after a poll. All are
        // noticed two polls later, and finished after 2 us.
        let clat = &outcome.paths[0].run.jobs[0].directions[0].clat;
        assert_eq!(clat.max(), Nanos::from_micros(129), "{model}");
        assert_eq!(clat.min(), Nanos::from_micros(127), "{model}");
    }
}

/// A handler fetches all completions that have arrived. With `coop` submitters fetch as well.
#[test]
fn one_interrupt_serves_all_that_has_arrived() {
    let sq = |method: &str| {
        measure(&format!("queue_model = \"sq\"\ncompletion = \"{method}\"\nmerge = false\n"), 32)
    };
    for method in ["interrupt", "lazy", "coop"] {
        let (_, stats) = sq(method);
        let stats = stats.unwrap();
        assert_eq!(stats.completions, 640, "{method}");
        assert!(stats.interrupts + stats.by_submitter < 640, "{method}: {stats:?}");
        let helped = stats.by_submitter > 0;
        assert_eq!(helped, method == "coop", "{method}: {stats:?}");
    }
}

/// A method changes when a completion is noticed, and no data.
#[test]
fn every_method_gives_the_same_data_on_every_device() {
    let drive = "[drive]\npreset = \"femu-default\"\n\
        geometry = { channels = 2, pus = 4, chunks = 48, pages = 32 }\n\
        controller = { queue_depth = 32 }\n";
    let open_channel = format!("{drive}personality = \"open-channel\"\n");
    let devices = [
        drive.to_owned(),
        format!("{open_channel}[target]\nkind = \"pblk\"\n"),
        format!("{open_channel}[target]\nkind = \"pblk\"\nshards = 2\n"),
    ];
    let jobs = "[[job]]\nname = \"a\"\nrw = \"randrw\"\nbs = \"4k\"\niodepth = 16\nsize = \"4m\"\n\
        verify = \"crc32c\"\nfsync = 32\n\
        [[job]]\nname = \"b\"\nrw = \"randrw\"\nbs = \"8k\"\niodepth = 8\nsize = \"4m\"\noffset = \"8m\"\n\
        verify = \"crc32c\"\n";
    let methods = [
        ("poll_interval = \"20us\"\n", &["raw", "sq", "mq"][..]),
        ("completion = \"interrupt\"\n", &["raw", "sq", "mq"]),
        ("completion = \"hybrid\"\n", &["raw", "sq", "mq"]),
        ("completion = \"lazy\"\n", &["sq"]),
        ("completion = \"coop\"\n", &["sq"]),
    ];
    for device in &devices {
        for (keys, models) in methods {
            for model in models {
                let cores = if *model == "raw" { "" } else { "cores = 2\n" };
                let path = format!("[path]\nqueue_model = \"{model}\"\n{cores}{keys}");
                let outcome = run(&format!("{device}{path}{HOST}{jobs}"));
                let path = &outcome.paths[0];
                let ios: u64 =
                    path.run.jobs.iter().flat_map(|j| &j.directions).map(|d| d.ios).sum();
                assert!(ios >= 1024 + 512, "{model} {keys}");
                assert!(path.notify.unwrap().completions > 0, "{model} {keys}");
            }
        }
    }
}

#[test]
fn the_results_have_the_method_and_its_counters() {
    let path = "[path]\nqueue_model = \"sq\"\ncompletion = \"coop\"\n";
    let text = format!("{FIXED}{HOST}{path}{}", job(8));
    let json: Value = to_json(&run(&text));
    let sluice = &json["sluice"];
    assert_eq!(sluice["parameters"]["path"]["completion"], "coop");
    assert_eq!(sluice["parameters"]["host"]["interrupt_ns"], 10_000);
    assert_eq!(sluice["drives"][0]["notification"]["completions"], 640);
    let free = text.replace("interrupt_cost = \"10us\"\n", "");
    let notes = run(&free).notes;
    assert!(notes.iter().any(|note| note.text.contains("host.interrupt_cost")), "{notes:?}");
    let timer = format!("{FIXED}[path]\npoll_interval = \"5us\"\n{}", job(1));
    let json = to_json(&run(&timer));
    assert_eq!(json["sluice"]["parameters"]["path"]["poll_interval_ns"], 5_000);
    assert_eq!(json["sluice"]["parameters"]["path"]["completion"], "poll");
}
