"""Files that have a second name, and what a kill leaves of them."""

from pathlib import Path

from retro.stages.files import link_or_copy


def test_a_second_name_can_be_given_again(tmp_path: Path) -> None:
    """As after a kill: the name may be there already, or that of another finished file."""
    source = tmp_path / "source"
    source.write_text("new")
    other = tmp_path / "other"
    other.write_text("finished")
    target = tmp_path / "target"
    for _ in range(2):
        link_or_copy(source, target)
        assert target.samefile(source)
    link_or_copy(other, target)
    link_or_copy(source, target)
    assert target.read_text() == "new"
    assert other.read_text() == "finished"
