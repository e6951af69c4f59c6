//! How messages become bytes and back. Bytes from the network are data: their length and the number of their rows are
//! bounded before anything is decoded, everything has to be consumed, and nothing in them can cause a panic.
//!
//! A frame is one byte of version, four bytes (little endian) that say how many rows follow, and the message in bincode 2 (standard
//! configuration: little endian, variable-length integers). The bytes of a released version stay decodable; another
//! layout is another version, and another name in the TLS handshake ([`ALPN`]).

use bincode::config::{Configuration, Limit, LittleEndian, Varint};
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The version of the frames that this build writes and reads.
pub const WIRE_VERSION: u8 = 1;

/// The protocol's name in the TLS handshake: replicas of another wire version do not connect.
pub const ALPN: &[u8] = b"tidegate-mesh/1";

/// The longest message: 4 MiB, some 100,000 rows. What has more to say says it in the next message.
pub const MAX_MESSAGE: usize = 4 << 20;

/// The most rows of a message.
pub const MAX_ROWS: usize = 200_000;

const HEADER: usize = 5;
const CONFIGURATION: Configuration<LittleEndian, Varint, Limit<MAX_MESSAGE>> =
    bincode::config::standard().with_limit::<MAX_MESSAGE>();

/// A message that travels in frames.
pub trait Payload: Serialize + DeserializeOwned {
    /// The fewest bytes that a row takes: what makes an announced number of rows plausible.
    const MIN_ROW: usize;

    /// How many rows the message has.
    fn rows(&self) -> usize;
}

/// Bytes that are no message. They are dropped and counted; the state is unchanged and the peer stays connected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// Longer than [`MAX_MESSAGE`].
    #[error("a message of {length} bytes is longer than {MAX_MESSAGE}")]
    TooLong {
        /// Its length.
        length: usize,
    },
    /// Too short for a header.
    #[error("a message of {length} bytes is cut off")]
    TooShort {
        /// Its length.
        length: usize,
    },
    /// Of a version that this build does not read: the peer runs another release.
    #[error("a message of wire version {version}, this build reads {WIRE_VERSION}")]
    Version {
        /// The version found.
        version: u8,
    },
    /// More rows than bytes could hold, or than allowed, or than there are.
    #[error("a message that announces {rows} rows")]
    Rows {
        /// The number announced.
        rows: usize,
    },
    /// Not the encoding of a message.
    #[error("a message that does not decode: {0}")]
    Malformed(String),
    /// Something follows the message.
    #[error("{extra} bytes after the end of a message")]
    Trailing {
        /// How many.
        extra: usize,
    },
}

/// The frame of `message`.
///
/// # Errors
/// [`WireError::TooLong`] or [`WireError::Rows`] when the message is beyond the bounds: send it in parts.
pub fn encode<P: Payload>(message: &P) -> Result<Bytes, WireError> {
    let rows = message.rows();
    let announced = u32::try_from(rows).ok().filter(|_| rows <= MAX_ROWS).ok_or(WireError::Rows { rows })?;
    let mut frame = Vec::with_capacity(HEADER + 64 + rows * P::MIN_ROW * 2);
    frame.push(WIRE_VERSION);
    frame.extend_from_slice(&announced.to_le_bytes());
    bincode::serde::encode_into_std_write(message, &mut frame, CONFIGURATION)
        .map_err(|error| WireError::Malformed(error.to_string()))?;
    if frame.len() > MAX_MESSAGE { Err(WireError::TooLong { length: frame.len() }) } else { Ok(frame.into()) }
}

/// The message in `frame`.
///
/// # Errors
/// [`WireError`] when the bytes are no message of this version.
pub fn decode<P: Payload>(frame: &[u8]) -> Result<P, WireError> {
    if frame.len() > MAX_MESSAGE {
        return Err(WireError::TooLong { length: frame.len() });
    }
    let Some((&[version, a, b, c, d], body)) = frame.split_first_chunk::<HEADER>() else {
        return Err(WireError::TooShort { length: frame.len() });
    };
    if version != WIRE_VERSION {
        return Err(WireError::Version { version });
    }
    let rows = usize::try_from(u32::from_le_bytes([a, b, c, d])).unwrap_or(usize::MAX);
    if rows > MAX_ROWS || rows > body.len() / P::MIN_ROW.max(1) {
        return Err(WireError::Rows { rows });
    }
    let (message, consumed): (P, usize) = bincode::serde::decode_from_slice(body, CONFIGURATION)
        .map_err(|error| WireError::Malformed(error.to_string()))?;
    if consumed != body.len() {
        return Err(WireError::Trailing { extra: body.len() - consumed });
    }
    if message.rows() == rows { Ok(message) } else { Err(WireError::Rows { rows }) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::Deserialize;

    use super::*;

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Sample {
        number: u64,
        rows: Vec<(u128, Vec<(u32, u64)>)>,
    }

    impl Payload for Sample {
        const MIN_ROW: usize = 2;
        fn rows(&self) -> usize {
            self.rows.len()
        }
    }

    fn sample() -> Sample {
        Sample { number: 300, rows: vec![(7, vec![(1, 2), (3, 70_000)]), (u128::MAX, vec![])] }
    }

    #[test]
    fn the_bytes_stay_the_same() {
        let golden =
            [&[1, 2, 0, 0, 0, 251, 44, 1, 2, 7, 2, 1, 2, 3, 252, 112, 17, 1, 0, 254][..], &[255; 16][..], &[0][..]]
                .concat();
        assert_eq!(encode(&sample()).unwrap(), golden);
        assert_eq!(decode::<Sample>(&golden).unwrap(), sample());
    }

    #[test]
    fn each_bound_holds() {
        let frame = encode(&sample()).unwrap().to_vec();
        let broken = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = frame.clone();
            change(&mut bytes);
            decode::<Sample>(&bytes).unwrap_err()
        };
        assert_eq!(broken(&|b| b[0] = 2), WireError::Version { version: 2 });
        assert_eq!(broken(&|b| b[4] = 255), WireError::Rows { rows: 2 + (255 << 24) });
        assert_eq!(broken(&|b| b[1] = 3), WireError::Rows { rows: 3 });
        assert_eq!(broken(&|b| b.push(0)), WireError::Trailing { extra: 1 });
        assert_eq!(broken(&|b| b.truncate(3)), WireError::TooShort { length: 3 });
        assert!(matches!(broken(&|b| b.truncate(9)), WireError::Malformed(_)));
        assert!(matches!(decode::<Sample>(&vec![1; MAX_MESSAGE + 1]), Err(WireError::TooLong { .. })));
        let many = Sample { number: 0, rows: vec![(0, vec![]); MAX_ROWS + 1] };
        assert!(matches!(encode(&many), Err(WireError::Rows { .. })));
    }

    #[test]
    fn a_list_that_claims_more_than_it_has_takes_no_memory() {
        // Version, one row, the number, then a list that claims 2^62 rows.
        let mut frame = vec![1, 1, 0, 0, 0, 0, 253];
        frame.extend_from_slice(&(1_u64 << 62).to_le_bytes());
        assert!(matches!(decode::<Sample>(&frame), Err(WireError::Malformed(_))));
    }

    proptest! {
        #[test]
        fn what_is_encoded_decodes(number: u64, rows: Vec<(u128, Vec<(u32, u64)>)>) {
            let message = Sample { number, rows };
            prop_assert_eq!(decode::<Sample>(&encode(&message).unwrap()).unwrap(), message);
        }

        #[test]
        fn random_bytes_never_panic(bytes: Vec<u8>) {
            let _ = decode::<Sample>(&bytes);
            let _ = decode::<Sample>(&[&[1, 1, 0, 0, 0][..], &bytes].concat());
        }

        #[test]
        fn mutated_and_truncated_messages_never_panic(place: prop::sample::Index, value: u8, cut: prop::sample::Index) {
            let mut bytes = encode(&sample()).unwrap().to_vec();
            let at = place.index(bytes.len());
            bytes[at] = value;
            let _ = decode::<Sample>(&bytes);
            let length = cut.index(bytes.len());
            let frame = encode(&sample()).unwrap();
            prop_assert!(decode::<Sample>(&frame[..length]).is_err(), "a cut message never passes for a whole one");
        }
    }
}
