//! Whether a drive is new. A drive with an image is preconditioned once, when the image is made: later
//! its contents are somebody's data. So that an interrupted preconditioning is not taken for data,
//! a file beside the image marks it until it is through.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use media::{DataStore, MediaConfig};

use crate::scenario::DriveSpec;

/// Ending of the mark.
const MARKER_SUFFIX: &str = ".preconditioning";

fn store(plan: &DriveSpec) -> &DataStore {
    match &plan.config.media {
        MediaConfig::Nand(nand) => &nand.data,
        MediaConfig::Pcm(pcm) => &pcm.data,
        MediaConfig::Null { .. } => &DataStore::None,
    }
}

/// Whether what is written to a drive can be read again.
pub fn stores_data(plan: &DriveSpec) -> bool {
    *store(plan) != DataStore::None
}

/// The image of a drive that has one.
pub fn image(plan: &DriveSpec) -> Option<&Path> {
    match store(plan) {
        DataStore::File(path) | DataStore::Overlay(path) => Some(path),
        DataStore::Memory | DataStore::None => None,
    }
}

fn marker_path(image: &Path) -> PathBuf {
    let mut path = OsString::from(image);
    path.push(MARKER_SUFFIX);
    path.into()
}

/// The drive with an overlay in place of its image: it starts from what the image holds, and nothing of
/// the image or of the files beside it ever changes. An image whose preconditioning was interrupted
/// holds nothing.
pub fn with_overlay(plan: &DriveSpec) -> DriveSpec {
    let mut plan = plan.clone();
    let unfinished = image(&plan).is_some_and(|image| marker_path(image).exists());
    let data = match &mut plan.config.media {
        MediaConfig::Nand(nand) => &mut nand.data,
        MediaConfig::Pcm(pcm) => &mut pcm.data,
        MediaConfig::Null { .. } => return plan,
    };
    if let DataStore::File(path) = data {
        *data = if unfinished { DataStore::Memory } else { DataStore::Overlay(path.clone()) };
    }
    plan
}

/// Whether nothing of the drive is worth keeping. To be asked before the drive is powered on, which
/// makes its image.
pub(crate) fn is_fresh(plan: &DriveSpec) -> bool {
    let is_empty = |image: &Path| image.metadata().is_ok_and(|file| file.len() == 0);
    image(plan)
        .is_none_or(|image| !image.exists() || is_empty(image) || marker_path(image).exists())
}

/// Says that a drive is being preconditioned.
#[derive(Debug)]
pub(crate) struct PreconditionMarker {
    path: Option<PathBuf>,
}

impl PreconditionMarker {
    /// Sets the mark, if the drive has an image.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn set(plan: &DriveSpec) -> io::Result<PreconditionMarker> {
        let path = image(plan).map(marker_path);
        if let Some(path) = &path {
            std::fs::write(path, "This image was being preconditioned, and is not finished.\n")?;
        }
        Ok(PreconditionMarker { path })
    }

    /// Takes the mark away: the drive is as it is to be.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn remove(self) -> io::Result<()> {
        self.path.map_or(Ok(()), std::fs::remove_file)
    }
}
