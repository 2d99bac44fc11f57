"""An OpenID Connect provider as a process, strict about what clients send, with faults that a test chooses.

`python oidc_provider.py` prints its URL. `POST /control` replaces `CONTROL`. It shares no code with nsqadmin's client
except for the signatures.
"""

import base64
import hashlib
import hmac
import json
import secrets
import threading
import time
from typing import Any
from urllib.parse import urlencode

from flask import Flask, redirect, request
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, RSAKey
from werkzeug.serving import make_server

CLIENT_ID, SECRET = "nsqadmin-test", "s3cret+/= x"
CONTROL: dict[str, Any] = {
    "claims": {},  # of the account
    "id_token": {},  # claims of the ID token that differ; None for no such claim
    "user_info": {},
    "sign": "",  # none, hmac, unknown
    "status": {},  # of an endpoint, instead of its answer
    "refuse": "",  # an error instead of a code
    "metadata": {},  # what differs in the description
    "answer": {},  # parameters that the browser brings besides
}

app = Flask(__name__)
control = dict(CONTROL)
keys: list[RSAKey | ECKey] = [RSAKey.generate_key(2048, {"kid": "rsa-1"})]
codes: dict[str, dict[str, str]] = {}
tokens: dict[str, dict[str, Any]] = {}
asked: list[str] = []
released = threading.Event()


@app.before_request
def count() -> Any:
    asked.append(request.path)
    status = control["status"].get(request.path.rpartition("/")[2])
    if status == "hang":
        released.wait(100)
    return ("no JSON", status) if isinstance(status, int) else None


@app.post("/control")
def change() -> Any:
    given = request.get_json()
    released.set()
    released.clear()
    control.update(CONTROL | given)
    if given.get("rotate"):
        keys[:] = [ECKey.generate_key("P-256", {"kid": f"ec-{secrets.token_hex(4)}"})]
    return {"asked": asked}


@app.get("/.well-known/openid-configuration")
def describe() -> Any:
    base = request.host_url.rstrip("/")
    return {
        "issuer": base,
        "authorization_endpoint": f"{base}/authorize",
        "token_endpoint": f"{base}/token",
        "jwks_uri": f"{base}/jwks",
        "userinfo_endpoint": f"{base}/userinfo",
        "end_session_endpoint": f"{base}/end",
        "id_token_signing_alg_values_supported": ["RS256", "ES256"],
        **control["metadata"],
    }


@app.get("/jwks")
def publish_keys() -> Any:
    return KeySet(list(keys)).as_dict(private=False)


@app.get("/authorize")
def authorize() -> Any:
    given = request.args
    assert given["response_type"] == "code"
    assert given["client_id"] == CLIENT_ID
    assert "openid" in given["scope"].split()
    assert given["code_challenge_method"] == "S256"
    assert len(given["state"]) > 20
    assert len(given["nonce"]) > 20
    answer = {"state": given["state"]}
    if control["refuse"]:
        answer |= {"error": control["refuse"], "error_description": "<b>not today</b>"}
    else:
        answer["code"] = secrets.token_urlsafe(16)
        codes[answer["code"]] = dict(given)
    return redirect(f"{given['redirect_uri']}?{urlencode(answer | control['answer'])}")


@app.post("/token")
def give_token() -> Any:
    form, login = request.form, request.authorization
    if login is None or (login.username, login.password) != (CLIENT_ID, SECRET):
        return {"error": "invalid_client"}, 401
    begun = codes.pop(form.get("code", ""), None)  # once only
    challenge = base64.urlsafe_b64encode(hashlib.sha256(form.get("code_verifier", "").encode()).digest()).rstrip(b"=")
    if begun is None or form.get("redirect_uri") != begun["redirect_uri"]:
        return {"error": "invalid_grant", "error_description": "unknown code"}, 400
    if not hmac.compare_digest(challenge.decode(), begun["code_challenge"]):
        return {"error": "invalid_grant", "error_description": "wrong verifier"}, 400
    access_token, now = secrets.token_urlsafe(16), int(time.time())
    half = hashlib.sha256(access_token.encode()).digest()[:16]
    claims = {
        "iss": request.host_url.rstrip("/"),
        "aud": CLIENT_ID,
        "iat": now,
        "exp": now + 300,
        "nonce": begun["nonce"],
        "at_hash": base64.urlsafe_b64encode(half).rstrip(b"=").decode(),
        **control["claims"],
        **control["id_token"],
    }
    tokens[access_token] = {**control["claims"], **control["user_info"]}
    claims = {name: value for name, value in claims.items() if value is not None}
    return {"access_token": access_token, "token_type": "Bearer", "id_token": signed(claims)}


def signed(claims: dict[str, Any]) -> str:
    how, key = control["sign"], keys[0]
    if how in ("none", "hmac"):
        head = {"alg": "none"} if how == "none" else {"alg": "HS256", "kid": key.kid}
        text = b".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (head, claims))
        # The public key as the secret, which everybody knows.
        mac = hmac.digest(key.as_pem(private=False), text, "sha256") if how == "hmac" else b""
        return f"{text.decode()}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"
    if how == "unknown":
        key = RSAKey.generate_key(2048, {"kid": str(key.kid)})
    algorithm = "RS256" if key.key_type == "RSA" else "ES256"
    return jwt.encode({"alg": algorithm, "kid": key.kid}, claims, key)


@app.get("/userinfo")
def user_info() -> Any:
    return tokens[request.headers["Authorization"].removeprefix("Bearer ")]


def main() -> None:
    server = make_server("127.0.0.1", 0, app, threaded=True)
    print(f"http://127.0.0.1:{server.port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
