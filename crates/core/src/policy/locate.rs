//! Finds the line and column of a field in the text of a policy.

use toml::de::{DeTable, DeValue};

/// How a policy is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Toml,
    #[cfg(feature = "yaml")]
    Yaml,
    Json,
}

/// Line and column, from 1, of the field at `path`, or of the nearest of its parents that is there.
pub(super) fn locate(text: &str, format: Format, path: &[&str]) -> Option<(usize, usize)> {
    let offset = match format {
        Format::Toml => locate_toml(text, path),
        #[cfg(feature = "yaml")]
        Format::Yaml => locate_words(text, path),
        Format::Json => locate_words(text, path),
    };
    offset.map(|offset| position(text, offset))
}

/// The path of the innermost field of a TOML text whose value holds the byte `offset`.
pub(super) fn path_at(text: &str, offset: usize) -> Vec<String> {
    let mut path = Vec::new();
    let Ok(root) = DeTable::parse(text) else { return path };
    let mut table = root.into_inner();
    loop {
        // A table's span is its header; so the innermost match is the last one that starts at or before the offset.
        let entry = table.into_iter().rfind(|(key, value)| key.span().start <= offset && covers(value, offset));
        let Some((key, value)) = entry else { return path };
        path.push(key.get_ref().to_string());
        match value.into_inner() {
            DeValue::Table(inner) => table = inner,
            _ => return path,
        }
    }
}

/// Line and column, from 1, of a byte offset.
pub(super) fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = &text[..char_boundary(text, offset)];
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |last| last.chars().count()) + 1;
    (line, column)
}

/// The start of the character that `offset` lies in.
fn char_boundary(text: &str, offset: usize) -> usize {
    (0..=offset.min(text.len())).rev().find(|offset| text.is_char_boundary(*offset)).unwrap_or(0)
}

fn covers(value: &toml::Spanned<DeValue<'_>>, offset: usize) -> bool {
    match value.get_ref() {
        DeValue::Table(table) => {
            value.span().contains(&offset)
                || table.iter().any(|(key, value)| key.span().contains(&offset) || covers(value, offset))
        }
        _ => value.span().contains(&offset),
    }
}

fn locate_toml(text: &str, path: &[&str]) -> Option<usize> {
    let root = DeTable::parse(text).ok()?;
    let mut table = root.get_ref();
    let mut found = None;
    for name in path {
        let Some((key, value)) = table.iter().find(|(key, _)| key.get_ref() == name) else { break };
        found = Some(key.span().start);
        match value.get_ref() {
            DeValue::Table(inner) => table = inner,
            _ => break,
        }
    }
    found
}

/// In YAML and JSON the fields of a path follow one another as words.
fn locate_words(text: &str, path: &[&str]) -> Option<usize> {
    let is_word = |character: char| character.is_alphanumeric() || character == '_' || character == '-';
    let mut found = None;
    let mut from = 0;
    for name in path {
        let next = text[from..].match_indices(name).map(|(index, _)| from + index).find(|start| {
            let rest = &text[start + name.len()..];
            let after_key = rest.trim_start_matches(['"', '\'']).trim_start();
            !text[..*start].ends_with(is_word) && !rest.starts_with(is_word) && after_key.starts_with(':')
        });
        let Some(start) = next else { break };
        found = Some(start);
        from = start + name.len();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locates_in_toml_and_json() {
        let toml = "[limits.a]\ncapacity = 1\n[limits.b]\n  capacity = 2\n";
        assert_eq!(locate(toml, Format::Toml, &["limits", "b", "capacity"]), Some((4, 3)));
        assert_eq!(locate(toml, Format::Toml, &["limits", "b", "refill"]), Some((3, 9)));
        let json = "{\"limits\": {\n \"a\": {\"capacity\": 1},\n \"b\": {\"capacity\": 2}}}";
        assert_eq!(locate(json, Format::Json, &["limits", "b", "capacity"]), Some((3, 9)));
    }

    #[test]
    fn names_the_field_at_an_offset() {
        let toml = "[limits.a]\ncapacity = 1\n[limits.b]\ncapacity = -2\n";
        assert_eq!(path_at(toml, toml.find("-2").unwrap()), ["limits", "b", "capacity"]);
    }
}
