//! Sealing and opening full and small records, by both libraries.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use ringway::tls::aead::Library;
use ringway::tls::keyschedule::{Direction, Suite};
use ringway::tls::record::{ContentType, HEADER_BYTES, Opener, Reading, Sealer, TRAILER_BYTES};
use ringway::tls::upkeep::Pending;

const SUITE: Suite = Suite::Aes256GcmSha384;

fn direction() -> Option<Direction> {
    Direction::new(SUITE, &[7; 48], 0)
}

fn records(criterion: &mut Criterion) {
    for library in [Library::Ring, Library::AwsLc] {
        for bytes in [100, 16_384] {
            let mut group = criterion.benchmark_group(format!("{library}/{bytes}"));
            group.throughput(Throughput::Bytes(bytes * RECORDS as u64));
            let length = HEADER_BYTES + usize::try_from(bytes).unwrap_or(0) + TRAILER_BYTES;
            let mut record = vec![1; length];
            // A new sealer for each batch: a key may seal only so many records.
            let sealer = || direction().and_then(|at| Sealer::restore(at, library).ok());
            let opener = || {
                let reading = Reading {
                    peer_is_server: true,
                    pending: Pending::Nothing,
                    upkeep_in_a_row: 0,
                    data_bytes: 0,
                };
                direction().and_then(|at| Opener::restore(at, reading, library).ok())
            };
            group.bench_function("seal", |bencher| {
                bencher.iter_batched_ref(
                    sealer,
                    |seal| {
                        for _ in 0..RECORDS {
                            let sealed = seal.as_mut().map(|seal| seal.seal(KIND, &mut record));
                            assert_eq!(sealed, Some(Ok(())));
                        }
                    },
                    BatchSize::SmallInput,
                );
            });
            let wire = || {
                let mut seal = sealer();
                let mut wire = vec![1; length * RECORDS];
                for record in wire.chunks_mut(length) {
                    assert_eq!(seal.as_mut().map(|seal| seal.seal(KIND, record)), Some(Ok(())));
                }
                (opener(), wire)
            };
            group.bench_function("open", |bencher| {
                bencher.iter_batched_ref(
                    wire,
                    |(open, wire)| {
                        for record in wire.chunks_mut(length) {
                            assert!(matches!(open.as_mut().map(|open| open.open(record)), Some(Ok(Some(_)))));
                        }
                    },
                    BatchSize::SmallInput,
                );
            });
            group.finish();
        }
    }
}

const KIND: ContentType = ContentType::ApplicationData;
/// Records in one iteration: divide the printed time by it.
const RECORDS: usize = 16;

criterion_group!(benches, records);
criterion_main!(benches);
