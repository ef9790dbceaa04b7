//! What Python's types and jinja2's filters do where minijinja has nothing, or something else. tests/text compares all
//! of it with jinja2.

mod arguments;
pub mod characters;
pub mod filters;
mod format;
pub mod generation;
pub mod globals;
pub mod json;
pub mod methods;
pub mod orders;
mod parts;
mod strings;
pub mod tests;
pub mod texts;
pub mod values;
