//! One suite of tests for any NVMe controller behind a port: an emulated drive in virtual time
//! (`cargo test`), and a real controller through VFIO or UIO. `make test-guest` runs the ignored
//! tests in guests with QEMU's controller; `SLUICE_CONTROLLER` names the controller.

// guarantee: C-02, C-05, C-08, B-90

mod guest;
mod harness;
mod load;
mod paths;
mod registers;
mod removal;
mod slow_commands;
mod suite;

use controller::RegisterConfig;
use driver::{ConnectOptions, DataPointers, DoorbellUse};
use harness::ControllerHarness;
pub(crate) use harness::named;
pub(crate) use paths::nodes;

fn emulated(
    sector_bytes: u32,
    data: DataPointers,
    doorbells: DoorbellUse,
    registers: Option<RegisterConfig>,
) -> ControllerHarness {
    let options = ConnectOptions { data: Some(data), doorbells, ..ConnectOptions::default() };
    ControllerHarness::emulated(sector_bytes, registers, options)
}

/// Bytes of a sector, data pointers and doorbells.
const CONNECTIONS: [(u32, DataPointers, DoorbellUse); 5] = [
    (512, DataPointers::Prp, DoorbellUse::Memory),
    (4096, DataPointers::Prp, DoorbellUse::Registers),
    (512, DataPointers::SglAndPrp, DoorbellUse::Memory),
    (512, DataPointers::Sgl, DoorbellUse::Registers),
    (4096, DataPointers::Sgl, DoorbellUse::Memory),
];

macro_rules! on_emulated_drives {
    ($($test:ident)*) => {$(
        #[test]
        fn $test() {
            for (sector_bytes, data, doorbells) in CONNECTIONS {
                for registers in [None, Some(RegisterConfig::default())] {
                    let harness = &mut emulated(sector_bytes, data, doorbells, registers);
                    suite::$test(harness);
                    harness.check_registers();
                }
            }
        }
    )*};
}

on_emulated_drives! {
    data_is_what_was_written_at_every_size_and_place
    what_is_thrown_away_goes_nowhere
    memory_that_entries_cannot_name_is_copied
    copies_push_back
    queues_are_granted_up_to_a_number
    the_health_log_counts
    doorbells_in_memory_save_registers
    a_queue_is_reset_under_load
    other_namespaces_are_refused
    a_queue_is_closed_under_load
}
