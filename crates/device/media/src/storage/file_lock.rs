//! Identifies the process that holds the lock of a file, for error messages.

use std::fs::File;
use std::os::unix::fs::MetadataExt;

/// Maximum length of the reported command line in characters.
const COMMAND_CHARS_MAX: usize = 120;

/// Returns the process that holds the `flock(2)` lock of the file, and its command line, as
/// `/proc/locks` reports them (`proc_locks(5)`). Returns `None` if it reports none, as for
/// processes of other containers.
pub fn lock_holder(file: &File) -> Option<String> {
    let meta = file.metadata().ok()?;
    let (major, minor) = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
    let id = format!("{major:02x}:{minor:02x}:{}", meta.ino());
    let process = find_lock_pid(&std::fs::read_to_string("/proc/locks").ok()?, &id)?;
    let command = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let command = printable(&command);
    let command = if command.is_empty() { command } else { format!(" (`{command}`)") };
    Some(match process == std::process::id() {
        true => "another drive of this process".into(),
        false => format!("process {process}{command}"),
    })
}

/// Returns the process of the first lock on a file; -1 means that the process cannot be named.
fn find_lock_pid(locks: &str, id: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip_while(|field| *field != "FLOCK");
        let (process, file) = (fields.nth(3)?, fields.next()?);
        (file == id).then(|| process.parse().ok()).flatten()
    })
}

/// Converts a command line of zero-terminated words to text without control characters.
fn printable(command: &[u8]) -> String {
    let words = String::from_utf8_lossy(command.trim_ascii_end()).replace('\0', " ");
    let visible = words.trim().chars().map(|c| if c.is_control() { '?' } else { c });
    visible.take(COMMAND_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_a_lock_is_found() {
        let locks = "1: POSIX  ADVISORY  WRITE 7 08:01:42 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 1234 08:01:42 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 99 08:01:43 0 EOF\n\
                     3: FLOCK  ADVISORY  READ -1 00:1c:5 0 EOF\nnonsense\n";
        assert_eq!(find_lock_pid(locks, "08:01:42"), Some(1234));
        assert_eq!(find_lock_pid(locks, "08:01:43"), Some(99));
        assert_eq!(
            (find_lock_pid(locks, "00:1c:5"), find_lock_pid(locks, "08:01:4")),
            (None, None)
        );
        assert_eq!(printable(b"sluice\0serve\0a\nb.toml\0"), "sluice serve a?b.toml");
        assert_eq!(printable(&[b'x'; 500]).len(), COMMAND_CHARS_MAX);
        assert_eq!(printable(b""), "");
    }
}
