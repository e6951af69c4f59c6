//! The one script: a line that reads the server's clock, and the body that decides.

/// The shipped first line: time is the server's, and only the server's.
pub(crate) const PRELUDE: &str = include_str!("lua/prelude.lua");
const BODY: &str = include_str!("lua/body.lua");

/// A script and its digest.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    text: String,
    digest: String,
}

impl Script {
    /// The body behind `prelude`, which has to define `now` in microseconds since the epoch.
    pub(crate) fn new(prelude: &str) -> Self {
        let text = format!("{prelude}{BODY}");
        let digest = redis::Script::new(&text).get_hash().to_owned();
        Self { text, digest }
    }

    /// The whole text, for EVAL.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// What EVALSHA calls it.
    pub(crate) fn digest(&self) -> &str {
        &self.digest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_prelude_reads_the_servers_clock() {
        assert_eq!(PRELUDE, "local t = redis.call('TIME') local now = t[1] * 1000000 + t[2]\n");
        assert!(Script::new(PRELUDE).text().starts_with(PRELUDE));
        assert!(!BODY.contains("TIME"), "the body must not read a clock of its own");
    }
}
