"""Parses filter expressions: `key == "a" and value.amount > 10 and header.trace exists`.

    expression  = term {"or" term};  term = factor {"and" factor}
    factor      = "not" factor | "(" expression ")" | condition
    condition   = field ["not"] ("exists" | "in" "(" literal {"," literal} ")" | operator literal)
    operator    = "==" | "!=" | "<" | "<=" | ">" | ">=" | "contains" | "matches"
    field       = "topic" | "partition" | "offset" | "timestamp" | "header" name | ("key" | "value") {step}
    step        = name | "[" integer "]" | "[" "*" "]";  name = "." identifier | "[" string "]"
    literal     = string | number | "true" | "false" | "null"

Characters, conditions and nesting are bounded. No I/O.
"""

from __future__ import annotations

import re
from typing import NamedTuple, NoReturn

from ottla.client.search.expression import (
    And,
    AnyElement,
    Comparison,
    Exists,
    Expression,
    Field,
    FieldKind,
    IsIn,
    Literal,
    Not,
    Operator,
    Or,
    Step,
)
from ottla.client.search.patterns import compile_search
from ottla.client.times import parse_time_ms
from ottla.core.quantities import parse_duration_ms
from ottla.core.regexes import InvalidRegex

HELP = """\
key == "a"             the key; also value, topic, partition, offset,
                       header.NAME, header["NAME"], timestamp
value.user.id == 7     a JSON value in the value (or key):
                       value["a b"], value.items[0], value.items[*].sku
== != < <= > >=        numbers by size, texts by their characters
contains "x"           the text contains x, or the JSON list does
matches "^a.*b"        the text contains a match of the expression (RE2)
in ("a", "b")          equals one of them
exists                 the record has it; key != null: it is not null
and or not ( )         not before and, and before or
timestamp >= "2026-01-01", timestamp > "-1h"
                       a time (UTC unless it names its offset), or ago"""

CHARS_MAX = 4096
CONDITIONS_MAX = 64
DEPTH_MAX = 32
_EXCERPT_CHARS = 20
_NUMBER_DIGITS_MAX = 40
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
      | (?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.]))
      | (?P<word>[A-Za-z_][\w-]*)
      | (?P<sign>==|!=|<=|>=|[<>().,\[\]*])
    )""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_CONSTANTS: dict[str, Literal] = {"true": True, "false": False, "null": None}
_OPERATORS = {operator.value: operator for operator in Operator}
_NUMERIC = frozenset({FieldKind.PARTITION, FieldKind.OFFSET, FieldKind.TIMESTAMP})
_MISTAKES = {"=": "==", "&&": "and", "||": "or", "!": "not", "&": "and", "|": "or", "~": "matches"}


class InvalidFilter(ValueError):
    """Reports a text that is no filter expression, and the position of the mistake in it, from 0."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(f"{reason} at position {position + 1}")
        self.reason = reason
        self.position = position


class _Token(NamedTuple):
    kind: str  # string, number, word, sign, or "" at the end
    text: str
    position: int


def parse(text: str, *, now_ms: int) -> Expression:
    """Parse an expression; times like "-1h" are before `now_ms`. Raises `InvalidFilter`.

    >>> parse("header.trace exists", now_ms=0)
    Exists(field=Field(kind=<FieldKind.HEADER: 'header'>, header='trace', path=()))
    """
    if len(text) > CHARS_MAX:
        raise InvalidFilter(f"an expression has at most {CHARS_MAX} characters", CHARS_MAX)
    return _Parser(_tokens(text), now_ms).parse()


def _tokens(text: str) -> list[_Token]:
    tokens, at, end = [], 0, len(text.rstrip())
    while at < end:
        token = _TOKEN.match(text, at)
        if token is None or token.lastgroup is None:
            _fail_at(text, at + len(text[at:]) - len(text[at:].lstrip()))
        kind = token.lastgroup
        tokens.append(_Token(kind, token[kind], token.start(kind)))
        at = token.end()
    return [*tokens, _Token("", "", end)]


def _fail_at(text: str, at: int) -> NoReturn:
    rest = text[at:]
    if rest[:1] in {'"', "'"}:
        raise InvalidFilter("the text in quotes is not closed", at)
    wrong = next((sign for sign in ("&&", "||") if rest.startswith(sign)), rest[:1])
    advice = f"; write {_MISTAKES[wrong]}" if wrong in _MISTAKES else ""
    raise InvalidFilter(f"unexpected {rest[:_EXCERPT_CHARS]!r}{advice}", at)


class _Parser:
    """Reads the tokens of one expression from left to right."""

    def __init__(self, tokens: list[_Token], now_ms: int) -> None:
        self._tokens = tokens
        self._now_ms = now_ms
        self._at = 0
        self._depth = 0
        self._conditions = 0

    def parse(self) -> Expression:
        expression = self._or()
        if self._next.kind:
            self._fail("expected `and`, `or` or the end")
        return expression

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self) -> _Token:
        token = self._next
        self._at += 1
        return token

    def _takes(self, text: str) -> bool:
        """Skip a word or sign if it is the next one."""
        if self._next.kind not in {"word", "sign"} or self._next.text != text:
            return False
        self._at += 1
        return True

    def _need(self, text: str) -> None:
        if not self._takes(text):
            self._fail(f"expected {text!r}")

    def _fail(self, reason: str, token: _Token | None = None) -> NoReturn:
        token = token or self._next
        instead = f", not {token.text[:_EXCERPT_CHARS]!r}," if token.kind else ", not the end,"
        raise InvalidFilter(reason + instead, token.position)

    def _or(self) -> Expression:
        terms = [self._and()]
        while self._takes("or"):
            terms.append(self._and())
        return terms[0] if len(terms) == 1 else Or(tuple(terms))

    def _and(self) -> Expression:
        terms = [self._factor()]
        while self._takes("and"):
            terms.append(self._factor())
        return terms[0] if len(terms) == 1 else And(tuple(terms))

    def _factor(self) -> Expression:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise InvalidFilter(f"more than {DEPTH_MAX} levels of `not` and parentheses", self._next.position)
        try:
            if self._takes("not"):
                return Not(self._factor())
            if self._takes("("):
                inner = self._or()
                self._need(")")
                return inner
            return self._condition()
        finally:
            self._depth -= 1

    def _condition(self) -> Expression:
        self._count_condition(self._next)
        field = self._field()
        is_negated = self._takes("not")
        condition = self._predicate(field)
        return Not(condition) if is_negated else condition

    def _count_condition(self, token: _Token) -> None:
        self._conditions += 1
        if self._conditions > CONDITIONS_MAX:
            raise InvalidFilter(f"an expression has at most {CONDITIONS_MAX} conditions", token.position)

    def _predicate(self, field: Field) -> Expression:
        if self._takes("exists"):
            return Exists(field)
        if self._takes("in"):
            self._need("(")
            literals = [self._literal(field, Operator.EQUAL)]
            while self._takes(","):
                self._count_condition(self._next)
                literals.append(self._literal(field, Operator.EQUAL))
            self._need(")")
            return IsIn(field, tuple(literals))
        token = self._next
        operator = _OPERATORS.get(token.text) if token.kind in {"word", "sign"} else None
        if operator is None:
            self._fail("expected == != < <= > >= contains, matches, in or exists")
        if operator in {Operator.CONTAINS, Operator.MATCHES} and field.kind in _NUMERIC:
            self._fail(f"{field.kind} is a number: compare it with == or <")
        self._at += 1
        return Comparison(field, operator, self._literal(field, operator))

    def _field(self) -> Field:
        token = self._take()
        try:
            kind = FieldKind(token.text) if token.kind == "word" else None
        except ValueError:
            kind = None
        if kind is None:
            self._fail(f"expected one of {', '.join(FieldKind)}", token)
        if kind is FieldKind.HEADER:
            return Field(kind, header=self._name())
        if kind not in {FieldKind.KEY, FieldKind.VALUE}:
            return Field(kind)
        path: list[Step] = []
        while self._next.text in {".", "["} and self._next.kind == "sign":
            path.append(self._step())
        return Field(kind, path=tuple(path))

    def _name(self) -> str:
        """Read the name of a header: `.trace` or `["trace"]`."""
        if self._next.kind != "sign" or self._next.text not in {".", "["}:
            self._fail('expected the header\'s name, as header.NAME or header["NAME"]')
        begin, step = self._next, self._step()
        if not isinstance(step, str):
            self._fail("expected the header's name", begin)
        return step

    def _step(self) -> Step:
        if self._takes("."):
            if self._next.kind != "word":
                self._fail('expected a name; write others as ["NAME"]')
            return self._take().text
        self._need("[")
        token = self._take()
        step: Step | None = None
        if token.kind == "string":
            step = self._text(token)
        elif token.kind == "number" and re.fullmatch(r"-?\d{1,9}", token.text):
            step = int(token.text)
        elif token.text == "*":
            step = AnyElement.ANY
        if step is None:
            self._fail('expected a name in quotes, a number or * after "["', token)
        self._need("]")
        return step

    def _literal(self, field: Field, operator: Operator) -> Literal:
        token = self._take()
        value: Literal
        match token.kind:
            case "string":
                value = self._text(token)
            case "number" if len(token.text) <= _NUMBER_DIGITS_MAX:
                value = int(token.text) if re.fullmatch(r"-?\d+", token.text) else float(token.text)
            case "word" if token.text in _CONSTANTS:
                value = _CONSTANTS[token.text]
            case "word":
                self._fail("expected a text in quotes, a number, true, false or null", token)
            case _:
                self._fail("expected a text in quotes or a number", token)
        if field.kind is FieldKind.TIMESTAMP and isinstance(value, str):
            return self._time_ms(value, token)
        if field.kind in _NUMERIC and (isinstance(value, bool) or not isinstance(value, int | float)):
            self._fail(f"{field.kind} is a number", token)
        if operator is Operator.MATCHES:
            self._check_regex(value, token)
        is_ordered = operator not in {Operator.EQUAL, Operator.NOT_EQUAL, Operator.CONTAINS, Operator.MATCHES}
        if is_ordered and (value is None or isinstance(value, bool)):
            self._fail(f"{operator} compares numbers or texts", token)
        return value

    def _check_regex(self, value: Literal, token: _Token) -> None:
        if not isinstance(value, str):
            self._fail("expected a regular expression in quotes", token)
        try:
            compile_search(value)
        except InvalidRegex as error:
            raise InvalidFilter(f"{value!r} is not a regular expression: {error}", token.position) from None

    def _time_ms(self, text: str, token: _Token) -> int:
        ago_ms = parse_duration_ms(text[1:]) if text.startswith("-") else None
        if ago_ms is not None:
            return max(0, self._now_ms - ago_ms)
        try:
            return parse_time_ms(text)
        except ValueError as error:
            raise InvalidFilter(str(error), token.position) from None

    def _text(self, token: _Token) -> str:
        def escaped(found: re.Match[str]) -> str:
            code = found[1]
            if code[0] == "u" and len(code) > 1:
                return chr(int(code[1:], 16))
            return _ESCAPES.get(code, code if not code.isalnum() else found[0])

        return _ESCAPE.sub(escaped, token.text[1:-1])
