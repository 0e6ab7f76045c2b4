//! The part of the configuration that says where the mesh's data and certificates come from.

use std::path::{Path, PathBuf};

use super::error::ConfigError;
use super::headers;
use super::parse;
use super::proxy_config::{Given, ProxyConfig};
use super::reader::{Origin, Reader};
use super::surroundings::Files;
use super::{Auth, ControlPlane, LocalXds, RootCertificate, Sources};

const IN_KUBERNETES: &str = "https://istiod.istio-system.svc:15012";
const ELSEWHERE: &str = "https://localhost:15012";
const TOKEN_FILE: &str = "./var/run/secrets/tokens/istio-token";

pub fn read(reader: &mut Reader<'_>, documents: &ProxyConfig, files: &dyn Files) -> Sources {
    let in_kubernetes = reader.maybe_text("KUBERNETES_SERVICE_HOST").is_some();
    let default = if in_kubernetes { IN_KUBERNETES } else { ELSEWHERE };
    let xds = ControlPlane {
        address: address(reader, "XDS_ADDRESS", &documents.discovery_address, default),
        root: root(reader, "XDS_ROOT_CA", files),
        alternative_host: reader.maybe_text("ALT_XDS_HOSTNAME"),
        headers: headers::read(reader, "XDS_HEADER_"),
    };
    let ca = ControlPlane {
        address: address(reader, "CA_ADDRESS", &None, default),
        root: root(reader, "CA_ROOT_CA", files),
        alternative_host: reader.maybe_text("ALT_CA_HOSTNAME"),
        headers: headers::read(reader, "CA_HEADER_"),
    };
    Sources {
        xds,
        xds_on_demand: reader.flag("XDS_ON_DEMAND"),
        local_xds: local(reader),
        ca,
        auth: auth(reader, files),
        fake_ca: reader.flag("FAKE_CA"),
        ca_dir: PathBuf::from(reader.text("RINGWAY_CA_DIR")),
        secret_ttl: reader.duration("SECRET_TTL"),
        tls12: reader.word("TLS12_ENABLED"),
        pqc: pqc(reader),
        hybrid: reader.flag("RINGWAY_HYBRID_KEY_EXCHANGE"),
        crl_path: reader.maybe_text("CRL_PATH").filter(|path| !path.is_empty()).map(PathBuf::from),
    }
}

/// The environment, else the documents, else the default. Empty: none.
fn address(
    reader: &mut Reader<'_>,
    name: &'static str,
    documents: &Given<String>,
    default: &str,
) -> Option<String> {
    let (value, origin) = match (reader.raw(name), documents) {
        (Some(value), _) => (value, Origin::Environment),
        (None, Some((value, origin))) => (value.as_str(), origin.clone()),
        (None, None) => (default, Origin::Default),
    };
    reader.note(name, value, origin.clone());
    if value.is_empty() {
        return None;
    }
    let refuse = |reason| {
        let value = value.to_owned();
        match origin {
            Origin::Environment => ConfigError::Uri { name, value, reason },
            Origin::File(_) | Origin::ProxyConfig | Origin::Default => {
                ConfigError::DiscoveryAddress { origin, value, reason }
            }
        }
    };
    parse::uri(value).map_err(|reason| reader.errors.push(refuse(reason))).ok()
}

fn root(reader: &mut Reader<'_>, name: &'static str, files: &dyn Files) -> RootCertificate {
    let value = reader.text(name);
    let is_default = reader.raw(name).is_none();
    if value == "SYSTEM" {
        RootCertificate::System
    } else if is_default || files.exists(Path::new(&value)) {
        RootCertificate::File(value.into())
    } else {
        reader.describe(name, format!("(PEM text of {} bytes)", value.len()));
        RootCertificate::Static(value)
    }
}

fn local(reader: &mut Reader<'_>) -> LocalXds {
    let path = reader.maybe_text("LOCAL_XDS_PATH");
    let inline = reader.maybe_text("LOCAL_XDS");
    if let Some(text) = &inline {
        reader.describe("LOCAL_XDS", format!("(a document of {} bytes)", text.len()));
    }
    match (path, inline) {
        (None, None) => LocalXds::None,
        (Some(path), None) => LocalXds::File(path.into()),
        (None, Some(text)) => LocalXds::Inline(text),
        (Some(path), Some(_)) => {
            reader.errors.push(ConfigError::TwoLocalSources { path });
            LocalXds::None
        }
    }
}

fn auth(reader: &mut Reader<'_>, files: &dyn Files) -> Auth {
    let name = "AUTH_TOKEN";
    match reader.raw(name) {
        Some(value) if files.exists(Path::new(value)) => {
            reader.note(name, value, Origin::Environment);
            Auth::File(value.into())
        }
        Some(token) => {
            reader.note(name, format_args!("(a token of {} bytes)", token.len()), Origin::Environment);
            Auth::Token(token.to_owned())
        }
        None if files.exists(Path::new(TOKEN_FILE)) => {
            reader.note(name, TOKEN_FILE, Origin::Default);
            Auth::File(TOKEN_FILE.into())
        }
        None => Auth::None,
    }
}

/// Another word isn't an error in the reference; but who asks for a policy should hear that there is none.
fn pqc(reader: &mut Reader<'_>) -> bool {
    match reader.maybe_text("COMPLIANCE_POLICY").as_deref() {
        None | Some("") => false,
        Some("pqc") => true,
        Some(other) => {
            let warning = format!("COMPLIANCE_POLICY={other} has no effect; the only policy known is pqc");
            reader.warnings.push(warning);
            false
        }
    }
}
