//! The fuzz targets' bodies on inputs from a fixed seed: random ones, and right ones with a few bytes wrong.

use super::super::{connect_block, fuzz_frames, fuzz_hpack};
use super::{HEAD, block, connect, frame, seeded};

#[test]
fn fuzz_frames_survives_random_and_mutated_ones() {
    let mut random = seeded(0x5eed);
    for turn in 0..6_000 {
        let mut input = vec![random.u8(..), random.u8(..)];
        if turn % 4 == 0 {
            input.extend((0..random.usize(..200)).map(|_| random.u8(..)));
        } else {
            for _ in 0..random.usize(1..20) {
                input.extend(likely(&mut random));
            }
        }
        for _ in 0..random.usize(..4) {
            let at = random.usize(..input.len());
            input[at] = random.u8(..);
        }
        fuzz_frames(&input);
    }
}

fn likely(random: &mut fastrand::Rng) -> Vec<u8> {
    let stream = random.u32(..12);
    let flags = random.u8(..) & [0, 1, 4, 5, 8, 9, 0xff][random.usize(..7)];
    match random.u8(..10) {
        0 | 1 => connect(stream | 1, random.bool()),
        2 => frame(1, 4, stream | 1, &[0x88]),
        3 | 4 => frame(0, flags, stream | 1, &vec![random.u8(..); random.usize(..400)]),
        5 => frame(1, flags & !4, stream | 1, &block(&[(":method", "GET")])),
        6 => frame(9, flags, stream | 1, &block(&[("a", "b")])),
        7 => frame(8, 0, stream, &random.u32(..).to_be_bytes()),
        8 => {
            let pair = [&[0, random.u8(..8)][..], &random.u32(..).to_be_bytes()].concat();
            frame(4, 0, 0, &pair)
        }
        _ => frame(random.u8(..11), flags, stream, &vec![0; random.usize(..20)]),
    }
}

#[test]
fn fuzz_hpack_survives_random_and_mutated_blocks() {
    let mut random = seeded(0xb10c);
    for _ in 0..6_000 {
        let mut input = Vec::new();
        for _ in 0..random.usize(1..5) {
            let mut bytes = Vec::new();
            match random.u8(..3) {
                0 => bytes.extend((0..random.usize(..100)).map(|_| random.u8(..))),
                1 => connect_block(&mut bytes, &HEAD),
                _ => {
                    bytes.extend_from_slice(&[
                        0x40,
                        0x83,
                        random.u8(..),
                        random.u8(..),
                        random.u8(..),
                        2,
                        1,
                        1,
                    ]);
                    bytes.extend((0..random.usize(..20)).map(|_| 0x80 | random.u8(60..66)));
                }
            }
            if random.bool() && !bytes.is_empty() {
                let at = random.usize(..bytes.len());
                bytes[at] ^= 1 << random.u8(..8);
            }
            input.extend_from_slice(&u16::try_from(bytes.len()).unwrap().to_be_bytes());
            input.extend(bytes);
        }
        fuzz_hpack(&input);
    }
}
