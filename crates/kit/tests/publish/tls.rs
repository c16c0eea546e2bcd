//! Trust over TLS: the certificates that the system trusts, for the right name.

use posthaste_kit::call::Class;
use posthaste_kit::retry::RetryPolicy;
use posthaste_kit::service::ServiceClient;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// The URL that the child calls.
const SERVICE: &str = "POSTHASTE_KIT_TEST_SERVICE";

/// An authority, and a service on loopback with a certificate of it for this name. It responds with 7.
async fn service(name: &str) -> (CertifiedIssuer<'static, KeyPair>, SocketAddr) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &authority).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = config.with_no_client_auth().with_single_cert(vec![certificate.der().clone()], key).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // A client that does not trust it closes the connection.
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") && stream.read_buf(&mut request).await.is_ok_and(|read| read > 0) {}
            let answer = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 1\r\n\r\n7";
            drop(stream.write_all(answer).await);
            drop(stream.shutdown().await);
        }
    });
    (authority, address)
}

async fn ask(url: &str) -> Result<u32, posthaste_kit::call::CallError> {
    let client = ServiceClient::new(url).unwrap().policy(RetryPolicy::once());
    client.get("/").send().await?.json()
}

/// The child's part: only a separate process can trust other certificates. Without its environment variable it does
/// nothing.
#[tokio::test]
async fn the_caller_that_trusts_another_authority() {
    let Ok(service) = std::env::var(SERVICE) else { return };
    assert_eq!(ask(&service).await.unwrap(), 7);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_trusted_certificate_for_the_name_is_accepted() {
    let directory = TempDir::new().unwrap();
    for (name, is_right) in [("localhost", true), ("other.example", false)] {
        let (authority, address) = service(name).await;
        let url = format!("https://localhost:{}", address.port());
        let error = ask(&url).await.unwrap_err();
        assert_eq!((error.class(), error.is_untouched()), (Class::Network, true), "{}", error.chain());
        let pem = directory.path().join("authority.pem");
        std::fs::write(&pem, authority.pem()).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tls::the_caller_that_trusts_another_authority"])
            .env("SSL_CERT_FILE", &pem)
            .env_remove("SSL_CERT_DIR")
            .env(SERVICE, &url)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(said.contains("running 1 test"), "{said}");
        assert_eq!(child.status.success(), is_right, "{name}: {said}");
    }
}
