//! The Huffman code of HPACK (RFC 7541 section 5.2 and appendix B), decoding only: we send plain strings.
//! The code is canonical, so the lengths say it all; the tables are made from them at compile time.

use super::hpack::Corrupt;

/// Appends the decoded string. At most 8/5 of the input's length.
///
/// # Errors
/// The end-of-string symbol inside, or padding that is not up to seven one bits.
pub fn decode(bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Corrupt> {
    out.reserve(bytes.len() * 8 / 5);
    // The next bits stand at the top of `held`; `bits` of them are real, zeros follow.
    let (mut held, mut bits, mut rest) = (0_u64, 0_u32, bytes);
    loop {
        if let Some((chunk, tail)) = rest.split_first_chunk::<4>() {
            held |= u64::from(u32::from_be_bytes(*chunk)) << (32 - bits);
            (bits, rest) = (bits + 32, tail);
        } else {
            for byte in rest {
                held |= u64::from(*byte) << (56 - bits);
                bits += 8;
            }
            return decode_tail(held, bits, out);
        }
        while bits >= LONGEST {
            let (symbol, length) = symbol_at(held);
            out.push(u8::try_from(symbol).map_err(|_| Corrupt::EndOfString)?);
            held <<= length;
            bits -= length;
        }
    }
}

/// The last bits of a string: all of the input is in `held`.
fn decode_tail(mut held: u64, mut bits: u32, out: &mut Vec<u8>) -> Result<(), Corrupt> {
    while bits > 0 {
        let (symbol, length) = symbol_at(held);
        if length > bits {
            let padding = held >> (64 - bits);
            let ones = (1_u64 << bits) - 1;
            return if bits < 8 && padding == ones { Ok(()) } else { Err(Corrupt::Padding) };
        }
        out.push(u8::try_from(symbol).map_err(|_| Corrupt::EndOfString)?);
        held <<= length;
        bits -= length;
    }
    Ok(())
}

/// The symbol whose code stands at the top, and its length in bits. The all-ones code is 256, end of string.
#[expect(
    clippy::indexing_slicing,
    reason = "eight bits index 256 places; offsets stay within the 257 symbols"
)]
#[inline]
fn symbol_at(held: u64) -> (u16, u32) {
    let (symbol, length) = TABLES.short[(held >> 56) as usize & 0xff];
    if length > 0 {
        return (u16::from(symbol), u32::from(length));
    }
    let mut length = SHORT + 1;
    while length < LONGEST {
        let code = held >> (64 - length);
        if code < TABLES.end[length as usize] {
            break;
        }
        length += 1;
    }
    let code = held >> (64 - length);
    let place = TABLES.place[length as usize].wrapping_add(code) & 0x1ff;
    (TABLES.symbols[place as usize], length)
}

/// Codes up to this many bits are looked up at once.
const SHORT: u32 = 8;
const LONGEST: u32 = 30;

struct Tables {
    /// By the next eight bits: symbol and code length, 0 for a longer code.
    short: [(u8, u8); 256],
    /// By length: one past the last code of that length.
    end: [u64; 31],
    /// By length: what to add to a code to get its place in `symbols` (wrapping).
    place: [u64; 31],
    /// In the order of their codes; 512 places so that a masked index is always in bounds.
    symbols: [u16; 512],
}

static TABLES: Tables = build();

#[expect(clippy::indexing_slicing, clippy::cast_possible_truncation, reason = "runs at compile time")]
const fn build() -> Tables {
    let mut tables = Tables { short: [(0, 0); 256], end: [0; 31], place: [0; 31], symbols: [256; 512] };
    let (mut code, mut count, mut length) = (0_u64, 0_u64, 1_u32);
    while length <= LONGEST {
        code <<= 1;
        tables.place[length as usize] = count.wrapping_sub(code);
        let mut symbol = 0;
        while symbol < LENGTHS.len() {
            if LENGTHS[symbol] as u32 == length {
                tables.symbols[count as usize] = symbol as u16;
                if length <= SHORT {
                    let mut place = (code << (SHORT - length)) as usize;
                    let past = ((code + 1) << (SHORT - length)) as usize;
                    while place < past {
                        tables.short[place] = (symbol as u8, length as u8);
                        place += 1;
                    }
                }
                code += 1;
                count += 1;
            }
            symbol += 1;
        }
        tables.end[length as usize] = code;
        length += 1;
    }
    assert!(count == 257 && code == 1 << LONGEST, "the code must be complete");
    tables
}

/// Code length of each symbol in bits; the last is end of string.
#[rustfmt::skip]
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28,
    28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6,
    6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8,
    7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7,
    7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23,
    24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22,
    23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25,
    26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24,
    20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27,
    27, 27, 27, 26, 30,
];

#[cfg(test)]
pub mod tests {
    use super::*;

    /// An obvious encoder, for this and other tests: codes counted up from the lengths, bits as text.
    pub fn encode(bytes: &[u8]) -> Vec<u8> {
        let mut order: Vec<usize> = (0..257).collect();
        order.sort_by_key(|symbol| (LENGTHS[*symbol], *symbol));
        let mut codes = vec![String::new(); 257];
        let (mut code, mut before) = (0_u64, 0);
        for symbol in order {
            let length = LENGTHS[symbol];
            code <<= length - before;
            codes[symbol] = format!("{code:0width$b}", width = usize::from(length));
            (code, before) = (code + 1, length);
        }
        let mut bits: String = bytes.iter().map(|byte| codes[usize::from(*byte)].as_str()).collect();
        while !bits.len().is_multiple_of(8) {
            bits.push('1');
        }
        bits.as_bytes()
            .chunks(8)
            .map(|byte| u8::from_str_radix(std::str::from_utf8(byte).unwrap(), 2).unwrap())
            .collect()
    }

    fn decoded(bytes: &[u8]) -> Result<Vec<u8>, Corrupt> {
        let mut out = Vec::new();
        decode(bytes, &mut out).map(|()| out)
    }

    #[test]
    fn the_vectors_of_rfc_7541() {
        let example = [0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff];
        assert_eq!(decoded(&example).unwrap(), b"www.example.com");
        assert_eq!(encode(b"www.example.com"), example);
        assert_eq!(decoded(&[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf]).unwrap(), b"no-cache");
        assert_eq!(decoded(&[]).unwrap(), b"");
    }

    #[test]
    fn every_symbol_in_every_position() {
        for symbol in 0..=255_u8 {
            for before in 0..9 {
                let mut text = vec![b'0'; before];
                text.extend_from_slice(&[symbol, b'~', symbol]);
                assert_eq!(decoded(&encode(&text)).unwrap(), text, "symbol {symbol} after {before}");
            }
        }
    }

    #[test]
    fn padding_and_the_end_symbol_are_checked() {
        assert_eq!(decoded(&[0xff]), Err(Corrupt::Padding));
        assert_eq!(decoded(&[0xff, 0xff, 0xff]), Err(Corrupt::Padding));
        assert_eq!(decoded(&[0xff, 0xff, 0xff, 0xff]), Err(Corrupt::EndOfString));
        // '0' is 00000; three zero bits of padding are wrong, three ones are right.
        assert_eq!(decoded(&[0b0000_0111]).unwrap(), b"0");
        assert_eq!(decoded(&[0b0000_0011]), Err(Corrupt::Padding));
        let mut long = encode(b"www.example.com");
        long.push(0xff);
        assert_eq!(decoded(&long), Err(Corrupt::Padding));
    }
}
