//! The version of a resource, kept small: a node holds one for each of 100,000 names and gives it back to the letter.

/// What the control plane called the state of a resource.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Version {
    /// None: the resource is sent again at every opportunity.
    Blank,
    /// Lower-case hexadecimal digits, leading zeros counted: the hash of a content.
    Hexadecimal { digits: u8, value: u64 },
    /// A number without leading zeros that is longer than that.
    Decimal(u64),
    #[expect(clippy::box_collection, reason = "the thin pointer keeps the other kinds at 16 bytes")]
    Other(Box<String>),
}

impl Version {
    pub fn parse(text: &str) -> Self {
        let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let hexadecimal = || {
            let digits = u8::try_from(text.len()).ok().filter(|digits| *digits <= 16)?;
            let value = u64::from_str_radix(text, 16).ok().filter(|_| text.bytes().all(digit))?;
            Some(Self::Hexadecimal { digits, value })
        };
        let decimal = || {
            let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
            text.parse().ok().filter(|_| plain).map(Self::Decimal)
        };
        if text.is_empty() {
            return Self::Blank;
        }
        hexadecimal().or_else(decimal).unwrap_or_else(|| Self::Other(Box::new(text.to_owned())))
    }

    pub fn text(&self) -> String {
        match self {
            Self::Blank => String::new(),
            Self::Hexadecimal { digits, value } => format!("{value:0width$x}", width = usize::from(*digits)),
            Self::Decimal(value) => value.to_string(),
            Self::Other(text) => String::clone(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_version_is_given_back_to_the_letter(text in "[0-9a-fA-F+]{0,24}|[0-9]{17,22}|.{0,8}") {
            prop_assert_eq!(Version::parse(&text).text(), text);
        }

        #[test]
        fn equal_versions_are_equal_texts(left in "[0-9a-f]{1,3}", right in "[0-9a-f]{1,3}") {
            prop_assert_eq!(Version::parse(&left) == Version::parse(&right), left == right);
        }
    }

    #[test]
    fn hashes_and_counters_take_sixteen_bytes() {
        assert_eq!(size_of::<Version>(), 16);
        assert_eq!(Version::parse("00f0"), Version::Hexadecimal { digits: 4, value: 0xf0 });
        assert_eq!(Version::parse("18446744073709551615"), Version::Decimal(u64::MAX));
        assert!(matches!(Version::parse("+1"), Version::Other(_)));
    }
}
