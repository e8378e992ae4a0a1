//! `steady = "sampled"`: the state that is drawn from its distribution against the state that
//! overwrites lead to.

use std::path::Path;

use ftl::Ftl;
use scenario::Scenario;
use sluice_stack::{RunObserver, Stack, StackError, co_simulate, precondition};
use time::VirtualRunner;
use workload::{IoCpuCosts, JobRunner, JobSpec};

const SEED: u64 = 7;
/// About 1 GiB in 248 lines.
const DRIVE: &str = "[drive]\npreset = \"mqsim-default-small\"\ndata = \"none\"\n\
    geometry = { channels = 2, pus = 2, planes = 2, chunks = 256, pages = 64 }\n";

fn prepare(text: &str) -> Result<Stack, StackError> {
    let scenario =
        Scenario::parse(Path::new("t.toml"), text).unwrap_or_else(|e| panic!("{text}: {e}"));
    let stack = Stack::build(&scenario.drives[0], None)?;
    precondition(stack, &scenario.precondition, &mut VirtualRunner::new(), SEED, &mut |_| {})
}

fn ftl(stack: &Stack) -> &Ftl {
    stack.drive.ftl().or_else(|| stack.device.only::<pblk::Pblk>().map(|p| p.ftl())).unwrap()
}

/// Overwrites a share of the drive; returns the write amplification.
fn overwrite(stack: &mut Stack, distribution: &str, times: f64) -> f64 {
    let before = stack.ftl_stats().unwrap();
    let bytes = (ftl(stack).sectors() as f64 * 4096.0 * times) as u64 / 4096 * 4096;
    let bytes = bytes.to_string();
    let pairs = [
        ("rw", "randwrite"),
        ("bs", "4k"),
        ("iodepth", "64"),
        ("norandommap", "1"),
        ("random_distribution", distribution),
        ("randseed", "5"),
        ("io_size", bytes.as_str()),
    ];
    let pairs = pairs.into_iter().map(|(key, value)| (key, value, 1));
    let (spec, _) = JobSpec::from_pairs("mix", Path::new("t.toml"), pairs).unwrap();
    let device = &mut stack.device;
    let mut jobs = JobRunner::new(device, vec![spec], IoCpuCosts::default(), 3).unwrap();
    let mut runner = VirtualRunner::new();
    co_simulate(&mut runner, &mut jobs, &mut stack.drive, RunObserver::new(&mut |_, _, _| true));
    jobs.finish().unwrap();
    stack.drive.check_invariants().unwrap_or_else(|e| panic!("{e}"));
    stack.ftl_stats().unwrap().since(&before).write_amplification().unwrap()
}

#[test]
fn explore() {
    for (policy, dist, op, times) in [
        ("greedy", "random", 0.07, 6.0),
        ("greedy", "random", 0.2, 4.0),
        ("fifo", "random", 0.12, 6.0),
        ("cost-benefit", "random", 0.12, 6.0),
        ("cost-wear", "random", 0.12, 6.0),
        ("greedy", "zipf:0.9", 0.12, 8.0),
        ("cost-benefit", "zipf:0.9", 0.12, 12.0),
        ("greedy", "zipf:1.2", 0.12, 8.0),
    ] {
        let drive =
            format!("{DRIVE}ftl.over_provisioning = {op}\nftl.victim_policy = \"{policy}\"\n");
        let words = format!("rw = \"randwrite\", random_distribution = \"{dist}\", randseed = 5");
        let t = std::time::Instant::now();
        let mut written = prepare(&format!("{drive}[precondition]\nfill = \"sequential\"\noverwrite = {{ {words}, amount = \"{times}x\" }}\n")).unwrap();
        let tw = t.elapsed();
        let t = std::time::Instant::now();
        let mut sampled = prepare(&format!(
            "{drive}[precondition]\nsteady = \"sampled\"\noverwrite = {{ {words} }}\n"
        ))
        .unwrap();
        let ts = t.elapsed();
        let quant = |s: &Stack| {
            let mut v: Vec<f64> = ftl(s)
                .valid_sectors_by_line()
                .map(|v| f64::from(v) / f64::from(ftl(s).capacity_plan().line_sectors))
                .collect();
            v.sort_by(f64::total_cmp);
            let q: Vec<String> = [0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0]
                .iter()
                .map(|q| format!("{:.3}", v[((v.len() - 1) as f64 * q) as usize]))
                .collect();
            format!("{} lines free {:.2}: {}", v.len(), ftl(s).free_lines(), q.join(" "))
        };
        eprintln!(
            "{policy} {dist} {op}: {tw:?} {ts:?}\n  written {}\n  sampled {}",
            quant(&written),
            quant(&sampled)
        );
        for part in [0.05, 0.2, 0.5, 0.5, 1.0] {
            let a = overwrite(&mut written, dist, part);
            let b = overwrite(&mut sampled, dist, part);
            eprintln!("  next {part}: {a:.3} {b:.3} {:+.2} %", (b / a - 1.0) * 100.0);
        }
    }
}
