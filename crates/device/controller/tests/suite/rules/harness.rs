//! Drives with a rule program from its source.

use std::path::Path;

use controller::{DriveConfig, DriveRulesConfig, RuleMissConfig};
use media::{MediaConfig, NandConfig};
use rules_lang::{CompileOptions, check};
use time::Nanos;

use crate::block_commands::harness::config;

/// The application of the programs: all parallel units of [`config`].
pub(super) const APP: &str = "app db { units = 0-15, spare = 0.1 }\n\
    table map: addr[db.sectors] durable\n";

/// Writes at the block that the host names, and reads of it.
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

pub(crate) fn nand(config: &DriveConfig) -> &NandConfig {
    match &config.media {
        MediaConfig::Nand(nand) => nand,
        media => panic!("{media:?}"),
    }
}

/// Settings without a program. No command is parked.
pub(super) fn settings() -> DriveRulesConfig {
    let (program, op) = (Vec::new(), Nanos::ZERO);
    let misses = RuleMissConfig { timeout: Nanos::ZERO, ..RuleMissConfig::default() };
    DriveRulesConfig {
        program,
        engines: 1,
        op,
        ops: 4096,
        table_bytes: 1 << 20,
        misses,
        idle_poll: None,
    }
}

/// Returns a program in its encoded form.
pub(crate) fn compiled(source: &str, config: &DriveConfig) -> Vec<u8> {
    compiled_for(source, config, settings().ops)
}

/// Returns a program, whose commands may use `ops` operations, in its encoded form.
pub(crate) fn compiled_for(source: &str, config: &DriveConfig, ops: u64) -> Vec<u8> {
    let settings = DriveRulesConfig { ops, ..settings() };
    let (grant, sector_bytes) = (settings.grant(nand(config)), config.sector_bytes());
    let options = CompileOptions { grant, sector_bytes, ..Default::default() };
    let verified = check(Path::new("p.rules"), source.as_bytes(), &options);
    verified.unwrap_or_else(|error| panic!("{error}")).program().encode()
}

/// Returns a drive with rules behind [`APP`].
pub(super) fn ruled(rules: &str) -> DriveConfig {
    let base = config();
    let program = compiled(&format!("{APP}{rules}"), &base);
    DriveConfig { rules: Some(DriveRulesConfig { program, ..settings() }), ..base }
}

/// Returns a drive with the stream `hot`, and with rules behind [`APP`].
pub(super) fn ruled_with_hot_stream(rules: &str) -> DriveConfig {
    let mut config = ruled(rules);
    config.ftl.hot_stream = true;
    config
}

/// Returns a drive with a program of `demo/rules`, whose application has the whole drive.
pub(super) fn demo(name: &str) -> DriveConfig {
    demo_on(config(), name)
}

/// Returns a drive with this configuration, and with a program of `demo/rules`.
pub(super) fn demo_on(base: DriveConfig, name: &str) -> DriveConfig {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../demo/rules").join(name);
    let source = std::fs::read_to_string(&path).expect("a demo");
    let app = |line: &str| match line.strip_prefix("app ").and_then(|app| app.split(' ').next()) {
        Some(name) => format!("app {name} {{ units = 0-15, spare = 0.1 }}\n"),
        None => format!("{line}\n"),
    };
    program_on(base, &source.lines().map(app).collect::<String>(), 1 << 26)
}

/// Returns a drive with a program whose commands may use `ops` operations.
pub(super) fn program(source: &str, ops: u64) -> DriveConfig {
    program_on(config(), source, ops)
}

/// As [`program`], of a drive with this configuration.
pub(super) fn program_on(base: DriveConfig, source: &str, ops: u64) -> DriveConfig {
    let settings = DriveRulesConfig { ops, table_bytes: 1 << 24, ..settings() };
    let options = CompileOptions { grant: settings.grant(nand(&base)), ..Default::default() };
    let verified = check(Path::new("p.rules"), source.as_bytes(), &options);
    let program = verified.unwrap_or_else(|error| panic!("{error}")).program().encode();
    DriveConfig { rules: Some(DriveRulesConfig { program, ..settings }), ..base }
}

/// Returns a drive whose engines take `op` for an operation.
pub(super) fn with_op(config: DriveConfig, op: Nanos) -> DriveConfig {
    let rules = config.rules.clone().map(|rules| DriveRulesConfig { op, ..rules });
    DriveConfig { rules, ..config }
}
