//! Write amplification under uniform random writes, compared with the published analysis: P.
//! Desnoyers, "Analytic modeling of SSD write performance", SYSTOR 2012, equation 12 for greedy
//! collection, and the limit `A(alpha)` for FIFO.

// guarantee: M-06, M-07

use crate::common;

use common::{TestFlash, geometry};
use ftl::{ChunkReport, FlashGeometry, Ftl, FtlConfig, LineMetadata, VictimPolicyKind};
use time::Nanos;

/// `A(x) = x / (x + W0(-x e^-x))`. Newton's method finds the fixed point of `w = -x e^-x e^-w`.
pub(crate) fn a(x: f64) -> f64 {
    let z = -x * (-x).exp();
    let mut w: f64 = -0.5;
    for _ in 0..200 {
        w -= (w * w.exp() - z) / (w.exp() * (w + 1.0));
    }
    x / (x + w)
}

/// Measures the steady state over one drive write, after `warm` drive writes. Returns the sectors
/// programmed per sector that the host or a checkpoint wrote, and the over-provisioning relative to
/// both.
fn measure(
    over_provisioning: f64,
    policy: VictimPolicyKind,
    hot_cold: bool,
    warm: u64,
    pages: u32,
) -> (f64, f64) {
    // 4,096 reclaim units of N = 64 pages; a sector is a page and a write unit. With metadata: 256
    // units of N = 250, plus six pages of metadata each.
    let (units, line_metadata) =
        if pages > 64 { (256, LineMetadata::On) } else { (4096, LineMetadata::Off) };
    let shape = FlashGeometry::from_geometry(&geometry(1, 1, units, pages, 1, 0));
    let config = FtlConfig {
        over_provisioning,
        victim_policy: policy,
        hot_cold,
        gc_high_watermark_lines: 1,
        gc_low_watermark_lines: 1,
        line_metadata,
        ..FtlConfig::default()
    };
    let mut ftl = Ftl::new(shape, config, |_| ChunkReport::Free).unwrap();
    let mut flash = TestFlash::new(shape, false, ftl.slots(), 1);
    let sectors = ftl.sectors();
    let mut rng = rng::Rng::new(7);
    let write = |ftl: &mut Ftl, flash: &mut TestFlash, lba| {
        ftl.write(0, lba, 1, false);
        ftl.kick(Nanos(0), flash);
        while ftl.pop_completion().is_none() {
            assert!(flash.step(ftl), "stuck");
        }
    };
    for lba in 0..sectors {
        write(&mut ftl, &mut flash, lba);
    }
    for _ in 0..warm * sectors {
        write(&mut ftl, &mut flash, rng.below(sectors));
    }
    let before = *ftl.stats();
    for _ in 0..2 * sectors {
        write(&mut ftl, &mut flash, rng.below(sectors));
    }
    let layout = ftl.capacity_plan();
    let physical = layout.logical + layout.map_pages + layout.op_sectors;
    let effective = f64::from(physical) / f64::from(layout.logical + layout.map_pages) - 1.0;
    let s = ftl.stats().since(&before);
    // Line metadata is proportional to the lines written, by the host or by GC.
    let all = s.host_writes + s.gc_relocations + s.padding + s.metadata;
    let lines = all / u64::from(pages) * u64::from(layout.line_metadata_units);
    let of_map = s.metadata.saturating_sub(lines);
    assert!(s.checkpoints > 0 && of_map * 50 < s.host_writes, "{lines} {s:?}");
    let written = s.host_writes + of_map;
    (((written + s.gc_relocations + s.padding) as f64 / written as f64), effective)
}

#[test]
fn the_formula_gives_the_published_values() {
    let k = 1.0 + 1.0 / 128.0;
    for (op, published) in [(0.07, 7.00), (0.11, 4.86), (0.20, 3.05), (0.28, 2.40), (0.50, 1.68)] {
        let wa = a(k * (1.0 + op)) / k;
        assert!((wa - published).abs() < 0.006, "{op}: {wa}");
    }
}

#[test]
fn greedy_collection_meets_the_analysis() {
    let k = 1.0 + 1.0 / 128.0;
    for (op, tolerance) in [(0.07, 0.05), (0.11, 0.05), (0.20, 0.03), (0.28, 0.03), (0.50, 0.03)] {
        let (measured, effective) = measure(op, VictimPolicyKind::Greedy, false, 3, 64);
        let expected = a(k * (1.0 + effective)) / k;
        println!("greedy, over-provisioning {op}: {measured:.3}, analysis {expected:.3}");
        assert!((measured / expected - 1.0).abs() < tolerance, "{op}: {measured} {expected}");
    }
}

#[test]
fn fifo_collection_meets_the_analysis() {
    for (op, tolerance) in [(0.11, 0.05), (0.28, 0.03), (0.50, 0.03)] {
        let (measured, effective) = measure(op, VictimPolicyKind::Fifo, false, 3, 64);
        let expected = a(1.0 + effective);
        println!("fifo, over-provisioning {op}: {measured:.3}, analysis {expected:.3}");
        assert!((measured / expected - 1.0).abs() < tolerance, "{op}: {measured} {expected}");
    }
}

#[test]
fn separating_moved_data_costs_nothing_under_uniform_writes() {
    let k = 1.0 + 1.0 / 128.0;
    let (measured, effective) = measure(0.28, VictimPolicyKind::Greedy, true, 3, 64);
    let expected = a(k * (1.0 + effective)) / k;
    println!("greedy, two streams: {measured:.3}, analysis {expected:.3}");
    assert!((measured / expected - 1.0).abs() < 0.03, "{measured} {expected}");
}

#[test]
fn metadata_of_lines_costs_its_share_and_nothing_else() {
    let (measured, effective) = measure(0.28, VictimPolicyKind::Greedy, false, 2, 256);
    let k = 1.0 + 1.0 / 500.0;
    let expected = a(k * (1.0 + effective)) / k;
    println!("greedy, lines with metadata: {measured:.3}, analysis {expected:.3}");
    assert!((measured / expected - 1.0).abs() < 0.05, "{measured} {expected}");
}
