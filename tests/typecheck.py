"""The type checker that tests run the package under; an int where a float is declared is fine."""

from beartype import BeartypeConf, beartype

typechecked = beartype(conf=BeartypeConf(is_pep484_tower=True))
