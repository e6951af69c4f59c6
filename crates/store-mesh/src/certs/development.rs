//! A certificate authority for development: a fleet's certificates in one call.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use ring::rand::{SecureRandom, SystemRandom};

use super::{Identity, IdentityError, IdentityPem};

/// A certificate authority that signs the identities of one cluster.
///
/// Meant for development, tests and fleets without a public key infrastructure of their own: its certificates do not
/// expire, so a lost key means a new authority. [`Authority::new`] draws a key and a cluster secret from the operating
/// system; [`to_pem`](Authority::to_pem) and [`from_pem`](Authority::from_pem) keep it over restarts.
pub struct Authority {
    cluster: String,
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
    secret: String,
}

/// The PEM texts of an [`Authority`]. Whoever has `key` can add replicas.
#[derive(Clone)]
#[non_exhaustive]
pub struct AuthorityPem {
    /// Its certificate: what every replica trusts.
    pub certificate: String,
    /// Its private key; replicas do not need it.
    pub key: String,
    /// The cluster's secret.
    pub secret: String,
}

/// The PEM texts of an identity: one file each, see [`IdentityFiles`](super::IdentityFiles).
#[derive(Clone)]
#[non_exhaustive]
pub struct IssuedPem {
    /// The node's certificate.
    pub certificate: String,
    /// The node's private key.
    pub key: String,
    /// The authority's certificate.
    pub authorities: String,
    /// The cluster's secret.
    pub secret: String,
}

/// Why a certificate was not issued. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IssueError {
    /// A name that is no DNS name.
    #[error("{name:?} cannot name a cluster or a node: use letters, digits, `-` and `.`, at most 63 between dots")]
    Name {
        /// The name given.
        name: String,
    },
    /// A node cannot be called as its cluster is.
    #[error("a node needs an id other than the cluster's name {name:?}")]
    SameName {
        /// The name given.
        name: String,
    },
    /// The operating system gave no randomness.
    #[error("the operating system gave no random bytes")]
    Random,
    /// The certificate could not be made or read.
    #[error("the certificate could not be made: {0}")]
    Certificate(#[from] rcgen::Error),
    /// What was made is no identity.
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

impl Authority {
    /// A new authority for the cluster called `cluster`, with a new secret.
    ///
    /// # Errors
    /// [`IssueError::Name`] when `cluster` is no DNS name.
    pub fn new(cluster: &str) -> Result<Self, IssueError> {
        let key = KeyPair::generate()?;
        let cluster = checked(cluster)?;
        let params = authority_parameters(&cluster)?;
        let certificate = params.self_signed(&key)?.pem();
        let mut secret = [0; 32];
        SystemRandom::new().fill(&mut secret).map_err(|_| IssueError::Random)?;
        let secret = secret.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
        Ok(Self { cluster, issuer: Issuer::new(params, key), certificate, secret })
    }

    /// The authority that [`to_pem`](Authority::to_pem) wrote.
    ///
    /// # Errors
    /// [`IssueError`] when a text is not what it should be.
    pub fn from_pem(cluster: &str, pem: &AuthorityPem) -> Result<Self, IssueError> {
        let cluster = checked(cluster)?;
        // What an authority signs names it as its certificate does: both follow from the cluster's name.
        let issuer = Issuer::new(authority_parameters(&cluster)?, KeyPair::from_pem(&pem.key)?);
        let (certificate, secret) = (pem.certificate.clone(), pem.secret.clone());
        Ok(Self { cluster, issuer, certificate, secret })
    }

    /// What to keep in order to issue more later.
    pub fn to_pem(&self) -> AuthorityPem {
        let key = self.issuer.key().serialize_pem();
        AuthorityPem { certificate: self.certificate.clone(), key, secret: self.secret.clone() }
    }

    /// An identity for the node `node`, ready to use.
    ///
    /// # Errors
    /// [`IssueError::Name`] when `node` is no DNS name.
    pub fn issue(&self, node: &str) -> Result<Identity, IssueError> {
        Ok(Identity::from_pem(&self.cluster, self.issue_pem(node)?.as_pem())?)
    }

    /// An identity for the node `node` as PEM texts.
    ///
    /// # Errors
    /// [`IssueError::Name`] when `node` is no DNS name.
    pub fn issue_pem(&self, node: &str) -> Result<IssuedPem, IssueError> {
        let node = checked(node)?;
        if node == self.cluster {
            return Err(IssueError::SameName { name: node });
        }
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(vec![node.clone(), self.cluster.clone()])?;
        params.distinguished_name.push(DnType::CommonName, node);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(IssuedPem {
            certificate,
            key: key.serialize_pem(),
            authorities: self.certificate.clone(),
            secret: self.secret.clone(),
        })
    }
}

impl IssuedPem {
    /// The texts as [`Identity::from_pem`] takes them.
    pub fn as_pem(&self) -> IdentityPem<'_> {
        IdentityPem {
            certificate: self.certificate.as_bytes(),
            key: self.key.as_bytes(),
            authorities: self.authorities.as_bytes(),
            secret: self.secret.as_bytes(),
        }
    }
}

fn authority_parameters(cluster: &str) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name.push(DnType::CommonName, format!("{cluster} mesh authority"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

/// `name` in lower case, if it is a DNS name.
fn checked(name: &str) -> Result<String, IssueError> {
    let label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    // An address would become another kind of name in the certificate.
    let address = name.parse::<std::net::IpAddr>().is_ok();
    if !address && name.len() <= 253 && name.split('.').all(label) {
        Ok(name.to_ascii_lowercase())
    } else {
        Err(IssueError::Name { name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_can_be_kept() {
        let first = Authority::new("fleet").unwrap();
        let again = Authority::from_pem("fleet", &first.to_pem()).unwrap();
        let (a, b) = (first.issue("a").unwrap(), again.issue("b").unwrap());
        assert_eq!(a.fingerprint(), b.fingerprint());
        assert_ne!(a.fingerprint(), Authority::new("fleet").unwrap().issue("a").unwrap().fingerprint());
    }

    #[test]
    fn names_are_dns_names() {
        let authority = Authority::new("fleet").unwrap();
        for name in ["", "a b", "-a", "a-", "a..b", "10.0.0.1", "\u{e9}", &"x".repeat(64)] {
            assert!(matches!(authority.issue(name), Err(IssueError::Name { .. })), "{name}");
        }
        assert!(matches!(authority.issue("Fleet"), Err(IssueError::SameName { .. })));
        assert_eq!(authority.issue("Pod-7.rack.example").unwrap().node(), "pod-7.rack.example");
    }
}
