//! Every program of `examples/` runs, and what it asserts holds.

use std::error::Error;

#[path = "../examples/block_cache.rs"]
mod block_cache;
#[path = "../examples/failing_drive.rs"]
mod failing_drive;
#[path = "../examples/key_value.rs"]
mod key_value;
#[path = "../examples/open_scenario.rs"]
mod open_scenario;
#[path = "../examples/pblk.rs"]
mod pblk;
#[path = "../examples/power_cut.rs"]
mod power_cut;
#[path = "../examples/simulate.rs"]
mod simulate;
#[path = "../examples/statistics.rs"]
mod statistics;
#[path = "../examples/target.rs"]
mod target;
#[path = "../examples/vector_io.rs"]
mod vector_io;
#[path = "../examples/victim_policy.rs"]
mod victim_policy;
#[path = "../examples/waiting.rs"]
mod waiting;

macro_rules! run {
    ($($name:ident)*) => {
        /// The programs that are run, to compare with the folder.
        const NAMES: &[&str] = &[$(stringify!($name)),*];

        $(#[test]
        fn $name() -> Result<(), Box<dyn Error>> {
            $name::main()
        })*
    };
}

run! {
    block_cache failing_drive key_value open_scenario pblk power_cut simulate statistics target vector_io
    victim_policy waiting
}

#[test]
fn no_example_is_left_out() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");
    let files = std::fs::read_dir(folder).expect("the folder of the examples");
    let paths = files.map(|entry| entry.expect("an entry").path());
    let mut found: Vec<String> = paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned())
        .collect();
    found.sort();
    assert_eq!(found, NAMES);
}
