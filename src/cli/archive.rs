//! A gzipped tar archive (POSIX.1-1988 ustar) of small texts: written by `dump`, and read by `why --file`.

use std::io::{Read, Write};

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

const BLOCK: usize = 512;
/// What is read of an archive: a dump of a million workloads is half of it.
const READ_BYTES: u64 = 2 << 30;
/// How a gzipped file begins (RFC 1952 section 2.3.1).
pub const GZIP: [u8; 2] = [0x1f, 0x8b];

/// An archive in the making.
pub struct Archive {
    out: GzEncoder<Vec<u8>>,
    directory: String,
    /// Seconds since 1970 that every file is dated with.
    time: u64,
}

impl Archive {
    /// All files stand in this directory.
    pub fn new(directory: &str, time: u64) -> Self {
        Self {
            out: GzEncoder::new(Vec::new(), Compression::default()),
            directory: directory.to_owned(),
            time,
        }
    }

    pub fn add(&mut self, name: &str, content: &[u8]) -> Result<()> {
        let path = format!("{}/{name}", self.directory);
        self.out
            .write_all(&header(&path, content.len(), self.time).context("a name too long for an archive")?)?;
        self.out.write_all(content)?;
        let rest = content.len().next_multiple_of(BLOCK) - content.len();
        self.out.write_all(&vec![0; rest])?;
        Ok(())
    }

    pub fn finish(mut self) -> Result<Vec<u8>> {
        self.out.write_all(&[0; 2 * BLOCK])?;
        Ok(self.out.finish()?)
    }
}

/// Name, mode, owners, size, time, checksum, kind, as octal texts at fixed places.
fn header(path: &str, size: usize, time: u64) -> Option<[u8; BLOCK]> {
    let mut header = [0; BLOCK];
    let mut put = |at: usize, room: usize, text: &str| {
        let place = header.get_mut(at..at + text.len()).filter(|_| text.len() <= room)?;
        place.copy_from_slice(text.as_bytes());
        Some(())
    };
    put(0, 100, path)?;
    put(100, 8, "0000600\0")?;
    put(108, 8, "0000000\0")?;
    put(116, 8, "0000000\0")?;
    put(124, 12, &format!("{size:011o}\0"))?;
    put(136, 12, &format!("{time:011o}\0"))?;
    put(148, 8, "        ")?;
    put(156, 1, "0")?;
    put(257, 8, "ustar\x0000")?;
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header.get_mut(148..156)?.copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Some(header)
}

/// The file of this name, in whichever directory it stands.
pub fn file(archive: &[u8], name: &str) -> Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    GzDecoder::new(archive).take(READ_BYTES).read_to_end(&mut bytes).context("it can't be unzipped")?;
    let mut rest = bytes.as_slice();
    while let Some((header, after)) = rest.split_at_checked(BLOCK) {
        let text = |from: usize, to: usize| {
            let field = header.get(from..to).unwrap_or_default();
            let end = field.iter().position(|byte| matches!(byte, 0 | b' ')).unwrap_or(field.len());
            String::from_utf8_lossy(field.get(..end).unwrap_or_default()).into_owned()
        };
        let Ok(size) = usize::from_str_radix(&text(124, 136), 8) else { break };
        let content = after.get(..size).context("it is cut off")?;
        if text(0, 100).rsplit('/').next() == Some(name) {
            return Ok(Some(content.to_vec()));
        }
        rest = after.get(size.next_multiple_of(BLOCK)..).unwrap_or_default();
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn what_is_written_is_read_by_us_and_by_tar() {
        let mut archive = Archive::new("top", 1_700_000_000);
        let long = "x".repeat(2_000);
        archive.add("a.txt", b"alpha\n").unwrap();
        archive.add("b.txt", long.as_bytes()).unwrap();
        archive.add("empty", b"").unwrap();
        let bytes = archive.finish().unwrap();
        assert_eq!(bytes[..2], GZIP);
        assert_eq!(file(&bytes, "b.txt").unwrap().as_deref(), Some(long.as_bytes()));
        assert_eq!(file(&bytes, "empty").unwrap().as_deref(), Some(&b""[..]));
        assert_eq!(file(&bytes, "c.txt").unwrap(), None);
        let mut tar = Command::new("tar")
            .args(["-xzOf", "-", "top/a.txt"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        tar.stdin.take().unwrap().write_all(&bytes).unwrap();
        let output = tar.wait_with_output().unwrap();
        assert!(output.status.success() && output.stdout == b"alpha\n");
    }

    #[test]
    fn hostile_archives_are_errors_and_no_panics() {
        assert!(file(b"not an archive", "a").is_err());
        let mut archive = Archive::new("top", 0);
        assert!(archive.add(&"n".repeat(200), b"").is_err());
        archive.add("a", &[b'x'; 5_000]).unwrap();
        let whole = archive.finish().unwrap();
        assert!(file(&whole[..whole.len() / 2], "z").is_err());
    }
}
