//! Who may ask a server without authentication. It listens on a loopback address only, but the operator's browser is on
//! this machine as well: a stranger's page whose name is made to resolve to 127.0.0.1 would be of one origin with this
//! server, and CORS would not stand against it. What such a page cannot do is send another `Host` than its own name.

use std::net::{Ipv4Addr, Ipv6Addr};

use http::{HeaderMap, HeaderValue, header};

use crate::ApiError;

/// Refuses what was not sent to a loopback address by its number or as `localhost`, or comes from a page that was not.
///
/// # Errors
/// 403.
pub(crate) fn check(headers: &HeaderMap) -> Result<(), ApiError> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let named = hosts.next().is_some_and(is_local) && hosts.all(is_local);
    if !named {
        return Err(ApiError::forbidden(
            "Host: without authentication this server answers to localhost, 127.0.0.1 and [::1] only",
        ));
    }
    if !headers.get_all(header::ORIGIN).iter().all(is_local_origin) {
        return Err(ApiError::forbidden(
            "Origin: without authentication this server takes nothing from pages of other machines",
        ));
    }
    Ok(())
}

fn is_local_origin(origin: &HeaderValue) -> bool {
    let Some((_scheme, host)) = origin.to_str().ok().and_then(|origin| origin.split_once("://")) else {
        return false;
    };
    names_loopback(host)
}

fn is_local(host: &HeaderValue) -> bool {
    host.to_str().is_ok_and(names_loopback)
}

/// Whether `host`, with or without a port, is 127.0.0.0/8 or `[::1]` by number, or `localhost`, which browsers do not
/// ask a name server for.
fn names_loopback(host: &str) -> bool {
    if let Some(rest) = host.strip_prefix('[') {
        let Some((address, rest)) = rest.split_once(']') else { return false };
        let port = rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port);
        return port && address.parse() == Ok(Ipv6Addr::LOCALHOST);
    }
    let (name, port) = host.split_once(':').map_or((host, true), |(name, port)| (name, is_port(port)));
    let local = || name.parse().is_ok_and(|address: Ipv4Addr| address.is_loopback());
    port && (name.eq_ignore_ascii_case("localhost") || local())
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_loopback_and_localhost_are_local() {
        for host in ["localhost", "LocalHost", "127.0.0.1", "127.9.8.7", "[::1]", "[0:0:0:0:0:0:0:1]"] {
            for port in ["", ":1", ":8080", ":65535"] {
                assert!(names_loopback(&format!("{host}{port}")), "{host}{port}");
            }
            for port in [":", ":x", ":+1", ":65536", ":80:80", "/", ".", ".evil.example", "@evil.example"] {
                assert!(!names_loopback(&format!("{host}{port}")), "{host}{port}");
            }
        }
        for host in [
            "",
            "evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "a@127.0.0.1",
            "127.1",
            "0177.0.0.1",
            "2130706433",
            "128.0.0.1",
            "0.0.0.0",
            "10.0.0.1",
            "::1",
            "[::1",
            "[::2]",
            "[::ffff:127.0.0.1]",
        ] {
            assert!(!names_loopback(host), "{host}");
        }
    }
}
