"""What a chat refuses before anything is loaded, and over which data it asks."""

import pytest

from forage.agent.options import SearchOptions
from forage.errors import UserError
from forage.extras.chat.options import ChatOptions


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"base_url": "http://h"}, "--base-url and --model go together"),
        ({"model": "m"}, "--base-url and --model go together"),
        ({"question": " "}, "--question is empty"),
        ({"base_url": "http://h", "model": "m", "search": SearchOptions(force_search=True)}, "--force-search begins"),
    ],
)
def test_what_is_refused(given, says):
    with pytest.raises(UserError, match=says):
        ChatOptions(**given).check()
