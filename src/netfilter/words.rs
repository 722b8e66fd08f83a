//! A line of a script as words.

use crate::error::Misread;

/// The words of a line that were not taken yet. `{`, `}`, `,` and `;` at the edge of a word are words; a text in quotes
/// is one, with its quotes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words<'a> {
    rest: &'a str,
}

impl<'a> Words<'a> {
    pub(crate) fn of(line: &'a str) -> Words<'a> {
        Words { rest: line }
    }

    pub(crate) fn next(&mut self) -> Option<&'a str> {
        let text = self.rest.trim_start();
        let first = text.chars().next()?;
        let len = match first {
            '{' | '}' | ',' | ';' => 1,
            '"' => text.get(1..).and_then(|text| text.find('"')).map_or(text.len(), |at| at + 2),
            _ => {
                let len = text.find(char::is_whitespace).unwrap_or(text.len());
                // A comma inside belongs to the word: `established,related`.
                text.get(..len).map_or(len, |word| word.trim_end_matches([',', ';', '}']).len()).max(1)
            }
        };
        let (word, rest) = text.split_at_checked(len)?;
        self.rest = rest;
        Some(word)
    }

    pub(crate) fn peek(&self) -> Option<&'a str> {
        Words { rest: self.rest }.next()
    }

    /// Takes the next word if it is this one.
    pub(crate) fn take(&mut self, wanted: &str) -> bool {
        let mut ahead = *self;
        let there = ahead.next() == Some(wanted);
        if there {
            *self = ahead;
        }
        there
    }

    /// The next word, which stands for `wanted`.
    pub(crate) fn need(&mut self, wanted: &'static str) -> Result<&'a str, Misread> {
        self.next().ok_or(Misread::Ends { wanted })
    }

    /// Takes the next word, which must be this one.
    pub(crate) fn expect(&mut self, wanted: &'static str) -> Result<(), Misread> {
        let word = self.need(wanted)?;
        if word == wanted { Ok(()) } else { Err(word.in_place_of(wanted)) }
    }

    /// The next word as a number.
    pub(crate) fn number<N: std::str::FromStr>(&mut self, wanted: &'static str) -> Result<N, Misread> {
        let word = self.need(wanted)?;
        word.parse().map_err(|_| word.in_place_of(wanted))
    }

    /// Nothing may follow.
    pub(crate) fn end(&mut self) -> Result<(), Misread> {
        match self.next() {
            None => Ok(()),
            Some(word) => Err(word.in_place_of("the end")),
        }
    }
}

/// A word that stands where another thing must stand.
pub(crate) trait Misplaced {
    fn in_place_of(&self, wanted: &'static str) -> Misread;
}

impl Misplaced for str {
    fn in_place_of(&self, wanted: &'static str) -> Misread {
        Misread::Word { word: self.chars().take(80).collect(), wanted }
    }
}

/// The text between quotes.
pub(crate) fn unquoted(word: &str) -> Option<&str> {
    word.strip_prefix('"')?.strip_suffix('"')
}

/// `0x4000` or `16384`.
pub(crate) fn hex_or_decimal(word: &str) -> Result<u32, Misread> {
    let number = word.strip_prefix("0x").map_or_else(|| word.parse(), |hex| u32::from_str_radix(hex, 16));
    number.map_err(|_| word.in_place_of("a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(line: &str) -> Vec<&str> {
        let mut words = Words::of(line);
        std::iter::from_fn(|| words.next()).collect()
    }

    #[test]
    fn signs_at_the_edge_of_a_word_are_words_and_quotes_hold_together() {
        assert_eq!(
            all("{ 10.0.0.1 . tcp . 80, @th,64,128 }"),
            ["{", "10.0.0.1", ".", "tcp", ".", "80", ",", "@th,64,128", "}"]
        );
        assert_eq!(all("comment \"a b\" : fd00::5;"), ["comment", "\"a b\"", ":", "fd00::5", ";"]);
        assert_eq!(all("a \"open"), ["a", "\"open"]);
        assert_eq!(all(" \t"), [""; 0]);
        assert_eq!(all(",,}"), [",", ",", "}"]);
    }
}
