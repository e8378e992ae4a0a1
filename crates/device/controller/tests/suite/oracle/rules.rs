//! Drives whose rules decide about commands and garbage collection.

use controller::{DriveConfig, DriveRulesConfig, RuleMissConfig};
use rng::Rng;
use time::Nanos;

use super::case::{Blocks, Case, Medium};
use crate::rules::harness::{LEVEL, RECLAIM, STORE_AND_LOAD, compiled, nand};

/// Gives a drive the page-mapped program, on engines of a random number and speed.
fn add_rules(config: &mut DriveConfig, rng: &mut Rng) {
    let last = nand(config).geometry.total_pus() - 1;
    let app = format!(
        "app db {{ units = 0-{last}, spare = 0.01 }}\ntable map: addr[db.sectors] durable\n"
    );
    config.rules = Some(DriveRulesConfig {
        program: compiled(&format!("{app}{STORE_AND_LOAD}{RECLAIM}{LEVEL}"), config),
        engines: 1 + rng.below(3) as u16,
        op: Nanos(rng.below(2) * rng.below(200)),
        ops: 1 << 20,
        table_bytes: 1 << 20,
        misses: RuleMissConfig::default(),
        idle_poll: (rng.below(2) == 1).then_some(Nanos(1_000 + rng.below(300_000))),
    });
}

impl Case {
    /// Creates a case with rules that map pages as the drive does without them.
    pub(crate) fn with_rules(seed: u64, medium: Medium) -> Case {
        let mut case = Case::new(seed, medium, Blocks::Units);
        add_rules(&mut case.config, &mut Rng::new(seed));
        case.replace_drive();
        case
    }
}
