//! [`StateKey`]: all inputs that the state of a preconditioned drive depends on.

use scenario::{DriveSpec, Precondition};
use twox_hash::XxHash3_128;

/// The program that makes a state: its version, and a digest of the sources that decide the state if
/// it is built from a repository.
const PROGRAM: &str =
    concat!("sluice ", env!("CARGO_PKG_VERSION"), " ", env!("SLUICE_STATE_BUILD"));

/// All inputs that the state of a preconditioned drive depends on: the program, the drive, its
/// target, the precondition and the seed. Equal inputs lead to equal states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateKey {
    /// The inputs, one per line.
    text: String,
}

impl StateKey {
    /// Returns the key of a drive. Its name has no effect on its state.
    pub fn new(drive: &DriveSpec, what: &Precondition, seed: u64) -> StateKey {
        let mut drive = drive.clone();
        drive.config.name.clear();
        let what = Precondition { states: None, ..what.clone() };
        let order = if cfg!(target_endian = "big") { "big" } else { "little" };
        let program = format!("{PROGRAM}, {order}-endian");
        StateKey { text: format!("{program}\nseed {seed}\n{what:#?}\n{drive:#?}\n") }
    }

    /// Returns the digest, which names the file of the state.
    pub fn digest(&self) -> u128 {
        XxHash3_128::oneshot(self.text.as_bytes())
    }

    /// Returns the name of the state's file: the digest, 32 hexadecimal digits, and `.state`.
    pub fn file_name(&self) -> String {
        format!("{:032x}.state", self.digest())
    }

    /// Returns the inputs, one per line; the first is the program.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the first input in which another state differs: that one's, and this one's. Either
    /// may be missing.
    pub fn difference(&self, other: &str) -> Option<(String, String)> {
        let (mut theirs, mut ours) = (other.lines(), self.text.lines());
        loop {
            let (their, our) = (theirs.next(), ours.next());
            if their.is_none() && our.is_none() {
                return None;
            }
            if their != our {
                let line = |line: Option<&str>| line.unwrap_or("nothing").trim().to_owned();
                return Some((line(their), line(our)));
            }
        }
    }
}
