//! Checks whether the host's file system under a drive's image is full. The drive then fails writes
//! although the emulated media is intact.

use std::path::Path;

use scenario::DriveSpec;
use scenario::format::bytes_binary;
use stack::image;

/// Free space below which writes to an image may fail. File systems keep a reserve, and images grow
/// by pages at many offsets.
const FREE_BYTES_MIN: u64 = 16 << 20;

/// Returns a message with the remedy if the host's file system under the image of a drive is full;
/// `None` if it has space, or if there is no image.
pub(super) fn disk_full_message(plan: &DriveSpec) -> Option<String> {
    let image = image(plan)?;
    message_if_full(image, free_bytes(image)?)
}

/// Returns the number of bytes by which a file can still grow.
fn free_bytes(file: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(file).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

fn message_if_full(image: &Path, left: u64) -> Option<String> {
    let (image, left_text) = (image.display(), bytes_binary(left));
    (left < FREE_BYTES_MIN).then(|| {
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
    fn only_a_file_system_without_space_is_full() {
        let image = Path::new("a/drive.img");
        assert_eq!(message_if_full(image, FREE_BYTES_MIN), None);
        let said = message_if_full(image, 4096).unwrap();
        assert!(said.contains("a/drive.img is full (4 KiB left)"), "{said}");
        assert!(
            free_bytes(Path::new("/")).is_some()
                && free_bytes(Path::new("/nowhere/at/all")).is_none()
        );
    }
}
