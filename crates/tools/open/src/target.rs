//! [`Target`]: a device to open, and its text form.

// guarantee: A-01, C-14

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use driver::pci::{PciAddress, PciDriver};
use scenario::units;

use super::TargetOpenError;

/// A device to open.
///
/// | text | device |
/// |---|---|
/// | `null`, `null:SIZE` | acknowledges all requests and stores no data; its size is 1 TiB or `SIZE` |
/// | `scenario.toml`, `scenario.toml#NAME` | a drive of a scenario, or a path, if it names paths; `NAME` selects one of several |
/// | `sluice:///run/x.sock`, `…#PARTITION` | a drive that another process serves |
/// | `vfio:0000:01:00.0`, `…#2` | an NVMe controller that is bound to vfio-pci: its first namespace, or the one with this id |
/// | `uio:0000:01:00.0?unsafe=1`, `…?unsafe=1#2` | a controller without an IOMMU, bound to uio_pci_generic. It can access all memory of the machine; `unsafe=1` confirms this |
/// | `/dev/ng0n1` | a namespace of a controller that the kernel drives, by NVMe passthrough commands |
/// | `file.img`, `/dev/nvme0n1`, `./null` | any other path: a file or block device of the host |
///
/// `Display` prints the text form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The null device.
    Null {
        /// Size in bytes, a multiple of 512; `None` for the default.
        bytes: Option<u64>,
    },
    /// A drive or path of a scenario, in this process.
    Scenario {
        /// Path of the scenario.
        file: PathBuf,
        /// Name of the drive or path, if given.
        drive: Option<String>,
    },
    /// A drive of another process.
    Remote {
        /// Absolute path of the socket.
        socket: PathBuf,
        /// Name of the partition, if given.
        partition: Option<String>,
    },
    /// An NVMe controller of this machine.
    Controller {
        /// PCI address.
        address: PciAddress,
        /// Id of the namespace, if given.
        nsid: Option<u32>,
        /// Kernel driver that gives this process access to the controller.
        by: PciDriver,
    },
    /// A file or block device of the host, or the character device of a namespace.
    File(PathBuf),
}

/// Prefix of a controller behind an IOMMU.
const VFIO_PREFIX: &str = "vfio:";
/// Prefix of a controller without an IOMMU, and the option that confirms it.
const UIO_PREFIX: &str = "uio:";
const UNSAFE_OPTION: &str = "unsafe=1";
/// Prefix of a served drive.
const REMOTE_PREFIX: &str = "sluice://";
/// Sector size of the null device in bytes.
const NULL_SECTOR: u64 = 512;

/// Splits `text` at the last `#`; returns the part before it, and the fragment after it if there is
/// one.
fn fragment(text: &str) -> (&str, Option<&str>) {
    text.rsplit_once('#').map_or((text, None), |(before, name)| (before, Some(name)))
}

fn is_scenario(path: &str) -> bool {
    path.len() > 5 && path.is_char_boundary(path.len() - 5) && {
        path[path.len() - 5..].eq_ignore_ascii_case(".toml")
    }
}

impl FromStr for Target {
    type Err = TargetOpenError;

    fn from_str(text: &str) -> Result<Target, TargetOpenError> {
        let wrong = |why: &'static str| TargetOpenError::Syntax { what: text.to_owned(), why };
        let named = |name: Option<&str>| match name {
            Some("") => Err(wrong("a name follows `#`, or there is no `#`")),
            name => Ok(name.map(str::to_owned)),
        };
        if text.is_empty() || text.contains('\0') {
            return Err(wrong("that names nothing"));
        }
        if text == "null" {
            return Ok(Target::Null { bytes: None });
        }
        if let Some(size) = text.strip_prefix("null:") {
            let bytes = units::size(size).filter(|b| *b > 0 && b.is_multiple_of(NULL_SECTOR));
            let why = "the size of the null device is in whole sectors of 512 bytes: \"null:64G\"";
            return Ok(Target::Null { bytes: Some(bytes.ok_or_else(|| wrong(why))?) });
        }
        let controller = |rest: &str, by| {
            let (place, namespace) = fragment(rest);
            let (address, options) = match place.split_once('?') {
                Some((address, options)) => (address, Some(options)),
                None => (place, None),
            };
            let address = address.parse().map_err(|_| {
                wrong("a controller is named by its PCI address: \"vfio:0000:01:00.0\"")
            })?;
            match (by, options) {
                (PciDriver::VfioPci, None) | (PciDriver::UioPciGeneric, Some(UNSAFE_OPTION)) => {}
                (PciDriver::VfioPci, Some(_)) => {
                    return Err(wrong("a controller behind an IOMMU has no options after `?`"));
                }
                (PciDriver::UioPciGeneric, _) => {
                    return Err(wrong(
                        "without an IOMMU a controller can access all memory of the machine: to permit \
                         that, write \"uio:0000:01:00.0?unsafe=1\"",
                    ));
                }
            }
            let number = |text: &str| text.parse().ok().filter(|n| (1..u32::MAX).contains(n));
            let why = "a namespace is a number from 1 on: \"vfio:0000:01:00.0#1\"";
            let nsid = namespace.map(|n| number(n).ok_or_else(|| wrong(why))).transpose()?;
            Ok(Target::Controller { address, nsid, by })
        };
        if let Some(rest) = text.strip_prefix(VFIO_PREFIX) {
            return controller(rest, PciDriver::VfioPci);
        }
        if let Some(rest) = text.strip_prefix(UIO_PREFIX) {
            return controller(rest, PciDriver::UioPciGeneric);
        }
        if let Some(rest) = text.strip_prefix(REMOTE_PREFIX) {
            let (socket, partition) = fragment(rest);
            if !socket.starts_with('/') || socket.ends_with('/') {
                return Err(wrong(
                    "a served drive is named by the absolute path of its socket: \
                                  \"sluice:///run/x.sock\"",
                ));
            }
            return Ok(Target::Remote { socket: socket.into(), partition: named(partition)? });
        }
        if text.contains("://") {
            return Err(wrong("of addresses with `://` only \"sluice:///…\" is known"));
        }
        if is_scenario(text) {
            return Ok(Target::Scenario { file: text.into(), drive: None });
        }
        match fragment(text) {
            (file, name @ Some(_)) if is_scenario(file) => {
                Ok(Target::Scenario { file: file.into(), drive: named(name)? })
            }
            _ => Ok(Target::File(text.into())),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (place, name) = match self {
            Target::Null { bytes: None } => return f.write_str("null"),
            Target::Null { bytes: Some(bytes) } => return write!(f, "null:{bytes}"),
            Target::File(path) => return write!(f, "{}", path.display()),
            Target::Controller { address, nsid, by } => {
                let place = match by {
                    PciDriver::VfioPci => format!("{VFIO_PREFIX}{address}"),
                    PciDriver::UioPciGeneric => format!("{UIO_PREFIX}{address}?{UNSAFE_OPTION}"),
                };
                (place, &nsid.map(|n| n.to_string()))
            }
            Target::Scenario { file, drive } => (file.display().to_string(), drive),
            Target::Remote { socket, partition } => {
                (format!("{REMOTE_PREFIX}{}", socket.display()), partition)
            }
        };
        match name {
            Some(name) => write!(f, "{place}#{name}"),
            None => f.write_str(&place),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_understood_and_said_again() {
        let scenario = |file: &str, drive: Option<&str>| Target::Scenario {
            file: file.into(),
            drive: drive.map(str::to_owned),
        };
        let served = |partition: Option<&str>| Target::Remote {
            socket: "/run/x.sock".into(),
            partition: partition.map(str::to_owned),
        };
        let controller =
            |nsid, by| Target::Controller { address: "0000:01:00.0".parse().unwrap(), nsid, by };
        let (vfio, uio) = (PciDriver::VfioPci, PciDriver::UioPciGeneric);
        for (words, target) in [
            ("null", Target::Null { bytes: None }),
            ("null:512", Target::Null { bytes: Some(512) }),
            ("a.toml", scenario("a.toml", None)),
            ("dir.d/a.TOML", scenario("dir.d/a.TOML", None)),
            ("a.toml#fast", scenario("a.toml", Some("fast"))),
            ("a#b.toml", scenario("a#b.toml", None)),
            ("a#b.toml#c", scenario("a#b.toml", Some("c"))),
            ("sluice:///run/x.sock", served(None)),
            ("sluice:///run/x.sock#log", served(Some("log"))),
            ("vfio:0000:01:00.0", controller(None, vfio)),
            ("vfio:0000:01:00.0#2", controller(Some(2), vfio)),
            ("uio:0000:01:00.0?unsafe=1", controller(None, uio)),
            ("uio:0000:01:00.0?unsafe=1#2", controller(Some(2), uio)),
            ("file.img", Target::File("file.img".into())),
            ("file.img#1", Target::File("file.img#1".into())),
            ("/dev/loop0", Target::File("/dev/loop0".into())),
            ("/dev/ng0n1", Target::File("/dev/ng0n1".into())),
            ("./null", Target::File("./null".into())),
            (".toml", Target::File(".toml".into())),
            ("tomlé", Target::File("tomlé".into())),
        ] {
            let parsed: Target = words.parse().unwrap();
            assert_eq!(parsed, target, "{words}");
            assert_eq!(parsed.to_string(), words);
        }
        let large: Target = "null:64G".parse().unwrap();
        assert_eq!(large, Target::Null { bytes: Some(64 << 30) });
    }

    #[test]
    fn what_is_wrong_is_said_with_what_is_allowed() {
        for (words, says) in [
            ("", "names nothing"),
            ("a\0b", "names nothing"),
            ("null:", "null:64G"),
            ("null:0", "null:64G"),
            ("null:511", "null:64G"),
            ("null:many", "null:64G"),
            ("a.toml#", "follows `#`"),
            ("sluice://", "absolute path"),
            ("sluice://host/x.sock", "absolute path"),
            ("sluice:///run/", "absolute path"),
            ("sluice:///run/x.sock#", "follows `#`"),
            ("nbd://localhost/x", "only \"sluice:///"),
            ("vfio:", "PCI address"),
            ("vfio:0000:01:00", "PCI address"),
            ("vfio:0000:01:00.0#", "from 1 on"),
            ("vfio:0000:01:00.0#0", "from 1 on"),
            ("vfio:0000:01:00.0#4294967295", "from 1 on"),
            ("vfio:0000:01:00.0?unsafe=1", "no options"),
            ("uio:", "PCI address"),
            ("uio:0000:01:00.0", "all memory of the machine"),
            ("uio:0000:01:00.0#1", "uio:0000:01:00.0?unsafe=1"),
            ("uio:0000:01:00.0?unsafe=0", "uio:0000:01:00.0?unsafe=1"),
            ("uio:0000:01:00.0?unsafe=1&x=2", "uio:0000:01:00.0?unsafe=1"),
            ("uio:0000:01:00.0?", "uio:0000:01:00.0?unsafe=1"),
            ("uio:0000:01:00.0#1?unsafe=1", "all memory of the machine"),
            ("uio:0000:01:00.0?unsafe=1#0", "from 1 on"),
        ] {
            let error = words.parse::<Target>().unwrap_err();
            assert!(error.is_usage(), "{words}");
            let said = error.to_string();
            assert!(said.contains(says), "{words}: {said}");
            assert!(said.contains("scenario.toml") && said.contains("null"), "{words}: {said}");
        }
    }
}
