"""SQL of job files only computes from the job's tables: nothing runs code, touches files or changes the session."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla.pipeline.reporting.query import SectionQuery, run_queries
from ottla.pipeline.reporting.values import InvalidReportSection, SectionKind
from ottla.pipeline.sql_check import ForbiddenSql, check_query, checked_expression
from ottla.pipeline.stream.aggregate import Aggregate, Windows
from ottla.pipeline.stream.errors import InvalidExpression
from ottla.pipeline.stream.measures import parse_measure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXIT = "('java.lang.Runtime', 'halt', 1)"
EVIL_EXPRESSIONS = (
    f"reflect{EXIT}",
    f"Java_Method{EXIT}",
    f"try_reflect{EXIT}",
    f"`reflect`{EXIT}",
    f"system.builtin.reflect{EXIT}",
    f"builtin.reflect{EXIT}",
    f"some_catalog.some_function{EXIT}",
    f"identifier('ref' || 'lect'){EXIT}",
    f"1 + length(upper(reflect{EXIT}))",
    f"transform(array(1), x -> reflect{EXIT})",
    f"case when a then reflect{EXIT} end",
    f"a in (1, reflect{EXIT})",
    f"struct(reflect{EXIT} as b).b",
    f"sum(a) filter (where reflect{EXIT} is null)",
    f"sum(a) over (partition by reflect{EXIT})",
    f"(select reflect{EXIT})",
    f"exists (select 1 from t where reflect{EXIT} is null)",
    "(select max(_c0) from csv.`/etc/passwd`)",
    "input_file_name()",
    "from_protobuf(a, 'M', '/etc/passwd')",
)
EVIL_QUERIES = (
    *(f"select {expression} from t" for expression in EVIL_EXPRESSIONS),
    "select transform(a) using 'touch /tmp/x' as (b) from t",
    "from t map a using 'touch /tmp/x' as b",
    f"select sum(a) over w from t window w as (partition by reflect{EXIT})",
    f"with x as (select reflect{EXIT} as q) select * from x",
    f"with x as (with y as (select reflect{EXIT}) select * from y) select * from x",
    f"select * from values (1, reflect{EXIT}) as t(a, b)",
    f"select * from t lateral view explode(array(reflect{EXIT})) as x",
    f"select * from t join u on reflect{EXIT} is null",
    f"select a from t group by grouping sets ((reflect{EXIT}), (a))",
    f"select a from t order by reflect{EXIT}",
    f"select * from t pivot (sum(a) for b in (reflect{EXIT} as c))",
    f"select * from t, lateral (select reflect{EXIT})",
    f"select * from t tablesample (10 percent) where reflect{EXIT} is null",
    f"from t |> select reflect{EXIT}",
    f"select * from range(reflect{EXIT})",
    "select * from csv.`/etc/passwd`",
    "select * from spark_catalog.default.t",
    "table parquet.`/data`",
    "select * from identifier('csv.' || '`/etc/passwd`')",
    "insert overwrite directory '/tmp/x' using csv select 1",
    "insert into t select 1",
    "create table x as select 1",
    "create temporary view t as select 1",
    "create temporary function f as 'a.B' using jar '/x.jar'",
    "add jar '/x.jar'",
    "set spark.sql.ansi.enabled=false",
    "drop table t",
    "load data inpath '/x' into table t",
    "show tables",
    "begin select 1; end",
    "execute immediate 'select 1'",
)
PLAIN_EXPRESSIONS = (
    "a + 1 > 2 and b like 'x%'",
    "substring_index(path, '/', 2)",
    "case when status < 500 then 'good' else concat_ws('-', kind, status) end",
    "cast(a as double) / 3",
    "a::int",
    "extract(hour from at)",
    "date_trunc('hour', at) + interval 1 day",
    "transform(filter(xs, x -> x > 1), (x, i) -> x + i)",
    "json.b.c[0]",
    "sum(a) filter (where b > 1)",
    "row_number() over (partition by a order by b desc)",
    "from_json(a, 'b int')",
    "regexp_extract(a, '(x+)', 1)",
    "percentile_disc(0.5) within group (order by a)",
    "coalesce(null, current_timestamp(), timestamp '2020-01-01 00:00:00')",
    "a in (select b from u)",
    "trim(both 'x' from a)",
    "uuid()",
)
PLAIN_QUERIES = (
    *(f"select {expression} from t" for expression in PLAIN_EXPRESSIONS),
    "with x as (select a, sum(b) as s from t group by a having s > 1) select * from x join u using (a) order by s limit 3",
    "select a, count(*) from t group by all order by 1",
    "select distinct a from t union all select b from u except select 3",
    "select sum(a) over w from t window w as (partition by b)",
    "select /*+ broadcast(u) */ * from t left join u on t.a = u.a",
    "select * from t lateral view explode(xs) e as x",
    "select * from t, lateral (select t.a + 1)",
    "select * from t pivot (sum(a) for b in (1, 2))",
    "select * from t unpivot (v for n in (a, b))",
    "select * from values (1, 'x'), (2, 'y') as v(a, b)",
    "select * from range(3) where id > 1",
    "select * from explode(array(1, 2))",
    "select a from t group by cube(a)",
    "from t |> where a > 1 |> aggregate sum(b) as s group by a |> order by s",
    "select * except (a) from t",
    "select 1",
)


@pytest.mark.parametrize("text", EVIL_EXPRESSIONS)
def test_an_expression_that_does_more_than_compute_is_refused(spark: SparkSession, text: str) -> None:
    with pytest.raises(ForbiddenSql):
        checked_expression(spark, text)


@pytest.mark.parametrize("text", EVIL_QUERIES)
def test_a_query_that_does_more_than_compute_is_refused(spark: SparkSession, text: str) -> None:
    from pyspark.errors import ParseException

    with pytest.raises((ForbiddenSql, ParseException)):
        check_query(spark, text)


@pytest.mark.parametrize("text", PLAIN_EXPRESSIONS)
def test_an_expression_that_only_computes_is_allowed(spark: SparkSession, text: str) -> None:
    checked_expression(spark, text)


@pytest.mark.parametrize("text", PLAIN_QUERIES)
def test_a_query_that_only_computes_is_allowed(spark: SparkSession, text: str) -> None:
    check_query(spark, text)


def test_the_message_names_the_function_and_the_option_that_allows_it(spark: SparkSession) -> None:
    text = "reflect('java.lang.Math', 'abs', -3)"
    with pytest.raises(ForbiddenSql, match="--function reflect allows it"):
        checked_expression(spark, text)

    found = spark.range(1).select(checked_expression(spark, text, ["Reflect"])).first()
    assert found is not None and found[0] == "3"


def test_a_function_that_does_not_exist_is_left_for_spark_to_refuse(spark: SparkSession) -> None:
    checked_expression(spark, "no_such_function(1)")


@pytest.mark.parametrize("measure", ["sum({})", "quantile({}, 0.5)", "top({}, 3)", "count if {} is null"])
def test_no_part_of_a_stream_runs_code(spark: SparkSession, measure: str, tmp_path: Path) -> None:
    made = tmp_path / "made"
    evil = f"reflect('java.nio.file.Files', 'createFile', '{made}')"
    rows = spark.sql("select timestamp '2020-01-01' as event_time, 1 as a")
    windows = Windows("5 minutes")
    with pytest.raises(InvalidExpression, match=r"values.n = .*--function reflect"):
        Aggregate(windows, [parse_measure("n", measure.format(evil))])(rows)
    count = [parse_measure("n", "count")]
    with pytest.raises(InvalidExpression, match=r"columns.b = .*--function reflect"):
        Aggregate(windows, count, columns={"b": evil})(rows)
    with pytest.raises(InvalidExpression, match=r"where = .*--function reflect"):
        Aggregate(windows, count, condition=f"{evil} is null")(rows)
    assert not made.exists()


def test_no_query_of_a_report_runs_before_all_are_checked(spark: SparkSession, tmp_path: Path) -> None:
    queries = [
        SectionQuery("One", SectionKind.TABLE, "select assert_true(false, 'it ran')"),
        SectionQuery("Two", SectionKind.TABLE, f"insert overwrite directory '{tmp_path / 'x'}' using csv select 1"),
    ]
    with pytest.raises(InvalidReportSection, match="section 'Two': InsertIntoDir is not for a job file"):
        run_queries(spark, queries)
    assert not (tmp_path / "x").exists()
