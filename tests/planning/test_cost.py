"""What a corpus of any size would take: arithmetic over what was measured, with its assumptions."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from retro import recipes
from retro.cli.main import main
from retro.config.machine import MachineConfig
from retro.corpus.documents import Document
from retro.errors import ConfigError, DataError
from retro.planning import calibration, coefficients, index_costs
from retro.planning.calibration import calibrate
from retro.planning.coefficients import (
    Coefficients,
    Decline,
    Growth,
    Line,
    Visits,
    keep_coefficients,
    read_coefficients,
)
from retro.planning.cost import (
    all_weights,
    build_seconds,
    due,
    index_kind,
    parse_tokens,
    plan_costs,
    search_seconds,
    training_seconds,
)
from retro.planning.operations import forward_operations, num_weights, training_operations

KNOWN = Coefficients(
    embedder="bert-base",
    width=768,
    processor="a processor",
    measured="2026-01-01",
    bytes_per_token=4.0,
    tokens_per_document=1000.0,
    reading=1e-8,
    learning=Line(5.0, 2e-7),
    cutting=2e-7,
    packing=1e-7,
    text_disk=0.3,
    token_disk=4.5,
    keys=Line(10.0, 0.025),
    embedding=0.02,
    scanning=Line(5e-5, 1e-8),
    linking=Growth(1024.0, 1e-4, 1e-5),
    walking=Growth(1024.0, 1e-4, 1e-5),
    graph_tuning=3.0,
    graph_disk=220.0,
    coding=1e-5,
    listing=Growth(256.0, 2e-5, 4e-6),
    tables=4.0,
    clustering=2e-6,
    visiting=Visits(32768, 16, Line(2e-4, 1e-6)),
    compressed_tuning=7.0,
    repeated=Decline(1e6, 0.5, 0.5),
    gathering=3e-5,
    train_speed=5e10,
    updating=3e-9,
    saving=8e-8,
)
RUN = recipes.get("paper-172m")


def test_the_paper_s_size_by_hand() -> None:
    costs = plan_costs(KNOWN, 1.75e12, RUN.model, RUN.training)
    assert costs.num_chunks == pytest.approx(27.34e9, rel=1e-3)
    assert costs.index == "compressed"
    # Keys of 768 numbers in two bytes each, a compressed key of 40 bytes, tokens of two bytes.
    assert costs.disk == pytest.approx(27.34e9 * (1536 + 40) + 3.5e12, rel=1e-3)
    assert costs.disk < 93e12
    # The tokenizer reads 32 MiB and no more.
    assert costs.stage("ingest").seconds == pytest.approx(7e12 * 3.1e-7 + 5 + 2e-7 * 33_554_432)
    assert costs.stage("keys").seconds == pytest.approx(10 + 27.34e9 * 0.025, rel=1e-3)
    # 213.6 million lists, each found in a graph 19.67 doublings larger than the one that was measured.
    coding = 27.34e9 * (1e-5 + 2e-5 + 4e-6 * 19.67)
    comparing = 1024 * (5e-5 + 27.34e9 * 1e-8)
    learning = 2e-6 * 213.6e6**1.5
    assert costs.stage("index").seconds == pytest.approx(coding + comparing + learning + 11, rel=1e-3)
    # 834,465 times the keys would have a query visit 22,000 lists, which tuning does not.
    search = 2e-5 + 4e-6 * 19.67 + 2e-4 + 4096e-6
    assert costs.search - 0.02 == pytest.approx(search, rel=1e-3)
    assert costs.stage("neighbours").seconds == pytest.approx(
        # Of the searches half are made again among a million keys, and 0.302 % among 27,344 times as many.
        27.34e9 * (search / (1 - 0.003024) + 3e-5),
        rel=1e-3,
    )
    assert costs.stage("neighbours").disk == pytest.approx(27.34e9 * 20 * 8, rel=1e-3)
    # 172 M parameters, of which the encoder's read four neighbour tokens for each token.
    trained = RUN.training.num_steps * RUN.training.batch_size * RUN.training.seq_len
    assert costs.stage("training").seconds > trained * 6 * 172e6 / 5e10


def test_small_sizes_by_hand() -> None:
    # A hundred thousand chunks: a graph, 6.61 doublings larger than the one that was measured.
    graph = plan_costs(KNOWN, 6.4e6, RUN.model, RUN.training)
    linking = 1e5 * (1e-4 + 1e-5 * 6.61)
    comparing = 1024 * (5e-5 + 1e5 * 1e-8)
    assert graph.stage("index").seconds == pytest.approx(linking + 3 + comparing, rel=1e-3)
    finding = 1e5 * (2 * (1e-4 + 1e-5 * 6.61) + 3e-5)
    assert graph.stage("neighbours").seconds == pytest.approx(finding, rel=1e-3)
    # Ten thousand: every key is looked at.
    exact = plan_costs(KNOWN, 6.4e5, RUN.model, RUN.training)
    assert exact.stage("index").seconds == 0.0
    assert exact.stage("neighbours").seconds == pytest.approx(1e4 * (2 * (5e-5 + 1e-4) + 3e-5))
    assert exact.stage("ingest").seconds == pytest.approx(5 + 2.56e6 * 5.1e-7)


def test_training_is_steps_validations_and_checkpoints() -> None:
    training = replace(
        RUN.training, num_steps=10, warmup_steps=1, validate_every=4, validate_batches=2, checkpoint_every=3
    )
    batch = training.batch_size * training.seq_len
    with_neighbours = forward_operations(RUN.model, training.seq_len, training.num_neighbours)
    without = forward_operations(RUN.model.baseline(), training.seq_len, training.num_neighbours)
    weights = all_weights(RUN.model)
    steps = 10 * (3 * batch * with_neighbours / 5e10 + weights * 3e-9)
    # Validated after steps 3, 4, 6, 8, 9 and 10, as what is saved is validated; saved after 3, 6, 9 and 10.
    validations = 6 * 2 * batch * (with_neighbours + without) / 5e10
    saves = 4 * weights * 8e-8
    assert training_seconds(KNOWN, RUN.model, training) == pytest.approx(steps + validations + saves)
    once_more = training_seconds(KNOWN, RUN.model, replace(training, validate_first=True))
    assert once_more == pytest.approx(steps + validations * 7 / 6 + saves)
    baseline = training_seconds(KNOWN, RUN.model.baseline(), training)
    assert baseline < steps


def test_what_is_done_every_few_steps_is_done_after_the_last() -> None:
    assert [due(300, 25), due(20, 10**6), due(10, 3), due(12, 4, 6)] == [12, 1, 4, 4]


def test_measurements_give_lines_and_growth_that_noise_does_not_turn_round() -> None:
    assert Line.through((10, 20), (7.0, 12.0)) == Line(2.0, 0.5)
    assert Line.through((10, 20), (4.0, 12.0)) == Line(0.0, 0.6)
    assert Line.through((10, 20), (12.0, 11.0)) == Line(11.0, 0.0)
    growth = Growth.through((8, 32), (3.0, 7.0))
    assert [growth.at(size) for size in (4, 8, 16, 64)] == [3.0, 3.0, 5.0, 9.0]
    assert Growth.through((8, 32), (7.0, 3.0)).at(64) == 3.0
    decline = Decline.through((8, 32), (0.4, 0.2))
    assert [decline.at(size) for size in (4, 8, 32, 128)] == pytest.approx([0.4, 0.4, 0.2, 0.1])
    assert [Decline.through((8, 32), parts).at(64) for parts in ((0.2, 0.3), (0.2, 0.0))] == [0.3, 0.0]


def test_machines_are_as_many_as_time_memory_and_disk_ask_for() -> None:
    stage = plan_costs(KNOWN, 1.75e12, RUN.model, RUN.training).stage("keys")
    machine = MachineConfig(cores=64, memory_gb=512, disk_tb=16)
    assert stage.hours(machine) == pytest.approx(27.34e9 * 0.025 / 64 / 3600, rel=1e-3)
    assert stage.machines(machine, 7) == 18
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
    # Ten times the keys, 3.39 times the lists: 16, 333 and 1,127 of them.
    few, many = (search_seconds(KNOWN, number) - 2e-4 for number in (1e7, 1e8))
    assert many / few == pytest.approx(
        (1127e-6 + 2e-5 + 4e-6 * 11.57) / (333e-6 + 2e-5 + 4e-6 * 8.25), rel=0.02
    )
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
@pytest.mark.parametrize("embed_seconds", [1.0, 0.0])  # time for all keys; for so few that others stand in
def test_a_machine_is_measured_with_the_stages_themselves(
    embed_seconds: float, static_encoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "EMBED_SECONDS", embed_seconds)
    monkeypatch.setattr(calibration, "VOCAB_SIZE", 400)
    monkeypatch.setattr(index_costs, "CENTRES", (64, 512))
    measured = calibrate(static_encoder, text_bytes=300_000, num_keys=1500)
    assert measured.width == 32
    assert 1 < measured.bytes_per_token < 8
    assert min(value for value in vars(measured).values() if isinstance(value, float)) >= 0
    assert measured.graph_disk > 100
    assert measured.train_speed > 1e8
    parts = (measured.keys, measured.scanning, measured.linking, measured.walking, measured.listing)
    assert min(value for part in parts for value in vars(part).values()) >= 0
    assert min(part.at(1e6) for part in parts) > 0


def test_too_little_text_says_nothing_of_its_costs() -> None:
    few = [Document("1", "a word " * 1000, "few")]
    with pytest.raises(DataError, match="there are 7,000 bytes of text to measure with; expected at least"):
        calibrate("static", documents=few)


def test_the_command_shows_prints_and_draws_what_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RETRO_CACHE_DIR", str(tmp_path / "cache"))
    path = coefficients.place_of("bert-base")
    keep_coefficients(KNOWN, path)
    assert read_coefficients(path) == KNOWN
    assert coefficients.place_of("bert-base", "notes") not in (
        path,
        coefficients.place_of("bert-base", "news"),
    )
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
