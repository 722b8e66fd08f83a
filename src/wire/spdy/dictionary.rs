//! The preset dictionary of SPDY/3 header blocks (SPDY Protocol draft 3, section 2.6.10.1), written as what it is:
//! length-prefixed words, then a run of plain text.

/// Words that stand in the dictionary with their length as four bytes, big-endian.
const WORDS: &str = "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow \
     authorization cache-control connection content-base content-encoding content-language content-length content-location content-md5 \
     content-range content-type date etag expect expires from host if-match if-modified-since if-none-match if-range \
     if-unmodified-since last-modified location max-forwards pragma proxy-authenticate proxy-authorization range referer retry-after \
     server te trailer transfer-encoding upgrade user-agent vary via warning www-authenticate method get status 200_OK version \
     HTTP/1.1 url public set-cookie keep-alive origin";

/// The text after the words, without lengths.
const TEXT: &str = "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505203 Non-Authoritative \
     Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden404 Not Found500 Internal Server \
     Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, \
     Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,\
     publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.";

/// The dictionary's bytes.
pub(crate) fn bytes() -> Vec<u8> {
    let mut out = Vec::with_capacity(1500);
    for word in WORDS.split_whitespace() {
        let word = word.replace('_', " ");
        out.extend_from_slice(&u32::try_from(word.len()).unwrap_or_default().to_be_bytes());
        out.extend_from_slice(word.as_bytes());
    }
    out.extend_from_slice(TEXT.as_bytes());
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_dictionary_has_the_id_that_every_spdy3_peer_expects() {
        // zlib names a preset dictionary by its Adler-32 sum; SPDY/3's is e3c6a7c2.
        let (mut a, mut b) = (1u32, 0u32);
        for byte in super::bytes() {
            a = (a + u32::from(byte)) % 65521;
            b = (b + a) % 65521;
        }
        assert_eq!(format!("{:08x}", b << 16 | a), "e3c6a7c2");
    }
}
