//! The peers who ask. What a server has is shared among peers, so that one of them cannot take it all.

use std::net::{IpAddr, Ipv6Addr};

use axum::http::{Extensions, HeaderMap};

use super::keys::{Digest, given};
use super::settings::Settings;

/// The one who asks: the owner of a key of this server, or else an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Peer {
    /// The owner of this key.
    Key(Digest),
    /// All who come from this address. Of IPv6 it is the network of 64 bits, since that is what one user gets.
    Address(IpAddr),
    /// Everybody without a key behind a proxy, whose address tells nothing of who asks.
    Anybody,
    /// The file of a batch, whose lines are one order.
    File,
}

impl Peer {
    /// The peer that has opened a connection from `address`. Its key is not known yet.
    pub(super) fn of_address(address: IpAddr, settings: &Settings) -> Self {
        if settings.behind_proxy {
            return Self::Anybody;
        }
        Self::Address(match address.to_canonical() {
            IpAddr::V6(address) => {
                let network = address.to_bits() >> 64 << 64;
                Ipv6Addr::from_bits(network).into()
            }
            address => address,
        })
    }

    /// The peer that sends a request. Its connection has left its peer among `extensions`. Keys that are not this server's tell nothing:
    /// anybody can make them up.
    pub(super) fn of_request(
        headers: &HeaderMap,
        extensions: &Extensions,
        settings: &Settings,
    ) -> Self {
        let known = given(headers).and_then(|key| settings.keys.find(key));
        let connected = || extensions.get().copied().unwrap_or(Self::Anybody);
        known.map_or_else(connected, Self::Key)
    }
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderValue, header};

    use super::*;
    use crate::server::keys::Keys;

    fn of(address: &str, settings: &Settings) -> Peer {
        Peer::of_address(address.parse().expect("an address"), settings)
    }

    #[test]
    fn a_peer_is_its_key_or_else_its_address() {
        let settings = Settings {
            keys: Keys::new(["first", "second"]),
            ..Settings::for_tests()
        };
        let mut extensions = Extensions::new();
        extensions.insert(of("10.0.0.1", &settings));
        let with = |key: &str| {
            let mut headers = HeaderMap::new();
            let value = HeaderValue::from_str(&format!("Bearer {key}")).expect("plain");
            headers.insert(header::AUTHORIZATION, value);
            Peer::of_request(&headers, &extensions, &settings)
        };
        assert_eq!(with("first"), with("first"));
        assert_ne!(with("first"), with("second"));
        for foreign in ["third", "fourth"] {
            assert_eq!(with(foreign), of("10.0.0.1", &settings));
        }
        let bare = Peer::of_request(&HeaderMap::new(), &Extensions::new(), &settings);
        assert_eq!(bare, Peer::Anybody);
    }

    #[test]
    fn an_address_counts_as_far_as_one_user_has_it() {
        let settings = Settings::for_tests();
        assert_ne!(of("10.0.0.1", &settings), of("10.0.0.2", &settings));
        let v6 = |end: &str| of(&format!("2001:db8:1:2{end}"), &settings);
        assert_eq!(v6("::1"), v6(":3:4:5:6"));
        assert_ne!(v6("::1"), of("2001:db8:1:3::1", &settings));
        assert_eq!(of("::ffff:10.0.0.1", &settings), of("10.0.0.1", &settings));
        let proxied = Settings {
            behind_proxy: true,
            ..settings
        };
        assert_eq!(of("10.0.0.1", &proxied), Peer::Anybody);
    }
}
