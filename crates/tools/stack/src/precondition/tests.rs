//! Writes without commands against the same writes by commands.

// guarantee: B-56

use scenario::Scenario;

use super::*;

const SEED: u64 = 5;
const DRIVE: &str = "[drive]\npreset = \"mqsim-default-small\"\ndata = \"none\"\n\
    geometry = { channels = 2, pus = 2, chunks = 48, pages = 32 }\n\
    write_buffer.size = \"1M\"\nftl.over_provisioning = 0.2\n";
const FILLED: &str = "[precondition]\nfill = \"sequential\"\noverwrite = \"random 1x\"\n";

/// Returns the saved state of the drive after its precondition.
fn state(text: &str, by_commands: bool) -> Vec<u8> {
    let scenario =
        Scenario::parse(Path::new("t.toml"), text).unwrap_or_else(|e| panic!("{text}: {e}"));
    let (plan, what) = (&scenario.drives[0], &scenario.precondition);
    let (mut drive, mut host) = Stack::build(plan, None).unwrap().split();
    let mut runner = VirtualRunner::new();
    if by_commands {
        let device = &mut host.device;
        let ftl = drive.ftl().map(|ftl| (*ftl.config(), *ftl.capacity_plan()));
        let unit_bytes = drive.ftl().map(|ftl| ftl.geometry().sector_bytes);
        let limits = unit_limits(device.limits(), unit_bytes);
        let jobs = PreconditionPlan::new(what, &limits, ftl, SEED).unwrap();
        drive.set_zero_latency(true);
        let mut host = jobs.start(device, SEED).unwrap();
        let mut go_on = |_: &mut _, _: &mut _, _: &mut _| true;
        let observer = RunObserver::new(&mut go_on);
        assert!(co_simulate(&mut runner, &mut host, &mut drive, observer));
        assert_eq!(host.finish().unwrap().failures().count(), 0);
        assert!(drive.stats().writes > 100);
        drive.set_zero_latency(false);
        drive.reset_stats();
    } else {
        let name = &plan.config.name;
        precondition_host(name, &mut drive, &mut host, what, &mut runner, SEED, &mut |_| true)
            .unwrap_or_else(|e| panic!("{text}: {e}"));
    }
    let saved = SavedStack::new(&drive, &host.device, runner.now()).expect("it is complete");
    postcard::to_stdvec(&saved).unwrap()
}

#[test]
fn direct_writes_leave_the_state_that_commands_leave() {
    let mut texts: Vec<String> = ["greedy", "cost-benefit", "fifo", "cost-wear"]
        .into_iter()
        .map(|policy| format!("{DRIVE}ftl.victim_policy = \"{policy}\"\n{FILLED}"))
        .collect();
    let job = |words: &str| {
        format!("{DRIVE}[precondition]\nfill = \"sequential\"\noverwrite = {{ {words} }}\n")
    };
    texts.extend([
        format!("{DRIVE}ftl.hot_cold = false\n{FILLED}"),
        format!("{DRIVE}ftl.active_pus = 1\nftl.static_wear_leveling = 20\n{FILLED}"),
        format!("{DRIVE}write_buffer = {{ kind = \"none\" }}\n{FILLED}")
            .replace("write_buffer.size = \"1M\"\n", ""),
        format!("{DRIVE}write_buffer.kind = \"power-loss-protected\"\n{FILLED}"),
        format!("{DRIVE}ftl.rate_limiter = \"pid\"\n{FILLED}"),
        format!("{DRIVE}errors.program_failure_rate = 1e-5\n{FILLED}"),
        format!("{DRIVE}errors.factory_bad_ratio = 0.02\n{FILLED}"),
        format!("{DRIVE}ftl.checkpoint_interval = \"1M\"\n{FILLED}"),
        format!("{DRIVE}[precondition]\nfill = \"sequential\"\n"),
        format!("{DRIVE}[precondition]\nsteady = \"sampled\"\n"),
        format!("{DRIVE}lba_bytes = 512\n{FILLED}"),
        format!("{DRIVE}lba_bytes = 1024\n[precondition]\nsteady = \"sampled\"\n"),
        job("rw = \"randwrite\", bs = \"256k\", amount = \"2x\", iodepth = 1"),
        job("rw = \"randwrite\", bssplit = \"4k/50:64k/50\", amount = \"1x\", iodepth = 900"),
        job("rw = \"write\", bs = \"12k\", amount = \"1x\""),
        // These run on a job runner.
        job("rw = \"randwrite\", bs = \"4m\", amount = \"1x\", iodepth = 3"),
        job("rw = \"randwrite\", amount = \"1x\", iodepth = 9000"),
        job("rw = \"randwrite\", random_distribution = \"zipf:1.1\", amount = \"2x\""),
    ]);
    for text in texts {
        assert!(state(&text, false) == state(&text, true), "{text}");
    }
}

/// Overwrites of single logical blocks read, modify and write units, and `sampled` refuses them.
#[test]
fn preconditioning_of_small_blocks_writes_units_unless_jobs_say_otherwise() {
    let small = format!("{DRIVE}lba_bytes = 512\n");
    let units = state(&format!("{small}{FILLED}"), false);
    let blocks = "[precondition]\nfill = \"sequential\"\noverwrite = { rw = \"randwrite\", \
        bs = \"512\", amount = \"1M\" }\n";
    assert!(state(&format!("{small}{blocks}"), false) != units);
    let sampled = format!(
        "{small}[precondition]\nsteady = \"sampled\"\noverwrite = {{ rw = \"randwrite\", \
         bs = \"512\" }}\n"
    );
    let scenario = Scenario::parse(Path::new("t.toml"), &sampled).unwrap();
    let (mut drive, mut host) = Stack::build(&scenario.drives[0], None).unwrap().split();
    let (what, mut runner) = (&scenario.precondition, VirtualRunner::new());
    let refused =
        precondition_host("d", &mut drive, &mut host, what, &mut runner, SEED, &mut |_| true);
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("whole sectors of 4096 bytes"), "{message}");
}
