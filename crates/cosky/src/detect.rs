//! The address of this machine, as others reach it.

use std::{
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
    time::Duration,
};

use reqwest::Url;
use tokio::{net::lookup_host, time::timeout};

use crate::{Error, Result};

/// How long the names of the servers may take to be looked up.
const LOOKUP: Duration = Duration::from_secs(2);
/// Addresses of documentation (RFC 5737, RFC 3849): they are routed as the rest of the world, and nobody has them.
const OUTSIDE: [&str; 2] = ["192.0.2.1:9", "[2001:db8::1]:9"];

/// Where the servers of a client are, so that it can tell where it is itself.
#[derive(Debug, Default)]
pub(crate) struct Home {
    servers: Vec<(String, u16)>,
}

impl Home {
    /// Of a client with these addresses; those that are none are left out.
    pub(crate) fn towards<'a>(addresses: impl IntoIterator<Item = &'a str>) -> Self {
        let server = |address: &str| {
            let url = Url::parse(address.trim()).ok()?;
            let host = url.host_str()?.trim_start_matches('[').trim_end_matches(']').to_owned();
            Some((host, url.port_or_known_default()?))
        };
        Self { servers: addresses.into_iter().filter_map(server).collect() }
    }

    /// This machine's address towards the servers, with their names looked up, else towards the outside; that of the
    /// listener when it listens to one address alone.
    ///
    /// # Errors
    /// [`Error::Config`] of `host`, with what to do.
    pub(crate) async fn looked_up(&self, listening: Option<SocketAddr>) -> Result<IpAddr> {
        let mut found = self.literal();
        let names = self.servers.iter().filter(|(host, _)| literal(host).is_none());
        let lookup = async {
            for (host, port) in names {
                if let Ok(addresses) = lookup_host((host.as_str(), *port)).await {
                    found.extend(addresses);
                }
            }
        };
        // Those that were found by then are enough.
        let _ = timeout(LOOKUP, lookup).await;
        choose(&found, listening, &route)
    }

    /// As [`Home::looked_up`] with those servers only that are given as addresses.
    ///
    /// # Errors
    /// The same.
    pub(crate) fn known(&self, listening: Option<SocketAddr>) -> Result<IpAddr> {
        choose(&self.literal(), listening, &route)
    }

    fn literal(&self) -> Vec<SocketAddr> {
        let address = |(host, port): &(String, u16)| Some(SocketAddr::new(literal(host)?, *port));
        self.servers.iter().filter_map(address).collect()
    }
}

fn literal(host: &str) -> Option<IpAddr> {
    if host.eq_ignore_ascii_case("localhost") {
        return Some([127, 0, 0, 1].into());
    }
    host.parse().ok()
}

/// The address that the system would send from. Connecting a datagram socket sends nothing.
fn route(to: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0u16; 8].into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(to)?;
    Ok(socket.local_addr()?.ip())
}

fn choose(
    servers: &[SocketAddr],
    listening: Option<SocketAddr>,
    route: &dyn Fn(SocketAddr) -> io::Result<IpAddr>,
) -> Result<IpAddr> {
    let only = listening.map(|address| address.ip()).filter(|ip| !ip.is_unspecified());
    if let Some(ip) = only
        && !ip.is_loopback()
    {
        return Ok(ip);
    }
    let found = towards(servers, route)?;
    match only {
        Some(loopback) if found.is_loopback() => Ok(loopback),
        Some(loopback) => Err(Error::config(
            "host",
            format!(
                "the application listens to {loopback}, which is reached from this machine only, and the server is \
                 on another: listen to 0.0.0.0 or {found}, or say by Instance::host or COSKY_ADVERTISE_HOST where \
                 others reach it"
            ),
        )),
        None => Ok(found),
    }
}

/// A loopback address only when that is where every server is reached from.
fn towards(servers: &[SocketAddr], route: &dyn Fn(SocketAddr) -> io::Result<IpAddr>) -> Result<IpAddr> {
    let ways: Vec<_> = servers.iter().filter_map(|server| route(*server).ok()).filter(reachable).collect();
    let outward = ways.iter().find(|ip| !ip.is_loopback()).or(ways.first());
    if let Some(found) = outward {
        return Ok(*found);
    }
    let outside = OUTSIDE.iter().filter_map(|address| address.parse().ok());
    let way = outside.filter_map(|address| route(address).ok()).find(|ip| reachable(ip) && !ip.is_loopback());
    way.ok_or_else(|| {
        Error::config(
            "host",
            "cannot be found: this machine has no route to the server and none to the outside; say by \
             Instance::host or COSKY_ADVERTISE_HOST where others reach the application",
        )
    })
}

/// Whether it means something on another machine of the network. Link-local IPv6 needs an interface beside it.
fn reachable(ip: &IpAddr) -> bool {
    !ip.is_unspecified() && !matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn socket(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    /// A machine with a loopback, one network of servers, one towards the outside, and link-local IPv6.
    fn machine(to: SocketAddr) -> io::Result<IpAddr> {
        match to.ip() {
            IpAddr::V4(v4) if v4.is_loopback() => Ok(ip("127.0.0.1")),
            IpAddr::V4(v4) if v4.octets()[0] == 10 => Ok(ip("10.0.0.9")),
            IpAddr::V4(v4) if v4.octets()[0] == 192 => Ok(ip("192.168.1.9")),
            IpAddr::V6(_) => Ok(ip("fe80::9")),
            IpAddr::V4(_) => Err(io::ErrorKind::NetworkUnreachable.into()),
        }
    }

    fn found(servers: &[&str], listening: Option<&str>) -> Result<IpAddr> {
        let servers: Vec<_> = servers.iter().map(|server| socket(server)).collect();
        choose(&servers, listening.map(socket), &machine)
    }

    #[test]
    fn the_way_to_the_server_goes_first_and_loopback_counts_only_there() {
        assert_eq!(found(&["10.1.1.1:8080"], None).unwrap(), ip("10.0.0.9"));
        assert_eq!(found(&["127.0.0.1:8080"], None).unwrap(), ip("127.0.0.1"));
        assert_eq!(found(&["127.0.0.1:8080", "10.1.1.1:8080"], None).unwrap(), ip("10.0.0.9"));
        // No server has a route, or none is known: the way to the outside.
        for servers in [&["8.8.8.8:80"][..], &["[2001:db8::5]:80"], &[]] {
            assert_eq!(found(servers, None).unwrap(), ip("192.168.1.9"), "{servers:?}");
        }
    }

    #[test]
    fn a_listener_on_one_address_says_where_it_is() {
        assert_eq!(found(&["10.1.1.1:8080"], Some("172.16.0.1:9000")).unwrap(), ip("172.16.0.1"));
        assert_eq!(found(&["10.1.1.1:8080"], Some("0.0.0.0:9000")).unwrap(), ip("10.0.0.9"));
        assert_eq!(found(&["10.1.1.1:8080"], Some("[::]:9000")).unwrap(), ip("10.0.0.9"));
        assert_eq!(found(&["127.0.0.1:8080"], Some("127.0.0.2:9000")).unwrap(), ip("127.0.0.2"));
        let text = found(&["10.1.1.1:8080"], Some("127.0.0.1:9000")).unwrap_err().to_string();
        assert!(text.starts_with("host: the application listens to 127.0.0.1"), "{text}");
    }

    #[test]
    fn a_machine_without_any_route_says_what_to_do() {
        let cut_off = |_| Err(io::ErrorKind::NetworkUnreachable.into());
        let text = choose(&[socket("10.1.1.1:1")], None, &cut_off).unwrap_err().to_string();
        assert!(text.starts_with("host: cannot be found") && text.contains("COSKY_ADVERTISE_HOST"), "{text}");
    }

    #[tokio::test]
    async fn the_system_is_asked() {
        for address in ["http://127.0.0.1:1", "http://localhost:8080/cosky", "https://[::1]"] {
            let home = Home::towards([address]);
            // A machine without IPv6 has no ::1 either.
            let Ok(known) = home.known(None) else { continue };
            assert!(known.is_loopback() || address.contains("::1"), "{address}: {known}");
            assert_eq!(home.looked_up(None).await.unwrap(), known);
        }
    }
}
