"""What a broker needs only after its start is imported only then: each module costs time before the ready line."""

from __future__ import annotations

import subprocess
import sys

LATER = {
    "difflib",
    "ottla.broker.maintenance.log_cleaner",
    "ottla.broker.migration.import_from_kafka",
    "ottla.broker.maintenance.scrub_scheduler",
    "ottla.storage.scrubbing.scrubber",
}


def test_the_server_imports_no_module_that_is_needed_later() -> None:
    program = "import sys, ottla.broker.process.server; print(*sys.modules)"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert not LATER & set(done.stdout.split())


DATACLASSES = {"BrokerConfig", "ClusterView", "ControllerTerm", "LogConfig", "PartitionView", "TopicOnlyConfig"}
"""The methods of a dataclass are compiled when its module is imported: 0.5 ms and more. Others are sections of settings
(`core/settings.py`), named tuples or plain classes."""


def test_the_server_makes_few_dataclasses_at_its_start() -> None:
    program = """
import sys, ottla.cli.main, ottla.broker.process.server
modules = [module for name, module in sys.modules.items() if name.startswith("ottla.")]
classes = {each for module in modules for each in vars(module).values() if isinstance(each, type)}
print(*(each.__name__ for each in classes if getattr(vars(each).get("__dataclass_params__"), "init", False)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert set(done.stdout.split()) <= DATACLASSES
