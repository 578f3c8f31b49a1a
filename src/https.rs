//! What connections out of the process have in common: TLS by ring, one set of root certificates, and for models and AWS
//! one way to make an HTTP client. Relays ([`crate::relay`]) are asked over WebSockets and take the TLS alone.
//!
//! The roots are Mozilla's and lie in the binary. Reading and parsing those of the machine takes longer than all else of a
//! cold start together; the command line, which has the time, believes these as well.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use reqwest::Client;
use reqwest::redirect::Policy;
use rustls::{ClientConfig, RootCertStore};

/// How long an unused connection is kept. A sandbox that is frozen for longer finds it closed at the other end.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);

/// One set for all connections of the process: it never changes.
static ROOTS: LazyLock<Arc<RootCertStore>> = LazyLock::new(|| Arc::new(roots()));

/// Which HTTP a client offers to speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// HTTP/1.1. A request that is given up closes its connection, so that none that died in a frozen sandbox is used twice.
    Http1,
    /// HTTP/2 where the server speaks it, else HTTP/1.1.
    Http2,
}

/// A client that opens a connection within `connect_timeout` or gives up.
///
/// # Errors
/// The TLS library refuses its own defaults.
pub(crate) fn http_client(protocol: Protocol, connect_timeout: Duration) -> Result<Client, String> {
    let mut tls = tls().map_err(|error| error.to_string())?;
    let offered: &[&[u8]] = match protocol {
        Protocol::Http1 => &[b"http/1.1"],
        Protocol::Http2 => &[b"h2", b"http/1.1"],
    };
    tls.alpn_protocols = offered.iter().map(|name| name.to_vec()).collect();
    Client::builder()
        .tls_backend_preconfigured(tls)
        .pool_idle_timeout(IDLE_TIMEOUT)
        .connect_timeout(connect_timeout)
        .redirect(Policy::none())
        // A proxy that a variable names would see keys and prompts.
        .no_proxy()
        .build()
        .map_err(|error| error.to_string())
}

/// TLS by ring. Built here and not taken from the process, which may have installed none.
///
/// # Errors
/// The TLS library refuses its own defaults.
pub(crate) fn tls() -> Result<ClientConfig, rustls::Error> {
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(Arc::clone(&ROOTS))
        .with_no_client_auth();
    Ok(config)
}

fn roots() -> RootCertStore {
    #[cfg_attr(not(feature = "local"), expect(unused_mut, reason = "only the command line adds to it"))]
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    #[cfg(feature = "local")]
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// The first bytes that a client sends to a server that it asks for `https`.
    async fn client_hello(protocol: Protocol) -> Vec<u8> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let server = tokio::task::spawn_blocking(move || {
            let mut hello = vec![0; 4096];
            let read = listener.accept().unwrap().0.read(&mut hello).unwrap();
            hello.truncate(read);
            hello
        });
        http_client(protocol, Duration::from_secs(60)).unwrap().get(url).send().await.unwrap_err();
        server.await.unwrap()
    }

    fn contains(bytes: &[u8], part: &[u8]) -> bool {
        bytes.windows(part.len()).any(|window| window == part)
    }

    #[tokio::test]
    async fn a_client_offers_the_protocols_that_it_may_speak() {
        // The extension of RFC 7301: type 16, its length, the list's length, each name after its length.
        let only_1 = client_hello(Protocol::Http1).await;
        assert!(contains(&only_1, b"\x00\x10\x00\x0b\x00\x09\x08http/1.1"));
        let both = client_hello(Protocol::Http2).await;
        assert!(contains(&both, b"\x00\x10\x00\x0e\x00\x0c\x02h2\x08http/1.1"));
    }

    #[test]
    fn the_roots_that_lie_in_the_binary_are_believed() {
        let missing = webpki_roots::TLS_SERVER_ROOTS.iter().filter(|root| !ROOTS.roots.contains(root));
        assert_eq!(missing.count(), 0);
    }
}
