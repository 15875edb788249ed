//! Everything random that must not be guessed comes from the operating system's generator.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use sha2::{Digest, Sha256};

/// How an API token begins, so that people and scanners recognise one.
pub(crate) const API_TOKEN_PREFIX: &str = "cosky_";

/// Letters and digits that are not mistaken for each other.
const ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";

/// `N` random bytes.
pub(crate) fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("a running operating system has random bytes");
    bytes
}

/// 20 characters, 100 bits.
pub(crate) fn password() -> String {
    random_bytes::<20>().iter().map(|byte| char::from(ALPHABET[usize::from(byte % 32)])).collect()
}

/// A new API token's secret: 256 bits.
pub(crate) fn api_token() -> String {
    let mut token = API_TOKEN_PREFIX.to_owned();
    BASE64_URL_SAFE_NO_PAD.encode_string(random_bytes::<32>(), &mut token);
    token
}

/// What is stored of an API token. Of 256 random bits no salt and no slow hash can make more.
pub(crate) fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_have_the_promised_size_and_differ() {
        assert_eq!(ALPHABET.iter().collect::<std::collections::BTreeSet<_>>().len(), 32, "no letter twice");
        let (one, other) = (password(), password());
        assert_eq!(one.len(), 20);
        assert_ne!(one, other);
        let token = api_token();
        let random = BASE64_URL_SAFE_NO_PAD.decode(token.strip_prefix("cosky_").unwrap()).unwrap();
        assert_eq!(random.len(), 32);
        assert_ne!(token, api_token());
        assert_ne!(digest(&token), digest("cosky_"));
    }
}
