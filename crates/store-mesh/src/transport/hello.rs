//! The greeting that opens a connection: each end says who it is, and what it says has to be in its certificate.

use std::net::SocketAddr;
use std::time::Duration;

use quinn::{Connection, ConnectionError, VarInt};
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};

use super::{Complaint, Counters, Peer, Shared, lock};
use crate::certs::{Identity, IdentityError, node_of};

/// The connection is closed because the transport is.
pub(super) const GOODBYE: VarInt = VarInt::from_u32(0);
/// The other connection of the pair stays.
pub(super) const DUPLICATE: VarInt = VarInt::from_u32(1);
/// The peer was refused.
pub(super) const REFUSED: VarInt = VarInt::from_u32(2);
/// The peer has connected anew.
pub(super) const REPLACED: VarInt = VarInt::from_u32(3);

const PATIENCE: Duration = Duration::from_secs(3);
const MAX_HELLO: usize = 512;

/// What a replica says about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    node: String,
    incarnation: u64,
    address: SocketAddr,
    secret: u64,
}

/// Why a connection did not come about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// A certificate that is none of this cluster's authorities, seen from either end.
    Authority(String),
    /// A certificate that is for something else.
    Identity(String),
    /// Another cluster secret.
    Secret,
    /// A replica that cannot be: our own node id, or an incarnation that has a successor.
    Incarnation(String),
    /// The network, or another protocol.
    Failed(String),
}

impl Hello {
    pub(super) fn new(identity: &Identity, incarnation: u64, address: SocketAddr) -> Self {
        Self { node: identity.node().to_owned(), incarnation, address, secret: identity.fingerprint() }
    }

    pub(super) fn node(&self) -> &str {
        &self.node
    }

    pub(super) fn peer(&self) -> Peer {
        Peer { node: self.node.as_str().into(), incarnation: self.incarnation, address: self.address }
    }
}

/// Greets over a new connection and returns who is there. A peer that is not what it should be is sent away.
pub(super) async fn greet(shared: &Shared, connection: &Connection) -> Result<Peer, Refusal> {
    let met = tokio::time::timeout(PATIENCE, exchange(shared, connection)).await;
    let result = met.unwrap_or_else(|_| Err(Refusal::Failed("no greeting in time".to_owned())));
    let result = result.and_then(|hello| admit(shared, connection, &hello));
    if result.is_err() {
        connection.close(REFUSED, b"refused");
    }
    result
}

async fn exchange(shared: &Shared, connection: &Connection) -> Result<Hello, Refusal> {
    let broken = |error: String| connection.close_reason().map_or(Refusal::Failed(error), |reason| why(&reason));
    let say = async {
        let mut stream = connection.open_uni().await.map_err(|error| why(&error))?;
        let bytes = bincode::serde::encode_to_vec(&shared.hello, bincode::config::standard())
            .map_err(|error| Refusal::Failed(error.to_string()))?;
        stream.write_all(&bytes).await.map_err(|error| broken(error.to_string()))?;
        stream.finish().map_err(|error| broken(error.to_string()))
    };
    let hear = async {
        let mut stream = connection.accept_uni().await.map_err(|error| why(&error))?;
        let bytes = stream.read_to_end(MAX_HELLO).await.map_err(|error| broken(error.to_string()))?;
        let config = bincode::config::standard().with_limit::<{ 4 * MAX_HELLO }>();
        match bincode::serde::decode_from_slice::<Hello, _>(&bytes, config) {
            Ok((hello, consumed)) if consumed == bytes.len() => Ok(hello),
            _ => Err(Refusal::Failed("its greeting does not decode".to_owned())),
        }
    };
    tokio::try_join!(say, hear).map(|((), hello)| hello)
}

/// Whether the peer may be who it says that it is.
fn admit(shared: &Shared, connection: &Connection, hello: &Hello) -> Result<Peer, Refusal> {
    let chain =
        connection.peer_identity().and_then(|identity| identity.downcast::<Vec<CertificateDer<'static>>>().ok());
    let leaf = chain.as_ref().and_then(|chain| chain.first());
    let leaf = leaf.ok_or_else(|| Refusal::Authority("it showed no certificate".to_owned()))?;
    let cluster = lock(&shared.identity).cluster().to_owned();
    let proven = node_of(leaf, &cluster).map_err(|error: IdentityError| Refusal::Identity(error.to_string()))?;
    if proven != hello.node {
        let claimed: String = hello.node.chars().take(64).collect();
        return Err(Refusal::Identity(format!("it claims to be {claimed:?}, its certificate is for {proven:?}")));
    }
    if hello.secret != shared.hello.secret {
        return Err(Refusal::Secret);
    }
    if hello.node == shared.hello.node {
        let text = format!("it uses this replica's own node id {proven:?}: every replica needs one of its own");
        return Err(Refusal::Incarnation(text));
    }
    Ok(hello.peer())
}

/// What a broken connection says about the peer.
pub(super) fn why(error: &ConnectionError) -> Refusal {
    let code = match error {
        ConnectionError::TransportError(error) => u64::from(error.code),
        ConnectionError::ConnectionClosed(close) => u64::from(close.error_code),
        _ => return Refusal::Failed(error.to_string()),
    };
    // QUIC carries TLS alerts (RFC 8446, 6.2) as 0x100 + alert.
    match code.checked_sub(0x100) {
        // bad_certificate to unknown_ca, access_denied, decrypt_error, certificate_required.
        Some(42..=46 | 48 | 49 | 51 | 116) => Refusal::Authority(error.to_string()),
        // no_application_protocol.
        Some(120) => Refusal::Failed("it speaks another wire version".to_owned()),
        _ => Refusal::Failed(error.to_string()),
    }
}

/// Counts and logs a connection that did not come about.
pub(super) fn complain(shared: &Shared, address: SocketAddr, refusal: &Refusal) {
    static AUTHORITY: Complaint = Complaint::new();
    static IDENTITY: Complaint = Complaint::new();
    static SECRET: Complaint = Complaint::new();
    static INCARNATION: Complaint = Complaint::new();
    static FAILED: Complaint = Complaint::new();
    let own = shared.hello_node();
    let counters = &shared.counters;
    let (counter, complaint) = match refusal {
        Refusal::Authority(_) => (&counters.refused_authority, &AUTHORITY),
        Refusal::Identity(_) => (&counters.refused_identity, &IDENTITY),
        Refusal::Secret => (&counters.refused_secret, &SECRET),
        Refusal::Incarnation(_) => (&counters.refused_incarnation, &INCARNATION),
        Refusal::Failed(_) => (&counters.failed_connections, &FAILED),
    };
    Counters::add(counter, 1);
    let Some(suppressed) = complaint.due() else { return };
    match refusal {
        Refusal::Authority(error) => tracing::warn!(
            %address, node = %own, suppressed, error,
            "refused a peer: its certificate and ours are not of the same cluster's authorities",
        ),
        Refusal::Identity(error) => tracing::warn!(
            %address, node = %own, suppressed, error, "refused a peer: its certificate does not make it who it says that it is",
        ),
        Refusal::Secret => tracing::warn!(
            %address, node = %own, suppressed, "refused a peer: its cluster secret is another",
        ),
        Refusal::Incarnation(error) => {
            tracing::warn!(%address, node = %own, suppressed, error, "refused a peer");
        }
        Refusal::Failed(error) => {
            tracing::debug!(%address, node = %own, suppressed, error, "no connection to a peer");
        }
    }
}
