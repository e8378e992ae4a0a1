//! A queue pair without a driver above it: a vector of physical addresses is written and read back.

use sluice::controller::Controller;
use sluice::driver::ControllerHandle;
use sluice::mem::SharedRegion;
use sluice::nvme::{Address, PpaList, SglDescriptor, Sqe};
use sluice::scenario::Scenario;
use sluice::time::{Component, Nanos};

#[test]
fn a_vector_of_physical_addresses_is_read_back() -> Result<(), Box<dyn std::error::Error>> {
    // The drive: a preset's timing and geometry with fewer chunks, data in memory.
    let text =
        "[drive]\npreset = \"ocssd-mlc-128pu-small\"\ngeometry.chunks = 8\ndata = \"memory\"\n";
    let scenario = Scenario::parse("example.toml".as_ref(), text)?;
    let mut drive = Controller::new(scenario.drives[0].config.clone())?;
    drive.set_zero_latency(true);

    // The host: a port, an initialized controller and a queue pair of 64 entries.
    let port = drive.attach()?;
    let mut progress = || {
        drive.poll(Nanos::ZERO);
    };
    let mut controller = ControllerHandle::connect(port.clone(), &mut progress, 1_000)?;
    let mut queue = controller.create_queue_pair(64, None, &mut progress)?;
    let oc = controller.info().open_channel.expect("the preset is open-channel");
    let unit = oc.geometry.ws_opt;

    // Registered memory: data to write, data read, and the list of addresses.
    let bytes = unit as usize * 4096;
    let memory = SharedRegion::anonymous(2 * bytes + 4096)?;
    let base = port.memory().register(&memory)?;
    memory.fill(0, bytes, 0x5a);
    let list = base.offset(2 * bytes as u64);
    let addresses = PpaList::List { at: list.0, count: unit as u8 };
    let data = |offset: usize| SglDescriptor::DataBlock {
        address: base.offset(offset as u64).0,
        length: bytes as u32,
    };

    // A page is readable once its paired pages are programmed: write that many units.
    for i in 0..=oc.geometry.mw_cunits / unit {
        for sector in 0..unit {
            let address = Address { group: 3, pu: 1, chunk: 2, sector: i * unit + sector };
            let ppa = oc.format.pack(address).0.to_le_bytes();
            memory.write(2 * bytes + 8 * sector as usize, &ppa);
        }
        let mut write = Sqe::vector_write(1, addresses);
        write.set_sgl(data(0));
        queue.submit(write, 0)?;
        queue.ring();
        progress();
        assert!(queue.reap().expect("done").status.is_success());
    }
    for sector in 0..unit {
        let ppa = oc.format.pack(Address { group: 3, pu: 1, chunk: 2, sector }).0.to_le_bytes();
        memory.write(2 * bytes + 8 * sector as usize, &ppa);
    }
    let mut read = Sqe::vector_read(1, addresses);
    read.set_sgl(data(bytes));
    queue.submit(read, 1)?;
    queue.ring();
    progress();
    let done = queue.reap().expect("done");
    assert!(done.status.is_success());
    assert_eq!(done.result, 0, "no address failed");
    let mut back = vec![0; bytes];
    memory.read(bytes, &mut back);
    assert!(back.iter().all(|b| *b == 0x5a));
    Ok(())
}
