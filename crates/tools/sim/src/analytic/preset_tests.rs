//! Tests that the closed forms of each preset meet the figures that its file quotes.

use std::path::Path;

use scenario::presets::all;
use scenario::{DriveSpec, Scenario};

use super::{ClosedFormLimits, Limit, Resource, mean_program, mean_read};

fn plan(name: &str, more: &str) -> DriveSpec {
    let text = format!("[drive]\npreset = \"{name}\"\n{more}");
    let scenario = Scenario::parse(Path::new("test.toml"), &text)
        .unwrap_or_else(|e| panic!("{name} {more}: {e}"));
    scenario.drives[0].clone()
}

fn limits(name: &str) -> ClosedFormLimits {
    ClosedFormLimits::from_spec(&plan(name, ""))
}

fn assert_near(what: &str, computed: f64, quoted: f64, within: f64) {
    let off = (computed - quoted).abs() / quoted;
    assert!(off <= within, "{what}: {computed} instead of {quoted}");
}

fn iops(limit: &Option<Limit>) -> f64 {
    limit.as_ref().unwrap().iops()
}

fn bandwidth(limit: &Option<Limit>) -> f64 {
    limit.as_ref().unwrap().bytes_per_sec()
}

#[test]
fn every_preset_is_a_drive_and_names_its_sources() {
    for preset in all() {
        let plan = plan(preset.name, "");
        assert_eq!(plan.preset.as_deref(), Some(preset.name));
        let limits = ClosedFormLimits::from_spec(&plan);
        assert!(limits.random_read.is_some(), "{}: nothing binds its reads", preset.name);
        assert!(preset.text.starts_with("# "), "{} says what it is", preset.name);
        let cited = ["[", "See "].iter().any(|mark| {
            preset.text.lines().any(|l| l.trim_start().starts_with('#') && l.contains(mark))
        });
        assert!(cited, "{} names its sources", preset.name);
    }
    let mut names: Vec<&str> = all().iter().map(|p| p.name).collect();
    names.dedup();
    assert_eq!(names.len(), all().len());
}

#[test]
fn small_versions_keep_the_limits() {
    for (small, full) in [
        ("ocssd-mlc-128pu-small", "ocssd-mlc-128pu"),
        ("mqsim-default-small", "mqsim-default"),
        ("sata-840pro-small", "sata-840pro"),
        ("tlc-2020s-small", "tlc-2020s"),
        ("qlc-2020s-small", "qlc-2020s"),
    ] {
        let (s, f) = (limits(small), limits(full));
        assert_eq!(s.random_read, f.random_read, "{small}");
        assert_eq!(s.sequential_read, f.sequential_read, "{small}");
        assert_eq!(s.program, f.program, "{small}");
        assert_eq!(s.read_latency, f.read_latency, "{small}");
    }
}

/// \[LightNVM17\], table 1, §3.1 and §4.2.1.
#[test]
fn ocssd_meets_the_papers_figures() {
    let plan = plan("ocssd-mlc-128pu", "");
    let media::MediaConfig::Nand(nand) = &plan.config.media else { panic!() };
    let g = nand.host_geometry();
    assert_eq!(g.total_pus(), 128);
    assert_near("capacity", g.total_bytes() as f64, 2e12, 0.15);
    assert_eq!(nvme::PpaFormat::from_geometry(&g).unwrap().chunk_bits, 11);
    let fpsz = u64::from(g.ws_opt) * u64::from(g.sector_bytes);
    assert_eq!(fpsz, 64 << 10);
    // The write buffer of [LightNVM17 §4.2.1]: per PU, the page being written and the preceding
    // mw_cunits.
    let held = u64::from(g.mw_cunits + g.ws_opt) * u64::from(g.sector_bytes);
    assert_eq!(held * u64::from(g.total_pus()), 64 << 20);
    let per_pu = 65536.0 / mean_program(nand).as_secs_f64();
    assert_near("write per PU", per_pu, 47e6, 0.01);
    let limits = ClosedFormLimits::from_spec(&plan);
    let per_pu = 4096.0 / limits.read_latency.as_secs_f64();
    assert_near("random 4 KB read of one PU", per_pu, 56e6, 0.01);
    // In sequential reads, the four sectors of a page share one tR.
    let saved = mean_read(nand) * 3;
    let sequential = limits.read_latency.as_secs_f64() - saved.as_secs_f64() / 4.0;
    assert_near("sequential 4 KB read of one PU", 4096.0 / sequential, 105e6, 0.01);
    assert_near("drive read", bandwidth(&limits.sequential_read), 4.5e9, 0.01);
    assert_eq!(limits.sequential_read.as_ref().unwrap().bound(), Resource::Channels);
    // The channels would allow 4.48 GB/s; the paper's host writes 4 GB/s.
    assert_near("drive write", bandwidth(&limits.program), 4e9, 1e-9);
}

/// [Thesis15 ch. 6 §5].
#[test]
fn null_and_jasmine_meet_the_theses_figures() {
    let null = limits("nvme-null");
    assert_near("null latency", null.read_latency.as_micros_f64(), 35.0, 0.001);
    assert_near("null bandwidth", bandwidth(&null.random_read), 380e6, 1e-9);
    let jasmine = plan("openssd-jasmine", "");
    let media::MediaConfig::Nand(nand) = &jasmine.config.media else { panic!() };
    assert_eq!(nand.geometry.total_bytes(), 64 << 30);
    assert_eq!(nand.host_geometry().ws_opt * 4096, 2 * 8192);
}

/// Product briefs of the manufacturers.
#[test]
fn nvme_drives_meet_their_makers_figures() {
    let dc_plan = plan("dc-nvme-mlc", "");
    let dc = ClosedFormLimits::from_spec(&dc_plan);
    assert_near("capacity", dc_plan.capacity.unwrap().logical_bytes() as f64, 400e9, 0.01);
    assert_near("sequential read", bandwidth(&dc.sequential_read), 2.7e9, 0.01);
    assert_near("sequential write", bandwidth(&dc.program), 1.1e9, 0.01);
    assert_near("random read", iops(&dc.random_read), 450e3, 0.01);
    let sustained = dc.sustained.unwrap();
    assert_near("random write", iops(&sustained.limit), 75e3, 0.01);
    assert_near("buffered write", dc.write_latency.as_micros_f64(), 20.0, 0.01);

    let plan = plan("consumer-nvme", "");
    let consumer = ClosedFormLimits::from_spec(&plan);
    assert_near("capacity", plan.capacity.unwrap().logical_bytes() as f64, 400e9, 0.01);
    assert_near("sequential read", bandwidth(&consumer.sequential_read), 2.2e9, 0.01);
    assert_near("sequential write", bandwidth(&consumer.program), 0.9e9, 0.05);
    assert_near("random read", iops(&consumer.random_read), 430e3, 0.01);
    assert_near("random write, fresh", bandwidth(&consumer.program) / 4096.0, 230e3, 0.01);
}

/// [HIOPS14 §4].
#[test]
fn sata_reads_134_thousand_sectors_per_second() {
    let sata = limits("sata-840pro");
    assert_near("random 512-byte reads", iops(&sata.random_read), 671e3 / 5.0, 0.01);
    assert_eq!(sata.random_read.unwrap().bound(), Resource::Fetch);
    assert_near("sequential read", bandwidth(&sata.sequential_read), 540e6, 0.01);
    assert_near("sequential write", bandwidth(&sata.program), 520e6, 0.01);
    let plan = plan("sata-840pro", "");
    assert_eq!(plan.config.controller.queue_depth, 32);
    assert_near("capacity", plan.capacity.unwrap().logical_bytes() as f64, 256e9, 0.01);
}

/// The default configurations of MQSim and FEMU.
#[test]
fn emulators_defaults_are_theirs() {
    let mqsim = plan("mqsim-default", "");
    let media::MediaConfig::Nand(nand) = &mqsim.config.media else { panic!() };
    assert_eq!(nand.geometry.total_bytes(), 512 << 30);
    let capacity = mqsim.capacity.unwrap();
    let mapped = capacity.logical_sectors + capacity.map_sectors;
    let spare = 1.0 - mapped as f64 / capacity.physical_sectors() as f64;
    assert_near("spare factor", spare, 0.07, 0.01);

    let femu_plan = plan("femu-default", "");
    let femu = ClosedFormLimits::from_spec(&femu_plan);
    assert_near("reads", iops(&femu.random_read), 1.60e6, 0.001);
    assert_near("programs", bandwidth(&femu.program), 1.31e9, 0.001);
    let logical = femu_plan.capacity.unwrap().logical_bytes() as f64;
    assert_near("logical size", logical, 12288.0 * 1048576.0, 0.01);
}

#[test]
fn newer_drives_are_where_their_briefs_are() {
    assert_near("TLC reads", iops(&limits("tlc-2020s").random_read), 768e3, 0.01);
    let one_shot = limits("tlc-2020s-oneshot");
    assert_near("one-shot TLC programs", bandwidth(&one_shot.program), 7e9, 0.01);
    assert_eq!(one_shot.program.unwrap().bound(), Resource::Dma);
    for (name, bytes) in [("tlc-2020s", 1e12), ("tlc-2020s-oneshot", 1e12), ("qlc-2020s", 2e12)] {
        let logical = plan(name, "").capacity.unwrap().logical_bytes() as f64;
        assert_near(name, logical, bytes, 0.01);
    }
    let pcm = limits("pcm");
    assert_near("PCM latency", pcm.read_latency.as_micros_f64(), 5.0, 1e-9);
    assert_near("PCM write latency", pcm.write_latency.as_micros_f64(), 5.0, 1e-9);
}
