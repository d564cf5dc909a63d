"""What a broker needs only after its start is imported only then: each module costs time before the ready line."""

from __future__ import annotations

import subprocess
import sys

LATER = {
    "difflib",
    "ottla.broker.log_cleaner",
    "ottla.broker.migration.import_plan",
    "ottla.broker.scrub_scheduler",
    "ottla.storage.scrubbing.scrubber",
}


def test_the_server_imports_no_module_that_is_needed_later() -> None:
    program = "import sys, ottla.broker.server; print(*sys.modules)"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert not LATER & set(done.stdout.split())
