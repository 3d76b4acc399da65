"""What .env may set: unknown names and impossible values are refused."""

import pytest

from forage.stack_settings import (
    check_names,
    check_values,
    known_names,
)
from tests.refusals import refused


def test_every_name_of_the_example_is_known_and_so_are_dockers_own():
    check_names(known_names())
    check_names(["COMPOSE_FILE", "COMPOSE_PROJECT_NAME", "https_proxy", "DEVICE"])
    assert {"VLLM_API_KEY", "SHARDING", "OFFLOAD", "SERVE", "HEARTBEAT_SECONDS"} <= set(known_names())


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"SHARDING": "zero4"}, "SHARDING=zero4 is none of none, zero2, zero3, fsdp2"),
        ({"TRAIN_NODES": "two"}, "TRAIN_NODES=two is no whole number"),
        ({"LORA_RANK": "600"}, "LORA_RANK=600 is no rank that vLLM serves; set 1 to 512"),
        ({"LORA_RANK": "0"}, "LORA_RANK=0 is no rank"),
        ({"TRAIN_PROCESSES": "0"}, "TRAIN_PROCESSES=0 trains nothing"),
        ({"OFFLOAD": "all", "SHARDING": "zero2"}, "--offload all does not work with --sharding zero2"),
    ],
)  # fmt: skip
def test_values_that_can_not_be_meant_are_refused(given, says):
    with refused(says):
        check_values(given)
