//! Parsing of users and groups.
//!
//! Names are looked up in `/etc/passwd` and `/etc/group` only. Other sources of names need the C
//! library; such users must be given by id.

use std::path::Path;

use share_proto::Principal;

/// Allowed forms of a user, for messages.
pub const ALLOWED: &str =
    "a user's name or number, uid:NUMBER, gid:NUMBER, @GROUP (as primary group), or anyone";

/// Parses a user or group.
///
/// # Errors
/// The allowed forms.
pub fn subject(text: &str) -> Result<Principal, String> {
    let number = |digits: &str| digits.parse::<u32>().ok();
    let unknown = |what: &str, file: &str| format!("{ALLOWED}; there is no {what} in {file}");
    if text == "anyone" {
        return Ok(Principal::Anyone);
    }
    if let Some(digits) = text.strip_prefix("uid:") {
        return number(digits).map(Principal::Uid).ok_or_else(|| ALLOWED.into());
    }
    if let Some(digits) = text.strip_prefix("gid:") {
        return number(digits).map(Principal::Gid).ok_or_else(|| ALLOWED.into());
    }
    if let Some(group) = text.strip_prefix('@') {
        let file = "/etc/group";
        let found = lookup_id(Path::new(file), group).map(Principal::Gid);
        return found.ok_or_else(|| unknown(&format!("group `{group}`"), file));
    }
    if let Some(uid) = number(text) {
        return Ok(Principal::Uid(uid));
    }
    let file = "/etc/passwd";
    let found = lookup_id(Path::new(file), text).map(Principal::Uid);
    found.ok_or_else(|| unknown(&format!("user `{text}`"), file))
}

/// Returns the id of a name: the third field of its line (`passwd(5)`, `group(5)`).
fn lookup_id(file: &Path, name: &str) -> Option<u32> {
    let text = std::fs::read_to_string(file).ok()?;
    let number = |line: &str| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten()
    };
    text.lines().find_map(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_names_and_numbers() {
        for (text, expected) in [
            ("0", Principal::Uid(0)),
            ("uid:7", Principal::Uid(7)),
            ("gid:7", Principal::Gid(7)),
            ("anyone", Principal::Anyone),
            ("root", Principal::Uid(0)),
            ("@root", Principal::Gid(0)),
        ] {
            assert_eq!(subject(text), Ok(expected));
        }
        for text in ["", "uid:", "uid:-1", "gid:x", "@", "no such user", "4294967296"] {
            assert!(subject(text).unwrap_err().contains(ALLOWED), "{text}");
        }
    }
}
