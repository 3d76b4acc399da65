"""How cost grows: the table, and each point for real on small sizes."""

from bench import growth
from bench.growth import Options, main
from tests.refusals import refused


def test_each_kind_of_point_is_measured_and_drawn(tiny, tmp_path, monkeypatch, capsys):
    """In this process, where each would have its own."""
    monkeypatch.setattr(growth, "alone", lambda point, *arguments: point(*arguments))
    picture = tmp_path / "growth.png"
    main(Options(tiny / "policy", (20, 200), (16, 64), (1, 3), (1, 3), picture))
    assert capsys.readouterr().out.count("| exponent |") == 4
    assert picture.read_bytes().startswith(b"\x89PNG")
    with refused("--tokens 4: give two sizes or more, each at least 1"):
        Options(tokens=(4,)).check()
