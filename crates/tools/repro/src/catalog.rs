//! [`Catalog`]: all figures of a folder.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::{Figure, FigureClass, Recorded, ReproError, Sensitivity};

/// Names of papers, and the keys that they stand for.
const PAPER_NAMES: [(&str, &str); 2] = [("speculation14", "Spec14"), ("appnvm15", "AppNVM15")];

/// `PAPER:FIGURE`: the folder of the paper, and the name of the file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FigureName {
    paper: String,
    figure: String,
}

impl FigureName {
    /// Returns the name of a figure.
    pub fn new(paper: impl Into<String>, figure: impl Into<String>) -> FigureName {
        FigureName { paper: paper.into(), figure: figure.into() }
    }

    /// The key of the paper in the bibliography.
    pub fn paper(&self) -> &str {
        &self.paper
    }

    /// The figure.
    pub fn figure(&self) -> &str {
        &self.figure
    }
}

impl fmt::Display for FigureName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.paper, self.figure)
    }
}

/// A choice of figures.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selection {
    /// `PAPER`, `PAPER:FIGURE` or `all`; empty for all.
    pub names: Vec<String>,
    /// Only those of this class.
    pub class: Option<FigureClass>,
    /// Only those that are expected to take no longer.
    pub minutes_max: Option<f64>,
}

/// A figure of a paper that no file describes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MissingFigure {
    /// The figure, as a citation.
    pub source: String,
    /// Subject of the figure.
    pub title: String,
    /// Reason.
    pub reason: String,
}

/// The file with the figures that are missing.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MissingFigures {
    missing: Vec<MissingFigure>,
}

/// All figures of a folder.
#[derive(Clone, Debug)]
pub struct Catalog {
    folder: PathBuf,
    figures: Vec<Figure>,
    missing: Vec<MissingFigure>,
}

impl Catalog {
    /// Reads all files `PAPER/FIGURE.toml` of a folder, and `missing.toml`, if it has one.
    ///
    /// # Errors
    /// [`ReproError`] for a folder that cannot be read or has no figures, and for an invalid file.
    pub fn load(folder: &Path) -> Result<Catalog, ReproError> {
        let mut figures = Vec::new();
        for paper in entries(folder)?.into_iter().filter(|path| path.is_dir()) {
            for path in entries(&paper)? {
                if path.extension().is_none_or(|extension| extension != "toml") {
                    continue;
                }
                let part =
                    |path: &Path| path.file_stem().map(|name| name.to_string_lossy().into_owned());
                let (Some(paper), Some(figure)) = (part(&paper), part(&path)) else { continue };
                // A sweep and its scenario belong to the figure that runs them.
                if figure.ends_with(".sweep") || figure.ends_with(".scenario") {
                    continue;
                }
                let text = read(&path)?;
                figures.push(Figure::parse(FigureName::new(paper, figure), &path, &text)?);
            }
        }
        if figures.is_empty() {
            return Err(ReproError::NoFigures(folder.to_path_buf()));
        }
        figures.sort_by_key(|figure| natural(figure.name()));
        let path = folder.join("missing.toml");
        let missing = match path.exists() {
            true => {
                let wrong = |problem: String| ReproError::File { path: path.clone(), problem };
                let found: Result<MissingFigures, _> = toml::from_str(&read(&path)?);
                found.map_err(|error| wrong(error.to_string().trim().to_owned()))?.missing
            }
            false => Vec::new(),
        };
        Ok(Catalog { folder: folder.to_path_buf(), figures, missing })
    }

    /// The figures, by paper and number.
    pub fn figures(&self) -> &[Figure] {
        &self.figures
    }

    /// Figures of the papers that no file describes, and why.
    pub fn missing(&self) -> &[MissingFigure] {
        &self.missing
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the file with the recorded results of a figure.
    pub fn results_path(&self, figure: &FigureName) -> PathBuf {
        self.results_folder(figure).join(format!("{}.jsonl", figure.figure()))
    }

    /// Returns the recorded results of a figure, if there are any.
    ///
    /// # Errors
    /// [`ReproError`] for a file that cannot be read, and for one that has no results.
    pub fn recorded(&self, figure: &FigureName) -> Result<Option<Recorded>, ReproError> {
        let path = self.results_path(figure);
        match path.exists() {
            true => Recorded::parse(&path.display().to_string(), &read(&path)?).map(Some),
            false => Ok(None),
        }
    }

    /// Returns the file with the recorded sensitivity of a figure.
    pub fn sensitivity_path(&self, figure: &FigureName) -> PathBuf {
        self.results_folder(figure).join(format!("{}.vary.jsonl", figure.figure()))
    }

    /// Returns the recorded sensitivity of a figure, if there is one.
    ///
    /// # Errors
    /// [`ReproError`] for a file that cannot be read, and for one that has no sensitivity.
    pub fn sensitivity(&self, figure: &FigureName) -> Result<Option<Sensitivity>, ReproError> {
        let path = self.sensitivity_path(figure);
        match path.exists() {
            true => Sensitivity::parse(&path.display().to_string(), &read(&path)?).map(Some),
            false => Ok(None),
        }
    }

    /// Returns the folder of the recorded results and drawings of a paper's figures.
    pub fn results_folder(&self, figure: &FigureName) -> PathBuf {
        self.folder.join(figure.paper()).join("results")
    }

    /// Returns the chosen figures. Upper and lower case are equal in names, and a paper may have a name
    /// beside its key.
    ///
    /// # Errors
    /// [`ReproError::Unknown`] for a name that no figure and no paper has.
    pub fn select(&self, selection: &Selection) -> Result<Vec<&Figure>, ReproError> {
        let is_named = |name: &String, figure: &Figure| {
            let (paper, full) = (figure.name().paper(), figure.name().to_string());
            let (of, rest) = name.split_at(name.find(':').unwrap_or(name.len()));
            let other = PAPER_NAMES.iter().find(|(other, _)| of.eq_ignore_ascii_case(other));
            let name = other.map_or(name.clone(), |(_, key)| format!("{key}{rest}"));
            name == "all" || name.eq_ignore_ascii_case(paper) || name.eq_ignore_ascii_case(&full)
        };
        for name in &selection.names {
            if !self.figures.iter().any(|figure| is_named(name, figure)) {
                return Err(self.unknown(name));
            }
        }
        let is_chosen = |figure: &&Figure| {
            let names = &selection.names;
            (names.is_empty() || names.iter().any(|name| is_named(name, figure)))
                && selection.class.is_none_or(|class| class == figure.class())
                && selection.minutes_max.is_none_or(|most| figure.minutes() <= most)
        };
        Ok(self.figures.iter().filter(is_chosen).collect())
    }

    fn unknown(&self, name: &str) -> ReproError {
        let mut names: Vec<String> = self.figures.iter().map(|f| f.name().to_string()).collect();
        names.extend(self.figures.iter().map(|figure| figure.name().paper().to_owned()));
        let distance =
            |known: &String| strsim::levenshtein(&known.to_lowercase(), &name.to_lowercase());
        let nearest = names.iter().min_by_key(|known| distance(known));
        let hint = match nearest.filter(|known| distance(known) <= 3) {
            Some(known) => format!("; did you mean `{known}`?"),
            None => "; `sluice repro list` lists all".into(),
        };
        ReproError::Unknown { name: name.to_owned(), hint }
    }
}

/// Sorts `figure-10` behind `figure-9`.
fn natural(name: &FigureName) -> (String, Vec<(String, u64, String)>) {
    let mut parts = Vec::new();
    for part in name.figure().split('-') {
        let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        let (number, rest) = part.split_at(digits);
        // Parts that begin with a number are compared by it first.
        parts.push(match number.parse() {
            Ok(number) => (String::new(), number, rest.to_owned()),
            Err(_) => (rest.to_owned(), 0, String::new()),
        });
    }
    (name.paper().to_owned(), parts)
}

fn read(path: &Path) -> Result<String, ReproError> {
    let wrong = |source| ReproError::Io { path: path.to_path_buf(), source };
    std::fs::read_to_string(path).map_err(wrong)
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, ReproError> {
    let wrong = |source| ReproError::Io { path: folder.to_path_buf(), source };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(wrong)? {
        paths.push(entry.map_err(wrong)?.path());
    }
    paths.sort();
    Ok(paths)
}
