//! Serves a device in memory until interrupted, for measuring the cost of the server itself.
//!
//! `cargo run --release -p sluice-nbd --example mem_nbd -- unix:/tmp/mem.sock [MiB] [sector]`

use std::error::Error;
use std::sync::atomic::AtomicBool;

use event::{IdlePolicy, RealClock};
use nbd::{NbdConfig, NbdServer};
use time::{Component, Nanos};

#[path = "../tests/suite/common/memory.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with the tests")]
mod memory;

struct NullComponent;

impl Component for NullComponent {
    fn poll(&mut self, _: Nanos) -> bool {
        false
    }
    fn deadline(&self) -> Nanos {
        Nanos::MAX
    }
}

/// Serves `mib` MiB in sectors of `sector` bytes at `endpoint` until `stop` is set.
pub(crate) fn serve(
    endpoint: &str,
    mib: u64,
    sector: u32,
    stop: &AtomicBool,
) -> Result<(), Box<dyn Error>> {
    let device = memory::MemoryDevice::new(memory::limits(sector, mib << 20));
    let mut server = NbdServer::new(device, &[endpoint.parse()?], NbdConfig::default())?;
    println!("serving {mib} MiB on {}", server.endpoints()[0]);
    server.run(RealClock::start(), IdlePolicy::default(), &mut NullComponent, stop)?;
    Ok(())
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let endpoint = args.next().unwrap_or("unix:/tmp/mem.sock".into());
    let mib: u64 = args.next().map_or(Ok(256), |a| a.parse())?;
    let sector: u32 = args.next().map_or(Ok(4096), |a| a.parse())?;
    serve(&endpoint, mib, sector, &AtomicBool::new(false))
}
