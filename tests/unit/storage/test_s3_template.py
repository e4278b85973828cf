"""The template of a bucket's requests says what the SDK decided about them."""

import pytest

from mds.storage._s3 import S3Options, make_client
from mds.storage._s3_requests import find_template


@pytest.mark.parametrize(
    ("bucket", "options", "settings", "host", "path", "region"),
    [
        (
            "bucket",
            {"region_name": "eu-west-1"},
            {},
            "bucket.s3.eu-west-1.amazonaws.com",
            "/",
            "eu-west-1",
        ),
        (
            "b.c",
            {"region_name": "eu-west-1"},
            {},
            "s3.eu-west-1.amazonaws.com",
            "/b.c/",
            "eu-west-1",
        ),
        (
            "bucket",
            {"region_name": "us-east-1"},
            {"AWS_USE_FIPS_ENDPOINT": "true", "AWS_USE_DUALSTACK_ENDPOINT": "true"},
            "bucket.s3-fips.dualstack.us-east-1.amazonaws.com",
            "/",
            "us-east-1",
        ),
        (
            "arn:aws:s3:us-west-2:123456789012:accesspoint/ap",
            {"region_name": "us-east-1"},
            {},
            "ap-123456789012.s3-accesspoint.us-west-2.amazonaws.com",
            "/",
            "us-west-2",
        ),
        (
            "b",
            {"endpoint_url": "https://acc.r2.cloudflarestorage.com", "region_name": "auto"},
            {},
            "acc.r2.cloudflarestorage.com",
            "/b/",
            "auto",
        ),
        (
            "bucket",
            {"endpoint_url": "https://host:9000", "addressing_style": "virtual"},
            {},
            "bucket.host:9000",
            "/",
            "us-east-1",
        ),
    ],
)
def test_the_template_is_that_of_the_sdk(
    monkeypatch, bucket, options, settings, host, path, region
):
    """Regions, addressing, FIPS, dual stack, access points, other stores."""
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    template = find_template(make_client(S3Options(**options), 5.0).client, bucket, {})
    assert (template.scheme, template.host, template.path) == ("https", host, path)
    assert (template.scope.region, template.scope.service) == (region, "s3")


def test_a_login_in_an_endpoint_is_left_to_the_sdk():
    """What that means is its business."""
    options = S3Options(endpoint_url="http://me:pw@127.0.0.1:9")
    assert find_template(make_client(options, 5.0).client, "bucket", {}) is None
