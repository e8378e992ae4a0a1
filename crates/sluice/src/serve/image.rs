//! Whether a drive is new. A drive with an image is preconditioned once, when the image is made: later
//! its contents are somebody's data. So that an interrupted preconditioning is not taken for data,
//! a file beside the image marks it until it is through.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use media::{DataStore, MediaConfig};

use crate::scenario::DrivePlan;

/// Ending of the mark.
const ENDING: &str = ".preconditioning";

fn store(plan: &DrivePlan) -> &DataStore {
    match &plan.config.media {
        MediaConfig::Nand(nand) => &nand.data,
        MediaConfig::Pcm(pcm) => &pcm.data,
        MediaConfig::Null { .. } => &DataStore::None,
    }
}

/// Whether what is written to a drive can be read again.
pub fn keeps_data(plan: &DrivePlan) -> bool {
    *store(plan) != DataStore::None
}

/// The image of a drive that has one.
pub fn image(plan: &DrivePlan) -> Option<&Path> {
    match store(plan) {
        DataStore::File(path) => Some(path),
        DataStore::Memory | DataStore::None => None,
    }
}

fn mark(image: &Path) -> PathBuf {
    let mut path = OsString::from(image);
    path.push(ENDING);
    path.into()
}

/// Whether nothing of the drive is worth keeping. To be asked before the drive is powered on, which
/// makes its image.
pub(super) fn is_fresh(plan: &DrivePlan) -> bool {
    image(plan).is_none_or(|image| !image.exists() || mark(image).exists())
}

/// Says that a drive is being preconditioned.
#[derive(Debug)]
pub(super) struct Mark {
    path: Option<PathBuf>,
}

impl Mark {
    /// Sets the mark, if the drive has an image.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn set(plan: &DrivePlan) -> io::Result<Mark> {
        let path = image(plan).map(mark);
        if let Some(path) = &path {
            std::fs::write(path, "This image was being preconditioned, and is not finished.\n")?;
        }
        Ok(Mark { path })
    }

    /// Takes the mark away: the drive is as it is to be.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn remove(self) -> io::Result<()> {
        self.path.map_or(Ok(()), std::fs::remove_file)
    }
}
