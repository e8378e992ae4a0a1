//! Scenarios with arbitrary content: the parser reports errors with their location.

use std::path::Path;

use scenario::Scenario;
use sluice_cli::CliError;
use testkit::choices::{Choices, mangled};

/// Valid scenarios.
const SAMPLES: [&str; 4] = [
    "[drive]\npreset = \"mqsim-default-small\"\ndata = \"none\"\npersonality = \"block\"\n\
     [precondition]\nfill = \"sequential\"\noverwrite = \"random 0.5x\"\n",
    "seed = 7\ntitle = \"a title\"\n[drive]\npreset = \"femu-default\"\n\
     geometry = { channels = 2, pus = 2, chunks = 64, pages = 64 }\n\
     timing = { read = \"5ms\", program = \"8ms\", erase = \"20ms\" }\n\
     write_buffer = { kind = \"volatile\", size = \"1m\" }\n[host]\nsubmit = \"1us\"\ncomplete = \"2us\"\n",
    "[drive]\npreset = \"ocssd-mlc-128pu-small\"\n[target]\nkind = \"pblk\"\nactive_pus = 4\n\
     [path]\nblock = \"mq\"\n[path.scheduler]\nkind = \"deadline\"\n[[path.limit]]\ngroup = 0\niops = 1000\n",
    "[drive]\npersonality = \"null\"\ncapacity = \"64M\"\nnull = { latency = 0, bandwidth = 0 }\n\
     [[share]]\npartition = \"db\"\nfirst = 0\nsectors = 40\n[[share.allow]]\nuser = \"0\"\n",
];

/// Returns whether the text is a valid scenario; the error of an invalid one must be printable.
pub(crate) fn survives(text: &str) -> bool {
    match Scenario::parse(Path::new("x.toml"), text) {
        Ok(scenario) => !format!("{scenario:?}").is_empty(),
        Err(error) => {
            assert!(!CliError::from(error).render().is_empty());
            false
        }
    }
}

/// Parses a valid scenario with a few changes.
pub(crate) fn changed(choices: &mut Choices) -> bool {
    survives(&mangled(choices, &SAMPLES))
}

/// Parses a fuzzer's bytes as text, and a scenario that they change.
pub(crate) fn fuzz(bytes: &[u8]) {
    survives(&String::from_utf8_lossy(bytes));
    changed(&mut Choices::of(bytes));
}
