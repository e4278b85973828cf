"""Signatures are those of the SDK, character by character."""

import datetime as dt
import random
import string
from unittest import mock

import pytest
from botocore import auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as SdkCredentials

from mds.storage._s3_requests import Credentials, Scope, sign, timestamp

WORDS = string.ascii_letters + string.digits + "+/=-_.~"


def by_the_sdk(credentials, scope, host, path, headers, now):
    """The Authorization that botocore puts on a GET."""
    request = AWSRequest("GET", f"https://{host}{path}", headers=dict(headers))
    known = SdkCredentials(credentials.access_key, credentials.secret_key, credentials.token)
    with mock.patch.object(auth, "get_current_datetime", return_value=now, create=True):
        auth.S3SigV4Auth(known, scope.service, scope.region).add_auth(request)
    return request.headers


def random_case(seed):
    """Credentials, scope, host, path, headers and a time."""
    rng = random.Random(seed)

    def word(most):
        return "".join(rng.choices(WORDS, k=rng.randint(1, most)))

    credentials = Credentials(word(20), word(40), word(300) if rng.random() < 0.5 else None)
    scope = Scope(rng.choice(["us-east-1", "eu-west-3", "auto"]), rng.choice(["s3", "s3-outposts"]))
    host = rng.choice(["b.s3.eu-west-3.amazonaws.com", "127.0.0.1:9000", "b.r2.cloudflare.com"])
    parts = ["a%20b", "%2B", "%25", "%C3%A9", "", "x~y", "a.b-c_d", "%22%27", "..."]
    path = "/" + "/".join(rng.choices(parts, k=rng.randint(1, 6))) + "/x"
    headers = {"range": f"bytes={rng.randrange(10**9)}-{rng.randrange(10**10)}"}
    if rng.random() < 0.5:
        headers["x-amz-request-payer"] = "requester"
    now = dt.datetime(2020, 1, 1, tzinfo=dt.timezone.utc) + dt.timedelta(
        seconds=rng.randrange(10**9)
    )
    return credentials, scope, host, path, headers, now


@pytest.mark.parametrize("seed", range(300))
def test_a_signature_is_that_of_the_sdk(seed):
    """For keys, tokens, regions, paths and headers of every kind."""
    credentials, scope, host, path, headers, now = random_case(seed)
    theirs = by_the_sdk(credentials, scope, host, path, headers, now)
    stamp = theirs["X-Amz-Date"]
    mine = {
        "host": host,
        **headers,
        "x-amz-date": stamp,
        "x-amz-content-sha256": theirs["X-Amz-Content-SHA256"],
    }
    if credentials.token:
        mine["x-amz-security-token"] = credentials.token
    assert sign(credentials, scope, path, mine, stamp) == theirs["Authorization"]


def test_the_example_of_the_documentation():
    """GET Object of Amazon's page about signatures in the Authorization header."""
    secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
    headers = {
        "host": "examplebucket.s3.amazonaws.com",
        "range": "bytes=0-9",
        "x-amz-content-sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "x-amz-date": "20130524T000000Z",
    }
    credentials = Credentials("AKIAIOSFODNN7EXAMPLE", secret)
    made = sign(credentials, Scope("us-east-1", "s3"), "/test.txt", headers, headers["x-amz-date"])
    assert made.endswith(
        "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
    )


def test_a_time_is_one_of_universal_time():
    """In the form that the header has, and ahead by as much as is asked for."""
    now = dt.datetime.now(dt.timezone.utc)
    ahead = dt.datetime.strptime(timestamp(3600), "%Y%m%dT%H%M%S%z")
    assert dt.timedelta(minutes=59) < ahead - now < dt.timedelta(minutes=61)


def test_credentials_do_not_show_their_secrets():
    """Neither key nor token is in what is printed of them."""
    text = repr(Credentials("access", "very-secret", "long-token"))
    assert "very-secret" not in text
    assert "long-token" not in text
