"""The simulator as it is called: options, tables, files, exit codes, and what it does without."""

from __future__ import annotations

import csv
import importlib.util
import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from matplotlib.figure import Figure
from PIL import Image

from idempotency.client.simulation import commandline, options, plots, progress
from idempotency.client.simulation.__main__ import main

CONTENTION = ["contention", "--clients", "3,8", "--seeds", "1-2"]
RECOVERY = [
    "recovery", "--strategies", "immediate,full", "--outage-from", "1", "--outage-until", "2",
    "--until", "6", "--seeds", "7",
]  # fmt: skip
TAILS = ["tails", "--requests", "2000", "--seeds", "4,1-2"]
MODELS = [CONTENTION, RECOVERY, TAILS]
NAMES = ["contention", "recovery", "tails"]


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_contention_tells_each_strategy_and_number_of_clients(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([*CONTENTION, "--csv", str(tmp_path / "calls.csv")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["strategy", "clients", "calls"]
    assert len(lines) == 1 + 6 * 2
    rows = rows_of(tmp_path / "calls.csv")
    assert len(rows) == 6 * 2 * 2
    assert {row["clients"] for row in rows} == {"3", "8"}
    assert all(int(row["calls"]) >= int(row["clients"]) for row in rows)
    mean = sum(int(row["calls"]) for row in rows[:2]) / 2
    assert lines[1].split()[:3] == ["immediate", "3", f"{mean:,.0f}"]


def test_recovery_tells_each_strategy_with_and_without_a_budget(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([*RECOVERY, "--csv", str(tmp_path / "load.csv")]) == 0
    lines = capsys.readouterr().out.splitlines()
    labels = ["no retries", "immediate", "immediate + 10% budget", "full", "full + 10% budget"]
    assert [line.split("  ")[0] for line in lines[1:6]] == labels
    assert lines[6].startswith("Good answers by the formula")
    rows = rows_of(tmp_path / "load.csv")
    assert len(rows) == 5 * 60
    assert rows[59]["second"] == "5.9"
    assert sum(int(row["good"]) for row in rows if 1 <= float(row["second"]) < 2) == 0


def test_tails_tells_the_quantiles_beside_the_formula(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([*TAILS, "--csv", str(tmp_path / "tails.csv")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[0] == "alone"
    assert lines[2].split()[0] == "hedged"
    assert lines[2].split()[-1] == "4.952"
    rows = rows_of(tmp_path / "tails.csv")
    assert len(rows) == 2 * 3 * 999
    assert [row["seed"] for row in rows[::999]] == ["1", "2", "4"] * 2


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that were saved."""
    figures: list[Figure] = []
    save: Callable[[Figure, Path], None] = plots._save

    def keep(figure: Figure, path: Path) -> None:
        figures.append(figure)
        save(figure, path)

    monkeypatch.setattr(plots, "_save", keep)
    return figures


@pytest.mark.parametrize(
    ("arguments", "option", "seeds"),
    [
        (CONTENTION, "--png", "seeds 1-2"),
        (CONTENTION, "--arrivals", "seed 1"),
        (RECOVERY, "--png", "seed 7"),
        (TAILS, "--png", "seeds 1-2, 4"),
    ],
    ids=["calls", "arrivals", "recovery", "tails"],
)
def test_a_picture_says_which_seeds_it_shows(
    arguments: list[str], option: str, seeds: str, drawn: list[Figure], tmp_path: Path
) -> None:
    path = tmp_path / "picture.png"
    assert main([*arguments, option, str(path)]) == 0
    (figure,) = drawn
    assert figure.get_suptitle().endswith(f", {seeds}")
    assert path.stat().st_size < 150_000
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        assert picture.width >= 800


def test_the_curves_are_the_means_of_the_runs(drawn: list[Figure], tmp_path: Path) -> None:
    table, picture = tmp_path / "calls.csv", tmp_path / "calls.png"
    main([*CONTENTION, "--csv", str(table), "--png", str(picture)])
    (axes,) = drawn[0].axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    calls = [int(row["calls"]) for row in rows_of(table) if row["strategy"] == "full"]
    full = axes.get_lines()[4]
    assert full.get_color() == plots.COLOURS["full"]
    assert list(full.get_ydata()) == [sum(calls[:2]) / 2, sum(calls[2:]) / 2]


def test_load_and_good_answers_are_drawn_a_second(drawn: list[Figure], tmp_path: Path) -> None:
    table, picture = tmp_path / "load.csv", tmp_path / "load.png"
    main([*RECOVERY, "--csv", str(table), "--png", str(picture)])
    top, top_budget, bottom, _ = drawn[0].axes
    rows = [row for row in rows_of(table) if (row["strategy"], row["budget"]) == ("full", "")]
    for axes, column in ((top, "attempts"), (bottom, "good")):
        line = next(line for line in axes.get_lines() if line.get_color() == plots.COLOURS["full"])
        seconds = [sum(int(row[column]) for row in rows[n : n + 10]) for n in range(0, 60, 10)]
        assert list(line.get_ydata()) == pytest.approx(seconds)
    assert "budget of 10%" in top_budget.get_title()


@pytest.mark.parametrize("arguments", [["contention", "--clients", "4"], ["recovery"]])
@pytest.mark.parametrize("name", ["full", "fixed"])
def test_one_strategy_alone_can_be_drawn(arguments: list[str], name: str, tmp_path: Path) -> None:
    chosen = [*arguments, "--strategies", name, "--seeds", "1", "--png", str(tmp_path / "a.png")]
    if arguments[0] == "contention":
        chosen += ["--arrivals", str(tmp_path / "b.png")]
    else:
        chosen += ["--outage-from", "0", "--outage-until", "1", "--until", "3"]
    assert main(chosen) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "MODEL"),
        (["nonsense"], "invalid choice"),
        (["contention", "--clients", "0"], "not above 0"),
        (["contention", "--clients", "ten"], "--clients"),
        (["contention", "--strategies", "full,fool"], "there is no strategy 'fool', only"),
        (["contention", "--seeds", "5-1"], "runs backward"),
        (["contention", "--seeds", "1-99999"], "more than 10000 seeds"),
        (["recovery", "--rate", "-1"], "0 or more"),
        (["recovery", "--rate", "inf"], "0 or more"),
        (["tails", "--hedge-at", "1"], "between 0 and 1"),
    ],
)
def test_a_wrong_option_ends_with_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["contention", "--base", "3"], "0 < base <= cap"),
        (["recovery", "--until", "1"], "outage_until < until"),
        (["recovery", "--budget", "1001"], "ratio"),
    ],
)
def test_options_that_do_not_go_together_end_with_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_a_file_that_cannot_be_written_ends_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: object) -> None:
        raise AssertionError("simulated before looking at the file")

    with monkeypatch.context() as patch:
        patch.setattr(commandline, "_contests", never)
        assert main([*CONTENTION, "--csv", str(tmp_path / "missing" / "calls.csv")]) == 1
    assert "missing is not a directory" in capsys.readouterr().err
    assert main([*CONTENTION, "--csv", str(tmp_path)]) == 1
    assert f"{tmp_path}: Is a directory" in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--png", "a.png"], ["--arrivals", "a.png"]])
def test_pictures_without_matplotlib_end_with_1_and_name_the_extra(
    option: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main([*CONTENTION, *option]) == 1
    assert "django-idempotency[simulation]" in capsys.readouterr().err


def test_the_fast_engine_without_numpy_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main([*CONTENTION, "--engine", "rounds"]) == 1
    assert "needs numpy" in capsys.readouterr().err


def test_an_interrupted_run_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(commandline, "run", interrupted)
    assert main(CONTENTION) == 130


@pytest.mark.parametrize("arguments", MODELS, ids=NAMES)
def test_every_model_runs_on_plain_python(arguments: list[str], tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "for name in ('numpy', 'matplotlib', 'rich', 'django'): sys.modules[name] = None\n"
        "from idempotency.client.simulation.__main__ import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    path = tmp_path / "runs.csv"
    command = [sys.executable, "-W", "error", "-c", program, *arguments, "--csv", str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert not done.stderr
    assert rows_of(path)
    if arguments is CONTENTION:
        assert {row["engine"] for row in rows_of(path)} == {"heap"}


def test_no_django_is_loaded_with_the_extra_either() -> None:
    program = (
        "import sys\n"
        "from idempotency.client.simulation import commandline, options, plots, rounds\n"
        "assert 'django' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


def test_the_package_can_be_run_as_a_module() -> None:
    command = [sys.executable, "-W", "error", "-m", "idempotency.client.simulation", *CONTENTION]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "decorrelated" in done.stdout
    assert not done.stderr


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("arguments", MODELS, ids=NAMES)
def test_somebody_who_looks_sees_the_progress_up_to_the_end(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    assert main(arguments) == 0
    assert "100%" in screen.getvalue()
    quiet = Terminal()
    monkeypatch.setattr(sys, "stderr", quiet)
    assert main([*arguments, "--quiet"]) == 0
    assert not quiet.getvalue()


def test_nobody_looks_at_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    with progress.bar("title", 10) as tell:
        tell(10)
    assert not log.getvalue()


@pytest.mark.parametrize(
    ("seeds", "told"),
    [([1], "seed 1"), ([1, 2], "seeds 1-2"), ([1, 3, 4, 5, 9], "seeds 1, 3-5, 9")],
)
def test_seeds_are_told_as_they_are_given(seeds: list[int], told: str) -> None:
    assert options.seeds_told(seeds) == told


def test_the_management_command_does_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(CONTENTION) == 0
    output = io.StringIO()
    call_command("simulate_retries", *CONTENTION, stdout=output)
    assert output.getvalue() == capsys.readouterr().out


def test_the_management_command_keeps_the_exit_codes() -> None:
    with pytest.raises(CommandError, match="0 < base <= cap") as wrong:
        call_command("simulate_retries", "contention", "--base", "3")
    assert wrong.value.returncode == 2
    with pytest.raises(CommandError, match="is not a directory") as failed:
        call_command("simulate_retries", "contention", "--csv", "/missing/calls.csv")
    assert failed.value.returncode == 1
