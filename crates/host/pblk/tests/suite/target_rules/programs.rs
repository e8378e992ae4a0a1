//! Programs for the geometry of a test drive, from their sources.

use std::path::Path;

use nvme::Geometry;
use pblk::TargetRulesConfig;
use rules_lang::{CompileOptions, check};

/// Writes at the sector that the host names, and reads of it.
pub(crate) const STORE_AND_LOAD: &str = "rule store\n  when channel.app == db and header.write\n  \
    set map[header.lba] = next_addr(db.host)\n  do header.addr = map[header.lba]; insert lun\n\
    rule load\n  when channel.app == db and header.read\n  \
    do header.addr = map[header.lba]; insert lun\n";

/// The collection of the line with the fewest valid sectors.
pub(crate) const RECLAIM: &str = "rule reclaim when idle(db) or db.free_lines < 4\n  \
    set v = best line of db by line.sectors - line.valid where line.valid < line.sectors\n  \
    do move valid of v to db.gc; erase v\n";

/// The relocation of the line that was closed first, once lines differ in their wear.
pub(crate) const LEVEL: &str = "rule level priority 1 when idle(db) and db.wear.max > db.wear.min + 2\n  \
    set v = best line of db by line.age - 100 * line.erases\n  \
    do move valid of v to db.cold; erase v\n";

/// Placement of writes in the stream `hot`, in an order that does not depend on the sector.
pub(crate) const HOT: &str = "table turn: u64[1] volatile\n\
    rule turns priority 3 when channel.app == db and header.write\n  \
    set turn[0] = turn[0] + header.lba + 1\n  do continue\n\
    rule hot priority 2 when channel.app == db and header.write and turn[0] % 7 < 3\n  \
    set map[header.lba] = next_addr(db.hot)\n  do header.addr = map[header.lba]; insert lun\n";

/// Returns the source of a program whose application has the whole drive, behind its declaration.
pub(crate) fn source(geometry: &Geometry, rules: &str) -> String {
    let last = geometry.groups * geometry.pus - 1;
    format!(
        "app db {{ units = 0-{last}, spare = 0.01 }}\ntable map: addr[db.sectors] durable\n{rules}"
    )
}

/// Returns the settings with a program of these rules.
pub(crate) fn settings(geometry: &Geometry, rules: &str) -> TargetRulesConfig {
    let config = TargetRulesConfig { ops: 1 << 20, ..TargetRulesConfig::default() };
    let limits = config.limits(geometry, 0);
    let options = CompileOptions {
        grant: limits.grant,
        sector_bytes: limits.sector_bytes,
        lines: limits.lines,
    };
    let source = source(geometry, rules);
    let verified = check(Path::new("p.rules"), source.as_bytes(), &options);
    let program = verified.unwrap_or_else(|error| panic!("{error}")).program().encode();
    TargetRulesConfig { program, ..config }
}
