"""What a study file may say."""

from pathlib import Path

import pytest

from rlz.errors import ConfigError
from rlz.studies.definition import label, read_study


def written(folder: Path, text: str) -> Path:
    file = folder / "seeds.toml"
    file.write_text(text, encoding="utf-8")
    return file


RUN = '[run]\nalgo = "sac"\nenv = "Pendulum-v1"\n'


def test_a_grid_is_every_combination_of_its_values(tmp_path: Path) -> None:
    study = read_study(written(tmp_path, RUN + "[grid]\nseed = [1, 2]\nlearning_rate = [1e-3, 3e-4]\n"))

    assert study.name == "seeds"
    assert [label(point) for point in study.combinations] == [
        "seed=1,learning_rate=0.001",
        "seed=1,learning_rate=0.0003",
        "seed=2,learning_rate=0.001",
        "seed=2,learning_rate=0.0003",
    ]
    assert study.config(study.combinations[3]).learning_rate == 3e-4
    assert study.config(study.combinations[3]).seed == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[grid]\nseed = [1]\n", "no section [run]"),
        (RUN + "[gird]\nseed = [1]\n", "unknown key gird"),
        (RUN + "[grid]\nsed = [1]\n", "seed"),
        (RUN + "[grid]\nseed = []\n", "grid.seed"),
        (RUN + "[grid]\nseed = [1, 1]\n", "'seed=1' twice"),
        (RUN + '[grid]\nname = ["a"]\n', "name is the study's own"),
        (RUN + "[grid]\ntau = [0.5, 2.0]\n", "tau=2"),
        (RUN + "[search]\ntrials = 3\n[search.space]\ntau = { low = 1.0, high = 0.1 }\n", "not below"),
        (RUN + "[search]\ntrials = 3\n[search.space]\ntau = { low = 0.1, high = 9.0 }\n", "tau=9"),
        (RUN + "[search]\ntrials = 3\n[search.space]\ntau = { low = 0.0, high = 0.1, log = true }\n", "above 0"),
        (RUN + "[grid]\ntau = [0.1]\n[search]\ntrials = 1\n[search.space]\ntau = { choices = [0.1, 0.2] }\n", "one of"),
        ("run = ", "no TOML file"),
    ],
)
def test_what_cannot_be_used_is_named_before_anything_runs(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=r"seeds\.toml") as error:
        read_study(written(tmp_path, text))

    assert expected in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="There is no file"):
        read_study(tmp_path / "none.toml")
