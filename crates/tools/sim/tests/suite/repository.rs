//! Files of the repository: the demo's scenarios are valid, and the README and the Makefile agree.

use std::path::{Path, PathBuf};

use scenario::{HostTarget, Scenario};
use sluice_sim::analytic::ClosedFormLimits;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

#[test]
fn the_demo_is_one_drive_three_ways() {
    let load = |name: &str| {
        Scenario::load(&root().join(format!("demo/{name}.toml"))).unwrap_or_else(|e| panic!("{e}"))
    };
    let ways = ["drive-managed", "pblk-128-pus", "pblk-4-pus"].map(load);
    for way in &ways {
        assert!(way.drives[0].is_block_device());
        assert!(way.job_files[0].0.exists(), "{:?}", way.job_files);
        assert_eq!(
            way.drives[0].config.media, ways[0].drives[0].config.media,
            "all scenarios must have the same drive"
        );
        let limits = ClosedFormLimits::from_spec(&way.drives[0]);
        assert_eq!(limits.random_read, ClosedFormLimits::from_spec(&ways[0].drives[0]).random_read);
    }
    let active = ways.map(|way| match &way.drives[0].target {
        HostTarget::None | HostTarget::Named(_) => 0,
        HostTarget::Pblk(config) | HostTarget::Rrpc(config) => config.active_pus,
        HostTarget::Rules(target) => target.ftl.active_pus,
    });
    assert_eq!(active, [0, 128, 4]);
}

#[test]
fn the_readme_names_commands_that_exist() {
    let makefile = read("Makefile");
    let readme = read("README.md");
    let mut named = 0;
    for line in readme.lines() {
        let line = line.trim().trim_start_matches("$ ");
        if let Some(target) = line.strip_prefix("make ") {
            let target = target.split_whitespace().next().unwrap_or_default();
            assert!(makefile.contains(&format!("\n{target}:")), "make {target}");
            named += 1;
        }
    }
    assert!(named >= 2, "the README names `make demo` and `make test`");
    assert!(read(".ci/run").contains("make test"), "CI runs the README's test command");
}

#[test]
fn licences_are_there_in_full() {
    assert!(read("LICENSE-APACHE").contains("END OF TERMS AND CONDITIONS"));
    assert!(read("LICENSE-MIT").contains("WITHOUT WARRANTY OF ANY KIND"));
}
