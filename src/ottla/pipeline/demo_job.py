"""Writes the job file of the demo, which can be run again, read and changed.

The text is written for people first; the demo itself reads it back like any other job file.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

TABLE = "requests"
TRAFFIC = "traffic"


@dataclass(frozen=True, slots=True)
class DemoJob:
    """The values of a demo's job file that differ between demos."""

    bootstrap: str
    topic: str
    traffic_topic: str
    source: str
    """The subject of the report, in a few words."""
    master: str | None = None

    def text(self) -> str:
        """Return the job file. Its paths are relative to its own directory."""
        texts = {
            "bootstrap": self.bootstrap,
            "topic": self.topic,
            "traffic_topic": self.traffic_topic,
            "source": self.source,
            "master": self.master or "",
        }
        template = _JOB if self.master else _JOB.replace("master = <master>\n", "")
        return re.sub(r"= (\[?)<(\w+)>", lambda match: f"= {match[1]}{quoted(texts[match[2]])}", template)


def quoted(text: str) -> str:
    r"""Return a text as TOML writes it.

    >>> quoted('a "b" \\ c')
    '"a \\"b\\" \\\\ c"'
    """
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


_JOB = r"""# The job of `ottla demo`, which overwrites this file each time: copy it before you change it.
# `ottla pipeline run --job FILE` runs it, and `ottla pipeline init` writes a file with every key and its meaning.

[brokers]
bootstrap = <bootstrap>

[lake]
path = "lake"

[spark]
work = "spark"
master = <master>

# Lines of an access log to a table, each offset exactly once; other lines go to requests_quarantine.
[[load]]
topics = [<topic>]
table = "requests"
format = "access-log"

# Windows of event time, kept up to date in a table and in a compacted topic.
[[stream]]
name = "traffic"
from = "requests"
window = "5m"
by = ["status_class", "path_prefix"]
topic = <traffic_topic>
partitions = 4

[stream.columns]
status_class = "concat(cast(status div 100 as string), 'xx')"
path_prefix = "coalesce(nullif(regexp_extract(path, '^(/[^/]*)', 1), ''), '(none)')"

[stream.values]
requests = "count"
errors = "count if status >= 400"
bytes = "sum(bytes)"
clients = "distinct(client)"

# Every offset of the log accounted for: by the time of the records, which is when they were produced.
[audit]
bucket = "10m"

# The page: by the time of the events, which is when the requests were made.
[report]
title = "Web traffic"
subtitle = <source>
output = "report.html"

[[report.section]]
show = "figures"
sql = '''
select count(*) as requests, count_if(status >= 400) as errors,
       coalesce(count_if(status >= 400) / nullif(count(*), 0), 0) as error_share,
       count(distinct client) as clients, coalesce(sum(bytes), 0) as sent_bytes,
       min(event_time) as first_request, max(event_time) as last_request
from requests'''

[[report.section]]
title = "Requests over time"
show = "columns"
sql = '''
select window_start,
       status_class || case status_class when '2xx' then ' served' when '3xx' then ' moved or unchanged'
         when '4xx' then ' client errors' when '5xx' then ' server errors' else '' end as class,
       sum(requests) as requests
from traffic group by all order by window_start'''

[[report.section]]
title = "Bytes over time"
show = "columns"
sql = "select window_start, sum(bytes) as sent_bytes from traffic group by all order by window_start"

[[report.section]]
title = "Status mix"
show = "bars"
limit = 10
sql = '''
select status, requests, requests / sum(requests) over () as share
from (select status, count(*) as requests from requests group by status) order by requests desc, status'''

[[report.section]]
title = "Busiest parts of the site"
show = "bars"
limit = 10
sql = '''
select path_prefix, sum(requests) as requests, sum(errors) as errors
from traffic group by path_prefix order by requests desc, path_prefix'''

[[report.section]]
title = "Top paths"
show = "bars"
limit = 10
sql = '''
select path, count(*) as requests, sum(bytes) as sent_bytes
from requests where path is not null group by path order by requests desc, path'''

[[report.section]]
title = "Top clients"
show = "bars"
limit = 10
sql = '''
select client, count(*) as requests, sum(bytes) as sent_bytes
from requests where client is not null group by client order by requests desc, client'''
"""
