"""Type checker of the package in tests; it accepts an int for a float."""

from beartype import BeartypeConf, beartype

typechecked = beartype(conf=BeartypeConf(is_pep484_tower=True))
