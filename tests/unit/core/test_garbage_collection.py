"""The garbage collector of a broker's process, each test in a process of its own."""

from __future__ import annotations

import subprocess
import sys

PREPARED = """
import gc, weakref
from ottla.core import garbage_collection

class Node:
    pass

def cycle():
    node = Node()
    node.itself = node
    return weakref.ref(node)

gc.set_threshold(700, 10, 1 << 20)
collects_by_pieces = gc.get_threshold()[2] == 0  # CPython 3.14 ignores the threshold
gc.set_threshold(700, 10, 10)
lengths = []
gc.callbacks.append(lambda phase, info: lengths.append(info["generation"]) if phase == "start" else None)
"""


def run(program: str) -> None:
    subprocess.run([sys.executable, "-c", PREPARED + program], check=True, timeout=60)


def test_the_oldest_objects_are_collected_only_when_the_broker_asks() -> None:
    run("""
garbage_collection.take_over()
lengths.clear()
kept = [[number] for number in range(300_000)]
assert 1 in lengths and 2 not in lengths, lengths
""")


def test_cycles_are_freed_while_objects_are_few() -> None:
    run("""
garbage_collection.take_over()
garbage = cycle()
garbage_collection.collect()
if collects_by_pieces:
    kept = [[number] for number in range(300_000)]
assert garbage() is None
""")


def test_many_new_objects_are_not_looked_at() -> None:
    run("""
garbage_collection.take_over()
kept = [[number] for number in range(300_000)]
before = gc.get_freeze_count()
garbage_collection.collect()
if not collects_by_pieces:
    assert gc.get_freeze_count() - before > 290_000
    assert len(gc.get_objects(generation=2)) < 1_000
""")


def test_a_program_that_embeds_a_broker_keeps_its_collector() -> None:
    run("""
kept = [[number] for number in range(1_000)]
before = gc.get_threshold(), gc.get_freeze_count()
garbage_collection.collect()
garbage_collection.exclude_present_objects()
assert (gc.get_threshold(), gc.get_freeze_count()) == before
""")


def test_nothing_is_collected_in_a_pause_and_what_is_made_in_it_is_excluded_later() -> None:
    run("""
with garbage_collection.paused():
    kept = [[number] for number in range(300_000)]
assert lengths == [], lengths
assert gc.isenabled()
assert gc.get_freeze_count() > 290_000
""")


def test_a_pause_does_not_enable_collections_that_were_off_before() -> None:
    run("""
gc.disable()
with garbage_collection.paused():
    pass
assert not gc.isenabled()
""")
