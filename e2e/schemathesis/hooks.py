"""Keeps generated requests on this machine: every URL in a request leads to a closed loopback port."""

import re

import schemathesis

#: Nothing listens there.
NOWHERE = "http://127.0.0.1:9/"
#: Text that could be a URL to the server, verbatim or percent-encoded.
_URL = re.compile(r"https?(?::|%3a)(?:/|%2f|\\)*[^\s\"',]*", re.IGNORECASE)
_LOOPBACK = re.compile(r"https?(?::|%3a)(?:/|%2f){2}127\.0\.0\.1(?::|%3a)9(?:[/?#%]|$)", re.IGNORECASE)


@schemathesis.hook
def before_call(context, case, kwargs):
    case.path_parameters = _kept_here(case.path_parameters)
    case.query = _kept_here(case.query)
    case.headers = _kept_here(case.headers)
    case.body = _kept_here(case.body)


def _kept_here(value):
    """The same value, with other URLs replaced."""
    if isinstance(value, str):
        return _URL.sub(lambda found: found[0] if _LOOPBACK.match(found[0]) else NOWHERE, value)
    if isinstance(value, bytes):
        return _kept_here(value.decode("latin-1")).encode("latin-1")
    if isinstance(value, list):
        return [_kept_here(item) for item in value]
    if isinstance(value, dict):
        return {_kept_here(name): _kept_here(item) for name, item in value.items()}
    if hasattr(value, "items"):
        return type(value)({name: _kept_here(item) for name, item in value.items()})
    return value
