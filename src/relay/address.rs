//! Which addresses may be dialled: relay URLs in one spelling, and what of a stranger's relay list is usable.
//!
//! A relay list is text that anybody can write. Dialled as it stands it would reach into the network the agent runs
//! in: the host's metadata service, a database, the runtime's own API. So URLs that cannot mean a public relay are
//! dropped here, before any name is looked up; and since a harmless name may still resolve to a private address,
//! whoever dials asks [`is_public`] again about the very address that it connects to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nostr::prelude::{Host, RelayUrl, Url};

use super::{Target, Trust};

/// Names that never lead to a public relay, with all that lies below them.
const LOCAL_SUFFIXES: [&str; 7] = ["localhost", "local", "internal", "lan", "home.arpa", "onion", "i2p"];

/// The longest URL of a relay.
const MAX_URL_BYTES: usize = 512;

/// The one spelling of a relay URL: lower-case host without a final dot, no default port, no fragment, and no slash
/// after a bare host. `wss://IN.test:443/` is `wss://in.test`.
///
/// `None` for what is no `ws://` or `wss://` URL, for one of more than 512 bytes, since records name relays, and for URLs
/// with a user or password: those would be a secret in every log line.
#[must_use]
pub fn normalize(url: &str) -> Option<RelayUrl> {
    if url.len() > MAX_URL_BYTES {
        return None;
    }
    let mut url: Url = RelayUrl::parse(url).ok()?.into();
    if !url.username().is_empty() || url.password().is_some() {
        return None;
    }
    url.set_fragment(None);
    let host = url.domain().map(|name| name.trim_end_matches('.').to_owned());
    if let Some(host) = host {
        url.set_host(Some(&host)).ok()?;
    }
    let text = if url.path() == "/" && url.query().is_none() {
        url.as_str().trim_end_matches('/')
    } else {
        url.as_str()
    };
    RelayUrl::parse(text).ok()
}

/// The relays of somebody's list that may be dialled, in the list's order, each once, at most `max`.
///
/// An entry that is one of `own` becomes [`Trust::Own`], wherever it lies. Of the rest, entries are dropped that are
/// empty or no relay URL, name a user, lie at an address that is not public or is written to look like something
/// else (`wss://2130706433`), or bear a name that only a private network knows.
#[must_use]
pub fn usable<'a>(urls: impl IntoIterator<Item = &'a str>, own: &[RelayUrl], max: usize) -> Vec<Target> {
    let own: Vec<RelayUrl> = own.iter().filter_map(|url| normalize(url.as_str())).collect();
    let mut targets: Vec<Target> = Vec::new();
    for entry in urls {
        if targets.len() >= max {
            break;
        }
        let Some(url) = normalize(entry) else { continue };
        if targets.iter().any(|target| target.url == url) {
            continue;
        }
        if own.contains(&url) {
            targets.push(Target { url, trust: Trust::Own });
        } else if names_public_host(&url, entry) {
            targets.push(Target { url, trust: Trust::Foreign });
        }
    }
    targets
}

/// Whether the host can be public, as far as the text tells.
fn names_public_host(url: &RelayUrl, entry: &str) -> bool {
    match url.host() {
        // The parser turns `0x7f.1` and `017700000001` into addresses. Nobody honest writes one so.
        Some(Host::Ipv4(ip)) => {
            let spelled = entry.split("//").nth(1).is_some_and(|rest| rest.starts_with(&ip.to_string()));
            spelled && is_public(IpAddr::V4(ip))
        }
        Some(Host::Ipv6(ip)) => is_public(IpAddr::V6(ip)),
        Some(Host::Domain(name)) => is_public_name(name),
        None => false,
    }
}

/// Whether a host name can be public: it has a dot and lies below no name that is kept for private use
/// (RFC 6761, RFC 6762, RFC 7686, RFC 8375). `name` is lower-case, as URL parsers leave it.
#[must_use]
pub fn is_public_name(name: &str) -> bool {
    let name = name.trim_end_matches('.');
    name.contains('.')
        && !LOCAL_SUFFIXES.iter().any(|suffix| {
            name.strip_suffix(suffix).is_some_and(|head| head.is_empty() || head.ends_with('.'))
        })
}

/// Whether an address belongs to the public internet.
///
/// Everything else is refused: private and shared ranges, loopback (Lambda's runtime API listens there), link-local
/// (its metadata and credential services), documentation, benchmarks, multicast, and every form of IPv6 that carries
/// an IPv4 address inside (mapped, NAT64, 6to4, Teredo), since that one would need the same check behind a gateway
/// that we cannot see. Source: IANA's special-purpose address registries (RFC 6890 and later).
#[must_use]
pub fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let special = match ip.octets() {
        [0 | 10 | 127, ..] => true,
        [100, second, ..] => second & 0xc0 == 64,
        [169, 254, ..] => true,
        [172, second, ..] => second & 0xf0 == 16,
        [192, 0, 0 | 2, _] | [192, 88, 99, _] | [192, 168, ..] => true,
        [198, 18 | 19, ..] | [198, 51, 100, _] | [203, 0, 113, _] => true,
        [first, ..] => first >= 224,
    };
    !special
}

fn is_public_v6(ip: Ipv6Addr) -> bool {
    // All that IANA has given out for global unicast lies in 2000::/3, so the rest needs no list.
    let [first, second, ..] = ip.segments();
    let global = first & 0xe000 == 0x2000;
    let special = match (first, second) {
        (0x2001, second) => second < 0x0200 || second == 0x0db8,
        (0x2002, _) => true,
        (0x3fff, second) => second < 0x1000,
        _ => false,
    };
    global && !special
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn spelled(urls: &[&str], own: &[&str], max: usize) -> Vec<String> {
        let own: Vec<RelayUrl> = own.iter().map(|url| RelayUrl::parse(url).unwrap()).collect();
        usable(urls.iter().copied(), &own, max)
            .into_iter()
            .map(|target| format!("{} {:?}", target.url, target.trust))
            .collect()
    }

    #[test]
    fn one_relay_has_one_spelling() {
        let spelling = |url| normalize(url).map(|url| url.to_string());
        for same in [
            "wss://in.test",
            "wss://in.test/",
            "wss://IN.test:443/",
            " wss://in.test. ",
            "WSS://In.Test#fragment",
        ] {
            assert_eq!(spelling(same).as_deref(), Some("wss://in.test"), "{same}");
        }
        assert_eq!(spelling("ws://in.test:80").as_deref(), Some("ws://in.test"));
        assert_eq!(spelling("wss://in.test:80/").as_deref(), Some("wss://in.test:80"));
        assert_eq!(spelling("wss://in.test/Inbox/").as_deref(), Some("wss://in.test/Inbox/"));
        assert_eq!(spelling("wss://in.test/?a=1/").as_deref(), Some("wss://in.test/?a=1/"));
        for none in
            ["", "in.test", "https://in.test", "wss://", "wss://user:pw@in.test", "wss://user@in.test"]
        {
            assert_eq!(spelling(none), None, "{none}");
        }
    }

    #[test]
    fn empty_private_and_duplicate_entries_of_a_relay_list_are_dropped() {
        let list = ["", "ws://10.0.0.5", "wss://in.test/", "wss://IN.test"];
        assert_eq!(spelled(&list, &[], 9), ["wss://in.test Foreign"]);
    }

    #[test]
    fn hosts_that_are_not_public_are_dropped_however_they_are_written() {
        let dropped = [
            "ws://127.0.0.1:9001",
            "ws://127.1",
            "ws://2130706433",
            "ws://0x7f000001",
            "ws://0177.0.0.1",
            "ws://0x08.8.8.8",
            "ws://134744072",
            "ws://[::1]",
            "ws://[::ffff:127.0.0.1]",
            "ws://[64:ff9b::a00:5]",
            "ws://[2002:a00:5::1]",
            "ws://[fd00:ec2::254]",
            "ws://[fe80::1]",
            "ws://169.254.169.254",
            "ws://localhost:4444",
            "ws://LOCALHOST.",
            "wss://a.localhost",
            "wss://printer.local",
            "wss://db.internal",
            "wss://abc.onion",
            "wss://intranet",
            "wss://user:secret@in.test",
            "wss://127.0.0.1.",
            "wss://one.test,wss://two.test",
        ];
        assert_eq!(spelled(&dropped, &[], 99), Vec::<String>::new());
        let kept = ["ws://8.8.8.8:7777", "wss://[2606:4700::1111]", "wss://mylocal.test"];
        assert_eq!(spelled(&kept, &[], 99).len(), kept.len());
    }

    #[test]
    fn an_own_relay_stays_own_in_a_foreign_list_even_on_loopback() {
        let own = ["ws://127.0.0.1:4444/", "wss://IN.test:443"];
        let list = ["wss://in.test/", "ws://127.0.0.1:4444", "ws://127.0.0.1:5555", "wss://pub.test"];
        assert_eq!(
            spelled(&list, &own, 9),
            ["wss://in.test Own", "ws://127.0.0.1:4444 Own", "wss://pub.test Foreign"]
        );
    }

    #[test]
    fn no_more_than_max_are_taken_and_dropped_entries_do_not_count() {
        let list = ["", "wss://a.test", "wss://a.test/", "ws://10.0.0.1", "wss://b.test", "wss://c.test"];
        assert_eq!(spelled(&list, &[], 2), ["wss://a.test Foreign", "wss://b.test Foreign"]);
    }

    #[test]
    fn only_addresses_of_the_public_internet_are_public() {
        let refused = [
            "0.1.2.3",
            "10.0.0.5",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.7",
            "203.0.113.7",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:8.8.8.8",
            "::8.8.8.8",
            "64:ff9b::8.8.8.8",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:db8::1",
            "2002:808:808::1",
            "3fff::1",
            "5f00::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "ff02::1",
        ];
        for ip in refused {
            assert!(!is_public(ip.parse().unwrap()), "{ip}");
        }
        let public = [
            "1.1.1.1",
            "100.63.255.255",
            "100.128.0.1",
            "172.15.0.1",
            "172.32.0.1",
            "192.1.0.1",
            "198.17.0.1",
            "198.20.0.1",
            "223.255.255.255",
            "2001:4860::8888",
            "2606:4700::1111",
            "3fff:1000::1",
        ];
        for ip in public {
            assert!(is_public(ip.parse().unwrap()), "{ip}");
        }
    }

    proptest! {
        #[test]
        fn no_list_of_any_text_makes_a_foreign_target_at_a_private_address(
            urls in prop::collection::vec("(wss?://)?[ -~]{0,24}|ws://[0-9a-fx.]{1,16}|\\PC{0,24}", 0..8),
            max in 0usize..4,
        ) {
            let targets = usable(urls.iter().map(String::as_str), &[], max);
            prop_assert!(targets.len() <= max);
            for target in targets {
                prop_assert_eq!(target.trust, Trust::Foreign);
                prop_assert_eq!(normalize(target.url.as_str()), Some(target.url.clone()));
                match target.url.host() {
                    Some(Host::Ipv4(ip)) => prop_assert!(is_public(ip.into())),
                    Some(Host::Ipv6(ip)) => prop_assert!(is_public(ip.into())),
                    Some(Host::Domain(name)) => prop_assert!(is_public_name(name)),
                    None => prop_assert!(false),
                }
            }
        }

        #[test]
        fn an_ipv6_address_that_carries_an_ipv4_one_is_never_public(v4: u32) {
            let v4 = u128::from(v4);
            for prefix in [0, 0xffff_u128 << 32, 0x0064_ff9b_u128 << 96] {
                prop_assert!(!is_public(Ipv6Addr::from(prefix | v4).into()));
            }
            prop_assert!(!is_public(Ipv6Addr::from((0x2002_u128 << 112) | (v4 << 80)).into()));
        }
    }
}
