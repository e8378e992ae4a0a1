//! Whether the host's file system under a drive's image is full: then the drive fails writes, which is no
//! fault of the drive's.

use std::path::Path;

use super::image::image;
use crate::scenario::DrivePlan;
use crate::text::bytes_binary;

/// What is left when writes to an image may fail: file systems keep a reserve, and images grow by pages
/// at many places.
const LEFT_BYTES: u64 = 16 << 20;

/// Says that the host's file system under the image of a drive is full, and what to do; `None` if there
/// is room, or no image.
pub(super) fn full(plan: &DrivePlan) -> Option<String> {
    let image = image(plan)?;
    says(image, left(image)?)
}

/// Bytes that a file can still grow by.
fn left(file: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(file).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

fn says(image: &Path, left: u64) -> Option<String> {
    let (image, left_text) = (image.display(), bytes_binary(left));
    (left < LEFT_BYTES).then(|| {
        format!(
            "the host's file system under the image {image} is full ({left_text} left), and writes to the \
             drive fail: free some space there"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_file_system_without_room_is_full() {
        let image = Path::new("a/drive.img");
        assert_eq!(says(image, LEFT_BYTES), None);
        let said = says(image, 4096).unwrap();
        assert!(said.contains("a/drive.img is full (4 KiB left)"), "{said}");
        assert!(left(Path::new("/")).is_some() && left(Path::new("/nowhere/at/all")).is_none());
    }
}
