//! Checks of documents and of the prose in comments.

pub mod citations;
pub mod links;
pub mod paths;
pub mod prose;
pub mod reachable;
