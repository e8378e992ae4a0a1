//! [`NamespaceSubcommand`]: arguments of `sluice admin namespace`.

use clap::Subcommand;
use share_proto::{NamespaceAction, ResourceName};

/// `sluice admin namespace …`.
#[derive(Debug, Subcommand)]
pub enum NamespaceSubcommand {
    /// Print the namespaces of a drive: identifier, size, capacity, mapped bytes, attachment, block
    /// size and NGUID.
    List {
        /// The drive.
        #[arg(value_parser = crate::commands::admin::name)]
        name: ResourceName,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Create a namespace, and print its identifier. It is not attached.
    Create {
        /// The drive.
        #[arg(value_parser = crate::commands::admin::name)]
        name: ResourceName,
        /// Size such as `4G`, rounded up to whole blocks, or `rest` for the unallocated capacity.
        #[arg(value_parser = parse_size)]
        size: NamespaceAction,
    },
    /// Delete a namespace with its contents.
    Delete {
        /// The drive.
        #[arg(value_parser = crate::commands::admin::name)]
        name: ResourceName,
        /// Identifier of the namespace, or `all`.
        #[arg(value_parser = parse_deleted)]
        nsid: NamespaceAction,
    },
    /// Attach a namespace, so that hosts can address it.
    Attach {
        /// The drive.
        #[arg(value_parser = crate::commands::admin::name)]
        name: ResourceName,
        /// Identifier of the namespace.
        nsid: u32,
    },
    /// Detach a namespace. Its contents stay.
    Detach {
        /// The drive.
        #[arg(value_parser = crate::commands::admin::name)]
        name: ResourceName,
        /// Identifier of the namespace.
        nsid: u32,
    },
}

/// Parses the size of a new namespace.
fn parse_size(text: &str) -> Result<NamespaceAction, String> {
    let bytes = match text {
        "rest" => None,
        _ => match scenario::units::size(text) {
            // All ones stand for the unallocated capacity.
            Some(bytes) if bytes < u64::MAX => Some(bytes),
            _ => return Err("expected a size such as `4G`, or `rest`".to_owned()),
        },
    };
    Ok(NamespaceAction::Create { bytes })
}

/// Parses the namespace that is deleted.
fn parse_deleted(text: &str) -> Result<NamespaceAction, String> {
    match (text, text.parse()) {
        ("all", _) => Ok(NamespaceAction::Delete(None)),
        (_, Ok(nsid)) if nsid < u32::MAX => Ok(NamespaceAction::Delete(Some(nsid))),
        _ => Err("expected the identifier of a namespace, or `all`".to_owned()),
    }
}
