"""Model names: the packaged model converted for real, folders checked, and one line for what can't be had."""

import json

import pytest
import torch

from forage.errors import UserError
from forage.policy import base_models as models
from forage.policy.base_models import CONVERTED, PACKAGED_MODEL, check_folder, packaged_model, resolve_model


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    return packaged_model(tmp_path_factory.mktemp("models"))


@pytest.mark.slow
def test_the_packaged_model_becomes_a_normal_folder(converted):
    """What plain transformers loads: bf16 safetensors, its tokenizer and chat template, no trace of quantisation."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    config = json.loads((converted / "config.json").read_text())
    assert "quantization_config" not in config
    model = AutoModelForCausalLM.from_pretrained(converted)
    assert model.dtype == torch.bfloat16
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008
    tokenizer = AutoTokenizer.from_pretrained(converted)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert prompt.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert [path.name for path in converted.parent.iterdir()] == [CONVERTED]


@pytest.mark.slow
def test_it_is_converted_once(converted, monkeypatch):
    monkeypatch.setattr(models, "convert_gguf", None)
    assert resolve_model(PACKAGED_MODEL, converted.parent) == str(converted)
    assert resolve_model(str(converted)) == str(converted)


@pytest.mark.slow
def test_auto_takes_what_is_there_and_says_why(converted, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_model("auto", converted.parent) == str(converted)
    assert "as there is no GPU" in capsys.readouterr().out
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(models, "check_hub_model", lambda name: None)
    assert resolve_model("auto", converted.parent) == "Qwen/Qwen2.5-7B-Instruct"


def test_a_failed_conversion_leaves_nothing(tmp_path, monkeypatch):
    def write_half(path, folder):
        (folder / "config.json").write_text("{}")
        raise OSError("No space left on device")

    monkeypatch.setattr(models, "convert_gguf", write_half)
    with pytest.raises(OSError, match="No space"):
        packaged_model(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_model_that_says_something_else_is_refused(converted, monkeypatch):
    monkeypatch.setattr(models, "CHECK_ANSWER", "The capital of France is Lyon.")
    with pytest.raises(UserError, match=r"says 'The capital of France is Paris\.'"):
        models.check_completion(converted)


def test_folders_that_are_no_whole_model_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"no config\.json"):
        check_folder(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="no weights"):
        check_folder(tmp_path)
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "model-1.safetensors").touch()
    with pytest.raises(UserError, match=r"lacks 1 of 2 weight files \(model-2\.safetensors\)"):
        check_folder(tmp_path)


@pytest.mark.parametrize("name", ["/no/such/folder", "./gone", "a/b/c"])
def test_missing_folders_are_told(name):
    with pytest.raises(UserError, match="no such folder"):
        resolve_model(name)


def test_a_hub_out_of_reach_gives_one_line(monkeypatch):
    monkeypatch.setattr(models, "hub_reachable", lambda: False)
    with pytest.raises(UserError, match="'no/such-model' is not in the cache, and the hub can't be reached") as error:
        resolve_model("no/such-model")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("failure", "says"),
    [("GatedRepoError", "is gated"), ("RepositoryNotFoundError", "not on the hub"), ("HfHubHTTPError", r"\(503\)")],
)
def test_what_the_hub_refuses_is_said_in_one_line(monkeypatch, failure, says):
    import httpx
    import huggingface_hub
    from huggingface_hub import errors

    request = httpx.Request("GET", "http://127.0.0.1/")
    error = getattr(errors, failure)("refused", response=httpx.Response(503, request=request))

    def refuse(name):
        raise error

    monkeypatch.setattr(models, "hub_reachable", lambda: True)
    monkeypatch.setattr(huggingface_hub, "auth_check", refuse)
    with pytest.raises(UserError, match=says):
        resolve_model("some/model")
