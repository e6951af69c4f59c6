//! Which errors mean that Redis is away, and which mean that somebody has to act.

use redis::{ErrorKind, RedisError, ServerErrorKind};
use tidegate_core::StoreError;

/// Sorts an error of the client: an outage that passes, or a refusal that stays until an operator acts.
pub(crate) fn classify(error: &RedisError) -> StoreError {
    let text = error.to_string();
    match error.kind() {
        ErrorKind::Io
        | ErrorKind::ClusterConnectionNotFound
        | ErrorKind::MasterNameNotFoundBySentinel
        | ErrorKind::NoValidReplicasFoundBySentinel
        | ErrorKind::Server(
            ServerErrorKind::BusyLoading
            | ServerErrorKind::MasterDown
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::TryAgain
            | ServerErrorKind::Moved
            | ServerErrorKind::Ask,
        ) => StoreError::Unavailable(text),
        // Without a password Redis cuts off calls with many arguments before it says what is missing.
        _ if text.contains("unauthenticated") => StoreError::Refused(format!("NOAUTH no password was given: {text}")),
        _ if error.code() == Some("BUSY") => StoreError::Unavailable(text),
        _ => StoreError::Refused(text),
    }
}

/// Whether the connection it came over is of no use any more.
pub(crate) fn is_broken(error: &RedisError) -> bool {
    error.is_connection_dropped() || error.is_unrecoverable_error()
}

/// Whether the server does not know the script.
pub(crate) fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}
