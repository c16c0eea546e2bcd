//! Receivers of the catalogue that speak TLS and HTTP/2, each with a certificate and a script. The tests in `receivers`
//! use this file too.

use crate::cases::{Answer, Expect, Fails};
use crate::script::{OK, Step, answer, send};
use posthaste_engine::outcome::ErrorClass;
use rcgen::{BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;

/// The name in the receivers' certificates.
pub(crate) const HOST: &str = "hook.example";

/// A receiver with a certificate, or with bytes instead of a handshake.
pub(crate) struct SecureCase {
    pub(crate) id: &'static str,
    /// `None` plays the script on the bare connection.
    pub(crate) acceptor: Option<TlsAcceptor>,
    pub(crate) script: Vec<Step>,
    pub(crate) expect: Expect,
    /// Whether the URL has the receiver's address instead of [`HOST`].
    pub(crate) by_address: bool,
}

impl SecureCase {
    fn new(id: &'static str, acceptor: TlsAcceptor, script: Vec<Step>, expect: Expect) -> SecureCase {
        SecureCase { id, acceptor: Some(acceptor), script, expect, by_address: false }
    }

    /// Sends only these bytes, so the handshake fails.
    fn bare(id: &'static str, script: Vec<Step>) -> SecureCase {
        SecureCase { id, acceptor: None, script, expect: Fails(ErrorClass::Tls), by_address: false }
    }
}

/// A private authority.
pub(crate) struct Authority {
    pub(crate) issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).expect("params");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("key");
        Authority { issuer: CertifiedIssuer::self_signed(params, key).expect("authority") }
    }

    /// A server for these names that speaks the first of these protocols that the client offers.
    pub(crate) fn acceptor(&self, names: &[&str], protocols: &[&str]) -> TlsAcceptor {
        let key = KeyPair::generate().expect("key");
        let certificate = params(names).signed_by(&key, &self.issuer).expect("certificate");
        acceptor(&certificate, &key, WebPkiClientVerifier::no_client_auth(), protocols)
    }

    /// A server that requires a client certificate of this authority.
    fn acceptor_for_known_clients(&self) -> TlsAcceptor {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).expect("authority");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let known_only = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().expect("roots");
        let key = KeyPair::generate().expect("key");
        let certificate = params(&[HOST]).signed_by(&key, &self.issuer).expect("certificate");
        acceptor(&certificate, &key, known_only, &[])
    }

    /// The certificate as a PEM file of trusted authorities.
    pub(crate) fn pem(&self) -> String {
        self.issuer.pem()
    }
}

pub(crate) fn params(names: &[&str]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    CertificateParams::new(names).expect("names")
}

pub(crate) fn acceptor(
    certificate: &Certificate,
    key: &KeyPair,
    clients: Arc<dyn ClientCertVerifier>,
    protocols: &[&str],
) -> TlsAcceptor {
    let key = PrivateKeyDer::try_from(key.serialize_der()).expect("key");
    let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_client_cert_verifier(clients)
        .with_single_cert(vec![certificate.der().clone()], key)
        .expect("server");
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    TlsAcceptor::from(Arc::new(config))
}

/// Servers that a client which trusts `ours` must reject, or that reject the client.
pub(crate) fn certificate_cases(ours: &Authority) -> Vec<SecureCase> {
    let failing = |id, acceptor| SecureCase::new(id, acceptor, answer(OK), Fails(ErrorClass::Tls));
    let key = KeyPair::generate().expect("key");
    let self_signed = params(&[HOST]).self_signed(&key).expect("certificate");
    let self_signed = acceptor(&self_signed, &key, WebPkiClientVerifier::no_client_auth(), &[]);
    let vanishing = [answer("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"), vec![Step::Vanish]].concat();
    let alerting = vec![Step::Read, Step::Alert, Step::Hang];
    let plain = || ours.acceptor(&[HOST], &[]);
    vec![
        failing("tls-self-signed", self_signed),
        failing("tls-unknown-ca", Authority::new().acceptor(&[HOST], &[])),
        failing("tls-weak", weak_acceptor()),
        failing("tls-client-cert", ours.acceptor_for_known_clients()),
        SecureCase { by_address: true, ..failing("tls-ip-no-san", plain()) },
        SecureCase::new("tls-alert-after-request", plain(), alerting, Fails(ErrorClass::Tls)),
        SecureCase::new("tls-close-no-notify", plain(), vanishing, Answer(200)),
    ]
}

/// An authority with a key of 1,024 bits and a SHA-1 signature. No library creates such certificates any more.
pub(crate) const WEAK_AUTHORITY: &str = include_str!("weak/authority.pem");

fn weak_acceptor() -> TlsAcceptor {
    let certificate = CertificateDer::from_pem_slice(include_bytes!("weak/receiver.pem")).expect("certificate");
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("weak/receiver-key.pem")).expect("key");
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .expect("server");
    TlsAcceptor::from(Arc::new(config))
}

/// Handshakes that never finish or that fail.
pub(crate) fn handshake_cases() -> Vec<SecureCase> {
    let alert = |description: u8| vec![Step::ReadBytes(5), Step::Send(vec![0x15, 3, 3, 0, 2, 2, description])];
    // A handshake message with a declared length of 10 MiB.
    let huge = [&[0x16, 3, 3, 0x40, 0, 11, 0xa0, 0, 0][..], &[0; 0x4000 - 4]].concat();
    // The beginning of a ServerHello in a record of 16 KiB.
    let hello = vec![0x16, 3, 3, 0x40, 0, 2, 0, 0x3f, 0xfc, 3, 3, 0];
    vec![
        SecureCase::bare("tls-hang", vec![Step::Hang]),
        SecureCase::bare("tls-drip", vec![Step::ReadBytes(5), Step::Drip(hello)]),
        SecureCase::bare("tls-tls10", alert(70)),
        SecureCase::bare("tls-no-common-cipher", alert(40)),
        SecureCase::bare("tls-huge-chain", vec![Step::ReadBytes(5), Step::Flood(huge)]),
    ]
}

/// One HTTP/2 frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let [high, low] = u16::try_from(payload.len()).expect("small frame").to_be_bytes();
    [&[0, high, low, kind, flags, 0, 0, 0, stream][..], payload].concat()
}

const PREFACE_AND_SETTINGS: usize = 24 + 9;

/// ":status: 103" as a literal.
pub(crate) fn early_hints(stream: u8) -> Vec<u8> {
    frame(1, 4, stream, &[0x08, 3, b'1', b'0', b'3'])
}

/// Receivers that speak HTTP/2, most of them incorrectly.
pub(crate) fn http2_cases(ours: &Authority) -> Vec<SecureCase> {
    let settings = frame(4, 0, 0, &[]);
    let no_window = frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let after_settings = |bytes: Vec<u8>| {
        vec![Step::ReadBytes(PREFACE_AND_SETTINGS), Step::Send([settings.clone(), bytes].concat()), Step::Hang]
    };
    let floods = |start: Vec<u8>, again: Vec<u8>| {
        vec![
            Step::ReadBytes(PREFACE_AND_SETTINGS),
            Step::Send([settings.clone(), start].concat()),
            Step::Flood(again.repeat(100)),
        ]
    };
    // ":status: 200", a header of 4,000 bytes that is added to the table, and 200 references to it of one byte each.
    let bomb = [&[0x88, 0x40, 1, b'a', 0x7f, 0xa1, 0x1e][..], &[b'x'; 4_000], &[0xbe; 200]].concat();
    let answers =
        |bytes: Vec<u8>| vec![Step::ReadUntil(b"hello"), Step::Send([settings.clone(), bytes].concat()), Step::Hang];
    let ok = frame(1, 5, 1, &[0x88]);
    // GET https /: the request that stream 2 would answer.
    let push = frame(5, 4, 1, &[0, 0, 0, 2, 0x82, 0x87, 0x84]);
    // The request must have arrived first: a response without a request is another error.
    let interim =
        vec![Step::ReadUntil(b"hello"), Step::Send(settings.clone()), Step::Flood(early_hints(1).repeat(100))];
    let cases = vec![
        ("h2-ok", answers(ok.clone()), Answer(200)),
        ("h2-push", answers([ok, push].concat()), Answer(200)),
        ("h2-goaway-before", after_settings(frame(7, 0, 0, &[0; 8])), Fails(ErrorClass::Closed)),
        ("h2-ping-flood", floods(Vec::new(), frame(6, 0, 0, &[7; 8])), Fails(ErrorClass::Protocol)),
        (
            "h2-continuation-flood",
            floods(frame(1, 0, 1, &[0x88]), frame(9, 0, 1, b"\x00\x01a\x01b")),
            Fails(ErrorClass::Protocol),
        ),
        ("h2-hpack-bomb", answers(frame(1, 5, 1, &bomb)), Fails(ErrorClass::Protocol)),
        (
            "h2-window-zero",
            vec![Step::ReadBytes(PREFACE_AND_SETTINGS), Step::Send(no_window), Step::Hang],
            Fails(ErrorClass::Timeout),
        ),
        (
            "h2-bad-preface",
            vec![Step::ReadBytes(PREFACE_AND_SETTINGS), send(OK), Step::Hang],
            Fails(ErrorClass::Protocol),
        ),
        ("h2-informational-flood", interim, Fails(ErrorClass::Protocol)),
    ];
    let with_certificate = |(id, script, expect)| SecureCase::new(id, ours.acceptor(&[HOST], &["h2"]), script, expect);
    cases.into_iter().map(with_certificate).collect()
}
