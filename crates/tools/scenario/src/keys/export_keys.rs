//! `[[export]]`: where `sluice serve` serves a path, over NBD or as queue pairs at a socket.

use std::path::{Path, PathBuf};

use nbd::Endpoint;

use crate::choice::Impossible;
use crate::error::ProblemKind;
use crate::section::{Result, Section, Value};
use crate::{Beneath, PathSpec, Scenario, ShareSpec};

/// Maximum bytes of an export's name, as of a path's.
const NAME_BYTES_MAX: usize = 32;

/// Where clients reach an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExportAddress {
    /// An NBD server, where clients select the export by its name.
    Nbd {
        /// The endpoint.
        endpoint: Endpoint,
        /// Name of the export.
        name: String,
        /// Whether writes are refused.
        read_only: bool,
    },
    /// A socket at which clients get queue pairs of the path's drive.
    Socket(PathBuf),
}

/// Settings of `sluice serve`: `[[partition]]` and `[[export]]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServeSpec {
    /// Partitions of the drives for users.
    pub shares: Vec<ShareSpec>,
    /// Where the paths are served, if the scenario says so.
    pub exports: Vec<ExportSpec>,
}

/// A path, and where `sluice serve` serves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportSpec {
    /// Name of the path.
    pub path: String,
    /// Where clients reach it.
    pub address: ExportAddress,
}

impl ExportAddress {
    /// Returns the file of a Unix socket; `None` for a TCP port.
    fn file(&self) -> Option<&Path> {
        match self {
            ExportAddress::Nbd { endpoint: Endpoint::Unix(file), .. } => Some(file),
            ExportAddress::Nbd { .. } => None,
            ExportAddress::Socket(file) => Some(file),
        }
    }
}

/// Reads `[[export]]` of a scenario whose paths and earlier sections have been read.
pub(crate) struct ExportReader<'a> {
    pub(crate) scenario: &'a Scenario,
}

impl ExportReader<'_> {
    /// Reads a section. `paths` are those of the scenario.
    pub(crate) fn read(&self, mut s: Section<'_>, paths: &[PathSpec]) -> Result<ExportSpec> {
        let place = s.source_span();
        let at_path = s.get("path");
        let path = self.read_export_path(&s, at_path.as_ref(), paths)?;
        let (name, read_only) = (s.get("name"), s.get("read_only"));
        let address = match (s.get("nbd"), s.get("socket")) {
            (Some(nbd), None) => {
                self.check_export_blocks(path, at_path.as_ref().unwrap_or(&nbd))?;
                let export_name = match &name {
                    Some(value) => read_export_name(value)?,
                    None => path.name.clone(),
                };
                let read_only = read_only.as_ref().map_or(Ok(false), Value::boolean)?;
                let endpoint = self.read_endpoint(&nbd)?;
                let address = ExportAddress::Nbd { endpoint, name: export_name, read_only };
                self.check_address(path, &address, &nbd, name.as_ref().or(at_path.as_ref()))?;
                address
            }
            (None, Some(socket)) => {
                for (key, value) in [("name", &name), ("read_only", &read_only)] {
                    if let Some(value) = value {
                        let message = format!("`{key}` is about NBD, and this export is a socket");
                        let help = "remove it: [[partition]] names the parts of a drive and says who \
                                    may write";
                        return Err(value.conflict(message, help));
                    }
                }
                self.check_queue_pairs(path, at_path.as_ref().unwrap_or(&socket))?;
                let address = ExportAddress::Socket(self.read_file(&socket)?);
                self.check_address(path, &address, &socket, at_path.as_ref())?;
                address
            }
            (Some(_), Some(socket)) => {
                let message = "an export is at one address, and this one has `nbd` and `socket`";
                return Err(socket.conflict(message, "give each a section of its own"));
            }
            (None, None) => {
                return Err(place.error(ProblemKind::Conflict {
                    message: format!("the export of path {} has no address", path.name),
                    help: "add nbd = \"unix:FILE\" or \"tcp:HOST:PORT\", or socket = \"FILE\""
                        .into(),
                }));
            }
        };
        s.finish()?;
        Ok(ExportSpec { path: path.name.clone(), address })
    }

    fn read_export_path<'p>(
        &self,
        s: &Section<'_>,
        value: Option<&Value<'_>>,
        paths: &'p [PathSpec],
    ) -> Result<&'p PathSpec> {
        let names = || paths.iter().map(|path| path.name.as_str()).collect::<Vec<_>>();
        match (value, paths) {
            (Some(value), _) => {
                let word = value.string()?;
                let found = paths.iter().find(|path| path.name == word);
                found.ok_or_else(|| value.refuse_name(&names()))
            }
            (None, [only]) => Ok(only),
            (None, _) => {
                Err(s.missing("path", format!("there are several: {}", names().join(", "))))
            }
        }
    }

    /// Checks that NBD finds logical blocks on every device of a path.
    fn check_export_blocks(&self, path: &PathSpec, value: &Value<'_>) -> Result<()> {
        for member in self.scenario.members(path.over) {
            self.scenario.check_blocks_at(member, value, NBD)?;
        }
        Ok(())
    }

    /// Checks that a path has queue pairs of its own drive to give to clients.
    fn check_queue_pairs(&self, path: &PathSpec, value: &Value<'_>) -> Result<()> {
        if path.config.namespace.is_some_and(|nsid| nsid != 1) {
            let message = "clients of a socket have partitions of the drive's namespace 1";
            return Err(value.conflict(message, "serve other namespaces by `nbd`"));
        }
        let between = match path.over {
            Beneath::Set(_) => Some(format!("set {}", self.scenario.device_name(path.over))),
            Beneath::Target(_) => Some(format!("target {}", self.scenario.device_name(path.over))),
            Beneath::Drive(i) if self.scenario.drives[i].target != crate::HostTarget::None => {
                Some(self.scenario.drives[i].target.label().to_owned())
            }
            Beneath::Drive(_) if path.config.log.is_some() => Some("a log".into()),
            Beneath::Drive(_) => path.config.block_layer.as_ref().map(|_| "a block layer".into()),
        };
        match between {
            Some(between) => {
                let path = path.name.clone();
                Err(value.source_span().error(Impossible::NoQueuePairs { path, between }.into()))
            }
            None => Ok(()),
        }
    }

    fn read_endpoint(&self, value: &Value<'_>) -> Result<Endpoint> {
        match value.string()?.parse() {
            Ok(Endpoint::Unix(_)) => {
                let file = value.string()?.trim_start_matches("unix:");
                self.socket_file(file).map(Endpoint::Unix).ok_or_else(|| value.refuse(SOCKET_FILE))
            }
            Ok(endpoint) => Ok(endpoint),
            Err(_) => Err(value.refuse(
                "unix:FILE with at most 107 bytes of path, or tcp:HOST:PORT as in \
                 tcp:127.0.0.1:10809",
            )),
        }
    }

    fn read_file(&self, value: &Value<'_>) -> Result<PathBuf> {
        self.socket_file(value.string()?).ok_or_else(|| value.refuse(SOCKET_FILE))
    }

    /// Returns the file of a socket, relative to the scenario's folder; `None` if a socket address
    /// cannot hold it.
    fn socket_file(&self, file: &str) -> Option<PathBuf> {
        let whole =
            self.scenario.file.parent().map_or_else(|| file.into(), |folder| folder.join(file));
        let is_valid =
            !file.is_empty() && format!("unix:{}", whole.display()).parse::<Endpoint>().is_ok();
        is_valid.then_some(whole)
    }

    /// Checks an address against those of earlier sections. `at_name` is where the export's name
    /// comes from.
    fn check_address(
        &self,
        path: &PathSpec,
        address: &ExportAddress,
        at_address: &Value<'_>,
        at_name: Option<&Value<'_>>,
    ) -> Result<()> {
        for other in &self.scenario.serving.exports {
            match (&other.address, address) {
                (
                    ExportAddress::Nbd { endpoint: taken, name: of_other, read_only: was },
                    ExportAddress::Nbd { endpoint, name, read_only },
                ) => {
                    if taken == endpoint && of_other == name {
                        let message = format!("two exports at {endpoint} are named \"{name}\"");
                        let help = "give each a `name` of its own: clients select one by it";
                        return Err(at_name.unwrap_or(at_address).conflict(message, help));
                    }
                    if other.path == path.name && (of_other, was) != (name, read_only) {
                        let message = format!(
                            "path {} is exported as \"{of_other}\" already, and a path has one name \
                             and one mode at all of its addresses",
                            path.name
                        );
                        let help = "make `name` and `read_only` equal, or give the export a path of \
                                    its own";
                        return Err(at_name.unwrap_or(at_address).conflict(message, help));
                    }
                }
                (ExportAddress::Socket(taken), ExportAddress::Socket(file)) => {
                    let drive = |name: &str| {
                        self.scenario.paths().into_iter().find(|p| p.name == name).map(|p| p.over)
                    };
                    if drive(&other.path) == Some(path.over) {
                        let message = if taken == file && other.path == path.name {
                            format!("path {} is exported at {} twice", path.name, file.display())
                        } else {
                            format!(
                                "the drive of path {} is shared at {} already",
                                path.name,
                                taken.display()
                            )
                        };
                        let help = "remove one: the clients of a socket share a drive by its \
                                    [[partition]] sections";
                        return Err(at_address.conflict(message, help));
                    }
                }
                (other, address) if other.file().is_some() && other.file() == address.file() => {
                    let file = address.file().map(Path::display);
                    let message = format!(
                        "an NBD server and a socket of queue pairs cannot both listen at {}",
                        file.map(|f| f.to_string()).unwrap_or_default()
                    );
                    return Err(at_address.conflict(message, "give each a file of its own"));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The allowed files of sockets.
const SOCKET_FILE: &str = "the path of a socket, with the scenario's folder 1 to 107 bytes";

/// The name of the NBD server in [`Impossible::NoLogicalBlocks`].
const NBD: &str = "an NBD export";

fn read_export_name(value: &Value<'_>) -> Result<String> {
    let name = value.printable()?;
    if name.len() > NAME_BYTES_MAX {
        return Err(value.refuse(format!("names of 1 to {NAME_BYTES_MAX} bytes")));
    }
    Ok(name.to_owned())
}
