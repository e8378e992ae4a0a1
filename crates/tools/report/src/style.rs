//! [`attributes`]: colors and dashes that distinguish any number of variants.
//!
//! There are eight colors, each with its own dash. The ninth variant reuses the first color with a
//! dash that no other line of that color has.

/// Number of colors in `page.css`.
const COLORS: usize = 8;

/// Returns the attributes of the lines of the variant at `index`: their class and, if the class
/// does not suffice, their dash.
pub(super) fn attributes(index: usize) -> String {
    let class = format!("way{}", index % COLORS);
    match dash(index / COLORS) {
        None => format!("class=\"line {class}\" data-way=\"{index}\""),
        Some(dash) => {
            format!("class=\"line {class}\" style=\"stroke-dasharray:{dash}\" data-way=\"{index}\"")
        }
    }
}

/// Returns the dash of a variant that reuses a color for the `round`th time.
fn dash(round: usize) -> Option<String> {
    match round {
        0 => None,
        1 => Some("1 3".into()),
        2 => Some("16 4".into()),
        3 => Some("12 3 2 3 2 3".into()),
        n => Some(format!("{} 3 {} 3", 4 + 4 * (n % 8), 2 + 3 * (n / 8))),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_of_many_variants_look_alike() {
        let without_index = |index: usize| {
            let text = attributes(index);
            text[..text.find(" data-way").unwrap()].to_owned()
        };
        let all: BTreeSet<String> = (0..256).map(without_index).collect();
        assert_eq!(all.len(), 256);
        assert_eq!(attributes(3), "class=\"line way3\" data-way=\"3\"");
    }
}
