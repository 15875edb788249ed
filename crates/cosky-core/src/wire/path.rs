//! Paths of URLs.

use std::fmt::Write as _;

use crate::Namespace;

/// Appends `segment`, percent-encoded but for the unreserved characters of RFC 3986.
pub fn encode_segment(out: &mut String, segment: &str) {
    for byte in segment.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(byte.into()),
            _ => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
}

/// The path of `namespace` and of what follows, each segment percent-encoded.
pub fn namespace_path(namespace: &Namespace, rest: &[&str]) -> String {
    let mut path = String::from("/v1/namespaces/");
    encode_segment(&mut path, namespace.as_str());
    for segment in rest {
        path.push('/');
        encode_segment(&mut path, segment);
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_segments_are_encoded() {
        let path = namespace_path(&Namespace::new("shop-{eu}").unwrap(), &["services", "a/b@http#é"]);
        assert_eq!(path, "/v1/namespaces/shop-%7Beu%7D/services/a%2Fb%40http%23%C3%A9");
    }
}
