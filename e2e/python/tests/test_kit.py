"""The Rust library for handlers and the SDK agree: each accepts the signatures of the other, and both reject forgeries."""

import base64
import hashlib
from typing import List

import jwt
from qstash import Receiver
from qstash.errors import SignatureError
from support import kit


def signed(it: kit.Case) -> str:
    """A signature as the SDK's own tests create it."""
    claims = {
        "iss": it.issuer,
        "sub": it.url,
        "iat": it.at,
        "nbf": it.not_before,
        "exp": max(it.at, it.not_before) + 300,
        "jti": "jwt_of_python",
        "body": hash_of(it.body) + ("=" if it.is_padded else ""),
    }
    return jwt.encode(claims, it.key, algorithm="HS256")


def hash_of(body: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(body).digest()).decode().rstrip("=")


def accepts(it: kit.Case, signature: str) -> bool:
    if not it.is_text:
        return accepts_bytes(it, signature)
    receiver = Receiver(kit.KEYS["current"], kit.KEYS["next"])
    try:
        receiver.verify(signature=signature, url=it.received_url, body=it.received_body.decode())
    except SignatureError:
        return False
    return True


def accepts_bytes(it: kit.Case, signature: str) -> bool:
    """The SDK accepts only texts. For other bodies, its steps are applied to the bytes."""
    claims = jwt.decode(signature, kit.KEYS["current"], algorithms=["HS256"], issuer="Upstash")
    return claims["sub"] == it.received_url and claims["body"].rstrip("=") == hash_of(it.received_body)


def agree(cases: List[kit.Case], signatures: List[str]) -> None:
    arriving = [kit.tampered(signature, it.tamper) for it, signature in zip(cases, signatures)]
    reasons = kit.verify(cases, arriving)
    assert {it.name: reason for it, reason in zip(cases, reasons)} == {it.name: it.refused for it in cases}
    taken = {it.name: accepts(it, signature) for it, signature in zip(cases, arriving)}
    assert taken == {it.name: it.refused is None for it in cases}


def test_both_accept_and_reject_the_kits_signatures_alike():
    cases = kit.cases()
    signable = [it for it in cases if it.is_for_the_kit]
    assert len(signable) == len(cases) - 3
    agree(signable, kit.sign(signable))


def test_both_accept_and_reject_signatures_of_the_sdks_tests_alike():
    cases = kit.cases()
    agree(cases, [signed(it) for it in cases])
