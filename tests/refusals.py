"""Errors of the user's: each says in one line what is wrong and what to do."""

from contextlib import contextmanager

import pytest

from forage.errors import UserError


@contextmanager
def refused(says):
    """What is done meanwhile ends with such an error, in which this pattern is found."""
    with pytest.raises(UserError, match=says) as error:
        yield error
    assert "\n" not in str(error.value)
