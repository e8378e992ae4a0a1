//! A log on a virtual block: it is appended, read back, recovered after a power cut, and copied to
//! another block within the drive.
//!
//! `cargo run -p sluice-ocssd --example virtual_block`

mod common;

use std::error::Error;

use ocssd::OpenChannelSsd;
use ocssd::ppa::{FreeChunkPool, PadMode, PuSet, Session, SessionConfig, VirtualBlock};

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let mut bench = common::Bench::new()?;
    let port = bench.drive().attach()?;
    let mut ssd = OpenChannelSsd::attach(port, &mut || bench.turn(), 100_000)?;
    let mut session = Session::open(&mut ssd, SessionConfig::default(), &mut || bench.turn())?;

    // Four of the least worn chunks, on four channels.
    let pus: PuSet = "0-15".parse()?;
    let mut progress = || bench.turn();
    let mut io = session.blocking(&mut progress);
    let mut free = FreeChunkPool::new(&mut ssd, &pus, io.progress())?;
    let mut log = VirtualBlock::allocate(&mut ssd, &mut io, &mut free, 4)?;
    let chunks = log.chunks();
    let named: Vec<String> = chunks.iter().map(|c| c.to_string()).collect();
    println!("a log of {} sectors on chunks {}", log.capacity(), named.join(", "));

    for record in 0..100u8 {
        log.append(&mut io, &vec![record; 3 * 4096])?;
    }
    let padded = log.pad(&mut io, PadMode::Unit)?;
    println!("{} sectors, {padded} of them padding, {} survive", log.len(), log.durable());
    let mut sector = vec![0; 4096];
    log.read(&mut io, 3 * 99, &mut sector)?;
    assert_eq!(sector[0], 99, "the last record, which its paired page still hides");
    println!("{} sectors came from memory", log.stats().read_from_memory);

    // The owner stored only the list of chunks.
    drop(session);
    bench.power_cycle()?;
    let port = bench.drive().attach()?;
    let mut ssd = OpenChannelSsd::attach(port, &mut || bench.turn(), 100_000)?;
    let mut session = Session::open(&mut ssd, SessionConfig::default(), &mut || bench.turn())?;
    let mut progress = || bench.turn();
    let mut io = session.blocking(&mut progress);
    let (mut log, found) = VirtualBlock::open(&mut ssd, &mut io, &chunks)?;
    println!("found {} sectors, {} of them intact", found.sectors, found.intact);
    log.pad(&mut io, PadMode::Readable)?;
    for record in 0..100u8 {
        log.read(&mut io, 3 * u64::from(record), &mut sector)?;
        assert_eq!(sector[0], record);
    }

    let mut free = FreeChunkPool::new(&mut ssd, &pus, io.progress())?;
    let mut copy = VirtualBlock::allocate(&mut ssd, &mut io, &mut free, 4)?;
    let copied = log.copy_to(&mut io, &mut copy)?;
    println!("{} sectors copied, {} by the drive", copied.sectors, copied.sectors_by_drive);
    log.erase(&mut io)?;
    copy.read(&mut io, 3 * 42, &mut sector)?;
    assert_eq!(sector[0], 42);
    Ok(())
}
