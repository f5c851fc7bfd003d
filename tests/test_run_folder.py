"""An unusable run folder is an error before anything starts; files are replaced as a whole."""

from __future__ import annotations

import errno
import os

import pytest

from paceline import files
from paceline.config import Config
from paceline.errors import PacelineError, UsageError
from paceline.files import DiskFull, replace_text, replacing
from paceline.run_folder import check_run_folder, open_run_folder, remove_leftovers, set_reports_aside
from paceline.session import train


@pytest.fixture
def no_simulators(monkeypatch):
    """Fail the test if a simulator is made."""

    def fail(*_, **__):
        raise AssertionError("a simulator was made")

    monkeypatch.setattr("paceline.session.make_pool", fail)


@pytest.mark.parametrize("below", ["", "x", "x/y"])
def test_a_file_in_the_path_is_named_before_simulators_are_made(tmp_path, no_simulators, below):
    (tmp_path / "afile").write_text("kept")
    with pytest.raises(UsageError, match="afile is a file; allowed: a folder") as raised:
        train(Config(device="cpu"), tmp_path / "afile" / below)
    assert raised.value.exit_code == 2 and "\n" not in str(raised.value)
    assert (tmp_path / "afile").read_text() == "kept" and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.EACCES, "this user may not write there"), (errno.EROFS, "the file system is read-only")],
)
@pytest.mark.parametrize("operation", ["mkdir", "write", "rename"])
def test_a_folder_that_cannot_be_written_to_is_a_usage_error(
    tmp_path, monkeypatch, no_simulators, number, words, operation
):
    def fail(*_, **__):
        raise OSError(number, os.strerror(number))

    target = {"mkdir": "pathlib.Path.mkdir", "write": "pathlib.Path.write_bytes", "rename": "os.replace"}[operation]
    with monkeypatch.context() as broken:
        broken.setattr(target, fail)
        with pytest.raises(UsageError, match=rf"new cannot be written: {words}") as raised:
            train(Config(device="cpu"), tmp_path / "deep" / "new")
    assert raised.value.exit_code == 2 and list(tmp_path.iterdir()) == []


def test_a_full_disk_is_reported_before_simulators_are_made(tiny_disk, no_simulators):
    (tiny_disk / "large").write_bytes(bytes(260_000))
    with pytest.raises(
        DiskFull, match=r"run cannot be written: the disk is full \(it needs 64 KiB, and \d+ KiB are"
    ) as raised:
        train(Config(device="cpu"), tiny_disk / "run")
    assert raised.value.exit_code == 1 and [path.name for path in tiny_disk.iterdir()] == ["large"]


@pytest.mark.parametrize("error", [UsageError("no"), PacelineError("no"), KeyboardInterrupt()])
def test_a_run_that_wrote_nothing_leaves_no_folder(tmp_path, error):
    with pytest.raises(type(error)), open_run_folder(tmp_path / "runs" / "new"):
        raise error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "existed", "kept"),
    [(UsageError("no"), False, False), (PacelineError("no"), False, True), (UsageError("no"), True, True)],
)
def test_only_usage_errors_delete_the_folder(tmp_path, error, existed, kept):
    folder = tmp_path / "run"
    if existed:
        folder.mkdir()

    def run() -> None:
        with open_run_folder(folder):
            (folder / "config.json").write_text("{}")
            raise error

    with pytest.raises(PacelineError):
        run()
    assert (folder / "config.json").exists() == kept and folder.exists() == kept


def test_a_check_leaves_everything_as_it_was(tmp_path):
    check_run_folder(tmp_path / "runs" / "new")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / ".config.123.json").write_text("")
    check_run_folder(tmp_path / "old")
    assert [path.name for path in (tmp_path / "old").iterdir()] == [".config.123.json"]


def test_temporary_files_of_killed_writers_are_removed(tmp_path):
    """Other files stay, because other commands may be writing reports."""
    left = ["checkpoints/.latest.77", "checkpoints/.best.77", "replay/rank_1/.segment_3_ab12cd34.77.safetensors"]
    left += ["checkpoints/.step_20.77/state.pt", "replay/rank_0/.segment_0_ab12cd34.safetensors.77", ".config.77.json"]
    left += [f"checkpoints/.step_30.{os.getpid()}/manifest.json", ".config.json.77.sig"]
    kept = ["checkpoints/step_10/state.pt", "replay/rank_0/segment_1_ab12cd34.safetensors", ".report.77.html"]
    kept += ["config.json", "checkpoints/latest", "metrics.jsonl"]
    for name in [*left, *kept]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    with open_run_folder(tmp_path):
        assert (tmp_path / left[0]).exists(), "nothing changes before a checkpoint is restored"
    remove_leftovers(tmp_path)
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert found == sorted(kept)
    assert not list((tmp_path / "checkpoints").glob(".*"))


@pytest.mark.parametrize("where", ["write", "flush", "rename"])
def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path, monkeypatch, where):
    path = tmp_path / "config.json"
    Config(steps=1).save(path)
    before = path.read_bytes()

    def fail(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr({"write": "pathlib.Path.write_text", "flush": "os.fsync", "rename": "os.replace"}[where], fail)
        with pytest.raises(DiskFull, match="config.json cannot be written: the disk is full"):
            Config(steps=2).save(path)
    assert path.read_bytes() == before
    assert sorted(found.name for found in tmp_path.iterdir()) == ["config.json", "config.json.sig"]
    Config(steps=2).save(path)
    assert Config.load(path).steps == 2


def test_a_replaced_file_is_on_disk_before_it_has_its_name(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(files, "flush", lambda path: calls.append(("flush", path.name)))
    monkeypatch.setattr("os.replace", lambda source, target: calls.append(("replace", target.name)))
    replace_text(tmp_path / "report.html", "text")
    name = f".report.{os.getpid()}.html"
    assert calls == [("flush", name), ("replace", "report.html"), ("flush", tmp_path.name)]


def test_temporary_names_are_recognised_and_final_names_are_not(tmp_path):
    for name in ("step_5", "latest", "config.json", "segment_0_ab12cd34.safetensors", "policy.onnx"):
        with replacing(tmp_path / name) as temporary:
            temporary.write_text("")
            assert files.TEMPORARY.fullmatch(temporary.name) and temporary.name.endswith((tmp_path / name).suffix)
        assert files.TEMPORARY.fullmatch(name) is None and (tmp_path / name).exists()


def test_a_folder_has_one_run_at_a_time(tmp_path):
    with open_run_folder(tmp_path / "run"):
        with pytest.raises(UsageError, match="is in use"), open_run_folder(tmp_path / "run"):
            pass
        assert (tmp_path / "run").is_dir()
    with open_run_folder(tmp_path / "run"):
        pass


def test_a_checkpoint_that_was_being_replaced_is_restored(tmp_path):
    """Its writer was killed between the two renames."""
    hidden = tmp_path / "checkpoints" / ".replaced_step_128.4711"
    hidden.mkdir(parents=True)
    (hidden / "manifest.json").write_text("{}")
    with open_run_folder(tmp_path):
        assert (tmp_path / "checkpoints" / "step_128" / "manifest.json").exists()
    assert not hidden.exists()


def test_files_of_the_user_stay_in_a_folder_that_was_no_run(tmp_path):
    """For example a project's own folder, as in --run-dir ."""
    own = [".config.json", ".config.yaml", "metrics.jsonl", ".config.d"]
    for name in own[:3]:
        (tmp_path / name).write_text("mine")
    (tmp_path / ".config.d").mkdir()
    remove_leftovers(tmp_path)
    set_reports_aside(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(own)
