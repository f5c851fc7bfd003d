"""The commit that a run notes."""

import subprocess

from paceline import run_records


def test_the_commit_of_a_folder_says_whether_files_have_changed(tmp_path):
    def git(*arguments: str) -> str:
        who = ["-c", "user.name=Somebody", "-c", "user.email=somebody@example.org"]
        done = subprocess.run(
            ["git", *who, "-C", str(tmp_path), *arguments], check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    of = run_records.commit_of.__wrapped__  # not the one that the tests remember
    assert of(tmp_path) is None
    git("init", "--quiet")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "--quiet", "--message", "first")
    assert of(tmp_path) == git("rev-parse", "--short=7", "HEAD")
    (tmp_path / "file").write_text("two")
    assert of(tmp_path) == git("rev-parse", "--short=7", "HEAD") + "-dirty"
