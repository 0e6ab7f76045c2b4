//! Where a server listens: TCP addresses, and sockets in the file system.

use std::fmt;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};

/// A connection of either kind.
pub trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Wire for S {}

/// Bound, not served yet.
pub enum Bound {
    Tcp(SocketAddr, std::net::TcpListener),
    Unix(SocketFile, std::os::unix::net::UnixListener),
}

/// Served.
pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Bound {
    pub fn tcp(address: SocketAddr) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Self::Tcp(listener.local_addr()?, listener))
    }

    /// The socket appears under its name when it is complete, so nobody meets one that is half made.
    pub fn unix(path: &Path) -> io::Result<Self> {
        match fs::symlink_metadata(path) {
            Ok(there) if !there.file_type().is_socket() => {
                return Err(io::Error::new(
                    io::ErrorKind::AlreadyExists,
                    "there is a file that is no socket",
                ));
            }
            Ok(_) | Err(_) => {}
        }
        let mut fresh = path.as_os_str().to_owned();
        fresh.push(format!(".{}", std::process::id()));
        let fresh = PathBuf::from(fresh);
        // Left by a process of the same number that was killed in between.
        let _ = fs::remove_file(&fresh);
        let listener = std::os::unix::net::UnixListener::bind(&fresh)?;
        let made = (|| {
            fs::set_permissions(&fresh, fs::Permissions::from_mode(0o600))?;
            listener.set_nonblocking(true)?;
            let file = SocketFile::of(&fresh, path)?;
            fs::rename(&fresh, path)?;
            Ok(file)
        })();
        match made {
            Ok(file) => Ok(Self::Unix(file, listener)),
            Err(error) => {
                let _ = fs::remove_file(&fresh);
                Err(error)
            }
        }
    }

    /// None for a socket in the file system.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address, _) => Some(*address),
            Self::Unix(..) => None,
        }
    }

    /// Must be called on the control thread's runtime.
    pub fn listen(self) -> io::Result<(Listener, Option<SocketFile>)> {
        Ok(match self {
            Self::Tcp(_, listener) => (Listener::Tcp(TcpListener::from_std(listener)?), None),
            Self::Unix(file, listener) => (Listener::Unix(UnixListener::from_std(listener)?), Some(file)),
        })
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address, _) => address.fmt(f),
            Self::Unix(file, _) => file.path.display().fmt(f),
        }
    }
}

impl Listener {
    pub async fn accept(&self) -> io::Result<Box<dyn Wire>> {
        Ok(match self {
            Self::Tcp(listener) => Box::new(listener.accept().await?.0),
            Self::Unix(listener) => Box::new(listener.accept().await?.0),
        })
    }
}

/// A socket's file. Dropping it removes the file, unless another socket has taken the name meanwhile.
pub struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl SocketFile {
    fn of(there: &Path, named: &Path) -> io::Result<Self> {
        let meta = fs::symlink_metadata(there)?;
        Ok(Self { path: named.to_owned(), device: meta.dev(), inode: meta.ino() })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|meta| (meta.dev(), meta.ino()) == (self.device, self.inode));
        if ours {
            let _ = fs::remove_file(&self.path);
        }
    }
}
