//! Utilization of each parallel unit as an SVG heat map: channels down, parallel units across.

use std::fmt::Write as _;

use super::{Utilization, UtilizationMap};

const CELL: f64 = 30.0;
const LEFT: f64 = 40.0;
const TOP: f64 = 40.0;

/// Anchor colors of cividis (Nuñez, Anderton, Renslow 2018), from idle to always busy. Its colors
/// look alike with and without color vision deficiency.
const CIVIDIS: [(u8, u8, u8); 9] = [
    (0, 34, 78),
    (26, 56, 111),
    (67, 78, 108),
    (97, 101, 111),
    (125, 124, 120),
    (155, 148, 118),
    (187, 173, 108),
    (221, 200, 89),
    (254, 232, 56),
];

/// Returns the color of a share.
pub(super) fn color(share: f64) -> String {
    let at = share.clamp(0.0, 1.0) * (CIVIDIS.len() - 1) as f64;
    let low = (at.floor() as usize).min(CIVIDIS.len() - 2);
    let t = at - low as f64;
    let mix = |a: u8, b: u8| (f64::from(a) + (f64::from(b) - f64::from(a)) * t).round() as u8;
    let (a, b) = (CIVIDIS[low], CIVIDIS[low + 1]);
    format!("#{:02x}{:02x}{:02x}", mix(a.0, b.0), mix(a.1, b.1), mix(a.2, b.2))
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Returns a description: `34.1 % busy: read 2.0 %, program 30.1 %, erase 2.0 %`.
pub(super) fn description(busy: &Utilization) -> String {
    format!(
        "{} busy: read {}, program {}, erase {}",
        percent(busy.total().min(1.0)),
        percent(busy.read),
        percent(busy.program),
        percent(busy.erase)
    )
}

/// Returns the SVG element of a map.
pub(super) fn svg(map: &UtilizationMap) -> String {
    let (columns, rows) = (f64::from(map.pus), f64::from(map.channels));
    let (width, height) = (LEFT + columns * CELL + 2.0, TOP + rows * CELL + 2.0);
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "<svg class=\"heat\" viewBox=\"0 0 {width} {height}\" style=\"max-width:{width}px\" \
         role=\"img\" aria-label=\"busy share of each parallel unit\">\
         <text class=\"tick\" x=\"{:.1}\" y=\"14\" text-anchor=\"middle\">parallel unit</text>\
         <text class=\"tick\" transform=\"translate(12 {:.1}) rotate(-90)\" \
         text-anchor=\"middle\">channel</text>",
        LEFT + columns * CELL / 2.0,
        TOP + rows * CELL / 2.0
    );
    for pu in 0..map.pus {
        let _ = writeln!(
            out,
            "<text class=\"tick\" x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{pu}</text>",
            LEFT + f64::from(pu) * CELL + (CELL - 2.0) / 2.0,
            TOP - 7.0
        );
    }
    for channel in 0..map.channels {
        let y = TOP + f64::from(channel) * CELL;
        let _ = writeln!(
            out,
            "<text class=\"tick\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{channel}</text>",
            LEFT - 6.0,
            y + CELL / 2.0 + 4.0
        );
        for pu in 0..map.pus {
            let index = channel as usize * map.pus as usize + pu as usize;
            let busy = map.units.get(index).copied().unwrap_or_default();
            let tip = format!("channel {channel}, PU {pu}: {}", description(&busy));
            let _ = writeln!(
                out,
                "<rect x=\"{:.1}\" y=\"{y:.1}\" width=\"{w}\" height=\"{w}\" rx=\"3\" \
                 fill=\"{}\" data-tip=\"{tip}\"><title>{tip}</title></rect>",
                LEFT + f64::from(pu) * CELL,
                color(busy.total()),
                w = CELL - 2.0
            );
        }
    }
    out.push_str("</svg>\n");
    out
}

/// Returns the legend of all maps; their scale is always 0 to 100 %.
pub(super) fn legend() -> String {
    let stops: Vec<String> = (0..=8)
        .map(|i| format!("{} {:.1}%", color(f64::from(i) / 8.0), f64::from(i) * 12.5))
        .collect();
    format!(
        "<div class=\"legend-bar\"><span>idle</span>\
         <div style=\"background:linear-gradient(to right,{})\"></div>\
         <span>busy all the time</span></div>\n",
        stops.join(",")
    )
}
