//! Trims that become durable while older copies of the sector are still in flight. In the write
//! buffer, a map page follows the data that was written before it. So a map page that refers to an
//! older copy is never durable before the data that replaced it.

use crate::common;

use common::{TestFlash, geometry};
use ftl::{ChunkReport, FlashGeometry, Ftl, FtlConfig};
use time::Nanos;

const NOW: Nanos = Nanos(0);

#[test]
fn a_flushed_trim_takes_back_what_was_in_the_buffer_even_if_it_is_written_over() {
    let shape = FlashGeometry::from_geometry(&geometry(1, 1, 60, 16, 4, 0));
    let config = FtlConfig::default();
    // Power is cut at any fill level of the write buffer, with completions reported in any order.
    for (steps, order) in (0..40).flat_map(|steps| [(steps, None), (steps, Some(steps))]) {
        let mut ftl = Ftl::new(shape, config, |_| ChunkReport::Free).unwrap();
        let mut flash = TestFlash::new(shape, true, ftl.slots(), steps);
        order.into_iter().for_each(|seed| flash.reorder(seed));
        let write = |ftl: &mut Ftl, flash: &mut TestFlash, tag, lba, value| {
            flash.requests.insert(tag, vec![value]);
            ftl.write(tag, lba, 1, false);
            ftl.kick(NOW, flash);
        };
        // The FTL programs no data before the journal has recorded the line.
        write(&mut ftl, &mut flash, 1, 7, 0xa);
        ftl.trim(2, 7, 1);
        ftl.kick(NOW, &mut flash);
        ftl.flush(NOW, 3, &mut flash);
        write(&mut ftl, &mut flash, 4, 7, 0xb);
        for _ in 0..steps {
            flash.step(&mut ftl);
        }
        let mut flushed = false;
        while let Some(done) = ftl.pop_completion() {
            flushed |= done.tag == 3;
        }
        let mut ftl = flash.power_cut(config);
        flash.requests.insert(5, vec![u64::MAX]);
        ftl.read(NOW, 5, 7, 1, &mut flash);
        while ftl.pop_completion().is_none() {
            assert!(flash.step(&mut ftl), "the read does not complete");
        }
        let found = flash.requests[&5][0];
        assert!(
            found != 0xa || !flushed,
            "the flushed trim was undone by a power cut after {steps} steps"
        );
        assert!([0, 0xa, 0xb].contains(&found), "{found:#x}");
    }
}
