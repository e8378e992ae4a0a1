//! [`SweepFile`]: a sweep in a TOML file (`docs/sweep.md`).

use std::ops::Range;
use std::path::{Path, PathBuf};

use toml_edit::{Document, Item, TableLike, Value};

use crate::{
    BaseScenario, Column, Grid, KeyPath, Seeds, SetError, SetOrigin, Setting, SettingValue, Sweep,
    SweepError,
};

/// Keys of a sweep file.
const KEYS: [&str; 6] = ["scenario", "job_files", "store", "seeds", "set", "plot"];
/// Keys of its section `[plot]`.
const PLOT_KEYS: [&str; 3] = ["x", "y", "lines"];

/// The plots of a sweep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlotSpec {
    /// Key on the x axis; `None` for the first with several values.
    pub x: Option<String>,
    /// Measured values, one plot each; empty for the usual ones.
    pub y: Vec<String>,
    /// Key with a line per value; `None` for the next one with several values.
    pub lines: Option<String>,
}

/// A sweep in a file.
#[derive(Clone, Debug)]
pub struct SweepFile {
    /// The sweep.
    pub sweep: Sweep,
    /// Folder of its store.
    pub store: PathBuf,
    /// Its plots.
    pub plot: PlotSpec,
}

impl SweepFile {
    /// Reads a sweep file. Paths in it are relative to its folder. Without `store`, the store is the
    /// folder beside it with its name and `.runs`.
    ///
    /// # Errors
    /// [`SweepError`] for a file that cannot be read, an unknown key, a value of the wrong type, and
    /// invalid settings, each with its line; and for a scenario that cannot be read.
    pub fn load(path: &Path) -> Result<SweepFile, SweepError> {
        let read = |source| SweepError::Read { path: path.to_path_buf(), source };
        let text = std::fs::read_to_string(path).map_err(read)?;
        let source = Source { path, text: &text };
        let document = Document::parse(text.as_str()).map_err(|error| {
            source.error(error.span(), format!("not valid TOML: {}", error.message()))
        })?;
        let root = document.as_table();
        source.check_keys(root, &KEYS)?;
        let scenario = source.string(root, "scenario")?.ok_or_else(|| {
            source.error(None, "a sweep needs `scenario`, the path of a scenario".into())
        })?;
        let base = BaseScenario::load(&source.beside(&scenario))?;
        let job_files = source.strings(root, "job_files")?;
        let seeds = root.get("seeds").map(|item| source.seeds(item)).transpose()?;
        let mut settings = Vec::new();
        if let Some((key, item)) = root.get_key_value("set") {
            let table = item.as_table_like().ok_or_else(|| {
                source.error(key.span(), "`set` is a table of keys with lists of values".into())
            })?;
            source.settings(table, &mut Vec::new(), &mut settings)?;
        }
        let grid = Grid::new(settings, seeds)?;
        if grid.is_plain() {
            return Err(SweepError::Empty);
        }
        let plot = source.plot(root, &grid)?;
        let store = match source.string(root, "store")? {
            Some(folder) => source.beside(&folder),
            None => path.with_extension("runs"),
        };
        let job_files = job_files.iter().map(|file| source.beside(file)).collect();
        Ok(SweepFile { sweep: Sweep { base, job_files, grid }, store, plot })
    }
}

/// The text of a sweep file.
struct Source<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Source<'_> {
    fn line(&self, span: Option<Range<usize>>) -> usize {
        let start = span.map_or(0, |span| span.start.min(self.text.len()));
        self.text.as_bytes()[..start].iter().filter(|byte| **byte == b'\n').count() + 1
    }

    fn error(&self, span: Option<Range<usize>>, problem: String) -> SweepError {
        SweepError::File { path: self.path.to_path_buf(), line: self.line(span), problem }
    }

    /// Returns a path of the file, which is relative to its folder.
    fn beside(&self, path: &str) -> PathBuf {
        self.path.parent().map_or_else(|| path.into(), |folder| folder.join(path))
    }

    fn check_keys(&self, table: &dyn TableLike, allowed: &[&str]) -> Result<(), SweepError> {
        for (key, item) in table.iter() {
            if !allowed.contains(&key) {
                let span = table.key(key).and_then(|key| key.span()).or(item.span());
                let distance = |name: &&&str| strsim::levenshtein(key, name);
                let nearest = allowed.iter().min_by_key(distance).filter(|n| distance(n) <= 2);
                let hint = nearest.map_or_else(String::new, |n| format!("did you mean `{n}`? "));
                let list = allowed.join(", ");
                return Err(self.error(span, format!("no key `{key}`; {hint}allowed: {list}")));
            }
        }
        Ok(())
    }

    fn string(&self, table: &dyn TableLike, key: &str) -> Result<Option<String>, SweepError> {
        let Some(item) = table.get(key) else { return Ok(None) };
        let text = item.as_str().map(str::to_owned);
        let wrong = || self.error(item.span(), format!("`{key}` must be a string"));
        text.ok_or_else(wrong).map(Some)
    }

    /// Reads a string or a list of strings.
    fn strings(&self, table: &dyn TableLike, key: &str) -> Result<Vec<String>, SweepError> {
        let Some(item) = table.get(key) else { return Ok(Vec::new()) };
        let list = match (item.as_str(), item.as_array()) {
            (Some(one), _) => Some(vec![one.to_owned()]),
            (_, Some(list)) => list.iter().map(|v| v.as_str().map(str::to_owned)).collect(),
            _ => None,
        };
        let wrong = format!("`{key}` must be a string, or a list of strings");
        list.ok_or_else(|| self.error(item.span(), wrong))
    }

    /// Reads seeds: a number of them, or a range as a string.
    fn seeds(&self, item: &Item) -> Result<Seeds, SweepError> {
        let text = match (item.as_integer(), item.as_str()) {
            (Some(count), _) => count.to_string(),
            (_, Some(range)) => range.to_owned(),
            _ => item.to_string(),
        };
        text.parse().map_err(|e: SweepError| self.error(item.span(), e.to_string()))
    }

    /// Reads the keys below `[set]`: a table is a section, a list has the values of a key, and all
    /// else is its only value.
    fn settings(
        &self,
        table: &dyn TableLike,
        parts: &mut Vec<String>,
        settings: &mut Vec<Setting>,
    ) -> Result<(), SweepError> {
        for (name, item) in table.iter() {
            let key_span = table.key(name).and_then(|key| key.span());
            let line = self.line(key_span.clone().or(item.span()));
            let origin = SetOrigin::File { path: self.path.to_path_buf(), line };
            let error = |problem| SetError { origin: origin.clone(), problem };
            let depth = parts.len();
            // A quoted key may be a whole name with its dots.
            parts.extend(
                KeyPath::parse(name)
                    .map_or_else(|_| vec![name.to_owned()], |key| key.parts().to_vec()),
            );
            if let Some(section) = item.as_table_like() {
                self.settings(section, parts, settings)?;
            } else {
                let values: Vec<Value> = match item.as_value() {
                    Some(Value::Array(list)) => list.iter().cloned().collect(),
                    Some(value) => vec![value.clone()],
                    None => {
                        let key = KeyPath::from_parts(parts.clone());
                        let wrong = format!("`{key}` needs a list of values");
                        return Err(self.error(key_span, wrong));
                    }
                };
                if values.is_empty() {
                    return Err(error(crate::SetProblem::NoValue).into());
                }
                let values = values.into_iter().map(SettingValue::new).collect();
                settings.push(Setting::new(KeyPath::from_parts(parts.clone()), values, origin)?);
            }
            parts.truncate(depth);
        }
        Ok(())
    }

    fn plot(&self, root: &dyn TableLike, grid: &Grid) -> Result<PlotSpec, SweepError> {
        let Some(item) = root.get("plot") else { return Ok(PlotSpec::default()) };
        let table = item.as_table_like().ok_or_else(|| {
            self.error(item.span(), "`plot` is a table with x, y and lines".into())
        })?;
        self.check_keys(table, &PLOT_KEYS)?;
        let keys: Vec<String> = grid.settings().iter().map(|s| s.key.to_string()).collect();
        let key = |name: &str| {
            let found = self.string(table, name)?;
            match &found {
                Some(key) if !keys.contains(key) => Err(self.error(
                    table.get(name).and_then(Item::span),
                    format!("`{name}` is no key of the sweep; its keys: {}", keys.join(", ")),
                )),
                _ => Ok(found),
            }
        };
        let (x, lines) = (key("x")?, key("lines")?);
        if x.is_some() && x == lines {
            let span = table.get("lines").and_then(Item::span);
            return Err(self.error(span, "`x` and `lines` are the same key".into()));
        }
        let y = self.strings(table, "y")?;
        if let Some(unknown) = y.iter().find(|name| Column::index_of(name).is_none()) {
            let names: Vec<&str> = crate::COLUMNS.iter().map(|column| column.name).collect();
            let list = names.join(", ");
            let span = table.get("y").and_then(Item::span);
            return Err(self.error(span, format!("no measured value `{unknown}`; allowed: {list}")));
        }
        Ok(PlotSpec { x, y, lines })
    }
}

#[cfg(test)]
mod tests;
