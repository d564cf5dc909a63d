"""Rules that make principals of the names of certificates (KIP-371); the cases are those of Kafka's own documentation."""

import pytest

from ottla.security.principal_mapping import InvalidRules, NoMatchingRule, PrincipalMapper

RULES = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,"
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,"
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,"
    "DEFAULT"
)


@pytest.mark.parametrize(
    ("name", "principal"),
    [
        ("CN=kafka-server1,OU=ServiceUsers,O=Unknown,L=Unknown,ST=Unknown,C=Unknown", "kafka-server1"),
        ("CN=kafka1,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "kafka1@sme"),
        ("cn=Test.1,ou=x", "test.1"),
        ("OU=none of them", "OU=none of them"),
    ],
)
def test_the_first_rule_that_matches_the_whole_name_decides(name: str, principal: str) -> None:
    assert PrincipalMapper(RULES).name(name) == principal


@pytest.mark.parametrize(
    ("rules", "name", "principal"),
    [
        ("", "CN=a", "CN=a"),
        ("RULE:^CN=(.*)$/user-$1/U", "CN=Ann", "USER-ANN"),
        (r"RULE:^CN=(.*)\/(.*)$/$2\/$1/", "CN=a/b", "b/a"),
        ("RULE:^CN=(.*)$/$1 $12 $2/", "CN=a", "a a2 $2"),
        (r"RULE:^CN=(.*)$/\$1/", "CN=a", "$1"),
        ("RULE:^CN=a$/x/ , RULE:^CN=b$/y/", "CN=b", "y"),
        ("RULE:^CN=a$/x/\nRULE:^CN=b$/y/\n", "CN=b", "y"),
        ("RULE:^CN=(.*?), O=.*$/$1/,DEFAULT", "CN=a, O=b", "a"),
    ],
)
def test_replacements_are_as_in_java(rules: str, name: str, principal: str) -> None:
    assert PrincipalMapper(rules).name(name) == principal


def test_a_name_that_no_rule_matches_is_refused() -> None:
    with pytest.raises(NoMatchingRule, match="no rule of"):
        PrincipalMapper("RULE:^CN=a$/x/").name("CN=b")


@pytest.mark.parametrize(
    "rules",
    [
        "default",
        "DEFAUL",
        "RULE:a/b",
        "RULE:^(/x/",
        "RULE:a/b/LU",
        "DEFAULT,,DEFAULT",
        "RULE:(?=a)/b/",
        "RULE:x/y/ RULE:a/b/",
    ],
)
def test_rules_that_cannot_be_parsed_are_refused(rules: str) -> None:
    with pytest.raises(InvalidRules):
        PrincipalMapper(rules)


def test_a_rule_takes_a_time_that_is_linear_in_the_name() -> None:
    mapper = PrincipalMapper("RULE:^CN=(a+)+$/$1/,DEFAULT")
    name = f"CN={'a' * 50_000}!"

    assert mapper.name(name) == name
