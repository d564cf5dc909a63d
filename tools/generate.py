"""Writes everything in the repository that is generated, or (`--check`) says what is out of date.

Generated: the message shapes (from kio's schema), docs/configuration.md and docs/topic-settings.md (from the settings'
declarations), docs/protocol-support.md (from the table of APIs and the heads of the handlers), docs/acls.md (from what
the handlers require of clients), the lists of options in docs/cli.md (from the commands), docs/control-api.json (from
the operations), the table in docs/metrics.md (from the declarations), the workloads and mutations in
docs/storage-testing.md and docs/group-testing.md (from the tests), and the example of a
job file (from the declarations of its keys).
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))


def everything() -> dict[Path, str]:
    """What each generated file should hold."""
    import generate_acls
    import generate_cli
    import generate_control_api
    import generate_docs
    import generate_job_file
    import generate_messages
    import generate_metrics
    import generate_testing
    import generate_topic_settings

    files = {ROOT / path: text for path, text in generate_messages.generate().items()}
    files |= {ROOT / path: text for path, text in generate_docs.generate().items()}
    files |= {ROOT / path: text for path, text in generate_acls.generate().items()}
    files |= {ROOT / path: text for path, text in generate_topic_settings.generate().items()}
    files |= {ROOT / path: text for path, text in generate_testing.generate().items()}
    files |= {ROOT / path: text for path, text in generate_metrics.generate().items()}
    files |= {ROOT / path: text for path, text in generate_job_file.generate().items()}
    files |= {ROOT / path: text for path, text in generate_control_api.generate().items()}
    return files | {ROOT / path: text for path, text in generate_cli.generate().items()}


def superseded() -> list[Path]:
    """List the files that an earlier run wrote and nothing generates any more."""
    import generate_messages

    return generate_messages.superseded()


def main() -> int:
    """Write, or with `--check` compare and name what differs."""
    check = "--check" in sys.argv[1:]
    stale = []
    for path, text in everything().items():
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(path.relative_to(ROOT))
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    for name in stale:
        print(f"out of date: {name}" if check else f"written: {name}")
    for path in superseded():
        stale.append(path.relative_to(ROOT))
        if not check:
            path.unlink()
        print(f"{'no longer generated' if check else 'deleted'}: {stale[-1]}")
    if check and stale:
        print("run `make generate` and commit what it writes")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
