"""What a corpus of any size would take: arithmetic over what was measured, with its assumptions."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from retro import recipes
from retro.cli.main import main
from retro.config.machine import MachineConfig
from retro.errors import ConfigError
from retro.planning import calibration, coefficients
from retro.planning.calibration import calibrate
from retro.planning.coefficients import Coefficients, keep_coefficients, read_coefficients
from retro.planning.cost import build_seconds, index_kind, parse_tokens, plan_costs, search_seconds
from retro.planning.operations import forward_operations, num_weights, training_operations

KNOWN = Coefficients(
    embedder="bert-base",
    width=768,
    processor="a processor",
    measured="2026-01-01",
    bytes_per_token=4.0,
    tokens_per_document=1000.0,
    reading=1e-8,
    cutting=2e-7,
    packing=1e-7,
    text_disk=0.3,
    token_disk=4.5,
    embedding=0.02,
    pair=1e-8,
    link=1e-4,
    link_log=1e-5,
    walk=1e-4,
    walk_log=1e-5,
    graph_disk=220.0,
    code=1e-5,
    scan=1e-9,
    train_speed=5e10,
)
RUN = recipes.get("paper-172m")


def test_the_paper_s_size_by_hand() -> None:
    costs = plan_costs(KNOWN, 1.75e12, RUN.model, RUN.training)
    assert costs.num_chunks == pytest.approx(27.34e9, rel=1e-3)
    assert costs.index == "compressed"
    # Keys of 768 numbers in two bytes each, a compressed key of 40 bytes, tokens of two bytes.
    assert costs.disk == pytest.approx(27.34e9 * (1536 + 40) + 3.5e12, rel=1e-3)
    assert costs.disk < 93e12
    assert costs.stage("keys").seconds == pytest.approx(27.34e9 * 0.02, rel=1e-3)
    assert costs.stage("ingest").seconds == pytest.approx(7e12 * 3.1e-7)
    assert costs.stage("neighbours").disk == pytest.approx(27.34e9 * 20 * 8, rel=1e-3)
    # 172 M parameters, of which the encoder's read four neighbour tokens for each token.
    trained = RUN.training.num_steps * RUN.training.batch_size * RUN.training.seq_len
    assert costs.stage("training").seconds > trained * 6 * 172e6 / 5e10
    # Lists of 128 keys, 64 of them looked through; the nearest are found in 17.7 doublings of a thousand.
    assert costs.search - 0.02 == pytest.approx(64 * 128 * 1e-9 + 1e-4 + 1e-5 * 17.7, rel=0.01)


def test_machines_are_as_many_as_time_memory_and_disk_ask_for() -> None:
    stage = plan_costs(KNOWN, 1.75e12, RUN.model, RUN.training).stage("keys")
    machine = MachineConfig(cores=64, memory_gb=512, disk_tb=16)
    assert stage.hours(machine) == pytest.approx(27.34e9 * 0.02 / 64 / 3600, rel=1e-3)
    assert stage.machines(machine, 7) == 15
    assert stage.machines(machine, 70) == 3  # 42 TB of keys
    assert stage.machines(replace(machine, disk_tb=100), 70) == 2
    assert replace(stage, memory=5e12).machines(replace(machine, disk_tb=100), 700) == 10
    assert stage.hours(replace(machine, speed=2.0)) == stage.hours(machine) / 2
    with pytest.raises(ConfigError, match="expected cores, memory, disk and speed above 0"):
        MachineConfig(cores=0)


def test_the_index_follows_the_number_of_keys_and_search_grows_slowly() -> None:
    assert [index_kind(number) for number in (1e3, 1e5, 1e7)] == ["exact", "graph", "compressed"]
    assert search_seconds(KNOWN, 1e6) / search_seconds(KNOWN, 1e5) < 1.3
    assert 1.0 < search_seconds(KNOWN, 1e11) / search_seconds(KNOWN, 1e10) < 1.2
    assert build_seconds(KNOWN, 1e4) == 0.0
    assert build_seconds(KNOWN, 1e6) > 2 * build_seconds(KNOWN, 5e5)


def test_operations_are_those_of_the_weights() -> None:
    decoder, encoder = num_weights(RUN.model)
    assert decoder + encoder == pytest.approx(172.5e6, rel=0.01)
    without = forward_operations(RUN.model.baseline(), 2048, 2)
    logits = 2 * RUN.model.vocab_size * RUN.model.d_model
    assert without == pytest.approx(2 * 132.1e6 + logits, rel=0.35)  # the rest is attention over the tokens
    assert forward_operations(RUN.model, 2048, 2) > without
    assert training_operations(RUN.model, RUN.training) == 3 * forward_operations(
        RUN.model, RUN.training.seq_len, RUN.training.num_neighbours
    )


def test_tokens_are_read_as_people_write_them() -> None:
    assert [parse_tokens(text) for text in ("1.75T", "300m", "20B", "4,000,000")] == [1.75e12, 3e8, 2e10, 4e6]
    for text in ("", "T", "many", "-3M", "nan", "1"):
        with pytest.raises(ConfigError, match="expected at least 10K"):
            parse_tokens(text)


@pytest.mark.slow
def test_a_machine_is_measured_with_the_stages_themselves(
    static_encoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "EMBED_SECONDS", 0.1)
    monkeypatch.setattr(calibration, "VOCAB_SIZE", 400)
    measured = calibrate(static_encoder, text_bytes=60_000, sizes=(1024, 2048))
    assert measured.width == 32
    assert 1 < measured.bytes_per_token < 8
    assert min(value for value in vars(measured).values() if isinstance(value, float)) >= 0
    assert measured.graph_disk > 100
    assert measured.train_speed > 1e8


def test_the_command_shows_prints_and_draws_what_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RETRO_CACHE_DIR", str(tmp_path / "cache"))
    path = coefficients.place_of("bert-base")
    keep_coefficients(KNOWN, path)
    assert read_coefficients(path) == KNOWN
    page = tmp_path / "plan.html"
    arguments = ["plan", "--tokens", "20B", "--embedder", "bert-base", "--recipe", "tiny"]
    assert main([*arguments, "--out", str(page), "--machine.cores", "8"]) == 0
    shown = capsys.readouterr().out
    assert f"measured with one core of a processor on 2026-01-01, kept in {path}" in shown
    assert "the paper's, 93 TB for 1.75 T tokens: 1.1 TB" in shown
    assert "assumed: the index is chosen by the number of all keys" in shown
    assert "<svg" in page.read_text()
    record = json.loads(page.with_suffix(".json").read_text())
    assert main([*arguments, "--machine.cores", "8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == record
    assert record["machine"]["cores"] == 8
    assert [stage["name"] for stage in record["stages"]][:4] == ["ingest", "keys", "index", "neighbours"]
    # What cannot be read, as of another version, is measured again.
    path.write_text("{}")
    assert read_coefficients(path) is None
    assert main(["plan", "--tokens", "lots"]) == 1
    assert "--tokens is 'lots'" in capsys.readouterr().err
