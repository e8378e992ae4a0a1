//! Definitions of a report's terms, for tooltips and for the list at its end.

use std::fmt::Write as _;

use super::html::escape;

/// Terms with a one-sentence definition.
const TERMS: [(&str, &str); 22] = [
    ("way", "One scenario: the same jobs on a drive that is set up in one way."),
    ("job", "A stream of requests as a fio job file describes it."),
    ("dir", "The direction of requests: read, write or trim (deallocate)."),
    ("IOPS", "Requests completed per second of the measured time."),
    ("throughput", "Bytes completed per second of the measured time."),
    ("mean", "The mean latency: from when a request was wanted until its job saw it complete."),
    ("p50", "The median latency: half of the requests took no longer."),
    ("p95", "95 % of the requests took no longer."),
    ("p99", "99 % of the requests took no longer."),
    ("p99.9", "99.9 % of the requests took no longer."),
    ("max", "The longest latency."),
    ("WA", "Write amplification: sectors programmed to flash for each sector that the jobs wrote."),
    ("queue depth", "Requests that are at the device at the same time."),
    ("parallel unit", "A part of the flash that does one operation at a time: a die, or a LUN."),
    ("channel", "The bus that the parallel units of a row share; one transfer at a time."),
    ("chunk", "What is erased at once: a flash block, over all planes of a parallel unit."),
    ("line", "Chunks on different parallel units that are written and reclaimed together."),
    ("free lines", "Erased lines that can be written."),
    ("garbage collection", "Moves what is still valid out of a line, so that it can be erased."),
    ("padding", "Sectors without data that fill a write unit, because a flush does not wait."),
    (
        "over-provisioning",
        "Spare flash: physical over logical sectors, minus 1; lines that are always held back do not \
         count as physical.",
    ),
    (
        "preconditioning",
        "Writes before the run that bring the drive to a state, and take no time of it.",
    ),
];

/// Returns a word with its definition as a tooltip, if it is one of the terms.
pub(super) fn with_explanation(word: &str) -> String {
    match TERMS.iter().find(|(term, _)| *term == word) {
        Some((_, meaning)) => {
            format!("<abbr title=\"{}\">{}</abbr>", escape(meaning), escape(word))
        }
        None => escape(word),
    }
}

/// Writes the list of terms.
pub(super) fn chapter(out: &mut String) {
    out.push_str("<section>\n<details class=\"terms\"><summary>Terms</summary>\n<dl>\n");
    for (term, meaning) in TERMS {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "<dt>{}</dt><dd>{}</dd>", escape(term), escape(meaning));
    }
    out.push_str("</dl>\n</details>\n</section>\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::HEADINGS;

    #[test]
    fn every_heading_is_explained() {
        for heading in HEADINGS {
            assert!(with_explanation(heading).contains("<abbr title="), "{heading}");
        }
    }
}
