"""ArrayRecord files, which are named and refused: no standard says what they contain."""

import re
from collections.abc import Iterable

from asr_jax.core.errors import UserError

NAME = re.compile(r"\.array_?record(-\d+-of-\d+)?$", re.IGNORECASE)


def refuse(paths: Iterable[str]) -> None:
    """Raises a UserError if one of the paths is an ArrayRecord file.

    The content is bytes. TensorFlow Datasets writes `tf.train.Example` messages whose fields a `features.json`
    of the data set defines, and audio as samples without a rate; other tools pickle or msgpack their own objects.
    """
    for path in paths:
        if NAME.search(path):
            raise UserError(
                f"{path} is an ArrayRecord file, which is not read: its records are bytes without a standard form of "
                "audio and text. Write them to Parquet (columns audio, with the bytes of a file, and text) or to tars "
                "(WebDataset) with the library that wrote them"
            )
