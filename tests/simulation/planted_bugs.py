"""Plants a bug in the production code: a text replacement in one file, before it is imported.

Each bug is a realistic mistake. A simulation that does not find it within its seeds is no proof of anything. The text
must occur exactly once in the file; otherwise the bug has to be planted again where the code is now.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

SOURCE = Path(__file__).resolve().parents[2] / "src"


class Edit(NamedTuple):
    """A text replacement."""

    file: str  # below src/ottla
    before: str
    after: str


class PlantedBug(NamedTuple):
    """A mistake and the scenarios that find it."""

    number: int  # in the table of docs/simulation.md
    title: str
    edits: tuple[Edit, ...]
    brokers: int = 3
    replication: int = 3
    seeds: int = 2000  # within so many it must be found
    first: int = 1  # a seed near which it is found: the short version begins there
    kinds: str = ""  # of the faults that can show it; empty: all
    script: str = ""  # that fails with it
    schedules: str = ""  # a test with seeds of its own that fails with it; runs of the cluster are not tried
    is_secured: bool = False  # only runs with SCRAM and ACLs can show it
    is_page_cache: bool = False  # only runs in which records count before they are synced can show it


def _bug(
    number: int,
    title: str,
    *edits: tuple[str, str, str],
    kinds: str = "",
    script: str = "",
    schedules: str = "",
    is_page_cache: bool = False,
    is_secured: bool = False,
) -> PlantedBug:
    return PlantedBug(
        number,
        title,
        tuple(Edit(*each) for each in edits),
        kinds=kinds,
        script=script,
        schedules=schedules,
        is_page_cache=is_page_cache,
        is_secured=is_secured,
    )


_MOVES = "elect,reassign,cut-from,cut-to,cut-both,kill,pause,hold-feed"
"""Kinds of faults that move the leadership without an end of the leader."""

_PARTITION, _LEADER = "replication/partition.py", "replication/leader_state.py"

BUGS: tuple[PlantedBug, ...] = (
    _bug(
        1,
        "a follower truncates to its high watermark",
        (
            _PARTITION,
            "            is_durable = self.durable_end == self.log.end_offset\n            self.follower = FollowerState",
            (
                "            self.log.truncate_to(self.log.high_watermark)\n"
                "            is_durable = self.durable_end == self.log.end_offset\n            self.follower = FollowerState"
            ),
        ),
        script="kip-101",
    ),
    _bug(
        2,
        "the high watermark counts the committed ISR only",
        (
            _LEADER,
            "            if node_id not in maximal:\n",
            "            if node_id not in self.isr:\n                continue\n            if node_id not in maximal:\n",
        ),
        script="expansion-without-an-answer",
        kinds="cut-from,cut-to,cut-both,hold-feed,cut-store,kill",
    ),
    _bug(
        3,
        "a pending removal from the ISR counts at once",
        (
            _LEADER,
            "self.maximal_isr = self.isr + added",
            "self.isr = self.maximal_isr = tuple(change[4][i][0] for i in range(len(change[4])))",
        ),
        kinds="cut-both,cut-from,cut-to,kill",
        script="removal-without-an-answer",
    ),
    _bug(
        4,
        "a controller's commit does not check the controller epoch",
        (
            "controller/terms.py",
            "batch = [Check(znodes.CONTROLLER_EPOCH, term.version), *waiting[0]]",
            "batch = [*waiting[0]]",
        ),
        script="deposed-controller",
        kinds="depose,hold-feed,kill,cut-from,cut-to",
    ),
    _bug(
        5,
        "the leader acknowledges before its flush",
        (
            _PARTITION,
            'return log.flushed_offset if log.config.durability == "fsync" else log.end_offset',
            "return log.end_offset",
        ),
        (
            _PARTITION,
            "            self._commit.schedule(self)\n        else:\n            self._advance(log.end_offset)\n",
            (
                "            self._commit.schedule(self)\n            self._advance(log.end_offset)\n"
                "        else:\n            self._advance(log.end_offset)\n"
            ),
        ),
    )._replace(brokers=1, replication=1),
    _bug(
        6,
        "a follower fetches from its end, which is not durable",
        (
            _PARTITION,
            "            follower.require_sync()\n            self._commit.schedule(self)\n            return\n",
            "            self._commit.schedule(self)\n            return\n",
        ),
        (
            _PARTITION,
            'assert self.durable_end == end, "a replica is fetched only when its whole log is durable"',
            "pass",
        ),
        script="power-cut-of-all",
    ),
    _bug(
        7,
        "a failed fsync is tried again and believed",
        (
            "storage/log/flush.py",
            "                file.sync()\n            if self._open_files",
            (
                "                try:\n                    file.sync()\n                except SyncFailed:\n                    file.sync()\n"
                "            if self._open_files"
            ),
        ),
    )._replace(brokers=1, replication=1, first=12),
    _bug(
        8,
        "the old leader appends after it has stepped down",
        (
            _PARTITION,
            "        if not self.is_serving:\n            self.check_serving()\n        log = self.log\n        if acks == -1",
            "        log = self.log\n        if acks == -1",
        ),
        script="client-of-the-former-leader",
    ),
    _bug(
        9,
        "a leader notes its epoch with its first record only",
        (_PARTITION, "        self.log.begin_epoch(view.leader_epoch)\n", ""),
        script="two-leaders-4-3",
        kinds=_MOVES,
    ),
    _bug(
        10,
        "a truncation ignores where the own epoch ends",
        (
            _PARTITION,
            "return self.truncate(truncation_offset(self.log, leader_end))",
            "return self.truncate(leader_end.end_offset)",
        ),
        script="two-leaders-4-3",
        kinds=_MOVES,
    ),
    _bug(
        11,
        "an empty last epoch stays in the cache",
        ("storage/log/partition_log.py", "if self.epochs.truncate_from_end(offset):", "if False:"),
        script="leader-without-records",
        kinds="elect,cut-clients,cut-from,cut-to,pause",
    ),
    _bug(
        12,
        "a fetch that diverges counts as a position",
        (
            _PARTITION,
            "        if diverging is not None:\n            return diverging",
            (
                "        if diverging is not None:\n"
                "            follower.update(\n"
                "                fetch_offset, log_start_offset, broker_epoch, leader_end=log.end_offset, now_s=now_s\n"
                "            )\n"
                "            self._advance(self.durable_end)\n"
                "            return diverging"
            ),
        ),
        script="fetch-that-diverges",
        kinds="kill,cut-from,cut-to,cut-both,slow,elect",
    ),
    _bug(
        13,
        "the leader epoch of a fetch is ignored",
        (
            _PARTITION,
            "        self.check_serving(current_leader_epoch)\n        state, log",
            "        self.check_serving()\n        state, log",
        ),
        script="unknown-new-term",
        kinds=_MOVES,
    ),
    _bug(
        14,
        "a replica joins the ISR below the start of the term",
        (_LEADER, "            and follower.end_offset >= self.term_start\n", ""),
        (
            _LEADER,
            "                and follower.is_caught_up(log_end, now_s, context.lag_max_s)  # otherwise",
            "                # otherwise",
        ),
        script="stale-high-watermark",
        kinds="kill,cut-from,cut-to,cut-both,slow,elect",
    ),
    _bug(
        15,
        "a replica of an earlier life of its broker joins the ISR",
        ("replication/replication_context.py", " and info.epoch == broker_epoch", ""),
        ("controller/isr.py", "elif epoch not in {UNKNOWN_BROKER_EPOCH, broker.epoch}:", "elif False:"),
        (_LEADER, "if broker_epoch >= 0 and known is not None and broker_epoch < known.epoch:", "if False:"),
        kinds="wipe,kill,stop,cut-from",
        script="replica-of-an-earlier-life",
    ),
    _bug(
        16,
        "positions of followers are kept over another leader's term",
        (_PARTITION, "        if state is not None and continues:", "        if state is not None:"),
        (
            _PARTITION,
            "        self._drop_leader_state()\n        self.waiters",
            (
                "        self.is_serving = self._has_followers = False\n        if self.leader_state is not None:\n"
                "            self.leader_state.end()\n        self.waiters"
            ),
        ),
        script="positions-of-an-earlier-term",
        kinds=_MOVES,
    ),
    _bug(
        17,
        "an older state of a partition is applied",
        (
            _PARTITION,
            "if view.leader_epoch < self.leader_epoch or view.partition_epoch < self.partition_epoch or self._removed:",
            "if view.leader_epoch < self.leader_epoch or self._removed:",
        ),
        (_PARTITION, "is_newer = view.partition_epoch > self", "is_newer = view.partition_epoch != self"),
        script="older-state-from-the-store",
        kinds="cut-from,cut-to,cut-both,hold-feed,kill",
    ),
    _bug(
        18,
        "requests that wait for replication survive the end of the term",
        (_PARTITION, "        self.waiters.fail(self._not_leader())\n", ""),
        script="requests-over-two-terms",
        kinds=_MOVES,
    ),
    _bug(
        19,
        "min.insync.replicas is not compared after the append",
        (_PARTITION, "            if len(state.maximal_isr) < min_isr:\n", "            if False:\n"),
        (_LEADER, "        if len(self.isr) < min_isr:\n            return high_watermark\n", ""),
        script="leader-below-min-isr",
    ),
    _bug(
        20,
        "the high watermark moves below min.insync.replicas",
        (_LEADER, "        if len(self.isr) < min_isr:\n            return high_watermark\n", ""),
        script="leader-below-min-isr",
    ),
    _bug(
        21,
        "a page-cache replica stays in the ISR after an unclean start",
        (
            "controller/election_events.py",
            "            if is_unclean_start(overlay, node_id, name.topic):\n                rules",
            "            if False:\n                rules",
        ),
        kinds="power-cut,wipe,stop",
        is_page_cache=True,
        script="last-page-cache-replica",
    ),
    _bug(
        22,
        "no full load after a gap in the feed of changes",
        (
            "metadata_store/metadata_cache.py",
            "            self._is_complete = self._is_complete or watch.is_complete\n            self._pending += watch.take()",
            (
                "            is_gap = watch.is_complete and self._is_loaded\n            changes = watch.take()\n"
                "            self._is_complete = self._is_complete or not self._is_loaded\n"
                "            self._pending += () if is_gap else changes"
            ),
        ),
        kinds="gap,kill,stop",
        script="gap-in-the-feed",
    ),
    _bug(
        23,
        "a commit with an unknown outcome is taken for a success",
        (
            "controller/terms.py",
            (
                "            try:\n                if not await was_committed(store, batch):\n"
                "                    continue  # the same again: nothing of it was written\n"
                "            except StoreError:\n                raise NotController from None"
            ),
            "            pass",
        ),
        kinds="cut-store,kill,stop",
        script="lost-answers-of-the-store",
    ),
    _bug(
        24,
        "a controller writes in another session than that of its term",
        ("controller/terms.py", "        if state.ordinal != term.session:\n            raise NotController\n", ""),
        script="outages-of-the-store",
        kinds="outage,kill,pause,cut-from",
    ),
    _bug(
        25,
        "a coordinator loads its partition up to the high watermark only",
        (
            "internal_topics/topic.py",
            "return self._partition(partition).log.end_offset",
            "return self._partition(partition).log.high_watermark",
        ),
        script="commit-before-a-kill",
    ),
    _bug(
        26,
        "the state of a coordinator is kept over another broker's term",
        (
            "internal_topics/coordinator_partition.py",
            "        if leader_epoch != self.leader_epoch + 1 or not self.is_ready:\n            return False\n",
            "        if not self.is_ready:\n            return False\n",
        ),
        (
            "internal_topics/coordinator_partition.py",
            "        if not self.writer.has_reached(end_offset):\n            return False\n",
            "",
        ),
        schedules="tests/coordinator_schedules/test_moving_groups.py",
    ),
    _bug(
        27,
        "a coordinator appends in another leader epoch than its own",
        (
            "internal_topics/writer.py",
            "records, producer, leader_epoch=self.leader_epoch)",
            "records, producer, leader_epoch=-1)",
        ),
        schedules="tests/coordinator_schedules/test_moving_groups.py",
    ),
    _bug(
        28,
        "the coordinator epoch of a marker is not compared",
        (
            "storage/state/producer_state_manager.py",
            "if marker.coordinator_epoch < entry.coordinator_epoch:",
            "if False:",
        ),
        script="marker-of-an-earlier-coordinator",
        kinds="pause,cut-from,cut-to,cut-both",
    ),
    _bug(
        29,
        "the log of a deleted topic is opened for a new one of the same name",
        (
            "replication/replicas.py",
            "            if may_be_topic_id(there.topic_id, topic.topic_id) and not self._is_of_former_topic(there, topic, view):\n",
            "            if True:\n",
        ),
        (
            "replication/replicas.py",
            "            if partition_log.topic_id != topic.topic_id:\n",
            "            if False:\n",
        ),
        script="topic-created-again",
    ),
    _bug(
        30,
        "a log is removed because its topic is missing from a snapshot",
        (
            "replication/replicas.py",
            "topic.topic_id == NO_TOPIC_ID:\n            return False\n",
            "topic.topic_id == NO_TOPIC_ID:\n            return topic is None\n",
        ),
        script="snapshot-without-the-topic",
    ),
    _bug(
        31,
        "a log that has lost its first segments begins after them",
        (
            "storage/log/faulty_ranges.py",
            "log.log_start_offset, log.faults.lost_start = log.faults.lost_start, None",
            "log.faults.lost_start = None",
        ),
        kinds="corrupt",
        script="first-segment-lost",
    ),
    _bug(
        32,
        "a replica with corrupt records is elected and stays in the ISR",
        (
            "controller/elections.py",
            "        if not any(each in self.impaired for each in isr):\n            return isr\n",
            "        if isr:\n            return isr\n",
        ),
        kinds="corrupt",
        script="corruption-on-the-leader",
    ),
    _bug(
        33,
        "a broker cut off from the store goes on to allow by what it knew",
        ("metadata_store/snapshot_age.py", "        if age_s <= self._age_max_s:\n", "        if age_s >= 0:\n"),
        kinds="cut-store,pause,outage",
        script="right-taken-from-a-broker-cut-off",
        is_secured=True,
    ),
    _bug(
        34,
        "a broker that waits for changes takes what it knows for the newest",
        (
            "metadata_store/snapshot_age.py",
            "                await self._sync()\n",
            "                await asyncio.sleep(0)\n",
        ),
        kinds="hold-feed",
        script="right-taken-while-the-feed-lags",
        is_secured=True,
    ),
    _bug(
        35,
        "a broker cut off from the store lets clients sign in by the passwords that it knew",
        (
            "broker/sign_ins.py",
            "        return age is not None and sign_in.mechanism in HASHES and age.is_too_old()\n",
            "        return age is None\n",
        ),
        kinds="cut-store,pause,outage",
        script="right-taken-from-a-broker-cut-off",
        is_secured=True,
    ),
)


class CannotPlant(Exception):
    """The text to be replaced is not in the file exactly once."""


def find(name: str) -> PlantedBug:
    """Return the bug with this number."""
    return next(bug for bug in BUGS if str(bug.number) == name)


def texts(bug: PlantedBug) -> dict[str, str]:
    """Return the texts of the files with the bug. Raises CannotPlant."""
    found: dict[str, str] = {}
    for edit in bug.edits:
        text = found.get(edit.file) or (SOURCE / "ottla" / edit.file).read_text()
        count = text.count(edit.before)
        if count != 1:
            raise CannotPlant(f"bug {bug.number} ({bug.title}): a text of it occurs {count} times in {edit.file}")
        found[edit.file] = text.replace(edit.before, edit.after)
    return found


def plant(name: str) -> None:
    """Have the modules be imported with the bug. Raises CannotPlant."""
    for file, text in texts(find(name)).items():
        module = "ottla." + file.removesuffix(".py").replace("/", ".")
        if module in sys.modules:
            raise CannotPlant(f"{module} is imported already")
        compile(text, file, "exec")
        sys.meta_path.insert(0, _Planter(module, SOURCE / "ottla" / file, text))


class _Planter(importlib.abc.MetaPathFinder):
    """Finds one module, with another text."""

    def __init__(self, module: str, path: Path, text: str) -> None:
        self._module, self._path, self._text = module, path, text

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if fullname != self._module:
            return None
        return importlib.util.spec_from_file_location(
            fullname, self._path, loader=_Loader(fullname, str(self._path), self._text)
        )


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a source file with another text, and caches nothing."""

    def __init__(self, fullname: str, path: str, text: str) -> None:
        super().__init__(fullname, path)
        self._text = text

    def get_data(self, path: str) -> bytes:
        """Return the changed text."""
        if not path.endswith(".py"):
            raise OSError("there is no cached bytecode of a planted bug")
        return self._text.encode()

    def set_data(self, *_: object, **__: object) -> None:
        """Write no bytecode: the next import must see the file as it is."""
