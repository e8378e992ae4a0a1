//! The scenarios of figures of papers on a modeled machine (`repro/PAPER/FIGURE.scenario.toml`).

// guarantee: V-11

use std::path::{Path, PathBuf};

use scenario::{HostKernel, Scenario};
use sluice_sim::{SimOptions, simulate, to_json};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../repro")
}

/// Returns the scenarios of figures that have a machine, with the keys of their papers.
fn scenarios() -> Vec<(String, Scenario)> {
    let mut found = Vec::new();
    for paper in std::fs::read_dir(folder()).unwrap() {
        let paper = paper.unwrap();
        if !paper.path().is_dir() {
            continue;
        }
        for file in std::fs::read_dir(paper.path()).unwrap() {
            let file = file.unwrap().path();
            if file.to_string_lossy().ends_with(".scenario.toml") {
                let key = paper.file_name().to_string_lossy().into_owned();
                let scenario = Scenario::load(&file).unwrap_or_else(|e| panic!("{e}"));
                found.push((key, scenario));
            }
        }
    }
    found.retain(|(_, scenario)| scenario.host.machine.is_some());
    found
}

#[test]
fn figures_use_built_in_models_and_no_kernel_of_their_own_paper() {
    let found = scenarios();
    assert!(found.len() >= 6, "{}", found.len());
    for (paper, scenario) in found {
        let machine = scenario.host.machine.unwrap();
        let name = machine.model.name();
        let file = scenario.file.display();
        let built_in = machine::MachineModel::built_in(name).unwrap_or_else(|| panic!("{file}"));
        assert_eq!(*machine.model, built_in, "{file}");
        // The sweep of a figure selects kernels by their names.
        let sweep = scenario.file.to_string_lossy().replace(".scenario.", ".sweep.");
        let sweep = std::fs::read_to_string(sweep).unwrap();
        let is_used = |kernel: &&HostKernel| {
            **kernel == machine.kernel || sweep.contains(&format!("\"{}\"", kernel.word()))
        };
        for kernel in HostKernel::ALL.iter().filter(is_used) {
            assert!(!kernel.source().contains(&paper), "{file}: {}", kernel.word());
        }
    }
}

#[test]
fn pblk_adds_its_counted_instructions_to_a_request() {
    let file = folder().join("LightNVM17/overhead-modelled-null.scenario.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let added = |rw: &str| {
        let scenario = Scenario::parse(&file, &text.replace("randread", rw)).unwrap();
        let result = to_json(&simulate(&scenario, SimOptions::default()).unwrap());
        let mean = |job: usize| {
            let job = &result["jobs"][job];
            let direction = if rw == "randread" { "read" } else { "write" };
            job[direction]["clat_ns"]["mean"].as_f64().unwrap()
        };
        mean(1) - mean(0)
    };
    // 0.6 cycles per instruction at 3.4 GHz.
    let ns = |instructions: f64| instructions * 0.6 / 3.4;
    let read = added("randread");
    assert!((read - ns(351.0)).abs() < 0.5, "{read}");
    // pblk completes a write itself: the thread looks once less at the drive's queue, 60 instructions.
    let write = added("randwrite");
    assert!((write - ns(411.0 - 60.0)).abs() < 1.0, "{write}");
}
