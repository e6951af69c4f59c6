//! The address of the client: the socket's peer, or what trusted proxies say.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv6Addr};

use http::request::Parts;

use crate::Extract;

/// Reads the socket's peer from a request: the server puts it into the extensions, each in its own type.
type Peer = dyn Fn(&Parts) -> Option<IpAddr> + Send + Sync;

/// The client's address, as text. IPv4-mapped IPv6 is IPv4; IPv6 is cut to a prefix (default /64), since a client owns that many.
///
/// With trusted proxies, all lines of `X-Forwarded-For` are joined and walked from the right, past trusted hops, to the
/// first that is not trusted. An entry that does not parse leaves the request without an address: it is never skipped.
///
/// ```
/// use std::net::SocketAddr;
/// use tidegate_http::{ClientIp, Extract};
/// let client = ClientIp::new(|parts| parts.extensions.get::<SocketAddr>().map(SocketAddr::ip));
/// let (mut parts, ()) = http::Request::get("/").header("x-forwarded-for", "9.9.9.9").body(()).unwrap().into_parts();
/// parts.extensions.insert(SocketAddr::from(([1, 2, 3, 4], 80)));
/// assert_eq!(client.extract(&parts).as_deref(), Some("1.2.3.4"), "the peer is no trusted proxy");
/// ```
pub struct ClientIp {
    peer: Box<Peer>,
    trusted: TrustedProxies,
    ipv6_prefix: u32,
}

impl ClientIp {
    /// The address that `peer` finds: with axum that of `ConnectInfo<SocketAddr>`.
    pub fn new(peer: impl Fn(&Parts) -> Option<IpAddr> + Send + Sync + 'static) -> Self {
        Self { peer: Box::new(peer), trusted: TrustedProxies::default(), ipv6_prefix: 64 }
    }

    /// Believes what these proxies say in `X-Forwarded-For`.
    #[must_use]
    pub fn trusted_proxies(mut self, trusted: TrustedProxies) -> Self {
        self.trusted = trusted;
        self
    }

    /// How many bits of an IPv6 address tell clients apart: default 64, at most 128.
    #[must_use]
    pub fn ipv6_prefix(mut self, bits: u32) -> Self {
        self.ipv6_prefix = bits.min(128);
        self
    }

    fn address(&self, parts: &Parts) -> Option<IpAddr> {
        let peer = (self.peer)(parts)?.to_canonical();
        if !self.trusted.contains(peer) {
            return Some(peer);
        }
        let mut client = peer;
        for line in parts.headers.get_all("x-forwarded-for").iter().rev() {
            for entry in line.to_str().ok()?.rsplit(',') {
                client = parse(entry.trim())?;
                if !self.trusted.contains(client) {
                    return Some(client);
                }
            }
        }
        Some(client)
    }
}

impl Extract for ClientIp {
    fn extract<'a>(&'a self, parts: &'a Parts) -> Option<Cow<'a, str>> {
        Some(Cow::Owned(cut(self.address(parts)?, self.ipv6_prefix).to_string()))
    }
}

impl std::fmt::Debug for ClientIp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientIp").field("trusted", &self.trusted).finish_non_exhaustive()
    }
}

/// Networks whose word about the client is believed: none by default.
#[derive(Clone, Debug, Default)]
pub struct TrustedProxies(Vec<(IpAddr, u32)>);

/// A text that is no network. Nothing was changed; write it like `10.0.0.0/8` or `2001:db8::/32`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no network: write it like 10.0.0.0/8, 192.0.2.1 or 2001:db8::/32")]
pub struct PrefixError(String);

impl TrustedProxies {
    /// The networks `cidrs`: an address with a prefix length, or one address.
    ///
    /// # Errors
    /// [`PrefixError`] names the first that is none.
    ///
    /// ```
    /// use tidegate_http::TrustedProxies;
    /// assert!(TrustedProxies::new(["10.0.0.0/8", "::1"]).is_ok());
    /// assert!(TrustedProxies::new(["10.0.0.0/33"]).is_err());
    /// ```
    pub fn new<'a>(cidrs: impl IntoIterator<Item = &'a str>) -> Result<Self, PrefixError> {
        cidrs
            .into_iter()
            .map(|cidr| network(cidr).ok_or_else(|| PrefixError(cidr.to_owned())))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|(network, bits)| {
            network.is_ipv4() == address.is_ipv4() && prefix(*network, *bits) == prefix(address, *bits)
        })
    }
}

fn network(cidr: &str) -> Option<(IpAddr, u32)> {
    let (address, bits) = cidr.split_once('/').map_or((cidr, None), |(address, bits)| (address, Some(bits)));
    let address: IpAddr = address.parse().ok()?;
    let width = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.map_or(Some(width), |bits| bits.parse().ok())?;
    (bits <= width).then_some((address, bits))
}

/// The first `bits` bits of an address, as a number.
fn prefix(address: IpAddr, bits: u32) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits().checked_shr(32 - bits.min(32)).unwrap_or(0)),
        IpAddr::V6(v6) => v6.to_bits().checked_shr(128 - bits.min(128)).unwrap_or(0),
    }
}

/// An entry of `X-Forwarded-For`: an address, perhaps with a port or in brackets.
fn parse(entry: &str) -> Option<IpAddr> {
    let address = entry.parse::<IpAddr>().ok();
    let address = address.or_else(|| entry.parse::<std::net::SocketAddr>().ok().map(|socket| socket.ip()));
    let bracketed = || entry.strip_prefix('[')?.strip_suffix(']')?.parse().ok().map(IpAddr::V6);
    address.or_else(bracketed).map(|address| address.to_canonical())
}

fn cut(address: IpAddr, bits: u32) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the layer takes for the client when `peer` sends these lines of `X-Forwarded-For`, with 10.0.0.0/8 trusted.
    fn client(peer: &str, lines: &[&str]) -> Option<String> {
        let peer: IpAddr = peer.parse().unwrap();
        let extractor =
            ClientIp::new(move |_| Some(peer)).trusted_proxies(TrustedProxies::new(["10.0.0.0/8"]).unwrap());
        let mut request = http::Request::get("/");
        for line in lines {
            request = request.header("x-forwarded-for", *line);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        extractor.extract(&parts).map(Cow::into_owned)
    }

    #[test]
    fn s38_a_forged_line_of_an_untrusted_peer_is_not_believed() {
        assert_eq!(client("192.0.2.1", &["9.9.9.9"]).as_deref(), Some("192.0.2.1"));
    }

    #[test]
    fn s38_trusted_hops_are_walked_from_the_right() {
        assert_eq!(client("10.0.0.1", &["9.9.9.9, 8.8.8.8"]).as_deref(), Some("8.8.8.8"));
        assert_eq!(client("10.0.0.1", &["9.9.9.9, 8.8.8.8, 10.0.0.2"]).as_deref(), Some("8.8.8.8"));
        assert_eq!(client("10.0.0.1", &["9.9.9.9", "8.8.8.8, 10.0.0.2"]).as_deref(), Some("8.8.8.8"));
        assert_eq!(client("10.0.0.1", &["8.8.8.8", "10.0.0.2"]).as_deref(), Some("8.8.8.8"));
    }

    #[test]
    fn s38_junk_next_to_a_trusted_hop_is_no_address() {
        assert_eq!(client("10.0.0.1", &["8.8.8.8, junk"]), None);
        assert_eq!(client("10.0.0.1", &["8.8.8.8, _hidden, 10.0.0.2"]), None);
        assert_eq!(client("10.0.0.1", &["8.8.8.8,"]), None);
    }

    #[test]
    fn s40_mapped_addresses_are_ipv4_and_ipv6_is_cut() {
        assert_eq!(client("::ffff:1.2.3.4", &[]).as_deref(), Some("1.2.3.4"));
        assert_eq!(client("::ffff:102:304", &[]).as_deref(), Some("1.2.3.4"));
        assert_eq!(client("2001:db8::1.2.3.4", &[]), client("2001:db8::2", &[]));
        assert_ne!(client("2001:db8::1", &[]), client("2001:db8:0:1::1", &[]));
    }

    #[test]
    fn ports_and_brackets_are_stripped() {
        assert_eq!(client("10.0.0.1", &["8.8.8.8:4711"]).as_deref(), Some("8.8.8.8"));
        assert_eq!(client("10.0.0.1", &["[2001:db8::1]:80"]), client("10.0.0.1", &["[2001:db8::1]"]));
        assert_eq!(client("10.0.0.1", &["[2001:db8::1]"]).as_deref(), Some("2001:db8::"));
    }
}
