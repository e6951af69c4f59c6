//! Where a policy came from, so that a problem can be shown in its place.

use super::error::{Code, Problem};
use super::locate::{Format, locate, path_at, position};
use super::spec::PolicySpec;

/// The text of a policy, or none where it was built in code.
pub(super) struct Source {
    pub(super) file: String,
    pub(super) text: Option<(String, Format)>,
}

impl Source {
    /// Reads the text, field by field.
    pub(super) fn parse(&self) -> Result<PolicySpec, Box<Problem>> {
        let Some((text, format)) = &self.text else { return Ok(PolicySpec::default()) };
        match format {
            Format::Toml => toml::from_str(text).map_err(|error| {
                let offset = error.span().map(|span| span.start);
                let path = offset.map(|offset| path_at(text, offset)).unwrap_or_default();
                self.syntax(path.join("."), offset.map(|offset| position(text, offset)), error.message())
            }),
            Format::Json => serde_json::from_str(text).map_err(|error| {
                let message = error.to_string();
                let message = message.split(" at line ").next().unwrap_or(&message);
                self.syntax(String::new(), Some((error.line(), error.column())), message)
            }),
            #[cfg(feature = "yaml")]
            Format::Yaml => serde_saphyr::from_str(text).map_err(|error| {
                let location = error.location();
                let at = location
                    .map(|at| (usize::try_from(at.line()).unwrap_or(0), usize::try_from(at.column()).unwrap_or(0)));
                let message = error.to_string();
                self.syntax(String::new(), at, message.lines().next().unwrap_or(&message))
            }),
        }
    }

    /// A problem with the field at `path`.
    pub(super) fn problem(&self, code: Code, path: &[&str], message: String, remedy: &str) -> Problem {
        let position = self.text.as_ref().and_then(|(text, format)| locate(text, *format, path));
        Problem {
            code,
            file: self.file.clone(),
            position,
            field: path.join("."),
            value: None,
            message,
            remedy: remedy.to_owned(),
        }
    }

    fn syntax(&self, field: String, position: Option<(usize, usize)>, message: &str) -> Box<Problem> {
        // What was expected is part of serde's message.
        let message = message.trim().replace('\n', ", ");
        Box::new(Problem {
            code: Code::Syntax,
            file: self.file.clone(),
            position,
            field,
            value: None,
            message,
            remedy: String::new(),
        })
    }
}
