"""Names of certificates as Java prints them. The expected texts are what Java 17 printed of these names (X500Principal)."""

import datetime as dt

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.name import _ASN1Type as Kind
from cryptography.x509.oid import NameOID as Oid

from ottla.security.distinguished_names import distinguished_name, read_certificate

KEY = ec.generate_private_key(ec.SECP256R1())
Attribute = x509.NameAttribute


EXPIRY = dt.datetime(2030, 2, 3, 4, 5, 6, tzinfo=dt.UTC)


def certificate(*relative: list[Attribute[str]], not_after: dt.datetime = EXPIRY) -> bytes:
    name = x509.Name([x509.RelativeDistinguishedName(attributes) for attributes in relative])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(x509.Name([Attribute(Oid.COMMON_NAME, "ca")]))
    builder = builder.public_key(KEY.public_key()).serial_number(1)
    builder = builder.not_valid_before(dt.datetime(2020, 1, 1, tzinfo=dt.UTC)).not_valid_after(not_after)
    return builder.sign(KEY, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


def common(text: str, kind: Kind | None = None) -> list[Attribute[str]]:
    return [Attribute(Oid.COMMON_NAME, text, _type=kind)]


NAMES = {
    r"CN=broker-1.example.org,OU=Ops,O=Example\, Inc.,L=München,ST=Bayern,C=DE": [
        [Attribute(Oid.COUNTRY_NAME, "DE")],
        [Attribute(Oid.STATE_OR_PROVINCE_NAME, "Bayern")],
        [Attribute(Oid.LOCALITY_NAME, "München")],
        [Attribute(Oid.ORGANIZATION_NAME, "Example, Inc.")],
        [Attribute(Oid.ORGANIZATIONAL_UNIT_NAME, "Ops")],
        common("broker-1.example.org"),
    ],
    r"CN=\#hash,CN=\ lead and trail\ \ ,CN=a\,b\+c\"d\\e\<f\>g\;h\#i\=j": [
        common('a,b+c"d\\e<f>g;h#i=j'),
        common(" lead and trail  "),
        common("#hash"),
    ],
    "STREET=Way 1,DC=example,UID=joe,CN=x+OU=y": [
        [Attribute(Oid.COMMON_NAME, "x"), Attribute(Oid.ORGANIZATIONAL_UNIT_NAME, "y")],
        [Attribute(Oid.USER_ID, "joe")],
        [Attribute(Oid.DOMAIN_COMPONENT, "example")],
        [Attribute(Oid.STREET_ADDRESS, "Way 1")],
    ],
    "CN=ann,2.5.4.4=#0c024578,2.5.4.42=#0c03416e6e,2.5.4.12=#0c024472,2.5.4.5=#13023432,"
    "1.2.840.113549.1.9.1=#16056140622e63": [
        [Attribute(Oid.EMAIL_ADDRESS, "a@b.c")],
        [Attribute(Oid.SERIAL_NUMBER, "42")],
        [Attribute(Oid.TITLE, "Dr")],
        [Attribute(Oid.GIVEN_NAME, "Ann")],
        [Attribute(Oid.SURNAME, "Ex")],
        common("ann"),
    ],
    "CN=tab\tnl\nnul\\00é€😀": [common("tab\tnl\nnul\x00é€😀")],
    r"CN=#12036e756d,CN=prt,CN=#1a03766973,CN=ia5,CN=t61,CN=#1c0c000000750000006e00000069,CN=\00b\00m\00p": [
        common("bmp", Kind.BMPString),
        common("uni", Kind.UniversalString),
        common("t61", Kind.T61String),
        common("ia5", Kind.IA5String),
        common("vis", Kind.VisibleString),
        common("prt", Kind.PrintableString),
        common("num", Kind.NumericString),
    ],
    "": [],
    "1.2.3.4.5=#0c036f776e": [[Attribute(x509.ObjectIdentifier("1.2.3.4.5"), "own")]],
    r"CN=\ ": [common(" ")],
}


@pytest.mark.parametrize("expected", NAMES)
def test_a_name_is_printed_as_java_prints_it(expected: str) -> None:
    assert distinguished_name(certificate(*NAMES[expected])) == expected


@pytest.mark.parametrize("year", [2030, 2049, 2051])
def test_the_expiry_is_read_in_both_of_its_formats(year: int) -> None:
    der = certificate(common("x"), not_after=dt.datetime(year, 2, 3, 4, 5, 6, tzinfo=dt.UTC))

    assert read_certificate(der).not_after == dt.datetime(year, 2, 3, 4, 5, 6, tzinfo=dt.UTC)


def test_what_is_no_certificate_is_refused_whatever_it_is_cut_to() -> None:
    der = certificate(*NAMES[r"CN=\ "])
    for size in range(100):
        with pytest.raises(ValueError, match=r".*"):
            read_certificate(der[:size])
