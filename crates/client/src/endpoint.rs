//! Where a server is.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// An `http` or `https` address of an S3 door.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    secure: bool,
    host: String,
    port: u16,
}

impl Endpoint {
    /// Whether TLS is spoken.
    pub fn secure(&self) -> bool {
        self.secure
    }

    /// The name or address, an IPv6 address without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The TCP port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether the other end is on this machine, by its address.
    pub fn is_loopback(&self) -> bool {
        is_loopback(&self.host)
    }

    /// The same, or when a server that listens on all of its addresses calls itself so: where `found` found that server.
    pub(crate) fn beside(mut self, found: &Endpoint) -> Endpoint {
        let everywhere = |address: IpAddr| address.is_unspecified();
        if self.host.parse().is_ok_and(everywhere) {
            self.host.clone_from(&found.host);
        }
        self
    }

    /// The value of the `Host` header.
    pub fn authority(&self) -> String {
        let host = if self.host.contains(':') {
            format!("[{}]", self.host)
        } else {
            self.host.clone()
        };
        match (self.secure, self.port) {
            (false, 80) | (true, 443) => host,
            (_, port) => format!("{host}:{port}"),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.secure { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority())
    }
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Endpoint, String> {
        let wrong = || format!("{text:?} is not an endpoint such as http://127.0.0.1:9000");
        let uri: http::Uri = text.parse().map_err(|_| wrong())?;
        let secure = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong()),
        };
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(format!("{} has a path, which an endpoint has not", text));
        }
        let host = uri.host().ok_or_else(wrong)?;
        let host = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        Ok(Endpoint {
            secure,
            host: host.to_owned(),
            port: uri.port_u16().unwrap_or(if secure { 443 } else { 80 }),
        })
    }
}

pub(crate) fn is_loopback(host: &str) -> bool {
    let address = host.parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_on_all_addresses_is_where_it_was_found() {
        let found: Endpoint = "http://10.1.2.3:9001".parse().unwrap();
        for (told, expected) in [
            ("https://0.0.0.0:9000", "https://10.1.2.3:9000"),
            ("http://[::]:9000", "http://10.1.2.3:9000"),
            ("http://10.9.9.9:9000", "http://10.9.9.9:9000"),
            ("http://store.example:80", "http://store.example"),
        ] {
            let told: Endpoint = told.parse().unwrap();
            assert_eq!(told.beside(&found).to_string(), expected);
        }
    }
}
