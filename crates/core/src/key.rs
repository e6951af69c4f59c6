//! Keys: what a bucket is for, as a keyed hash for memory stores and as text for Redis.

use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher13};
use smallvec::SmallVec;

use crate::Limit;

/// One limit that applies to one request: whose bucket, and how much of it.
///
/// What the limiter hands to a store. `values` are those of the limit's key fields, in the limit's order.
#[derive(Clone, Debug)]
pub struct Rule<'a> {
    /// The limit, with the figures of the caller's tier.
    pub limit: &'a Limit,
    /// The values of the limit's key fields; `None` is the bucket shared by all that lack the field.
    pub values: SmallVec<[Option<&'a str>; 4]>,
    /// Units asked for; 0 only looks.
    pub cost: u64,
}

/// A secret that keys are hashed with: random per process locally, the cluster's on the mesh.
#[derive(Clone, Copy)]
pub struct KeySecret {
    low: u64,
    high: u64,
}

impl KeySecret {
    /// A secret of given bytes; the same bytes give the same hashes on every platform.
    pub fn new(bytes: [u8; 16]) -> Self {
        let word = u128::from_le_bytes(bytes);
        #[expect(clippy::cast_possible_truncation, reason = "splits the word in two")]
        Self { low: word as u64, high: (word >> 64) as u64 }
    }

    /// A secret that nobody outside this process can know, from the operating system's randomness.
    pub fn random() -> Self {
        use std::hash::{BuildHasher, RandomState};
        // The standard library seeds every RandomState from the system; hashing nothing yields the seed's digest.
        let word = || RandomState::new().hash_one(0_u8);
        Self { low: word(), high: word() }
    }
}

impl std::fmt::Debug for KeySecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeySecret")
    }
}

impl Rule<'_> {
    /// The bucket's key: SipHash-1-3-128 under `secret` of the limit's shape and the length-prefixed values, so that
    /// no identity can be crafted to meet another's bucket. Allocates nothing.
    pub fn key_hash(&self, secret: KeySecret) -> u128 {
        let mut hasher = SipHasher13::new_with_keys(secret.low, secret.high);
        hasher.write_u64(self.limit.shape());
        for value in &self.values {
            match value {
                Some(text) => {
                    hasher.write_u64(text.len() as u64);
                    hasher.write(text.as_bytes());
                }
                None => hasher.write_u64(u64::MAX),
            }
        }
        hasher.finish128().as_u128()
    }

    /// The bucket's key as text: `<limit>:{<identity>}[:<route>]`, separators in values escaped with `%`.
    ///
    /// The braces are Redis' hash tag: all limits of one identity share a slot. Fields of the identity are joined by
    /// `|`; a missing one is `~`.
    pub fn key_text(&self) -> String {
        let mut text = String::with_capacity(64);
        escape(self.limit.name().as_str(), &mut text);
        text.push_str(":{");
        let mut route = None;
        let mut first = true;
        for (field, value) in self.limit.key().iter().zip(&self.values) {
            if &**field == "route" {
                route = Some(value);
                continue;
            }
            if !std::mem::take(&mut first) {
                text.push('|');
            }
            escape_or_missing(*value, &mut text);
        }
        text.push('}');
        if let Some(value) = route {
            text.push(':');
            escape_or_missing(*value, &mut text);
        }
        text
    }
}

fn escape_or_missing(value: Option<&str>, text: &mut String) {
    match value {
        Some(value) => escape(value, text),
        None => text.push('~'),
    }
}

/// Appends `value` with everything that a key gives a meaning to written as `%XX`.
fn escape(value: &str, text: &mut String) {
    use std::fmt::Write;
    for character in value.chars() {
        if matches!(character, ':' | '{' | '}' | '|' | '%' | '~') || character.is_control() || character == ' ' {
            let mut bytes = [0; 4];
            for byte in character.encode_utf8(&mut bytes).bytes() {
                // Writing to a String cannot fail.
                let _ = write!(text, "%{byte:02X}");
            }
        } else {
            text.push(character);
        }
    }
}
