//! [`EditedText`]: the text of a scenario with some of its keys set, and the location of each.

use std::ops::Range;

use toml_edit::{Document, DocumentMut, InlineTable, Item, TableLike, Value};

use crate::{KeyPath, SetProblem, SettingValue};

/// Sections that may be lists. Elements without a name have an index.
const LISTED: [&str; 9] =
    ["at", "drive", "export", "fault", "job", "partition", "path", "set", "target"];

/// A step to a value.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Key(String),
    Index(usize),
}

/// SetLocation of a value that was set.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SetLocation {
    /// Index of the value among those that were set.
    assignment: usize,
    steps: Vec<Step>,
    /// Number of steps to the first key that the text did not have, or to the value's own.
    new_from: usize,
}

/// The text of a scenario with some of its keys set.
#[derive(Clone, Debug)]
pub(crate) struct EditedText {
    /// The text.
    pub(crate) text: String,
    /// Byte ranges of the keys that were set, with their values, each with the index of its
    /// assignment.
    spans: Vec<(Range<usize>, usize)>,
    /// Locations of the values that were set.
    places: Vec<SetLocation>,
}

impl EditedText {
    /// Sets the keys in the text of a scenario, one after the other.
    ///
    /// # Errors
    /// The index of the first key that cannot be set, and the problem. `None` if the text itself is
    /// not valid TOML.
    pub(crate) fn new<'a>(
        text: &str,
        assignments: impl Iterator<Item = (&'a KeyPath, &'a SettingValue)>,
    ) -> Result<EditedText, Option<(usize, SetProblem)>> {
        let mut document: DocumentMut = text.parse().map_err(|_| None)?;
        let mut places = Vec::new();
        for (assignment, (key, value)) in assignments.enumerate() {
            let mut edit = Edit { key, value: value.value(), steps: Vec::new(), found: Vec::new() };
            edit.set(document.as_table_mut(), key.parts()).map_err(|p| Some((assignment, p)))?;
            let place = |(steps, new_from)| SetLocation { assignment, steps, new_from };
            places.extend(edit.found.into_iter().map(place));
        }
        let text = document.to_string();
        let spans = match Document::parse(text.as_str()) {
            Ok(parsed) => places.iter().filter_map(|p| span(parsed.as_table(), p)).collect(),
            Err(_) => Vec::new(),
        };
        Ok(EditedText { text, spans, places })
    }

    /// Returns an assignment before the index `first` and one from there on that set the same value,
    /// or one of them a section that has the value of the other.
    pub(crate) fn overlap(&self, first: usize) -> Option<(usize, usize)> {
        let (before, after): (Vec<_>, Vec<_>) =
            self.places.iter().partition(|place| place.assignment < first);
        before.iter().find_map(|a| {
            let other = after
                .iter()
                .find(|b| a.steps.starts_with(&b.steps) || b.steps.starts_with(&a.steps))?;
            Some((a.assignment, other.assignment))
        })
    }

    /// Returns the index of the assignment at a location of the text; the last one of several.
    pub(crate) fn assignment_at(&self, at: &Range<usize>) -> Option<usize> {
        let is_in = |span: &Range<usize>| span.start <= at.start && at.start < span.end.max(1);
        self.spans.iter().rev().find(|(span, _)| is_in(span)).map(|(_, assignment)| *assignment)
    }
}

/// One key that is being set.
struct Edit<'a> {
    key: &'a KeyPath,
    value: &'a Value,
    /// Steps to the present table.
    steps: Vec<Step>,
    /// Steps to each value that was set, and the number of them to the first new key.
    found: Vec<(Vec<Step>, usize)>,
}

impl Edit<'_> {
    /// Sets the key with these remaining parts, at least one, in a table.
    fn set(&mut self, table: &mut dyn TableLike, parts: &[String]) -> Result<(), SetProblem> {
        let Some((first, rest)) = parts.split_first() else { return Ok(()) };
        self.steps.push(Step::Key(first.clone()));
        let result = if table.contains_key(first) {
            match (table.get_mut(first), rest) {
                (Some(item), []) => self.replace(item),
                (Some(item), _) => self.descend(item, rest),
                (None, _) => Ok(()),
            }
        } else {
            self.add(table, first, rest)
        };
        self.steps.pop();
        result
    }

    /// Adds a key that the table does not have, with sections for the parts after it.
    fn add(
        &mut self,
        table: &mut dyn TableLike,
        first: &str,
        rest: &[String],
    ) -> Result<(), SetProblem> {
        let mut value = self.value.clone();
        for part in rest.iter().rev() {
            if part == "*" {
                return Err(SetProblem::NoSection {
                    key: self.key.to_string(),
                    part: first.to_owned(),
                });
            }
            let mut inner = InlineTable::new();
            inner.insert(part, value);
            value = inner.into();
        }
        table.insert(first, Item::Value(value));
        let keys = rest.iter().map(|part| Step::Key(part.clone()));
        let steps = self.steps.iter().cloned().chain(keys).collect();
        self.found.push((steps, self.steps.len()));
        Ok(())
    }

    fn replace(&mut self, item: &mut Item) -> Result<(), SetProblem> {
        if item.is_array_of_tables() {
            let key = self.key.to_string();
            return Err(SetProblem::Section { key });
        }
        let mut value = self.value.clone();
        if let Item::Value(old) = &*item {
            *value.decor_mut() = old.decor().clone();
        }
        *item = Item::Value(value);
        self.found.push((self.steps.clone(), self.steps.len()));
        Ok(())
    }

    fn descend(&mut self, item: &mut Item, rest: &[String]) -> Result<(), SetProblem> {
        let section = match &self.steps[..] {
            [Step::Key(section)] => section.clone(),
            _ => String::new(),
        };
        let is_listed = LISTED.contains(&section.as_str());
        if let Some(table) = item.as_table_like_mut() {
            let names_it = is_listed
                && rest.len() > 1
                && (rest[0] == "*" || table.get("name").and_then(Item::as_str) == Some(&rest[0]));
            return self.set(table, &rest[usize::from(names_it)..]);
        }
        let mut elements: Vec<&mut dyn TableLike> = match item {
            Item::ArrayOfTables(tables) => {
                tables.iter_mut().map(|table| table as &mut dyn TableLike).collect()
            }
            Item::Value(Value::Array(values)) if is_listed => {
                let tables = values.iter_mut().filter_map(Value::as_inline_table_mut);
                tables.map(|table| table as &mut dyn TableLike).collect()
            }
            _ => Vec::new(),
        };
        if elements.is_empty() {
            let key = self.key.to_string();
            return Err(SetProblem::NoSection { key, part: self.last_key() });
        }
        let names: Vec<String> =
            elements.iter().enumerate().map(|(i, table)| name(&section, i, *table)).collect();
        let named = match &rest[0] {
            _ if rest.len() < 2 => None,
            all if all == "*" => Some((0..names.len()).collect()),
            one => names.iter().position(|name| name == one).map(|index| vec![index]),
        };
        let (chosen, skipped) = match named {
            Some(chosen) => (chosen, 1),
            None if names.len() == 1 => (vec![0], 0),
            None => {
                let part = rest[0].clone();
                return Err(SetProblem::Element { section: self.last_key(), part, names });
            }
        };
        for index in chosen {
            self.steps.push(Step::Index(index));
            self.set(&mut *elements[index], &rest[skipped..])?;
            self.steps.pop();
        }
        Ok(())
    }

    /// Returns the key of the present section.
    fn last_key(&self) -> String {
        let keys = self.steps.iter().rev().filter_map(|step| match step {
            Step::Key(key) => Some(key.clone()),
            Step::Index(_) => None,
        });
        keys.take(1).next().unwrap_or_default()
    }
}

/// Returns the name of a list's element: its own, or the default that the scenario gives it.
fn name(section: &str, index: usize, table: &dyn TableLike) -> String {
    match (table.get("name").and_then(Item::as_str), section) {
        (Some(name), _) => name.to_owned(),
        (None, "drive") => format!("drive{index}"),
        (None, "job") => format!("job{}", index + 1),
        (None, _) => index.to_string(),
    }
}

/// Returns the byte range of a value that was set, from the first new key on.
fn span(table: &dyn TableLike, place: &SetLocation) -> Option<(Range<usize>, usize)> {
    let mut start = None;
    let mut end = None;
    let mut tables: Option<&dyn TableLike> = Some(table);
    let mut item: Option<&Item> = None;
    let mut values: Option<&Value> = None;
    for (index, step) in place.steps.iter().enumerate() {
        match step {
            Step::Key(key) => {
                let (found, next) = tables?.get_key_value(key)?;
                let key_span = found.span();
                if index + 1 >= place.new_from && start.is_none() {
                    start = key_span.as_ref().map(|span| span.start);
                }
                end = next.span().or(key_span).map(|span| span.end).or(end);
                (item, values) = (Some(next), next.as_value());
                tables = next.as_table_like();
            }
            Step::Index(at) => match item? {
                Item::ArrayOfTables(list) => {
                    tables = list.get(*at).map(|table| table as &dyn TableLike);
                }
                _ => {
                    let element = values?.as_array()?.iter().filter_map(Value::as_inline_table);
                    tables = element.skip(*at).map(|table| table as &dyn TableLike).next();
                }
            },
        }
    }
    Some((start?..end?, place.assignment))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTS: &str = "# two drives\n[[drive]]\nname = \"left\"\npreset = \"a\"\n[[drive]]\n\
        preset = \"b\" # old\nftl.over_provisioning = 0.1\n[[job]]\nname = \"big reads\"\n[[job]]\nbs = 1\n";

    fn edit(text: &str, sets: &[(&str, &str)]) -> Result<EditedText, SetProblem> {
        let sets: Vec<_> = sets
            .iter()
            .map(|(key, value)| (KeyPath::parse(key).unwrap(), SettingValue::parse(value)))
            .collect();
        EditedText::new(text, sets.iter().map(|(k, v)| (k, v))).map_err(|e| e.unwrap().1)
    }

    fn edited(text: &str, sets: &[(&str, &str)]) -> String {
        edit(text, sets).unwrap().text
    }

    #[test]
    fn a_key_is_replaced_where_it_is_and_comments_stay() {
        let text = "seed = 1 # all\n[drive]\nftl = { over_provisioning = 0.1, victims = 2 } # x\n";
        let after = edited(text, &[("seed", "7"), ("drive.ftl.over_provisioning", "0.28")]);
        assert_eq!(
            after,
            "seed = 7 # all\n[drive]\nftl = { over_provisioning = 0.28, victims = 2 } # x\n"
        );
        let dotted = "[drive]\nftl.over_provisioning = 0.1\n[target]\nkind = \"pblk\"\n";
        let after = edited(dotted, &[("drive.ftl.over_provisioning", "0.2")]);
        assert_eq!(after, dotted.replace("0.1", "0.2"));
    }

    #[test]
    fn a_key_that_the_text_lacks_is_added_in_its_section() {
        let text = "[drive]\npreset = \"a\"\n[drive.ftl]\nx = 1\n[[job]]\nbs = \"4k\"\n";
        for (key, path) in [
            ("seed", vec!["seed"]),
            ("drive.ftl.over_provisioning", vec!["drive", "ftl", "over_provisioning"]),
            ("drive.timing.read", vec!["drive", "timing", "read"]),
            ("target.active_pus", vec!["target", "active_pus"]),
        ] {
            let after: toml::Table = edited(text, &[(key, "3")]).parse().unwrap();
            let mut value = &toml::Value::Table(after);
            for part in path {
                value = &value[part];
            }
            assert_eq!(value.as_integer(), Some(3), "{key}");
        }
        let after: toml::Table = edited(text, &[("job.iodepth", "9")]).parse().unwrap();
        assert_eq!(after["job"][0]["iodepth"].as_integer(), Some(9), "the only one of a list");
    }

    #[test]
    fn elements_of_a_list_have_names_and_a_star_is_all() {
        let table = |sets: &[(&str, &str)]| edited(LISTS, sets).parse::<toml::Table>().unwrap();
        let after = table(&[("drive.left.preset", "z"), ("job.\"big reads\".bs", "4k")]);
        assert_eq!(after["drive"][0]["preset"].as_str(), Some("z"));
        assert_eq!(after["drive"][1]["preset"].as_str(), Some("b"));
        assert_eq!(after["job"][0]["bs"].as_str(), Some("4k"));
        let after = table(&[("drive.drive1.ftl.over_provisioning", "0.5"), ("job.job2.bs", "2")]);
        assert_eq!(after["drive"][1]["ftl"]["over_provisioning"].as_float(), Some(0.5));
        assert_eq!(after["job"][1]["bs"].as_integer(), Some(2));
        let after = table(&[("drive.*.preset", "both")]);
        for index in 0..2 {
            assert_eq!(after["drive"][index]["preset"].as_str(), Some("both"));
        }
        let inline = "drive = [{ name = \"l\", cell = \"slc\" }, { name = \"r\" }]\n";
        let after: toml::Table = edited(inline, &[("drive.r.cell", "tlc")]).parse().unwrap();
        assert_eq!(after["drive"][1]["cell"].as_str(), Some("tlc"));
        assert_eq!(after["drive"][0]["cell"].as_str(), Some("slc"));
    }

    #[test]
    fn a_single_section_may_be_named_too() {
        let text = "[drive]\nname = \"d\"\ncell = \"slc\"\n";
        for key in ["drive.cell", "drive.d.cell", "drive.*.cell"] {
            assert!(edited(text, &[(key, "tlc")]).contains("cell = \"tlc\""), "{key}");
        }
    }

    #[test]
    fn a_key_without_a_section_or_with_an_unknown_name_is_an_error() {
        let problem = |text: &str, key: &str| edit(text, &[(key, "1")]).unwrap_err();
        let names = vec!["left".to_owned(), "drive1".to_owned()];
        let (section, part) = ("drive".to_owned(), "preset".to_owned());
        assert_eq!(problem(LISTS, "drive.preset"), SetProblem::Element { section, part, names });
        assert!(matches!(problem(LISTS, "drive.lefd.preset"), SetProblem::Element { .. }));
        assert!(matches!(problem(LISTS, "drive"), SetProblem::Section { .. }));
        assert!(matches!(problem("seed = 1\n", "seed.x"), SetProblem::NoSection { .. }));
        assert!(matches!(problem("seed = 1\n", "job.*.bs"), SetProblem::NoSection { .. }));
    }

    #[test]
    fn locations_of_the_text_belong_to_what_was_set_there() {
        let sets = [("drive.left.preset", "zz"), ("target.kind", "pblk"), ("job.*.bs", "77")];
        let after = edit(LISTS, &sets).unwrap();
        let at = |part: &str| {
            let start = after.text.find(part).unwrap();
            after.assignment_at(&(start..start + 1))
        };
        assert_eq!((at("preset = \"zz\""), at("\"zz\"")), (Some(0), Some(0)), "{}", after.text);
        assert_eq!((at("target"), at("\"pblk\""), at("77")), (Some(1), Some(1), Some(2)));
        assert_eq!((at("# two"), at("\"b\"")), (None, None));
    }

    #[test]
    fn assignments_overlap_where_they_set_the_same_value() {
        let overlap = |first: &str, second: &str| {
            edit(LISTS, &[(first, "1"), (second, "2")]).unwrap().overlap(1)
        };
        for (first, second) in [
            ("seed", "seed"),
            ("job.*.bs", "job.job2.bs"),
            ("drive.drive1.ftl.over_provisioning", "drive.*.ftl.over_provisioning"),
            ("drive.drive1.ftl.victim", "drive.drive1.ftl"),
            ("target", "target"),
        ] {
            assert_eq!(overlap(first, second), Some((0, 1)), "{first} {second}");
        }
        for (first, second) in [
            ("job.job2.bs", "job.job2.rw"),
            ("job.job2.bs", "job.\"big reads\".bs"),
            ("target.a", "target.b"),
            ("drive.left.preset", "drive.drive1.preset"),
        ] {
            assert_eq!(overlap(first, second), None, "{first} {second}");
        }
    }
}
