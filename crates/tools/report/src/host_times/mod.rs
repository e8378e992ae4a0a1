//! The report's chapter on a modeled host: bars of what its hardware threads did, and of the time
//! that a request takes in each layer.

use std::borrow::Cow;
use std::fmt::Write as _;

use scenario::format::{count, duration};

use super::html::{escape, open};
use super::{Report, Variant};

/// Style of the chapter, for pages that have it.
const STYLE: &str = include_str!("host.css");

/// Number of states that have a fill.
const FILLS: usize = 11;

/// Times of the hardware threads of a modeled host, by state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostTimes {
    /// Name of the machine.
    pub machine: String,
    /// The states; those of all variants have the same order.
    pub states: Vec<HostTimeState>,
    /// By hardware thread, the nanoseconds in each state, which sum to the time elapsed.
    pub threads: Vec<Vec<u64>>,
}

/// A state of hardware threads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostTimeState {
    /// Name.
    pub name: String,
    /// Nanoseconds per request, summed over the hardware threads; `None` if requests do not need the
    /// state.
    pub request_ns: Option<f64>,
    /// Whether hardware threads in this state have nothing to do.
    pub is_idle: bool,
}

// Size of the drawings in SVG units.
const WIDTH: f64 = 760.0;
const LEFT: f64 = 150.0;
const RIGHT: f64 = 80.0;
const AXIS: f64 = 30.0;
/// Largest height of all bars, and of one with the distance to the next.
const BARS_HEIGHT: f64 = 720.0;
const BAR_HEIGHT: f64 = 20.0;
/// Number of characters of a label.
const LABEL_CHARS_MAX: usize = 20;
/// Least distance of labels.
const LABEL_DISTANCE: f64 = 13.0;

/// A bar of parts.
struct HostBar {
    label: String,
    /// Index of the state, value and text of each part.
    parts: Vec<(usize, f64, String)>,
    /// Text behind the bar.
    total: String,
}

impl HostTimes {
    /// Makes all numbers finite and not negative, and all hardware threads have all states.
    pub(super) fn sanitize(&mut self) {
        for state in &mut self.states {
            state.request_ns = state.request_ns.map(super::sanitized);
        }
        let count = self.states.len();
        self.threads.iter_mut().for_each(|thread| thread.resize(count, 0));
    }

    /// Returns the sum of the nanoseconds per request.
    fn request_ns(&self) -> f64 {
        self.states.iter().filter_map(|state| state.request_ns).sum()
    }

    /// Returns the bar of a variant's requests.
    fn request_bar(&self, way: &Variant) -> HostBar {
        let part = |(index, state): (usize, &HostTimeState)| {
            let ns = state.request_ns.filter(|ns| *ns > 0.0)?;
            Some((index, ns, format!("{}: {ns:.1} ns per request", state.name)))
        };
        HostBar {
            label: way.name.clone(),
            parts: self.states.iter().enumerate().filter_map(part).collect(),
            total: format!("{} ns", count(self.request_ns().round() as u64)),
        }
    }

    /// Returns whether a hardware thread did anything.
    fn is_used(&self, thread: &[u64]) -> bool {
        let mut times = self.states.iter().zip(thread);
        times.any(|(state, time)| !state.is_idle && *time > 0)
    }

    /// Returns a bar for each hardware thread that did anything, in shares of the time.
    fn thread_bars(&self) -> Vec<HostBar> {
        let bar = |(index, thread): (usize, &Vec<u64>)| {
            let total = thread.iter().sum::<u64>().max(1) as f64;
            let states = self.states.iter().zip(thread).enumerate();
            let parts = states.filter(|(_, (state, time))| !state.is_idle && **time > 0);
            let busy: u64 = parts.clone().map(|(_, (_, time))| *time).sum();
            let part = |(at, (state, time)): (usize, (&HostTimeState, &u64))| {
                let share = *time as f64 / total;
                let text = format!("{}: {:.1} %, {}", state.name, share * 100.0, duration(*time));
                (at, share, text)
            };
            HostBar {
                label: format!("hardware thread {index}"),
                parts: parts.map(part).collect(),
                total: format!("{:.1} %", busy as f64 / total * 100.0),
            }
        };
        let used = self.threads.iter().enumerate().filter(|(_, thread)| self.is_used(thread));
        used.map(bar).collect()
    }
}

/// Writes the chapter; writes nothing without a modeled host.
pub(super) fn chapter(out: &mut String, report: &Report) {
    let hosts = || report.variants.iter().filter_map(|way| Some((way, way.host.as_ref()?)));
    if hosts().next().is_none() {
        return;
    }
    open(
        out,
        "What the host's processors did",
        "The time of a request in each layer, summed over the hardware threads, and the share of the \
         run that each hardware thread spent in each state; the rest of a bar is idle. All bars of a \
         picture have the same scale. Point at a part for its number.",
    );
    // Writing to a string cannot fail.
    let _ = writeln!(out, "<style>\n{STYLE}</style>");
    out.push_str("<ul class=\"legend host\">");
    let is_shown = |index: usize| {
        let is_used = |host: &HostTimes| {
            let mut times = host.threads.iter().filter_map(|thread| thread.get(index));
            !host.states.get(index).is_none_or(|state| state.is_idle) && times.any(|time| *time > 0)
        };
        hosts().any(|(_, host)| is_used(host))
    };
    let states = hosts().map(|(_, host)| &host.states).max_by_key(|states| states.len());
    for (index, state) in states.into_iter().flatten().enumerate().filter(|(i, _)| is_shown(*i)) {
        let _ = write!(
            out,
            "<li><svg viewBox=\"0 0 18 12\" aria-hidden=\"true\"><rect class=\"host{}\" width=\"18\" \
             height=\"12\"/></svg>{}</li>",
            index % FILLS,
            escape(&state.name)
        );
    }
    out.push_str("</ul>\n");
    let largest = hosts().map(|(_, host)| host.request_ns()).fold(0.0, f64::max);
    let requests: Vec<HostBar> = hosts().map(|(way, host)| host.request_bar(way)).collect();
    let _ = writeln!(
        out,
        "<figure><figcaption>Time of a request, by layer</figcaption>\n{}</figure>",
        svg("nanoseconds per request by layer", &requests, largest, &|ns| format!("{ns:.0} ns"))
    );
    for (way, host) in hosts() {
        let bars = host.thread_bars();
        let idle = host.threads.len() - bars.len();
        let _ = writeln!(
            out,
            "<figure><figcaption>{}: hardware threads of {}</figcaption>\n{}",
            escape(&way.name),
            escape(&host.machine),
            svg("share of time by state", &bars, 1.0, &|share| format!("{:.0} %", share * 100.0))
        );
        if idle > 0 {
            let _ = writeln!(out, "<p class=\"mean\">{idle} more were idle all the time</p>");
        }
        out.push_str("</figure>\n");
    }
    out.push_str("</section>\n");
}

/// Returns a label as far as there is space for it.
fn shortened(label: &str) -> Cow<'_, str> {
    match label.char_indices().nth(LABEL_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &label[..end]).into(),
        None => label.into(),
    }
}

/// Returns the SVG element of bars over an axis from 0 to `max`.
fn svg(name: &str, bars: &[HostBar], max: f64, show: &dyn Fn(f64) -> String) -> String {
    let step = (BARS_HEIGHT / bars.len().max(1) as f64).min(BAR_HEIGHT);
    let height = step * bars.len() as f64 + AXIS;
    let max = if max > 0.0 { max } else { 1.0 };
    let x = |value: f64| LEFT + (value / max).clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT);
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "<svg class=\"host\" viewBox=\"0 0 {WIDTH} {height:.1}\" role=\"img\" aria-label=\"{name}\">"
    );
    for quarter in 0..=4 {
        let value = max * f64::from(quarter) / 4.0;
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"0\" y2=\"{1:.1}\"/>\
             <text class=\"tick\" x=\"{0:.1}\" y=\"{2:.1}\" text-anchor=\"middle\">{3}</text>",
            x(value),
            height - AXIS + 4.0,
            height - 8.0,
            show(value)
        );
    }
    // Where bars are narrow, some have no label.
    let labeled = (LABEL_DISTANCE / step).ceil().max(1.0) as usize;
    for (index, bar) in bars.iter().enumerate() {
        let top = step * index as f64;
        let text = top + step / 2.0 + 4.0;
        if index.is_multiple_of(labeled) {
            let _ = writeln!(
                out,
                "<text class=\"tick\" x=\"{:.1}\" y=\"{text:.1}\" text-anchor=\"end\">{}</text>\
                 <text class=\"tick\" x=\"{:.1}\" y=\"{text:.1}\">{}</text>",
                LEFT - 8.0,
                escape(&shortened(&bar.label)),
                WIDTH - RIGHT + 8.0,
                escape(&bar.total)
            );
        }
        let mut from = 0.0;
        for (state, value, text) in &bar.parts {
            let _ = writeln!(
                out,
                "<rect class=\"host{}\" x=\"{:.2}\" y=\"{:.1}\" width=\"{:.2}\" height=\"{:.1}\">\
                 <title>{}, {}</title></rect>",
                state % FILLS,
                x(from),
                top + step * 0.1,
                x(from + value) - x(from),
                step * 0.8,
                escape(&bar.label),
                escape(text)
            );
            from += value;
        }
    }
    out.push_str("</svg>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::html;

    fn host(driver: f64, threads: &[[u64; 3]]) -> HostTimes {
        let state = |name: &str, request_ns, is_idle| HostTimeState {
            name: name.into(),
            request_ns,
            is_idle,
        };
        HostTimes {
            machine: "m<1>".into(),
            states: vec![
                state("driver", Some(driver), false),
                state("spin", None, false),
                state("idle", None, true),
            ],
            threads: threads.iter().map(|thread| thread.to_vec()).collect(),
        }
    }

    fn report(hosts: Vec<Option<HostTimes>>) -> Report {
        let way =
            |(index, host)| Variant { name: format!("way {index}"), host, ..Variant::default() };
        let variants = hosts.into_iter().enumerate().map(way).collect();
        Report { variants, ..Report::default() }
    }

    /// Returns the widths of the parts of the pictures at `picture`, by state.
    fn widths(page: &str, picture: usize) -> Vec<(String, f64)> {
        let svg = page.split("<svg class=\"host\"").nth(1 + picture).unwrap();
        let svg = &svg[..svg.find("</svg>").unwrap()];
        svg.split("<rect class=\"")
            .skip(1)
            .map(|part| {
                let width = part.split("width=\"").nth(1).unwrap().split('"').next().unwrap();
                (part[..part.find('"').unwrap()].to_owned(), width.parse().unwrap())
            })
            .collect()
    }

    // guarantee: B-69
    #[test]
    fn bars_are_as_long_as_their_times_on_one_scale() {
        let first = host(100.0, &[[250, 250, 500], [0, 0, 1000]]);
        let second = host(400.0, &[[1000, 0, 0], [0, 1000, 0]]);
        let page = html::render(&report(vec![Some(first), None, Some(second)]));
        let whole = WIDTH - LEFT - RIGHT;
        assert_eq!(page.matches("<svg class=\"host\"").count(), 3);
        // Requests of both on one axis.
        let requests = widths(&page, 0);
        let fill = |index: u32| format!("host{index}");
        assert_eq!(requests, [(fill(0), whole / 4.0), (fill(0), whole)]);
        // A hardware thread that did nothing has no bar.
        assert_eq!(widths(&page, 1), [(fill(0), whole / 4.0), (fill(1), whole / 4.0)]);
        assert!(page.contains("1 more were idle all the time"));
        assert_eq!(widths(&page, 2), [(fill(0), whole), (fill(1), whole)]);
        assert!(page.contains("hardware threads of m&lt;1&gt;") && !page.contains("NaN"));
        let legend = page.split("legend host").nth(1).unwrap().split("</ul>").next().unwrap();
        assert_eq!(legend.matches("<li>").count(), 2, "idle is no part of a bar");
    }

    #[test]
    fn a_page_without_a_machine_has_nothing_of_it() {
        let page = html::render(&report(vec![None]));
        assert!(!page.contains("processors") && !page.contains("host0"));
        assert_eq!(shortened("hardware thread 511"), "hardware thread 511");
        assert_eq!(shortened(&"ä".repeat(40)), "ä".repeat(20) + "…");
        // A result without requests, and many hardware threads.
        let many = host(f64::NAN, &[[0, 1, 1]; 512]);
        let page = html::render(&report(vec![Some(many)]));
        assert!(!page.contains("NaN") && !page.contains("inf"));
        assert_eq!(widths(&page, 1).len(), 512);
        assert!(page.matches("hardware thread 0<").count() == 1);
    }
}
