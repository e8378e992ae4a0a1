//! Tests of rendering: complete, deterministic, and without numbers that are infinite or NaN.

use super::*;

/// Returns a synthetic run of three variants with realistic values.
pub(super) fn example() -> Report {
    let mut report = Report {
        title: "Who manages the flash?".into(),
        subtitle: "One open-channel drive, mixed readers and writers, three ways.".into(),
        variants: Vec::new(),
    };
    for (w, (name, tail)) in
        [("drive FTL", 2.2), ("pblk, 128 PUs", 1.6), ("pblk, 4 PUs", 0.25)].iter().enumerate()
    {
        let mut jobs = Vec::new();
        for (job, direction, base) in [
            ("readers", TransferDirection::Read, 73_000.0),
            ("writers", TransferDirection::Write, 9_000.0),
        ] {
            let cdf: Vec<(u64, f64)> = (1..400)
                .map(|i| {
                    let share = 1.0 - 10f64.powf(-f64::from(i) / 80.0);
                    let ns = base * (1.0 + (share.powi(24) * 40.0 * tail));
                    (ns as u64, share)
                })
                .collect();
            let series = (0..200u64)
                .map(|i| {
                    let fall = if i > 60 { 0.8 } else { 1.0 };
                    (i * 50_000_000, 200e6 * fall + (i * 7 % 11) as f64 * 1e6 * (w + 1) as f64)
                })
                .collect();
            jobs.push(JobRow {
                name: job.into(),
                direction,
                iops: 13_700.4,
                bytes_per_sec: 201.5e6,
                latency: Latency {
                    mean: base * 1.2,
                    p50: base as u64,
                    p95: (base * 1.5) as u64,
                    p99: (base * (1.5 + tail * 10.0)) as u64,
                    p999: (base * (2.0 + tail * 20.0)) as u64,
                    max: (base * (3.0 + tail * 40.0)) as u64,
                },
                cdf,
                series,
                latencies: (0..200u64)
                    .map(|i| LatencyPoint {
                        start_ns: i * 50_000_000,
                        p50: base as u64,
                        p99: (base * (1.5 + tail * (10 + i % 5) as f64)) as u64,
                        max: (base * (3.0 + tail * (30 + i % 7) as f64)) as u64,
                    })
                    .collect(),
                depth: (0..200u64).map(|i| (i * 50_000_000, 4.0 + (i % 3) as f64)).collect(),
                ftl_index: Some(0),
                is_last_partial: true,
            });
        }
        let units = (0..128)
            .map(|i| {
                let load = if w == 2 && i % 32 != 0 { 0.03 } else { 0.2 + 0.3 * *tail };
                let sway = 1.0 + f64::from(i * 13 % 7) / 40.0;
                Utilization {
                    read: 0.1 * load * sway,
                    program: 0.8 * load * sway,
                    erase: 0.1 * load,
                }
            })
            .collect();
        report.variants.push(Variant {
            name: (*name).into(),
            scenario: "[drive]\npreset = \"ocssd-mlc-128pu-small\" # <b>\n".into(),
            seed: 1,
            elapsed_ns: 10_000_000_000,
            jobs,
            write_amplification: Some(1.0 + tail),
            over_provisioning: Some(0.25),
            gc: Some(GcSummary {
                host_sectors: 1_234_567,
                relocated_sectors: 345,
                ..GcSummary::default()
            }),
            utilization: vec![UtilizationMap { drive: String::new(), channels: 16, pus: 8, units }],
            ftl_series: vec![FtlSeries {
                drive: String::new(),
                points: (0..200u64)
                    .map(|i| FtlPoint {
                        start_ns: i * 50_000_000,
                        free_lines: 40.0 - (i.min(60) / 2) as f64,
                        write_amplification: Some(1.0 + tail * (i > 60) as u8 as f64),
                        gc_share: if i > 60 { tail / 4.0 } else { 0.0 },
                    })
                    .collect(),
            }],
            intervals: Intervals { width_ns: 50_000_000, last_ns: 20_000_000 },
            notes: Vec::new(),
            latency_breakdowns: Vec::new(),
            host: None,
            remarks: Vec::new(),
        });
    }
    report
}

#[test]
fn the_table_is_aligned_and_complete() {
    let text = table::render(&example());
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("way") && lines[0].ends_with("WA"));
    let width = lines[0].chars().count();
    assert!(lines[1].chars().all(|c| c == '─' || c == ' '));
    for line in &lines[2..8] {
        assert!(line.chars().count() <= width, "{line}");
    }
    assert!(lines[2].starts_with("drive FTL") && lines[3].starts_with("         "));
    for part in
        ["13,700", "202 MB/s", "p99.9", "3.20", "25.0 % (physical/logical − 1)", "1,234,567"]
    {
        assert!(text.contains(part), "`{part}` is missing in\n{text}");
    }
}

#[test]
fn the_page_shows_what_requests_waited_for_in_proportion_and_order() {
    let wait = |text: &str, group, ns| BreakdownWait { text: text.into(), group, ns };
    let waits = vec![
        wait("PU busy, GC <erase>", BreakdownGroup::Gc, 2_000_000),
        wait("array read", BreakdownGroup::Own, 40_000),
    ];
    let bar = |label: &str| BreakdownBar {
        label: label.into(),
        total_ns: 2_040_000,
        waits: waits.clone(),
    };
    let mut report = example();
    assert!(!html::render(&report).contains("Why requests took"), "nothing was explained");
    report.variants[1].latency_breakdowns = vec![LatencyBreakdown {
        drive: "d<1>".into(),
        jobs: vec![("reads of job db".into(), vec![bar("p0 to p50"), bar("p50 to p100")])],
        slowest: vec![bar("read of 4 KiB at LBA 7, job db")],
    }];
    let page = html::render(&report);
    assert!(page.contains("Why requests took as long as they did"));
    assert_eq!(page.matches("<details class=\"why\">").count(), 3);
    let gc =
        page.matches("style=\"flex-grow:2000000\" title=\"PU busy, GC &lt;erase&gt;: ").count();
    assert_eq!(gc, 3, "escaped, and as wide as it is long");
    assert!(page.contains(
        "<li>PU busy, GC &lt;erase&gt;: 2,000,000 ns</li><li>array read: 40,000 ns</li>"
    ));
    assert!(
        page.contains("<h3>pblk, 128 PUs, d&lt;1&gt;</h3>") || page.contains("d&lt;1&gt;</h3>")
    );
    let legend = page.split("legend why").nth(1).and_then(|l| l.split("</ul>").next()).unwrap();
    assert_eq!(legend.matches("<li>").count(), 2, "reasons that occur");
}

#[test]
fn the_page_is_self_contained_and_deterministic() {
    let page = html::render(&example());
    assert_eq!(page, html::render(&example()));
    for outside in ["http:", "https:", "src=", "@import", "url(", "<link"] {
        assert!(!page.contains(outside), "refers to `{outside}`");
    }
    assert_eq!(page.matches("<svg class=\"plot\"").count(), 10, "four of two jobs, two");
    assert_eq!(page.matches("<svg class=\"heat\"").count(), 3);
    assert_eq!(page.matches("data-tip=").count(), 3 * 128);
    assert!(page.contains("# &lt;b&gt;"), "the scenario is escaped");
    for open in ["section", "figure", "table", "details", "svg", "div", "ul", "dl", "label"] {
        let (o, c) = (format!("<{open}"), format!("</{open}>"));
        let opened =
            page.matches(&format!("{o} ")).count() + page.matches(&format!("{o}>")).count();
        assert_eq!(opened, page.matches(&c).count(), "{open} is balanced");
    }
    if let Some(path) = std::env::var_os("SLUICE_TEST_PAGE") {
        std::fs::write(path, &page).unwrap();
    }
}

#[test]
fn no_number_is_none() {
    let mut report = example();
    for way in &mut report.variants {
        way.write_amplification = Some(f64::NAN);
        way.over_provisioning = Some(f64::INFINITY);
        way.utilization[0].units.truncate(3);
        way.utilization[0].units[0].read = f64::NAN;
        for row in &mut way.jobs {
            row.iops = f64::INFINITY;
            row.bytes_per_sec = f64::NAN;
            row.latency.mean = f64::NEG_INFINITY;
            row.series = vec![(0, f64::NAN), (0, f64::INFINITY)];
            row.cdf = vec![(0, f64::NAN), (0, 2.0)];
        }
    }
    for text in [html::render(&report), table::render(&report)] {
        let marks = text.replace("bound-", "");
        assert!(!marks.contains("NaN") && !marks.contains("nan\"") && !marks.contains("inf\""));
        assert!(!text.contains("inf "), "infinite");
    }
    let empty = html::render(&Report::default());
    assert!(empty.contains("</html>"));
    let bare = Report {
        variants: vec![Variant { jobs: vec![JobRow::default()], ..Variant::default() }],
        ..Report::default()
    };
    assert!(html::render(&bare).contains("0 B/s"));
    assert!(table::render(&bare).contains("0 ns"));
}

#[test]
fn a_run_that_only_read_has_no_sentence_of_zeros() {
    let mut report = example();
    assert!(table::render(&report).contains("moved by garbage collection"));
    for way in &mut report.variants {
        way.gc = Some(GcSummary { free_lines: 3, ..GcSummary::default() });
    }
    for text in [table::render(&report), html::render(&report)] {
        assert!(!text.contains("moved by garbage collection"), "{text}");
    }
}

#[test]
fn notes_are_beside_the_table_and_on_the_page() {
    let mut report = example();
    let text = "5.0 % of <nothing>".to_owned();
    report.variants[1].notes = vec![NoteRow { code: "not-steady".into(), text }];
    let table = table::render(&report);
    assert!(table.contains("note: pblk, 128 PUs: 5.0 % of <nothing> [not-steady]\n"), "{table}");
    let page = html::render(&report);
    assert!(page.contains("5.0 % of &lt;nothing&gt; <code>not-steady</code>"));
}

#[test]
fn control_characters_of_names_do_not_reach_the_table() {
    let mut report = example();
    report.variants[0].name = "two\nlines\x1b[31m".into();
    report.variants[0].jobs[0].name = "job\r".into();
    report.variants[0].remarks = vec!["bell\x07".into()];
    let table = table::render(&report);
    assert!(table.contains("two\\nlines\\u{1b}[31m") && table.contains("job\\r"), "{table}");
    assert!(table.chars().all(|c| c == '\n' || !c.is_control()), "{table}");
}

#[test]
fn twelve_variants_have_twelve_styles_and_can_be_selected() {
    let mut report = example();
    let one = report.variants[0].clone();
    report.variants =
        (0..12).map(|i| Variant { name: format!("way {i}"), ..one.clone() }).collect();
    let page = html::render(&report);
    let mut styles: Vec<&str> = page
        .lines()
        .filter(|line| line.starts_with("<polyline") && line.contains("data-name=\"way "))
        .filter_map(|line| line.split(" data-way=").next())
        .collect();
    styles.sort_unstable();
    styles.dedup();
    assert_eq!(styles.len(), 12, "{styles:?}");
    assert!((0..12).all(|i| page.contains(&format!("data-show=\"{i}\""))));
}

#[test]
fn the_last_partial_interval_is_marked_and_whole_ones_are_not() {
    let mut report = example();
    let rings = |report: &Report| html::render(report).matches("<circle class=\"open").count();
    assert!(rings(&report) > 0);
    for way in &mut report.variants {
        way.intervals.last_ns = way.intervals.width_ns;
        way.jobs.iter_mut().for_each(|row| row.is_last_partial = false);
    }
    assert_eq!(rings(&report), 0);
}
