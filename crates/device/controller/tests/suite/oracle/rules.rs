//! Drives whose rules decide about commands and garbage collection.

use controller::{DriveConfig, DriveRulesConfig, RuleMissConfig};
use rng::Rng;
use time::Nanos;

use super::case::{Blocks, Case, Medium};
use crate::rules::harness::{LEVEL, RECLAIM, STORE_AND_LOAD, compiled, nand};

/// Placement of writes in either stream, in an order that does not depend on the block.
const HOT: &str = "table turn: u64[1] volatile\n\
    rule turns priority 3 when channel.app == db and header.write\n  \
    set turn[0] = turn[0] + header.lba + 1\n  do continue\n\
    rule hot priority 2 when channel.app == db and header.write and turn[0] % 7 < 3\n  \
    set map[header.lba] = next_addr(db.hot)\n  do header.addr = map[header.lba]; insert lun\n";

/// Gives a drive the page-mapped program, on engines of a random number and speed.
fn add_rules(config: &mut DriveConfig, rng: &mut Rng) {
    let last = nand(config).geometry.total_pus() - 1;
    let app = format!(
        "app db {{ units = 0-{last}, spare = 0.01 }}\ntable map: addr[db.sectors] durable\n"
    );
    let hot = if config.ftl.hot_stream { HOT } else { "" };
    config.rules = Some(DriveRulesConfig {
        program: compiled(&format!("{app}{hot}{STORE_AND_LOAD}{RECLAIM}{LEVEL}"), config),
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

    /// Creates a case with rules that place writes in the streams `host` and `hot`.
    pub(crate) fn with_hot_rules(seed: u64, medium: Medium) -> Case {
        let mut case = Case::new(seed, medium, Blocks::Units);
        case.config.ftl.hot_stream = true;
        add_rules(&mut case.config, &mut Rng::new(seed));
        case.replace_drive();
        case
    }
}
