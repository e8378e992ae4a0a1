//! `steady = "sampled"`: the state that is drawn from its distribution against the state that
//! overwrites lead to.

// guarantee: B-55

use std::path::Path;

use block::BlockDevice;
use ftl::Ftl;
use pblk::{Pblk, Rrpc};
use scenario::Scenario;
use sluice_stack::{RunObserver, Stack, StackError, co_simulate, precondition};
use time::VirtualRunner;
use workload::{IoCpuCosts, JobRunner, JobSpec};

const SEED: u64 = 7;
/// About 0.5 GiB in some 120 lines.
const DRIVE: &str = "[drive]\npreset = \"mqsim-default-small\"\ndata = \"none\"\n\
    geometry = { channels = 2, pus = 2, planes = 2, chunks = 128, pages = 64 }\n";
const OPEN_CHANNEL: &str = "[drive]\npreset = \"ocssd-mlc-128pu-small\"\ndata = \"none\"\n\
    geometry = { channels = 2, pus = 2, pages = 32, chunks = 192 }\n";

/// A way to overwrite a drive at random.
struct Case {
    drive: String,
    /// fio's options of the job.
    words: &'static str,
    distribution: &'static str,
    /// Times the capacity after which the written state is steady.
    times: f64,
}

impl Case {
    fn uniform(drive: String) -> Case {
        Case { drive, words: "", distribution: "random", times: 4.0 }
    }

    fn job(&self) -> String {
        let Case { words, distribution, .. } = self;
        format!("rw = \"randwrite\", random_distribution = \"{distribution}\", randseed = 5{words}")
    }

    fn written(&self) -> Stack {
        let (job, times) = (self.job(), self.times);
        self.prepare(&format!(
            "fill = \"sequential\"\noverwrite = {{ {job}, amount = \"{times}x\" }}\n"
        ))
    }

    fn sampled(&self) -> Stack {
        self.prepare(&format!("steady = \"sampled\"\noverwrite = {{ {} }}\n", self.job()))
    }

    fn prepare(&self, keys: &str) -> Stack {
        let text = format!("{}[precondition]\n{keys}", self.drive);
        prepare(&text).unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    /// Overwrites the drive as often as `times` says. The hot blocks of zipf follow from `seed`. Returns the write amplification.
    fn overwrite(&self, stack: &mut Stack, times: f64, seed: &str) -> f64 {
        let before = stack.ftl_stats().unwrap();
        let sectors = stack.device.limits().sectors;
        let bytes = ((sectors as f64 * times) as u64 * 4096).to_string();
        let pairs = [
            ("rw", "randwrite"),
            ("bs", if self.words.contains("16k") { "16k" } else { "4k" }),
            ("iodepth", "64"),
            ("norandommap", "1"),
            ("random_distribution", self.distribution),
            ("randseed", seed),
            ("io_size", bytes.as_str()),
        ];
        let pairs = pairs.into_iter().map(|(key, value)| (key, value, 1));
        let (spec, _) = JobSpec::from_pairs("mix", Path::new("t.toml"), pairs).unwrap();
        stack.drive.set_zero_latency(true);
        let device = &mut stack.device;
        let mut jobs = JobRunner::new(device, vec![spec], IoCpuCosts::default(), 3).unwrap();
        let mut go_on = |_: &mut _, _: &mut _, _: &mut _| true;
        let observer = RunObserver::new(&mut go_on);
        co_simulate(&mut VirtualRunner::new(), &mut jobs, &mut stack.drive, observer);
        assert_eq!(jobs.finish().unwrap().failures().count(), 0);
        stack.drive.check_invariants().unwrap_or_else(|e| panic!("{e}"));
        stack.ftl_stats().unwrap().since(&before).write_amplification().unwrap()
    }
}

fn prepare(text: &str) -> Result<Stack, StackError> {
    let scenario =
        Scenario::parse(Path::new("t.toml"), text).unwrap_or_else(|e| panic!("{text}: {e}"));
    let stack = Stack::build(&scenario.drives[0], None)?;
    precondition(stack, &scenario.precondition, &mut VirtualRunner::new(), SEED, &mut |_| {})
}

/// Returns the FTLs of the drive or of its target.
fn ftls(stack: &Stack) -> Vec<&Ftl> {
    let drive = stack.drive.ftl();
    let pblk = stack.device.only::<Pblk>().map(Pblk::ftl);
    let rrpc = stack.device.only::<Rrpc>().map(Rrpc::ftl);
    drive.or(pblk).or(rrpc).into_iter().collect()
}

/// Returns the shares of valid sectors of full lines, ascending.
fn valid_shares(stack: &Stack) -> Vec<f64> {
    let ftl = ftls(stack)[0];
    let sectors = f64::from(ftl.capacity_plan().line_sectors);
    let mut shares: Vec<f64> =
        ftl.valid_sectors_by_line().map(|valid| f64::from(valid) / sectors).collect();
    shares.sort_by(f64::total_cmp);
    shares
}

/// Returns the largest distance of two empirical distributions (Kolmogorov and Smirnov).
fn distance(a: &[f64], b: &[f64]) -> f64 {
    let below = |all: &[f64], x: f64| all.partition_point(|v| *v <= x) as f64 / all.len() as f64;
    a.iter().chain(b).map(|x| (below(a, *x) - below(b, *x)).abs()).fold(0.0, f64::max)
}

/// Compares the sampled state with the written one: the valid sectors of lines, and the write
/// amplification of the writes that follow.
fn compare(case: &Case) {
    let (mut written, mut sampled) = (case.written(), case.sampled());
    let name = format!("{}{}", case.drive, case.job());
    if !ftls(&written).is_empty() {
        let (a, b) = (valid_shares(&written), valid_shares(&sampled));
        let scale = (1.0 / a.len() as f64 + 1.0 / b.len() as f64).sqrt();
        let found = distance(&a, &b) / scale;
        assert!(found < 1.63, "{name}: {found} for a level of 1 %");
        assert!(a.len().abs_diff(b.len()) <= 2, "{name}: {} lines, {}", a.len(), b.len());
    }
    // With the seed of its precondition, a zipf job has the popular blocks of that.
    let seed = if case.distribution == "random" { "6" } else { "5" };
    let during = |stack: &mut Stack| case.overwrite(stack, 2.0, seed);
    let (a, b) = (during(&mut written), during(&mut sampled));
    assert!((b / a - 1.0).abs() < 0.01, "{name}: {a} after writes, {b} after the draw");
}

#[test]
fn uniform_overwrites_of_every_policy() {
    for keys in [
        "over_provisioning = 0.07",
        "over_provisioning = 0.25",
        "hot_cold = false",
        "rate_limiter = \"pid\"",
        "victim_policy = \"fifo\"",
        "victim_policy = \"cost-benefit\"",
        "victim_policy = \"cost-wear\"",
        "active_pus = 1",
        "p2l = \"media\"\nftl.line_metadata = true",
    ] {
        let data = if keys.contains("media") { "memory" } else { "none" };
        compare(&Case::uniform(format!("{}ftl.{keys}\n", DRIVE.replace("none", data))));
    }
}

#[test]
fn larger_blocks_and_a_map_in_frames() {
    let blocks = Case { words: ", bs = \"16k\"", ..Case::uniform(DRIVE.to_owned()) };
    compare(&blocks);
    let cached = DRIVE.replace("none", "memory");
    compare(&Case::uniform(format!("{cached}ftl.l2p_cache = \"768K\"\n")));
}

#[test]
fn targets_of_the_host() {
    compare(&Case::uniform(format!("{OPEN_CHANNEL}[target]\nkind = \"pblk\"\n")));
    compare(&Case::uniform(format!("{OPEN_CHANNEL}[target]\nkind = \"pblk\"\nshards = 2\n")));
    let l2p = OPEN_CHANNEL.replace("data = \"none\"", "data = \"memory\"\ndevice_l2p = true");
    let l2p = l2p.replace("pages = 32", "pages = 8");
    compare(&Case { times: 3.0, ..Case::uniform(format!("{l2p}[target]\nkind = \"rrpc\"\n")) });
}

#[test]
fn zipf_overwrites() {
    for (theta, times, policy) in [
        ("zipf:0.6", 10.0, "greedy"),
        ("zipf:0.9", 24.0, "greedy"),
        ("zipf:0.9", 24.0, "cost-benefit"),
        ("zipf:1.2", 30.0, "greedy"),
    ] {
        let drive = format!("{DRIVE}ftl.victim_policy = \"{policy}\"\n");
        compare(&Case { drive, words: "", distribution: theta, times });
    }
}

#[test]
fn every_sector_is_mapped() {
    let case = Case { distribution: "zipf:1.2", ..Case::uniform(DRIVE.to_owned()) };
    let stack = case.sampled();
    let sectors = ftls(&stack)[0].sectors() as u32;
    assert_eq!(ftls(&stack)[0].extent(0, sectors), (true, sectors));
    stack.drive.check_invariants().unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn drives_without_garbage_collection_are_refused() {
    for drive in [
        "[drive]\npreset = \"pcm\"\ncapacity = \"16M\"\n",
        "[drive]\npreset = \"nvme-null\"\ncapacity = \"16M\"\n",
    ] {
        match prepare(&format!("{drive}[precondition]\nsteady = \"sampled\"\n")) {
            Err(StackError::PreconditionMisfit { message, .. }) => {
                assert!(message.contains("needs garbage collection"), "{drive}: {message}");
            }
            other => panic!("{drive}: {other:?}"),
        }
    }
    // Blocks that do not fit a line.
    let text = format!(
        "{DRIVE}[precondition]\nsteady = \"sampled\"\n\
         overwrite = {{ rw = \"randwrite\", bs = \"64m\" }}\n"
    );
    match prepare(&text) {
        Err(StackError::PreconditionMisfit { message, .. }) => {
            assert!(message.contains("spare space for whole blocks"), "{message}");
        }
        other => panic!("{other:?}"),
    }
}
