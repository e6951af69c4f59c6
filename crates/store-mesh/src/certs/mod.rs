//! Who a replica is: its certificate, its key, the authorities it trusts, the cluster's secret.

mod development;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ring::hmac;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tidegate_core::KeySecret;

pub use development::{Authority, IssueError};

/// The fewest bytes of a cluster secret.
pub const MIN_SECRET: usize = 16;

/// The identity of one replica.
///
/// A certificate of the mesh carries exactly two DNS names: the **cluster's name** and the **node's id**. The first makes
/// a certificate one of this mesh, so that an authority that also signs other things does not let those in; the
/// second binds it to one node: a peer that claims another id is refused. It needs the extended key usages server and
/// client authentication, since every replica is both.
///
/// The **secret** is the same in the whole cluster. Keys of buckets are hashed with it, so that nobody outside can
/// craft two keys that meet; replicas with another secret are refused.
///
/// ```
/// use tidegate_store_mesh::certs::Authority;
/// let authority = Authority::new("my-fleet")?;
/// let identity = authority.issue("node-1")?;
/// assert_eq!((identity.cluster(), identity.node()), ("my-fleet", "node-1"));
/// # Ok::<(), tidegate_store_mesh::certs::IssueError>(())
/// ```
#[derive(Clone)]
pub struct Identity {
    cluster: Arc<str>,
    node: Arc<str>,
    chain: Vec<CertificateDer<'static>>,
    key: Arc<PrivateKeyDer<'static>>,
    roots: Arc<RootCertStore>,
    secret: Arc<[u8]>,
}

/// The PEM texts that make an [`Identity`].
#[derive(Clone, Copy)]
pub struct IdentityPem<'a> {
    /// The certificate of this node, then those between it and an authority, if any.
    pub certificate: &'a [u8],
    /// Its private key: PKCS#8, PKCS#1 or SEC1.
    pub key: &'a [u8],
    /// The authorities whose certificates are trusted: at least one. Two during a change of authority.
    pub authorities: &'a [u8],
    /// The secret of the cluster: at least [`MIN_SECRET`] bytes, the same in every replica.
    pub secret: &'a [u8],
}

/// The files that make an [`Identity`]; what is in them is told at [`IdentityPem`].
#[derive(Clone, Debug)]
pub struct IdentityFiles {
    /// The certificate chain.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
    /// The trusted authorities.
    pub authorities: PathBuf,
    /// The cluster's secret; white space at its ends does not count.
    pub secret: PathBuf,
}

/// Why there is no identity. Nothing was changed; mend what is named and load again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A text is not the PEM it should be.
    #[error("the {what} is no PEM text: {reason}; expected a block that starts with {expected}")]
    Pem {
        /// Which of the texts.
        what: &'static str,
        /// What is wrong.
        reason: String,
        /// The line expected.
        expected: &'static str,
    },
    /// The certificate does not name this cluster.
    #[error(
        "the certificate names {names:?}, not the cluster {cluster:?}: issue it for the DNS names {cluster:?} and the node's id"
    )]
    OtherCluster {
        /// The cluster's name.
        cluster: String,
        /// The names of the certificate.
        names: Vec<String>,
    },
    /// The certificate names no node, or more than one.
    #[error("the certificate has to name the cluster and exactly one node, but names {names:?}")]
    Node {
        /// The names of the certificate.
        names: Vec<String>,
    },
    /// The certificate cannot be read.
    #[error("the certificate cannot be read: {reason}; issue an X.509 v3 certificate with DNS names")]
    Certificate {
        /// What is wrong.
        reason: String,
    },
    /// Certificate, key and authorities do not go together.
    #[error("certificate, key and authorities do not make a TLS identity: {0}")]
    Tls(#[from] rustls::Error),
    /// A short secret.
    #[error(
        "the cluster's secret has {length} bytes: at least {MIN_SECRET} are needed, for example from `openssl rand -hex 32`"
    )]
    ShortSecret {
        /// Its length.
        length: usize,
    },
}

impl Identity {
    /// Reads an identity of the cluster called `cluster` from PEM texts.
    ///
    /// # Errors
    /// [`IdentityError`] names the text and what was expected.
    pub fn from_pem(cluster: &str, pem: IdentityPem<'_>) -> Result<Self, IdentityError> {
        let chain = certificates("certificate", pem.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(pem.key).map_err(|error| IdentityError::Pem {
            what: "key",
            reason: error.to_string(),
            expected: "-----BEGIN PRIVATE KEY-----",
        })?;
        let mut roots = RootCertStore::empty();
        for authority in certificates("list of authorities", pem.authorities)? {
            roots.add(authority)?;
        }
        Self::new(cluster, chain, key, roots, pem.secret)
    }

    /// Reads an identity of the cluster called `cluster` from files. To be called again when they change; then see
    /// [`Transport::rotate`](crate::transport::Transport::rotate).
    ///
    /// # Errors
    /// [`IdentityError`] names the file or what is wrong in it.
    pub fn from_files(cluster: &str, files: &IdentityFiles) -> Result<Self, IdentityError> {
        let secret = read(&files.secret)?;
        Self::from_pem(
            cluster,
            IdentityPem {
                certificate: &read(&files.certificate)?,
                key: &read(&files.key)?,
                authorities: &read(&files.authorities)?,
                secret: secret.trim_ascii(),
            },
        )
    }

    fn new(
        cluster: &str,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        roots: RootCertStore,
        secret: &[u8],
    ) -> Result<Self, IdentityError> {
        if secret.len() < MIN_SECRET {
            return Err(IdentityError::ShortSecret { length: secret.len() });
        }
        let leaf = chain.first().expect("a list of certificates is never empty");
        let node = node_of(leaf, cluster)?;
        let identity = Self {
            cluster: cluster.into(),
            node: node.into(),
            chain,
            key: Arc::new(key),
            roots: Arc::new(roots),
            secret: secret.into(),
        };
        // Tells now, not at the first handshake, whether the key fits the certificate.
        crate::transport::check_identity(&identity)?;
        Ok(identity)
    }

    /// The cluster's name.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// This node's id: stable over restarts, unique in the cluster.
    pub fn node(&self) -> &str {
        &self.node
    }

    pub(crate) fn chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }

    pub(crate) fn key(&self) -> PrivateKeyDer<'static> {
        self.key.clone_key()
    }

    pub(crate) fn roots(&self) -> &Arc<RootCertStore> {
        &self.roots
    }

    /// The secret that buckets' keys are hashed with on the mesh.
    pub fn key_secret(&self) -> KeySecret {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&self.derive("bucket keys")[..16]);
        KeySecret::new(bytes)
    }

    /// Tells two secrets apart without giving them away.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.derive("fingerprint")[..8]);
        u64::from_le_bytes(bytes)
    }

    /// 32 bytes for `purpose`: HMAC-SHA-256 under the cluster's secret.
    pub(crate) fn derive(&self, purpose: &str) -> [u8; 32] {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.secret);
        let tag = hmac::sign(&key, format!("tidegate mesh 1 {purpose}").as_bytes());
        let mut bytes = [0; 32];
        bytes.copy_from_slice(tag.as_ref());
        bytes
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("cluster", &self.cluster).field("node", &self.node).finish_non_exhaustive()
    }
}

/// The node that a certificate of `cluster` is bound to: its one DNS name besides the cluster's.
pub(crate) fn node_of(leaf: &CertificateDer<'_>, cluster: &str) -> Result<String, IdentityError> {
    let parsed = webpki::EndEntityCert::try_from(leaf)
        .map_err(|error| IdentityError::Certificate { reason: error.to_string() })?;
    let names: Vec<&str> = parsed.valid_dns_names().collect();
    let owned = || names.iter().map(|&name| name.to_owned()).collect();
    let mut nodes = names.iter().filter(|name| !name.eq_ignore_ascii_case(cluster));
    match (nodes.next(), nodes.next()) {
        _ if !names.iter().any(|name| name.eq_ignore_ascii_case(cluster)) => {
            Err(IdentityError::OtherCluster { cluster: cluster.to_owned(), names: owned() })
        }
        (Some(node), None) => Ok(node.to_ascii_lowercase()),
        _ => Err(IdentityError::Node { names: owned() }),
    }
}

fn certificates(what: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let wrong = |reason| IdentityError::Pem { what, reason, expected: "-----BEGIN CERTIFICATE-----" };
    let list: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let list = list.map_err(|error| wrong(error.to_string()))?;
    if list.is_empty() { Err(wrong("it holds no certificate".to_owned())) } else { Ok(list) }
}

fn read(path: &Path) -> Result<Vec<u8>, IdentityError> {
    std::fs::read(path).map_err(|source| IdentityError::Read { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_goes_through_pem_and_back() {
        let authority = Authority::new("fleet").unwrap();
        let pem = authority.issue_pem("Node-1").unwrap();
        let identity = Identity::from_pem("fleet", pem.as_pem()).unwrap();
        assert_eq!((identity.cluster(), identity.node()), ("fleet", "node-1"));
        assert_eq!(identity.fingerprint(), authority.issue("node-2").unwrap().fingerprint());
        assert!(!format!("{identity:?}").contains("key"), "secrets do not show");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let authority = Authority::new("fleet").unwrap();
        let pem = authority.issue_pem("node-1").unwrap();
        let other = authority.issue_pem("node-2").unwrap();
        let load = |cluster: &str, change: &dyn Fn(&mut IdentityPem<'_>)| {
            let mut parts = pem.as_pem();
            change(&mut parts);
            Identity::from_pem(cluster, parts).unwrap_err()
        };
        assert!(matches!(load("other", &|_| ()), IdentityError::OtherCluster { .. }));
        assert!(matches!(load("fleet", &|p| p.secret = b"short"), IdentityError::ShortSecret { length: 5 }));
        assert!(matches!(load("fleet", &|p| p.key = b"junk"), IdentityError::Pem { what: "key", .. }));
        assert!(matches!(load("fleet", &|p| p.certificate = b""), IdentityError::Pem { what: "certificate", .. }));
        assert!(matches!(load("fleet", &|p| p.authorities = b""), IdentityError::Pem { .. }));
        let key = other.key.as_bytes().to_vec();
        let mut parts = pem.as_pem();
        parts.key = &key;
        assert!(matches!(Identity::from_pem("fleet", parts), Err(IdentityError::Tls(_))), "another node's key");
    }
}
