//! Devices and volumes for tests.
#![allow(dead_code, unreachable_pub, reason = "not every test uses all of it")]

use block::BlockDevice;
use mem::AddressSpace;
use time::Nanos;
use volume::{BlockingVolume, FormatOptions, Options, VolumeOpenError, format};

pub use testkit::volatile_device::VolatileDevice as Ram;

/// A clock that advances by a microsecond per reading.
pub fn ticking<D>() -> impl FnMut(&mut D) -> Nanos {
    let mut now = Nanos::ZERO;
    move |_| {
        now += Nanos::from_micros(1);
        now
    }
}

pub type Open = BlockingVolume<Ram, fn(&mut Ram) -> Nanos>;

pub fn tick(ram: &mut Ram) -> Nanos {
    ram.now += Nanos::from_micros(1);
    ram.now
}

/// Returns a device with an empty volume.
pub fn formatted(sector_bytes: u32, blocks: u64) -> Ram {
    let mut ram = Ram::for_volume(sector_bytes, blocks);
    format(&mut ram, &FormatOptions { uuid: 7, ..FormatOptions::default() }, tick).unwrap();
    ram
}

pub fn try_open(ram: Ram, options: Options) -> Result<Open, VolumeOpenError> {
    BlockingVolume::open(ram, options, tick as fn(&mut Ram) -> Nanos)
}

pub fn open(ram: Ram) -> Open {
    try_open(ram, Options::default()).unwrap()
}

/// Returns the device after a power cut.
pub fn cut(session: Open) -> Ram {
    session.volume().check_invariants().unwrap();
    let mut ram = session.into_volume().into_device();
    ram.power_cut();
    ram.forget_memory();
    ram
}

/// Returns an empty address space, which holds registrations until it is dropped.
pub fn fresh_memory() -> AddressSpace {
    AddressSpace::default()
}

pub fn sector_bytes<D: BlockDevice>(device: &D) -> usize {
    device.limits().sector_bytes as usize
}

/// Returns pseudo-random bytes without zeros, so that a byte at a wrong position is found.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = rng::Rng::new(seed);
    (0..len).map(|_| 1 + (rng.next_u64() % 255) as u8).collect()
}
