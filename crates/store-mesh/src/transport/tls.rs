//! The TLS and QUIC settings of an identity.

use std::sync::Arc;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{IdleTimeout, VarInt};
use rustls::crypto::CryptoProvider;
use rustls::server::WebPkiClientVerifier;

use super::TransportConfig;
use crate::certs::{Identity, IdentityError};
use crate::wire::{ALPN, MAX_MESSAGE};

/// Streams that a peer may have open towards us.
const STREAMS: u32 = 16;
/// Datagrams that wait for the network or for us: the oldest goes first when they are more.
const DATAGRAM_BYTES: usize = 1 << 20;

/// Whether `identity` can be used for TLS.
pub(crate) fn check_identity(identity: &Identity) -> Result<(), IdentityError> {
    rustls_configurations(identity).map(|_| ())
}

/// The configurations for accepting and for dialling.
pub(super) fn configurations(
    identity: &Identity,
    config: &TransportConfig,
) -> Result<(quinn::ServerConfig, quinn::ClientConfig), IdentityError> {
    let (server, client) = rustls_configurations(identity)?;
    let transport = Arc::new(transport_configuration(config));
    let no_suite = |_| rustls::Error::General("no cipher suite for QUIC".to_owned());
    let server = QuicServerConfig::try_from(server).map_err(no_suite)?;
    let client = QuicClientConfig::try_from(client).map_err(no_suite)?;
    let mut server = quinn::ServerConfig::with_crypto(Arc::new(server));
    // Peers have fixed addresses, and queues are kept by address.
    server.migration(false).transport_config(Arc::clone(&transport)).max_incoming(256);
    let mut client = quinn::ClientConfig::new(Arc::new(client));
    client.transport_config(transport);
    Ok((server, client))
}

/// The keys of stateless resets and of connection ids survive a restart, so that a peer notices it within a round trip instead of
/// the idle timeout.
pub(super) fn endpoint_configuration(identity: &Identity) -> quinn::EndpointConfig {
    let node = identity.node();
    let reset = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &identity.derive(&format!("stateless reset {node}")));
    let mut id_key = [0; 8];
    id_key.copy_from_slice(&identity.derive(&format!("connection ids {node}"))[..8]);
    let id_key = u64::from_le_bytes(id_key);
    let mut config = quinn::EndpointConfig::new(Arc::new(reset));
    config.cid_generator(move || Box::new(quinn_proto::HashedConnectionIdGenerator::from_key(id_key)));
    config
}

fn rustls_configurations(identity: &Identity) -> Result<(rustls::ServerConfig, rustls::ClientConfig), IdentityError> {
    // Given explicitly: a library must not depend on, or set, the process's default provider.
    let provider: Arc<CryptoProvider> = Arc::new(rustls::crypto::ring::default_provider());
    let versions = &[&rustls::version::TLS13];
    let roots = identity.roots();
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(roots), Arc::clone(&provider))
        .build()
        .map_err(|error| rustls::Error::General(error.to_string()))?;
    let mut server = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(identity.chain().to_vec(), identity.key())?;
    server.alpn_protocols = vec![ALPN.to_vec()];
    // No early data: it could be replayed, and a connection that lives for days gains nothing by it.
    server.max_early_data_size = 0;
    let mut client = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)?
        .with_root_certificates(Arc::clone(roots))
        .with_client_auth_cert(identity.chain().to_vec(), identity.key())?;
    client.alpn_protocols = vec![ALPN.to_vec()];
    client.enable_early_data = false;
    // No resumption: each connection proves the identities afresh.
    client.resumption = rustls::client::Resumption::disabled();
    server.send_tls13_tickets = 0;
    Ok((server, client))
}

fn transport_configuration(config: &TransportConfig) -> quinn::TransportConfig {
    let window = VarInt::from_u32(u32::try_from(2 * MAX_MESSAGE).unwrap_or(u32::MAX));
    let mut transport = quinn::TransportConfig::default();
    transport
        .keep_alive_interval(Some(config.keep_alive))
        // Fails only for spans of millions of years, which then never end.
        .max_idle_timeout(IdleTimeout::try_from(config.idle_timeout).ok())
        .max_concurrent_uni_streams(VarInt::from_u32(STREAMS))
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .stream_receive_window(window)
        .receive_window(window)
        .datagram_receive_buffer_size(Some(DATAGRAM_BYTES))
        .datagram_send_buffer_size(DATAGRAM_BYTES)
        .enable_segmentation_offload(config.segmentation_offload);
    transport
}
