import io
import subprocess
import sys
from pathlib import Path

import fuzz
import pytest

from secateur.encode.container import Archive


def test_two_thousand_damaged_files_are_refused_or_read_within_the_limit():
    accepted = fuzz.run(2000, seed=0)
    assert 0 < accepted < 1000


@pytest.mark.parametrize("content", fuzz.corpus())
def test_what_the_fuzzer_takes_apart_it_can_put_together(content):
    archive, streams = fuzz.streams_of(content)
    assert fuzz.rebuild(archive, streams, {}) == content
    flags, head, stream = fuzz.split(content)
    assert fuzz.seal(flags, head, [stream], archive.version) == content
    assert fuzz.check(content)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how much memory is taken")
def test_the_fuzzer_notices_memory_of_native_code():
    # In a process of its own: this one may hold freed memory, which can be taken again unnoticed.
    program = """
import fuzz
content = fuzz.vector_by_context(1 << 19)
try:
    with fuzz.memory(12 << 20):
        fuzz.check(content, limit=1 << 30)
except MemoryError:
    print("noticed", fuzz.check(content, limit=1 << 30))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "noticed True\n"), done.stderr


def test_a_vector_by_context_is_refused_where_its_columns_take_more_memory_than_is_allowed():
    content = fuzz.vector_by_context(1 << 19)
    assert len(content) < 100
    with fuzz.memory(12 << 20):
        assert not fuzz.check(content, limit=84 * (1 << 19) - 1)
    assert fuzz.check(content, limit=84 << 19)


def test_every_kind_of_damage_gets_past_the_checksums():
    refused = {change.__name__: set() for change in fuzz.CHANGES}
    for index, content in enumerate(fuzz.cases(400, seed=3)):
        try:
            for _ in Archive(io.BytesIO(content), fuzz.LIMIT).read_all():
                pass
        except fuzz.FormatError as error:
            refused[fuzz.CHANGES[index % len(fuzz.CHANGES)].__name__].add("checksum" in str(error))
    assert {name for name, found in refused.items() if False in found} == set(refused)
    assert {name for name, found in refused.items() if True in found} == {"change_bytes", "change_header"}
