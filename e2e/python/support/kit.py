"""The kit's example `signatures`, and the deliveries on which it and the SDKs must agree."""

import base64
import json
import subprocess
import time
from dataclasses import dataclass
from typing import Any, Dict, List, Optional

from support.server import REPOSITORY

_PROGRAM = REPOSITORY / "target" / "debug" / "examples" / "signatures"
_TABLE = json.loads((REPOSITORY / "e2e" / "signatures.json").read_text(encoding="utf-8"))
_URL = "https://app.example.com/jobs"
#: Options that the kit's test helper does not support.
_FOR_OTHERS = {"unpadded", "issuer", "not_before"}

KEYS: Dict[str, str] = _TABLE["keys"]


@dataclass(frozen=True)
class Case:
    """A delivery, with bodies as bytes and times as seconds since 1970."""

    name: str
    is_for_the_kit: bool
    is_text: bool
    url: str
    body: bytes
    key: str
    at: int
    not_before: int
    issuer: str
    is_padded: bool
    received_url: str
    received_body: bytes
    tamper: Optional[str]
    refused: Optional[str]


def cases() -> List[Case]:
    now = int(time.time())
    return [_case(row, now) for row in _TABLE["cases"]]


def _case(row: Dict[str, Any], now: int) -> Case:
    signed, received = row["signed"], row.get("received", {})
    url, body = signed.get("url", _URL), _body(signed)
    is_changed = "body" in received or "base64" in received
    return Case(
        name=row["name"],
        is_for_the_kit=not _FOR_OTHERS & signed.keys(),
        is_text="base64" not in signed,
        url=url,
        body=body,
        key=KEYS[signed.get("key", "current")],
        at=now - signed.get("seconds_ago", 0),
        not_before=now + signed["not_before"] if "not_before" in signed else 0,
        issuer=signed.get("issuer", "Upstash"),
        is_padded=not signed.get("unpadded", False),
        received_url=received.get("url", url),
        received_body=_body(received) if is_changed else body,
        tamper=row.get("tamper"),
        refused=row.get("refused"),
    )


def _body(of: Dict[str, Any]) -> bytes:
    return base64.b64decode(of["base64"]) if "base64" in of else (of["body"] * of.get("times", 1)).encode()


def tampered(token: str, part: Optional[str]) -> str:
    """The token as it arrives."""
    header, claims, mac = token.split(".")
    if part == "claims":
        claims = _other(claims)
    elif part == "mac":
        mac = _other(mac)
    elif part == "none":
        header, mac = base64.urlsafe_b64encode(b'{"alg":"none","typ":"JWT"}').decode().rstrip("="), ""
    else:
        assert part is None, part
    return f"{header}.{claims}.{mac}"


def _other(text: str) -> str:
    return text[:8] + ("B" if text[8] == "A" else "A") + text[9:]


def sign(signable: List[Case]) -> List[str]:
    """Signatures of the kit's test helper."""
    return _run("sign", [{"url": it.url, "key": it.key, "body": _base64(it.body), "at": it.at} for it in signable])


def verify(received: List[Case], signatures: List[str]) -> List[Optional[str]]:
    """Why the kit's receiver rejects each of these; None if it accepts it."""
    arrived = [
        {**KEYS, "url": it.received_url, "body": _base64(it.received_body), "signature": signature}
        for it, signature in zip(received, signatures)
    ]
    return _run("verify", arrived)


def _base64(body: bytes) -> str:
    return base64.b64encode(body).decode()


def _run(command: str, given: List[Dict[str, Any]]) -> List[Any]:
    ended = subprocess.run([_PROGRAM, command], input=json.dumps(given).encode(), stdout=subprocess.PIPE, check=True)
    return json.loads(ended.stdout)
