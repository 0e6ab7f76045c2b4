//! The two documents of section 2.3: `defaultConfig` in the mesh file, and PROXY_CONFIG on top of it.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

use serde::Deserialize;

use super::error::{ConfigError, DocumentError};
use super::reader::Origin;

/// Relative to the working directory.
pub const MESH_FILE: &str = "./etc/istio/config/mesh";
const META_PREFIX: &str = "ISTIO_META_";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mesh {
    default_config: Option<Document>,
}

/// A ProxyConfig document. Unknown keys are ignored, `proxyMetadata` is required: both as in the reference.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    discovery_address: Option<String>,
    proxy_admin_port: Option<u16>,
    stats_port: Option<u16>,
    concurrency: Option<u16>,
    proxy_metadata: BTreeMap<String, String>,
}

/// A value and the document that it came from.
pub type Given<T> = Option<(T, Origin)>;

/// Both documents, merged.
#[derive(Default, Debug)]
pub struct ProxyConfig {
    pub discovery_address: Given<String>,
    pub admin_port: Given<u16>,
    pub stats_port: Given<u16>,
    pub concurrency: Given<u16>,
    /// Keys without the prefix ISTIO_META_.
    pub metadata: BTreeMap<String, String>,
}

impl ProxyConfig {
    /// Reads both; a document with an error is left out and the error is told.
    pub fn read(
        read: &dyn Fn(&Path) -> std::io::Result<String>,
        environment: Option<&str>,
        errors: &mut Vec<ConfigError>,
    ) -> Self {
        let mut merged = Self::default();
        let path = Path::new(MESH_FILE);
        let mesh = match read(path) {
            Ok(text) => parse::<Mesh>(&text).map(|mesh| mesh.and_then(|mesh| mesh.default_config)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        };
        match mesh {
            Ok(document) => merged.add(document, &Origin::File(path.to_owned())),
            Err(reason) => errors.push(ConfigError::MeshFile { path: path.to_owned(), reason }),
        }
        match environment.map_or(Ok(None), parse::<Document>) {
            Ok(document) => merged.add(document, &Origin::ProxyConfig),
            Err(reason) => errors.push(ConfigError::ProxyConfig(reason)),
        }
        merged
    }

    fn add(&mut self, document: Option<Document>, origin: &Origin) {
        let Some(document) = document else { return };
        replace(&mut self.discovery_address, document.discovery_address, origin);
        replace(&mut self.admin_port, document.proxy_admin_port, origin);
        replace(&mut self.stats_port, document.stats_port, origin);
        replace(&mut self.concurrency, document.concurrency, origin);
        self.metadata.extend(document.proxy_metadata.into_iter().map(|(key, value)| {
            let key = key.strip_prefix(META_PREFIX).map(str::to_owned).unwrap_or(key);
            (key, value)
        }));
    }
}

fn replace<T>(held: &mut Given<T>, value: Option<T>, origin: &Origin) {
    if let Some(value) = value {
        *held = Some((value, origin.clone()));
    }
}

/// An empty document says nothing.
fn parse<T: for<'a> Deserialize<'a>>(text: &str) -> Result<Option<T>, DocumentError> {
    if text.trim().is_empty() {
        return Ok(None);
    }
    serde_saphyr::from_str(text).map(Some).map_err(|error| DocumentError::Yaml(error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn merged(file: Option<&str>, environment: Option<&str>) -> (ProxyConfig, Vec<String>) {
        let mut errors = Vec::new();
        let read = |path: &Path| {
            assert_eq!(path, Path::new(MESH_FILE));
            file.map(str::to_owned).ok_or_else(|| ErrorKind::NotFound.into())
        };
        let config = ProxyConfig::read(&read, environment, &mut errors);
        (config, errors.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn the_environment_wins_key_by_key_and_metadata_is_united() {
        let file = "defaultConfig:\n  discoveryAddress: istiod:15012\n  statsPort: 1\n  concurrency: 3\n  \
                    unknown: 1\n  proxyMetadata:\n    ISTIO_META_A: one\n    B: two\n";
        let (config, errors) =
            merged(Some(file), Some("statsPort: 2\nproxyMetadata:\n  ISTIO_META_B: three\n"));
        assert!(errors.is_empty(), "{errors:?}");
        let from_file = Origin::File(MESH_FILE.into());
        assert_eq!(config.discovery_address, Some(("istiod:15012".to_owned(), from_file.clone())));
        assert_eq!(config.stats_port, Some((2, Origin::ProxyConfig)));
        assert_eq!(config.concurrency, Some((3, from_file)));
        let metadata: Vec<_> = config.metadata.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(metadata, [("A", "one"), ("B", "three")]);
    }

    #[test]
    fn missing_and_empty_documents_are_fine() {
        for (file, environment) in
            [(None, None), (Some(""), Some("")), (Some("trustDomain: x\n"), Some("\n"))]
        {
            assert_eq!(merged(file, environment).1, [""; 0]);
        }
    }

    #[test]
    fn errors_name_the_document() {
        let (_, errors) = merged(Some("defaultConfig:\n  statsPort: many\n"), Some("statsPort: 1\n"));
        let [file, environment] = errors.as_slice() else { panic!("two errors are expected: {errors:?}") };
        assert!(
            file.starts_with(
                "error parsing proxy config: failed parsing mesh config file ./etc/istio/config/mesh: "
            ),
            "{file}"
        );
        assert!(
            environment.starts_with("error parsing proxy config: failed parsing proxy config env: "),
            "{environment}"
        );
        assert!(environment.contains("proxyMetadata"), "{environment}");
    }

    #[test]
    fn an_unreadable_mesh_file_is_an_error() {
        let mut errors = Vec::new();
        let read = |_: &Path| Err(io::Error::from(ErrorKind::PermissionDenied));
        ProxyConfig::read(&read, None, &mut errors);
        assert!(errors[0].to_string().contains("permission denied"), "{}", errors[0]);
    }
}
