//! A key and the request to have it certified (reference section 13.2).

use rcgen::{CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256, SanType};

use crate::mesh::identity::Identity;

/// What goes to the CA, and the key that stays.
pub struct Request {
    /// PEM: empty subject, one critical URI SAN, signed with ECDSA P-256 and SHA-256.
    pub csr_pem: String,
    /// PKCS#8 PEM. Secret.
    pub key_pem: String,
}

/// The cryptography library made no key or request.
#[derive(Debug, thiserror::Error)]
#[error("certificate request for {identity}: {error}")]
pub struct RequestError {
    pub identity: Identity,
    pub error: rcgen::Error,
}

/// Makes a new key and a request for `identity`.
pub fn request(identity: &Identity) -> Result<Request, RequestError> {
    make(identity).map_err(|error| RequestError { identity: identity.clone(), error })
}

fn make(identity: &Identity) -> Result<Request, rcgen::Error> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.subject_alt_names = vec![SanType::URI(identity.to_string().try_into()?)];
    let csr_pem = params.serialize_request(&key)?.pem()?;
    Ok(Request { csr_pem, key_pem: key.serialize_pem() })
}

#[cfg(test)]
mod tests {
    use x509_parser::certification_request::X509CertificationRequest;
    use x509_parser::prelude::{FromDer, GeneralName, ParsedExtension};

    use super::*;

    #[test]
    fn the_request_has_no_subject_and_one_critical_name() {
        let uri = "spiffe://cluster.local/ns/default/sa/web";
        let made = request(&uri.parse().unwrap()).unwrap();
        assert!(made.key_pem.starts_with("-----BEGIN PRIVATE KEY-----\n"), "PKCS#8, LF");
        assert!(made.csr_pem.starts_with("-----BEGIN CERTIFICATE REQUEST-----\n"));
        let parsed = pem::parse(&made.csr_pem).unwrap();
        let (rest, csr) = X509CertificationRequest::from_der(parsed.contents()).unwrap();
        assert!(rest.is_empty());
        assert_eq!(csr.certification_request_info.subject.iter().count(), 0);
        assert_eq!(csr.signature_algorithm.algorithm.to_id_string(), "1.2.840.10045.4.3.2");
        // The SAN with its critical flag is seen through the raw attribute: OID, TRUE, then the value.
        let san_critical = [0x06, 0x03, 0x55, 0x1d, 0x11, 0x01, 0x01, 0xff];
        assert!(parsed.contents().windows(san_critical.len()).any(|window| window == san_critical));
        let names: Vec<_> = csr.requested_extensions().unwrap().collect();
        let [ParsedExtension::SubjectAlternativeName(san)] = names[..] else { panic!("{names:?}") };
        assert_eq!(san.general_names, [GeneralName::URI(uri)]);
    }

    #[test]
    fn each_request_has_its_own_key() {
        let identity: Identity = "spiffe://cluster.local/ns/default/sa/web".parse().unwrap();
        assert_ne!(request(&identity).unwrap().key_pem, request(&identity).unwrap().key_pem);
    }
}
