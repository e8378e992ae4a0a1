//! The closed forms of `sluice drive show` against simulations of the same drive, for every preset
//! with a steady state.
//!
//! The test reduces a drive's parallel units, and very large numbers of chunks and pages. The forms
//! hold for any number, and are computed for the smaller drive. All other parameters are those of
//! the preset.
//!
//! **Tolerances.** Write amplification: 5 %. The analysis assumes many blocks, and uses the mean
//! number of free lines; on drives of 30 lines this is off by up to 4 %, in both directions. Writes
//! per second: at most 5 % above the form, which is a bound except for the error of the write
//! amplification; and at least 85 % of it, because the forms ignore waits for a busy channel or
//! unit. Reads per second: 5 % below the bound of a closed queueing network, in which some units
//! are idle for lack of requests; channels have queues, too.

// guarantee: M-08, M-09

use std::path::Path;

use scenario::Scenario;
use sluice_sim::analytic::{ClosedFormLimits, SustainedRate};
use sluice_sim::{PathOutcome, SimOptions, simulate};

/// Presets, and the keys that reduce them to 4 parallel units, or to 100,000 to 500,000 sectors.
const PRESETS: [(&str, &str); 15] = [
    ("femu-default", "geometry = { channels = 2, pus = 2, pages = 128 }"),
    ("mqsim-default-small", "geometry = { channels = 2, pus = 2 }"),
    ("mqsim-default", "geometry = { channels = 2, pus = 2, chunks = 128, pages = 128 }"),
    ("tlc-2020s-small", "geometry = { channels = 2, pus = 2, pages = 144 }"),
    ("tlc-2020s", "geometry = { channels = 2, pus = 2, chunks = 57, pages = 144 }"),
    ("tlc-2020s-oneshot", "geometry = { channels = 2, pus = 2, chunks = 57, pages = 144 }"),
    ("qlc-2020s-small", "geometry = { channels = 2, pus = 2, pages = 192 }"),
    ("qlc-2020s", "geometry = { channels = 2, pus = 2, chunks = 57, pages = 192 }"),
    ("sata-840pro-small", "geometry = { channels = 2, pus = 1, pages = 64 }"),
    ("sata-840pro", "geometry = { channels = 2, pus = 1, chunks = 256, pages = 32 }"),
    ("dc-nvme-mlc", "geometry = { channels = 2, pus = 2, chunks = 128, pages = 64 }"),
    ("consumer-nvme", "geometry = { channels = 2, pus = 2, chunks = 128, pages = 64 }"),
    ("ocssd-mlc-128pu-small", "geometry = { channels = 2, pus = 2, pages = 128 }"),
    ("ocssd-mlc-128pu", "geometry = { channels = 2, pus = 2, chunks = 64, pages = 128 }"),
    ("openssd-jasmine", "geometry = { channels = 2, pus = 2, chunks = 256 }"),
];

/// Simulates a reduced drive of a preset; returns its closed forms, the results of its jobs, and
/// its numbers of channels and of parallel units per channel.
fn simulated(
    preset: &str,
    keys: &str,
    rest: &str,
) -> (ClosedFormLimits, PathOutcome, Option<(u32, u32)>) {
    let target = match preset {
        "openssd-jasmine" => "[target]\nkind = \"pblk\"\n",
        name if name.starts_with("ocssd") => {
            "[target]\nkind = \"pblk\"\nover_provisioning = 0.25\n"
        }
        _ => "",
    };
    // The write buffer of a large drive would hold most of a small one.
    let buffer = match target {
        "" if preset != "femu-default" => "write_buffer.size = \"1M\"\n",
        _ => "",
    };
    let text =
        format!("[drive]\npreset = \"{preset}\"\ndata = \"none\"\n{keys}\n{buffer}{target}{rest}");
    let scenario =
        Scenario::parse(Path::new("test.toml"), &text).unwrap_or_else(|e| panic!("{text}: {e}"));
    let limits = ClosedFormLimits::from_spec(&scenario.drives[0]);
    let mut outcome = simulate(&scenario, SimOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    (limits, outcome.paths.remove(0), outcome.drives[0].geometry)
}

#[test]
fn writes_in_steady_state_are_as_shown() {
    for (preset, keys) in PRESETS {
        let bs = if preset.starts_with("sata") { 512 } else { 4096 };
        let (limits, path, _) = simulated(
            preset,
            keys,
            &format!(
                "[precondition]\nfill = \"sequential\"\noverwrite = \"random 1x\"\n\
                 until = {{ round = \"0.25x\", rounds = 30 }}\n\
                 [[job]]\nrw = \"randwrite\"\nbs = {bs}\niodepth = 256\nnorandommap = true\n\
                 io_size = \"100%\"\n"
            ),
        );
        let steady = path.steady.as_ref().unwrap();
        assert!(steady.reached, "{preset}: {:?} after {}", steady.missing(), steady.rounds.len());
        let SustainedRate { write_amplification: shown, limit, effective_spare, .. } =
            limits.sustained.unwrap();
        let found = path.ftl.unwrap().write_amplification().unwrap();
        let (bound, rate) = (limit.unwrap().iops(), path.run.jobs[0].directions[1].iops());
        println!(
            "{preset}: {shown:.3} shown, {found:.3} found; {bound:.0} and {rate:.0} writes/s; spare \
             {effective_spare:.4}, {} rounds",
            steady.rounds.len()
        );
        assert!((found / shown - 1.0).abs() < 0.05, "{preset}: {found} instead of {shown}");
        assert!((0.85..1.05).contains(&(rate / bound)), "{preset}: {rate} writes/s of {bound}");
    }
}

#[test]
fn random_reads_are_as_shown() {
    for (preset, keys) in PRESETS {
        let bs = if preset.starts_with("sata") { 512 } else { 4096 };
        let depth = 256;
        let (limits, path, geometry) = simulated(
            preset,
            keys,
            &format!(
                "[precondition]\nfill = \"sequential\"\n[[job]]\nrw = \"randread\"\nbs = {bs}\n\
                 iodepth = {depth}\nnumber_ios = 40000\nnorandommap = true\n"
            ),
        );
        let bound = limits.random_read.unwrap();
        let rate = path.run.jobs[0].directions[0].iops();
        // With n servers and uniformly distributed requests, a share of n - 1 in (outstanding + n -
        // 1) of the servers is idle. The number of tags limits the outstanding requests.
        let outstanding =
            f64::from(depth).min(if preset.starts_with("sata") { 31.0 } else { 256.0 });
        let pus = f64::from(geometry.map_or(1, |(channels, pus)| channels * pus));
        let busy = outstanding / (outstanding + pus - 1.0);
        println!("{preset}: {:.0} shown ({}), {rate:.0} found", bound.iops(), bound.bound());
        assert!(rate <= bound.iops() * 1.01, "{preset}: {rate} reads/s of {}", bound.iops());
        assert!(rate >= bound.iops() * busy * 0.95, "{preset}: {rate} of {}", bound.iops() * busy);
    }
}

/// A drive of 8 TiB is simulated like any other: sectors at both ends of it keep what was written,
/// whatever their physical sectors; one with more sectors than the tables number is refused.
#[test]
fn a_drive_of_eight_tebibytes_keeps_its_data() {
    let drive = "[drive]\npreset = \"mqsim-default\"\ndata = \"memory\"\n";
    let job = |offset: &str| {
        format!(
            "[[job]]\nrw = \"randrw\"\nbs = \"4k\"\niodepth = 32\noffset = \"{offset}\"\n\
             size = \"16m\"\nio_size = \"32m\"\nverify = \"crc32c\"\n"
        )
    };
    let text = format!("{drive}geometry.pages = 4096\n{}{}", job("0"), job("7500g"));
    let scenario = Scenario::parse(Path::new("s.toml"), &text).unwrap_or_else(|e| panic!("{e}"));
    let outcome = simulate(&scenario, SimOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(outcome.failures(), [""; 0]);
    for job in &outcome.paths[0].run.jobs {
        let requests = &job.requests;
        assert!(requests.completed >= 8_192 && requests.verified > 3_000, "{requests:?}");
    }
    let text = format!("{drive}geometry.pages = 8192\n{}", job("0"));
    let refused = Scenario::parse(Path::new("s.toml"), &text).unwrap_err().to_string();
    assert!(refused.contains("at most 3758096383"), "{refused}");
}
