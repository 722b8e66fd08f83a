//! An HTML page on its way through `proxy`, piece by piece. Of it no more is held than one start tag: a page of any
//! length, sent at any pace, costs no memory, and what is sent on grows no faster than the client takes it.

/// A longer start tag passes as it is.
const TAG_BYTES_MAX: usize = 8 * 1024;

/// Part to which the next byte belongs.
#[derive(Clone, Copy, Debug, Default)]
enum At {
    #[default]
    Text,
    /// A `<` is held, and what may begin a comment.
    Markup,
    /// A start tag.
    Tag,
    Comment,
}

/// Where in the page we are.
#[derive(Debug, Default)]
pub(super) struct Page {
    at: At,
    held: Vec<u8>,
    /// The quote that is open in the tag.
    quote: Option<u8>,
    /// The tag's last byte that is no space.
    last: u8,
    /// The tag is longer than what is held.
    is_long: bool,
    /// Hyphens in a row, in a comment; two at most.
    n_hyphens: u8,
}

impl Page {
    /// Reads a piece and writes what is known of it by now. Start tags go through `tag`, all else passes byte by byte.
    pub(super) fn feed(&mut self, piece: &[u8], out: &mut Vec<u8>, tag: impl Fn(&[u8], &mut Vec<u8>)) {
        let mut rest = piece;
        while !rest.is_empty() {
            rest = match self.at {
                At::Text => self.text(rest, out),
                At::Markup => self.markup(rest, out),
                At::Tag => self.tag(rest, out, &tag),
                At::Comment => self.comment(rest, out),
            };
        }
    }

    /// The page is over.
    pub(super) fn end(&mut self, out: &mut Vec<u8>, tag: impl Fn(&[u8], &mut Vec<u8>)) {
        let held = std::mem::take(&mut self.held);
        match self.at {
            At::Tag if !self.is_long => tag(&held, out),
            _ => out.extend_from_slice(&held),
        }
    }

    fn text<'p>(&mut self, rest: &'p [u8], out: &mut Vec<u8>) -> &'p [u8] {
        let Some(open) = rest.iter().position(|b| *b == b'<') else {
            out.extend_from_slice(rest);
            return &[];
        };
        out.extend_from_slice(&rest[..open]);
        self.held.push(b'<');
        self.at = At::Markup;
        &rest[open + 1..]
    }

    /// Behind a `<`: a tag, a comment, or nothing of the kind.
    fn markup<'p>(&mut self, rest: &'p [u8], out: &mut Vec<u8>) -> &'p [u8] {
        let byte = rest[0];
        let may_be_comment = match self.held.as_slice() {
            b"<" if byte.is_ascii_alphabetic() => {
                (self.at, self.quote, self.last, self.is_long) = (At::Tag, None, b'<', false);
                return rest;
            }
            b"<" => byte == b'!',
            _ => byte == b'-',
        };
        if !may_be_comment {
            out.append(&mut self.held);
            self.at = At::Text;
            return rest;
        }
        self.held.push(byte);
        if self.held == b"<!--" {
            out.append(&mut self.held);
            (self.at, self.n_hyphens) = (At::Comment, 0);
        }
        &rest[1..]
    }

    /// A start tag ends with the `>` outside of quotes.
    fn tag<'p>(&mut self, rest: &'p [u8], out: &mut Vec<u8>, tag: impl Fn(&[u8], &mut Vec<u8>)) -> &'p [u8] {
        for (n, byte) in rest.iter().enumerate() {
            match (self.quote, *byte) {
                (None, b'>') => {
                    self.hold(&rest[..=n], out);
                    if !self.is_long {
                        tag(&self.held, out);
                        self.held.clear();
                    }
                    self.at = At::Text;
                    return &rest[n + 1..];
                }
                (None, quote @ (b'"' | b'\'')) if self.last == b'=' => self.quote = Some(quote),
                (Some(quote), byte) if quote == byte => self.quote = None,
                _ => {}
            }
            if !byte.is_ascii_whitespace() {
                self.last = *byte;
            }
        }
        self.hold(rest, out);
        &[]
    }

    fn hold(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        if !self.is_long && self.held.len() + bytes.len() <= TAG_BYTES_MAX {
            return self.held.extend_from_slice(bytes);
        }
        self.is_long = true;
        out.append(&mut self.held);
        out.extend_from_slice(bytes);
    }

    fn comment<'p>(&mut self, rest: &'p [u8], out: &mut Vec<u8>) -> &'p [u8] {
        for (n, byte) in rest.iter().enumerate() {
            match byte {
                b'>' if self.n_hyphens == 2 => {
                    self.at = At::Text;
                    out.extend_from_slice(&rest[..=n]);
                    return &rest[n + 1..];
                }
                b'-' => self.n_hyphens = (self.n_hyphens + 1).min(2),
                _ => self.n_hyphens = 0,
            }
        }
        out.extend_from_slice(rest);
        &[]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page with its start tags in brackets, read in pieces of so many bytes.
    fn bracketed(page: &str, n: usize) -> String {
        let tag = |tag: &[u8], out: &mut Vec<u8>| out.extend([b"[", tag, b"]"].concat());
        let (mut read, mut out) = (Page::default(), Vec::new());
        for piece in page.as_bytes().chunks(n) {
            read.feed(piece, &mut out, tag);
        }
        read.end(&mut out, tag);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_page_is_read_the_same_in_pieces_of_any_length() {
        for (page, read) in [
            ("<a b='>' c=\">\" d>x</a><b>", "[<a b='>' c=\">\" d>]x</a>[<b>]"),
            ("1 < 2 <<i> <!- <i> <!-- <i> -- > ---><i>", "1 < 2 <[<i>] <!- [<i>] <!-- <i> -- > --->[<i>]"),
            ("<a b'>c'>", "[<a b'>]c'>"),
            ("<a href=", "[<a href=]"),
            ("<!", "<!"),
            ("<!-- <i>", "<!-- <i>"),
        ] {
            for n in [1, 2, 3, 5, 100] {
                assert_eq!(bracketed(page, n), read, "{n}");
            }
        }
    }

    #[test]
    fn a_tag_without_an_end_is_not_held() {
        let (mut page, mut out) = (Page::default(), Vec::new());
        let mut held_max = 0;
        page.feed(b"<a b=\"", &mut out, |_, _| panic!("it has no end"));
        for _ in 0..1000 {
            page.feed(&[b'>'; 1000], &mut out, |_, _| panic!("it has no end"));
            held_max = held_max.max(page.held.len());
        }
        assert!(held_max <= TAG_BYTES_MAX && out.len() == 1_000_006, "{held_max} {}", out.len());
        page.feed(b"\"><i>", &mut out, |tag, _| assert_eq!(tag, b"<i>"));
    }
}
