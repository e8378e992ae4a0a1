//! Output of an outcome: JSON, the report's variants, and notes on results.

pub(crate) mod faults;
pub(crate) mod json;
pub(crate) mod json_schema;
pub(crate) mod json_text;
pub(crate) mod parameters;
pub(crate) mod report_variant;
pub(crate) mod result_notes;
pub(crate) mod rules;
