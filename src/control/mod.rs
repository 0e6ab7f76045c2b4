//! Layer: control.
mod file_match;
mod file_schema;
pub mod files;
