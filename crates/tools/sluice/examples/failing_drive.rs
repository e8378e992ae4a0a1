//! Finds a bug in a small program, by making its drive fail.
//!
//! `cargo run -p sluice-ssd --example failing_drive`

use std::error::Error;
use std::path::Path;

use sluice::open::{DriveControl, OpenOptions, open_scenario};
use sluice::scenario::{Scenario, parse_fault};
use sluice::user_io::{Buffer, Handle, IoError, Queue, QueueConfig};

const SCENARIO: &str = r#"
[drive]
preset = "femu-default"
geometry = { channels = 2, pus = 4, chunks = 40, pages = 16 }
write_buffer = { kind = "volatile", size = "1M" }
"#;

// ANCHOR: program
/// Keeps a number in two copies, sectors 0 and 1. A change overwrites the older one.
struct Number<'a> {
    handle: &'a mut Handle<Queue>,
    data: &'a Buffer,
    is_careful: bool,
}

impl Number<'_> {
    /// Returns the version and the number of a copy; version 0 of one that was never written.
    fn copy(&mut self, lba: u64) -> Result<(u64, u64), IoError> {
        let read = self.handle.read(lba, self.data);
        match read {
            Ok(()) => {}
            // A read may fail once, and the only other copy is older.
            Err(_) if self.is_careful => self.handle.read(lba, self.data)?,
            // The bug: a copy that cannot be read is taken for one that was never written.
            Err(_) => return Ok((0, 0)),
        }
        let mut words = [0; 16];
        self.data.read(0, &mut words);
        let word = |at| u64::from_le_bytes(std::array::from_fn(|i| words[at + i]));
        Ok((word(0), word(8)))
    }

    /// Returns the newest version, and the number.
    fn load(&mut self) -> Result<(u64, u64), IoError> {
        Ok(self.copy(0)?.max(self.copy(1)?))
    }

    /// Changes the number. It is durable afterwards.
    fn store(&mut self, number: u64) -> Result<(), IoError> {
        let (version, _) = self.load()?;
        self.data.write(0, &(version + 1).to_le_bytes());
        self.data.write(8, &number.to_le_bytes());
        self.handle.write((version + 1) % 2, self.data, false)?;
        self.handle.flush()
    }
}
// ANCHOR_END: program

// ANCHOR: faults
/// The faults, each as `sluice admin fault` takes it.
const FAULTS: [&str; 7] = [
    "read-failure lba=0",
    "read-failure lba=1",
    "uncorrectable lba=0",
    "uncorrectable lba=1",
    "power-cut",
    "power-cut after_ops=1",
    "program-failure rate=1 duration=2ms",
];

/// Stores numbers with a fault in between. Returns the wrong answer, if there was one: a number that
/// is older than the last one that was stored.
fn answer(fault: &str, is_careful: bool) -> Result<Option<(u64, u64)>, Box<dyn Error>> {
    let scenario = Scenario::parse(Path::new("example.toml"), SCENARIO)?;
    let (device, control): (_, DriveControl) =
        open_scenario(&scenario, None, &OpenOptions::default())?;
    let mut handle = Handle::new(&device, device.create_queue(QueueConfig::default())?)?;
    let data = device.buffer(device.limits().sector_bytes as usize)?;
    let mut program = Number { handle: &mut handle, data: &data, is_careful };
    let mut stored = 0;
    for number in 1..=6 {
        // An error is an honest answer. What failed may have been stored or not.
        if program.store(number).is_ok() {
            stored = number;
        }
        if number == 4 {
            control.inject_fault(None, parse_fault(fault)?)?;
        }
        if let Ok((_, found)) = program.load()
            && found < stored
        {
            return Ok(Some((found, stored)));
        }
    }
    Ok(None)
}
// ANCHOR_END: faults

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let mut wrong = 0;
    for fault in FAULTS {
        if let Some((found, stored)) = answer(fault, false)? {
            println!("{fault}: {stored} was stored, and {found} is read");
            wrong += 1;
        }
        assert_eq!(answer(fault, true)?, None, "{fault}: the careful program is wrong");
    }
    assert!(wrong > 0, "the bug was not found");
    println!("{wrong} of {} faults show the bug; with the second read, none does", FAULTS.len());
    Ok(())
}
