"""Makes the responses with which faults answer requests: errors of any API in any version, and what a test gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ottla.core.error_codes import ErrorCode
from ottla.testing.kit.faults.elements import Level, answer_shape, elements_of, fill_keys, list_shape
from ottla.testing.kit.faults.names import check_field, name_of
from ottla.wire import codec
from ottla.wire.apis import ApiKey

MESSAGE = "a fault of the test"
"""The error message, where a response has one."""

_ERROR_FIELDS = ("error_code", "partition_error_code")

_IN_ERRORS: Mapping[ApiKey, Mapping[str, Any]] = {
    ApiKey.PRODUCE: {"base_offset": -1},
    ApiKey.FETCH: {"high_watermark": -1, "records": b""},
    ApiKey.SHARE_FETCH: {"records": b""},
    ApiKey.OFFSET_FETCH: {"committed_offset": -1},
    ApiKey.FIND_COORDINATOR: {"node_id": -1, "port": -1},
    ApiKey.INIT_PRODUCER_ID: {"producer_epoch": -1},
    ApiKey.DELETE_RECORDS: {"low_watermark": -1},
}
"""The values of fields in Kafka's error responses that differ from the defaults of the messages."""


def error_response(key: ApiKey, version: int, body: Any, error: ErrorCode, *, is_whole: bool) -> Any | None:
    """Return the response with an error about the request, or about each of its elements that could have one alone.

    None if the response has no place for the error in this version: a request for no topic is answered for none.
    """
    response: Any = codec.shape_class(key, "Response")()
    maker = _ErrorMaker(key, version, error, is_whole=is_whole)
    elements = elements_of(key, version)
    is_for_all = elements is None or elements.own_errors is None or error in elements.own_errors
    if is_whole and is_for_all and maker.has_error(response):
        return maker.with_error(response)
    levels = () if elements is None else (elements.level, *elements.more)
    if sum(maker.fill(level, body, response) for level in levels):
        return response
    if key is ApiKey.DESCRIBE_LOG_DIRS:  # before version 3 only log directories have errors
        response.results.append(maker.with_error(list_shape(type(response), "results")()))
        return response
    return maker.with_error(response) if is_whole and maker.has_error(response) else None


class _ErrorMaker:
    """Makes the response with one error."""

    def __init__(self, key: ApiKey, version: int, error: ErrorCode, *, is_whole: bool) -> None:
        self._key, self._version, self._error, self._is_whole = key, version, error, is_whole

    def has_error(self, answer: Any) -> bool:
        """Return whether a struct has an error code in this version."""
        return any(field.name in _ERROR_FIELDS and field.in_version(self._version) for field in answer.WIRE)

    def with_error(self, answer: Any) -> Any:
        """Write the error into a struct; returns it."""
        for field in answer.WIRE:
            if field.name in _ERROR_FIELDS:
                setattr(answer, field.name, int(self._error))
            elif field.name == "error_message":
                answer.error_message = MESSAGE
        for name, value in _IN_ERRORS.get(self._key, {}).items():
            if hasattr(answer, name):
                setattr(answer, name, value)
        return answer

    def fill(self, level: Level, holder: Any, answer_holder: Any) -> int:
        """Answer each element of a list of the request; returns how many errors that were."""
        errors = 0
        for element in getattr(holder, level.elements) or ():
            if level.answers is None:
                assert level.below is not None
                errors += self.fill(level.below, element, answer_holder)
                continue
            answer = answer_shape(level, type(answer_holder))()
            fill_keys(level, element, answer)
            if level.below is None or (self._is_whole and self.has_error(answer)):
                self.with_error(answer)
                errors += 1
            else:
                errors += self.fill(level.below, element, answer)
            getattr(answer_holder, level.answers).append(answer)
        return errors


def response_of(key: ApiKey, version: int, given: Any) -> Any:
    """Return a test's own response as the message of its API: it is one, or a dict of its fields.

    Raises ValueError for a field that the version does not have, TypeError for anything else.
    """
    shape: type[Any] = codec.shape_class(key, "Response")
    if not isinstance(given, Mapping | shape):
        raise TypeError(f"{type(given).__name__} is no response of {name_of(key)}: that is {shape.__name__}, or a dict")
    return _struct(shape, version, given)


def _struct(shape: type[Any], version: int, given: Any) -> Any:
    if not isinstance(given, Mapping):
        return given
    fields = {field.name: field for field in shape.WIRE if field.in_version(version)}
    values = {}
    for name, value in given.items():
        check_field(name, fields, f"{shape.__name__} v{version}")
        field = fields[name]
        if isinstance(field.type, str) or value is None:
            values[name] = value
        elif field.array:
            values[name] = [_struct(field.type, version, each) for each in value]
        else:
            values[name] = _struct(field.type, version, value)
    return shape(**values)


def errors_in(struct: Any) -> list[ErrorCode]:
    """Return all errors in a response, in their order, each once."""
    errors: dict[ErrorCode, None] = {}
    _collect(struct, errors)
    return list(errors)


def _collect(struct: Any, errors: dict[ErrorCode, None]) -> None:
    for field in struct.WIRE:
        value = getattr(struct, field.name)
        if field.name.endswith("error_code") and value:
            errors[ErrorCode(value)] = None
        elif not isinstance(field.type, str) and value is not None:
            for inner in value if field.array else (value,):
                _collect(inner, errors)
