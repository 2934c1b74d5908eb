"""Forms of the type multipart/form-data, in memory. No file is written, whatever their size."""

import logging

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from asr_jax.serving.errors import ApiError

logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # its warnings are about forms of clients

KIND = b"multipart/form-data"
MAX_PARTS = 20
MAX_FIELD_BYTES = 1 << 16
"""Size of the largest part that is no file."""


class Form:
    """A form whose body arrives in blocks; who reads it limits its size."""

    def __init__(self, content_type: str) -> None:
        """Begins a form.

        Raises:
            ApiError: If the type of the body is not that of a form with a boundary.
        """
        kind, options = parse_options_header(content_type)
        if kind != KIND or not options.get(b"boundary"):
            message = f"expected a body of the type {KIND.decode()} with a boundary"
            raise ApiError(400, "invalid_content_type", message, closes=True)
        self.fields: dict[str, list[str]] = {}
        """Texts of the fields."""
        self.files: dict[str, bytes] = {}
        """Contents of files by the names of their fields. Names of files are not used."""
        self.has_ended = False
        self._name, self._is_file, self._num_parts, self._content = "", False, 0, bytearray()
        self._header, self._value, self._disposition = bytearray(), bytearray(), b""
        try:
            self._parser = MultipartParser(
                options[b"boundary"],
                {
                    "on_part_begin": self._begin,
                    "on_header_field": self._add_header,
                    "on_header_value": self._add_value,
                    "on_header_end": self._end_header,
                    "on_headers_finished": self._end_headers,
                    "on_part_data": self._add,
                    "on_part_end": self._end,
                    "on_end": self._end_all,
                },
            )
        except FormParserError as error:
            raise self.wrong(str(error)) from None

    def add(self, block: bytes) -> None:
        """Adds the next bytes of the body.

        Raises:
            ApiError: If they are no form.
        """
        try:
            self._parser.write(block)
        except FormParserError as error:
            raise self.wrong(str(error)) from None

    @staticmethod
    def wrong(reason: str) -> ApiError:
        """Returns the error of a form that cannot be read."""
        return ApiError(400, "invalid_form", f"the form cannot be read: {reason}", closes=True)

    def _begin(self) -> None:
        self._num_parts += 1
        if self._num_parts > MAX_PARTS:
            raise self.wrong(f"it has more than {MAX_PARTS} parts")
        self._disposition, self._content = b"", bytearray()

    def _add_header(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _add_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        self._header, self._value = bytearray(), bytearray()

    def _end_headers(self) -> None:
        _, options = parse_options_header(self._disposition)
        if not options.get(b"name"):
            raise self.wrong("a part has no name")
        self._name, self._is_file = options[b"name"].decode(errors="replace"), b"filename" in options

    def _add(self, data: bytes, start: int, end: int) -> None:
        self._content += data[start:end]
        if not self._is_file and len(self._content) > MAX_FIELD_BYTES:
            raise self.wrong(f"the field {self._name!r} has more than {MAX_FIELD_BYTES} bytes")

    def _end(self) -> None:
        if not self._is_file:
            self.fields.setdefault(self._name, []).append(self._content.decode(errors="replace"))
        elif self.files:
            raise self.wrong("it has several files")
        else:
            self.files[self._name] = bytes(self._content)
        self._content = bytearray()

    def _end_all(self) -> None:
        self.has_ended = True
